//! A run that may wait, as its user holds it: a future.

use crate::abi::critical::{self, unboxed};
use crate::abi::limits::RunLimits;
use crate::context::Parts;
use crate::error::RunError;
use crate::exec::asleep::{Asleep, AsyncTerms, Begun};
use crate::handle::kept::Kept;
use crate::program::loaded::Loaded;
use bpf_quiesce::Domain;
use core::fmt;
use core::future::Future;
use core::marker::{PhantomData, PhantomPinned};
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
pub struct RunAsync<'r, D, H> {
    /// Not dropped in a signal handler that interrupted a section.
    held: ManuallyDrop<Held>,
    data: D,
    /// The context's.
    parts: fn(&mut D) -> Parts,
    /// A pointer: while the run waits, its host function's future has the reference.
    host: *mut H,
    /// The run's `&mut H`, lent for as long as this is: so it is invariant in `H`.
    borrow: PhantomData<&'r mut H>,
    /// The data may be what the run's parts point to.
    _pinned: PhantomPinned,
}

/// The parts of a run that are not its user's.
#[derive(Debug)]
struct Held {
    state: State,
    program: Arc<Loaded>,
    /// As the program's handle has it.
    kept: Option<Kept>,
    /// Not in a box: a handler may make a future, wherever its thread is.
    limits: Option<RunLimits>,
}

// SAFETY: the pointer stands for a `&mut H`; a run that waits is `Send` but for its host and its data.
unsafe impl<D: Send, H: Send> Send for RunAsync<'_, D, H> {}

impl<D, H> fmt::Debug for RunAsync<'_, D, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { state, program, .. } = &*self.held;
        f.debug_struct("RunAsync").field("state", state).field("program", program).finish_non_exhaustive()
    }
}

/// Settles a domain when it is dropped.
pub(crate) struct SettlesAtLast<'d>(pub(crate) &'d Domain);

impl Drop for SettlesAtLast<'_> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

#[derive(Debug)]
enum State {
    New,
    Waits(Asleep),
    Over,
}

impl<'r, D, H: 'static> RunAsync<'r, D, H> {
    /// # Safety
    /// `parts` must be those of the context that the program was loaded for, and `H` its linker's.
    pub(crate) unsafe fn new(
        program: &Arc<Loaded>,
        kept: Option<&Kept>,
        host: &'r mut H,
        (data, parts): (D, fn(&mut D) -> Parts),
        limits: Option<&RunLimits>,
    ) -> Self {
        let (program, kept) = (Arc::clone(program), kept.cloned());
        let held = ManuallyDrop::new(Held { state: State::New, program, kept, limits: limits.cloned() });
        RunAsync { held, data, parts, host, borrow: PhantomData, _pinned: PhantomPinned }
    }

    /// The run's program.
    pub(super) fn program(&self) -> &Arc<Loaded> {
        &self.held.program
    }
}

impl<D, H> Drop for RunAsync<'_, D, H> {
    fn drop(&mut self) {
        if critical::interrupted() {
            // The handler may have interrupted the allocator. All of the run is forgotten.
            return;
        }
        // SAFETY: not used again.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        let Held { state, program, kept, limits } = held;
        {
            // The run may be what keeps the program: see `Program`'s. Also if a future panics as it is dropped.
            let _settles = SettlesAtLast(program.engine.domain());
            // Before host, data and program, which it uses.
            drop(state);
        }
        drop(program);
        drop((kept, limits));
    }
}

impl<D, H: 'static> Future for RunAsync<'_, D, H> {
    type Output = Result<u64, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing is moved out of it.
        let this = unsafe { self.get_unchecked_mut() };
        let held = &mut *this.held;
        if held.program.is_sleepable() && critical::interrupted() {
            return Poll::Ready(Err(RunError::Signal));
        }
        let result = match &mut held.state {
            State::New => {
                held.state = State::Over;
                let parts = (this.parts)(&mut this.data);
                let host = this.host.cast();
                let terms = AsyncTerms { of: None, limits: held.limits.as_ref() };
                // SAFETY: `Context` promises parts that are valid while `data` is borrowed, and that agree with its
                // layout, for which the program was loaded; `H` is the linker's (`new`). Data and host are not touched
                // again until the run is over, which it is before they go, and before the program: by `Drop`, or
                // because this is forgotten and the run with it. A sender of this has a `Send` host and data.
                match unsafe { held.program.begin_async(host, parts, terms, cx) } {
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
