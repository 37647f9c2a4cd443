//! Runs on stacks of their own, which may leave their thread and go on later.
//!
//! Problem: a program that waits for a host's future must give its thread back in the middle of emitted code, and go on
//! later, maybe on another thread. Approach: such a run is on a stack of its own from its beginning; to wait, that
//! stack is switched away from. Its frames stay where they are. To its poller, a run that waits is a `*mut dyn`
//! [`Sleeping`](crate::abi::link::Sleeping): the call that waits lies on the run's stack and is polled from another.
//!
//! Invariants:
//! * While a run waits it holds no guard, no slot and no lock: the guard of a running run is in the frame of the poller
//!   that resumes it.
//! * No frame on a run's stack that lives across a wait refers to its thread: functions that do so (and everything of a
//!   host's) are called by such a frame and not inlined into it, since a compiler takes a function to stay on one
//!   thread.
//! * A run's stack is switched to by one thread at a time: the thread that has the [`Fiber`].
//! * In a forked child no run's stack is switched to: the emitted code of its frames is not mapped there. The host's
//!   future that the run waits for is dropped from its poller's stack.
//! * A [`Fiber`] is over before it is dropped. A forgotten fiber stays as it is, with its stack: nothing that it
//!   borrowed is used again, for nobody can resume it.

use crate::abi::around::{Around, Busy, Current, Marked, Nests, Place, Polling, polled};
use crate::abi::clock::Clock;
use crate::abi::critical::{self, Critical, Lock, Locked};
use crate::abi::level::Level;
use crate::abi::link::{Awaited, Link, Resume, Waiting};
use crate::abi::machine_stack::{self, StackNeed};
use crate::abi::parked::{Deadlines, Due, Parked, wake};
use crate::abi::run::{Run, RunConfig};
use crate::abi::stacks::{RunStack, Stacks};
use crate::abi::watch::{INTERRUPTED, LATE, Watched};
use crate::context::Parts;
use crate::error::RunError;
use crate::faults::planted;
use bpf_quiesce::{Domain, Memory};
use crossbeam_utils::CachePadded;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Bytes of a stack whose pages are kept for later runs.
const KEPT_STACK: usize = 64 * 1024;
/// A stack is trimmed each time that it has served so many runs. Host functions may use more of it than they are
/// expected to, and a look at each end of a run would be a system call.
const RUNS_TO_TRIM: u32 = 256;

/// The result of a run, or what was thrown in it.
type Ended = Result<Outcome, Box<dyn Any + Send>>;

/// The result of a run. Boxed, since it is moved from frame to frame.
pub(crate) type Outcome = Result<u64, Box<RunError>>;

/// The budget of a run, in taken back-edges and calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) whole: i64,
    /// The part after which the run yields.
    pub(crate) slice: i64,
}

/// How far a run has come.
#[derive(Debug)]
pub(crate) enum Step {
    /// The run is over. The second field is the panic of a host's future, if one has panicked.
    Over(Outcome, Option<Box<dyn Any + Send>>),
    /// The run waits for this call.
    Waits(Waiting),
    /// The run yields.
    GivesWay,
}

/// A run's stack and state, from one run to the next.
///
/// In a box from its making on: it is kept in lists, and moved with the future of its run. A [`Fibers`] passed to its
/// methods is its engine's.
pub(crate) struct Fiber {
    parked: Arc<Parked>,
    due: Due,
    /// Whether the run has kept a waker in `parked`.
    waits: bool,
    /// The runs inside of which the run was polled last.
    around: Option<Box<Around>>,
    /// Not a box: the run refers to it as well.
    link: Rc<Link>,
    /// Whether the run may use more than [`KEPT_STACK`] of the stack.
    deep: bool,
    /// How many runs the stack has served since it was trimmed.
    runs: u32,
    stack: imp::Stack,
}

// SAFETY: this fiber is the only owner of the link. Frames on the stack of a run that waits may go to another thread:
// emitted frames, frames of the interpreter and of the shims of functions that wait, which refer to no thread (the
// invariant above); the host's futures in these are `Send` (`call::sleeping`), and so are the host's values of the run
// (`RunAsync` is `Send` only if they are).
unsafe impl Send for Fiber {}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Fiber {
    fn new(stack: RunStack) -> Box<Fiber> {
        let (parked, link) = (Arc::new(Parked::new()), Rc::new(Link::new()));
        // SAFETY: the run was just made, and no other thread has a reference to it.
        unsafe { (*parked.level.run()).link = Rc::as_ptr(&link) };
        let (due, stack) = (Due::NEVER, imp::Stack::new(stack));
        Box::new(Fiber { parked, due, waits: false, around: None, link, deep: false, runs: 0, stack })
    }

    /// Refuses a run whose code takes so many bytes, if its stack does not suffice.
    pub(crate) fn check(&mut self, need: &StackNeed, code: u64) -> Result<(), RunError> {
        let left = self.stack.bounds().1 as u64;
        let needed = need.with_reserve(code);
        self.deep = needed > KEPT_STACK as u64;
        if left < needed { Err(RunError::Stack { needed, left }) } else { Ok(()) }
    }

    /// Describes the run that is about to begin to threads that end runs: its program and limits, the program or hook
    /// by which it is interrupted, and whether the time that it waits counts against its deadline.
    pub(crate) fn announce(&mut self, fibers: &Fibers, run: Watched, named: u64, waits_count: bool) {
        let level = &self.parked.level;
        self.parked.set_named(named);
        level.watch().begin_apart(level.word(), run);
        self.due = Due::new(run.deadline, waits_count);
        fibers.deadlines.begin(&self.due, &self.parked);
    }

    /// Notes the runs inside of which this thread is about to poll the announced run, so that the end of each of them
    /// ends this one. While the result lives, runs that begin are inside this run. `busy`: the innermost run of the
    /// thread's slot, if the thread is in a guard; `levels`: of the slots.
    pub(crate) fn polls(&mut self, fibers: &Fibers, busy: Option<Busy>, levels: &[CachePadded<Level>]) -> Polling {
        let number = core::ptr::from_ref(fibers).addr();
        let outer = polled(number).and_then(|outer| Some((outer.busy, self.outside(fibers, outer)?)));
        // The run of the slot, if it is inside the other.
        let slot = match &outer {
            Some((outside, _)) => busy.filter(|_| busy != *outside),
            None => busy,
        };
        if slot.is_some() || outer.is_some() || self.around.is_some() {
            let around = Around::new(slot, outer.map(|(_, fiber)| fiber), levels);
            fibers.nests.set(&mut self.around, &self.parked, around, levels);
        }
        let parked = Arc::as_ptr(&self.parked).addr();
        Polling::begin(Current { fibers: number, parked, word: self.parked.word(), busy })
    }

    /// Returns the run that this thread polls, and its word, if it is in progress.
    fn outside(&self, fibers: &Fibers, outer: Current) -> Option<(Arc<Parked>, u64)> {
        let is_it = |run: &Arc<Parked>| Arc::as_ptr(run).addr() == outer.parked;
        let known = self.around.as_ref().and_then(|around| around.fiber()).map(|(run, _)| run).filter(|run| is_it(run));
        // The list is locked only where the run was polled elsewhere before.
        let run = known.cloned().or_else(|| fibers.all().get(&outer.parked).cloned());
        run.filter(|run| run.word() == outer.word).map(|run| (run, outer.word))
    }

    /// Begins a run in this slot.
    ///
    /// # Safety
    /// The fiber must be idle, and the slot this thread's, by a guard. `work` and what it refers to, the host, the
    /// parts, the configuration and the memory from which the run's is reserved must stay valid until the run is over,
    /// and be fit to go to another thread where it waits. [`Fiber::announce`] must have announced it.
    pub(crate) unsafe fn start<F>(
        &mut self,
        (config, slot, memory): (&RunConfig, u32, &Arc<Memory>),
        (host, parts): (*mut (), Parts),
        budget: Budget,
        cx: &mut Context<'_>,
        work: F,
    ) -> Step
    where
        F: FnOnce(*mut Run) -> Outcome,
    {
        let run = self.parked.level.run();
        // SAFETY: the run is idle but for the word, and this thread's, as the fiber is.
        unsafe { Run::set(run, config, host, parts, budget.slice.min(budget.whole)) };
        // SAFETY: the run is idle but for the word, and this thread's, as the fiber is.
        unsafe { (*run).slice = budget.slice };
        // SAFETY: the run is idle but for the word, and this thread's, as the fiber is.
        unsafe { (*run).left = budget.whole.saturating_sub(budget.slice).max(0) };
        // SAFETY: the run is idle but for the word, and this thread's, as the fiber is.
        unsafe { (*run).ctx.slot = slot };
        self.link.set_memory(memory);
        let work = move || work(run);
        let link = Rc::as_ptr(&self.link);
        // SAFETY: the caller's contract; the link is there as long as the fiber, which is over before it is dropped.
        unsafe { self.stack.begin(link, work) };
        // SAFETY: the caller's contract.
        unsafe { self.resume(cx, Resume::Go) }
    }

    /// Goes on with the run, whose call is ready, in this slot.
    ///
    /// # Safety
    /// The run must wait, and the slot be this thread's, by a guard.
    pub(crate) unsafe fn go_on(&mut self, fibers: &Fibers, slot: u32, clock: &Clock, cx: &mut Context<'_>) -> Step {
        fibers.deadlines.go_on(&mut self.due, &self.parked, clock);
        if !planted!(SlotOfBefore) {
            // SAFETY: the run waits, and the owner of its fiber has exclusive access to it.
            unsafe { (*self.parked.level.run()).ctx.slot = slot };
        }
        // SAFETY: the caller's contract.
        unsafe { self.resume(cx, Resume::Go) }
    }

    /// Keeps the waker of the poller of a run that waits, for threads that end runs. Returns whether one has ended it.
    pub(crate) fn park(&mut self, fibers: &Fibers, waker: &Waker) -> bool {
        fibers.deadlines.wait(&mut self.due, &self.parked);
        let first = !core::mem::replace(&mut self.waits, true);
        self.parked.park(waker, first, || fibers.domain.is_forked())
    }

    /// Returns the tick at which the run is to end, later than at its beginning if its waits have moved it.
    pub(crate) fn deadline(&self) -> u64 {
        self.due.tick()
    }

    /// Takes the payload of a panic that the poller is to resume.
    pub(crate) fn thrown(&self) -> Option<Box<dyn Any + Send>> {
        self.link.thrown()
    }

    /// Returns whether another thread has ended the run.
    pub(crate) fn is_asked(&self) -> bool {
        self.parked.is_asked()
    }

    /// Gives the run up; it needs no guard, since a run that waits holds nothing. Its poller is thrown `panic`, if
    /// there is one.
    ///
    /// # Safety
    /// The run must wait.
    pub(crate) unsafe fn cancel(&mut self, cx: &mut Context<'_>, panic: Option<Box<dyn Any + Send>>) -> Step {
        if let Some(panic) = panic {
            self.link.throw(panic);
        }
        // SAFETY: the caller's contract.
        unsafe { self.resume(cx, Resume::Cancel) }
    }

    /// Switches to the run's stack, and back.
    ///
    /// # Safety
    /// As for [`Fiber::go_on`] and [`Fiber::cancel`]; or the run is about to begin.
    unsafe fn resume(&mut self, cx: &mut Context<'_>, with: Resume) -> Step {
        self.link.attend(Some(cx));
        let (low, len) = self.stack.bounds();
        let outer = machine_stack::enter(low as u64, len as u64);
        // SAFETY: the caller's contract.
        let switched = unsafe { self.stack.resume(with) };
        machine_stack::leave(outer);
        self.link.attend(None);
        match switched {
            Ok(Some(call)) => Step::Waits(call),
            Ok(None) => Step::GivesWay,
            Err(Ok(result)) => Step::Over(result, self.link.thrown()),
            // A panic outside of the host's functions, for example in a listener that is told of the run's end.
            Err(Err(panic)) => {
                let result = Err(Box::new(RunError::Internal("a run ended by a panic".into())));
                self.link.throw(panic);
                Step::Over(result, self.link.thrown())
            }
        }
    }

    /// The run is over: the fiber may serve another. Returns the waker of its last poller, whose drop is code of
    /// others. `slot`: this thread's, by a guard.
    pub(crate) fn finish(mut self: Box<Self>, fibers: &Fibers, slot: Option<u32>) -> Option<Waker> {
        // Before the word is 0: see `parked`.
        if !planted!(DeadlineListed) {
            fibers.deadlines.end(&self.due, &self.parked);
        }
        self.due = Due::NEVER;
        fibers.nests.end(&mut self.around, &self.parked);
        // As in `begin::run_code`: from here on nobody interrupts it.
        self.parked.level.word().store(0, Ordering::Relaxed);
        let waker = if core::mem::take(&mut self.waits) { self.parked.take_waker() } else { None };
        self.runs += 1;
        let trims = self.deep || self.runs == RUNS_TO_TRIM;
        if trims {
            self.runs = 0;
            self.stack.trim(KEPT_STACK);
        }
        fibers.keep(self, slot, trims);
        waker
    }
}

/// The fibers of an engine.
///
/// In a forked child no run begins or goes on, and another thread of the parent may have had a lock at the fork: there
/// no lock is taken.
pub(crate) struct Fibers {
    domain: Arc<Domain>,
    stacks: Arc<Stacks>,
    /// Upper bound on the number of fibers, and so on that of runs.
    most: usize,
    /// Number of fibers, including idle ones.
    count: AtomicUsize,
    /// By slot: an idle fiber of the thread that has the slot, or null. Other threads take it where no more may be
    /// made.
    spare: Vec<CachePadded<AtomicPtr<Fiber>>>,
    idle: Lock<Idle>,
    /// The state of each, by its address: for threads that interrupt runs.
    all: Lock<BTreeMap<usize, Arc<Parked>>>,
    deadlines: Deadlines,
    /// The runs that are inside others.
    nests: Nests,
}

impl fmt::Debug for Fibers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fibers").field("most", &self.most).field("count", &self.count).finish_non_exhaustive()
    }
}

impl Fibers {
    /// Makes room for `most` fibers, with stacks of `stack` bytes. `None` if there is no memory.
    pub(crate) fn new(domain: &Arc<Domain>, most: usize, stack: u64) -> Option<Fibers> {
        let mut spare = Vec::new();
        spare.try_reserve_exact(domain.max_slots() as usize).ok()?;
        spare.extend((0..domain.max_slots()).map(|_| CachePadded::default()));
        Some(Fibers {
            domain: Arc::clone(domain),
            stacks: Stacks::new(stack),
            most,
            count: AtomicUsize::new(0),
            spare,
            idle: Lock::new(Idle::new(Instant::now())),
            all: Lock::default(),
            deadlines: Deadlines::default(),
            nests: Nests::default(),
        })
    }

    /// Does this with each lock in turn, and the name of the lock.
    #[cfg(test)]
    pub(crate) fn with_each_lock(&self, mut work: impl FnMut(&str)) {
        let run = self.all().values().next().map(Arc::clone);
        run.iter().for_each(|run| run.locked(|| work("waker")));
        self.stacks.locked(|| work("stacks"));
        self.deadlines.locked(|| work("deadlines"));
        self.nests.locked(|| work("nests"));
        let idle = self.idle();
        work("idle");
        drop(idle);
        let _all = self.all();
        work("all");
    }

    fn idle(&self) -> Locked<'_, Idle> {
        self.idle.lock()
    }

    fn all(&self) -> Locked<'_, BTreeMap<usize, Arc<Parked>>> {
        self.all.lock()
    }

    /// Lets `ask` mark the runs that are to end, notes those for which it returns a word, the one before, and wakes the
    /// pollers of marked runs that wait.
    pub(super) fn interrupt(&self, marked: &mut Marked<'_>, ask: impl Fn(&Parked) -> Option<u64>) {
        let mut wakers = Vec::new();
        self.each(|parked| {
            if let Some(word) = ask(parked) {
                marked.add(Place::of(parked), word, INTERRUPTED);
            }
            if parked.is_asked() {
                wakers.extend(parked.take_waker());
            }
        });
        wake(wakers);
    }

    /// Ends the runs whose deadline is at this tick or before it, and notes them.
    pub(super) fn end_late(&self, now: u64, marked: &mut Marked<'_>) {
        let add = |run: &Parked, word| marked.add(Place::of(run), word, INTERRUPTED | LATE);
        wake(self.deadlines.end_late(now, add));
    }

    /// Returns a list for the runs that a thread asks to end.
    pub(super) fn marked(&self) -> Marked<'_> {
        Marked::of(&self.nests)
    }

    /// Ends the runs inside of runs that were asked to end.
    pub(super) fn pass_on(&self, marked: Marked<'_>) {
        if !self.domain.is_forked() {
            marked.pass_on();
        }
    }

    /// Does this with the state of each.
    pub(super) fn each(&self, look: impl FnMut(&Parked)) {
        // Where nobody sleeps, no lock is taken. Acquire pairs with the release in `take`: a run that began before this
        // is listed.
        if self.count.load(Ordering::Acquire) != 0 && !self.domain.is_forked() {
            self.all().values().map(|parked| &**parked).for_each(look);
        }
    }

    /// How often runs are in lists of deadlines and of nested runs: each is referred to by its fiber and by the list of
    /// all runs besides.
    #[cfg(feature = "oracle")]
    pub(crate) fn listed(&self) -> usize {
        self.all().values().map(|parked| Arc::strong_count(parked) - 2).sum()
    }

    /// How many runs are on one, about; in a forked child none.
    pub(crate) fn in_use(&self) -> usize {
        if self.domain.is_forked() {
            return 0;
        }
        // Relaxed: a statistic, as are the spare ones, which threads take and keep meanwhile.
        let spare = self.spare.iter().filter(|spare| !spare.load(Ordering::Relaxed).is_null()).count();
        // A handler may have interrupted its thread under the lock.
        let idle = if critical::interrupted() { self.idle.try_lock() } else { Some(self.idle()) };
        let unused = spare + idle.map_or(0, |idle| idle.fibers.len());
        self.count.load(Ordering::Relaxed).saturating_sub(unused)
    }

    /// The spare fiber of a slot.
    fn spare(&self, slot: u32) -> Option<&AtomicPtr<Fiber>> {
        self.spare.get(slot as usize).map(|spare| &**spare)
    }

    /// A fiber that no run is on. `slot`: this thread's, by a guard.
    pub(crate) fn take(&self, slot: u32) -> Result<Box<Fiber>, Box<RunError>> {
        let _critical = Critical::enter();
        if let Some(fiber) = self.spare(slot).and_then(taken) {
            return Ok(fiber);
        }
        if let Some(idle) = self.idle().pop() {
            return Ok(idle);
        }
        // No more fibers than runs may be: of those, another slot may have a spare one. A run that ends meanwhile,
        // whose slot has one already, waits for the lock.
        let of_others = || {
            let mut idle = self.idle();
            idle.pop().or_else(|| self.spare.iter().find_map(|spare| taken(spare)))
        };
        let one_more = |count: usize| (count < self.most).then_some(count + 1);
        // Release: see `each`.
        if self.count.fetch_update(Ordering::Release, Ordering::Relaxed, one_more).is_err() {
            return of_others().ok_or_else(|| Box::new(RunError::TooManyAsleep { limit: self.most }));
        }
        let fiber = match self.stacks.take() {
            Ok(stack) => Fiber::new(stack),
            Err(source) => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                return of_others().ok_or_else(|| Box::new(RunError::NoStack { source }));
            }
        };
        self.all().insert(Arc::as_ptr(&fiber.parked).addr(), Arc::clone(&fiber.parked));
        Ok(fiber)
    }

    /// Keeps an idle fiber for later runs. `looks`: also looks for idle fibers that no run has needed.
    fn keep(&self, fiber: Box<Fiber>, slot: Option<u32>, looks: bool) {
        let _critical = Critical::enter();
        let spare = slot.and_then(|slot| self.spare(slot)).filter(|spare| spare.load(Ordering::Relaxed).is_null());
        let surplus = match spare {
            Some(spare) => {
                // Release: see `taken`. Only the slot's thread stores one.
                spare.store(Box::into_raw(fiber), Ordering::Release);
                if looks { self.surplus(|idle| idle.unused(Instant::now)) } else { Vec::new() }
            }
            None => self.surplus(|idle| idle.push(fiber, Instant::now)),
        };
        self.forget(surplus);
    }

    /// Takes fibers from the idle ones, to give their memory back. From here on they do not count: a run that begins
    /// meanwhile is not refused.
    fn surplus(&self, look: impl FnOnce(&mut Idle) -> Boxes) -> Boxes {
        let mut idle = self.idle();
        let surplus = look(&mut idle);
        // Relaxed: a run in progress counts, so `each` sees another number than 0.
        self.count.fetch_sub(surplus.len(), Ordering::Relaxed);
        surplus
    }

    /// Gives the memory of all idle fibers back but for the spare ones of slots.
    pub(crate) fn trim(&self) {
        if self.count.load(Ordering::Relaxed) != 0 && !self.domain.is_forked() && !critical::interrupted() {
            let _critical = Critical::enter();
            let all = self.surplus(|idle| idle.oldest(idle.fibers.len()));
            self.forget(all);
        }
    }

    /// Gives the memory of these fibers back.
    fn forget(&self, fibers: Boxes) {
        if fibers.is_empty() {
            return;
        }
        let mut all = self.all();
        for fiber in &fibers {
            all.remove(&Arc::as_ptr(&fiber.parked).addr());
        }
        drop(all);
        self.stacks.give_back(fibers.into_iter().map(|fiber| fiber.stack.into_inner()).collect());
    }
}

/// Takes the spare fiber of a slot.
#[inline]
fn taken(spare: &AtomicPtr<Fiber>) -> Option<Box<Fiber>> {
    // Relaxed: most slots that others look at have none.
    if spare.load(Ordering::Relaxed).is_null() {
        return None;
    }
    // Acquire pairs with the release in `keep`.
    let fiber = spare.swap(null_mut(), Ordering::Acquire);
    // SAFETY: null, or stored by `keep` and taken once, by this exchange.
    (!fiber.is_null()).then(|| unsafe { Box::from_raw(fiber) })
}

impl Drop for Fibers {
    fn drop(&mut self) {
        let mut idle = core::mem::take(&mut self.idle().fibers);
        idle.extend(self.spare.iter().filter_map(|spare| taken(spare)));
        self.forget(idle);
    }
}

/// Idle fibers, the one that was used last at the end.
///
/// Problem: a run takes a fiber in nanoseconds that was kept, and in microseconds one that is made; but a thousand
/// stacks that nobody needs are megabytes. Approach: the working set of a depot (Bonwick and Adams, "Magazines and
/// Vmem", 2001): fibers that were idle throughout a period are given back at its end.
struct Idle {
    fibers: Boxes,
    /// The lowest number of fibers since the period began.
    lowest: usize,
    since: Instant,
    /// How many fibers were added since the clock was read.
    added: u32,
}

/// Boxes, since a fiber is moved with the future of its run, as one word.
type Boxes = Vec<Box<Fiber>>;

/// Upper bound on the idle fibers of an engine, beside one for each slot. With them at most [`KEPT_STACK`] bytes of
/// pages each are kept.
const MAX_IDLE: usize = 16 * 1024;
/// How many are given back together where there are more.
const SURPLUS: usize = 256;
/// How many stay however long they are idle.
const FEW: usize = 64;
const PERIOD: Duration = Duration::from_secs(10);
/// The clock is read once for so many fibers that are added.
const ADDED: u32 = 64;

impl Idle {
    fn new(now: Instant) -> Idle {
        Idle { fibers: Vec::new(), lowest: 0, since: now, added: 0 }
    }

    fn pop(&mut self) -> Option<Box<Fiber>> {
        let fiber = self.fibers.pop();
        self.lowest = self.lowest.min(self.fibers.len());
        fiber
    }

    /// Adds a fiber. Returns surplus fibers, whose memory is to be given back.
    fn push(&mut self, fiber: Box<Fiber>, now: impl FnOnce() -> Instant) -> Boxes {
        self.fibers.push(fiber);
        self.added += 1;
        if self.fibers.len() >= MAX_IDLE + SURPLUS {
            return self.oldest(SURPLUS);
        }
        if self.added < ADDED { Vec::new() } else { self.unused(now) }
    }

    /// Returns the fibers that nobody has used in a period that is over.
    fn unused(&mut self, now: impl FnOnce() -> Instant) -> Boxes {
        self.added = 0;
        if self.fibers.len() <= FEW {
            return Vec::new();
        }
        let now = now();
        if now.saturating_duration_since(self.since) < PERIOD {
            return Vec::new();
        }
        self.since = now;
        self.oldest(self.lowest.saturating_sub(FEW))
    }

    /// Removes so many, which nobody has used for longest, and begins a period.
    fn oldest(&mut self, count: usize) -> Boxes {
        let oldest = self.fibers.drain(..count.min(self.fibers.len())).collect();
        self.lowest = self.fibers.len();
        oldest
    }
}

/// Switching, by corosensei.
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    use super::{Awaited, Ended, Link, Outcome, Resume, RunStack};
    use crate::abi::critical;
    use crate::abi::shadow::Shadow;
    use crate::error::RunError;
    use corosensei::stack::StackPointer;
    use corosensei::{Coroutine, CoroutineResult, Yielder};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type Routine = Coroutine<Resume, Awaited, Ended, Usable>;

    /// A stack as corosensei has it. Its owner outlives the coroutine.
    #[derive(Debug)]
    struct Usable {
        low: usize,
        base: StackPointer,
    }

    // SAFETY: so many bytes of a stack that nobody else uses, of more than a page (the reserve for host functions
    // alone), with a guard page below; both ends are at multiples of a page.
    unsafe impl corosensei::stack::Stack for Usable {
        fn base(&self) -> StackPointer {
            self.base
        }

        fn limit(&self) -> StackPointer {
            // With its guard page, which is above address 0.
            StackPointer::new(self.low).unwrap_or(StackPointer::MIN)
        }
    }

    /// A stack, and the run that is on it.
    pub(super) struct Stack {
        /// Before the stack: dropped first.
        routine: Option<(Routine, Shadow)>,
        stack: RunStack,
    }

    impl Stack {
        pub(super) fn new(stack: RunStack) -> Stack {
            Stack { routine: None, stack }
        }

        /// Returns the stack. No run is on it.
        pub(super) fn into_inner(self) -> RunStack {
            self.stack
        }

        pub(super) fn bounds(&self) -> (usize, usize) {
            self.stack.bounds()
        }

        /// Gives the pages of an idle stack back, but for so many bytes.
        pub(super) fn trim(&mut self, kept: usize) {
            self.stack.trim(kept);
        }

        /// # Safety
        /// As for [`super::Fiber::start`]; `link` must be valid as long.
        pub(super) unsafe fn begin<F>(&mut self, link: *const Link, work: F)
        where
            F: FnOnce() -> Outcome,
        {
            let (low, len) = self.stack.bounds();
            let Some(base) = StackPointer::new(low + len) else { return };
            let low = self.stack.guard();
            let body = move |back: &Yielder<Resume, Awaited>, _: Resume| {
                // SAFETY: valid until the run is over (contract).
                unsafe { &*link }.set_back(back);
                let ended = catch_unwind(AssertUnwindSafe(work));
                // A panic may come out of code that runs outside of sections.
                critical::inside();
                ended
            };
            // SAFETY: the caller's contract is this function's.
            let routine = unsafe { Coroutine::with_stack_unchecked(Usable { low, base }, body) };
            self.routine = Some((routine, Shadow::new()));
        }

        /// # Safety
        /// As for [`super::Fiber::resume`].
        pub(super) unsafe fn resume(&mut self, with: Resume) -> Result<Awaited, Ended> {
            let Some((routine, shadow)) = self.routine.as_mut() else {
                return Err(Ok(Err(Box::new(RunError::Internal("a fiber without a run".into())))));
            };
            match shadow.on(|| routine.resume(with)) {
                CoroutineResult::Yield(awaited) => Ok(awaited),
                CoroutineResult::Return(ended) => {
                    self.routine = None;
                    Err(ended)
                }
            }
        }
    }
}

/// No run has a stack of its own.
#[cfg(not(all(unix, any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    use super::{Awaited, Ended, Link, Outcome, Resume, RunStack};
    use crate::error::RunError;

    pub(super) struct Stack(RunStack);

    impl Stack {
        pub(super) fn new(stack: RunStack) -> Stack {
            Stack(stack)
        }

        pub(super) fn into_inner(self) -> RunStack {
            self.0
        }

        pub(super) fn bounds(&self) -> (usize, usize) {
            self.0.bounds()
        }

        pub(super) fn trim(&mut self, kept: usize) {
            self.0.trim(kept);
        }

        pub(super) unsafe fn begin<F>(&mut self, _: *const Link, _: F)
        where
            F: FnOnce() -> Outcome,
        {
        }

        pub(super) unsafe fn resume(&mut self, _: Resume) -> Result<Awaited, Ended> {
            Err(Ok(Err(Box::new(RunError::Internal("stacks are not switched on this machine".into())))))
        }
    }
}

#[cfg(all(test, unix, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests {
    use super::*;
    use crate::{Config, Engine};

    /// The lowest byte of the stack that the next run gets.
    fn lowest(fibers: &Fibers, slot: Option<u32>) -> *mut u8 {
        let fiber = fibers.take(0).expect("a fiber");
        let (low, _) = fiber.stack.bounds();
        fiber.finish(fibers, slot);
        core::ptr::with_exposed_provenance_mut(low)
    }

    #[test]
    fn an_idle_stack_gives_pages_back_that_no_run_was_expected_to_use() {
        let engine = Engine::new(Config::new()).expect("an engine");
        let fibers = Fibers::new(engine.domain(), 4, 4 * KEPT_STACK as u64).expect("memory");
        let byte = lowest(&fibers, None);
        // SAFETY: a byte of a stack that is idle, and that no other thread takes.
        unsafe { byte.write_volatile(1) };
        for run in 2..RUNS_TO_TRIM {
            // The spare fiber of a slot, too.
            assert_eq!(lowest(&fibers, (run % 2 == 0).then_some(0)), byte);
            // SAFETY: a byte of a stack that is idle, and that no other thread takes.
            assert_eq!(unsafe { byte.read_volatile() }, 1, "run {run}");
        }
        assert_eq!(lowest(&fibers, Some(0)), byte);
        // SAFETY: a byte of a stack that is idle, and that no other thread takes.
        assert_eq!(unsafe { byte.read_volatile() }, 0);
    }

    #[test]
    fn fibers_that_were_idle_for_a_period_are_given_back() {
        let engine = Engine::new(Config::new()).expect("an engine");
        let fibers = Fibers::new(engine.domain(), 1000, 10_000).expect("memory");
        let (begin, mut idle) = (Instant::now(), fibers.idle());
        let unread = || -> Instant { panic!("the clock is read for each {ADDED}th fiber, if there are many") };
        let fiber = || Fiber::new(fibers.stacks.take().expect("a stack"));
        for added in 1..=3 * FEW {
            let given_back = match added % ADDED as usize {
                0 if added > FEW => idle.push(fiber(), || begin),
                _ => idle.push(fiber(), unread),
            };
            assert!(given_back.is_empty());
        }
        assert!(idle.unused(|| begin + PERIOD / 2).is_empty());
        assert!(idle.unused(|| begin + PERIOD).is_empty(), "none was there when the period began");
        // In the next period ten are used.
        let used: Vec<_> = (0..10).map(|_| idle.pop().expect("idle")).collect();
        used.into_iter().for_each(|fiber| assert!(idle.push(fiber, unread).is_empty()));
        assert!(idle.unused(|| begin + PERIOD + PERIOD / 2).is_empty());
        assert_eq!(idle.unused(|| begin + 2 * PERIOD).len(), 2 * FEW - 10);
        assert_eq!(idle.unused(|| begin + 3 * PERIOD).len(), 10);
        assert!(idle.unused(unread).is_empty(), "few stay");
        assert_eq!(idle.fibers.len(), FEW);
    }
}
