//! The state that an execution slot owns in a hash, and its guard against re-entry.
//!
//! An update uses its slot's spare element and its slot's counts. A signal handler may run a program on this thread
//! and slot in the middle of an update: it finds `busy` set and gets `EBUSY`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::free_list::Pocket;
use crate::errno::{Errno, OpResult};

/// The state that one execution slot owns in a map. Written only by the thread in that slot; the slot's lease orders
/// the hand-over from thread to thread.
#[derive(Debug)]
pub(super) struct SlotState {
    busy: AtomicBool,
    spare: AtomicU32,
    /// The slot's one-element share of the free list.
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
        // Relaxed: there is one writer. Release pairs with the acquire in `counts`: a thread that counts an insert
        // sees it done (its lock released). `removed` is published by the exchange that follows it.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// An operation in progress, which owns the slot's state.
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

    /// Leaves the operation open for the code that calls [`Op::passed_on`].
    #[inline(always)]
    pub(super) fn pass_on(self) {
        std::mem::forget(self);
    }

    /// Continues an operation that another function has begun in this slot.
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
        // Pairs with the fence in `begin`: all accesses of the operation come before a handler may begin another.
        compiler_fence(Ordering::SeqCst);
        self.0.busy.store(false, Ordering::Relaxed);
    }
}
