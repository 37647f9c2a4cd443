//! The memory that one engine's objects may hold together.
//!
//! Problem: each map has a limit, and a program's author says how many maps there are. Approach: a domain carries a
//! limit and a sum; code that allocates a size that others choose takes a [`Reservation`] first and keeps it as long as
//! the memory. A reservation that does not fit is refused before anything is allocated, with what is left.
//!
//! Invariant: `used` is the sum of the reservations that are alive, and never above `limit`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit in bytes, and how much of it is taken.
#[derive(Debug)]
pub struct Memory {
    limit: u64,
    used: AtomicU64,
}

/// Bytes taken from a [`Memory`], given back when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<Memory>,
    bytes: u64,
}

/// A reservation did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} bytes are needed; of the {limit} that all maps, tables and code of one engine may take, {left} are left"
)]
pub struct MemoryFull {
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes that could have been had.
    pub left: u64,
    /// The limit.
    pub limit: u64,
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Bytes that may be taken altogether.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        // Relaxed, here and below: a sum that orders nothing; the memory itself is handed over by other means.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes, before they are allocated.
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, MemoryFull> {
        let more = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map(|_| Reservation { memory: Arc::clone(self), bytes })
            .map_err(|used| MemoryFull { needed: bytes, left: self.limit - used, limit: self.limit })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_what_is_alive_stays_below_the_limit() {
        let memory = Memory::new(100);
        let first = memory.reserve(60).unwrap();
        assert_eq!(memory.reserve(41).unwrap_err(), MemoryFull { needed: 41, left: 40, limit: 100 });
        assert_eq!(memory.reserve(u64::MAX).unwrap_err().left, 40, "no overflow");
        let second = memory.reserve(40).unwrap();
        assert_eq!((memory.used(), memory.reserve(1).unwrap_err().left), (100, 0));
        drop(first);
        assert_eq!(memory.used(), 40);
        drop(second);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let memory = Memory::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..10_000u64 {
                        let taken = memory.reserve(n % 700);
                        assert!(memory.used() <= 1000);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(memory.used(), 0);
    }
}
