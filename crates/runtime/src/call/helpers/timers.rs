//! The helpers over timers in map values, the kernel's, by the kernel's ids; and the functions over work for later
//! (`struct bpf_wq`), which is a timer that is due at once.
//!
//! Timers are recorded, and callbacks are run, in [`crate::abi::timers`]. `bpf_timer_set_callback` is bound to each
//! program by itself: an address of a function says nothing without the program that it is of.
//!
//! Source: `kernel/bpf/helpers.c` (Linux 6.18).

use crate::abi::run::{Run, RunConfig};
use crate::abi::timers::{Callback, Deferred, Function, program_number};
use crate::call::{HostFn, Shim};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_maps::{Errno, MapHeader, program as map_ops};
use std::sync::Arc;

/// The number that identifies a program that sets callbacks: [`program_number`].
pub(crate) struct TimerProgram(pub(crate) u64);

impl TimerProgram {
    /// A number that differs from all that were made before.
    pub(crate) fn new() -> TimerProgram {
        TimerProgram(program_number())
    }
}

/// `bpf_timer_set_callback` of one program.
pub(crate) fn own_set_callback() -> HostFn {
    own(set_callback)
}

fn own(shim: Shim) -> HostFn {
    HostFn { env: Some(Arc::new(TimerProgram::new())), ..HostFn::with_run(shim) }
}

/// `bpf_wq_set_callback_impl` of one program.
pub(crate) fn own_wq_set_callback() -> HostFn {
    own(wq_set_callback)
}

/// The run's slot and what it reads of its engine.
///
/// # Safety
/// `ctx` must be the first field of this thread's live [`Run`].
unsafe fn of_run<'a>(ctx: *mut RunCtx) -> (u32, &'a RunConfig) {
    // SAFETY: by a pointer to all of the run (contract); emitted code, which has the only other one, waits for this
    // call.
    let run = unsafe { &*ctx.cast::<Run>() };
    // SAFETY: the engine's, which outlives its runs.
    (run.ctx.slot, unsafe { &*run.config })
}

fn ret(result: Result<u64, Errno>) -> u64 {
    result.unwrap_or_else(|errno| errno.as_ret() as u64)
}

/// `bpf_timer_init(timer, map, flags)`.
///
/// # Safety
/// `timer` must be the timer in a value of the live map `map`; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn init(timer: u64, map: u64, flags: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { init_field(Deferred::Timer, timer, map, flags, ctx) }
}

/// # Safety
/// As for [`init`], of this field.
unsafe fn init_field(field: Deferred, at: u64, map: u64, flags: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let (slot, config) = unsafe { of_run(ctx) };
    // SAFETY: the program was proven to pass a live map.
    let weak = || unsafe { map_ops::weak(map as *const MapHeader) };
    // SAFETY: the program was proven to pass the field in a value of that map; the slot is the run's.
    ret(unsafe { config.timers.init(slot, (field, at), weak, flags, &config.domain) }.map(|()| 0))
}

/// `bpf_timer_set_callback(timer, callback)`.
///
/// # Safety
/// `timer` must be the timer in a value of a live map, `callback` a function of the calling program, to which this is
/// bound, and which was proven for the map; `ctx` the first field of a [`Run`] whose environment is a [`TimerProgram`].
pub(super) unsafe extern "C" fn set_callback(
    timer: u64,
    callback: u64,
    _: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let (slot, config) = unsafe { of_run(ctx) };
    // SAFETY: this thread's run.
    let env = unsafe { (*ctx).host_env } as *const TimerProgram;
    // SAFETY: the address that the linker has bound to the call (contract); the running program keeps its target.
    let program = unsafe { &*env }.0;
    // SAFETY: this thread's run.
    let interpreted = unsafe { (*ctx).exit_sp } == 0;
    let function = if interpreted { Function::Interpreted(callback) } else { Function::Code(callback) };
    // SAFETY: the program was proven to pass the timer in a value of one of its maps; the slot is the run's.
    ret(unsafe { config.timers.set_callback(slot, timer, Callback { program, function }) }.map(|()| 0))
}

/// `bpf_timer_start(timer, nanoseconds, flags)`.
///
/// # Safety
/// `timer` must be the timer in a value of a live map; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn start(timer: u64, time: u64, flags: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let (slot, config) = unsafe { of_run(ctx) };
    // SAFETY: the program was proven to pass the timer in a value of one of its maps; the slot is the run's.
    ret(unsafe { config.timers.start(slot, timer, time, flags) }.map(|()| 0))
}

/// `bpf_timer_cancel(timer)`.
///
/// # Safety
/// As for [`start`].
pub(super) unsafe extern "C" fn cancel(timer: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let (slot, config) = unsafe { of_run(ctx) };
    // SAFETY: the program was proven to pass the timer in a value of one of its maps; the slot is the run's.
    ret(unsafe { config.timers.cancel(slot, timer) }.map(u64::from))
}

/// `bpf_wq_init(wq, map, flags)`.
///
/// # Safety
/// `wq` must be the `struct bpf_wq` in a value of the live map `map`; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn wq_init(wq: u64, map: u64, flags: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    if low(flags) != 0 {
        return ret(Err(Errno::EINVAL));
    }
    // SAFETY: the caller's contract.
    unsafe { init_field(Deferred::Work, wq, map, CLOCK_MONOTONIC, ctx) }
}

/// `bpf_wq_set_callback_impl(wq, callback, flags, aux)`.
///
/// # Safety
/// As for [`set_callback`], of a `struct bpf_wq`.
pub(super) unsafe extern "C" fn wq_set_callback(
    wq: u64,
    callback: u64,
    flags: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    if low(flags) != 0 {
        return ret(Err(Errno::EINVAL));
    }
    // SAFETY: the contract of this function implies that of the timer's function.
    unsafe { set_callback(wq, callback, 0, 0, 0, ctx) }
}

/// `bpf_wq_start(wq, flags)`.
///
/// # Safety
/// As for [`start`], of a `struct bpf_wq`.
pub(super) unsafe extern "C" fn wq_start(wq: u64, flags: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    if low(flags) != 0 {
        return ret(Err(Errno::EINVAL));
    }
    // SAFETY: the contract of this function implies that of the timer's function.
    unsafe { start(wq, 0, 0, 0, 0, ctx) }
}

/// `CLOCK_MONOTONIC`, as a timer's flags have it.
const CLOCK_MONOTONIC: u64 = 1;
