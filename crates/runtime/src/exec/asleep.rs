//! Running a program that may wait.

use crate::abi::begin::{Nesting, too_long};
use crate::abi::fiber::{Fiber, Step};
use crate::abi::link::Waiting;
use crate::abi::machine_stack::INTERPRETER;
use crate::context::Parts;
use crate::error::RunError;
use crate::program::loaded::Loaded;
use bpf_quiesce::drop_payload;
use bpf_verifier::Region;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A run that waits. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Asleep {
    /// Until the run is over.
    fiber: Option<Fiber>,
    call: Waiting,
    /// The run's code, maps and closures.
    program: Arc<Loaded>,
}

// SAFETY: the call lies on the fiber's stack and is used by whoever has the fiber; what it waits for is `Send`
// (`call::sleeping`).
unsafe impl Send for Asleep {}

/// How a run has begun.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is over already.
    Over(Result<u64, RunError>),
    Waits(Asleep),
}

impl Loaded {
    /// Begins a run that may wait.
    ///
    /// # Safety
    /// As for [`Loaded::run`], until the run is over; host and data must be fit to go to another thread if what is
    /// returned goes there.
    pub(crate) unsafe fn begin_async(self: &Arc<Self>, host: *mut (), parts: Parts, cx: &mut Context<'_>) -> Begun {
        if !self.is_sleepable() {
            // SAFETY: the caller's contract.
            return Begun::Over(unsafe { self.run(host, parts) });
        }
        if parts.packet_len > Region::MAX_LEN as usize {
            return Begun::Over(Err(*too_long(parts.packet_len)));
        }
        // SAFETY: the caller's contract.
        unsafe { self.begin_asleep(host, parts, cx) }.unwrap_or_else(|error| Begun::Over(Err(error)))
    }

    /// # Safety
    /// As for [`Loaded::begin_async`]; the program must be sleepable.
    unsafe fn begin_asleep(
        self: &Arc<Self>,
        host: *mut (),
        parts: Parts,
        cx: &mut Context<'_>,
    ) -> Result<Begun, RunError> {
        let engine = &self.engine.0;
        let runs = &engine.runs;
        let nested = engine.domain.in_guard().then(|| Nesting::enter(runs.config.max_nested)).transpose()?;
        let guard = engine.domain.enter_run()?;
        let beside = if self.interpreted().is_some() { INTERPRETER } else { 0 };
        let mut fiber = runs.fibers.take()?;
        if let Err(error) = fiber.check(&runs.config.stack, self.code_stack().saturating_add(beside)) {
            fiber.finish();
            return Err(error);
        }
        let program = Arc::clone(self);
        let (whole, terms): (*const Loaded, _) = (Arc::as_ptr(&program), self.terms());
        let work = move |run| {
            // SAFETY: the run keeps its program.
            let program = unsafe { &*whole };
            // SAFETY: as `begin_async` says, until the run is over; the run is the fiber's, on this stack.
            unsafe { program.run_any_in(run, parts) }
        };
        let (slot, terms) = ((&runs.config, guard.slot()), (terms.of, terms.budget));
        // SAFETY: the fiber was idle, and the guard is held until this run waits or is over. The run keeps its program,
        // and so engine and configuration; the rest is the caller's contract.
        let step = unsafe { fiber.start(slot, (host, parts), terms, cx, work) };
        let begun = settle(step, fiber, program);
        drop(guard);
        drop(nested);
        Ok(begun)
    }
}

/// Turns a run's first step into a result or a waiting run.
fn settle(step: Step, fiber: Fiber, program: Arc<Loaded>) -> Begun {
    match step {
        Step::Waits(call) => Begun::Waits(Asleep { fiber: Some(fiber), call, program }),
        Step::Over(result, thrown) => {
            fiber.finish();
            Begun::Over(over(result, thrown))
        }
    }
}

/// A run is over. In a forked child, where another thread of the parent may have had the locks, its fiber is lost.
fn end(fiber: Fiber, program: &Loaded) {
    if program.engine.domain().is_forked() {
        core::mem::forget(fiber);
    } else {
        fiber.finish();
    }
}

/// The result of a run, whose poller is thrown what a host's future has thrown.
fn over(result: Result<u64, RunError>, thrown: Option<Box<dyn Any + Send>>) -> Result<u64, RunError> {
    match thrown {
        Some(panic) => resume_unwind(panic),
        None => result,
    }
}

impl Asleep {
    /// Goes on if what the run waits for is ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, RunError>> {
        let Some(fiber) = &mut self.fiber else { return Poll::Ready(Err(RunError::Over)) };
        let engine = &self.program.engine.0;
        // SAFETY: the call lies on the stack of the run that waits, and nobody else uses it.
        let call = unsafe { &mut *self.call };
        let polled = catch_unwind(AssertUnwindSafe(|| match engine.domain.is_forked() {
            // The run ends here: no guard is to be had.
            true => Poll::Ready(()),
            // SAFETY: the call stays where it is until the run goes on, and was not ready.
            false => unsafe { call.poll(cx) },
        }));
        let (step, refused) = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => match engine.domain.enter_run() {
                Ok(guard) => {
                    // SAFETY: the run waits, and is in this guard's slot until it waits again or is over.
                    let step = unsafe { fiber.go_on(guard.slot(), cx) };
                    if let Step::Waits(call) = step {
                        self.call = call;
                        return Poll::Pending;
                    }
                    (step, None)
                }
                // SAFETY: the run waits.
                Err(error) => (unsafe { fiber.cancel(cx, None) }, Some(error)),
            },
            // SAFETY: the run waits.
            Err(panic) => (unsafe { fiber.cancel(cx, Some(panic)) }, None),
        };
        let thrown = match step {
            Step::Over(result, thrown) => {
                if let Some(fiber) = self.fiber.take() {
                    end(fiber, &self.program);
                }
                return Poll::Ready(over(refused.map_or(result, |error| Err(error.into())), thrown));
            }
            Step::Waits(_) => self.forget(),
        };
        Poll::Ready(Err(thrown))
    }

    /// A run that was given up waits again: a bug, whose stack stays as it is.
    fn forget(&mut self) -> RunError {
        core::mem::forget(self.fiber.take());
        RunError::Internal("a run that was given up waits again".into())
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let Some(fiber) = &mut self.fiber else { return };
        let mut cx = Context::from_waker(Waker::noop());
        // SAFETY: the run waits.
        let Step::Over(_, thrown) = (unsafe { fiber.cancel(&mut cx, None) }) else {
            self.forget();
            return;
        };
        if let Some(fiber) = self.fiber.take() {
            end(fiber, &self.program);
        }
        match thrown {
            // Two panics at a time would end the process.
            Some(panic) if std::thread::panicking() => drop_payload(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}
