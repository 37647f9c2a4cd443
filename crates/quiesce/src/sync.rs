//! The one place that chooses between the standard library and loom.
//!
//! Problem: the protocols of this crate must be explored exhaustively, and loom needs its own atomics, locks and `Arc`
//! to do so; it knows neither `membarrier` nor futexes.
//!
//! Approach: everything in [`crate::core`] takes its primitives from here. Under `--cfg loom` they are loom's, and both
//! halves of the asymmetric barrier (`light_barrier` here, `Granted::heavy_barrier` in [`crate::granted`]) become
//! sequentially consistent fences: a strictly stronger reader than the real one. The real, weaker reader is explored in
//! `tests/domains/asymmetric_model.rs`.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicU64, Ordering, fence},
};

/// The reader's half of the asymmetric barrier: forbids the *compiler* to move accesses across it. The CPU's reordering
/// is undone by the writer's half, which makes every running thread execute a full barrier
/// ([`crate::granted::Granted::heavy_barrier`]).
#[inline(always)]
pub(crate) fn light_barrier() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
