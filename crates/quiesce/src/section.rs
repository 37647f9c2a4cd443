//! The calling thread's part of the protocol: the record it used last, and whether a signal handler may use it now.
//!
//! Problem: a signal handler may run a program too, and it may strike between any two instructions of this crate: while
//! this thread changes its registrations, or holds a lock that the handler's run would wait for. Approach: whatever
//! takes the registry's lock or changes the thread's registrations does so in a [`Section`]. In a section the cache
//! names no domain, so that an entry takes the slow way, and that refuses ([`crate::EnterError::Signal`]). Outside of
//! sections a handler's guard nests ([`crate::core::Core::enter`]), whatever instruction it struck at.
//!
//! Invariant: in a section nobody but the section's own code changes the cache or the registrations. Handlers are
//! refused in sections, in an entry that has no slot yet, and nowhere else.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::record::Record;

struct Cache {
    domain: Cell<u64>,
    record: Cell<NonNull<Record>>,
    /// Sections this thread is in.
    sections: Cell<u32>,
}

/// No domain has this number.
const NO_DOMAIN: u64 = 0;

thread_local! {
    /// No destructor, so reading it is one access relative to the thread pointer.
    static CACHE: Cache = const {
        Cache { domain: Cell::new(NO_DOMAIN), record: Cell::new(NonNull::dangling()), sections: Cell::new(0) }
    };
}

/// The record of this domain, if it is the one that was used last.
#[inline]
pub(crate) fn cached(domain: u64) -> Option<NonNull<Record>> {
    CACHE.with(|cache| (cache.domain.get() == domain).then(|| cache.record.get()))
}

/// Nothing is cached from now on: the records go.
pub(crate) fn forget() {
    CACHE.with(|cache| cache.domain.set(NO_DOMAIN));
}

/// Whether the calling thread is in a section. Only in a signal handler is it: a section's own code does not ask.
pub(crate) fn interrupted() -> bool {
    CACHE.with(|cache| cache.sections.get() != 0)
}

/// While it lives, signal handlers of this thread enter no domain.
pub(crate) struct Section {
    domain: u64,
}

impl Section {
    pub(crate) fn begin() -> Section {
        CACHE.with(|cache| {
            cache.sections.set(cache.sections.get() + 1);
            // A handler that strikes before the next store enters by the cache, as if it had struck before the section.
            compiler_fence(Ordering::SeqCst);
            let domain = cache.domain.replace(NO_DOMAIN);
            compiler_fence(Ordering::SeqCst);
            Section { domain }
        })
    }

    /// Caches this record when the section ends.
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
