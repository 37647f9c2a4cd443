//! The state of the run that lies ready at one depth of nesting.

use crate::abi::run::{Run, counters, word};
use crate::abi::stopped;
use crate::abi::watch::Watch;
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The run of one slot at one depth of nesting, and a pointer to the level inside. A level is allocated when runs first
/// nest so deep, and kept, because other threads may be setting its flag.
pub(crate) struct Level {
    run: UnsafeCell<Run>,
    watch: Watch,
    inner: AtomicPtr<CachePadded<Level>>,
}

// SAFETY: a `Run` is used by the thread that holds its slot, and the next one to hold it comes after it
// (`bpf_quiesce::Guard`). The one field that others access, its word, is accessed atomically. The pointers in a `Run`
// are used only by the thread that has the run, until the run ends.
unsafe impl Send for Level {}
// SAFETY: through a shared reference, threads other than the one that holds the slot access only the run's word and the
// watch, atomically.
unsafe impl Sync for Level {}

impl Level {
    pub(super) fn new(slot: u32) -> CachePadded<Level> {
        CachePadded::new(Level {
            run: UnsafeCell::new(Run::new(slot, stopped::address())),
            watch: Watch::new(),
            inner: AtomicPtr::default(),
        })
    }

    /// The level inside this one; null if runs never nested so deep.
    pub(super) fn inner(&self) -> Option<&CachePadded<Level>> {
        // The level is initialised (the store in `inner_or_new` is a release too). SeqCst for `Runs::interrupt`.
        let inner = self.inner.load(Ordering::SeqCst);
        // SAFETY: null or made by `Box::into_raw`, and freed with `self` only.
        unsafe { inner.as_ref() }
    }

    /// The level inside this one. Only for the thread that holds the slot.
    pub(super) fn inner_or_new(&self, slot: u32) -> &CachePadded<Level> {
        self.inner().unwrap_or_else(|| {
            let new = Box::into_raw(Box::new(Level::new(slot)));
            // SeqCst: see `inner`. Nobody stores here but this thread, and its signal handlers.
            let stored = self.inner.compare_exchange(core::ptr::null_mut(), new, Ordering::SeqCst, Ordering::SeqCst);
            let inner = stored.map_or_else(
                |other| {
                    // SAFETY: made above, and not published.
                    drop(unsafe { Box::from_raw(new) });
                    other
                },
                |_| new,
            );
            // SAFETY: made here or by a handler, and freed with `self` only.
            unsafe { &*inner }
        })
    }

    /// Returns the level's run, for the thread that holds the slot.
    #[inline]
    pub(super) fn run(&self) -> *mut Run {
        self.run.get()
    }

    /// The word of its run.
    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        // SAFETY: the run lives as long as `self`; all who access its word do so atomically.
        unsafe { word(self.run.get()) }
    }

    /// The counters that its run has noted.
    pub(super) fn counters(&self) -> &AtomicU64 {
        // SAFETY: the run lives as long as `self`; the field is written by emitted code, with aligned stores, and
        // atomically.
        unsafe { counters(self.run.get()) }
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns whether no run uses the level. For the thread that holds the slot: to others the answer may be out of
    /// date.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        // Relaxed: this thread has stored the word, or the thread that held the slot before.
        self.word().load(Ordering::Relaxed) == 0
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        let mut inner = *self.inner.get_mut();
        // In a loop and not by recursion, since the configuration may allow any depth.
        while !inner.is_null() {
            // SAFETY: made by `Box::into_raw` in `inner_or_new`, and no longer reachable.
            let mut level = unsafe { Box::from_raw(inner) };
            inner = std::mem::take(level.inner.get_mut());
        }
    }
}
