//! A run that may wait, as its user holds it: a future.

use crate::abi::critical::{self, unboxed};
use crate::abi::limits::RunLimits;
use crate::abi::machine_stack::on_signal_stack;
use crate::call::state::{Host, Loan};
use crate::context::Parts;
use crate::error::RunError;
use crate::exec::asleep::{Asleep, AsyncTerms, Begun};
use crate::handle::kept::Kept;
use crate::program::loaded::Loaded;
use bpf_quiesce::Domain;
use core::fmt;
use core::future::Future;
use core::marker::PhantomPinned;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{self, Poll};
use std::sync::Arc;

/// A run of a program ([`Program::run_async`](crate::Program::run_async)), which begins when it is polled first. It
/// keeps the program, its maps and its code. Dropped before it is ready, it ends the run as a stop does: its writes
/// stay, its host function's future is dropped, and it holds nothing else.
///
/// `D` is the context's data ([`crate::Context::Data`]). It is `Send` if data and host state are.
#[must_use = "futures do nothing unless they are polled"]
pub struct RunAsync<'r, D, H: ?Sized> {
    /// Not dropped in a signal handler that interrupted a section or, if the run waits, is on a signal stack.
    held: ManuallyDrop<Held>,
    lent: Lent<'r, D, H>,
}

/// The parts of a run that are not its user's.
#[derive(Debug)]
struct Held {
    state: State,
    program: Arc<Loaded>,
    /// As the program's handle has it.
    _kept: Option<Kept>,
    /// Not in a box: a handler may make a future, wherever its thread is.
    limits: Option<RunLimits>,
}

impl<D, H: ?Sized> fmt::Debug for RunAsync<'_, D, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { state, program, .. } = &*self.held;
        f.debug_struct("RunAsync").field("state", state).field("program", program).finish_non_exhaustive()
    }
}

/// The context's data and the host state of a run that may wait, of one program or of a hook's.
pub(crate) struct Lent<'r, D, H: ?Sized> {
    data: D,
    /// The context's.
    parts: fn(&mut D) -> Parts,
    /// While the run waits, its host function's future has the reference.
    host: Loan<'r, H>,
    /// The data may be what the run's parts point to.
    _pinned: PhantomPinned,
}

impl<'r, D, H: Host + ?Sized> Lent<'r, D, H> {
    pub(crate) fn new(host: Loan<'r, H>, (data, parts): (D, fn(&mut D) -> Parts)) -> Self {
        Lent { data, parts, host, _pinned: PhantomPinned }
    }

    /// Begins a run of the program with them.
    ///
    /// # Safety
    /// The program must have been loaded for the context of [`Self::new`]'s parts and by a linker for `H`. No other
    /// run of these may be there, and the run must be over before these and the program are dropped or moved, or all
    /// must be forgotten.
    pub(crate) unsafe fn begin(
        &mut self,
        program: &Arc<Loaded>,
        terms: AsyncTerms<'_>,
        cx: &mut task::Context<'_>,
    ) -> Begun {
        let parts = (self.parts)(&mut self.data);
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, and that agree with its layout, for
        // which the program was loaded, as for `H` (the caller). Nothing here touches data or host until they are
        // dropped, and until then the run is over (the caller). A sender of these has a `Send` host and data.
        unsafe { program.begin_async(self.host.pointer(), parts, terms, cx) }
    }
}

/// Settles a domain when it is dropped.
pub(crate) struct SettlesAtLast<'d>(pub(crate) &'d Domain);

impl Drop for SettlesAtLast<'_> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// Drops these at last, where they are: a move of them costs as much as a run.
struct Rest<'h>(&'h mut ManuallyDrop<Held>);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, by the owner's destructor.
        unsafe { ManuallyDrop::drop(self.0) }
    }
}

#[derive(Debug)]
enum State {
    New,
    Waits(Asleep),
    Over,
}

impl<'r, D, H: Host + ?Sized> RunAsync<'r, D, H> {
    /// # Safety
    /// `lent` must be of the context that the program was loaded for, and `H` its linker's.
    #[inline]
    pub(crate) unsafe fn new(
        program: &Arc<Loaded>,
        kept: Option<&Kept>,
        lent: Lent<'r, D, H>,
        limits: Option<&RunLimits>,
    ) -> Self {
        let (program, _kept) = (Arc::clone(program), kept.cloned());
        let held = Held { state: State::New, program, _kept, limits: limits.cloned() };
        RunAsync { held: ManuallyDrop::new(held), lent }
    }

    /// The run's program.
    pub(super) fn program(&self) -> &Arc<Loaded> {
        &self.held.program
    }
}

impl<D, H: ?Sized> Drop for RunAsync<'_, D, H> {
    fn drop(&mut self) {
        if critical::interrupted() || matches!(&self.held.state, State::Waits(run) if run.waits()) && on_signal_stack()
        {
            // The handler may have interrupted the allocator, or may not switch stacks. The run is forgotten.
            return;
        }
        let rest = Rest(&mut self.held);
        let Held { state, program, .. } = &mut **rest.0;
        // The run may be what keeps the program: see `Program`'s. Also if a future panics as it is dropped.
        let _settles = SettlesAtLast(program.engine.domain());
        // Before host, data and program, which it uses.
        *state = State::Over;
    }
}

impl<D, H: Host + ?Sized> Future for RunAsync<'_, D, H> {
    type Output = Result<u64, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing is moved out of it.
        let this = unsafe { self.get_unchecked_mut() };
        let held = &mut *this.held;
        if held.program.is_sleepable() && (critical::interrupted() || on_signal_stack()) {
            return Poll::Ready(Err(RunError::Signal));
        }
        let result = match &mut held.state {
            State::New => {
                held.state = State::Over;
                let terms = AsyncTerms { of: None, limits: held.limits.as_ref() };
                // SAFETY: context and `H` are the program's (`new`). It is the only run, as the state says. It is over
                // before `lent` and the program are dropped, by `Drop`, or is forgotten, and then its program is kept
                // and nobody resumes or drops its frames; `lent` is pinned.
                match unsafe { this.lent.begin(&held.program, terms, cx) } {
                    Begun::Over(result) => result,
                    Begun::Waits(run) => {
                        held.state = State::Waits(run);
                        return Poll::Pending;
                    }
                }
            }
            State::Waits(run) => {
                let Poll::Ready(result) = run.poll(cx) else { return Poll::Pending };
                if !run.waits() {
                    held.state = State::Over;
                }
                result
            }
            State::Over => return Poll::Ready(Err(RunError::Over)),
        };
        Poll::Ready(result.map_err(unboxed))
    }
}
