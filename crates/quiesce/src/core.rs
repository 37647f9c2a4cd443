//! The protocol itself, on explicit records: which thread is running, in which slot, since which epoch.
//!
//! Problem: a reader must announce itself in about a nanosecond (no fence, no read-modify-write), yet a writer must be
//! able to tell that no reader is left from before, and a slot must never belong to two running threads although idle
//! threads keep theirs.
//!
//! Approach: both questions are the same store/load race, and both are decided by an asymmetric barrier. A reader
//! *stores* its [`Record::state`], then *loads* (its slot, and whatever the guard protects). A writer *stores* (unlinks
//! an object; or takes the slot away), executes the heavy barrier, then *loads* the state. Of the two loads at least
//! one sees the other side's store.
//!
//! - **Grace periods** compare epochs. A reader's state holds the epoch it read when it entered. [`Core::start`]
//!   advances the epoch; the period is over when every record is idle or shows the new epoch. Epochs are 48 bits wide
//!   and never wrap, so one phase suffices (kernel and liburcu need two because their counter is one bit), and a reader
//!   that was delayed between loading the epoch and storing it merely looks older than it is.
//! - **Slots** are sticky: [`Record::slot`] stays set between runs. When all are taken, the thread that needs one
//!   revokes the slots of all records that look idle, executes one heavy barrier, and gives back the slots whose owner
//!   turned out to run. An owner that finds its slot gone takes the lock, under which the answer is final.
//! - **Sleeping**: a waiting thread sets [`Record::attention`] on the records it waits for, executes the barrier, looks
//!   again, sleeps. An exit stores its state, then loads `attention`: again one of the two sees the other. Only awaited
//!   records pay for a wake.
//!
//! Invariants: `state` and `running_slot` are written by their own thread only (its signal handlers included). `slot`
//! is written under the registry lock only. A slot is in exactly one place: `free`, one record, or not handed out yet.
//! The lock is never held while a reader is waited for, so a stalled reader delays frees and blocks nobody.
//!
//! A signal handler's guard nests in the thread's guard, also in one that the thread is just entering: its slot is then
//! the record's slot, which no thread takes away from a record whose state is inside ([`Core::nest`]). A handler that
//! cannot nest gets no guard (`section`).
//!
//! In a forked child [`Wiped`] is all zero, which no epoch is: every entry is refused ([`crate::EnterError::Forked`]).
//!
//! Fenced domains (no `membarrier`) replace both barrier halves by `fence(SeqCst)`.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use crate::granted::{self, Errno, Granted};
use crate::record::{NO_SLOT, Record};
use crate::sync::{Arc, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, fence, light_barrier};
use crate::{EnterError, WaitError, WhenFull};
#[cfg(not(loom))]
use crate::{fork, section::Section};

/// One epoch step in [`Record::state`]; the bits below count nested guards.
const EPOCH: u64 = 1 << 16;
const DEPTH: u64 = EPOCH - 1;
/// The epoch that the first call of [`Core::start`] in a domain returns.
#[cfg(all(test, loom))]
pub(crate) const FIRST_PERIOD: u64 = 2 * EPOCH;
/// Everything that changes rarely, under one lock.
#[derive(Debug, Default)]
struct Registry {
    records: Vec<Arc<CachePadded<Record>>>,
    /// Slots that no record holds.
    free: Vec<u32>,
    /// Slots from this number on were never given out.
    next_slot: u32,
    /// Tickets of the threads that wait for a slot, first come first served.
    queue: VecDeque<u64>,
    next_ticket: u64,
}

/// The registry, and the condition variable on which threads sleep until it changes.
#[derive(Debug)]
pub(crate) struct Desk {
    registry: Mutex<Registry>,
    /// Signalled when a record with `attention` exits and when the queue for slots moves.
    changed: Condvar,
}

impl Desk {
    /// Locks the registry. Code under this lock does not panic, so a poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Ends the run of a thread that has ended, and makes its record available to the next thread that registers. May
    /// be called only after the thread's last thread-local destructor: until then such a destructor may own the
    /// guard.
    pub(crate) fn abandon(&self, record: &Record) {
        let registry = self.lock();
        // Release, pairs with `Record::idle` as in `Core::leave`.
        record.state.store(0, Ordering::Release);
        record.attention.store(false, Ordering::Relaxed);
        record.vacate();
        // A thread that waits for this record holds the lock from its look at the state until it sleeps, so the
        // wake-up reaches it.
        self.changed.notify_all();
        drop(registry);
    }
}

/// Stands in for the signal section under loom, which models no signals.
#[cfg(loom)]
struct Section;

#[cfg(loom)]
impl Section {
    fn begin() -> Section {
        Section
    }
}

#[cfg(not(loom))]
type Line = fork::Line<Wiped>;
#[cfg(loom)]
type Line = Box<Wiped>;

/// Words that are zero in a forked child.
#[derive(Debug)]
struct Wiped {
    /// The current epoch with a depth of 1 in its low bits: the state that an outermost guard stores. 0 only in a
    /// forked child.
    epoch: AtomicU64,
    /// Not 0, except in a forked child and in a process that cannot wipe the line on fork.
    live: AtomicU64,
}

#[cfg(not(loom))]
// SAFETY: atomics, of which 0 is a value.
unsafe impl fork::Wipeable for Wiped {}

/// The words that readers load on every entry.
#[derive(Debug)]
struct Hot {
    wiped: Line,
    /// Advanced when code changed and no core barrier is available.
    code_epoch: AtomicU64,
    /// Whether guards must execute a fence, compare `code_epoch` or ask which process this is, because membarrier or
    /// wiped pages are missing.
    careful: bool,
    /// The domain's number. It lies on this line because every entry compares it.
    id: u64,
}

/// Raises `word` to `to` unless it is that high already. Release on success: the accesses of this thread happen
/// before those of a thread that loads the raised word; if the word was high enough, the thread that raised it did
/// so. Uses no `fetch_max`, which ThreadSanitizer does not see: the accesses of readers would not seem to happen
/// before the end of their grace period.
fn raise(word: &AtomicU64, to: u64) {
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now < to).then_some(to));
}

/// The fence of domains without `membarrier`, kept out of line.
#[cold]
#[inline(never)]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// A domain without its thread-local part.
#[derive(Debug)]
pub(crate) struct Core {
    hot: CachePadded<Hot>,
    /// Whether guards must ask if they run in a forked child, because the epoch cannot be wiped there.
    asks: bool,
    granted: Granted,
    max_slots: u32,
    when_full: WhenFull,
    /// Number of records.
    threads: AtomicU32,
    /// The newest epoch that a heavy barrier has followed.
    ordered: AtomicU64,
    /// The newest epoch whose grace period is known to be over.
    completed: AtomicU64,
    /// The newest grace period that the readers blocking it are asked to poll when they leave; 0 if there is none.
    asked: AtomicU64,
    desk: Arc<Desk>,
    #[cfg(not(loom))]
    generation: crate::fork::Generation,
}

impl Core {
    pub(crate) fn new(id: u64, max_slots: u32, when_full: WhenFull, granted: Granted) -> Self {
        let wiped = Line::new(Wiped { epoch: AtomicU64::new(EPOCH + 1), live: AtomicU64::new(0) });
        #[cfg(not(loom))]
        let asks = !wiped.is_wiped();
        #[cfg(loom)]
        let asks = false;
        // Relaxed: no other thread has this object yet.
        wiped.live.store(u64::from(!asks), Ordering::Relaxed);
        let careful = !granted.expedited() || !granted.sync_core() || asks;
        Self {
            hot: CachePadded::new(Hot { wiped, code_epoch: AtomicU64::new(0), careful, id }),
            asks,
            granted,
            max_slots: max_slots.clamp(1, crate::MAX_SLOTS),
            when_full,
            threads: AtomicU32::new(0),
            ordered: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            desk: Arc::new(Desk { registry: Mutex::new(Registry::default()), changed: Condvar::new() }),
            #[cfg(not(loom))]
            generation: crate::fork::Generation::current(),
        }
    }

    /// The domain number given to [`Core::new`].
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.hot.id
    }

    #[inline]
    fn epoch(&self) -> &AtomicU64 {
        &self.hot.wiped.epoch
    }

    /// Returns an error in a forked child.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), EnterError> {
        // Relaxed: the word changes only by a fork.
        if self.hot.wiped.live.load(Ordering::Relaxed) == 0 { self.check_process_slowly() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_process_slowly(&self) -> Result<(), EnterError> {
        if self.forked() { Err(EnterError::Forked) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn granted(&self) -> &Granted {
        &self.granted
    }

    pub(crate) fn max_slots(&self) -> u32 {
        self.max_slots
    }

    /// The process generation in which the domain was made.
    #[cfg(not(loom))]
    pub(crate) fn generation(&self) -> crate::fork::Generation {
        self.generation
    }

    pub(crate) fn forked(&self) -> bool {
        #[cfg(not(loom))]
        return !self.generation.is_current();
        #[cfg(loom)]
        false
    }

    /// Returns a record for the calling thread: a vacant one or a new one.
    pub(crate) fn register(&self) -> Result<Arc<CachePadded<Record>>, EnterError> {
        let mut registry = self.lock();
        for record in &registry.records {
            // Acquire: see `Record::vacate`.
            if record.vacant.load(Ordering::Acquire) {
                record.vacant.store(false, Ordering::Relaxed);
                // The instructions that the previous thread's CPU discarded are not those of this thread's CPU.
                record.code_seen.store(u64::MAX, Ordering::Relaxed);
                return Ok(Arc::clone(record));
            }
        }
        let record = Arc::new(CachePadded::new(Record::new()));
        registry.records.push(Arc::clone(&record));
        // Relaxed: an estimate.
        self.threads.store(u32::try_from(registry.records.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        Ok(record)
    }

    /// The largest number of threads that were registered at one time.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// Enters a guard on `record`, which must belong to the calling thread, and sets [`Record::running_slot`].
    #[inline]
    pub(crate) fn enter(&self, record: &Record) -> Result<(), EnterError> {
        let state = record.state.load(Ordering::Relaxed);
        if state != 0 {
            return self.nest(record, state);
        }
        // Acquire, pairs with the fetch_add in `start`: a reader that shows the new epoch sees everything unlinked
        // before it.
        let epoch = self.epoch().load(Ordering::Acquire);
        if epoch == 0 {
            return Err(EnterError::Forked);
        }
        record.state.store(epoch, Ordering::Relaxed);
        if self.hot.careful {
            self.enter_carefully(record).inspect_err(|_| record.state.store(0, Ordering::Relaxed))?;
        } else {
            // Pairs with the heavy barrier in `poll` and `take_slot`: see the top of the file.
            light_barrier();
        }
        let slot = record.slot.load(Ordering::Relaxed);
        if slot == NO_SLOT {
            return self.lease(record);
        }
        record.running_slot.store(slot, Ordering::Relaxed);
        Ok(())
    }

    /// Enters a guard on a record whose state is `state`, not 0: the thread is inside a guard already, or this is a
    /// signal handler that interrupted [`Core::enter`] after it stored the state and before anything else.
    #[cold]
    #[inline(never)]
    fn nest(&self, record: &Record, state: u64) -> Result<(), EnterError> {
        if state & DEPTH == DEPTH {
            return Err(EnterError::TooDeep);
        }
        self.check_process()?;
        if self.hot.careful {
            self.enter_carefully(record)?;
        } else {
            light_barrier();
        }
        // The state was stored before, here or in the interrupted entry, so this slot stays the record's, as in
        // `enter`. The interrupted entry finds this slot, or none, and then steps outside after the handler has left.
        let mut slot = record.slot.load(Ordering::Relaxed);
        if slot == NO_SLOT {
            // The slot is revoked for a moment, or none was taken yet. The lock decides which. This thread does not
            // hold the lock, or it would be in a section.
            let _section = Section::begin();
            let _registry = self.lock();
            slot = record.slot.load(Ordering::Relaxed);
        }
        if slot == NO_SLOT {
            return Err(EnterError::Signal);
        }
        record.running_slot.store(slot, Ordering::Relaxed);
        record.state.store(state + 1, Ordering::Relaxed);
        Ok(())
    }

    /// The entry of domains without asymmetric barriers: executes its own fence.
    #[cold]
    #[inline(never)]
    fn enter_carefully(&self, record: &Record) -> Result<(), EnterError> {
        if self.asks {
            self.check_process_slowly()?;
        }
        // Pairs with the fence in `Granted::heavy_barrier`.
        fence(Ordering::SeqCst);
        // Acquire, pairs with the fetch_add in `advance_code_epoch`: a reader that sees the new code epoch sees the
        // bytes of the new code.
        let code_epoch = self.hot.code_epoch.load(Ordering::Acquire);
        if code_epoch != record.code_seen.load(Ordering::Relaxed) {
            granted::instruction_barrier();
            record.code_seen.store(code_epoch, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Leaves one guard of `record`'s thread, which must be the caller.
    #[inline]
    pub(crate) fn leave(&self, record: &Record) {
        let state = record.state.load(Ordering::Relaxed);
        if state & DEPTH != 1 {
            return Self::unnest(record, state);
        }
        // Release, pairs with `Record::idle`.
        record.state.store(0, Ordering::Release);
        // Pairs with the heavy barrier between setting `attention` and looking at `state` again, in `wait` and `lease`.
        if self.hot.careful {
            full_fence();
        } else {
            light_barrier();
        }
        if record.attention.load(Ordering::Relaxed) {
            self.wake(record);
        }
    }

    /// The exit from an inner guard: decrements the depth.
    #[cold]
    #[inline(never)]
    fn unnest(record: &Record, state: u64) {
        record.state.store(state - 1, Ordering::Relaxed);
    }

    /// The exit of a record that a thread waits for: wakes that thread, and gives up the record's slot if it waits
    /// for a slot.
    #[cold]
    #[inline(never)]
    fn wake(&self, record: &Record) {
        if self.forked() {
            return; // The threads that set the flag exist in the parent only.
        }
        let _section = Section::begin();
        let mut registry = self.lock();
        record.attention.store(false, Ordering::Relaxed);
        let slot = record.slot.load(Ordering::Relaxed);
        if !registry.queue.is_empty() && slot != NO_SLOT {
            record.slot.store(NO_SLOT, Ordering::Relaxed);
            registry.free.push(slot);
        }
        self.desk.changed.notify_all();
    }

    /// Finds a slot for `record`, which has entered without one.
    #[cold]
    #[inline(never)]
    fn lease(&self, record: &Record) -> Result<(), EnterError> {
        let _section = Section::begin();
        // Step outside, because waiting for a slot must not delay grace periods. Another thread may have seen the
        // record inside.
        record.stepped_out.store(true, Ordering::Relaxed);
        self.leave(record);
        let mut registry = self.lock();
        // A thread that wanted our slot may have given it back before we had the lock.
        let mut slot = record.slot.load(Ordering::Relaxed);
        if slot == NO_SLOT && registry.queue.is_empty() {
            slot = self.take_slot(&mut registry).map_err(EnterError::Barrier)?;
        }
        if slot == NO_SLOT {
            if self.when_full == WhenFull::Error {
                return Err(EnterError::Full { max_slots: self.max_slots });
            }
            (registry, slot) = self.queue_for_slot(registry)?;
        }
        record.slot.store(slot, Ordering::Relaxed);
        record.running_slot.store(slot, Ordering::Relaxed);
        // Acquire as in `enter`. The lock orders this store for threads that revoke slots. The fence (pairs with the
        // heavy barrier in `poll`) orders it for threads that wait for grace periods.
        record.state.store(self.epoch().load(Ordering::Acquire), Ordering::Relaxed);
        drop(registry);
        fence(Ordering::SeqCst);
        if self.hot.careful {
            self.enter_carefully(record).inspect_err(|_| record.state.store(0, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Sleeps until this thread is first in the queue and a slot is free.
    fn queue_for_slot<'a>(
        &self,
        mut registry: MutexGuard<'a, Registry>,
    ) -> Result<(MutexGuard<'a, Registry>, u32), EnterError>
    where
        Self: 'a,
    {
        let ticket = registry.next_ticket;
        registry.next_ticket += 1;
        registry.queue.push_back(ticket);
        let result = loop {
            for record in &registry.records {
                if record.slot.load(Ordering::Relaxed) != NO_SLOT {
                    record.attention.store(true, Ordering::Relaxed);
                }
            }
            // `attention` before the look at `state` in `take_slot`: pairs with the light barrier in `leave`.
            if let Err(errno) = self.granted.heavy_barrier() {
                break Err(EnterError::Barrier(errno));
            }
            if registry.queue.front() == Some(&ticket) {
                match self.take_slot(&mut registry) {
                    Ok(NO_SLOT) => {}
                    Ok(slot) => break Ok(slot),
                    Err(errno) => break Err(EnterError::Barrier(errno)),
                }
            }
            registry = self.sleep(registry);
        };
        registry.queue.retain(|&t| t != ticket);
        self.desk.changed.notify_all(); // The next thread in the queue is first at this point.
        result.map(|slot| (registry, slot))
    }

    /// Returns a slot that no thread runs in, or [`NO_SLOT`]. Fails if idle threads hold all slots and the barrier
    /// fails.
    fn take_slot(&self, registry: &mut Registry) -> Result<u32, Errno> {
        if let Some(slot) = registry.free.pop() {
            return Ok(slot);
        }
        if registry.next_slot < self.max_slots {
            registry.next_slot += 1;
            return Ok(registry.next_slot - 1);
        }
        // Revoke every slot that looks idle: one barrier then serves the next threads as well.
        let Registry { records, free, .. } = registry;
        let revoked: Vec<_> = records
            .iter()
            .filter(|r| r.slot.load(Ordering::Relaxed) != NO_SLOT && r.idle())
            .map(|r| {
                let slot = r.slot.load(Ordering::Relaxed);
                r.slot.store(NO_SLOT, Ordering::Relaxed);
                (r, slot)
            })
            .collect();
        if revoked.is_empty() {
            return Ok(NO_SLOT);
        }
        // `slot` before the second look at `state`: pairs with the light barrier in `enter`.
        let barrier = self.granted.heavy_barrier();
        for (record, slot) in revoked {
            if barrier.is_ok() && record.idle() {
                free.push(slot);
            } else {
                record.slot.store(slot, Ordering::Relaxed);
            }
        }
        barrier?;
        Ok(free.pop().unwrap_or(NO_SLOT))
    }

    /// Begins a grace period: advances the epoch. The result is what [`Core::poll`] and [`Core::wait`] take.
    pub(crate) fn start(&self) -> u64 {
        // Release: the caller's unlinking is seen by readers of the new epoch (Acquire in `enter`) and by the thread
        // that executes the heavy barrier for it (Acquire in `poll`).
        (self.epoch().fetch_add(EPOCH, Ordering::AcqRel) + EPOCH) & !DEPTH
    }

    /// Grace periods begun so far.
    pub(crate) fn started(&self) -> u64 {
        // Relaxed: a statistic.
        (self.epoch().load(Ordering::Relaxed) / EPOCH).saturating_sub(1)
    }

    /// Whether the grace period `target` is over.
    pub(crate) fn poll(&self, target: u64) -> Result<bool, Errno> {
        // Acquire, pairs with `raise` below: the readers' accesses before the grace period happen before the caller's
        // accesses after it.
        if self.completed.load(Ordering::Acquire) >= target {
            return Ok(true);
        }
        self.order(target)?;
        if self.forked() {
            return Ok(false); // The registry may be locked by a thread that does not exist here.
        }
        let _section = Section::begin();
        Ok(self.scan(&self.lock(), target))
    }

    /// Ensures that a heavy barrier followed the start of `target`. One barrier serves all periods that started
    /// before it.
    fn order(&self, target: u64) -> Result<(), Errno> {
        // Acquire, pairs with `raise` below: that barrier happened before our scan.
        if self.ordered.load(Ordering::Acquire) < target {
            // Acquire, pairs with `start`: the unlinks of all those periods happen before our barrier.
            let newest = self.epoch().load(Ordering::Acquire) & !DEPTH;
            self.granted.heavy_barrier()?;
            raise(&self.ordered, newest);
        }
        Ok(())
    }

    /// The cross-core instruction barrier. It orders memory as the heavy barrier does (membarrier(2): "in addition"),
    /// so all periods started before have theirs.
    pub(crate) fn core_barrier(&self) -> Result<(), Errno> {
        // Acquire: as in `order`.
        let newest = self.epoch().load(Ordering::Acquire) & !DEPTH;
        self.granted.core_barrier()?;
        // Release, pairs with the Acquire in `order`.
        raise(&self.ordered, newest);
        Ok(())
    }

    /// Looks at all records and records the newest period that is over. `order(target)` must have succeeded before.
    fn scan(&self, registry: &Registry, target: u64) -> bool {
        let mut over = self.ordered.load(Ordering::Acquire);
        for record in &registry.records {
            // Acquire: as in `Record::idle`.
            let state = record.state.load(Ordering::Acquire);
            if state != 0 {
                over = over.min(state & !DEPTH);
            }
        }
        raise(&self.completed, over);
        over >= target
    }

    /// Sleeps until the grace period `target` is over. The caller must be outside its own guards.
    pub(crate) fn wait(&self, target: u64) -> Result<(), WaitError> {
        /// Most readers leave within microseconds.
        const YIELDS: usize = if cfg!(loom) { 0 } else { 8 };
        for _ in 0..YIELDS {
            if self.poll(target).map_err(WaitError::Barrier)? {
                return Ok(());
            }
            if self.forked() {
                return Err(WaitError::Forked);
            }
            std::thread::yield_now();
        }
        self.order(target).map_err(WaitError::Barrier)?;
        let _section = Section::begin();
        let mut registry = self.lock();
        loop {
            let blocks = |record: &Record| {
                let state = record.state.load(Ordering::Relaxed);
                state != 0 && state & !DEPTH < target
            };
            for record in registry.records.iter().filter(|record| blocks(record)) {
                record.attention.store(true, Ordering::Relaxed);
            }
            // `attention` before the look at `state`: pairs with the light barrier in `leave`.
            self.granted.heavy_barrier().map_err(WaitError::Barrier)?;
            if self.scan(&registry, target) {
                return Ok(());
            }
            // Sleep only if a record whose `attention` was set before the barrier is inside after it: its exit wakes
            // this thread. Other records may have left meanwhile, or entered with an epoch loaded earlier, so look
            // again. (`attention` changes only under the lock.)
            let asked = |record: &Record| record.attention.load(Ordering::Relaxed);
            if registry.records.iter().any(|record| asked(record) && blocks(record)) {
                registry = self.sleep(registry);
            }
        }
    }

    /// Asks the readers that block the grace period `target` to poll when they leave. Either a later [`Core::poll`]
    /// of the caller returns true, or the last of these readers sees [`Core::is_asked`] and its own `poll` returns
    /// true.
    pub(crate) fn ask(&self, target: u64) -> Result<(), Errno> {
        // Release, pairs with `Core::asked`: a thread that loads the raised word sees the callbacks that the caller
        // queued.
        raise(&self.asked, target);
        // `asked` before the look at `state` in `poll`: pairs with the light barrier in `leave`.
        self.granted.heavy_barrier()
    }

    /// The newest grace period that readers are asked to poll; 0 if there is none.
    pub(crate) fn asked(&self) -> u64 {
        // Acquire pairs with `Core::ask`.
        self.asked.load(Ordering::Acquire)
    }

    /// The epoch since which the calling thread's own record blocks grace periods, for [`Core::is_asked`].
    #[inline]
    pub(crate) fn in_the_way_since(record: &Record) -> u64 {
        let state = record.state.load(Ordering::Relaxed);
        if state & DEPTH != 1 {
            return u64::MAX; // An outer guard remains.
        }
        if record.stepped_out.load(Ordering::Relaxed) {
            record.stepped_out.store(false, Ordering::Relaxed);
            return 0;
        }
        state - 1
    }

    /// Whether a reader that has just left was asked to poll. `since` is the result of [`Core::in_the_way_since`]
    /// before it left. If two readers leave at once and both poll, the registry's lock orders them: the second sees
    /// that the first has left.
    #[inline]
    pub(crate) fn is_asked(&self, since: u64) -> bool {
        since < self.asked()
    }

    /// Ends the request made by [`Core::ask`].
    pub(crate) fn withdraw(&self) {
        // Acquire pairs with `Core::ask`.
        self.asked.swap(0, Ordering::AcqRel);
    }

    /// Makes guards entered from this call on discard fetched instructions: the substitute for a core barrier.
    pub(crate) fn advance_code_epoch(&self) {
        // Release, pairs with the Acquire in `enter_carefully`.
        self.hot.code_epoch.fetch_add(1, Ordering::AcqRel);
    }

    fn sleep<'a>(&self, registry: MutexGuard<'a, Registry>) -> MutexGuard<'a, Registry>
    where
        Self: 'a,
    {
        self.desk.changed.wait(registry).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.desk.lock()
    }

    /// The registry as needed to end the runs of threads that ended inside a guard.
    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}
