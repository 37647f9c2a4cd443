//! The helpers that take a context, of a packet or a socket: the kernel's, by the kernel's ids.
//!
//! These helpers exist only for programs on their context, because their first argument is trusted to be one: the
//! linker binds them by id *and* layout, and the verifier proves that the argument is the context.
//!
//! Source: `net/core/filter.c`, `include/net/checksum.h` (Linux 6.18).

use crate::call::HostFn;
use crate::call::helpers::ring::perf_output;
use crate::call::helpers::{frags, network, skb, socket, system};
use crate::context::frags::XdpFrags;
use crate::context::packet::{ETH_HLEN, Redirect, Window, Xdp, XdpBuff};
use crate::context::sk_lookup::SkLookup;
use crate::context::skb::{SkBuff, Skb};
use crate::context::sock_addr::{Sock, SockAddr};
use crate::context::sock_ops::SockOps;
use crate::context::{Context, ContextLayout};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_maps::{MapHeader, MapType, RedirectEntry, program as map_ops};
use bpf_uapi::flags::redirect;
use bpf_uapi::{Errno, Helper};
use bpf_verifier::{ArgKind, HelperProto};

/// Whether the helper exists for packet contexts only.
pub(crate) fn is_packet_helper(helper: Helper) -> bool {
    [XDP, SKB, SK_LOOKUP, SOCK, SOCK_ADDR, SOCK_OPS].into_iter().flatten().any(|h| h.0 == helper)
}

/// The helper for programs on `layout`.
pub(crate) fn packet_helper(helper: Helper, layout: &'static ContextLayout) -> Option<&'static HostFn> {
    let in_pieces = core::ptr::eq(layout, XdpFrags::layout());
    let own = if in_pieces { XDP_FRAGS.iter().find(|h| h.0 == helper) } else { None };
    let table = if in_pieces || core::ptr::eq(layout, Xdp::layout()) {
        XDP
    } else if core::ptr::eq(layout, Skb::layout()) {
        SKB
    } else if core::ptr::eq(layout, SkLookup::layout()) {
        SK_LOOKUP
    } else if core::ptr::eq(layout, Sock::layout()) {
        SOCK
    } else if core::ptr::eq(layout, SockAddr::layout()) {
        SOCK_ADDR
    } else if core::ptr::eq(layout, SockOps::layout()) {
        SOCK_OPS
    } else {
        return None;
    };
    own.or_else(|| table.iter().find(|h| h.0 == helper)).map(|h| &h.1)
}

/// The prototype for programs on `layout` where it is another than for the rest: a program whose context is the socket
/// gives that.
pub(crate) fn own_prototype(proto: &HelperProto, layout: &'static ContextLayout) -> Option<HelperProto> {
    let own = |arg| if matches!(arg, ArgKind::Socket { .. }) { ArgKind::Ctx } else { arg };
    (proto.helper() == Some(Helper::SkStorageGet) && core::ptr::eq(layout, Sock::layout()))
        .then(|| HelperProto { args: proto.args.map(own), ..proto.clone() })
}

const XDP: &[(Helper, HostFn)] = &[
    (Helper::Redirect, HostFn::with_run(xdp_redirect)),
    (Helper::RedirectMap, HostFn::with_run(xdp_redirect_map)),
    (Helper::PerfEventOutput, HostFn::with_run(xdp_event_output)),
    (Helper::CsumDiff, HostFn::plain(csum_diff)),
    (Helper::XdpAdjustHead, HostFn::plain(xdp_adjust_head)),
    (Helper::XdpAdjustMeta, HostFn::plain(xdp_adjust_meta)),
    (Helper::XdpAdjustTail, HostFn::plain(xdp_adjust_tail)),
    (Helper::FibLookup, HostFn::with_run(network::xdp_fib_lookup)),
    (Helper::CheckMtu, HostFn::with_run(network::xdp_check_mtu)),
    (Helper::GetCgroupClassid, HostFn::plain(system::zero)),
    (Helper::XdpGetBuffLen, HostFn::plain(xdp_get_buff_len)),
    (Helper::XdpLoadBytes, HostFn::plain(xdp_load_bytes)),
    (Helper::XdpStoreBytes, HostFn::plain(xdp_store_bytes)),
];

/// The helpers for packets in pieces that replace helpers of XDP programs on whole packets.
const XDP_FRAGS: &[(Helper, HostFn)] = &[
    (Helper::PerfEventOutput, HostFn::with_run(frags::event_output)),
    (Helper::XdpAdjustTail, HostFn::plain(frags::adjust_tail)),
    (Helper::XdpGetBuffLen, HostFn::plain(frags::get_buff_len)),
    (Helper::XdpLoadBytes, HostFn::plain(frags::load_bytes)),
    (Helper::XdpStoreBytes, HostFn::plain(frags::store_bytes)),
];

const SK_LOOKUP: &[(Helper, HostFn)] = &[(Helper::SkAssign, HostFn::with_run(socket::lookup_sk_assign))];

const SOCK: &[(Helper, HostFn)] = &[
    (Helper::GetSocketCookie, HostFn::plain(socket::sock_get_socket_cookie)),
    (Helper::SkStorageGet, HostFn::with_run(socket::sock_storage_get)),
];

const SOCK_ADDR: &[(Helper, HostFn)] = &[
    (Helper::GetSocketCookie, HostFn::plain(socket::addr_get_socket_cookie)),
    (Helper::SkStorageGet, HostFn::with_run(socket::sk_storage_get)),
    (Helper::SkStorageDelete, HostFn::with_run(socket::sk_storage_delete)),
];

const SOCK_OPS: &[(Helper, HostFn)] = &[
    (Helper::GetSocketCookie, HostFn::plain(socket::ops_get_socket_cookie)),
    (Helper::SockMapUpdate, HostFn::with_run(socket::sock_map_update)),
    (Helper::SockOpsCbFlagsSet, HostFn::plain(socket::sock_ops_cb_flags_set)),
    (Helper::SockHashUpdate, HostFn::with_run(socket::sock_map_update)),
    (Helper::SkStorageGet, HostFn::with_run(socket::sk_storage_get)),
    (Helper::SkStorageDelete, HostFn::with_run(socket::sk_storage_delete)),
];

const SKB: &[(Helper, HostFn)] = &[
    (Helper::GetCgroupClassid, HostFn::plain(system::zero)),
    (Helper::GetRouteRealm, HostFn::plain(system::zero)),
    (Helper::SkbCgroupId, HostFn::plain(system::zero)),
    (Helper::SkbAncestorCgroupId, HostFn::plain(system::zero)),
    (Helper::SkbCgroupClassid, HostFn::plain(system::zero)),
    (Helper::GetSocketCookie, HostFn::plain(socket::skb_get_socket_cookie)),
    (Helper::GetSocketUid, HostFn::plain(socket::get_socket_uid)),
    (Helper::SkAssign, HostFn::with_run(socket::skb_sk_assign)),
    (Helper::SkStorageGet, HostFn::with_run(socket::sk_storage_get)),
    (Helper::SkStorageDelete, HostFn::with_run(socket::sk_storage_delete)),
    (Helper::SkbSetTstamp, HostFn::with_run(skb::set_tstamp)),
    (Helper::SkbStoreBytes, HostFn::plain(skb_store_bytes)),
    (Helper::L3CsumReplace, HostFn::plain(l3_csum_replace)),
    (Helper::L4CsumReplace, HostFn::plain(l4_csum_replace)),
    (Helper::Redirect, HostFn::with_run(skb_redirect)),
    (Helper::PerfEventOutput, HostFn::with_run(skb_event_output)),
    (Helper::SkbLoadBytes, HostFn::plain(skb_load_bytes)),
    (Helper::CsumDiff, HostFn::plain(csum_diff)),
    (Helper::CloneRedirect, HostFn::with_run(network::clone_redirect)),
    (Helper::SkbVlanPush, HostFn::with_run(skb::vlan_push)),
    (Helper::SkbVlanPop, HostFn::with_run(skb::vlan_pop)),
    (Helper::SkbGetTunnelKey, HostFn::plain(network::get_tunnel_key)),
    (Helper::SkbSetTunnelKey, HostFn::plain(network::set_tunnel_key)),
    (Helper::SkbGetTunnelOpt, HostFn::plain(network::get_tunnel_opt)),
    (Helper::SkbSetTunnelOpt, HostFn::plain(network::set_tunnel_opt)),
    (Helper::SkbChangeProto, HostFn::with_run(skb::change_proto)),
    (Helper::SkbChangeType, HostFn::with_run(skb::change_type)),
    (Helper::GetHashRecalc, HostFn::with_run(skb::get_hash_recalc)),
    (Helper::SkbChangeTail, HostFn::with_run(skb::change_tail)),
    (Helper::SkbPullData, HostFn::with_run(skb::pull_data)),
    (Helper::CsumUpdate, HostFn::with_run(skb::csum_update)),
    (Helper::SetHashInvalid, HostFn::with_run(skb::set_hash_invalid)),
    (Helper::SkbChangeHead, HostFn::with_run(skb::change_head)),
    (Helper::SetHash, HostFn::with_run(skb::set_hash)),
    (Helper::SkbAdjustRoom, HostFn::with_run(skb::adjust_room)),
    (Helper::SkbLoadBytesRelative, HostFn::plain(skb::load_bytes_relative)),
    (Helper::FibLookup, HostFn::with_run(network::skb_fib_lookup)),
    (Helper::SkbEcnSetCe, HostFn::with_run(skb::ecn_set_ce)),
    (Helper::CsumLevel, HostFn::with_run(skb::csum_level)),
    (Helper::RedirectNeigh, HostFn::with_run(network::redirect_neigh)),
    (Helper::RedirectPeer, HostFn::with_run(network::redirect_peer)),
    (Helper::CheckMtu, HostFn::with_run(network::skb_check_mtu)),
];

const XDP_ABORTED: u64 = 0;
const XDP_REDIRECT: u64 = 4;
/// The flags of `bpf_redirect_map` that are the verdict where the map has no entry: `XDP_ABORTED` to `XDP_TX`.
const XDP_ON_MISS: u64 = 3;

const EINVAL: u64 = Errno::EINVAL.as_ret() as u64;
const EFAULT: u64 = Errno::EFAULT.as_ret() as u64;
const EACCES: u64 = Errno::EACCES.as_ret() as u64;

/// The window of an XDP context.
///
/// # Safety
/// `context` must be that of a running XDP program; nobody else uses it meanwhile.
unsafe fn xdp<'a>(context: u64) -> &'a mut Window {
    // SAFETY: the linker binds these helpers to programs on `Xdp` only, and the verifier admits only their context as
    // the first argument; emitted code waits for the call.
    &mut unsafe { &mut *(context as *mut XdpBuff<'_>) }.window
}

/// The packet of an `__sk_buff` context.
///
/// # Safety
/// As [`xdp`], for a program on [`Skb`].
unsafe fn packet<'a>(context: u64) -> &'a mut [u8] {
    // SAFETY: the linker binds these helpers to programs on `Skb` only, and the verifier admits only their context as
    // the first argument; nobody writes its window.
    let window = &unsafe { &*(context as *const SkBuff<'_>) }.window;
    // SAFETY: the window lies in a buffer that is borrowed for the run, and emitted code does not touch it during the
    // call.
    unsafe { core::slice::from_raw_parts_mut(window.data(), window.len()) }
}

/// `pointer + delta`. An address that wraps is [`Window::place`]'s to refuse, as any outside its buffer.
fn moved(pointer: *mut u8, delta: u64) -> *mut u8 {
    pointer.wrapping_offset(low(delta).cast_signed() as isize)
}

/// `bpf_xdp_adjust_head(ctx, delta)`.
///
/// # Safety
/// See the module.
unsafe extern "C" fn xdp_adjust_head(context: u64, delta: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    let w = unsafe { xdp(context) };
    let (old, data) = (w.data_meta(), moved(w.data(), delta));
    let meta = w.data().addr() - old.addr();
    let data_meta = data.wrapping_sub(meta);
    if w.data_end().addr().wrapping_sub(data.addr()) < ETH_HLEN || !w.place(data_meta, data, w.data_end()) {
        return EINVAL;
    }
    // SAFETY: both ranges of `meta` bytes lie in the buffer: the window's invariant, before and now.
    unsafe { core::ptr::copy(old, data_meta, meta) };
    0
}

/// `bpf_xdp_adjust_tail(ctx, delta)`: new bytes are zero.
///
/// # Safety
/// See the module.
unsafe extern "C" fn xdp_adjust_tail(context: u64, delta: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    let w = unsafe { xdp(context) };
    let (old, end) = (w.data_end(), moved(w.data_end(), delta));
    // An end before the start is a distance far beyond any packet, which `place` refuses.
    if end.addr().wrapping_sub(w.data().addr()) < ETH_HLEN || !w.place(w.data_meta(), w.data(), end) {
        return EINVAL;
    }
    if let Some(grown) = end.addr().checked_sub(old.addr()) {
        // SAFETY: from the old end to the new one, which is in the buffer: the window's invariant.
        unsafe { core::ptr::write_bytes(old, 0, grown) };
    }
    0
}

/// `bpf_xdp_adjust_meta(ctx, delta)`.
///
/// # Safety
/// See the module.
unsafe extern "C" fn xdp_adjust_meta(context: u64, delta: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    let w = unsafe { xdp(context) };
    let data_meta = moved(w.data_meta(), delta);
    if !w.buffer().contains(&data_meta) || data_meta > w.data() {
        return EINVAL;
    }
    if !(w.data().addr() - data_meta.addr()).is_multiple_of(4) || !w.place(data_meta, w.data(), w.data_end()) {
        return EACCES;
    }
    0
}

/// `bpf_xdp_get_buff_len(ctx)`.
///
/// # Safety
/// See the module.
unsafe extern "C" fn xdp_get_buff_len(context: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    unsafe { xdp(context) }.len() as u64
}

/// `len` bytes at `offset` of an XDP program's packet.
///
/// # Safety
/// See the module.
unsafe fn xdp_bytes(context: u64, offset: u64, len: u64) -> Result<*mut u8, u64> {
    const MOST: u32 = 0xffff;
    let (offset, len) = (low(offset), low(len));
    if offset > MOST || len > MOST {
        return Err(EFAULT);
    }
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    let window = unsafe { xdp(context) };
    if (offset + len) as usize > window.len() {
        return Err(EINVAL);
    }
    Ok(window.data().wrapping_add(offset as usize))
}

/// `bpf_xdp_load_bytes(ctx, offset, to, len)`. On an error the target is zeroed, which the kernel leaves as it was: a
/// program may read it.
///
/// # Safety
/// See the module; `to` must be writable for `len` bytes.
unsafe extern "C" fn xdp_load_bytes(context: u64, offset: u64, to: u64, len: u64, _: u64, _: *mut RunCtx) -> u64 {
    let (to, size) = (to as *mut u8, low(len) as usize);
    // SAFETY: the first argument is the context of a running XDP program.
    match unsafe { xdp_bytes(context, offset, len) } {
        Ok(from) => {
            // SAFETY: both have that many bytes: the verifier has proven the program's; in the packet. `copy`,
            // because a program may have put the target there too.
            unsafe { core::ptr::copy(from, to, size) };
            0
        }
        Err(error) => {
            // SAFETY: the verifier has proven that many bytes writable.
            unsafe { core::ptr::write_bytes(to, 0, size) };
            error
        }
    }
}

/// `bpf_xdp_store_bytes(ctx, offset, from, len)`.
///
/// # Safety
/// See the module; `from` must be readable for `len` bytes.
unsafe extern "C" fn xdp_store_bytes(context: u64, offset: u64, from: u64, len: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the first argument is the context of a running XDP program.
    match unsafe { xdp_bytes(context, offset, len) } {
        Ok(to) => {
            // SAFETY: both have that many bytes: the verifier has proven the program's; in the packet; `copy`,
            // because the source may be there too.
            unsafe { core::ptr::copy(from as *const u8, to, low(len) as usize) };
            0
        }
        Err(error) => error,
    }
}

/// `bpf_perf_event_output` of XDP programs: the flags may ask for bytes of the packet as it is now.
///
/// # Safety
/// See the module; `map` must be a live map and `data` readable for `size` bytes.
unsafe extern "C" fn xdp_event_output(
    context: u64,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the context of a running XDP program, which nobody else uses meanwhile (contract).
    let window = unsafe { xdp(context) };
    // SAFETY: the program was proven to pass a live perf event array and `size` readable bytes; the window lies in the
    // buffer that is borrowed for the run.
    unsafe {
        perf_output(map, flags, (data, size), |asked| core::iter::once((window.data(), asked)), window.len(), run)
    }
}

/// Implements `bpf_perf_event_output` for classifiers and socket filters.
///
/// # Safety
/// As [`xdp_event_output`].
unsafe extern "C" fn skb_event_output(
    context: u64,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: bound to programs on `Skb` only, whose first argument was proven to be their context; nobody writes its
    // window.
    let window = unsafe { &(*(context as *const SkBuff<'_>)).window };
    // SAFETY: the program was proven to pass a live perf event array and `size` readable bytes; the window lies in the
    // buffer that is borrowed for the run.
    unsafe {
        perf_output(map, flags, (data, size), |asked| core::iter::once((window.data(), asked)), window.len(), run)
    }
}

/// `bpf_redirect(ifindex, flags)` of XDP programs: `XDP_REDIRECT`, or `XDP_ABORTED` for flags, of which there are none.
///
/// # Safety
/// `ctx` must be the hidden argument of a program on [`Xdp`].
unsafe extern "C" fn xdp_redirect(ifindex: u64, flags: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let context = unsafe { (*ctx).context } as *mut u8;
    if flags != 0 {
        return XDP_ABORTED;
    }
    // SAFETY: bound to programs on `Xdp` only: the run's data is an `XdpBuff`, borrowed for the run.
    unsafe { (*context.cast::<XdpBuff<'_>>()).redirect = Some(Redirect::Device { ifindex: low(ifindex), flags }) };
    XDP_REDIRECT
}

/// `bpf_redirect_map(map, key, flags)`: `XDP_REDIRECT`, or the verdict in the low two bits of the flags where the map
/// has no entry (which takes back what was asked for before), or `XDP_ABORTED` for flags that the map's type does not
/// know.
///
/// # Safety
/// `map` must be a live map, `ctx` the hidden argument of a program on [`Xdp`].
unsafe extern "C" fn xdp_redirect_map(map: u64, key: u64, flags: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument of emitted code points to the run's context, alive for the call (contract).
    let context = unsafe { (*ctx).context } as *mut u8;
    // SAFETY: the context of a program on `Xdp` is an `XdpBuff` that nobody else uses during the run (contract).
    let buff = unsafe { &mut *context.cast::<XdpBuff<'_>>() };
    let map = map as *const MapHeader;
    // SAFETY: a live map (contract).
    let Some((map_type, id)) = (unsafe { map_ops::redirect_map(map) }) else { return XDP_ABORTED };
    let devices = matches!(map_type, MapType::DevMap | MapType::DevMapHash);
    let known = XDP_ON_MISS | if devices { redirect::BROADCAST | redirect::EXCLUDE_INGRESS } else { 0 };
    if flags & !known != 0 {
        return XDP_ABORTED;
    }
    if flags & redirect::BROADCAST != 0 {
        let exclude_ingress = flags & redirect::EXCLUDE_INGRESS != 0;
        buff.redirect = Some(Redirect::AllDevices { map: id, exclude_ingress });
        return XDP_REDIRECT;
    }
    let key = low(key);
    // SAFETY: the run holds a guard of the map's domain, inside of which every map of its programs lives.
    let entry = unsafe { map_ops::redirect_entry(map, key) };
    buff.redirect = entry.map(|RedirectEntry { number, program }| match map_type {
        MapType::CpuMap => Redirect::Cpu { map: id, cpu: key, queue_size: number, program },
        MapType::XskMap => Redirect::Socket { map: id, key, socket: number },
        _devices => Redirect::MapDevice { map: id, key, ifindex: number, program },
    });
    if entry.is_some() { XDP_REDIRECT } else { flags & XDP_ON_MISS }
}

/// `bpf_redirect(ifindex, flags)` of classifiers: `TC_ACT_REDIRECT`, or `TC_ACT_SHOT` for flags other than
/// `BPF_F_INGRESS`.
///
/// # Safety
/// `ctx` must be the hidden argument of a program on [`Skb`].
unsafe extern "C" fn skb_redirect(ifindex: u64, flags: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    const TC_ACT_SHOT: u64 = 2;
    const TC_ACT_REDIRECT: u64 = 7;
    const BPF_F_INGRESS: u64 = 1;
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let context = unsafe { (*ctx).context } as *mut u8;
    if flags & !BPF_F_INGRESS != 0 {
        return TC_ACT_SHOT;
    }
    // SAFETY: bound to programs on `Skb` only: the run's data is an `SkBuff`, borrowed for the run.
    unsafe { (*context.cast::<SkBuff<'_>>()).redirect = Some(Redirect::Device { ifindex: low(ifindex), flags }) };
    TC_ACT_REDIRECT
}

/// `bpf_skb_load_bytes(ctx, offset, to, len)`: a range outside the packet zeroes the target and is `-EFAULT`.
///
/// # Safety
/// See the module; `to` must be writable for `len` bytes and not in the packet.
unsafe extern "C" fn skb_load_bytes(context: u64, offset: u64, to: u64, len: u64, _: u64, _: *mut RunCtx) -> u64 {
    let (offset, len) = (low(offset) as usize, low(len) as usize);
    // SAFETY: the first argument was proven to be the context, and the slice is used within this call only.
    let packet = unsafe { packet(context) };
    match packet.get(offset..offset.saturating_add(len)) {
        Some(from) => {
            // SAFETY: `from` has `len` bytes, and so has `to`, as the program was proven to pass. `copy`, because a
            // program may have put the target into the packet after all.
            unsafe { core::ptr::copy(from.as_ptr(), to as *mut u8, len) };
            0
        }
        None => {
            // SAFETY: the program was proven to pass `len` writable bytes at `to`.
            unsafe { core::ptr::write_bytes(to as *mut u8, 0, len) };
            EFAULT
        }
    }
}

/// `bpf_skb_store_bytes(ctx, offset, from, len, flags)`. There is no checksum of the whole packet to keep up.
///
/// # Safety
/// See the module; `from` must be readable for `len` bytes.
pub(super) unsafe extern "C" fn skb_store_bytes(
    context: u64,
    offset: u64,
    from: u64,
    len: u64,
    flags: u64,
    _: *mut RunCtx,
) -> u64 {
    const RECOMPUTE_CSUM: u64 = 1;
    const INVALIDATE_HASH: u64 = 2;
    if flags & !(RECOMPUTE_CSUM | INVALIDATE_HASH) != 0 {
        return EINVAL;
    }
    let (offset, len) = (low(offset) as usize, low(len) as usize);
    // SAFETY: the first argument was proven to be the context, and the slice is used within this call only.
    let packet = unsafe { packet(context) };
    let Some(to) = packet.get_mut(offset..offset.saturating_add(len)) else { return EFAULT };
    // SAFETY: `to` has `len` bytes, and so has `from`, as the program was proven to pass; `copy`, because the source
    // may be in the packet.
    unsafe { core::ptr::copy(from as *const u8, to.as_mut_ptr(), len) };
    if flags & INVALIDATE_HASH != 0 {
        // SAFETY: the context of a running program on `Skb`; the packet is not in use any more.
        unsafe { &mut *(context as *mut SkBuff<'_>) }.clear_hash();
    }
    0
}

/// A one's-complement sum, folded to 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum & 0xffff) as u16
}

/// The one's-complement sum of memory in 16-bit words, as they lie there; a last byte of its own is followed by 0.
///
/// # Safety
/// `len` bytes must be readable at `at`.
unsafe fn partial(at: u64, len: usize) -> u64 {
    let read = |i: usize| {
        // SAFETY: `i` is below `len`; read byte by byte, because a packet has no alignment, and volatile, because a map
        // value may change meanwhile.
        unsafe { core::ptr::read_volatile((at as *const u8).wrapping_add(i)) }
    };
    let last = if len.is_multiple_of(2) { 0 } else { u64::from(u16::from_ne_bytes([read(len - 1), 0])) };
    (0..len / 2).map(|i| u64::from(u16::from_ne_bytes([read(2 * i), read(2 * i + 1)]))).sum::<u64>() + last
}

/// `bpf_csum_diff(from, from_len, to, to_len, seed)`: the result is folded to 16 bits. (Before Linux 6.13 lengths
/// were multiples of 4.)
///
/// # Safety
/// The memory must be readable.
unsafe extern "C" fn csum_diff(from: u64, from_len: u64, to: u64, to_len: u64, seed: u64, _: *mut RunCtx) -> u64 {
    let (from_len, to_len) = (low(from_len) as usize, low(to_len) as usize);
    // SAFETY: the program was proven to pass `from_len` readable bytes at `from`.
    let removed = fold(unsafe { partial(from, from_len) });
    // SAFETY: the program was proven to pass `to_len` readable bytes at `to`.
    let added = unsafe { partial(to, to_len) };
    let removed = if from_len == 0 { 0 } else { u64::from(!removed) };
    fold(u64::from(low(seed)) + added + removed).into()
}

/// The checksum `sum` after a change of the covered bytes: `from`, a number of `bits` bits, is replaced by `to`.
fn replace(sum: u16, from: u32, to: u32, bits: u32) -> u16 {
    let taken = if bits == 16 { u64::from(!((from & 0xffff) as u16)) } else { u64::from(!from) };
    let added = if bits == 16 { u64::from(to & 0xffff) } else { u64::from(to) };
    !fold(u64::from(!sum) + taken + added)
}

/// The two bytes of a checksum in the packet.
fn sum_at(packet: &mut [u8], offset: u64) -> Option<&mut [u8; 2]> {
    let offset = low(offset) as usize;
    if offset > 0xffff || !offset.is_multiple_of(2) {
        return None;
    }
    packet.get_mut(offset..)?.first_chunk_mut()
}

/// Flags: the size of the field that changed.
const HDR_FIELD_MASK: u64 = 0xf;

fn new_sum(sum: u16, from: u64, to: u64, flags: u64) -> Option<u16> {
    match flags & HDR_FIELD_MASK {
        0 if from == 0 => Some(!fold(u64::from(!sum) + u64::from(low(to)))),
        2 => Some(replace(sum, low(from), low(to), 16)),
        4 => Some(replace(sum, low(from), low(to), 32)),
        _ => None,
    }
}

/// `bpf_l3_csum_replace(ctx, offset, from, to, size)`.
///
/// # Safety
/// See the module.
unsafe extern "C" fn l3_csum_replace(context: u64, offset: u64, from: u64, to: u64, flags: u64, _: *mut RunCtx) -> u64 {
    if flags & !HDR_FIELD_MASK != 0 {
        return EINVAL;
    }
    // SAFETY: the first argument was proven to be the context, and the slice is used within this call only.
    let Some(at) = sum_at(unsafe { packet(context) }, offset) else { return EFAULT };
    let Some(sum) = new_sum(u16::from_ne_bytes(*at), from, to, flags) else { return EINVAL };
    *at = sum.to_ne_bytes();
    0
}

/// `bpf_l4_csum_replace(ctx, offset, from, to, flags)`.
///
/// # Safety
/// See the module.
unsafe extern "C" fn l4_csum_replace(context: u64, offset: u64, from: u64, to: u64, flags: u64, _: *mut RunCtx) -> u64 {
    const PSEUDO_HDR: u64 = 0x10;
    const MARK_MANGLED_0: u64 = 0x20;
    const MARK_ENFORCE: u64 = 0x40;
    // `BPF_F_IPV6` matters only for packets whose checksum a device has computed; none is here.
    const IPV6: u64 = 0x80;
    if flags & !(HDR_FIELD_MASK | PSEUDO_HDR | MARK_MANGLED_0 | MARK_ENFORCE | IPV6) != 0 {
        return EINVAL;
    }
    // SAFETY: the first argument was proven to be the context, and the slice is used within this call only.
    let Some(at) = sum_at(unsafe { packet(context) }, offset) else { return EFAULT };
    let old = u16::from_ne_bytes(*at);
    // UDP: a sum of 0 says that there is none, and a sum that comes out as 0 is written as 0xffff.
    let is_udp = flags & MARK_MANGLED_0 != 0;
    if is_udp && flags & MARK_ENFORCE == 0 && old == 0 {
        return 0;
    }
    let Some(sum) = new_sum(old, from, to, flags) else { return EINVAL };
    *at = if is_udp && sum == 0 { 0xffff } else { sum }.to_ne_bytes();
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of a header, from its definition (RFC 1071).
    fn checksum(header: &[u8]) -> u16 {
        !fold(header.chunks(2).map(|w| u64::from(u16::from_ne_bytes([w[0], w[1]]))).sum())
    }

    #[test]
    fn replacing_a_field_gives_the_checksum_of_the_new_header() {
        let mut header = *b"\x45\x00\x00\x54\x12\x34\x40\x00\x40\x01\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02";
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_ne_bytes());
        let old = u32::from_ne_bytes(header[12..16].try_into().unwrap());
        for new in [0u32, 1, 0xffff_ffff, 0x0101_a8c0, old] {
            let mut changed = header;
            changed[12..16].copy_from_slice(&new.to_ne_bytes());
            changed[10..12].fill(0);
            assert_eq!(new_sum(sum, old.into(), new.into(), 4), Some(checksum(&changed)), "{new:#x}");
            let diff = u64::from(!old) + u64::from(new);
            let diff = (diff & 0xffff_ffff) + (diff >> 32);
            assert_eq!(new_sum(sum, 0, diff, 0), Some(checksum(&changed)), "{new:#x} as a difference");
        }
    }
}
