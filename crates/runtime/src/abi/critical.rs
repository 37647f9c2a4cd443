//! Refuses to begin or poll a sleepable run in a signal handler that interrupted the same work.
//!
//! Problem: sleepable runs take locks and allocate. A signal handler that interrupts its thread there and uses such a
//! run would wait for its own thread, or find the allocator in the middle of a call. Approach: to begin, to poll or to
//! drop such a run is a [`Critical`] section as a whole, which is left around everything that is not this library's:
//! wakers ([`Critical::leave`]), and emitted code with all that it calls ([`outside`]). Host functions that wait are
//! called by emitted code, so a section begins in their shims ([`inside`]) and is left around closures and futures. The
//! library asks whether it has interrupted a section, here or in bpf-quiesce ([`interrupted`]), before it begins or
//! polls a run, which it refuses, and before it drops one, which it forgets.
//!
//! Limits: interruptions do not ask, so a host must not interrupt runs in a handler. The interpreter allocates outside
//! of sections.
//!
//! Invariants:
//! * No code of a host is called in a section. So one who asks in no section may wait for each of the locks: other
//!   threads have them, or nobody.
//! * A thread is in exactly one section where it switches to or from the stack of a run. So code on such a stack, which
//!   may go to another thread, sets the number of sections and does not change it.

use crate::abi::sync::{Mutex, MutexGuard, Ordering, compiler_fence, interrupted_in_domain};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

thread_local! {
    /// How many sections the thread is in. Without a destructor: one access relative to the thread pointer.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread is in a section, here or in bpf-quiesce: in code that does not ask, so the caller is a
/// signal handler.
#[inline]
pub(crate) fn interrupted() -> bool {
    SECTIONS.get() != 0 || interrupted_in_domain()
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

    /// Leaves the thread's sections, if it is in any, while the result lives: around code of a host.
    #[inline]
    pub(crate) fn leave() -> Left {
        compiler_fence(Ordering::SeqCst);
        Left(SECTIONS.replace(0), PhantomData)
    }
}

/// The sections that a thread has left, until this is dropped.
#[must_use]
pub(crate) struct Left(u32, PhantomData<*const ()>);

impl Drop for Left {
    #[inline]
    fn drop(&mut self) {
        SECTIONS.set(self.0);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Begins a section of the thread that is on a run's stack, unless it is in one. Not inlined: a function that lives
/// across a wait refers to no thread.
#[inline(never)]
pub(crate) fn inside() {
    SECTIONS.set(1);
    compiler_fence(Ordering::SeqCst);
}

/// Leaves the section of the thread that is on a run's stack, before emitted code goes on.
#[inline(never)]
pub(crate) fn outside() {
    compiler_fence(Ordering::SeqCst);
    SECTIONS.set(0);
}

/// Returns the content of a box, whose memory is freed in a section.
pub(crate) fn unboxed<T>(value: Box<T>) -> T {
    let _critical = Critical::enter();
    // Freed before the section ends, as a parameter would not be.
    let value = value;
    *value
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
