//! The runs that lie ready, by execution slot.
//!
//! Problem: a run of a few nanoseconds cannot afford to make a structure of a hundred bytes, and to announce it to
//! whoever may want to interrupt it. Approach: an execution slot belongs to one thread at a time, so each has a [`Run`]
//! that lies ready ([`Runs`]), and other threads find the flag that interrupts it without asking. A run inside another
//! one of its thread (a host function that runs a program) finds the slot's taken and gets the next one in, which the
//! slot keeps from then on.

use crate::abi::run::{Run, RunConfig, interrupt_flag};
use bpf_quiesce::Guard;
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A run for each execution slot.
pub(crate) struct Runs {
    pub(crate) config: RunConfig,
    levels: Box<[CachePadded<Level>]>,
}

/// The run of one slot at one depth of nesting, and behind it those inside it: made when runs first nest so deep, and
/// kept, because other threads may be setting their flags.
struct Level {
    run: UnsafeCell<Run>,
    inner: AtomicPtr<CachePadded<Level>>,
}

// SAFETY: a `Run` is used by the thread that holds its slot, and the next one to hold it comes after it
// (`bpf_quiesce::Guard`). The one field that others access, the interrupt flag, is accessed atomically. What the
// pointers in it point to is used only by the thread that put them there, until its run ends.
unsafe impl Send for Level {}
// SAFETY: through a shared one only the interrupt flag is accessed by others than the thread that holds the slot,
// atomically.
unsafe impl Sync for Level {}

impl Level {
    fn new(slot: u32) -> CachePadded<Level> {
        CachePadded::new(Level { run: UnsafeCell::new(Run::new(slot)), inner: AtomicPtr::default() })
    }

    /// The level inside this one; null if runs never nested so deep.
    fn inner(&self) -> Option<&CachePadded<Level>> {
        // Acquire pairs with the release in `inner_or_new`: the level is initialised.
        let inner = self.inner.load(Ordering::Acquire);
        // SAFETY: null or made by `Box::into_raw`, and freed with `self` only.
        unsafe { inner.as_ref() }
    }

    /// The level inside this one. Only for the thread that holds the slot.
    fn inner_or_new(&self, slot: u32) -> &CachePadded<Level> {
        self.inner().unwrap_or_else(|| {
            let new = Box::into_raw(Box::new(Level::new(slot)));
            // Release: see `inner`; acquire likewise. Nobody stores here but this thread, and its signal handlers.
            let stored = self.inner.compare_exchange(core::ptr::null_mut(), new, Ordering::Release, Ordering::Acquire);
            let inner = stored.map_or_else(
                |other| {
                    // SAFETY: made above, and seen by nobody.
                    drop(unsafe { Box::from_raw(new) });
                    other
                },
                |_| new,
            );
            // SAFETY: made here or by a handler, and freed with `self` only.
            unsafe { &*inner }
        })
    }

    fn interrupt_flag(&self) -> &AtomicU32 {
        // SAFETY: the run lives as long as `self`; all who access its flag do so atomically.
        unsafe { interrupt_flag(self.run.get()) }
    }

    /// Whether no run uses it.
    ///
    /// # Safety
    /// The slot must be this thread's.
    #[inline]
    unsafe fn is_idle(&self) -> bool {
        let run = self.run.get();
        // SAFETY: the slot is this thread's, so nobody else uses its run, but for the flag.
        unsafe { (*run).host }.is_null()
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        let mut inner = *self.inner.get_mut();
        // Not by recursion: the configuration may allow any depth.
        while !inner.is_null() {
            // SAFETY: made by `Box::into_raw` in `inner_or_new`, and no longer reachable.
            let mut level = unsafe { Box::from_raw(inner) };
            inner = std::mem::take(level.inner.get_mut());
        }
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("slots", &self.levels.len()).finish_non_exhaustive()
    }
}

impl Runs {
    /// `None` if there is no memory for them.
    pub(crate) fn new(slots: u32, config: RunConfig) -> Option<Runs> {
        let mut levels = Vec::new();
        levels.try_reserve_exact(slots as usize).ok()?;
        levels.extend((0..slots).map(Level::new));
        Some(Runs { config, levels: levels.into_boxed_slice() })
    }

    /// Asks all runs to stop, nested ones too. A flag without a run is set in vain.
    pub(crate) fn interrupt(&self) {
        for slot in &self.levels {
            let mut level = Some(slot);
            while let Some(at) = level {
                // Release pairs with the acquire in `nested`, outermost first: an inner run that clears this has seen
                // the outer flag.
                at.interrupt_flag().store(1, Ordering::Release);
                level = at.inner();
            }
        }
    }

    /// The run of a slot, if no run of its thread is using it.
    #[inline]
    pub(super) fn idle_run(&self, guard: &Guard<'_>) -> Option<*mut Run> {
        let level = self.levels.get(guard.slot() as usize)?;
        // SAFETY: the slot is this thread's while the guard is held.
        unsafe { level.is_idle() }.then(|| level.run.get())
    }

    /// The outermost run of a slot that no run of its thread is using, inside one that is in use, with that one's flag.
    pub(super) fn idle_inner_run(&self, guard: &Guard<'_>) -> Option<(*mut Run, &AtomicU32)> {
        let mut outer = self.levels.get(guard.slot() as usize)?;
        loop {
            let inner = outer.inner_or_new(guard.slot());
            // SAFETY: the slot is this thread's while the guard is held.
            if unsafe { inner.is_idle() } {
                return Some((inner.run.get(), outer.interrupt_flag()));
            }
            outer = inner;
        }
    }
}
