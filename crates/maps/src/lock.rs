//! The two locks of the crate: the insert lock of an index chunk, and `bpf_spin_lock` in a map value.
//!
//! Problem: in user space the holder of a lock can be preempted, so a pure spin lock wastes whole time slices of all
//! waiters. A signal handler that runs a program can meet a lock that its own thread holds.
//!
//! Approach: spin briefly, then yield, then sleep. The chunk lock counts its releases, so that an inserter can tell
//! whether another insert came between its search and its locking. Re-entry into the chunk lock is excluded by the
//! callers (one operation per execution slot and map, [`crate::hash`]). The value lock stores its owner's execution
//! slot, so that taking it twice is an error and not a deadlock. A `bpf_res_spin_lock` has the same layout; a waiter
//! gives up after [`PATIENCE`], which resolves deadlocks between holders of several locks.

use crate::errno::{Errno, OpResult};
use crate::sync::{AtomicU32, Ordering, spin_loop, yield_now};
use std::time::{Duration, Instant};

/// Rounds of spinning, about 1 µs.
const SPINS: u32 = 64;
/// Rounds after which a waiter sleeps instead of yielding.
const ASLEEP: u32 = SPINS + 16;

/// How long taking a resilient lock waits (Linux: `RES_DEF_TIMEOUT`).
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// The insert lock of a chunk: bit 0 held, the rest counts releases.
///
/// The lock is held for some twenty nanoseconds, so a waiter nearly always meets a preempted holder, and a wake-up
/// would not help. Releasing is therefore a plain store, and a waiter that has yielded in vain sleeps for a while.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct ChunkLock(AtomicU32);

const HELD: u32 = 1;
const RELEASE: u32 = 2;

impl ChunkLock {
    /// The number of releases so far, to be compared with the result of [`ChunkLock::lock`].
    #[inline(always)]
    pub(crate) fn releases(&self) -> u32 {
        // Acquire pairs with the release in `unlock`: a search that follows sees every insert counted here.
        self.0.load(Ordering::Acquire) & !HELD
    }

    /// Takes the lock and returns the number of releases before.
    #[inline]
    pub(crate) fn lock(&self) -> u32 {
        let mut round = 0;
        loop {
            // Relaxed: the exchange below checks it.
            let free = self.0.load(Ordering::Relaxed) & !HELD;
            // Acquire pairs with the release in `unlock`.
            if self.0.compare_exchange_weak(free, free | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return free;
            }
            rest(&mut round);
        }
    }

    /// Takes the lock if it is free and the number of releases is still `before`.
    #[inline(always)]
    pub(crate) fn lock_unreleased(&self, before: u32) -> bool {
        // Acquire pairs with the release in `unlock`.
        self.0.compare_exchange(before, before | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<u32> {
        // Relaxed: the exchange below checks it.
        let free = self.0.load(Ordering::Relaxed) & !HELD;
        // Acquire pairs with the release in `unlock`.
        self.0.compare_exchange(free, free | HELD, Ordering::Acquire, Ordering::Relaxed).ok()
    }

    /// Releases the lock; `before` is what taking it returned.
    #[inline]
    pub(crate) fn unlock(&self, before: u32) {
        // Release pairs with the acquire in `lock` and `releases`.
        self.0.store(before.wrapping_add(RELEASE), Ordering::Release);
    }
}

/// Waits one more round: spins, then yields, then sleeps.
#[cold]
fn rest(round: &mut u32) {
    *round += 1;
    if cfg!(not(loom)) && *round <= SPINS {
        spin_loop();
    } else if cfg!(loom) || *round <= ASLEEP {
        yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// A `struct bpf_spin_lock` or `bpf_res_spin_lock` in a map value: 0 if free, otherwise the owner's slot plus one.
/// Bit 31 is set while a waiter sleeps.
#[derive(Debug)]
pub(crate) struct ValueLock<'a>(&'a AtomicU32);

const WAITERS: u32 = 1 << 31;

impl<'a> ValueLock<'a> {
    pub(crate) fn new(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// Takes the lock for `slot`; false if that slot holds it already in an interrupted run.
    #[inline]
    pub(crate) fn lock(&self, slot: u32) -> bool {
        let me = slot + 1;
        let mut round = 0;
        // After this thread has slept, others may be asleep too: it must set the mark when it takes the lock.
        let mut marked = 0;
        loop {
            // Acquire pairs with the release in `unlock`.
            match self.0.compare_exchange(0, me | marked, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) if seen & !WAITERS == me => return false,
                Err(_) if round < ASLEEP => rest(&mut round),
                Err(seen) => {
                    marked = WAITERS;
                    self.sleep(seen);
                }
            }
        }
    }

    /// Takes the lock for `slot`, which may hold other locks. `EDEADLK` if it holds this one already, `ETIMEDOUT` if
    /// the lock was not released within `patience`, or the error of `waits`, which is called repeatedly with the slot
    /// that holds the lock.
    #[inline]
    pub(crate) fn lock_within(&self, slot: u32, patience: Duration, waits: impl FnMut(u32) -> OpResult) -> OpResult {
        // Acquire pairs with the release in `unlock`.
        match self.0.compare_exchange(0, slot + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => self.wait_within(slot, patience, waits),
        }
    }

    #[cold]
    fn wait_within(&self, slot: u32, patience: Duration, mut waits: impl FnMut(u32) -> OpResult) -> OpResult {
        let me = slot + 1;
        let (mut round, start) = (0, Instant::now());
        loop {
            // Acquire pairs with the release in `unlock`. This waiter is not woken: it sleeps for a while.
            match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) if seen & !WAITERS == me => return Err(Errno::EDEADLK),
                Err(seen) => {
                    waits((seen & !WAITERS).wrapping_sub(1))?;
                    if start.elapsed() >= patience {
                        return Err(Errno::ETIMEDOUT);
                    }
                    rest(&mut round);
                }
            }
        }
    }

    /// Sleeps until the owner releases the lock. `seen` is the lock's word, as loaded last.
    #[cold]
    fn sleep(&self, seen: u32) {
        // Relaxed: the mark carries no data; the futex call orders itself with the waker.
        let marked = seen & WAITERS != 0
            || self.0.compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        #[cfg(not(loom))]
        if marked {
            bpf_os::wait::sleep_while(self.0, seen | WAITERS);
        }
        #[cfg(loom)]
        let _ = marked;
    }

    /// Releases the lock; false if `slot` does not hold it.
    pub(crate) fn unlock(&self, slot: u32) -> bool {
        // Relaxed: only the owner can see its own slot here.
        if self.0.load(Ordering::Relaxed) & !WAITERS != slot + 1 {
            return false;
        }
        // Release pairs with the acquire in `lock`.
        let _waiters = self.0.swap(0, Ordering::Release) & WAITERS != 0;
        #[cfg(not(loom))]
        if _waiters {
            bpf_os::wait::wake_all(self.0.as_ptr().addr());
        }
        true
    }
}

/// A lock of the map itself: 0 free, else the owner's slot plus one. Re-entry by its owner is `EBUSY`.
///
/// Held for less than a microsecond, so waiters behave as for [`ChunkLock`].
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct SlotLock(AtomicU32);

/// The lock is held until this is dropped.
#[cfg(not(loom))]
pub(crate) struct SlotLockGuard<'a>(&'a AtomicU32);

#[cfg(not(loom))]
impl SlotLock {
    /// Whether the lock was held a moment ago.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        // Relaxed: a hint.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Takes the lock for `slot`.
    #[inline]
    pub(crate) fn lock(&self, slot: u32) -> crate::errno::OpResult<SlotLockGuard<'_>> {
        let mut round = 0;
        // Acquire pairs with the release in `drop`.
        while let Err(owner) = self.0.compare_exchange(0, slot + 1, Ordering::Acquire, Ordering::Relaxed) {
            if owner == slot + 1 {
                return Err(crate::errno::Errno::EBUSY);
            }
            rest(&mut round);
        }
        Ok(SlotLockGuard(&self.0))
    }
}

#[cfg(not(loom))]
impl Drop for SlotLockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the acquire in `lock`. A plain store: others only change a free lock.
        self.0.store(0, Ordering::Release);
    }
}
