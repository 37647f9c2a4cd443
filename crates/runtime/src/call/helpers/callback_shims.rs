//! Helpers that call back, as emitted code calls them.

use crate::abi::entry;
use crate::abi::run::{Run, word};
use crate::abi::watch::INTERRUPTED;
use crate::call::helpers::callbacks::{CallBack, run_for_each, run_loop};
use crate::call::helpers::dynptr::run_drain;
use crate::call::helpers::owned::add_to_tree;
use crate::call::{Shim, guarded, leave};
use crate::error::HelperError;
use bpf_jit_code::{RunCtx, StopCode};
#[cfg(native)]
use bpf_verifier::CallbackKind;

/// What the calls that a helper makes are checked for: what the program's own are, as its compiler was told
/// (`LowerOptions`), and nothing else. The configuration does not say it: a program that is not proven to end counts
/// under any.
pub(crate) trait Checked {
    /// Counts against the run's budget.
    const BUDGET: bool;
    /// Ends an interrupted run.
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
    let by = usize::from(compiled.budget) | usize::from(compiled.interrupt) << 1;
    match kind {
        CallbackKind::Loop => shims::<Loop>()[by],
        CallbackKind::ForEach => shims::<ForEach>()[by],
        CallbackKind::Drain => shims::<Drain>()[by],
    }
}

/// The helper's functions, by the bits of [`By`].
#[cfg(native)]
fn shims<H: CallsBack>() -> [Shim; 4] {
    [shim::<H, By<0>>, shim::<H, By<1>>, shim::<H, By<2>>, shim::<H, By<3>>]
}

/// The function that emitted code compiled like this calls for `bpf_rbtree_add_impl`.
#[cfg(native)]
pub(crate) fn adding_to_tree(compiled: &bpf_jit::LowerOptions) -> Shim {
    match (compiled.budget, compiled.interrupt) {
        (false, false) => adds_to_tree::<By<0>>,
        (true, false) => adds_to_tree::<By<1>>,
        (false, true) => adds_to_tree::<By<2>>,
        (true, true) => adds_to_tree::<By<3>>,
    }
}

/// `bpf_rbtree_add_impl(root, node, less, meta, off)` of emitted code.
///
/// # Safety
/// As for [`add_to_tree`]; `less` must be the entry of a subprogram of the running program, `ctx` the first field of a
/// [`Run`].
pub(super) unsafe extern "C" fn adds_to_tree<K: Checked>(
    root: u64,
    node: u64,
    less: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: the verifier admits as what orders a tree only the address of one of the program's own
            // subprograms, which the running code's guard keeps.
            let mut call = |run: &mut Run, args| unsafe { call_native::<K>(run, less, args) };
            // SAFETY: the tree and the node were proven to be what the function's prototype says.
            unsafe { add_to_tree(run, root, node, &mut call) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// A call made by a helper counts like one made by the program, and can be interrupted like one.
fn count_call<K: Checked>(run: &mut Run) -> Result<(), HelperError> {
    use core::sync::atomic::Ordering;
    let spent = K::BUDGET && {
        run.ctx.budget -= 1;
        run.ctx.budget < 0
    };
    // SAFETY: the run lives; other threads store to the word atomically.
    let word = unsafe { word(run) };
    let stop = if spent {
        StopCode::Budget
    // Relaxed: a flag that orders nothing else.
    } else if K::INTERRUPT && word.load(Ordering::Relaxed) & INTERRUPTED != 0 {
        StopCode::Interrupted
    } else {
        return Ok(());
    };
    run.ctx.stop_code = stop as u32;
    run.ctx.stop_insn = u32::MAX;
    run.ctx.stop_pc = 0;
    Err(HelperError::Stopped)
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
    /// What it does with its arguments but the callback: the first, the third and the fourth.
    ///
    /// # Safety
    /// `first` is what the helper's prototype says: a live map, if it says so.
    unsafe fn run(run: &mut Run, first: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError>;
}

/// `bpf_loop`, whose first argument is a number.
pub(super) enum Loop {}

impl CallsBack for Loop {
    unsafe fn run(run: &mut Run, first: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
        run_loop(run, first, arg, flags, call)
    }
}

/// `bpf_for_each_map_elem`, whose first argument is a map.
pub(super) enum ForEach {}

impl CallsBack for ForEach {
    unsafe fn run(run: &mut Run, first: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
        // SAFETY: `first` is a live map (contract).
        unsafe { run_for_each(run, first, arg, flags, call) }
    }
}

/// `bpf_user_ringbuf_drain`, whose first argument is a map.
pub(super) enum Drain {}

impl CallsBack for Drain {
    unsafe fn run(run: &mut Run, first: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
        // SAFETY: `first` is a live map (contract).
        unsafe { run_drain(run, first, arg, flags, call) }
    }
}

/// What emitted code calls: the helper's second argument is the callback.
///
/// # Safety
/// `first` as [`CallsBack::run`] says; `callback` must be the entry of a subprogram of the running program; `ctx` the
/// first field of a [`Run`].
pub(super) unsafe extern "C" fn shim<H: CallsBack, K: Checked>(
    first: u64,
    callback: u64,
    arg: u64,
    flags: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: the verifier admits as callback only the address of one of the program's own subprograms, which
            // the running code's guard keeps.
            let mut call = |run: &mut Run, args| unsafe { call_native::<K>(run, callback, args) };
            // SAFETY: the first argument was proven to be what the helper's prototype says.
            unsafe { H::run(run, first, arg, flags, &mut call) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}
