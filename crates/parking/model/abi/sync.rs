//! Loom's primitives, in place of those of the standard library.

pub(super) use loom::sync::atomic::{AtomicUsize, Ordering, fence};
pub(super) use loom::sync::{Mutex, MutexGuard};

use loom::sync::atomic;

/// Does nothing: loom models no signal handlers.
pub(super) fn compiler_fence(_: Ordering) {}

/// Loom models no signal handlers.
pub(super) fn interrupted_in_domain() -> bool {
    false
}

/// An atomic number whose stores are exchanges.
///
/// Loom does not order a plain store after a compare-and-exchange of another thread that came before, and lets the
/// storing thread itself read the exchanged value later, which no machine does. An exchange is in order. It takes part
/// in release sequences, which a store does not: the one word that this is about is published by each store anew.
#[derive(Debug)]
pub(super) struct AtomicU64(atomic::AtomicU64);

impl AtomicU64 {
    pub(super) fn new(value: u64) -> AtomicU64 {
        AtomicU64(atomic::AtomicU64::new(value))
    }

    pub(super) fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub(super) fn store(&self, value: u64, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(super) fn compare_exchange(&self, old: u64, new: u64, done: Ordering, failed: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, done, failed)
    }

    pub(super) fn fetch_update(
        &self,
        set: Ordering,
        read: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.0.fetch_update(set, read, change)
    }
}
