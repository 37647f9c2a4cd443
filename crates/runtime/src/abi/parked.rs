//! The part of a run on a stack of its own that other threads look at: to end it while it waits, and at its deadline.
//!
//! Problem: a run that waits executes no code that tests whether it is to end, and its future may never be ready.
//! Approach: while such a run waits, the waker of its poller lies here. A thread that ends the run marks its word and
//! then wakes the poller, which looks at the word and gives the run up. Runs with a deadline are in a map ordered by
//! deadline, so that a tick costs nothing while none has passed.
//!
//! Invariants:
//! * The poller stores its waker and then looks at the word; a thread that ends the run marks the word and then takes
//!   the waker. Both take the lock of the waker in between, so that the poller sees the mark, or is woken.
//! * A run is in the map only while it is in progress: it is removed, under the map's lock, before its word is 0. So a
//!   thread that has the lock marks the run for which the entry was made.
//! * No lock is held while a waker is called or dropped, which are code of others.

use crate::abi::clock::Clock;
use crate::abi::critical::{Critical, Lock, Locked};
use crate::abi::level::Level;
use crate::abi::sync::{AtomicU64, Ordering};
use crate::abi::watch::{INTERRUPTED, LATE, NEVER, unmarked};
use crossbeam_utils::CachePadded;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A run on a stack of its own, as other threads see it.
pub(crate) struct Parked {
    pub(super) level: CachePadded<Level>,
    /// The [`crate::abi::watch::word_of`] the program or hook by which the run is interrupted: for a part of a run of
    /// a hook, the hook. Stored before the word of the run, which is no other run's: see [`Parked::interrupt_of`].
    named: AtomicU64,
    /// The waker of the run's last poller.
    waker: Lock<Option<Waker>>,
}

impl Parked {
    pub(super) fn new() -> Parked {
        Parked { level: Level::new(0), named: AtomicU64::new(0), waker: Lock::new(None) }
    }

    /// Sets the program or hook by which the next run is interrupted.
    pub(super) fn set_named(&self, named: u64) {
        // Relaxed: the release of the run's word orders it.
        self.named.store(named, Ordering::Relaxed);
    }

    /// Asks the run to end if it is interrupted by this program or hook. Returns its word before, if nobody had asked
    /// before.
    pub(super) fn interrupt_of(&self, named: u64) -> Option<u64> {
        // Acquire pairs with the release that stored the word: the name is that of the run with this word, or of a
        // later run. Then the exchange fails, since a word does not come twice.
        let word = self.level.word().load(Ordering::Acquire);
        if word == 0 || word & INTERRUPTED != 0 || self.named.load(Ordering::Relaxed) != named {
            return None;
        }
        // Relaxed: see `is_asked`. If it fails, the run is over, or was asked to end before.
        let by = word | INTERRUPTED;
        self.level.word().compare_exchange(word, by, Ordering::Relaxed, Ordering::Relaxed).ok()
    }

    /// Returns the word of the run as it was before any thread has asked it to end.
    pub(super) fn word(&self) -> u64 {
        // Relaxed: compared only.
        unmarked(self.level.word().load(Ordering::Relaxed))
    }

    /// Does this with the lock held.
    #[cfg(test)]
    pub(super) fn locked(&self, work: impl FnOnce()) {
        let _waker = self.waker();
        work();
    }

    fn waker(&self) -> Locked<'_, Option<Waker>> {
        self.waker.lock()
    }

    /// Returns whether the run was asked to end.
    pub(super) fn is_asked(&self) -> bool {
        // Relaxed: the lock of the waker orders the mark, see the module.
        self.level.word().load(Ordering::Relaxed) & INTERRUPTED != 0
    }

    /// Asks a run in progress to end, with these marks. Returns its word before, if nobody had asked before.
    pub(super) fn ask(&self, marks: u64) -> Option<u64> {
        let mark = |word: u64| (word & INTERRUPTED == 0).then_some(word | marks);
        // Relaxed: see `is_asked`.
        self.level.word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark).ok()
    }

    /// Keeps the waker of a run that waits. Returns whether the run was asked to end. `first`: no waker of this run was
    /// kept before.
    pub(super) fn park(&self, waker: &Waker, first: bool, is_forked: impl Fn() -> bool) -> bool {
        let known = !first && self.waker().as_ref().is_some_and(|kept| kept.will_wake(waker));
        if !known {
            // `clone` is code of others, and runs without the lock, like `drop`. A waker that is taken meanwhile is the
            // one before, and its mark is seen below.
            let new = {
                let _left = Critical::leave();
                waker.clone()
            };
            if is_forked() {
                // The waker has forked, and another thread of the parent may have had the lock.
                drop_waker(Some(new));
                return false;
            }
            // The lock ends with this statement.
            let before = self.waker().replace(new);
            drop_waker(before);
        }
        // The waker's drop may have forked, too.
        self.is_asked() && !is_forked()
    }

    /// Takes the waker, to wake or to drop it.
    pub(super) fn take_waker(&self) -> Option<Waker> {
        self.waker().take()
    }
}

/// Drops a waker, which is code of others.
pub(crate) fn drop_waker(waker: Option<Waker>) {
    if waker.is_some() {
        let _left = Critical::leave();
        drop(waker);
    }
}

/// Wakes pollers. A waker that panics does not keep the others from being woken.
pub(super) fn wake(mut wakers: Vec<Waker>) {
    for waker in wakers.drain(..) {
        let _left = Critical::leave();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            bpf_quiesce::drop_payload(panic);
        }
    }
    let _critical = Critical::enter();
    drop(wakers);
}

/// The deadlines of runs on stacks of their own: by tick, and the address of the run for unique keys.
#[derive(Default)]
pub(super) struct Deadlines(Lock<BTreeMap<(u64, usize), Arc<Parked>>>);

/// The deadline of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    tick: u64,
    /// The tick without the waits that do not count, and how long these were.
    first: u64,
    waited: Duration,
    /// Whether the time that the run waits counts.
    waits_count: bool,
    /// When the current wait has begun, if it does not count.
    since: Option<Instant>,
}

impl Due {
    /// No deadline.
    pub(super) const NEVER: Due = Due::new(NEVER, true);

    pub(super) const fn new(tick: u64, waits_count: bool) -> Due {
        Due { tick, first: tick, waited: Duration::ZERO, waits_count, since: None }
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick
    }
}

impl Deadlines {
    /// Does this with the lock held.
    #[cfg(test)]
    pub(super) fn locked(&self, work: impl FnOnce()) {
        let _deadlines = self.lock();
        work();
    }

    fn lock(&self) -> Locked<'_, BTreeMap<(u64, usize), Arc<Parked>>> {
        self.0.lock()
    }

    /// A run with this deadline has begun.
    pub(super) fn begin(&self, due: &Due, run: &Arc<Parked>) {
        if due.tick != NEVER {
            self.lock().insert((due.tick, Arc::as_ptr(run).addr()), Arc::clone(run));
        }
    }

    /// A run with this deadline goes on. If its waits do not count, the deadline is later by all of them together: each
    /// alone is shorter than a tick, maybe, where a run yields.
    pub(super) fn go_on(&self, due: &mut Due, run: &Arc<Parked>, clock: &Clock) {
        if let Some(since) = due.since.take() {
            due.waited = due.waited.saturating_add(since.elapsed());
            due.tick = due.first.saturating_add(clock.ticks(due.waited)).min(NEVER - 1);
            clock.raise(due.tick);
            self.begin(due, run);
        }
    }

    /// A run with this deadline waits.
    pub(super) fn wait(&self, due: &mut Due, run: &Arc<Parked>) {
        if due.tick != NEVER && !due.waits_count && due.since.is_none() {
            due.since = Some(Instant::now());
            self.end(due, run);
        }
    }

    /// A run with this deadline is over.
    pub(super) fn end(&self, due: &Due, run: &Arc<Parked>) {
        if due.tick != NEVER {
            self.lock().remove(&(due.tick, Arc::as_ptr(run).addr()));
        }
    }

    /// Marks the runs whose deadline is at this tick or before it. Calls `marked` for each that nobody had asked
    /// before, with its word before. Returns their wakers.
    pub(super) fn end_late(&self, now: u64, mut marked: impl FnMut(&Parked, u64)) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut deadlines = self.lock();
        while let Some(first) = deadlines.first_entry() {
            if first.key().0 > now {
                break;
            }
            let run = first.remove();
            if let Some(word) = run.ask(INTERRUPTED | LATE) {
                marked(&run, word);
            }
            wakers.extend(run.take_waker());
        }
        wakers
    }
}
