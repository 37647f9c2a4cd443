//! The end of the budget of a program that yields.
//!
//! Emitted code and the interpreter count ticks (taken back-edges and calls) against a slice of the budget. When the
//! slice is spent they call [`renew`]. Where the run may yield, it yields (its poller is woken) and gets the next slice
//! when it is polled. Elsewhere it gets one tick at a time until it reaches a place where it may yield.

#[cfg(native)]
use crate::abi::entry;
use crate::abi::link::Resume;
use crate::abi::run::Run;
#[cfg(native)]
use crate::call::leave;
use crate::error::HelperError;
#[cfg(native)]
use bpf_jit_code::RunCtx;
use bpf_jit_code::StopCode;

/// The outcome for a run whose slice is spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    /// The run goes on.
    GoesOn,
    /// The run has yielded, and goes on, maybe in another slot.
    Yielded,
    /// The run ends here with an error, which it has.
    Stops,
    /// The run's future is dropped, and no caller sees its error.
    GivenUp,
}

/// Called by emitted code when the budget is below zero, with 1 in r1 where the run may yield.
///
/// # Safety
/// `ctx` must be the hidden argument of the emitted code that calls, of a run on a stack of its own.
#[cfg(native)]
pub(crate) unsafe extern "C" fn spent(may: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's run, by a pointer to all of it.
    match unsafe { renew(ctx.cast(), may != 0) } {
        Renewed::GoesOn | Renewed::Yielded => 0,
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        Renewed::Stops => unsafe { leave(ctx) },
        // SAFETY: `ctx` is the hidden argument, and this frame holds nothing that needs dropping.
        Renewed::GivenUp => unsafe { entry::stop(ctx) },
    }
}

/// Gives the run the next slice of its budget, which is spent, and lets it yield before if it may.
///
/// # Safety
/// The run must be on this thread, in its slot, at an instruction of its program; by a pointer to all of it.
#[inline(never)]
pub(crate) unsafe fn renew(run: *mut Run, may: bool) -> Renewed {
    // SAFETY: the caller's contract.
    let left = unsafe { (*run).left };
    if left <= 0 {
        // SAFETY: the caller's contract.
        unsafe { &mut *run }.stop_spent();
        return Renewed::Stops;
    }
    if !may {
        // SAFETY: the caller's contract.
        unsafe { &mut *run }.next_slice(1);
        return Renewed::GoesOn;
    }
    // SAFETY: the caller's contract.
    match unsafe { yield_now(run) } {
        Resume::Go => {
            // SAFETY: the run is on this thread again, which may be another one.
            unsafe { &mut *run }.next_slice(i64::MAX);
            Renewed::Yielded
        }
        // SAFETY: the run is on this thread again, which may be another one.
        Resume::Cancel => give_up(unsafe { &mut *run }),
    }
}

/// Leaves the thread, until the run is polled next.
///
/// # Safety
/// As for [`renew`].
#[inline(never)]
unsafe fn yield_now(run: *mut Run) -> Resume {
    // SAFETY: the caller's contract.
    match unsafe { Run::link(run) } {
        // SAFETY: the caller's contract.
        Some(link) => unsafe { link.give_way() },
        // Only runs of sleepable programs yield, and each of these has a link.
        None => Resume::Go,
    }
}

#[inline(never)]
fn give_up(run: &mut Run) -> Renewed {
    if run.is_asked() {
        run.stop_asked();
        return Renewed::Stops;
    }
    run.fail(HelperError::new("the run was given up while it waited"));
    Renewed::GivenUp
}

impl Run {
    /// Moves the next slice, at most `most` ticks, from the rest of the budget to the counter, less the tick that found
    /// the counter empty.
    #[inline(never)]
    fn next_slice(&mut self, most: i64) {
        let ticks = self.slice.min(most).min(self.left);
        self.left -= ticks;
        self.ctx.budget = ticks - 1;
    }

    /// The run is to end: its whole budget is spent.
    fn stop_spent(&mut self) {
        self.ctx.stop_code = StopCode::Budget as u32;
        self.ctx.stop_insn = u32::MAX;
        self.ctx.stop_pc = 0;
    }
}
