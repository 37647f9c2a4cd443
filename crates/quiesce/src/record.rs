//! The state that one thread publishes: whether it is inside a guard, since which epoch, in which slot.
//!
//! Approach: a few atomic words that their thread stores and others load; the protocol is in [`crate::core`].

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// [`Record::slot`] of a record without one.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// The published state of one registered thread.
#[derive(Debug)]
pub(crate) struct Record {
    /// 0: outside. Otherwise the epoch seen on entry and, in the low bits, how many guards are held.
    pub(crate) state: AtomicU64,
    /// The slot leased to this record, or [`NO_SLOT`]. Another thread may revoke it for a moment even while the record
    /// is inside, and then puts it back.
    pub(crate) slot: AtomicU32,
    /// The slot of the current run. Only the record's own thread uses it.
    pub(crate) running_slot: AtomicU32,
    /// Whether the thread was inside for a moment and stepped outside to wait for a slot since the end of a guard
    /// last read this. Only the record's own thread uses it.
    pub(crate) stepped_out: AtomicBool,
    /// Whether a thread sleeps until this record's next exit.
    pub(crate) attention: AtomicBool,
    /// The thread has ended: another may take the record (and the slot still in it).
    pub(crate) vacant: AtomicBool,
    /// The code epoch after which this thread last discarded its fetched instructions (careful domains only).
    pub(crate) code_seen: AtomicU64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            slot: AtomicU32::new(NO_SLOT),
            running_slot: AtomicU32::new(NO_SLOT),
            stepped_out: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            vacant: AtomicBool::new(false),
            code_seen: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether the record's own thread, which must be the caller, is inside a guard.
    #[inline]
    pub(crate) fn inside(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }

    /// The slot of the calling thread's own record.
    #[inline]
    pub(crate) fn own_slot(&self) -> Option<u32> {
        self.inside().then(|| self.running_slot())
    }

    /// The slot of the run that the calling thread's own record is inside.
    #[inline]
    pub(crate) fn running_slot(&self) -> u32 {
        self.running_slot.load(Ordering::Relaxed)
    }

    /// Called by the owning thread when it ends. A record whose guard outlives the thread's registration stays taken
    /// until [`crate::core::Desk::abandon`].
    pub(crate) fn vacate(&self) {
        if !self.inside() {
            // Release, pairs with the Acquire in `Core::register` and `Core::take_slot`: this thread's accesses under
            // its slot happen before the accesses of the slot's next owner.
            self.vacant.store(true, Ordering::Release);
        }
    }

    /// Whether the record's thread is in no guard.
    pub(crate) fn idle(&self) -> bool {
        // Acquire, pairs with the Release store of 0 in `Core::leave`: the reader's accesses happen before the accesses
        // after the grace period and before those of the slot's next owner.
        self.state.load(Ordering::Acquire) == 0
    }
}
