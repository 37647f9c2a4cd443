//! [`Domain`] and [`Guard`]: the protocol of [`crate::core`] with the calling thread filled in.
//!
//! Problem: a guard must find its thread's record in a few instructions, for any number of domains, with threads that
//! come and go.
//!
//! Approach: a thread-local cell without a destructor caches (domain, record) of the last domain entered (`section`).
//! A second thread-local with a destructor owns the registrations of all domains and vacates them when the thread
//! ends. Registrations whose guard still exists then are vacated a little later ([`crate::exit`]).
//!
//! Invariants: the cached pointer is a record that this thread's registration list owns, and the cache is cleared
//! before the list drops; domain numbers are never reused. A guard cannot leave its thread (it is neither `Send` nor
//! `Sync`) and borrows its domain, which owns the record too.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::core::Core;
use crate::defer::Queue;
use crate::exit;
use crate::finish::{Finish, caught};
use crate::fork::Generation;
use crate::granted::Granted;
use crate::memory::Memory;
use crate::record::Record;
use crate::registration::Registration;
use crate::section::{self, Section};
use crate::{Barriers, CoreBarrierError, EnterError, Options, WaitError};

/// Running threads, their execution slots and the grace periods between them. See the crate's documentation.
pub struct Domain {
    core: Core,
    deferred: Queue,
    memory: Arc<Memory>,
}

/// The mark of a running thread: objects reachable when the guard was made stay until it is dropped, and
/// [`Guard::slot`] belongs to its thread alone.
///
/// Guards nest and may be dropped in any order; the outermost one's epoch and slot hold for all of them.
#[must_use = "the run ends when the guard is dropped"]
pub struct Guard<'domain> {
    domain: &'domain Domain,
    /// Two words, and no more, are passed and returned in registers: the slot is read from the record.
    record: NonNull<Record>,
    /// The record belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// A [`Guard`] whose end runs no deferred callbacks: for runs, which neither lock nor allocate when they end, and for
/// signal handlers. Made by [`Domain::enter_run`].
#[must_use = "the run ends when the guard is dropped"]
pub struct RunGuard<'domain>(ManuallyDrop<Guard<'domain>>);

/// A grace period: over once every guard that was held at its start is gone.
///
/// Made by [`Domain::start_grace_period`]. Dropping it costs nothing and waits for nothing.
#[derive(Debug, Clone)]
pub struct GracePeriod {
    domain: Arc<Domain>,
    target: u64,
}

/// Proof that every CPU has discarded the instructions it had fetched for this process since [`Domain::core_barrier`]
/// was called.
#[derive(Debug)]
pub struct CoreBarrier(());

/// The registrations of one thread.
#[derive(Default)]
struct Registrations(RefCell<Vec<Registration>>);

impl Drop for Registrations {
    fn drop(&mut self) {
        section::forget();
        let (late, done): (Vec<_>, Vec<_>) = self.0.take().into_iter().partition(|r| r.record.inside());
        done.iter().for_each(|registration| registration.record.vacate());
        if !late.is_empty() {
            exit::hand_over(late);
        }
    }
}

thread_local! {
    static REGISTRATIONS: Registrations = const { Registrations(RefCell::new(Vec::new())) };
}

impl Domain {
    /// Creates a domain. Its guards and grace periods are independent of other domains.
    pub fn new(options: Options) -> Arc<Self> {
        let granted = match options.barriers {
            Barriers::Auto => Granted::ask(),
            Barriers::Fenced => Granted::nothing(),
        };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            // Relaxed: only uniqueness matters.
            core: Core::new(NEXT.fetch_add(1, Ordering::Relaxed), options.max_slots, options.when_full, granted),
            deferred: Queue::default(),
            memory: Memory::new(options.memory_limit),
        })
    }

    /// Begins (or nests) a run of the calling thread.
    ///
    /// Dropping the guard may run callbacks that [`Domain::settle`] could not run while this guard was held. Signal
    /// handlers use [`Domain::enter_run`].
    ///
    /// # Errors
    /// See [`EnterError`]; in the process that made the domain and outside of signal handlers, only the outermost guard
    /// of a thread that has no slot from its last run can fail, or one nested 65,535 deep.
    #[inline]
    pub fn enter(&self) -> Result<Guard<'_>, EnterError> {
        match self.enter_run() {
            // This guard may run callbacks when it ends.
            Ok(guard) => Ok(Guard { ..*ManuallyDrop::new(guard).0 }),
            Err(error) => Err(self.not_entered(error)),
        }
    }

    /// Settles the domain after a failed entry: the thread was inside for a moment and may have been asked to poll.
    #[cold]
    #[inline(never)]
    fn not_entered(&self, error: EnterError) -> EnterError {
        if error != EnterError::Signal && self.core.asked() > 0 {
            self.settle();
        }
        error
    }

    /// Begins (or nests) a run as [`Domain::enter`] does, under a guard whose end runs no deferred callbacks. The
    /// caller has, or borrows, a handle whose drop calls [`Domain::settle`].
    ///
    /// A signal handler may call this too, whatever it interrupted, if its thread made a guard before: a thread's
    /// first guard allocates.
    ///
    /// # Errors
    /// As [`Domain::enter`].
    #[inline]
    pub fn enter_run(&self) -> Result<RunGuard<'_>, EnterError> {
        let record = match self.cached() {
            Some(record) => record,
            None => self.look_up()?,
        };
        // SAFETY: the calling thread's registration list, and this domain, own the record.
        self.core.enter(unsafe { record.as_ref() })?;
        Ok(RunGuard(ManuallyDrop::new(Guard { domain: self, record, _not_send: PhantomData })))
    }

    /// The limit of memory for the maps and tables of this domain, and how much of it is reserved.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The slot of the calling thread's run, if it is inside a guard of this domain.
    #[inline]
    pub fn slot(&self) -> Option<u32> {
        self.own(Record::own_slot).flatten()
    }

    /// Whether the calling thread is inside a guard of this domain.
    #[inline]
    pub fn in_guard(&self) -> bool {
        self.own(Record::inside).unwrap_or(false)
    }

    /// Whether threads other than the calling one have run here, so that a barrier is likely to interrupt one of
    /// them.
    pub fn has_other_threads(&self) -> bool {
        self.core.threads() > u32::from(self.own(|_| ()).is_some())
    }

    /// The exclusive upper bound of slot numbers.
    pub fn max_slots(&self) -> u32 {
        self.core.max_slots()
    }

    /// Whether the calling process is a forked child of the one that made this domain. Neither guards nor grace periods
    /// work there: the parent changes and frees the protected objects, and does not know the child's guards.
    pub fn is_forked(&self) -> bool {
        self.core.forked()
    }

    /// Takes a lock to read the data it guards, poisoned or not. In a forked child, returns `None` if the lock is
    /// held: the thread that held it at the fork may not exist in the child and would never release it.
    pub fn lock_to_read<'m, T>(&self, mutex: &'m Mutex<T>) -> Option<MutexGuard<'m, T>> {
        if !self.is_forked() {
            return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether guards need no fences (`membarrier` was granted).
    pub fn has_asymmetric_barrier(&self) -> bool {
        self.core.granted().expedited()
    }

    /// Begins a grace period, for one atomic addition.
    pub fn start_grace_period(self: &Arc<Self>) -> GracePeriod {
        GracePeriod { domain: Arc::clone(self), target: self.core.start() }
    }

    /// Waits until every guard held now is gone.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn synchronize(&self) -> Result<(), WaitError> {
        self.wait_for(self.core.start())
    }

    /// Whether this thread may wait for grace periods. A barrier may still fail while it waits.
    ///
    /// # Errors
    /// [`WaitError::UnderOwnGuard`], [`WaitError::Forked`].
    pub fn can_wait(&self) -> Result<(), WaitError> {
        if self.is_forked() {
            return Err(WaitError::Forked);
        }
        if self.in_guard() {
            return Err(WaitError::UnderOwnGuard);
        }
        Ok(())
    }

    /// Runs `callback` once every guard held now is gone: in a later call of [`Domain::defer`] or [`Domain::reclaim`]
    /// by a thread outside guards, by a [`Reclaimer`], or when the domain is dropped.
    ///
    /// A callback that owns the domain's `Arc` keeps the domain alive until it has run. In a forked child nothing
    /// queued is ever run or dropped. A panic of an earlier callback is resumed after `callback` was queued.
    pub fn defer(&self, callback: impl FnOnce() + Send + 'static) {
        self.enqueue(callback);
        self.tend();
    }

    /// Queues `callback` as [`Domain::defer`] does, and runs no callback: for callers that hold a lock which
    /// callbacks may take, or that have further steps which a callback's panic must not prevent.
    pub fn enqueue(&self, callback: impl FnOnce() + Send + 'static) {
        // A child runs no deferred callbacks, and a thread that only the parent has may hold the lock of the queue.
        if self.is_forked() {
            return core::mem::forget(callback);
        }
        self.deferred.push(&self.core, Box::new(callback));
    }

    /// Runs deferred callbacks whose grace period is over, if a batch was filled since the last call. Callers of
    /// [`Domain::enqueue`] call this after their last step.
    pub fn tend(&self) {
        if self.deferred.is_due() && !self.in_guard() && !self.is_forked() {
            self.run_ready(&mut Finish::default());
        }
    }

    /// Runs the deferred callbacks whose grace period is over and returns how many it ran: none under the caller's
    /// own guard or in a forked child. Does not wait. The first panic of a callback is resumed after all have run.
    pub fn reclaim(&self) -> usize {
        let mut finish = Finish::default();
        match self.reclaim_once(&mut finish) {
            0 => 0,
            ran => ran + self.run_more(&mut finish),
        }
    }

    fn reclaim_once(&self, finish: &mut Finish) -> usize {
        if self.in_guard() || self.is_forked() || self.deferred.seal(&self.core).is_none() {
            return 0;
        }
        self.deferred.run_ready(&self.core, finish)
    }

    fn run_ready(&self, finish: &mut Finish) -> usize {
        match self.deferred.run_ready(&self.core, finish) {
            0 => 0,
            ran => ran + self.run_more(finish),
        }
    }

    /// Runs the callbacks that callbacks have queued, if readers are asked to poll; otherwise the next caller runs
    /// them.
    fn run_more(&self, finish: &mut Finish) -> usize {
        let mut total = 0;
        while self.core.asked() > 0 {
            match self.reclaim_once(finish) {
                0 => break,
                ran => total += ran,
            }
        }
        total
    }

    /// Runs all deferred callbacks, and callbacks that these defer in turn, as far as no reader blocks their grace
    /// period. The thread that ends the last blocking [`Guard`] runs the rest.
    ///
    /// To be called after a handle is dropped that may be the domain's last user. Deferred callbacks may own the
    /// domain, and the domain owns them, so otherwise no thread might run them. The first panic of a callback is
    /// resumed after all have run.
    #[inline]
    pub fn settle(&self) {
        if self.deferred() > 0 {
            self.settle_some();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_some(&self) {
        if self.is_forked() {
            return;
        }
        let mut finish = Finish::default();
        loop {
            while self.reclaim_once(&mut finish) > 0 {}
            let Some(newest) = self.deferred.seal(&self.core) else {
                // A thread that asks meanwhile has queued a callback before, so this thread sees the queue or the
                // request.
                if self.core.asked() == 0 {
                    return;
                }
                self.core.withdraw();
                continue;
            };
            // A reader may have left before it was asked, so the queue is looked at again. If the barrier fails, the
            // next caller tries again.
            if self.core.asked() >= newest || self.core.ask(newest).is_err() {
                return;
            }
        }
    }

    /// Settles the domain after a reader that was asked to poll has left.
    #[cold]
    #[inline(never)]
    fn left(&self) {
        self.settle();
    }

    /// Waits for the grace period of all callbacks deferred so far and runs them, except callbacks that another thread
    /// is running.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn drain(&self) -> Result<usize, WaitError> {
        self.can_wait()?;
        let Some(target) = self.deferred.seal(&self.core) else { return Ok(0) };
        self.core.wait(target)?;
        let mut finish = Finish::default();
        Ok(self.run_ready(&mut finish))
    }

    /// Number of grace periods started; 0 in a forked child.
    pub fn grace_periods(&self) -> u64 {
        self.core.started()
    }

    /// Number of deferred callbacks that no thread has begun to run.
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Starts a thread that calls [`Domain::reclaim`] every `period` until the result is dropped. A panicking
    /// callback does not end the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn spawn_reclaimer(self: &Arc<Self>, period: Duration) -> std::io::Result<Reclaimer> {
        let (domain, stop) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("quiesce-reclaim".into()).spawn(move || {
            // Relaxed: the join in `Drop` orders everything that matters.
            while !stopped.load(Ordering::Relaxed) {
                caught(|| domain.reclaim());
                std::thread::park_timeout(period);
            }
            caught(|| domain.reclaim());
        })?;
        Ok(Reclaimer { stop, thread: Some(thread), made_in: Generation::current() })
    }

    /// Whether [`Domain::core_barrier`] can work here.
    #[inline]
    pub fn has_core_barrier(&self) -> bool {
        self.core.granted().sync_core()
    }

    /// Makes every CPU discard the instructions it has fetched for this process: `membarrier` with
    /// `PRIVATE_EXPEDITED_SYNC_CORE`. Costs microseconds if other threads are running: call it once per batch of
    /// changes.
    ///
    /// # Errors
    /// [`CoreBarrierError`]: then only [`Domain::advance_code_epoch`] followed by a grace period has that effect.
    pub fn core_barrier(&self) -> Result<CoreBarrier, CoreBarrierError> {
        if !self.has_core_barrier() {
            return Err(CoreBarrierError::Denied);
        }
        if self.is_forked() {
            return Err(CoreBarrierError::Forked);
        }
        self.core.core_barrier().map_err(CoreBarrierError::Failed)?;
        Ok(CoreBarrier(()))
    }

    /// Makes every guard entered from this call on discard its CPU's fetched instructions first, for hosts without a
    /// core barrier. A grace period begun after this call has the effect of a core barrier.
    pub fn advance_code_epoch(&self) {
        self.core.advance_code_epoch();
    }

    fn wait_for(&self, target: u64) -> Result<(), WaitError> {
        self.can_wait()?;
        self.core.wait(target)
    }

    #[inline]
    fn cached(&self) -> Option<NonNull<Record>> {
        section::cached(self.core.id())
    }

    /// Applies `f` to the calling thread's record, if it has one.
    #[inline]
    fn own<R>(&self, f: impl FnOnce(&Record) -> R) -> Option<R> {
        let record = self.cached().or_else(|| self.find().ok().flatten())?;
        // SAFETY: the calling thread's registration list, and this domain, own the record.
        Some(f(unsafe { record.as_ref() }))
    }

    /// Looks up the calling thread's record in its registrations and caches it.
    #[cold]
    fn find(&self) -> Result<Option<NonNull<Record>>, EnterError> {
        if section::interrupted() {
            return Err(EnterError::Signal);
        }
        let mut section = Section::begin();
        let found = REGISTRATIONS.try_with(|list| {
            let list = list.0.borrow();
            list.iter().find(|r| r.domain == self.core.id()).map(|r| NonNull::from(&**r.record))
        });
        let Ok(found) = found else {
            return exit::find(self.core.id()).map(Some).ok_or(EnterError::ThreadExiting);
        };
        if let Some(record) = found {
            section.cache(self.core.id(), record);
        }
        Ok(found)
    }

    #[cold]
    fn look_up(&self) -> Result<NonNull<Record>, EnterError> {
        self.core.check_process()?;
        if let Some(record) = self.find()? {
            return Ok(record);
        }
        let mut section = Section::begin();
        let (domain, desk, generation) = (self.core.id(), Arc::downgrade(self.core.desk()), self.core.generation());
        let registration = Registration { domain, record: self.core.register()?, desk, generation };
        let record = NonNull::from(&**registration.record);
        REGISTRATIONS.with(|list| {
            let mut list = list.0.borrow_mut();
            // Records with no other owner belonged to domains that were dropped.
            list.retain(|r| Arc::strong_count(&r.record) > 1);
            list.push(registration);
        });
        section.cache(self.core.id(), record);
        Ok(record)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.core.forked() { self.deferred.forget_all() } else { self.deferred.run_all() }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("id", &self.core.id())
            .field("max_slots", &self.max_slots())
            .finish_non_exhaustive()
    }
}

impl Guard<'_> {
    /// This run's slot: less than [`Domain::max_slots`], and no other running thread of the domain has it.
    #[inline]
    pub fn slot(&self) -> u32 {
        // SAFETY: the domain, which the guard borrows, owns the record.
        unsafe { self.record.as_ref() }.running_slot()
    }

    /// Returns an error in a child that was forked since the guard was made: the guard protects nothing there. Costs
    /// a comparison of two words.
    ///
    /// # Errors
    /// [`EnterError::Forked`].
    #[inline]
    pub fn check(&self) -> Result<(), EnterError> {
        self.domain.core.check_process()
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the domain, which the guard borrows, owns the record.
        let record = unsafe { self.record.as_ref() };
        let (core, since) = (&self.domain.core, Core::in_the_way_since(record));
        core.leave(record);
        if core.is_asked(since) {
            self.domain.left();
        }
    }
}

impl<'domain> Deref for RunGuard<'domain> {
    type Target = Guard<'domain>;

    #[inline]
    fn deref(&self) -> &Guard<'domain> {
        &self.0
    }
}

impl<'domain> Borrow<Guard<'domain>> for RunGuard<'domain> {
    #[inline]
    fn borrow(&self) -> &Guard<'domain> {
        &self.0
    }
}

impl Drop for RunGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the domain, which the guard borrows, owns the record.
        self.0.domain.core.leave(unsafe { self.0.record.as_ref() });
    }
}

impl fmt::Debug for RunGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("slot", &self.slot()).finish_non_exhaustive()
    }
}

impl GracePeriod {
    /// Whether the period is over. In a forked child, true only if that was known before the fork. A failing barrier
    /// counts as "not yet".
    pub fn is_complete(&self) -> bool {
        self.domain.core.poll(self.target).unwrap_or(false)
    }

    /// Waits until the period is over.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait(&self) -> Result<(), WaitError> {
        self.domain.wait_for(self.target)
    }
}

/// A handle of a domain that settles it when dropped ([`Domain::settle`]): the last field of a type that queues drops
/// and may be the domain's last user.
#[derive(Debug, Clone)]
pub struct Settles(pub Arc<Domain>);

impl Deref for Settles {
    type Target = Arc<Domain>;

    #[inline]
    fn deref(&self) -> &Arc<Domain> {
        &self.0
    }
}

impl Drop for Settles {
    #[inline]
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// A thread that runs deferred callbacks; see [`Domain::spawn_reclaimer`]. Dropping it stops and joins the thread,
/// unless that is the calling one.
#[derive(Debug)]
pub struct Reclaimer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    made_in: Generation,
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        // Relaxed: see the thread's loop.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A forked child does not have the thread, and a callback that drops this value may run in that thread:
            // neither can wait for the thread's end.
            if !self.made_in.is_current() || thread.thread().id() == std::thread::current().id() {
                return;
            }
            thread.thread().unpark();
            // The thread catches the panics of callbacks, and a drop must not panic.
            let _ = thread.join();
        }
    }
}
