//! Refuses to begin or poll a sleepable run in a signal handler that interrupted the same work.
//!
//! Problem: sleepable runs take locks and allocate. A signal handler that interrupts its thread there and uses such a
//! run would wait for its own thread, or find the allocator in the middle of a call. Approach: a thread that has such
//! a lock ([`Lock`]), or allocates for such a run, is in a [`Critical`] section. Before a run is begun, polled or
//! dropped, the library asks whether it has interrupted a section ([`interrupted`]).
//!
//! Limits: interruptions do not ask, and what a run allocates when it ends by an error or is dropped is in no section:
//! a host must neither interrupt nor drop runs in a handler.
//!
//! Invariant: no code of a host is called in a section. So one who asks in no section may wait for each of the locks:
//! other threads have them, or nobody.

use crate::abi::sync::{Mutex, MutexGuard, Ordering, compiler_fence};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

thread_local! {
    /// How many sections the thread is in. Without a destructor: one access relative to the thread pointer.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread is in a section: in code of this crate that does not ask, so the caller is a signal
/// handler.
pub(crate) fn interrupted() -> bool {
    SECTIONS.get() != 0
}

/// A section, while it lives. Of one thread.
#[must_use]
pub(crate) struct Critical(PhantomData<*const ()>);

impl Critical {
    #[inline]
    pub(crate) fn enter() -> Critical {
        // A handler meanwhile leaves the number as it was.
        SECTIONS.set(SECTIONS.get() + 1);
        compiler_fence(Ordering::SeqCst);
        Critical(PhantomData)
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        SECTIONS.set(SECTIONS.get() - 1);
    }
}

/// A lock whose owner is in a section. Nothing under it panics, so poison means nothing.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let critical = Critical::enter();
        Locked { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), _critical: critical }
    }

    /// `None` if another has the lock.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        let critical = Critical::enter();
        match self.0.try_lock() {
            Ok(guard) => Some(Locked { guard, _critical: critical }),
            Err(TryLockError::Poisoned(poisoned)) => Some(Locked { guard: poisoned.into_inner(), _critical: critical }),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A lock that is held.
pub(crate) struct Locked<'l, T> {
    // Before the section: dropped first.
    guard: MutexGuard<'l, T>,
    _critical: Critical,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
