//! The kernel's helpers that change the packet or the metadata of a `struct __sk_buff`, by the kernel's ids.
//!
//! Each is a safe function of [`SkBuff`], which moves the packet's ends by the window's checked operations only; a C
//! function around it tells the run where the packet is then. An operation for which the kernel reallocates needs room
//! in the host's buffer here, and fails with `-ENOMEM` without.
//!
//! Source: `net/core/filter.c`, `net/core/skbuff.c`, `include/linux/if_vlan.h`, `include/net/inet_ecn.h` (Linux 6.18).

use crate::context::skb::{ETH_HLEN, SkBuff};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_uapi::Errno;

type Done = Result<u64, Errno>;

pub(crate) const EINVAL: Errno = Errno::EINVAL;
pub(crate) const ENOMEM: Errno = Errno::ENOMEM;
pub(crate) const ENOTSUPP: Errno = Errno::ENOTSUPP;

/// A packet does not grow beyond this (Linux: `SKB_MAX_ALLOC`: four pages less a `struct skb_shared_info`).
const MAX_LEN: usize = 4 * 4096 - 320;

const IPV4_HLEN: usize = 20;
const IPV6_HLEN: usize = 40;
const VLAN_HLEN: usize = 4;

/// Ethernet types, in network byte order as `protocol` is.
const IPV4: u32 = ether(0x0800);
const IPV6: u32 = ether(0x86dd);
const VLAN: u32 = ether(0x8100);
const QINQ: u32 = ether(0x88a8);

const fn ether(kind: u16) -> u32 {
    kind.to_be() as u32
}

/// Returns a helper's result as r0: the value, or the negative error number.
pub(crate) fn ret(done: Done) -> u64 {
    done.unwrap_or_else(|errno| errno.as_ret().cast_unsigned())
}

impl SkBuff<'_> {
    /// Has the fields and the run say where the packet is now.
    ///
    /// # Safety
    /// `run` must be the hidden argument of the run that has this context.
    unsafe fn publish(&mut self, run: *mut RunCtx) {
        self.fields.len = crate::num::small(self.window.len());
        self.publish_headers();
        // SAFETY: the caller gives the run's hidden argument.
        let run = unsafe { &mut *run };
        (run.packet, run.packet_len) = (self.window.data() as u64, self.window.len() as u64);
    }

    /// Bytes from the packet's start to a noted place; negative before it.
    fn place_from_start(&self, place: i64) -> i64 {
        place - self.window.at() as i64
    }

    /// Bytes of the link header.
    fn link_header(&self) -> Result<usize, Errno> {
        usize::try_from(self.notes.network - self.notes.mac).map_err(|_| EINVAL)
    }

    fn is_gso(&self) -> bool {
        self.fields.gso_size != 0
    }

    /// `len` bytes from a place on that may lie before the packet, but in the buffer, and end before the packet does.
    fn header(&self, place: i64, len: usize) -> Option<*const u8> {
        let (start, end) = (usize::try_from(place).ok()?, self.window.at() + self.window.len());
        (start.checked_add(len)? <= end).then(|| self.window.memory().0.wrapping_add(start).cast_const())
    }

    /// `len` bytes of the packet from a noted place on.
    fn at(&mut self, place: i64, len: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(self.place_from_start(place)).ok()?;
        self.window.packet_mut().get_mut(start..start.checked_add(len)?)
    }

    /// Puts `by` zero bytes at `at` behind the packet's start; the link and network headers begin so much earlier.
    ///
    /// The kernel lets `at` lie behind the end, and then moves bytes that are no part of the packet: an error here,
    /// unless there is nothing to move.
    fn push_header(&mut self, at: usize, by: usize) -> Result<(), Errno> {
        if by != 0 && !self.window.open(at, by) {
            return Err(ENOMEM);
        }
        self.move_headers(-(by as i64));
        Ok(())
    }

    fn pop_header(&mut self, at: usize, by: usize) -> Result<(), Errno> {
        if !self.window.close(at, by) {
            return Err(ENOMEM);
        }
        self.move_headers(by as i64);
        Ok(())
    }

    fn move_headers(&mut self, by: i64) {
        let with_network = self.notes.transport == Some(self.notes.network);
        self.notes.mac += by;
        self.notes.network += by;
        if with_network {
            self.notes.transport = Some(self.notes.network);
        }
    }

    pub(crate) fn clear_hash(&mut self) {
        (self.fields.hash, self.notes.hashed) = (0, false);
    }

    fn change_proto(&mut self, proto: u32, flags: u64) -> Done {
        if flags != 0 {
            return Err(EINVAL);
        }
        let by = IPV6_HLEN - IPV4_HLEN;
        match (self.fields.protocol, proto & 0xffff) {
            (IPV4, IPV6) => self.push_header(self.link_header()?, by)?,
            (IPV6, IPV4) => self.pop_header(self.link_header()?, by)?,
            _ => return Err(ENOTSUPP),
        }
        self.fields.protocol = proto & 0xffff;
        self.clear_hash();
        Ok(0)
    }

    fn change_type(&mut self, kind: u32) -> Done {
        // PACKET_HOST, _BROADCAST, _MULTICAST and _OTHERHOST.
        const LAST: u32 = 3;
        if self.fields.pkt_type > LAST || kind > LAST {
            return Err(EINVAL);
        }
        self.fields.pkt_type = kind;
        Ok(0)
    }

    fn change_tail(&mut self, len: u32, flags: u64) -> Done {
        let (len, notes) = (len as usize, self.notes);
        let behind_start = |place: &i64| self.place_from_start(*place) > 0;
        let last = notes.transport.filter(behind_start).unwrap_or(notes.network);
        let headers = self.place_from_start(last);
        if flags != 0 || len > MAX_LEN || (len as i64) < headers {
            return Err(EINVAL);
        }
        if notes.encapsulated {
            return Err(ENOTSUPP);
        }
        if !self.window.resize(len) {
            return Err(ENOMEM);
        }
        self.fields.gso_size = 0;
        self.fields.gso_segs = 0;
        Ok(0)
    }

    fn change_head(&mut self, by: u32, flags: u64) -> Done {
        let len = self.window.len() + by as usize;
        if flags != 0 || (!self.is_gso() && len > MAX_LEN) {
            return Err(EINVAL);
        }
        if !self.window.open(0, by as usize) {
            return Err(ENOMEM);
        }
        // The network header stays where it is: this is for packets that get a link header.
        self.notes.mac = self.window.at() as i64;
        Ok(0)
    }

    fn pull_data(&mut self, len: u32) -> Done {
        if len as usize > self.window.len() { Err(ENOMEM) } else { Ok(0) }
    }

    /// The length of the network header that `protocol` says is there.
    fn base_header(&self) -> Option<usize> {
        match self.fields.protocol {
            IPV4 => Some(IPV4_HLEN),
            IPV6 => Some(IPV6_HLEN),
            _ => None,
        }
    }

    fn adjust_room(&mut self, diff: i32, mode: u32, flags: u64) -> Done {
        use room::*;
        let by = diff.unsigned_abs() as usize;
        let shrinks = diff < 0;
        if flags & !ALL != 0 {
            return Err(EINVAL);
        }
        if by > 0xfff {
            return Err(Errno::EFAULT);
        }
        let Some(base) = self.base_header() else { return Err(ENOTSUPP) };
        let at = match mode {
            NET => self.link_header()? + base,
            MAC => self.link_header()?,
            _ => return Err(ENOTSUPP),
        };
        let least = match flags & DECAP_L3 {
            0 => base,
            _ if !shrinks => return Err(EINVAL),
            DECAP_L3_IPV4 => IPV4_HLEN,
            DECAP_L3_IPV6 => IPV6_HLEN,
            _ => return Err(EINVAL),
        };
        let network = self.place_from_start(self.notes.network);
        // The kernel's arithmetic is unsigned: a network header behind the end makes a packet that is long enough.
        let len = i64::try_from(self.window.len()).map_err(|_| EINVAL)? - network;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let too_short = shrinks && (by >= len || len - by < least);
        if too_short || (!shrinks && self.window.len() + by > MAX_LEN && !self.is_gso()) {
            return Err(ENOTSUPP);
        }
        if shrinks {
            self.shrink(at, by, flags)?
        } else {
            self.grow(at, by, flags)?
        }
        if self.is_gso() {
            if flags & FIXED_GSO == 0 {
                let size = self.fields.gso_size;
                self.fields.gso_size = size.wrapping_sub(diff.cast_unsigned()) & 0xffff;
            }
            self.fields.gso_segs = 0;
        }
        if flags & NO_CSUM_RESET == 0 {
            self.notes.csum_level = None;
        }
        Ok(0)
    }

    fn grow(&mut self, at: usize, by: usize, flags: u64) -> Result<(), Errno> {
        use room::*;
        let encap = flags & ENCAP_L3 != 0;
        let link = self.link_header()?;
        let inner_link = crate::num::index(flags >> INNER_LINK_SHIFT);
        if encap {
            let both = |mask: u64| flags & mask == mask;
            if both(ENCAP_L3) || both(ENCAP_L4) || (flags & ENCAP_L2_ETH != 0 && inner_link < ETH_HLEN) {
                return Err(EINVAL);
            }
            if self.notes.encapsulated {
                return Err(Errno::EALREADY);
            }
            if inner_link > by {
                return Err(EINVAL);
            }
        }
        self.push_header(at, by)?;
        if encap {
            self.notes.encapsulated = true;
            let start = self.window.at() as i64;
            self.notes.network = start + link as i64;
            let (protocol, header) = if flags & ENCAP_L3_IPV6 != 0 { (IPV6, IPV6_HLEN) } else { (IPV4, IPV4_HLEN) };
            if flags & ENCAP_L4 != 0 {
                self.notes.transport = Some(self.notes.network + header as i64);
            }
            self.fields.protocol = protocol;
        }
        Ok(())
    }

    fn shrink(&mut self, at: usize, by: usize, flags: u64) -> Result<(), Errno> {
        use room::*;
        if flags & !(FIXED_GSO | DECAP_L3 | NO_CSUM_RESET) != 0 {
            return Err(EINVAL);
        }
        self.pop_header(at, by)?;
        match flags & DECAP_L3 {
            DECAP_L3_IPV4 => self.fields.protocol = IPV4,
            DECAP_L3_IPV6 => self.fields.protocol = IPV6,
            _ => {}
        }
        Ok(())
    }

    /// Puts the VLAN tag that is beside the packet into it.
    fn insert_tag(&mut self) -> Result<(), Errno> {
        let at = ETH_HLEN - 2;
        if !self.window.open(at, VLAN_HLEN) {
            return Err(ENOMEM);
        }
        let [p0, p1, ..] = self.fields.vlan_proto.to_le_bytes();
        let [.., t0, t1] = self.fields.vlan_tci.to_be_bytes();
        if let Some(room) = self.window.packet_mut().get_mut(at..at + VLAN_HLEN) {
            room.copy_from_slice(&[p0, p1, t0, t1]);
        }
        self.notes.mac -= VLAN_HLEN as i64;
        self.notes.network -= VLAN_HLEN as i64;
        self.fields.protocol = self.fields.vlan_proto;
        Ok(())
    }

    fn set_tag(&mut self, proto: u32, tci: u32) {
        let fields = &mut self.fields;
        (fields.vlan_present, fields.vlan_proto, fields.vlan_tci) = (1, proto & 0xffff, tci & 0xffff);
    }

    fn vlan_push(&mut self, proto: u32, tci: u32) -> Done {
        let proto = match proto & 0xffff {
            tag @ (VLAN | QINQ) => tag,
            _ => VLAN,
        };
        if self.fields.vlan_present != 0 {
            self.insert_tag()?;
        }
        self.set_tag(proto, tci);
        Ok(0)
    }

    /// Takes the tag out of the packet; its TCI.
    fn remove_tag(&mut self) -> Result<u32, Errno> {
        let Some(bytes) = self.window.packet().get(ETH_HLEN..ETH_HLEN + VLAN_HLEN) else { return Err(ENOMEM) };
        let (tci, inner) = (u16::from_be_bytes([bytes[0], bytes[1]]), [bytes[2], bytes[3]]);
        // IEEE 802.3: a number below 0x600 is a length; then 0xffff begins an IPX packet, and anything else 802.2.
        self.fields.protocol = if u16::from_be_bytes(inner) >= 0x600 {
            u16::from_ne_bytes(inner).into()
        } else if self.window.packet().get(ETH_HLEN + VLAN_HLEN..ETH_HLEN + VLAN_HLEN + 2) == Some(&[0xff; 2]) {
            ether(0x0001)
        } else {
            ether(0x0004)
        };
        if !self.window.close(2 * 6, VLAN_HLEN) {
            return Err(ENOMEM);
        }
        self.notes.mac += VLAN_HLEN as i64;
        if self.place_from_start(self.notes.network) < ETH_HLEN as i64 {
            self.notes.network = (self.window.at() + ETH_HLEN) as i64;
        }
        Ok(tci.into())
    }

    /// Sets the timestamp of IP packets only, as the kernel does, which does not clear the timestamps of other
    /// protocols on the way. Clocks other than the real one have no time 0.
    fn set_tstamp(&mut self, tstamp: u64, kind: u32) -> Done {
        const REALTIME: u32 = 0;
        const TAI: u32 = 2;
        if !matches!(self.fields.protocol, IPV4 | IPV6) {
            return Err(Errno::EOPNOTSUPP);
        }
        match u8::try_from(kind) {
            Ok(known) if kind <= TAI && (tstamp != 0 || kind == REALTIME) => {
                (self.fields.tstamp, self.fields.tstamp_type) = (tstamp, known);
                Ok(0)
            }
            Ok(_) | Err(_) => Err(EINVAL),
        }
    }

    fn vlan_pop(&mut self) -> Done {
        let tagged = |skb: &Self| matches!(skb.fields.protocol, VLAN | QINQ);
        if self.fields.vlan_present != 0 {
            let fields = &mut self.fields;
            (fields.vlan_present, fields.vlan_proto, fields.vlan_tci) = (0, 0, 0);
        } else if tagged(self) {
            self.remove_tag()?;
        } else {
            return Ok(0);
        }
        // The next tag in the packet goes beside it.
        if tagged(self) {
            let proto = self.fields.protocol;
            let tci = self.remove_tag()?;
            self.set_tag(proto, tci);
        }
        Ok(0)
    }

    /// The hash, which is made now if nobody has said what it is.
    fn hash(&mut self) -> Done {
        if !self.notes.hashed && self.fields.hash == 0 {
            self.fields.hash = flow_hash(self.network_packet(), self.protocol_behind_tags());
        }
        self.notes.hashed = true;
        Ok(self.fields.hash.into())
    }

    fn set_hash(&mut self, hash: u32) -> Done {
        (self.fields.hash, self.notes.hashed) = (hash, true);
        Ok(0)
    }

    fn network_packet(&self) -> &[u8] {
        let at = usize::try_from(self.place_from_start(self.notes.network));
        at.ok().and_then(|at| self.window.packet().get(at..)).unwrap_or_default()
    }

    /// The protocol behind the VLAN tags in the packet.
    fn protocol_behind_tags(&self) -> u32 {
        const MOST: usize = 8;
        let (mut protocol, mut at) = (self.fields.protocol, ETH_HLEN);
        for _ in 1..MOST {
            if !matches!(protocol, VLAN | QINQ) {
                return protocol;
            }
            let Some(tag) = self.window.packet().get(at..at + VLAN_HLEN) else { return 0 };
            (protocol, at) = (u16::from_ne_bytes([tag[2], tag[3]]).into(), at + VLAN_HLEN);
        }
        0
    }

    /// Checksum state is unknown here: the same as for a packet that no device has checked.
    fn csum_update(&mut self) -> Done {
        Err(ENOTSUPP)
    }

    fn csum_level_of(&mut self, what: u64) -> Done {
        const MOST: u8 = 3;
        let level = &mut self.notes.csum_level;
        match what {
            0 => return level.map(u64::from).ok_or(Errno::EACCES),
            1 => *level = Some(level.map_or(0, |level| (level + 1).min(MOST))),
            2 => *level = level.and_then(|level| level.checked_sub(1)),
            3 => *level = None,
            _ => return Err(EINVAL),
        }
        Ok(0)
    }

    fn set_congestion(&mut self) -> Done {
        const CE: u8 = 3;
        let network = self.notes.network;
        match self.protocol_behind_tags() {
            IPV4 => {
                let Some(header) = self.at(network, IPV4_HLEN) else { return Ok(0) };
                // One more than the field says: 0: congestion already; 1: not capable of it; 2 and 3: capable.
                let ecn = header[1].wrapping_add(1) & CE;
                if ecn & 2 == 0 {
                    return Ok(u64::from(ecn == 0));
                }
                let sum = u16::from_be_bytes([header[10], header[11]]);
                let (sum, carry) = sum.overflowing_add(0xfffb + u16::from(ecn));
                header[10..12].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
                header[1] |= CE;
                Ok(1)
            }
            IPV6 => {
                let Some(header) = self.at(network, IPV6_HLEN) else { return Ok(0) };
                if header[1] >> 4 & CE == 0 {
                    return Ok(0);
                }
                header[1] |= CE << 4;
                Ok(1)
            }
            _ => Ok(0),
        }
    }
}

/// Modes and flags of `bpf_skb_adjust_room`: `BPF_ADJ_ROOM_*` and `BPF_F_ADJ_ROOM_*`.
mod room {
    pub(super) const NET: u32 = 0;
    pub(super) const MAC: u32 = 1;
    pub(super) const FIXED_GSO: u64 = 1;
    pub(super) const ENCAP_L3_IPV4: u64 = 1 << 1;
    pub(super) const ENCAP_L3_IPV6: u64 = 1 << 2;
    pub(super) const ENCAP_L3: u64 = ENCAP_L3_IPV4 | ENCAP_L3_IPV6;
    /// GRE and UDP.
    pub(super) const ENCAP_L4: u64 = 1 << 3 | 1 << 4;
    pub(super) const NO_CSUM_RESET: u64 = 1 << 5;
    pub(super) const ENCAP_L2_ETH: u64 = 1 << 6;
    pub(super) const DECAP_L3_IPV4: u64 = 1 << 7;
    pub(super) const DECAP_L3_IPV6: u64 = 1 << 8;
    pub(super) const DECAP_L3: u64 = DECAP_L3_IPV4 | DECAP_L3_IPV6;
    /// The length of the inner link header is above.
    pub(super) const INNER_LINK_SHIFT: u32 = 56;
    pub(super) const ALL: u64 =
        FIXED_GSO | ENCAP_L3 | ENCAP_L4 | NO_CSUM_RESET | ENCAP_L2_ETH | DECAP_L3 | 0xff << INNER_LINK_SHIFT;
}

/// A number for the packet's flow: its addresses, protocol and ports. Never 0. The kernel's is keyed by chance.
fn flow_hash(packet: &[u8], protocol: u32) -> u32 {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let mut hash = u64::from(protocol);
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            // FNV-1a, spread at the end.
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let (kind, header) = match (protocol, packet) {
        (IPV4, [first, _, _, _, _, _, fragment, at, _, kind, _, _, rest @ ..]) if rest.len() >= 8 => {
            mix(&rest[..8]);
            let whole = fragment & 0x3f == 0 && *at == 0;
            (*kind, if whole { usize::from(first & 15) * 4 } else { usize::MAX })
        }
        (IPV6, [_, _, _, _, _, _, kind, _, rest @ ..]) if rest.len() >= 32 => {
            mix(&rest[..32]);
            (*kind, IPV6_HLEN)
        }
        _ => (0, usize::MAX),
    };
    mix(&[kind]);
    if let (TCP | UDP, Some(ports)) = (kind, header.checked_add(4).and_then(|end| packet.get(header..end))) {
        mix(ports);
    }
    hash ^= hash >> 32;
    low(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).max(1)
}

/// Defines helpers: `name = |context, [second register, third, fourth, fifth]| result`.
macro_rules! helpers {
    ($($(#[$doc:meta])* $name:ident = |$skb:ident, $registers:pat_param| $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The first argument must be the context of a running program on [`Skb`](crate::net::Skb), the last its hidden
        /// one.
        pub(crate) unsafe extern "C" fn $name(context: u64, b: u64, c: u64, d: u64, e: u64, run: *mut RunCtx) -> u64 {
            // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as
            // the first argument.
            let $skb = unsafe { &mut *(context as *mut SkBuff<'_>) };
            let $registers = [b, c, d, e];
            let done: Done = $call;
            // SAFETY: the context and the hidden argument are of one run.
            unsafe { $skb.publish(run) };
            ret(done)
        }
    )*};
}

helpers! {
    /// `bpf_skb_vlan_push(ctx, proto, tci)`.
    vlan_push = |skb, [proto, tci, ..]| skb.vlan_push(low(proto), low(tci));
    /// `bpf_skb_vlan_pop(ctx)`.
    vlan_pop = |skb, _| skb.vlan_pop();
    /// `bpf_skb_change_proto(ctx, proto, flags)`.
    change_proto = |skb, [proto, flags, ..]| skb.change_proto(low(proto), flags);
    /// `bpf_skb_change_type(ctx, type)`.
    change_type = |skb, [kind, ..]| skb.change_type(low(kind));
    /// `bpf_skb_change_tail(ctx, len, flags)`.
    change_tail = |skb, [len, flags, ..]| skb.change_tail(low(len), flags);
    /// `bpf_skb_change_head(ctx, len, flags)`.
    change_head = |skb, [len, flags, ..]| skb.change_head(low(len), flags);
    /// `bpf_skb_pull_data(ctx, len)`: the packet is in one piece already.
    pull_data = |skb, [len, ..]| skb.pull_data(low(len));
    /// `bpf_skb_adjust_room(ctx, len_diff, mode, flags)`.
    adjust_room = |skb, [diff, mode, flags, _]| skb.adjust_room(low(diff).cast_signed(), low(mode), flags);
    /// `bpf_get_hash_recalc(ctx)`.
    get_hash_recalc = |skb, _| skb.hash();
    /// `bpf_set_hash_invalid(ctx)`.
    set_hash_invalid = |skb, _| {
        skb.clear_hash();
        Ok(0)
    };
    /// `bpf_set_hash(ctx, hash)`.
    set_hash = |skb, [hash, ..]| skb.set_hash(low(hash));
    /// `bpf_csum_update(ctx, csum)`.
    csum_update = |skb, _| skb.csum_update();
    /// `bpf_csum_level(ctx, level)`.
    csum_level = |skb, [level, ..]| skb.csum_level_of(level);
    /// `bpf_skb_set_tstamp(ctx, tstamp, tstamp_type)`.
    set_tstamp = |skb, [tstamp, kind, ..]| skb.set_tstamp(tstamp, low(kind));
    /// `bpf_skb_ecn_set_ce(ctx)`.
    ecn_set_ce = |skb, _| skb.set_congestion();
}

/// `bpf_skb_load_bytes_relative(ctx, offset, to, len, start_header)`: a range that ends behind the packet zeroes the
/// target and is `-EFAULT`.
///
/// # Safety
/// As the helpers above; `to` must be writable for `len` bytes.
pub(crate) unsafe extern "C" fn load_bytes_relative(
    context: u64,
    offset: u64,
    to: u64,
    len: u64,
    header: u64,
    _: *mut RunCtx,
) -> u64 {
    const MAC: u64 = 0;
    const NETWORK: u64 = 1;
    let (to, size) = (to as *mut u8, low(len) as usize);
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &mut *(context as *mut SkBuff<'_>) };
    let place = match u64::from(low(header)) {
        MAC => Some(skb.notes.mac),
        NETWORK => Some(skb.notes.network),
        _ => None,
    };
    let offset = low(offset);
    let from = place.filter(|_| offset <= 0xffff).and_then(|place| skb.header(place + i64::from(offset), size));
    match from {
        Some(from) => {
            // SAFETY: both have that many bytes: the verifier has proven the program's; `copy`, because a program may
            // have put the target into the packet.
            unsafe { core::ptr::copy(from, to, size) };
            0
        }
        None => {
            // SAFETY: the verifier has proven that many bytes writable.
            unsafe { core::ptr::write_bytes(to, 0, size) };
            ret(Err(Errno::EFAULT))
        }
    }
}
