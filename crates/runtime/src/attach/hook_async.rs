//! A run of a hook that may wait, as its user holds it: a future.
//!
//! The run keeps the list of programs that the hook had when the future was made. A change of the hook does not affect
//! it, and the code of programs that were detached is freed when the last run that has them is over. Each program is a
//! run of its own for stacks and slots: a program that cannot wait holds a guard while it runs, and none is held
//! between two programs. An interruption that comes between two of them, or after the last check of one, ends the run
//! before the next one ([`crate::abi::whole`]).

use crate::abi::critical::{self, Critical, unboxed};
use crate::abi::limits::RunLimits;
use crate::abi::machine_stack::on_signal_stack;
use crate::abi::watch::word_of;
use crate::abi::whole::Ends;
use crate::attach::published::List;
use crate::call::state::Host;
use crate::engine::Engine;
use crate::error::RunError;
use crate::exec::asleep::{Asleep, AsyncTerms, Begun};
use crate::handle::run_async::{Lent, SettlesAtLast};
use bpf_dispatcher::HookPolicy;
use bpf_quiesce::drop_payload;
use core::fmt;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::ops::ControlFlow;
use core::pin::Pin;
use core::task::{self, Poll};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A run of a hook ([`crate::Hook::run_async`]), which begins when it is polled first. Dropped before it is ready, it
/// ends as a [`crate::run::RunAsync`] does.
#[must_use = "futures do nothing unless they are polled"]
pub struct HookRunAsync<'r, D, H: ?Sized> {
    /// Not dropped in a signal handler that interrupted a section or, if the run waits, is on a signal stack.
    held: ManuallyDrop<Held>,
    lent: Lent<'r, D, H>,
}

/// The parts of a run that are not its user's.
#[derive(Debug)]
struct Held {
    /// The program that waits.
    waits: Option<Asleep>,
    /// Until the run is over.
    list: Option<Result<Arc<List>, RunError>>,
    /// The position of the program that runs or is next.
    at: usize,
    result: u64,
    policy: HookPolicy,
    /// The hook's, by which it interrupts its runs.
    identity: Ends,
    /// Whether it was polled.
    begun: bool,
    /// With the deadline as the waits of the programs so far have moved it; there when the run has begun.
    limits: Option<RunLimits>,
    engine: Engine,
}

impl<D, H: ?Sized> fmt::Debug for HookRunAsync<'_, D, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { at, waits, .. } = &*self.held;
        f.debug_struct("HookRunAsync").field("at", at).field("waits", waits).finish_non_exhaustive()
    }
}

impl<'r, D, H: Host + ?Sized> HookRunAsync<'r, D, H> {
    /// # Safety
    /// The programs of the list must have been loaded for `H` and for the context of `lent`.
    pub(super) unsafe fn new(
        engine: &Engine,
        list: Result<Arc<List>, RunError>,
        (policy, identity): (HookPolicy, &Ends),
        lent: Lent<'r, D, H>,
        limits: Option<&RunLimits>,
    ) -> Self {
        let held = Held {
            waits: None,
            list: Some(list),
            at: 0,
            result: policy.of_empty(),
            policy,
            identity: identity.clone(),
            begun: false,
            limits: limits.cloned(),
            engine: engine.clone(),
        };
        HookRunAsync { held: ManuallyDrop::new(held), lent }
    }

    /// Runs programs until one waits or the run is over.
    fn go_on(&mut self, list: &Arc<List>, cx: &mut task::Context<'_>) -> Poll<Result<u64, RunError>> {
        let held = &mut *self.held;
        if !core::mem::replace(&mut held.begun, true) {
            let _critical = Critical::enter();
            let limits = held.limits.get_or_insert_default();
            limits.begin_whole(&held.identity, &held.engine.0.runs.ends);
        }
        while let Some(listed) = list.get(held.at) {
            let polled = match &mut held.waits {
                Some(run) => run.poll(cx),
                None => {
                    let terms =
                        AsyncTerms { of: Some(word_of(held.identity.identity())), limits: held.limits.as_ref() };
                    // SAFETY: context and `H` are those of the list's programs (`new`). No other of them has a run now.
                    // It is over before the list, which keeps the program, and before `lent` is dropped, by `Drop`, or
                    // is forgotten with the list, and then nobody resumes or drops its frames; `lent` is pinned.
                    match unsafe { self.lent.begin(&listed.program, terms, cx) } {
                        Begun::Over(result) => Poll::Ready(result),
                        Begun::Waits(run) => {
                            held.waits = Some(run);
                            Poll::Pending
                        }
                    }
                }
            };
            let Poll::Ready(verdict) = polled else { return Poll::Pending };
            if held.waits.as_ref().is_some_and(Asleep::waits) {
                // Refused in a signal handler, too deep in other runs, or where too little of the stack is left.
                return Poll::Ready(verdict.map_err(unboxed));
            }
            let moved = held.waits.take().and_then(|run| run.moved_deadline());
            if let (Some(tick), Some(limits)) = (moved, &mut held.limits) {
                limits.move_deadline(tick);
            }
            held.at += 1;
            match verdict.map(|verdict| held.policy.after(held.result, verdict, listed.continue_on)) {
                Ok(ControlFlow::Continue(so_far)) => held.result = so_far,
                Ok(ControlFlow::Break(result)) => return Poll::Ready(Ok(result)),
                Err(error) => return Poll::Ready(Err(unboxed(error))),
            }
        }
        Poll::Ready(Ok(held.result))
    }
}

impl Held {
    /// Ends the run and lets its list go.
    fn end(&mut self) {
        // The list may be the last owner of its programs. Also if a future panics as it is dropped.
        let _settles = SettlesAtLast(self.engine.domain());
        let list = self.list.take();
        // Before the list, which keeps its program, and before host and data, which it uses.
        self.waits = None;
        drop(list);
    }
}

impl<D, H: ?Sized> Drop for HookRunAsync<'_, D, H> {
    fn drop(&mut self) {
        if critical::interrupted() || self.held.waits.is_some() && on_signal_stack() {
            // As for a `RunAsync`.
            return;
        }
        // SAFETY: not used again.
        let mut held = unsafe { ManuallyDrop::take(&mut self.held) };
        if let Some(limits) = &mut held.limits {
            limits.end_whole();
        }
        if held.list.is_some() {
            held.end();
        }
    }
}

impl<D, H: Host + ?Sized> Future for HookRunAsync<'_, D, H> {
    type Output = Result<u64, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        // SAFETY: nothing is moved out of it.
        let this = unsafe { self.get_unchecked_mut() };
        let sleeps = |held: &Held| {
            let list = held.list.as_ref().and_then(|list| list.as_ref().ok());
            list.is_some_and(|list| list.iter().any(|listed| listed.program.is_sleepable()))
        };
        if critical::interrupted() || on_signal_stack() && sleeps(&this.held) {
            // The run goes on when it is polled later.
            return Poll::Ready(Err(RunError::Signal));
        }
        let list = match this.held.list.take() {
            None => return Poll::Ready(Err(RunError::Over)),
            Some(Err(error)) => return Poll::Ready(Err(error)),
            Some(Ok(list)) => list,
        };
        this.held.list = Some(Ok(Arc::clone(&list)));
        let polled = catch_unwind(AssertUnwindSafe(|| this.go_on(&list, cx)));
        drop(list);
        // A run that has thrown is over, as a `RunAsync` is: its program must not begin again.
        let is_refused = match polled {
            Ok(Poll::Ready(Err(RunError::Signal))) => true,
            Ok(Poll::Ready(Err(RunError::TooDeep { .. } | RunError::Stack { .. }))) => {
                this.held.waits.as_ref().is_some_and(Asleep::waits)
            }
            _ => false,
        };
        if is_refused || matches!(polled, Ok(Poll::Pending)) {
            return polled.unwrap_or(Poll::Pending);
        }
        let ended = catch_unwind(AssertUnwindSafe(|| this.held.end()));
        match (polled, ended) {
            (Ok(polled), Ok(())) => polled,
            (Ok(_), Err(panic)) | (Err(panic), Ok(())) => resume_unwind(panic),
            (Err(panic), Err(second)) => {
                drop_payload(second);
                resume_unwind(panic)
            }
        }
    }
}
