//! Records of a ring buffer that are being written.

use crate::call::helper;
use crate::plain::Plain;
use core::ffi::c_void;
use core::mem::forget;
use core::ptr::NonNull;

/// Room for a record in a ring buffer. Dropped, it is given up.
#[derive(Debug)]
pub struct Reserved<T: Plain> {
    at: NonNull<T>,
}

impl<T: Plain> Reserved<T> {
    #[inline(always)]
    pub(crate) fn new(at: *mut T) -> Option<Self> {
        // Lazily: a `Reserved` that is made is dropped.
        NonNull::new(at).map(|at| Reserved { at })
    }

    /// Writes the record and gives it to the host.
    #[inline(always)]
    pub fn submit(self, record: T) {
        // SAFETY: the room has the size of a record and is aligned to eight bytes.
        unsafe { self.at.write(record) };
        let call = helper!(132: fn(*mut c_void, u64) -> ());
        // SAFETY: what was reserved, and not yet given away.
        unsafe { call(self.at.as_ptr().cast(), 0) };
        forget(self);
    }
}

impl<T: Plain> Drop for Reserved<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let call = helper!(133: fn(*mut c_void, u64) -> ());
        // SAFETY: what was reserved, and not yet given away.
        unsafe { call(self.at.as_ptr().cast(), 0) };
    }
}
