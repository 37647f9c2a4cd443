//! The helpers over ring buffers and perf event arrays: the kernel's, by the kernel's ids.
//!
//! A record that is reserved is noted in the run, so that a run that is stopped (budget, interruption, a host
//! function's error) before it has submitted the record gives it up: the consumer would stop at it for ever.
//!
//! Source: `kernel/bpf/ringbuf.c`, `kernel/trace/bpf_trace.c`, `net/core/filter.c` (Linux 6.18).

use crate::abi::run::Run;
use bpf_jit_code::RunCtx;
use bpf_maps::{MapHeader, program as map_ops};

/// The slot of the run behind the hidden argument.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`].
unsafe fn slot(ctx: *mut RunCtx) -> u32 {
    // SAFETY: the caller passes the first field of a live `Run`; the slot is written before the run and read by its
    // thread only.
    unsafe { (*ctx).slot }
}

/// `bpf_ringbuf_output(ringbuf, data, size, flags)`.
///
/// # Safety
/// `map` must be a live map, `data` readable for `size` bytes; `ctx` the first field of a [`Run`].
pub(crate) unsafe extern "C" fn ringbuf_output(
    map: u64,
    data: u64,
    size: u64,
    flags: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the hidden argument that emitted code (or the interpreter) passes is the first field of this thread's
    // live `Run`.
    let slot = unsafe { slot(ctx) };
    // SAFETY: the program was proven to pass a live ring buffer and `size` readable bytes at `data`; the slot is the
    // run's.
    (unsafe { map_ops::ringbuf_output(map as *const MapHeader, data as *const u8, size, flags, slot) }) as u64
}

/// `bpf_ringbuf_reserve(ringbuf, size, flags)`. A run can hold 15 records; one more is refused as if the ring were
/// full.
///
/// # Safety
/// `map` must be a live map; `ctx` the first field of a [`Run`].
pub(crate) unsafe extern "C" fn ringbuf_reserve(
    map: u64,
    size: u64,
    flags: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted code,
    // which has the only other one, waits for this call.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if !run.held.has_room() {
        return 0;
    }
    // SAFETY: the program was proven to pass a live ring buffer; the slot is the run's, which notes the record.
    let sample = unsafe { map_ops::ringbuf_reserve(map as *const MapHeader, size, flags, run.ctx.slot) };
    if sample.is_null() {
        return 0;
    }
    let sample = sample.expose_provenance() as u64;
    run.held.add_record(sample);
    sample
}

/// `bpf_ringbuf_submit(sample, flags)`.
///
/// # Safety
/// `sample` must be a record that the run has reserved and still holds; `ctx` the first field of a [`Run`].
pub(crate) unsafe extern "C" fn ringbuf_submit(
    sample: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted code,
    // which has the only other one, waits for this call.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if run.held.remove_record(sample) {
        // SAFETY: a live record, which is off the list and so given back once.
        unsafe { map_ops::ringbuf_submit(sample as *mut u8, flags) };
    }
    0
}

/// `bpf_ringbuf_discard(sample, flags)`.
///
/// # Safety
/// As [`ringbuf_submit`].
pub(crate) unsafe extern "C" fn ringbuf_discard(
    sample: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted code,
    // which has the only other one, waits for this call.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if run.held.remove_record(sample) {
        // SAFETY: a live record, which is off the list and so given back once.
        unsafe { map_ops::ringbuf_discard(sample as *mut u8, flags) };
    }
    0
}

/// `bpf_ringbuf_query(ringbuf, what)`.
///
/// # Safety
/// `map` must be a live map.
pub(crate) unsafe extern "C" fn ringbuf_query(map: u64, what: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the program was proven to pass a live ring buffer.
    unsafe { map_ops::ringbuf_query(map as *const MapHeader, what) }
}

/// Writes an event of `data` and as much of the packet as the flags ask for, of the `packet_len` bytes that it has:
/// `packet` says where so many are.
///
/// # Safety
/// `map` must be a live map, `data` and the packet readable; `ctx` the first field of a [`Run`].
pub(crate) unsafe fn perf_output<P: Iterator<Item = (*mut u8, usize)>>(
    map: u64,
    flags: u64,
    data: (u64, u64),
    packet: impl FnOnce(usize) -> P,
    packet_len: usize,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the hidden argument that emitted code (or the interpreter) passes is the first field of this thread's
    // live `Run`.
    let slot = unsafe { slot(ctx) };
    let (map, data) = (map as *const MapHeader, (data.0 as *const u8, data.1));
    // SAFETY: each caller passes what its program was proven to pass: a live perf event array and readable data; and a
    // packet that lies in the run's buffers, or none.
    (unsafe { map_ops::perf_event_output(map, flags, data, packet, packet_len, slot) }) as u64
}

/// `bpf_perf_event_output(ctx, map, flags, data, size)` of programs on contexts other than packets' own: a raw context
/// is what is appended.
///
/// # Safety
/// `map` must be a live map, `data` readable for `size` bytes; `ctx` the first field of a [`Run`].
pub(crate) unsafe extern "C" fn perf_event_output(
    _: u64,
    map: u64,
    flags: u64,
    data: u64,
    size: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the hidden argument that emitted code (or the interpreter) passes is the first field of this thread's
    // live `Run`.
    let run = unsafe { &*ctx };
    let (packet, len) = (run.packet as *mut u8, crate::num::index(run.packet_len));
    // SAFETY: map and data are as the program was proven to pass them; the packet is the one that the run was given,
    // readable until it ends, and empty where there is none.
    unsafe { perf_output(map, flags, (data, size), |asked| core::iter::once((packet, asked)), len, ctx) }
}
