//! What an execution slot owns of a hash, and the guard against re-entry.
//!
//! An update needs its slot's spare element and counts for itself. A signal handler may run a program on the same
//! thread and slot in the middle of it: it finds `busy` set, and gets `EBUSY`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::free_list::Pocket;
use crate::errno::{Errno, OpResult};

/// What one execution slot owns of a map. Written by the thread in that slot only; the hand-over of a slot from thread
/// to thread is ordered by its lease.
#[derive(Debug)]
pub(super) struct SlotState {
    busy: AtomicBool,
    spare: AtomicU32,
    /// The top of the slot's share of the free list.
    pub(super) pocket: Pocket,
    pub(super) added: AtomicU64,
    pub(super) removed: AtomicU64,
}

impl SlotState {
    pub(super) fn new(spare: u32) -> Self {
        Self {
            busy: AtomicBool::new(false),
            spare: AtomicU32::new(spare),
            pocket: Pocket::new(),
            added: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        }
    }

    pub(super) fn count(counter: &AtomicU64) {
        // Relaxed: one writer. Release pairs with the acquire in `counts`: whoever counts an insert sees it done (its
        // lock released). `removed` is published by the exchange that follows it.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// An operation in progress: the slot's state is this operation's alone.
pub(super) struct Op<'a>(pub(super) &'a SlotState);

impl<'a> Op<'a> {
    #[inline]
    pub(super) fn begin(state: &'a SlotState) -> OpResult<Self> {
        // Relaxed: the flag is only for this thread and signal handlers on it; the compiler fence keeps it first.
        if state.busy.load(Ordering::Relaxed) {
            return Err(Errno::EBUSY);
        }
        state.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Ok(Self(state))
    }

    /// Leaves the operation to whoever calls [`Op::passed_on`].
    #[inline(always)]
    pub(super) fn pass_on(self) {
        std::mem::forget(self);
    }

    /// Goes on with an operation that was begun in this slot and passed on.
    #[inline(always)]
    pub(super) fn passed_on(state: &'a SlotState) -> Self {
        Self(state)
    }

    #[inline]
    pub(super) fn spare(&self) -> u32 {
        self.0.spare.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_spare(&self, element: u32) {
        self.0.spare.store(element, Ordering::Relaxed);
    }
}

impl Drop for Op<'_> {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the fence in `begin`: whatever the operation did comes before a handler may begin another.
        compiler_fence(Ordering::SeqCst);
        self.0.busy.store(false, Ordering::Relaxed);
    }
}
