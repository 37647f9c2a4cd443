//! What keeps the memory of packs: an owner, which all [`crate::Packs`] share, and the programs.
//!
//! Problem: every program holds on to what it lies in, and counting holds is two writes a load to one place, for all
//! threads. Approach: holds are counted apart from the owner, spread over threads ([`bpf_quiesce::Users`]). The owner's
//! drop closes the count; the last holder, owner or program, frees.
//!
//! Invariant: the object is leaked by [`Owner::new`] and freed by exactly one drop, that of the last holder by the
//! count. A forked child does not free it: a thread that the child does not have may have been changing it.

use std::ops::Deref;
use std::ptr::NonNull;

use bpf_quiesce::Users;

/// An object that can be held.
pub(crate) trait Held: Send + Sync {
    /// Its holds.
    fn users(&self) -> &Users;

    /// Whether the object belongs to the process that this one was forked from.
    fn is_forked(&self) -> bool;
}

/// The owner's hold, which all [`crate::Packs`] share.
#[derive(Debug)]
pub(crate) struct Owner<T: Held>(NonNull<T>);

/// A program's hold.
#[derive(Debug)]
pub(crate) struct Hold<T: Held>(NonNull<T>);

// SAFETY: a shared reference, and the right to free what may be sent and shared.
unsafe impl<T: Held> Send for Owner<T> {}
// SAFETY: a shared one is a shared reference to what may be shared.
unsafe impl<T: Held> Sync for Owner<T> {}
// SAFETY: it is a counted reference to what may be shared, and its last one frees what may be sent.
unsafe impl<T: Held> Send for Hold<T> {}
// SAFETY: a shared one is a shared reference to what may be shared.
unsafe impl<T: Held> Sync for Hold<T> {}

impl<T: Held> Owner<T> {
    pub(crate) fn new(held: T) -> Owner<T> {
        Owner(NonNull::from(Box::leak(Box::new(held))))
    }
}

impl<T: Held> Hold<T> {
    pub(crate) fn new(owner: &Owner<T>) -> Hold<T> {
        // The owner is there, so the count is not closed.
        owner.users().enter();
        Hold(owner.0)
    }

    /// Whether this is a hold on that owner's object.
    pub(crate) fn is_of(&self, owner: &Owner<T>) -> bool {
        self.0 == owner.0
    }
}

impl<T: Held> Deref for Owner<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: freed when the owner has closed the count, in its drop, and no user is left.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Held> Deref for Hold<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: freed when no user is left, and this is one until its drop.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Held> Drop for Owner<T> {
    fn drop(&mut self) {
        if self.users().close() {
            // SAFETY: leaked in `new`; there is neither owner nor user any more.
            unsafe { free(self.0) };
        }
    }
}

impl<T: Held> Drop for Hold<T> {
    fn drop(&mut self) {
        if self.users().leave() {
            // SAFETY: leaked in `new`; the last to leave after the owner has closed is the only one with the pointer.
            unsafe { free(self.0) };
        }
    }
}

/// Frees it, unless that is the parent's business.
///
/// # Safety
/// It was leaked by [`Owner::new`], nobody else refers to it, and nobody will.
unsafe fn free<T: Held>(held: NonNull<T>) {
    // SAFETY: leaked by `Owner::new`, and freed nowhere but below.
    if !unsafe { held.as_ref() }.is_forked() {
        // SAFETY: made by `Box::leak` in `Owner::new`; nobody refers to it any more, and the one caller that finds
        // itself the last comes here once.
        drop(unsafe { Box::from_raw(held.as_ptr()) });
    }
}
