//! References that keep the memory of packs: the owner's, which all [`crate::Packs`] share, and the programs'.
//!
//! Problem: every program refers to the memory that it lies in. One reference count would be written twice per load,
//! by all threads in one place. Approach: program references are counted separately from the owner's, spread over
//! threads ([`bpf_quiesce::Users`]). Dropping the owner closes the count; the last holder, owner or program, frees
//! the object.
//!
//! Invariant: [`Owner::new`] leaks the object, and exactly one drop frees it, that of the last holder. A forked child
//! does not free it, because a thread that the child does not have may have been changing it.

use std::ops::Deref;
use std::ptr::NonNull;

use bpf_quiesce::Users;

/// An object that can be held.
pub(crate) trait Held: Send + Sync {
    /// The count of references to the object.
    fn users(&self) -> &Users;

    /// Whether the object was made by another process, from which this one was forked.
    fn is_forked(&self) -> bool;
}

/// The owner's reference, which all [`crate::Packs`] share.
#[derive(Debug)]
pub(crate) struct Owner<T: Held>(NonNull<T>);

/// A program's reference.
#[derive(Debug)]
pub(crate) struct Hold<T: Held>(NonNull<T>);

// SAFETY: a shared reference, and the right to free an object that is `Send + Sync`.
unsafe impl<T: Held> Send for Owner<T> {}
// SAFETY: a shared `Owner` gives only shared references to an object that is `Sync`.
unsafe impl<T: Held> Sync for Owner<T> {}
// SAFETY: a counted reference to an object that is `Sync`; the last one frees it, and it is `Send`.
unsafe impl<T: Held> Send for Hold<T> {}
// SAFETY: a shared `Hold` gives only shared references to an object that is `Sync`.
unsafe impl<T: Held> Sync for Hold<T> {}

impl<T: Held> Owner<T> {
    pub(crate) fn new(held: T) -> Owner<T> {
        Owner(NonNull::from(Box::leak(Box::new(held))))
    }
}

impl<T: Held> Hold<T> {
    pub(crate) fn new(owner: &Owner<T>) -> Hold<T> {
        // The owner exists, so the count is not closed.
        owner.users().enter();
        Hold(owner.0)
    }

    /// Whether this refers to that owner's object.
    pub(crate) fn is_of(&self, owner: &Owner<T>) -> bool {
        self.0 == owner.0
    }
}

impl<T: Held> Deref for Owner<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is freed only after the owner has closed the count, in its drop, and no user is left.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Held> Deref for Hold<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is freed when no user is left, and this is a user until its drop.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Held> Drop for Owner<T> {
    fn drop(&mut self) {
        if self.users().close() {
            // SAFETY: leaked in `new`; neither owner nor user is left.
            unsafe { free(self.0) };
        }
    }
}

impl<T: Held> Drop for Hold<T> {
    fn drop(&mut self) {
        if self.users().leave() {
            // SAFETY: leaked in `new`; the last user to leave after the owner has closed the count has the only
            // pointer.
            unsafe { free(self.0) };
        }
    }
}

/// Frees the object, unless this is a forked child and the object belongs to its parent.
///
/// # Safety
/// `held` was leaked by [`Owner::new`], and no reference to it is left or will be made.
unsafe fn free<T: Held>(held: NonNull<T>) {
    // SAFETY: leaked by `Owner::new`, and freed nowhere but below.
    if !unsafe { held.as_ref() }.is_forked() {
        // SAFETY: made by `Box::leak` in `Owner::new`; no reference to it is left, and only the last holder calls
        // this, once.
        drop(unsafe { Box::from_raw(held.as_ptr()) });
    }
}
