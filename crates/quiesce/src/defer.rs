//! Callbacks that run after a grace period.
//!
//! Problem: a thread that removes an object rarely wants to wait for its readers, and a grace period costs
//! microseconds, so it must be shared.
//!
//! Approach: callbacks fill a batch; a full batch (or an explicit [`Queue::seal`]) starts one grace period for all of
//! it and joins a queue. A thread that defers or reclaims outside a guard polls the oldest batch and runs it if its
//! period is over.
//!
//! Invariants: a batch's period starts after its last callback was queued. Callbacks run outside the lock, each exactly
//! once, in the order of their batches unless several threads run batches at a time. A panicking callback does not keep
//! the others from running.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::Core;

/// Callbacks that share a grace period when nobody asks for one earlier.
const BATCH: usize = 64;

pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// The callbacks of one domain.
#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// How many callbacks wait; changed under the lock.
    waiting: AtomicUsize,
}

/// For how many domains a thread can note that it is running their callbacks, one inside another.
const NESTED: usize = 16;

thread_local! {
    /// The domains whose callbacks this thread is running, 0 for none: a callback may drop what defers and reclaims
    /// again, and must not do so a level deeper each time; nor must two domains whose callbacks drop what belongs to
    /// the other one.
    static RUNNING: [Cell<u64>; NESTED] = const { [const { Cell::new(0) }; NESTED] };
}

/// This thread is running callbacks until this is dropped.
struct Running {
    /// `None`: more domains than there are places, so that one of these goes unnoticed.
    place: Option<usize>,
}

impl Running {
    /// `None` if the thread is running callbacks of this domain already: that outer call will run what is queued now.
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
    /// Queues `callback`; true if that filled a batch, so that running one is due.
    pub(crate) fn push(&self, core: &Core, callback: Callback) -> bool {
        let mut inner = self.lock();
        inner.filling.push(callback);
        // Relaxed: see `len`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if inner.filling.len() < BATCH {
            return false;
        }
        inner.seal(core);
        true
    }

    /// Starts the grace period of all that is queued and returns the newest period to wait for.
    pub(crate) fn seal(&self, core: &Core) -> Option<u64> {
        let mut inner = self.lock();
        inner.seal(core);
        inner.sealed.back().map(|(target, _)| *target)
    }

    /// Runs every batch whose period is over and says how many callbacks that were; none from within a callback.
    pub(crate) fn run_ready(&self, core: &Core) -> usize {
        let mut ran = 0;
        let Some(_running) = Running::begin(core.id()) else { return ran };
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
                run(batch);
            }
        }
    }

    /// How many callbacks have not been taken up yet.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a thread sees what it has queued itself. One that was inside a guard when another queued something
        // sees that once it is outside: the thread that found it inside had executed a heavy barrier.
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs everything at once. The caller owns the domain, so no reader is left.
    pub(crate) fn run_all(&mut self) {
        let inner = std::mem::take(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner));
        run(inner.sealed.into_iter().flat_map(|(_, batch)| batch).chain(inner.filling).collect());
    }

    /// Drops nothing and runs nothing: in a forked child the callbacks are the parent's business.
    pub(crate) fn forget_all(&mut self) {
        std::mem::forget(std::mem::take(self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops a panic's payload. If that panics again, the second payload is leaked, so that there is an end.
pub fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

fn run(batch: Vec<Callback>) {
    let mut panic = None;
    for callback in batch {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
            match panic {
                None => panic = Some(payload),
                Some(_) => drop_payload(payload),
            }
        }
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}
