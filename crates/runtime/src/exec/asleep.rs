//! Running a program that may wait.
//!
//! A run that waits is ended by its poller only: other threads mark its word and wake the poller
//! ([`crate::abi::parked`]), which gives the run up. The memory that the run may use of its stack is reserved in the
//! account that the program was loaded for.

use crate::abi::around;
use crate::abi::begin::Nesting;
use crate::abi::critical::Critical;
use crate::abi::fiber::{Budget, Fiber, Outcome, Step};
use crate::abi::limits::{Limits, RunLimits, Terms};
use crate::abi::link::Waiting;
use crate::abi::machine_stack::{INTERPRETER, check_poll};
use crate::abi::parked::drop_waker;
use crate::abi::stop::dropped_outside;
use crate::context::Parts;
use crate::engine::EngineInner;
use crate::error::RunError;
use crate::faults::planted;
use crate::program::loaded::Loaded;
use bpf_quiesce::{EnterError, Memory, Reservation, RunGuard, drop_payload};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A run that waits. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Asleep {
    /// Until the run is over.
    fiber: Option<Box<Fiber>>,
    /// The tick at which the run was to end, if it is over: see [`Asleep::moved_deadline`].
    deadline: Option<u64>,
    /// `None`: the run yields.
    call: Option<Waiting>,
    /// The run's code, maps and closures, which its owner keeps.
    program: NonNull<Loaded>,
    /// The memory that its stack may take.
    _charge: Charge,
}

/// Bytes that a run's stack may take, reserved of the program's account until this is dropped.
#[derive(Debug)]
struct Charge {
    /// The program's, or its engine's.
    memory: NonNull<Memory>,
    bytes: u64,
}

impl Charge {
    /// # Safety
    /// `memory` must be there until the charge is dropped.
    unsafe fn new(memory: &Memory, bytes: u64) -> Result<Charge, Box<RunError>> {
        match memory.take(bytes) {
            Ok(()) => Ok(Charge { memory: NonNull::from(memory), bytes }),
            Err(full) => Err(Box::new(RunError::MemoryFull { full })),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: there until now (`new`).
        unsafe { self.memory.as_ref() }.give(self.bytes);
    }
}

// SAFETY: the call lies on the fiber's stack and is used only through the fiber, which is `Send`; the host's future
// that the call waits for is `Send` (`call::sleeping`). Programs and accounts may be used by any thread.
unsafe impl Send for Asleep {}

/// The identity and the limits of a run that may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncTerms<'l> {
    /// The [`crate::abi::watch::word_of`] the hook that the run is a part of: it alone interrupts the run.
    pub(crate) of: Option<u64>,
    pub(crate) limits: Option<&'l RunLimits>,
}

/// The state of a run after its first poll.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The run is over already.
    Over(Outcome),
    Waits(Asleep),
}

impl Loaded {
    /// Begins a run that may wait.
    ///
    /// # Safety
    /// As for [`Loaded::run`], until the run is over; host and data must be fit to go to another thread if what is
    /// returned goes there. The caller must keep the program until what is returned is dropped. If the program is
    /// sleepable, the thread must be in no section, at each poll of the run as well
    /// ([`crate::abi::critical::interrupted`]).
    #[inline]
    pub(crate) unsafe fn begin_async(
        &self,
        host: *mut (),
        parts: Parts,
        terms: AsyncTerms<'_>,
        cx: &mut Context<'_>,
    ) -> Begun {
        if !self.is_sleepable() {
            // SAFETY: the caller's contract.
            return Begun::Over(unsafe { self.run_awake(host, parts, terms) });
        }
        if let Err(error) = parts.check() {
            return Begun::Over(Err(error));
        }
        // SAFETY: the caller's contract.
        unsafe { self.begin_asleep(host, parts, terms, cx) }.unwrap_or_else(|error| Begun::Over(Err(error)))
    }

    /// Runs a program that cannot wait.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    unsafe fn run_awake(&self, host: *mut (), parts: Parts, terms: AsyncTerms<'_>) -> Outcome {
        let guard = self.engine.0.domain.enter_run().map_err(boxed)?;
        let own = self.terms();
        let named = Terms { of: terms.of.unwrap_or(own.of), ..own };
        let none = RunLimits::new();
        // SAFETY: the caller's contract.
        unsafe { self.run_limited_as(guard, host, parts, named, terms.limits.unwrap_or(&none)) }.map_err(Box::new)
    }

    /// # Safety
    /// As for [`Loaded::begin_async`]; the program must be sleepable, and the thread in no section.
    unsafe fn begin_asleep(
        &self,
        host: *mut (),
        parts: Parts,
        terms: AsyncTerms<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Begun, Box<RunError>> {
        let _critical = Critical::enter();
        let engine = &self.engine.0;
        let (runs, fibers) = (&engine.runs, &*engine.runs.fibers);
        let named = || std::iter::once(self.limited());
        let limits = terms.limits.map(|limits| Limits::new(limits, runs, self.checks, named)).transpose()?;
        let busy = runs.busy();
        let nested = nesting(engine, runs.config.max_nested).map_err(boxed)?;
        let guard = engine.domain.enter_run().map_err(boxed)?;
        let slot = guard.slot();
        let beside = if self.interpreted().is_some() { INTERPRETER } else { 0 };
        let code = self.code_stack().saturating_add(beside);
        let payer = self.payer();
        // SAFETY: of the program, which the caller keeps.
        let charge = unsafe { Charge::new(payer, runs.config.stack.with_reserve(code)) }?;
        let mut fiber = fibers.take(slot)?;
        if let Err(error) = fiber.check(&runs.config.stack, code) {
            fiber.finish(fibers, Some(slot));
            return Err(Box::new(error));
        }
        let own = self.terms();
        let limited = limits.unwrap_or(Limits::NONE);
        fiber.announce(fibers, limited.watched(own.of), terms.of.unwrap_or(own.of), limited.waits_count());
        let polling = fiber.polls(fibers, busy, runs.levels());
        if engine.domain.is_forked() {
            // A waker has forked which that has called.
            core::mem::forget(fiber);
            return Err(boxed(EnterError::Forked));
        }
        // The run was announced before this.
        if let Some(limits) = limits.filter(|limits| limits.is_over(runs)) {
            fiber.finish(fibers, Some(slot));
            return Err(limits.over());
        }
        let whole = limits.map_or(own.budget, |limits| own.budget.min(limits.allowance()));
        let budget = Budget { whole, slice: limited.slice() };
        let program = NonNull::from(self);
        let work = move |run| {
            // SAFETY: the run's owner keeps its program.
            let program = unsafe { program.as_ref() };
            // SAFETY: as `begin_async` says, until the run is over; the run is the fiber's, on this stack.
            unsafe { program.run_any_in(run, parts) }.map_err(Box::new)
        };
        // SAFETY: the fiber was idle and announced, and the guard is held until this run waits or is over. The run's
        // owner keeps its program, and so engine, configuration and memory; the rest is the caller's contract.
        let step = unsafe { fiber.start((&runs.config, slot, payer), (host, parts), budget, cx, work) };
        drop(polling);
        let call = match step {
            Step::Waits(call) => Some(call),
            Step::GivesWay => None,
            Step::Over(result, thrown) => {
                // A host function may have forked, and this be the child.
                let waker = self.end(fiber, Some(slot));
                drop(guard);
                drop(nested);
                return Ok(Begun::Over(result_of(waker, result, thrown)));
            }
        };
        if planted!(GuardKept) {
            core::mem::forget(guard);
        } else {
            drop(guard);
        }
        drop(nested);
        let mut run = Asleep { fiber: Some(fiber), deadline: None, call, program, _charge: charge };
        Ok(match run.park(cx) {
            Poll::Pending => Begun::Waits(run),
            Poll::Ready(result) => Begun::Over(result),
        })
    }

    /// Returns the account that the program was loaded for, or the memory of its engine.
    fn payer(&self) -> &Arc<Memory> {
        let own = self.bindings().memory.as_ref().map(Reservation::memory);
        own.unwrap_or(self.engine.domain().memory())
    }

    /// A run is over. In a forked child, its fiber is lost. Returns the waker of its last poller.
    /// `slot`: this thread's, by a guard.
    fn end(&self, fiber: Box<Fiber>, slot: Option<u32>) -> Option<Waker> {
        if self.engine.domain().is_forked() || planted!(FiberLost) {
            // Another thread of the parent may have had the locks at the fork.
            core::mem::forget(fiber);
            return None;
        }
        fiber.finish(&self.engine.0.runs.fibers, slot)
    }
}

/// Counts a run on this thread's stack, if it is inside another run of its engine: in a guard, or in a run that the
/// thread polls.
/// The host's future of a run that has waited is polled in no guard.
fn nesting(engine: &EngineInner, limit: u32) -> Result<Option<Nesting>, RunError> {
    let fibers = core::ptr::from_ref(&*engine.runs.fibers).addr();
    (engine.domain.in_guard() || around::is_polling(fibers)).then(|| Nesting::enter(limit)).transpose()
}

fn boxed<E: Into<RunError>>(error: E) -> Box<RunError> {
    Box::new(error.into())
}

/// Drops the waker of a run that is over, outside of sections. Its poller is thrown what a host's future has thrown, or
/// the waker's destructor. Values of hosts that nobody gets are dropped outside of sections, too.
fn result_of(waker: Option<Waker>, result: Outcome, mut thrown: Option<Box<dyn Any + Send>>) -> Outcome {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop_waker(waker))) {
        match thrown {
            None => thrown = Some(panic),
            Some(_) => dropped_outside(panic),
        }
    }
    match thrown {
        Some(panic) => {
            dropped_outside(result);
            resume_unwind(panic)
        }
        None => result,
    }
}

/// The answer of a host's future.
enum Polled {
    Ready,
    Panicked(Box<dyn Any + Send>),
    /// The future was not polled: another thread has ended the run.
    Ended,
}

impl Asleep {
    /// The run's program.
    fn program<'p>(&self) -> &'p Loaded {
        // SAFETY: the run's owner keeps it until the run is dropped (`begin_async`), and nobody uses the result longer.
        unsafe { self.program.as_ref() }
    }

    /// Goes on if the call that the run waits for is ready; ends the run if another thread has asked for that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let program = self.program();
        let _critical = Critical::enter();
        let Some(fiber) = &mut self.fiber else { return Poll::Ready(Err(Box::new(RunError::Over))) };
        let engine = &program.engine.0;
        let fibers = &*engine.runs.fibers;
        if engine.domain.is_forked() {
            return Poll::Ready(self.lose(None));
        }
        // Also where the run began outside of the runs that it is polled in now: all of these are on this stack.
        let room = check_poll();
        let nested = match room.and_then(|()| nesting(engine, engine.runs.config.max_nested).map_err(boxed)) {
            Ok(nested) => nested,
            // The run is ended on its own stack.
            Err(_) if may_be_ended(program) && fiber.is_asked() => return Poll::Ready(self.give_up(cx)),
            Err(error) => return Poll::Ready(Err(error)),
        };
        let polling = fiber.polls(fibers, engine.runs.busy(), engine.runs.levels());
        let asked = may_be_ended(program) && fiber.is_asked();
        let polled = if asked {
            Polled::Ended
        } else if let Some(call) = self.call {
            // SAFETY: the call lies on the stack of the run that waits, and nobody else uses it.
            let call = unsafe { &mut *call };
            // SAFETY: the call stays where it is until the run goes on, and was not ready.
            let mut poll = || unsafe { call.poll(cx) };
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let _left = Critical::leave();
                poll()
            }));
            match polled {
                Ok(Poll::Pending) => {
                    drop((polling, nested));
                    return self.park(cx);
                }
                Ok(Poll::Ready(())) => Polled::Ready,
                Err(panic) => Polled::Panicked(panic),
            }
        } else {
            Polled::Ready
        };
        // The future may have forked.
        if engine.domain.is_forked() {
            let thrown = if let Polled::Panicked(panic) = polled { Some(panic) } else { None };
            drop((polling, nested));
            return Poll::Ready(self.lose(thrown));
        }
        let mut guard = None;
        let (step, refused) = match polled {
            Polled::Ready => match engine.domain.enter_run() {
                Ok(entered) => {
                    let slot = guard.insert(entered).slot();
                    // SAFETY: the run waits, and is in this guard's slot until it waits again or is over.
                    (unsafe { fiber.go_on(fibers, slot, engine.runs.clock(), cx) }, None)
                }
                Err(EnterError::Signal) => {
                    // A handler has interrupted its thread where the thread had no slot yet. Another poll goes on.
                    return Poll::Ready(Err(Box::new(RunError::Signal)));
                }
                // SAFETY: the run waits.
                Err(error) => (unsafe { fiber.cancel(cx, None) }, Some(error)),
            },
            // SAFETY: the run waits.
            Polled::Panicked(panic) => (unsafe { fiber.cancel(cx, Some(panic)) }, None),
            // SAFETY: the run waits.
            Polled::Ended => (unsafe { fiber.cancel(cx, None) }, None),
        };
        // Wakers and later runs on this stack are not inside the run.
        drop((polling, nested));
        match (step, refused) {
            (Step::Waits(call), None) => {
                drop(guard);
                self.call = Some(call);
                self.park(cx)
            }
            (Step::GivesWay, None) => {
                drop(guard);
                self.call = None;
                self.park(cx)
            }
            (step, refused) => {
                let result = self.over(step, guard);
                // The result of a run that is given up has no value of a host.
                let refused = refused.filter(|_| !program.engine.domain().is_forked());
                Poll::Ready(refused.map_or(result, |error| Err(boxed(error))))
            }
        }
    }

    /// Returns whether the run is not over: it waits, or a poll was refused ([`RunError::Signal`],
    /// [`RunError::TooDeep`], [`RunError::Stack`]).
    pub(crate) fn waits(&self) -> bool {
        self.fiber.is_some()
    }

    /// Returns the deadline of a run that is over, which waits that do not count have moved: for runs that follow under
    /// the same limits.
    pub(crate) fn moved_deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Waits, with the poller of this context to be woken by a thread that ends the run; at once, if the run yields.
    fn park(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let program = self.program();
        if program.engine.domain().is_forked() {
            // The next poll ends the run. Another thread of the parent may have had the locks at the fork.
            wake(cx);
            return Poll::Pending;
        }
        let fibers = &program.engine.0.runs.fibers;
        if may_be_ended(program) && self.fiber.as_mut().is_some_and(|fiber| fiber.park(fibers, cx.waker())) {
            return Poll::Ready(self.give_up(cx));
        }
        // Also if the waker has forked when it was cloned: as above.
        if self.call.is_none() || program.engine.domain().is_forked() {
            wake(cx);
        }
        Poll::Pending
    }

    /// Gives up a run that waits, in a forked child. The emitted code that its frames are of is not mapped there, so
    /// its stack stays as it is, and its host's future is dropped from this one. Where this one has no room for that,
    /// the future is forgotten.
    fn lose(&mut self, thrown: Option<Box<dyn Any + Send>>) -> Outcome {
        let fiber = self.fiber.take();
        let mut thrown = thrown.or_else(|| fiber.as_ref().and_then(|fiber| fiber.thrown()));
        core::mem::forget(fiber);
        // The destructors of runs that this run's future has are all on this stack.
        let room = check_poll();
        if let (Some(call), Ok(())) = (self.call.take(), room) {
            // SAFETY: the call lies on the stack of the run, which nobody resumes.
            let call = unsafe { &mut *call };
            let dropped = catch_unwind(AssertUnwindSafe(|| {
                let _left = Critical::leave();
                call.lose();
            }));
            match dropped {
                Err(panic) if thrown.is_some() => dropped_outside(panic),
                Err(panic) => thrown = Some(panic),
                Ok(()) => {}
            }
        }
        result_of(None, Err(boxed(EnterError::Forked)), thrown)
    }

    /// Gives up a run that waits.
    fn give_up(&mut self, cx: &mut Context<'_>) -> Outcome {
        let program = self.program();
        let Some(fiber) = &mut self.fiber else { return Err(Box::new(RunError::Over)) };
        let (runs, domain) = (&program.engine.0.runs, program.engine.domain());
        let polling = (!domain.is_forked()).then(|| fiber.polls(&runs.fibers, runs.busy(), runs.levels()));
        // Also if a waker has forked which that has called.
        if domain.is_forked() {
            drop(polling);
            return self.lose(None);
        }
        // SAFETY: the run waits.
        let step = unsafe { fiber.cancel(cx, None) };
        drop(polling);
        self.over(step, None)
    }

    /// Returns the result of a run that is over. `guard`: under which it ran.
    fn over(&mut self, step: Step, guard: Option<RunGuard<'_>>) -> Outcome {
        match step {
            Step::Over(result, thrown) => {
                let waker = self.fiber.take().and_then(|fiber| {
                    self.deadline = Some(fiber.deadline());
                    self.program().end(fiber, guard.as_ref().map(|guard| guard.slot()))
                });
                // The waker's drop runs foreign code, so it comes last.
                drop(guard);
                if self.program().engine.domain().is_forked() {
                    // The destructor of a future that was given up has forked.
                    dropped_outside(result);
                    return result_of(waker, Err(boxed(EnterError::Forked)), thrown);
                }
                result_of(waker, result, thrown)
            }
            Step::Waits(_) | Step::GivesWay => Err(Box::new(self.forget())),
        }
    }

    /// A run that was given up waits again: a bug, whose stack stays as it is.
    fn forget(&mut self) -> RunError {
        core::mem::forget(self.fiber.take());
        RunError::Internal("a run that was given up waits again".into())
    }
}

/// Wakes the poller, by code of a host.
fn wake(cx: &Context<'_>) {
    let _left = Critical::leave();
    cx.waker().wake_by_ref();
}

/// Whether other threads may end runs of this program while they wait.
fn may_be_ended(program: &Loaded) -> bool {
    program.checks.interrupt
}

impl Drop for Asleep {
    fn drop(&mut self) {
        if self.fiber.is_none() {
            return;
        }
        // Exactly one section, also where a panic drops the run within the section of its beginning.
        let _left = Critical::leave();
        let critical = Critical::enter();
        let mut cx = Context::from_waker(Waker::noop());
        // The result of a run that is given up has no value of a host.
        let over = catch_unwind(AssertUnwindSafe(|| drop(self.give_up(&mut cx))));
        drop(critical);
        match over.err() {
            // Two panics at a time would end the process.
            Some(panic) if std::thread::panicking() => drop_payload(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

#[cfg(all(test, unix, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests {
    use crate::abi::critical;
    use crate::{
        AsyncCaller, Config, Engine, HelperError, Hook, HookPolicy, Linker, Mode, Program, Raw, RunError, RunLimits,
        isa::assemble,
    };
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::{Cell, RefCell};
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    type Run = Rc<RefCell<Pin<Box<dyn Future<Output = Result<u64, RunError>>>>>>;

    thread_local! {
        /// The work of the signal handler.
        static IN_HANDLER: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    extern "C" fn handler(_: libc::c_int) {
        if let Some(work) = IN_HANDLER.take() {
            work();
        }
    }

    /// The allocations and frees of a thread that are counted.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Counted {
        No,
        /// All.
        Each,
        /// The ones outside of sections.
        Outside,
    }

    thread_local! {
        static COUNTED: Cell<Counted> = const { Cell::new(Counted::No) };
        static COUNT: Cell<u32> = const { Cell::new(0) };
    }

    /// The system's allocator, which counts.
    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn note() {
        let counts = match COUNTED.get() {
            Counted::No => false,
            Counted::Each => true,
            Counted::Outside => !critical::interrupted(),
        };
        if counts {
            COUNT.set(COUNT.get() + 1);
        }
    }

    // SAFETY: the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            note();
            // SAFETY: the caller's contract.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            note();
            // SAFETY: the caller's contract.
            unsafe { System.dealloc(at, layout) }
        }
    }

    /// Does the work, while these are counted. Returns how many there were.
    fn counted<T>(what: Counted, work: impl FnOnce() -> T) -> (T, u32) {
        let (before, count) = (COUNTED.replace(what), COUNT.replace(0));
        let result = work();
        COUNTED.set(before);
        (result, COUNT.replace(count))
    }

    /// Does work of a host, whose allocations are its own.
    fn host<T>(work: impl FnOnce() -> T) -> T {
        let before = COUNTED.replace(Counted::No);
        let result = work();
        COUNTED.set(before);
        result
    }

    /// Drops a run in place, and frees no memory of its box.
    fn drop_in_place(run: Run) {
        let mut pinned = run.borrow_mut();
        // SAFETY: the future is dropped where it is, and not used again.
        let future = unsafe { pinned.as_mut().get_unchecked_mut() };
        // SAFETY: dropped where it is, once.
        unsafe { core::ptr::drop_in_place(future) };
        drop(pinned);
        core::mem::forget(run);
    }

    fn in_handler(work: Box<dyn FnOnce()>) {
        IN_HANDLER.set(Some(work));
        // SAFETY: the signal has a handler, which is called before this returns.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert!(IN_HANDLER.take().is_none(), "the handler was called");
    }

    fn run(run: impl Future<Output = Result<u64, RunError>> + 'static) -> Run {
        Rc::new(RefCell::new(Box::pin(run)))
    }

    fn poll(run: &Run) -> Poll<Result<u64, RunError>> {
        run.borrow_mut().as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_signal_handler_is_refused_where_its_thread_has_a_lock() {
        // SAFETY: a valid action; no other test of this process uses the signal.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        let config = Config::new().interruptible(true);
        let engine = Engine::new(config).expect("an engine");
        let mut linker = Linker::<()>::new(&engine);
        let wait = async |_: AsyncCaller<'_, ()>| {
            let mut polls = 0;
            poll_fn(|_| {
                polls += 1;
                if polls < 2 { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
        };
        linker.func_async(1001, "wait", wait).expect("a function");
        let insns = assemble("call 1001\nr0 = 7\nexit").expect("a program");
        let program: Program<Raw, ()> = linker.loader().sleepable(true).insns("waits", insns).expect("a program");
        let hook = Hook::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).expect("a hook");
        hook.attach(&program).expect("attached");
        // Hosts that are there as long as the handler's work.
        let new = || run(program.run_async(Box::leak(Box::new(())), &mut []));
        let begun = || {
            let run = new();
            assert!(poll(&run).is_pending());
            run
        };
        let kept = begun();
        let of_hook = run(hook.run_async(Box::leak(Box::new(())), &mut []));
        assert!(poll(&of_hook).is_pending());
        let mut dropped: Vec<Run> = (0..10).map(|_| begun()).collect();
        let begun = || {
            let run = run(hook.run_async(Box::leak(Box::new(())), &mut []));
            assert!(poll(&run).is_pending());
            run
        };
        let mut hook_dropped: Vec<Run> = (0..10).map(|_| begun()).collect();
        let mut locks = Vec::new();
        engine.0.runs.fibers.with_each_lock(|lock| {
            locks.push(lock.to_owned());
            let (kept, of_hook, new) = (Rc::clone(&kept), Rc::clone(&of_hook), new());
            let dropped = dropped.pop().expect("more runs than locks");
            let hook_dropped = hook_dropped.pop().expect("more runs than locks");
            // A callback that waits: the thread that settles the domain frees it.
            engine.domain().enqueue(|| ());
            in_handler(Box::new(move || {
                let ((), calls) = counted(Counted::Each, || {
                    for run in [&kept, &of_hook, &new] {
                        assert!(matches!(poll(run), Poll::Ready(Err(RunError::Signal))));
                    }
                    drop_in_place(dropped);
                    drop_in_place(hook_dropped);
                });
                assert_eq!(calls, 0, "the interrupted thread may have been in the allocator");
            }));
        });
        assert_eq!(locks, ["waker", "stacks", "deadlines", "nests", "idle", "all"]);
        // The refused runs go on where no lock is held, in a handler too. The dropped runs have lost their stacks.
        drop((dropped, hook_dropped));
        in_handler(Box::new({
            let new = new();
            move || {
                assert!(matches!(poll(&kept), Poll::Ready(Ok(7))));
                assert!(poll(&new).is_pending());
                assert!(matches!(poll(&new), Poll::Ready(Ok(7))));
            }
        }));
        assert!(matches!(poll(&of_hook), Poll::Ready(Ok(_))));
        assert_eq!(engine.async_runs(), 2 * locks.len());
    }

    #[test]
    fn runs_allocate_in_sections_or_in_code_of_the_host() {
        let config = Config::new().interruptible(true);
        let engine = Engine::new(config).expect("an engine");
        if engine.config().mode != Mode::Jit {
            return bpf_testkit::skipped("allocations of machine code", &"the interpreter allocates by itself");
        }
        let mut linker = Linker::<u32>::new(&engine);
        // The host says which poll is the last one; after an even number the function fails.
        let wait = async |mut c: AsyncCaller<'_, u32>| -> Result<u64, HelperError> {
            let mut polls = *c.host();
            poll_fn(|_| {
                polls = polls.saturating_sub(1);
                if polls == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            if c.host().is_multiple_of(2) { Err(host(|| HelperError::new("refused"))) } else { Ok(1) }
        };
        linker.func_async(1001, "wait", wait).expect("a function");
        let loops = "r6 = 0\nagain: r6 += 1\nif r6 < 1000 goto again\n";
        let insns = assemble(&format!("call 1001\n{loops}r0 = 7\nexit")).expect("a program");
        let program: Program<Raw, u32> = linker.loader().yields(true).insns("waits", insns).expect("a program");
        let hook = Hook::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).expect("a hook");
        hook.attach(&program).expect("attached");
        let limits = [RunLimits::new(), RunLimits::new().yield_every(300)];
        let mut ends = [0; 3];
        let mut cx = Context::from_waker(Waker::noop());
        for case in 0..96 {
            let (mut ready, limits) = (case % 4, &limits[case as usize / 48]);
            let (drops, interrupts, hooked) = (case / 4 % 2 == 1, case / 8 % 3 == 1, case / 24 % 2 == 1);
            let run: Pin<Box<dyn Future<Output = _>>> = match hooked {
                true => Box::pin(hook.run_async_with(&mut ready, &mut [], limits)),
                false => Box::pin(program.run_async_with(&mut ready, &mut [], limits)),
            };
            let mut run = core::mem::ManuallyDrop::new(run);
            let mut polls = 0;
            let (result, calls) = counted(Counted::Outside, || {
                loop {
                    polls += 1;
                    match run.as_mut().poll(&mut cx) {
                        Poll::Ready(result) => return Some(result),
                        Poll::Pending if drops && polls == 2 => return None,
                        Poll::Pending if interrupts => host(|| engine.interrupt()),
                        Poll::Pending => {}
                    }
                }
            });
            // SAFETY: the future is dropped where it is, and not used again.
            let future = unsafe { run.as_mut().get_unchecked_mut() };
            // SAFETY: dropped where it is, once; the memory of its box is lost.
            let ((), freed) = counted(Counted::Outside, || unsafe { core::ptr::drop_in_place(future) });
            assert_eq!((calls, freed), (0, 0), "polls and drop of case {case}, {result:?}");
            ends[result.map_or(2, |result| usize::from(result.is_err()))] += 1;
        }
        assert!(ends.iter().all(|count| *count > 10), "{ends:?}");
    }
}
