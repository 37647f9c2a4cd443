//! The calling thread's part of the protocol: the record it used last, and whether a signal handler may use it now.
//!
//! Problem: a signal handler may run a program too, and may interrupt its thread between any two instructions of this
//! crate: while the thread changes its registrations, or holds a lock that the handler's run would wait for. Approach:
//! code that takes the registry's lock or changes the thread's registrations does so in a [`Section`]. In a section the
//! cache names no domain, so an entry takes the slow path, which refuses it ([`crate::EnterError::Signal`]). Outside of
//! sections a handler's guard nests ([`crate::core::Core::enter`]), whatever instruction it interrupted.
//!
//! Invariant: in a section only the section's own code changes the cache or the registrations. Handlers are refused
//! in sections, in an entry that has no slot yet, and nowhere else.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::record::Record;

struct Cache {
    domain: Cell<u64>,
    record: Cell<NonNull<Record>>,
    /// Number of sections the thread is in.
    sections: Cell<u32>,
}

/// The domain number of an empty cache; no domain has it.
const NO_DOMAIN: u64 = 0;

thread_local! {
    /// The cache has no destructor, so reading it is one access relative to the thread pointer.
    static CACHE: Cache = const {
        Cache { domain: Cell::new(NO_DOMAIN), record: Cell::new(NonNull::dangling()), sections: Cell::new(0) }
    };
}

/// The cached record, if it is that of this domain.
#[inline]
pub(crate) fn cached(domain: u64) -> Option<NonNull<Record>> {
    CACHE.with(|cache| (cache.domain.get() == domain).then(|| cache.record.get()))
}

/// Empties the cache, because the records are about to be dropped.
pub(crate) fn forget() {
    CACHE.with(|cache| cache.domain.set(NO_DOMAIN));
}

/// Returns whether the caller is a signal handler that interrupted its thread in a section of this crate: while the
/// thread was registering, was waiting for a slot or for a grace period, or was waking a waiting thread.
///
/// There the thread may have been in the allocator. [`Domain::enter_run`](crate::Domain::enter_run) returns
/// [`EnterError::Signal`](crate::EnterError::Signal) there.
///
/// ```
/// assert!(!bpf_quiesce::interrupted(), "this is no signal handler");
/// ```
#[inline]
pub fn interrupted() -> bool {
    // A section's own code does not ask.
    CACHE.with(|cache| cache.sections.get() != 0)
}

/// A section: while it lives, signal handlers of this thread enter no domain.
pub(crate) struct Section {
    domain: u64,
}

impl Section {
    pub(crate) fn begin() -> Section {
        CACHE.with(|cache| {
            cache.sections.set(cache.sections.get() + 1);
            // A handler that interrupts before the next store uses the cache, as it would have before the section.
            compiler_fence(Ordering::SeqCst);
            let domain = cache.domain.replace(NO_DOMAIN);
            compiler_fence(Ordering::SeqCst);
            Section { domain }
        })
    }

    /// Sets the record that the cache holds after the section.
    pub(crate) fn cache(&mut self, domain: u64, record: NonNull<Record>) {
        CACHE.with(|cache| cache.record.set(record));
        self.domain = domain;
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        CACHE.with(|cache| {
            compiler_fence(Ordering::SeqCst);
            cache.domain.set(self.domain);
            compiler_fence(Ordering::SeqCst);
            cache.sections.set(cache.sections.get() - 1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Section, interrupted};

    #[test]
    fn a_section_is_seen_until_it_ends() {
        let outer = Section::begin();
        drop(Section::begin());
        assert!(interrupted());
        drop(outer);
        assert!(!interrupted());
    }
}
