//! ThreadSanitizer's view of runs on stacks of their own.
//!
//! Problem: ThreadSanitizer keeps a stack of calls and a clock for each thread. A run that leaves its stack in the
//! middle of a call, and returns from the call on another thread, would put both out of order. Approach: each run is a
//! fiber to the sanitizer (`sanitizer/tsan_interface.h`), which each switch names. A later run on the same stack is
//! another fiber, because the first function of a run does not return and stays in the fiber's list of calls. Other
//! builds do nothing here. AddressSanitizer is told of the switches by corosensei (its feature `sanitizer`).

/// A run with a stack of its own, as ThreadSanitizer knows it.
#[derive(Debug)]
pub(super) struct Shadow {
    #[cfg(thread_sanitizer)]
    fiber: *mut core::ffi::c_void,
}

#[cfg(not(thread_sanitizer))]
impl Shadow {
    pub(super) fn new() -> Shadow {
        Shadow {}
    }

    /// Does `work`, which switches to the run's stack and back.
    #[inline(always)]
    pub(super) fn on<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(thread_sanitizer)]
mod imp {
    use super::Shadow;
    use core::ffi::{c_uint, c_void};

    // The sanitizer links its runtime in, which has these functions.
    unsafe extern "C" {
        safe fn __tsan_get_current_fiber() -> *mut c_void;
        safe fn __tsan_create_fiber(flags: c_uint) -> *mut c_void;
        fn __tsan_destroy_fiber(fiber: *mut c_void);
        fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint);
    }

    /// Flags of a switch that orders all before it before all after it.
    const ORDERED: c_uint = 0;

    impl Shadow {
        pub(in crate::abi) fn new() -> Shadow {
            Shadow { fiber: __tsan_create_fiber(0) }
        }

        /// Does `work`, which switches to the run's stack and back, and must not unwind.
        ///
        /// Both switches are in one function: the sanitizer notes where functions begin and end in
        /// the fiber that is current there.
        pub(in crate::abi) fn on<R>(&self, work: impl FnOnce() -> R) -> R {
            let thread = __tsan_get_current_fiber();
            // SAFETY: made by `new`; a run is on one thread at a time.
            unsafe { __tsan_switch_to_fiber(self.fiber, ORDERED) };
            let done = work();
            // SAFETY: the fiber that this thread was on above, which is still there.
            unsafe { __tsan_switch_to_fiber(thread, ORDERED) };
            done
        }
    }

    impl Drop for Shadow {
        fn drop(&mut self) {
            // SAFETY: made by `new`; no thread is on the run's stack, to which none switches again.
            unsafe { __tsan_destroy_fiber(self.fiber) }
        }
    }
}
