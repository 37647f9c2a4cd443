//! The clock that deadlines are by.
//!
//! Problem: a run cannot ask what time it is: a system call where the clock is not mapped, and 20 ns where it is.
//! Approach: a thread looks at the clock once a tick, notes which tick it is, and ends the runs whose tick has come.
//! Deadlines are ticks, rounded up, so none comes early; it comes late by a tick and by what the system takes to wake a
//! thread. The thread begins with the first deadline that is made, and sleeps while none is left.
//!
//! Invariant: while a deadline is ahead the thread is awake, and a second longer: by then whatever a run that began
//! before its deadline has stored is seen, and a run that begins later sees that the tick has come and does not begin.

use crate::error::DeadlineError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long the thread stays awake after the last deadline.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Clock {
    /// No other clock of the process has it.
    number: u64,
    start: Instant,
    tick: Duration,
    /// The tick that the thread has seen last.
    now: AtomicU64,
    /// The last tick that a deadline was made for.
    last: AtomicU64,
    asleep: AtomicBool,
    /// The thread has been made.
    started: AtomicBool,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
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
            thread: Mutex::new(None),
        }
    }

    /// Which clock it is, in all the process's life.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The tick that the thread has seen last.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        // Relaxed: a time, which orders nothing.
        self.now.load(Ordering::Relaxed)
    }

    /// The first tick that is not before `at`, which must not be before `now`; the thread will be awake for it. `each`
    /// is what it does at each.
    pub(crate) fn deadline(
        self: &Arc<Self>,
        (now, at): (Instant, Instant),
        each: impl Fn(u64) + Send + 'static,
    ) -> Result<u64, DeadlineError> {
        if let Some(by) = now.checked_duration_since(at).filter(|by| !by.is_zero()) {
            return Err(DeadlineError::Past { by });
        }
        // Divisions of 64 bits: a deadline further away than that is none.
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let since = nanos(at.saturating_duration_since(self.start));
        let tick = since.div_ceil(nanos(self.tick).max(1)).max(1);
        // SeqCst, here and in `run`: either the thread sees the deadline, or this sees that it sleeps. Where the word
        // is as high already, reading it orders this behind whoever raised it. `fetch_max` would do, but
        // ThreadSanitizer does not see it.
        let raised = |last| (last < tick).then_some(tick);
        let _ = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, raised);
        // Acquire, with the store below: the thread is there, and begins by looking at `last`.
        if self.started.load(Ordering::Acquire) && !self.asleep.load(Ordering::SeqCst) {
            return Ok(tick);
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Lets the thread end.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Not waited for: in a forked child there is no such thread, and the lock may be another's.
        if let Ok(thread) = self.thread.try_lock()
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
                // To the next tick, not for one: what this took is not added up.
                let nanos = u64::try_from(self.tick.as_nanos()).unwrap_or(u64::MAX);
                let next = Duration::from_nanos((now + 1).saturating_mul(nanos));
                std::thread::park_timeout(next.saturating_sub(self.start.elapsed()));
                continue;
            }
            self.asleep.store(true, Ordering::SeqCst);
            let last = self.last.load(Ordering::SeqCst);
            if now > last.saturating_add(linger) && !self.closed.load(Ordering::SeqCst) {
                // A wake-up that came before is not lost: the token of `unpark` is kept.
                std::thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
    }
}
