//! The clock of deadlines.
//!
//! Problem: reading the time is too slow for a run: a system call, or tens of nanoseconds where the clock is mapped.
//! Approach: a thread reads the clock once a tick, stores the number of the tick, and ends the runs whose deadline it
//! is. Deadlines are ticks, rounded up, so no run ends early. A run ends late by at most a tick and the time in which
//! the system wakes a thread. The first deadline starts the thread, which sleeps while no deadline is pending.
//!
//! Invariant: the thread is awake while a deadline is pending, and for [`LINGER`] after it. By then the thread sees the
//! stores of every run that began before its deadline, and a run that begins later sees that its deadline has passed.

use crate::abi::critical::Lock;
use crate::error::DeadlineError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long the thread stays awake after the last deadline.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Clock {
    /// A number that no other clock of the process has.
    number: u64,
    start: Instant,
    tick: Duration,
    /// The tick that the thread has seen last.
    now: AtomicU64,
    /// The last tick that a deadline was made for.
    last: AtomicU64,
    asleep: AtomicBool,
    /// Whether the thread was started.
    started: AtomicBool,
    closed: AtomicBool,
    thread: Lock<Option<Thread>>,
}

impl Clock {
    pub(crate) fn new(tick: Duration) -> Clock {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Clock {
            // Relaxed: only uniqueness matters.
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            start: Instant::now(),
            tick,
            now: AtomicU64::new(0),
            last: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            started: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            thread: Lock::new(None),
        }
    }

    /// Returns the clock's number, unique in the process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The tick that the thread has seen last.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        // Relaxed: a time, which orders nothing.
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the first tick that is not before `at`, and wakes the thread for it; `at` must not be before `now`. The
    /// thread calls `each` at each tick.
    pub(crate) fn deadline(
        self: &Arc<Self>,
        (now, at): (Instant, Instant),
        each: impl Fn(u64) + Send + 'static,
    ) -> Result<u64, DeadlineError> {
        if let Some(by) = now.checked_duration_since(at).filter(|by| !by.is_zero()) {
            return Err(DeadlineError::Past { by });
        }
        // In 64 bits, for fast divisions. A later deadline (more than 584 years) never comes.
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let since = nanos(at.saturating_duration_since(self.start));
        let tick = since.div_ceil(nanos(self.tick).max(1)).max(1);
        // SeqCst, here and in `run`: either the thread sees the deadline, or this thread sees that it sleeps. If the
        // word is as high already, reading it orders this thread after the one that raised it. `fetch_max` would do,
        // but ThreadSanitizer does not model it.
        self.raise_last(tick);
        // Acquire pairs with the store below: the thread exists, and begins by reading `last`.
        if self.started.load(Ordering::Acquire) && !self.asleep.load(Ordering::SeqCst) {
            return Ok(tick);
        }
        let mut thread = self.thread.lock();
        match &*thread {
            Some(thread) if self.asleep.load(Ordering::SeqCst) => thread.unpark(),
            Some(_) => {}
            None => {
                let clock = Arc::clone(self);
                let spawned = std::thread::Builder::new()
                    .name("bpf-deadlines".into())
                    .stack_size(256 * 1024)
                    .spawn(move || clock.run(each))
                    .map_err(DeadlineError::Thread)?;
                *thread = Some(spawned.thread().clone());
                // Release: see the load above.
                self.started.store(true, Ordering::Release);
            }
        }
        Ok(tick)
    }

    /// Raises the last tick that a deadline was made for.
    fn raise_last(&self, tick: u64) {
        let raised = |last| (last < tick).then_some(tick);
        let _ = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, raised);
    }

    /// Returns how many ticks this time takes, rounded up.
    pub(super) fn ticks(&self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos().div_ceil(self.tick.as_nanos().max(1))).unwrap_or(u64::MAX)
    }

    /// Wakes the thread for this tick, to which the deadline of a run was moved. The thread exists: the deadline was
    /// made by [`Clock::deadline`].
    pub(super) fn raise(&self, tick: u64) {
        // SeqCst: as in `deadline`.
        self.raise_last(tick);
        if self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Lets the thread end.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Neither joined nor waited for: a forked child has no such thread, and the lock may be held by a thread that
        // only the parent has.
        if let Some(thread) = self.thread.try_lock()
            && let Some(thread) = &*thread
        {
            thread.unpark();
        }
    }

    fn run(&self, each: impl Fn(u64)) {
        while !self.closed.load(Ordering::SeqCst) {
            let since = self.start.elapsed();
            let now = u64::try_from(since.as_nanos() / self.tick.as_nanos()).unwrap_or(u64::MAX - 1);
            self.now.store(now, Ordering::SeqCst);
            each(now);
            let linger = u64::try_from(LINGER.as_nanos().div_ceil(self.tick.as_nanos())).unwrap_or(u64::MAX);
            if now <= self.last.load(Ordering::SeqCst).saturating_add(linger) {
                // Sleeps to the next tick and not for one tick, so that the work of each tick does not add up.
                let nanos = u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX);
                let next = Duration::from_nanos((now + 1).saturating_mul(nanos));
                std::thread::park_timeout(next.saturating_sub(self.start.elapsed()));
                continue;
            }
            self.asleep.store(true, Ordering::SeqCst);
            let last = self.last.load(Ordering::SeqCst);
            if now > last.saturating_add(linger) && !self.closed.load(Ordering::SeqCst) {
                // A wake-up before this call is not lost: `unpark` leaves a token.
                std::thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }
}
