//! Callbacks that run after a grace period.
//!
//! Problem: a thread that removes an object rarely wants to wait for its readers, and a grace period costs
//! microseconds, so it must be shared.
//!
//! Approach: callbacks fill a batch; a full batch (or an explicit [`Queue::seal`]) starts one grace period for all of
//! it and joins a queue. A thread that defers or reclaims outside a guard polls the oldest batch and runs it if its
//! period is over.
//!
//! Invariants: a batch's period starts after its last callback was queued. Queueing runs no callback, so it cannot
//! unwind. Callbacks run outside the lock, each exactly once, in the order of their batches unless several threads run
//! batches at a time. A panicking callback does not keep the others from running.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::Core;
use crate::finish::Finish;

/// Number of callbacks that share a grace period unless one is requested earlier.
const BATCH: usize = 64;

pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// The callbacks of one domain.
#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Number of queued callbacks; changes only under the lock.
    waiting: AtomicUsize,
    /// Whether a batch was filled since a thread last ran the ready ones.
    due: AtomicBool,
}

/// Number of domains for which a thread can record that it is running their callbacks, nested in one another.
const NESTED: usize = 16;

thread_local! {
    /// The domains whose callbacks this thread is running; 0 marks a free place. A callback may drop an object whose
    /// destructor defers and reclaims again. Without this list each such drop would recurse one level deeper, also
    /// where callbacks of two domains drop objects of the other one.
    static RUNNING: [Cell<u64>; NESTED] = const { [const { Cell::new(0) }; NESTED] };
}

/// Marks this thread as running callbacks until it is dropped.
struct Running {
    /// The place in `RUNNING`, or `None` if all [`NESTED`] places are taken: this level is not recorded.
    place: Option<usize>,
}

impl Running {
    /// Returns `None` if the thread is running callbacks of this domain already: the outer call runs the newly queued
    /// ones.
    fn begin(domain: u64) -> Option<Running> {
        RUNNING.with(|running| {
            if running.iter().any(|known| known.get() == domain) {
                return None;
            }
            let place = running.iter().position(|known| known.get() == 0);
            if let Some(place) = place {
                running[place].set(domain);
            }
            Some(Running { place })
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            RUNNING.with(|running| running[place].set(0));
        }
    }
}

#[derive(Default)]
struct Inner {
    filling: Vec<Callback>,
    sealed: VecDeque<(u64, Vec<Callback>)>,
}

impl Inner {
    fn seal(&mut self, core: &Core) {
        if !self.filling.is_empty() {
            let batch = std::mem::take(&mut self.filling);
            self.sealed.push_back((core.start(), batch));
        }
    }
}

impl Queue {
    /// Queues `callback`.
    pub(crate) fn push(&self, core: &Core, callback: Callback) {
        let mut inner = self.lock();
        inner.filling.push(callback);
        // Relaxed: see `len`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if inner.filling.len() >= BATCH {
            inner.seal(core);
            // Relaxed: a hint.
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a batch was filled since a thread last ran the ready ones.
    pub(crate) fn is_due(&self) -> bool {
        // Relaxed: a hint.
        self.due.load(Ordering::Relaxed)
    }

    /// Starts the grace period of all queued callbacks and returns the newest period to wait for.
    pub(crate) fn seal(&self, core: &Core) -> Option<u64> {
        let mut inner = self.lock();
        inner.seal(core);
        inner.sealed.back().map(|(target, _)| *target)
    }

    /// Runs every batch whose period is over and returns the number of callbacks run; 0 from within a callback.
    pub(crate) fn run_ready(&self, core: &Core, finish: &mut Finish) -> usize {
        let mut ran = 0;
        let Some(_running) = Running::begin(core.id()) else { return ran };
        // Relaxed: a hint.
        self.due.store(false, Ordering::Relaxed);
        loop {
            let Some(target) = self.lock().sealed.front().map(|(target, _)| *target) else { return ran };
            // A failing barrier means "not yet": the batch stays and the next call tries again.
            if !core.poll(target).unwrap_or(false) {
                return ran;
            }
            let batch = {
                let mut inner = self.lock();
                // Another thread may have taken that batch meanwhile.
                if inner.sealed.front().is_none_or(|(front, _)| *front != target) {
                    continue;
                }
                inner.sealed.pop_front()
            };
            if let Some((_, batch)) = batch {
                self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
                ran += batch.len();
                run(batch, finish);
            }
        }
    }

    /// Number of queued callbacks that no thread has begun to run.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a thread sees the callbacks it queued itself. A reader that was inside a guard while another
        // thread queued a callback sees it after leaving: the other thread executed a heavy barrier and found the
        // reader inside.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs all callbacks at once. The caller owns the domain, so no reader is left.
    pub(crate) fn run_all(&mut self) {
        let inner = std::mem::take(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut finish = Finish::default();
        run(inner.sealed.into_iter().flat_map(|(_, batch)| batch).chain(inner.filling).collect(), &mut finish);
    }

    /// Leaks all callbacks: in a forked child they belong to the parent.
    pub(crate) fn forget_all(&mut self) {
        std::mem::forget(std::mem::take(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(batch: Vec<Callback>, finish: &mut Finish) {
    for callback in batch {
        finish.step(callback);
    }
}
