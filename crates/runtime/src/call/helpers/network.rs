//! The helpers that are about the network: the kernel's, by the kernel's ids.
//!
//! Two kinds. Some ask: they take their arguments apart, refuse what the kernel refuses, and leave the answer to the
//! engine's [`Network`]. The others only say where a packet is to go, and write that into its context. Memory that a
//! program gives is copied first and written back whole: it may be a map's value, which others change meanwhile.
//!
//! Source: `net/core/filter.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::skb::{EINVAL, ENOMEM, ret};
use crate::call::{guarded, leave};
use crate::context::network::{Device, FibLookup, FibVerdict, Network, Nexthop, Tunnel, Unconfigured};
use crate::context::packet::{Redirect, XdpBuff};
use crate::context::skb::SkBuff;
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_uapi::{Errno, address_family};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Verdicts of classifiers.
const TC_ACT_SHOT: u64 = 2;
const TC_ACT_REDIRECT: u64 = 7;

/// Asks the host's network. An error or a panic of the host ends the run.
///
/// # Safety
/// `run` must be the hidden argument of the running program, and the caller's frame hold nothing that needs dropping.
pub(super) unsafe fn ask(run: *mut RunCtx, question: impl FnOnce(&dyn Network) -> Result<u64, Errno>) -> u64 {
    let answer = {
        // SAFETY: the hidden argument is the first field of a `Run`; emitted code does not touch it during the call.
        let run = unsafe { &mut *run.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: the engine outlives its runs.
            let config = unsafe { &*run.config };
            Ok(ret(question(config.network.as_ref().map_or(&Unconfigured, |network| &***network))))
        })
    };
    match answer {
        Some(r0) => r0,
        // SAFETY: the caller's frame holds nothing to drop, and neither does this one.
        None => unsafe { leave(run) },
    }
}

/// A structure from a program's memory.
///
/// # Safety
/// `at` must be readable for a `T`, of which any bytes are one.
unsafe fn read<T>(at: u64) -> T {
    // SAFETY: the caller says that a `T` is readable there.
    unsafe { (at as *const T).read_unaligned() }
}

/// Flags of a look-up that the kernel knows (`BPF_FIB_LOOKUP_MASK`).
const FIB_FLAGS: u32 = 0x3f;

/// `bpf_fib_lookup(ctx, params, plen, flags)`. `longest`: of a packet without a given length, what a device's MTU must
/// be for it to pass.
///
/// # Safety
/// As [`ask`]; `params` must be readable and writable for `plen` bytes.
unsafe fn fib_lookup(params: u64, plen: u64, flags: u64, length: Option<usize>, run: *mut RunCtx) -> u64 {
    let flags = low(flags);
    if (low(plen) as usize) < size_of::<FibLookup>() || flags & !FIB_FLAGS != 0 {
        return ret(Err(EINVAL));
    }
    // SAFETY: the verifier has proven it readable at this length.
    let mut lookup: FibLookup = unsafe { read(params) };
    if !matches!(u32::from(lookup.family), address_family::INET | address_family::INET6) {
        return ret(Err(Errno::EAFNOSUPPORT));
    }
    let question = |network: &dyn Network| {
        let unmeasured = length.filter(|_| lookup.len_or_mtu == 0);
        let mut verdict = network.fib_lookup(&mut lookup, flags)?;
        if let (FibVerdict::SUCCESS, Some(length)) = (verdict, unmeasured)
            && let Some(Device { mtu, link_header }) = network.device(lookup.ifindex)
        {
            const VLAN_HLEN: u64 = 4;
            if length as u64 > u64::from(mtu) + u64::from(link_header) + VLAN_HLEN {
                verdict = FibVerdict::NEEDS_FRAGMENTS;
            }
            lookup.len_or_mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        }
        // SAFETY: the verifier has proven it writable at this length.
        unsafe { (params as *mut FibLookup).write_unaligned(lookup) };
        Ok(verdict.0.into())
    };
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe { ask(run, question) }
}

/// `bpf_fib_lookup` of XDP programs.
///
/// # Safety
/// The first argument must be the context of the running program, the last its hidden one; `params` as in
/// [`fib_lookup`].
pub(super) unsafe extern "C" fn xdp_fib_lookup(
    _: u64,
    params: u64,
    plen: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { fib_lookup(params, plen, flags, None, run) }
}

/// Implements `bpf_fib_lookup` for classifiers: if the program gives no length, the packet's own length is checked.
///
/// # Safety
/// As [`xdp_fib_lookup`].
pub(super) unsafe extern "C" fn skb_fib_lookup(
    context: u64,
    params: u64,
    plen: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &*(context as *const SkBuff<'_>) };
    let length = if skb.fields.gso_size != 0 { 0 } else { skb.window.len() };
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { fib_lookup(params, plen, flags, Some(length), run) }
}

/// `bpf_check_mtu(ctx, ifindex, mtu_len, len_diff, flags)` for a packet of this length.
///
/// # Safety
/// As [`ask`]; `mtu_len` must be readable and writable for 4 bytes.
unsafe fn check_mtu(
    (own_device, length, gso): (u32, usize, bool),
    [ifindex, mtu_len, diff]: [u64; 3],
    run: *mut RunCtx,
) -> u64 {
    const FRAGMENTATION_NEEDED: u64 = 1;
    // SAFETY: the verifier has proven it readable at this length.
    let given: u32 = unsafe { read(mtu_len) };
    let ifindex = if low(ifindex) == 0 { own_device } else { low(ifindex) };
    let question = |network: &dyn Network| {
        let Some(Device { mtu, link_header }) = network.device(ifindex) else { return Err(Errno::ENODEV) };
        // 32-bit arithmetic, as in the kernel.
        let length = if given == 0 { crate::num::small(length) } else { given.wrapping_add(link_header) };
        let length = length.wrapping_add(low(diff)).cast_signed();
        let fits = gso || length <= mtu.wrapping_add(link_header).cast_signed();
        // SAFETY: the verifier has proven it writable at this length.
        unsafe { (mtu_len as *mut u32).write_unaligned(mtu) };
        Ok(if fits { 0 } else { FRAGMENTATION_NEEDED })
    };
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe { ask(run, question) }
}

/// `bpf_check_mtu` of XDP programs, which has no flags.
///
/// # Safety
/// The first argument must be the context of the running program, the last its hidden one; `mtu_len` as in
/// [`check_mtu`].
pub(super) unsafe extern "C" fn xdp_check_mtu(
    context: u64,
    ifindex: u64,
    mtu_len: u64,
    diff: u64,
    flags: u64,
    run: *mut RunCtx,
) -> u64 {
    if flags != 0 {
        return ret(Err(EINVAL));
    }
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let buff = unsafe { &*(context as *const XdpBuff<'_>) };
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { check_mtu((buff.ingress_ifindex, buff.window.len(), false), [ifindex, mtu_len, diff], run) }
}

/// Implements `bpf_check_mtu` for classifiers. `BPF_MTU_CHK_SEGS` checks the segments of a large packet instead of its
/// length.
///
/// # Safety
/// As [`xdp_check_mtu`].
pub(super) unsafe extern "C" fn skb_check_mtu(
    context: u64,
    ifindex: u64,
    mtu_len: u64,
    diff: u64,
    flags: u64,
    run: *mut RunCtx,
) -> u64 {
    const SEGMENTS: u64 = 1;
    // SAFETY: the verifier has proven it readable at this length.
    let given: u32 = unsafe { read(mtu_len) };
    if flags & !SEGMENTS != 0 || (flags & SEGMENTS != 0 && (low(diff) != 0 || given != 0)) {
        return ret(Err(EINVAL));
    }
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &*(context as *const SkBuff<'_>) };
    let device = if skb.fields.ifindex == 0 { skb.fields.ingress_ifindex } else { skb.fields.ifindex };
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { check_mtu((device, skb.window.len(), skb.fields.gso_size != 0), [ifindex, mtu_len, diff], run) }
}

/// `bpf_clone_redirect(ctx, ifindex, flags)`: the packet as it is now goes out at once.
///
/// # Safety
/// The first argument must be the context of the running program, the last its hidden one.
pub(super) unsafe extern "C" fn clone_redirect(
    context: u64,
    ifindex: u64,
    flags: u64,
    _: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    const BPF_F_INGRESS: u64 = 1;
    if flags & !BPF_F_INGRESS != 0 {
        return ret(Err(EINVAL));
    }
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &*(context as *const SkBuff<'_>) };
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe { ask(run, |network| network.send(skb.packet(), low(ifindex), flags != 0).map(|sent| sent as u64)) }
}

/// `bpf_redirect_neigh(ifindex, params, plen, flags)`: `TC_ACT_REDIRECT`, or `TC_ACT_SHOT` for flags, of which there
/// are none, and for parameters that are too short.
///
/// # Safety
/// The last argument must be the hidden one of a program on [`Skb`](crate::net::Skb); `params` must be readable for
/// `plen` bytes.
pub(super) unsafe extern "C" fn redirect_neigh(
    ifindex: u64,
    params: u64,
    plen: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    let plen = low(plen) as usize;
    if flags != 0 || (plen != 0 && plen < size_of::<Nexthop>()) {
        return TC_ACT_SHOT;
    }
    // SAFETY: the verifier has proven it readable at this length.
    let nexthop = (plen != 0).then(|| unsafe { read(params) });
    // SAFETY: the hidden argument of a running program.
    let context = unsafe { (*run).context } as *mut SkBuff<'_>;
    // SAFETY: programs that call this run on `Skb`, as the linker sees to.
    let skb = unsafe { &mut *context };
    (skb.redirect, skb.nexthop) = (Some(Redirect::Neighbour { ifindex: low(ifindex) }), nexthop);
    TC_ACT_REDIRECT
}

/// `bpf_redirect_peer(ifindex, flags)`: `TC_ACT_REDIRECT`, or `TC_ACT_SHOT` for flags, of which there are none.
///
/// # Safety
/// The last argument must be the hidden one of a program on [`Skb`](crate::net::Skb).
pub(super) unsafe extern "C" fn redirect_peer(
    ifindex: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    if flags != 0 {
        return TC_ACT_SHOT;
    }
    // SAFETY: the hidden argument of a running program.
    let context = unsafe { (*run).context } as *mut SkBuff<'_>;
    // SAFETY: programs that call this run on `Skb`, as the linker sees to.
    let skb = unsafe { &mut *context };
    (skb.redirect, skb.nexthop) = (Some(Redirect::Peer { ifindex: low(ifindex) }), None);
    TC_ACT_REDIRECT
}

/// `bpf_get_netns_cookie(ctx)`.
///
/// # Safety
/// The last argument must be the hidden one of the running program.
pub(super) unsafe extern "C" fn get_netns_cookie(_: u64, _: u64, _: u64, _: u64, _: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe { ask(run, |network| Ok(network.namespace_cookie())) }
}

/// `struct bpf_tunnel_key`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct TunnelKey {
    id: u32,
    remote: [u8; 16],
    tos: u8,
    ttl: u8,
    /// `tunnel_ext`, which is 0, or `tunnel_flags`, in network byte order.
    flags: u16,
    label: u32,
    local: [u8; 16],
}

const KEY_LEN: usize = size_of::<TunnelKey>();
const _: () = assert!(KEY_LEN == 44);

/// Lengths that the structure had in older versions: before its local address, its label, `tunnel_ext`, and IPv6.
const OLD_KEYS: [usize; 4] = [28, 24, 22, 8];

const TUNINFO_IPV6: u64 = 1;

/// An address of IPv4 as the structure has it: a number in the host's byte order.
fn v4(bytes: [u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    Ipv4Addr::from(u32::from_ne_bytes([a, b, c, d])).into()
}

fn key_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&u32::from(address).to_ne_bytes());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// The key of the packet's tunnel, as far as `size` bytes hold it.
fn tunnel_key(tunnel: Option<&Tunnel>, size: usize, flags: u64) -> Result<TunnelKey, Errno> {
    const TUNINFO_FLAGS: u64 = 1 << 4;
    let tunnel = tunnel.filter(|_| flags & !(TUNINFO_IPV6 | TUNINFO_FLAGS) == 0).ok_or(EINVAL)?;
    if tunnel.source.is_ipv6() != (flags & TUNINFO_IPV6 != 0) {
        return Err(Errno::EPROTO);
    }
    let old = OLD_KEYS.contains(&size) && !(size == 8 && tunnel.source.is_ipv6());
    if size != KEY_LEN && !old {
        return Err(EINVAL);
    }
    Ok(TunnelKey {
        id: low(tunnel.id),
        remote: key_address(tunnel.source),
        tos: tunnel.tos,
        ttl: tunnel.ttl,
        flags: if flags & TUNINFO_FLAGS != 0 { tunnel.flags.to_be() } else { 0 },
        label: if tunnel.source.is_ipv6() { tunnel.label } else { 0 },
        local: key_address(tunnel.destination),
    })
}

/// `bpf_skb_get_tunnel_key(ctx, key, size, flags)`; an error zeroes the target.
///
/// # Safety
/// The first argument must be the context of the running program; `to` must be writable for `size` bytes.
pub(super) unsafe extern "C" fn get_tunnel_key(
    context: u64,
    to: u64,
    size: u64,
    flags: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &*(context as *const SkBuff<'_>) };
    let (to, size) = (to as *mut u8, low(size) as usize);
    let key = tunnel_key(skb.tunnel.as_ref(), size, flags);
    // SAFETY: the verifier has proven that many bytes writable.
    unsafe { core::ptr::write_bytes(to, 0, size) };
    match key {
        Ok(key) => {
            // SAFETY: both have that many bytes: the verifier has proven the program's; the function above bounds the
            // length by the key's.
            unsafe { core::ptr::copy((&raw const key).cast(), to, size.min(KEY_LEN)) };
            0
        }
        Err(error) => ret(Err(error)),
    }
}

/// The tunnel that a program asks for.
fn outgoing_tunnel(key: &TunnelKey, flags: u64) -> Result<Tunnel, Errno> {
    const ZERO_CSUM_TX: u64 = 1 << 1;
    const DONT_FRAGMENT: u64 = 1 << 2;
    const SEQ_NUMBER: u64 = 1 << 3;
    const NO_TUNNEL_KEY: u64 = 1 << 4;
    let v6 = flags & TUNINFO_IPV6 != 0;
    if (!v6 && key.label != 0) || key.flags != 0 {
        return Err(EINVAL);
    }
    let address = |bytes| if v6 { Ipv6Addr::from(bytes).into() } else { v4(bytes) };
    let mut tunnel = Tunnel::new(key.id.into(), address(key.local), address(key.remote));
    (tunnel.tos, tunnel.ttl, tunnel.outgoing) = (key.tos, key.ttl, true);
    tunnel.label = key.label & 0xf_ffff;
    // IP_TUNNEL_CSUM_BIT, _KEY_, _SEQ_, _DONT_FRAGMENT_ and _NOCACHE_.
    let bit = |set: bool, bit: u32| u16::from(set) << bit;
    tunnel.flags = bit(flags & ZERO_CSUM_TX == 0, 0)
        | bit(flags & NO_TUNNEL_KEY == 0, 2)
        | bit(flags & SEQ_NUMBER != 0, 3)
        | bit(flags & DONT_FRAGMENT != 0, 8)
        | bit(true, 13);
    Ok(tunnel)
}

/// `bpf_skb_set_tunnel_key(ctx, key, size, flags)`.
///
/// # Safety
/// The first argument must be the context of the running program; `from` must be readable for `size` bytes.
pub(super) unsafe extern "C" fn set_tunnel_key(
    context: u64,
    from: u64,
    size: u64,
    flags: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &mut *(context as *mut SkBuff<'_>) };
    let size = low(size) as usize;
    if flags & !0x1f != 0 || (size != KEY_LEN && !OLD_KEYS.contains(&size)) {
        return ret(Err(EINVAL));
    }
    let mut key = TunnelKey::default();
    // SAFETY: both have that many bytes: the verifier has proven the program's; no longer than the key.
    unsafe { core::ptr::copy(from as *const u8, (&raw mut key).cast(), size) };
    ret(outgoing_tunnel(&key, flags).map(|tunnel| {
        skb.tunnel = Some(tunnel);
        0
    }))
}

/// The flags that say that there are options: Geneve's, VXLAN's, ERSPAN's, GTP's.
const OPTIONS_PRESENT: u16 = 1 << 11 | 1 << 12 | 1 << 14 | 1 << 15;

/// `bpf_skb_get_tunnel_opt(ctx, opt, size)`: their length; an error zeroes the target.
///
/// # Safety
/// As [`get_tunnel_key`].
pub(super) unsafe extern "C" fn get_tunnel_opt(
    context: u64,
    to: u64,
    size: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &*(context as *const SkBuff<'_>) };
    let (to, size) = (to as *mut u8, low(size) as usize);
    // SAFETY: the verifier has proven that many bytes writable.
    unsafe { core::ptr::write_bytes(to, 0, size) };
    let Some(tunnel) = skb.tunnel.as_ref().filter(|tunnel| tunnel.flags & OPTIONS_PRESENT != 0) else {
        return ret(Err(Errno::ENOENT));
    };
    let options = tunnel.options();
    if size < options.len() {
        return ret(Err(ENOMEM));
    }
    // SAFETY: both have that many bytes: the verifier has proven the program's; not longer than the target; the
    // packet's notes are no program's memory.
    unsafe { core::ptr::copy(options.as_ptr(), to, options.len()) };
    options.len() as u64
}

/// `bpf_skb_set_tunnel_opt(ctx, opt, size)`: for the tunnel that `bpf_skb_set_tunnel_key` has set before.
///
/// # Safety
/// As [`set_tunnel_key`].
pub(super) unsafe extern "C" fn set_tunnel_opt(
    context: u64,
    from: u64,
    size: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits nothing else as the
    // first argument.
    let skb = unsafe { &mut *(context as *mut SkBuff<'_>) };
    let size = low(size) as usize;
    let Some(tunnel) = skb.tunnel.as_mut().filter(|tunnel| tunnel.outgoing && size.is_multiple_of(4)) else {
        return ret(Err(EINVAL));
    };
    let mut options = [0; Tunnel::MAX_OPTIONS];
    let Some(options) = options.get_mut(..size) else { return ret(Err(ENOMEM)) };
    // SAFETY: both have that many bytes: the verifier has proven the program's.
    unsafe { core::ptr::copy(from as *const u8, options.as_mut_ptr(), size) };
    // Cannot be too long any more.
    if tunnel.set_options(options) {
        tunnel.flags |= OPTIONS_PRESENT;
    }
    0
}
