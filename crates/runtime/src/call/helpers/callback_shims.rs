//! Helpers that call back, as emitted code calls them.

use crate::abi::entry;
use crate::abi::run::{Run, word};
use crate::abi::watch::INTERRUPTED;
use crate::call::helpers::callbacks::{CallBack, run_for_each, run_loop};
use crate::call::helpers::dynptr::run_drain;
use crate::call::helpers::owned::add_to_tree;
use crate::call::spent::{Renewed, renew};
use crate::call::{Shim, guarded, leave};
use crate::error::HelperError;
use bpf_jit_code::{RunCtx, StopCode};
#[cfg(native)]
use bpf_verifier::CallbackKind;

/// The checks of a helper's calls of callbacks: the same checks as the program's own calls have (`LowerOptions`). They
/// do not follow from the engine's configuration, since a program that is not proven to end counts under any
/// configuration.
pub(crate) trait Checked {
    /// Whether callbacks count against the run's budget.
    const BUDGET: bool;
    /// Whether an interrupted run ends at a callback.
    const INTERRUPT: bool;
}

/// [`Checked`] by two bits, the budget's in the lower.
pub(crate) enum By<const BITS: u8> {}

impl<const BITS: u8> Checked for By<BITS> {
    const BUDGET: bool = BITS & 1 != 0;
    const INTERRUPT: bool = BITS & 2 != 0;
}

/// The function that emitted code compiled like this calls for the helper that calls back so; other helpers are the
/// same to all code.
#[cfg(native)]
pub(crate) fn calling_back(kind: CallbackKind, compiled: &bpf_jit::LowerOptions) -> Shim {
    match kind {
        CallbackKind::Loop => shim_of::<Loop>(compiled),
        CallbackKind::ForEach => shim_of::<ForEach>(compiled),
        CallbackKind::Drain => shim_of::<Drain>(compiled),
    }
}

/// Returns the shim of `bpf_rbtree_add_impl`.
#[cfg(native)]
pub(crate) fn adding_to_tree(compiled: &bpf_jit::LowerOptions) -> Shim {
    shim_of::<AddToTree>(compiled)
}

#[cfg(native)]
fn shim_of<H: CallsBack>(compiled: &bpf_jit::LowerOptions) -> Shim {
    match (compiled.budget, compiled.interrupt) {
        (false, false) => shim::<H, By<0>>,
        (true, false) => shim::<H, By<1>>,
        (false, true) => shim::<H, By<2>>,
        (true, true) => shim::<H, By<3>>,
    }
}

/// A call made by a helper counts like one made by the program, and can be interrupted like one. A run whose slice of
/// the budget is spent gets the next one tick by tick, because it cannot yield inside a helper.
fn count_call<K: Checked>(run: &mut Run) -> Result<(), HelperError> {
    use core::sync::atomic::Ordering;
    if K::BUDGET {
        run.ctx.budget -= 1;
        // SAFETY: the run is on this thread, in its slot, inside a call of its program.
        if run.ctx.budget < 0 && unsafe { renew(run, false) } == Renewed::Stops {
            return Err(HelperError::Stopped);
        }
    }
    // SAFETY: the run lives; other threads store to the word atomically.
    let word = unsafe { word(run) };
    // Relaxed: a flag that orders nothing else.
    if K::INTERRUPT && word.load(Ordering::Relaxed) & INTERRUPTED != 0 {
        run.ctx.stop_code = StopCode::Interrupted as u32;
        run.ctx.stop_insn = u32::MAX;
        run.ctx.stop_pc = 0;
        return Err(HelperError::Stopped);
    }
    Ok(())
}

/// Calls emitted code from a helper of the same run. The call counts against the budget like one that the program
/// makes.
///
/// # Safety
/// `callback` must be the entry of a subprogram of the running program.
unsafe fn call_native<K: Checked>(run: &mut Run, callback: u64, args: [u64; 5]) -> Result<u64, HelperError> {
    count_call::<K>(run)?;
    let (exit_sp, exit_pc, exit_saved) = (run.ctx.exit_sp, run.ctx.exit_pc, run.ctx.exit_saved);
    // Not a pointer to the field: helpers called from there go back from it to the whole run.
    let ctx = core::ptr::from_mut(run).cast::<RunCtx>();
    // SAFETY: `callback` is the entry of a subprogram of the code that is running now, so it is mapped and follows its
    // convention; `ctx` points to all of the run, which is this thread's.
    let r0 = unsafe { entry::enter(callback as *const u8, callback as *const u8, args, ctx) };
    (run.ctx.exit_sp, run.ctx.exit_pc, run.ctx.exit_saved) = (exit_sp, exit_pc, exit_saved);
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(HelperError::Stopped) }
}

/// A helper that calls back.
pub(super) trait CallsBack {
    /// Which of its arguments is the callback.
    const CALLBACK: usize;

    /// Runs the helper.
    ///
    /// # Safety
    /// The arguments must fit the helper's prototype.
    unsafe fn run(run: &mut Run, args: [u64; 5], call: CallBack<'_>) -> Result<u64, HelperError>;
}

/// `bpf_loop(rounds, callback, arg, flags)`.
pub(super) enum Loop {}

impl CallsBack for Loop {
    const CALLBACK: usize = 1;

    unsafe fn run(run: &mut Run, args: [u64; 5], call: CallBack<'_>) -> Result<u64, HelperError> {
        let [rounds, _, arg, flags, _] = args;
        run_loop(run, rounds, arg, flags, call)
    }
}

/// `bpf_for_each_map_elem(map, callback, arg, flags)`.
pub(super) enum ForEach {}

impl CallsBack for ForEach {
    const CALLBACK: usize = 1;

    unsafe fn run(run: &mut Run, args: [u64; 5], call: CallBack<'_>) -> Result<u64, HelperError> {
        let [map, _, arg, flags, _] = args;
        // SAFETY: a live map (contract).
        unsafe { run_for_each(run, map, arg, flags, call) }
    }
}

/// `bpf_user_ringbuf_drain(map, callback, arg, flags)`.
pub(super) enum Drain {}

impl CallsBack for Drain {
    const CALLBACK: usize = 1;

    unsafe fn run(run: &mut Run, args: [u64; 5], call: CallBack<'_>) -> Result<u64, HelperError> {
        let [map, _, arg, flags, _] = args;
        // SAFETY: a live map (contract).
        unsafe { run_drain(run, map, arg, flags, call) }
    }
}

/// `bpf_rbtree_add_impl(root, node, less, meta, off)`.
pub(super) enum AddToTree {}

impl CallsBack for AddToTree {
    const CALLBACK: usize = 2;

    unsafe fn run(run: &mut Run, args: [u64; 5], call: CallBack<'_>) -> Result<u64, HelperError> {
        let [root, node, ..] = args;
        // SAFETY: a tree whose lock the run has, and the node of an object that it owns (contract).
        unsafe { add_to_tree(run, root, node, call) }
    }
}

/// The function of a helper that calls back, for emitted code.
///
/// # Safety
/// The arguments as [`CallsBack::run`] says, of which the callback is the entry of a subprogram of the running program;
/// `ctx` must be the first field of a [`Run`].
pub(super) unsafe extern "C" fn shim<H: CallsBack, K: Checked>(
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let args = [r1, r2, r3, r4, r5];
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: the verifier admits as callback only the address of one of the program's own subprograms, which
            // the running code's guard keeps.
            let mut call = |run: &mut Run, given| unsafe { call_native::<K>(run, args[H::CALLBACK], given) };
            // SAFETY: the arguments were proven to be what the helper's prototype says.
            unsafe { H::run(run, args, &mut call) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}
