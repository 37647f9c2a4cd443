//! The helpers of XDP programs on packets in pieces that access more than the first piece. All other helpers are shared
//! with XDP programs on whole packets ([`super::packet`]).
//!
//! Source: `net/core/filter.c` (Linux 6.18).

use crate::call::helpers::ring::perf_output;
use crate::call::helpers::skb::{EINVAL, ret};
use crate::context::frags::XdpFragsBuff;
use crate::context::packet::{ETH_HLEN, XdpBuff};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_uapi::Errno;

/// The packet of a context.
///
/// # Safety
/// `context` must be that of a running program on [`crate::net::XdpFrags`]; nobody else uses it meanwhile.
unsafe fn packet<'a>(context: u64) -> &'a mut XdpFragsBuff<'a> {
    // SAFETY: the linker binds these helpers to programs on `XdpFrags` only, and the verifier admits only their context
    // as the first argument; emitted code waits for the call.
    unsafe { &mut *(context as *mut XdpFragsBuff<'_>) }
}

/// `bpf_xdp_adjust_tail(ctx, delta)`.
///
/// # Safety
/// See [`packet`].
pub(super) unsafe extern "C" fn adjust_tail(context: u64, delta: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let by = low(delta).cast_signed() as isize;
    // SAFETY: the caller's promise.
    let packet = unsafe { packet(context) };
    let moved = if packet.frags().is_empty() {
        let window = &mut packet.first.window;
        let len = window.len().checked_add_signed(by).filter(|len| *len >= ETH_HLEN);
        len.is_some_and(|len| window.resize(len))
    } else {
        packet.move_end(by, ETH_HLEN)
    };
    ret(if moved { Ok(0) } else { Err(EINVAL) })
}

/// `bpf_xdp_get_buff_len(ctx)`.
///
/// # Safety
/// See [`packet`].
pub(super) unsafe extern "C" fn get_buff_len(context: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { packet(context) }.packet_len() as u64
}

/// Whether so many bytes are at this offset of the packet, as far into it as helpers reach.
pub(super) fn check(packet: &XdpFragsBuff<'_>, offset: usize, len: usize) -> Result<(), Errno> {
    /// Linux: `bpf_xdp_pointer`.
    const MOST: usize = 0xffff;
    if offset > MOST || len > MOST {
        return Err(Errno::EFAULT);
    }
    packet.find(offset, len).map_or(Err(EINVAL), |_| Ok(()))
}

/// Copies the bytes at an offset, which the packet has.
///
/// # Safety
/// `to` must be writable for `len` bytes.
pub(super) unsafe fn load(packet: &XdpFragsBuff<'_>, offset: usize, mut to: *mut u8, len: usize) {
    for (from, size) in packet.parts(offset, len) {
        // SAFETY: so many bytes are in the piece, and at least as many left of the target. `copy`, because a program
        // may have put the target into the packet.
        unsafe { core::ptr::copy(from, to, size) };
        to = to.wrapping_add(size);
    }
}

/// Copies to the bytes at an offset, which the packet has.
///
/// # Safety
/// `from` must be readable for `len` bytes.
pub(super) unsafe fn store(packet: &XdpFragsBuff<'_>, offset: usize, mut from: *const u8, len: usize) {
    for (to, size) in packet.parts(offset, len) {
        // SAFETY: so many bytes are in the piece, and at least as many left of the source. `copy`, because the source
        // may be in the packet.
        unsafe { core::ptr::copy(from, to, size) };
        from = from.wrapping_add(size);
    }
}

/// `bpf_xdp_load_bytes(ctx, offset, to, len)`: an error zeroes the target.
///
/// # Safety
/// See [`packet`]; `to` must be writable for `len` bytes.
pub(super) unsafe extern "C" fn load_bytes(
    context: u64,
    offset: u64,
    to: u64,
    len: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    let (offset, to, len) = (low(offset) as usize, to as *mut u8, low(len) as usize);
    // SAFETY: the caller's promise.
    let packet = unsafe { packet(context) };
    let checked = check(packet, offset, len);
    match checked {
        // SAFETY: the verifier has proven that many bytes writable.
        Ok(()) => unsafe { load(packet, offset, to, len) },
        // SAFETY: the verifier has proven that many bytes writable.
        Err(_) => unsafe { core::ptr::write_bytes(to, 0, len) },
    }
    ret(checked.map(|()| 0))
}

/// `bpf_xdp_store_bytes(ctx, offset, from, len)`.
///
/// # Safety
/// See [`packet`]; `from` must be readable for `len` bytes.
pub(super) unsafe extern "C" fn store_bytes(
    context: u64,
    offset: u64,
    from: u64,
    len: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    let (offset, len) = (low(offset) as usize, low(len) as usize);
    // SAFETY: the caller's promise.
    let packet = unsafe { packet(context) };
    let checked = check(packet, offset, len);
    if checked.is_ok() {
        // SAFETY: the verifier has proven that many bytes readable.
        unsafe { store(packet, offset, from as *const u8, len) };
    }
    ret(checked.map(|()| 0))
}

/// `bpf_perf_event_output`: the flags may ask for bytes of the packet as it is now, whatever pieces they are in.
///
/// # Safety
/// See [`packet`]; `map` must be a live map and `data` readable for `size` bytes.
pub(super) unsafe extern "C" fn event_output(
    context: u64,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's promise.
    let packet = unsafe { packet(context) };
    let len = packet.packet_len();
    // SAFETY: the program was proven to pass a live perf event array and `size` readable bytes; the pieces lie in
    // buffers that are borrowed for the run.
    unsafe { perf_output(map, flags, (data, size), |asked| packet.parts(0, asked), len, run) }
}

/// `bpf_xdp_pull_data(xdp, len)`: so many bytes of the packet are in its first piece afterwards.
///
/// # Safety
/// See [`packet`].
pub(super) unsafe extern "C" fn pull_data(context: u64, len: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let pulled = unsafe { packet(context) }.pull(low(len) as usize);
    ret(if pulled { Ok(0) } else { Err(EINVAL) })
}

/// Implements `bpf_xdp_pull_data` for packets of one piece: the bytes are there already, or do not exist.
///
/// # Safety
/// `context` must be that of a running program on [`crate::net::Xdp`].
pub(super) unsafe extern "C" fn pull_nothing(context: u64, len: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the linker binds this to programs on `Xdp` only, and the verifier admits only their context.
    let has = unsafe { &*(context as *const XdpBuff<'_>) }.window.len();
    ret(if low(len) as usize <= has { Ok(0) } else { Err(EINVAL) })
}
