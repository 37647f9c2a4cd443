//! How a run begins and ends.
//!
//! Problem: a run of a few nanoseconds cannot afford to count how deep it is nested. Approach: beginning a run sets the
//! few fields of its slot's [`Run`] that the last one may have changed; only runs inside another of their thread are
//! counted. Code that does not read the hidden argument cannot tell whether there is a run, so none is begun for it.
//!
//! A signal handler may run a program at any instruction of this: the first thing that is stored of a run is its
//! `host`, the last is that there is none, and a handler that finds it null has the run to itself until it returns.

use crate::abi::entry;
use crate::abi::machine_stack::INTERPRETER;
use crate::abi::roots::Roots;
use crate::abi::run::{Run, interrupt_flag};
use crate::abi::slots::Runs;
use crate::context::Parts;
use crate::error::RunError;
use bpf_quiesce::Guard;
use bpf_verifier::Region;
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

/// How code is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// What to call.
    pub(crate) code: *const u8,
    /// The program it leads to, if it is a compare tree; else the same.
    pub(crate) callee: *const u8,
    /// Whether it may read the hidden argument ([`bpf_jit_code::Code::reads_hidden`]).
    pub(crate) reads_hidden: bool,
}

/// Runs emitted code once under `guard`, or a borrow of it, and lets go of it. Errors are said to be `program`'s.
///
/// All that is seldom needed is in functions of its own, which take the guard along and get `parts` and `entry` as
/// words: so nothing here has to be in memory, and what is left is a few dozen instructions. They give their errors in
/// boxes: an error of a hundred bytes that they wrote into the result would keep that in memory too.
///
/// # Safety
/// `entry` must be an entry of code compiled for this host, kept by the guard or the caller; `host` and `parts` must be
/// valid for it.
#[inline(always)]
pub(crate) unsafe fn run_code<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    entry: Entry,
    host: *mut (),
    parts: Parts,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    // Address arithmetic that the verifier allowed must not wrap.
    if parts.packet_len > Region::MAX_LEN as usize {
        return Err(*too_long(parts.packet_len));
    }
    runs.config.stack.check(roots, 0).map_err(|error| *error)?;
    if !entry.reads_hidden {
        // SAFETY: the caller's contract; code that does not read the hidden argument has no way to stop the run.
        return Ok(unsafe { entry::enter_unstoppable(entry.code, entry.callee, arguments(parts)) });
    }
    let Some(run) = runs.idle_run(guard.borrow()) else {
        let (context, packet) = (slice(parts.context, parts.context_len), slice(parts.packet, parts.packet_len));
        // SAFETY: the caller's contract.
        return unsafe { run_code_nested(runs, guard, (entry.code, entry.callee), host, context, packet, roots) }
            .map_err(|error| *error);
    };
    // SAFETY: the guard's slot is this thread's, and its run is idle.
    unsafe { Run::set_outermost(run, &runs.config, host, parts) };
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // SAFETY: still this thread's.
    if unsafe { (*run).ctx.stop_code } != 0 {
        // SAFETY: the guard is held.
        return Err(*unsafe { end_stopped(guard, run, roots) });
    }
    // Signal handlers may take the run once it is nobody's.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the run is that of this thread's slot, and emitted code has left it.
    unsafe { (*run).host = core::ptr::null_mut() };
    Ok(r0)
}

/// The same inside another run of this thread.
///
/// # Safety
/// As for [`run_code`].
#[cold]
#[inline(never)]
unsafe fn run_code_nested<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    (code, callee): (*const u8, *const u8),
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    roots: &dyn Roots,
) -> Result<u64, Box<RunError>> {
    let entry = Entry { code, callee, reads_hidden: true };
    let parts = parts(context, packet, slice(core::ptr::null_mut(), 0));
    // SAFETY: the caller's contract.
    nested(runs, guard, host, parts, |run| unsafe { call(entry, run, parts, roots) }).map_err(Box::new)
}

fn parts(context: *mut [u8], packet: *mut [u8], memory: *mut [u8]) -> Parts {
    Parts {
        context: context.cast(),
        context_len: context.len(),
        packet: packet.cast(),
        packet_len: packet.len(),
        memory: memory.cast(),
        memory_len: memory.len(),
    }
}

#[inline]
fn slice(start: *mut u8, len: usize) -> *mut [u8] {
    core::ptr::slice_from_raw_parts_mut(start, len)
}

/// r1 to r5 at the entry of a program.
#[inline]
fn arguments(parts: Parts) -> [u64; 5] {
    [parts.context as u64, parts.context_len as u64, 0, 0, 0]
}

/// Runs emitted code as a part of `run`.
///
/// # Safety
/// `entry` must be an entry of code compiled for this host that the run's guard or the caller keeps; `run` must be this
/// thread's run, its host and `parts` valid for the code.
pub(crate) unsafe fn call(entry: Entry, run: *mut Run, parts: Parts, roots: &dyn Roots) -> Result<u64, RunError> {
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // SAFETY: nobody else uses the run now, except for the atomic flag.
    let run = unsafe { &mut *run };
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(run.stop_reason_in(roots)) }
}

/// Why a run of a slot was stopped; it is over.
///
/// # Safety
/// `run` must be the active run of the guard's slot.
#[cold]
#[inline(never)]
unsafe fn end_stopped<'e>(_guard: impl Borrow<Guard<'e>>, run: *mut Run, roots: &dyn Roots) -> Box<RunError> {
    let active = Active(run);
    // SAFETY: the run is that of the slot of the guard that is passed, so this thread's, and emitted code has left it.
    Box::new(unsafe { &mut *active.0 }.stop_reason_in(roots))
}

#[cold]
fn too_long(len: usize) -> Box<RunError> {
    Box::new(RunError::TooLong { len, max: Region::MAX_LEN as usize })
}

/// Ends the use of a [`Run`], whatever happens in it.
struct Active(*mut Run);

impl Drop for Active {
    fn drop(&mut self) {
        // As in `run_code`.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: made of a run of a slot, which outlives it and is this thread's.
        unsafe { (*self.0).host = core::ptr::null_mut() };
    }
}

/// Does one run under `guard` in any other way than [`run_code`]. `code` gets the run, which is over when it returns.
#[inline]
pub(crate) fn begin<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    roots: &dyn Roots,
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let (context, packet) = (slice(parts.context, parts.context_len), slice(parts.packet, parts.packet_len));
    runs.config.stack.check(roots, INTERPRETER).map_err(|error| *error)?;
    begin_with(runs, guard, host, context, packet, slice(parts.memory, parts.memory_len), code).map_err(|error| *error)
}

#[inline(never)]
fn begin_with<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    memory: *mut [u8],
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, Box<RunError>> {
    let parts = parts(context, packet, memory);
    if parts.packet_len > Region::MAX_LEN as usize {
        return Err(too_long(parts.packet_len));
    }
    let Some(run) = runs.idle_run(guard.borrow()) else {
        return nested(runs, guard, host, parts, |run| code(run, parts)).map_err(Box::new);
    };
    // SAFETY: the guard's slot is this thread's, and its run is idle.
    unsafe { Run::set_outermost(run, &runs.config, host, parts) };
    let active = Active(run);
    code(active.0, parts).map_err(Box::new)
}

/// The same for a run inside another one of its thread.
#[cold]
#[inline(never)]
fn nested<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    code: impl FnOnce(*mut Run) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let _nesting = Nesting::enter(runs.config.max_nested)?;
    let Some((run, outer)) = runs.idle_inner_run(guard.borrow()) else {
        return Err(RunError::Internal("a guard's slot that the engine does not have".into()));
    };
    // SAFETY: the guard's slot is this thread's, and its inner run is idle.
    unsafe { Run::set(run, &runs.config, host, parts) };
    let active = Active(run);
    // SAFETY: the run lives as long as the engine; all who access the flag do so atomically.
    let flag = unsafe { interrupt_flag(active.0) };
    // An interruption whose store this one overwrites is seen, with Acquire (pairs with the release in `interrupt`), in
    // the outer flag, which was stored before. Any other comes later and finds the flag clear. So what was asked of
    // the outer run holds for this one.
    flag.swap(0, Ordering::Acquire);
    // Relaxed: see above; a flag that orders nothing else.
    if outer.load(Ordering::Relaxed) != 0 {
        flag.store(1, Ordering::Relaxed);
    }
    code(active.0)
}

thread_local! {
    /// Runs of this thread that are inside another one.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// Counts one nested run of this thread while it lives.
struct Nesting(());

impl Nesting {
    fn enter(limit: u32) -> Result<Nesting, RunError> {
        NESTED.with(|nested| {
            // The outermost is one of the runs that may be.
            if nested.get() + 1 >= limit {
                return Err(RunError::TooDeep { limit });
            }
            nested.set(nested.get() + 1);
            Ok(Nesting(()))
        })
    }
}

impl Drop for Nesting {
    fn drop(&mut self) {
        NESTED.with(|nested| nested.set(nested.get() - 1));
    }
}
