//! Records of a ring buffer that are being written.

use crate::plain::Plain;
use crate::sys;
use core::mem::forget;
use core::ptr::NonNull;

/// Reserved room for a record in a ring buffer. Dropping it discards the record.
#[derive(Debug)]
pub struct Reserved<T: Plain> {
    at: NonNull<T>,
}

impl<T: Plain> Reserved<T> {
    #[inline(always)]
    pub(crate) fn new(at: *mut T) -> Option<Self> {
        // Lazily, because dropping a `Reserved` discards a record.
        NonNull::new(at).map(|at| Reserved { at })
    }

    /// Writes the record and makes it visible to the host.
    #[inline(always)]
    pub fn submit(self, record: T) {
        // SAFETY: the room has the size of a record and is aligned to eight bytes.
        unsafe { self.at.write(record) };
        // SAFETY: reserved, and neither submitted nor discarded yet.
        unsafe { sys::submit(self.at.as_ptr()) };
        forget(self);
    }
}

impl<T: Plain> Drop for Reserved<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: reserved, and neither submitted nor discarded yet.
        unsafe { sys::discard(self.at.as_ptr()) };
    }
}
