//! How a run begins and ends.
//!
//! Problem: a run of a few nanoseconds cannot afford to count how deep it is nested. Approach: beginning a run sets the
//! few fields of its slot's [`Run`] that the last one may have changed; only runs inside another of their thread are
//! counted. Code that does not read the hidden argument needs no run, so none is begun for it. Code that only counts
//! there is given the slot's run, of which only the word is set.
//!
//! A signal handler may run a program between any two instructions of this code. The first store to a run is its word,
//! the last store is a 0 there, and a handler that finds a 0 has the run to itself until it returns.
//!
//! Limits of one run alone ([`crate::RunLimits`]) are a constant parameter of an inlined function, so runs without
//! limits pay nothing for them, and runs with limits pay for a few stores.

use crate::abi::critical;
use crate::abi::entry;
use crate::abi::level::Level;
use crate::abi::limits::{Limits, Terms};
use crate::abi::machine_stack::INTERPRETER;
use crate::abi::roots::Roots;
use crate::abi::run::Run;
use crate::abi::slots::Runs;
use crate::abi::watch::{INTERRUPTED, LATE, Watched};
use crate::context::Parts;
use crate::error::RunError;
use bpf_jit_code::Needs;
use bpf_quiesce::Guard;
use core::ptr::null_mut;
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

/// The entry of code: its address and the state that it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The address to call.
    pub(crate) code: *const u8,
    /// The program that the code jumps to if it is a compare tree; else equal to `code`.
    pub(crate) callee: *const u8,
    /// The parts of the hidden argument that the code reads.
    pub(crate) needs: Needs,
}

/// Runs emitted code once under `guard`, or a borrow of it, and drops it. `roots` adds the program to errors.
///
/// Rare cases are in functions of their own, which take the guard and get `parts` and `entry` as words. So all values
/// here stay in registers, and a few dozen instructions remain. These functions return boxed errors: an error of a
/// hundred bytes that they wrote into the result would keep the result in memory.
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
    terms: Terms,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    // SAFETY: the caller's contract.
    unsafe { run_under(runs, guard, entry, host, parts, (terms, None, false), roots) }
}

/// Runs emitted code once, as [`run_code`], under limits; `many`: for code of many programs with a budget each.
///
/// # Safety
/// As for [`run_code`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "words of its caller's, which are not to be put into memory")]
pub(crate) unsafe fn run_code_limited<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    entry: Entry,
    host: *mut (),
    parts: Parts,
    (terms, limits): (Terms, Limits<'_>),
    many: bool,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    // SAFETY: the caller's contract.
    unsafe { run_under(runs, guard, entry, host, parts, (terms, Some(limits), many), roots) }
}

/// The body of [`run_code`] and [`run_code_limited`]: inlined, so that `limits` and `many` are constants in each.
///
/// # Safety
/// As for [`run_code`].
#[inline(always)]
unsafe fn run_under<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    entry: Entry,
    host: *mut (),
    parts: Parts,
    (terms, limits, many): (Terms, Option<Limits<'_>>, bool),
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    parts.check().map_err(|error| *error)?;
    runs.config.stack.check(roots, 0).map_err(|error| *error)?;
    if entry.needs == Needs::Nothing {
        if let Some(limits) = limits
            && limits.is_over(runs)
        {
            return Err(*limits.over());
        }
        // SAFETY: the caller's contract; code that does not read the hidden argument has no way to stop the run.
        return Ok(unsafe { entry::enter_unstoppable(entry.code, entry.callee, arguments(parts), null_mut()) });
    }
    let Some(level) = runs.idle(guard.borrow()) else {
        let (context, packet, _) = parts.slices();
        let entry = (entry.code, entry.callee);
        return match limits {
            // SAFETY: the caller's contract.
            None => unsafe { run_code_nested(runs, guard, entry, host, context, packet, terms, roots) },
            // SAFETY: the caller's contract.
            Some(limits) => unsafe {
                run_limited_nested(runs, guard, entry, host, context, packet, (terms, limits), roots)
            },
        }
        .map_err(|error| *error);
    };
    let run = level.run();
    match limits {
        Some(limits) if limits.needs_watch() => {
            level.watch().begin(level.word(), limits.watched(terms.of));
            compiler_fence(Ordering::SeqCst);
            // After the word was stored: see `abi::clock`.
            if limits.is_over(runs) {
                compiler_fence(Ordering::SeqCst);
                // Relaxed: as below.
                level.word().store(0, Ordering::Relaxed);
                return Err(*limits.over());
            }
        }
        // Relaxed: a thread that changes the word reads nothing else of the run. Without a watch there is no deadline.
        _ => level.word().store(terms.of, Ordering::Relaxed),
    }
    // From here on, signal handlers of this thread take another run.
    compiler_fence(Ordering::SeqCst);
    let mut budget = terms.budget;
    if let Some(limits) = limits {
        budget = budget.min(limits.allowance());
        if many && entry.needs == Needs::Run {
            // SAFETY: the guard's slot is this thread's, and nobody else uses its run's allowance.
            unsafe { (*run).ctx.allowance = limits.allowance() };
        }
    }
    if entry.needs == Needs::Slot {
        // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
        let r0 = unsafe { entry::enter_unstoppable(entry.code, entry.callee, arguments(parts), run.cast()) };
        compiler_fence(Ordering::SeqCst);
        // Relaxed: as below.
        level.word().store(0, Ordering::Relaxed);
        return Ok(r0);
    }
    // SAFETY: the guard's slot is this thread's, and its run is idle but for the word.
    unsafe { Run::set(run, &runs.config, host, parts, budget) };
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // SAFETY: still this thread's.
    if unsafe { (*run).ctx.stop_code } != 0 {
        // SAFETY: the guard is held.
        return Err(*unsafe { end_stopped(guard, level, roots) });
    }
    if many {
        // SAFETY: the run is still this thread's. Runs without limits rely on an allowance of `i64::MAX`.
        unsafe { (*run).ctx.allowance = i64::MAX };
    }
    // From this store on a signal handler may use this level for a run of its own.
    compiler_fence(Ordering::SeqCst);
    // Relaxed: handing the slot over orders its next user after this store.
    level.word().store(0, Ordering::Relaxed);
    Ok(r0)
}

/// Runs emitted code once, as [`run_code`], inside another run of this thread.
///
/// # Safety
/// As for [`run_code`].
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "words of its caller's, which are not to be put into memory")]
unsafe fn run_code_nested<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    (code, callee): (*const u8, *const u8),
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    terms: Terms,
    roots: &dyn Roots,
) -> Result<u64, Box<RunError>> {
    // SAFETY: the caller's contract.
    unsafe { run_limited_nested(runs, guard, (code, callee), host, context, packet, (terms, Limits::NONE), roots) }
}

/// Runs emitted code once, as [`run_code_limited`], inside another run of this thread.
///
/// # Safety
/// As for [`run_code`].
#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "words of its caller's, which are not to be put into memory")]
unsafe fn run_limited_nested<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    (code, callee): (*const u8, *const u8),
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    (terms, limits): (Terms, Limits<'_>),
    roots: &dyn Roots,
) -> Result<u64, Box<RunError>> {
    let entry = Entry { code, callee, needs: Needs::Run };
    let parts = Parts::of_slices(context, packet, core::ptr::slice_from_raw_parts_mut(core::ptr::null_mut(), 0));
    // SAFETY: the caller's contract.
    nested(runs, guard, host, parts, (terms, limits), |run| unsafe { call(entry, run, parts, roots) }).map_err(Box::new)
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
    // SAFETY: the caller's contract.
    unsafe { call_with(entry, arguments(parts), run, roots) }
}

/// Runs emitted code as [`call`] does, on a stack of its run's own, where this thread is in a section.
///
/// # Safety
/// As for [`call`].
pub(crate) unsafe fn call_asleep(
    entry: Entry,
    run: *mut Run,
    parts: Parts,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    critical::outside();
    // SAFETY: as in `call_with`.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // A stop may have come from either side of a section. The thread may be another one.
    critical::inside();
    // SAFETY: nobody else uses the run now, except for the atomic flag.
    let run = unsafe { &mut *run };
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(run.stop_reason_in(roots)) }
}

/// Calls a function of a program as a part of `run`, with arguments of its own.
///
/// # Safety
/// As for [`call`]; `function` must be the address of a function of the program that `run` is of, and the arguments
/// what it was proven for.
pub(crate) unsafe fn call_back(
    function: *const u8,
    args: [u64; 5],
    run: *mut Run,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    // SAFETY: the caller's contract.
    unsafe { call_with(Entry { code: function, callee: function, needs: Needs::Run }, args, run, roots) }
}

/// # Safety
/// As for [`call`], with these arguments.
unsafe fn call_with(entry: Entry, args: [u64; 5], run: *mut Run, roots: &dyn Roots) -> Result<u64, RunError> {
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, args, run.cast()) };
    // SAFETY: nobody else uses the run now, except for the atomic flag.
    let run = unsafe { &mut *run };
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(run.stop_reason_in(roots)) }
}

/// Returns why the slot's run was stopped, and ends the run.
///
/// # Safety
/// `level` must be the guard's slot's, and its run active.
#[cold]
#[inline(never)]
unsafe fn end_stopped<'e>(_guard: impl Borrow<Guard<'e>>, level: &Level, roots: &dyn Roots) -> Box<RunError> {
    let active = Active(level);
    // SAFETY: the run is that of the slot of the guard that is passed, so this thread's, and emitted code has left it.
    Box::new(unsafe { &mut *active.0.run() }.stop_reason_in(roots))
}

/// Ends the use of a level's [`Run`] when dropped, also on unwinding.
struct Active<'e>(&'e Level);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        // SAFETY: the run is this thread's. Runs without limits rely on an allowance of `i64::MAX`, which a run with
        // limits changes.
        unsafe { (*self.0.run()).ctx.allowance = i64::MAX };
        // As in `run_code`.
        compiler_fence(Ordering::SeqCst);
        self.0.word().store(0, Ordering::Relaxed);
    }
}

/// Does one run under `guard` in any other way than [`run_code`]. `code` gets the run, which is over when it returns.
#[inline]
pub(crate) fn begin<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    terms: Terms,
    roots: &dyn Roots,
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let (context, packet, memory) = parts.slices();
    runs.config.stack.check(roots, INTERPRETER).map_err(|error| *error)?;
    begin_with(runs, guard, host, context, packet, memory, terms, code).map_err(|error| *error)
}

#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "words of its caller's, which are not to be put into memory")]
fn begin_with<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    memory: *mut [u8],
    terms: Terms,
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, Box<RunError>> {
    let parts = Parts::of_slices(context, packet, memory);
    parts.check()?;
    let Some(level) = runs.idle(guard.borrow()) else {
        return nested(runs, guard, host, parts, (terms, Limits::NONE), |run| code(run, parts)).map_err(Box::new);
    };
    // As in `run_code`.
    level.word().store(terms.of, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let active = Active(level);
    // SAFETY: the guard's slot is this thread's, and its run is idle but for the word.
    unsafe { Run::set(level.run(), &runs.config, host, parts, terms.budget) };
    code(active.0.run(), parts).map_err(Box::new)
}

/// Does one run under `guard`, as [`begin`], under limits.
#[inline(never)]
pub(crate) fn begin_limited<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    (terms, limits): (Terms, Limits<'_>),
    roots: &dyn Roots,
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    runs.config.stack.check(roots, INTERPRETER).map_err(|error| *error)?;
    parts.check().map_err(|error| *error)?;
    let Some(level) = runs.idle(guard.borrow()) else {
        return nested(runs, guard, host, parts, (terms, limits), |run| code(run, parts));
    };
    level.watch().begin(level.word(), limits.watched(terms.of));
    let active = Active(level);
    set_limited(&active, runs, host, parts, (terms, limits, limits.deadline()))?;
    code(active.0.run(), parts)
}

/// Sets up a run under limits, whose word is stored already. Returns an error if its deadline has passed.
fn set_limited(
    active: &Active<'_>,
    runs: &Runs,
    host: *mut (),
    parts: Parts,
    (terms, limits, deadline): (Terms, Limits<'_>, u64),
) -> Result<(), RunError> {
    // After the word was stored.
    if runs.clock().now() >= deadline || limits.is_over(runs) {
        return Err(*limits.over());
    }
    let run = active.0.run();
    // SAFETY: the level is this thread's, and its run idle but for the word.
    unsafe { Run::set(run, &runs.config, host, parts, terms.budget.min(limits.allowance())) };
    // SAFETY: the run is this thread's, and nobody else uses its allowance.
    unsafe { (*run).ctx.allowance = limits.allowance() };
    Ok(())
}

/// Does one run, as [`begin`], inside another run of its thread.
#[cold]
#[inline(never)]
fn nested<'e>(
    runs: &'e Runs,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    (terms, limits): (Terms, Limits<'_>),
    code: impl FnOnce(*mut Run) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let _nesting = Nesting::enter(runs.config.max_nested)?;
    let Some((level, outer)) = runs.idle_inner(guard.borrow()) else {
        return Err(RunError::Internal("a guard's slot that the engine does not have".into()));
    };
    // Relaxed: this thread has stored all fields that are read here.
    let outside = outer.watch().deadline(outer.word().load(Ordering::Relaxed));
    let deadline = limits.deadline().min(outside);
    level.watch().begin_apart(level.word(), Watched { deadline, ..limits.watched(terms.of) });
    let active = Active(level);
    // An interruption of the outer run ends this one, too. SeqCst pairs with the accesses in `slots::interrupt`, which
    // sets the outer word and then loads this one, while this thread stores this word and then loads the outer one. So
    // a thread that interrupts the outer run sees this run's word, or the load below sees the interruption.
    level.word().fetch_or(0, Ordering::SeqCst);
    let asked = outer.word().load(Ordering::SeqCst) & (INTERRUPTED | LATE);
    if asked & INTERRUPTED != 0 {
        // Relaxed: for this thread itself.
        level.word().fetch_or(asked, Ordering::Relaxed);
    }
    set_limited(&active, runs, host, parts, (terms, limits, deadline))?;
    code(active.0.run())
}

thread_local! {
    /// Runs of this thread that are inside another one.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// Counts one nested run of this thread while it lives.
pub(crate) struct Nesting(());

impl Nesting {
    pub(crate) fn enter(limit: u32) -> Result<Nesting, RunError> {
        NESTED.with(|nested| {
            // `limit` counts the outermost run, which is not counted here.
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
