//! What keeps the memory of packs: an owner, which all [`crate::Packs`] share, and the programs.
//!
//! Problem: every program holds on to what it lies in, and counting holds is two writes a load to one place, for all
//! threads. Approach: holds are counted apart from the owner, spread over threads ([`bpf_quiesce::Users`]). The owner's
//! drop closes the count; whoever is last then, owner or program, frees.
//!
//! Invariant: `Shared` is leaked by [`Owner::new`] and freed by exactly one drop, the one that the count says is the
//! last. In a forked child by none: a thread that the child does not have may have been changing it.

use std::ops::Deref;
use std::ptr::NonNull;

use crate::packs::Shared;

/// The one that all [`crate::Packs`] hold.
#[derive(Debug)]
pub(crate) struct Owner(NonNull<Shared>);

/// A program's hold.
#[derive(Debug)]
pub(crate) struct Hold(NonNull<Shared>);

// SAFETY: a shared reference, and the right to free what may be sent and shared.
unsafe impl Send for Owner {}
// SAFETY: a shared one is a shared reference to what may be shared.
unsafe impl Sync for Owner {}
// SAFETY: it is a counted reference to what may be shared, and its last one frees what may be sent.
unsafe impl Send for Hold {}
// SAFETY: a shared one is a shared reference to what may be shared.
unsafe impl Sync for Hold {}

impl Owner {
    pub(crate) fn new(shared: Shared) -> Owner {
        Owner(NonNull::from(Box::leak(Box::new(shared))))
    }
}

impl Hold {
    pub(crate) fn new(owner: &Owner) -> Hold {
        // The owner is there, so the count is not closed.
        owner.users.enter();
        Hold(owner.0)
    }

    /// Whether it is a hold on what that one owns.
    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.0 == owner.0
    }
}

impl Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        // SAFETY: freed when the owner has closed the count, in its drop, and no user is left.
        unsafe { self.0.as_ref() }
    }
}

impl Deref for Hold {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        // SAFETY: freed when no user is left, and this is one until its drop.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.users.close() {
            // SAFETY: leaked in `new`; there is neither owner nor user any more.
            unsafe { free(self.0) };
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.users.leave() {
            // SAFETY: as above.
            unsafe { free(self.0) };
        }
    }
}

/// Frees it, unless that is the parent's business.
///
/// # Safety
/// It was leaked by [`Owner::new`], nobody else refers to it, and nobody will.
unsafe fn free(shared: NonNull<Shared>) {
    // SAFETY: by contract.
    if !unsafe { shared.as_ref() }.domain.is_forked() {
        // SAFETY: by contract.
        drop(unsafe { Box::from_raw(shared.as_ptr()) });
    }
}

// What the impls above stand on.
const _: () = {
    const fn may_be_shared<T: Send + Sync>() {}
    may_be_shared::<Shared>();
};
