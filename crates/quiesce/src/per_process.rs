//! A process-wide value behind a lock that a forked child never waits for.
//!
//! Problem: a child of `fork` has a copy of each lock of its parent and of none of the threads that hold them. A child
//! that locks what a parent's thread had locked waits for ever, and the value behind it may be half changed.
//!
//! Approach: each process has a value and a lock of its own. The first use in a child makes both. It learns whether
//! the parent's lock was free when the process was forked, and only then sees the parent's value.
//!
//! Invariant: no process waits for the lock of another one. The lock of a process is made by that process, or, in the
//! process that loaded the library, with the static.
//!
//! Processes are told apart by their [`Generation`]. A child that shares its parent's memory (`vfork`) is of the
//! parent's generation, and uses the parent's value.

use crate::fork::Generation;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// A value for a `static` of which each process has its own, behind a lock that a forked child never waits for.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    first: Own<T>,
    /// The value of a forked child, never freed; null in a process that did not need one.
    child: AtomicPtr<Own<T>>,
    begin: fn(Begin<'_, T>) -> T,
}

/// The circumstances under which a process makes its value.
#[derive(Debug)]
pub enum Begin<'a, T> {
    /// The process was not forked from one that had used the value.
    First,
    /// Forked while no thread used the parent's value, which is this one.
    Forked(&'a T),
    /// Forked while a thread of the parent used its value. Data that is changed under the lock may be half changed.
    ForkedInside,
}

#[derive(Debug)]
struct Own<T: 'static> {
    /// The number of the process generation; 0 before the first use.
    generation: AtomicU64,
    parent: Option<&'static Own<T>>,
    /// `None` before the first use.
    value: Mutex<Option<T>>,
}

impl<T> PerProcess<T> {
    /// Makes the static. `begin` makes the value of each process at the first use there.
    pub const fn new(begin: fn(Begin<'_, T>) -> T) -> Self {
        let first = Own { generation: AtomicU64::new(0), parent: None, value: Mutex::new(None) };
        PerProcess { first, child: AtomicPtr::new(ptr::null_mut()), begin }
    }

    /// Calls `work` with the value of the calling process, under its lock. A lock that a panic poisoned is used as it
    /// is.
    pub fn with<R>(&'static self, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_in(Generation::current().number(), work)
    }

    fn with_in<R>(&'static self, generation: u64, work: impl FnOnce(&mut T) -> R) -> R {
        let own = self.own(generation);
        let mut value = own.value.lock().unwrap_or_else(PoisonError::into_inner);
        let value = value.get_or_insert_with(|| {
            let Some(parent) = own.parent else { return (self.begin)(Begin::First) };
            // Nobody else looks at the parent's lock in this process: the lock of the own value is held.
            match parent.value.try_lock() {
                Ok(inherited) => (self.begin)(inherited.as_ref().map_or(Begin::First, Begin::Forked)),
                Err(TryLockError::Poisoned(inherited)) => {
                    (self.begin)(inherited.get_ref().as_ref().map_or(Begin::First, Begin::Forked))
                }
                Err(TryLockError::WouldBlock) => (self.begin)(Begin::ForkedInside),
            }
        });
        work(value)
    }

    /// The value's place in this process.
    fn own(&'static self, generation: u64) -> &'static Own<T> {
        loop {
            // Acquire: pairs with the exchange below, so that the contents of a child's place are seen.
            let child = self.child.load(Ordering::Acquire);
            // SAFETY: null or made by `Box::leak` below, and never freed.
            let last = unsafe { child.as_ref() }.unwrap_or(&self.first);
            // Relaxed: the number publishes nothing. Only the static's own place has 0, and its first user's generation
            // takes it.
            match last.generation.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(owner) if owner == generation => return last,
                Err(_) => {}
            }
            let made = Own { generation: AtomicU64::new(generation), parent: Some(last), value: Mutex::new(None) };
            let made = Box::leak(Box::new(made));
            // Release: pairs with the load above. If another thread was first, its place is found in the next round,
            // and this one is lost.
            let _ = self.child.compare_exchange(child, made, Ordering::Release, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the value came about, and a number that its process changed.
    type Value = (&'static str, u32);

    fn begin(begin: Begin<'_, Value>) -> Value {
        match begin {
            Begin::First => ("first", 0),
            Begin::Forked((_, number)) => ("forked", *number),
            Begin::ForkedInside => ("inside", 0),
        }
    }

    #[test]
    fn a_child_begins_with_its_parents_value() {
        static VALUE: PerProcess<Value> = PerProcess::new(begin);
        VALUE.with_in(1, |value| value.1 = 7);
        assert_eq!(VALUE.with_in(1, |value| *value), ("first", 7));
        VALUE.with_in(2, |value| assert_eq!(std::mem::replace(&mut value.1, 8), 7));
        assert_eq!(VALUE.with_in(2, |value| *value), ("forked", 8));
        assert_eq!(VALUE.with_in(3, |value| *value), ("forked", 8), "a child of the child");
    }

    #[test]
    fn a_child_never_waits_for_its_parents_lock() {
        static VALUE: PerProcess<Value> = PerProcess::new(begin);
        VALUE.with_in(1, |_| {
            assert_eq!(VALUE.with_in(2, |value| *value), ("inside", 0));
            VALUE.with_in(2, |_| assert_eq!(VALUE.with_in(3, |value| *value), ("inside", 0)));
        });
        static UNUSED: PerProcess<Value> = PerProcess::new(begin);
        assert_eq!(UNUSED.with_in(5, |value| *value), ("first", 0));
    }
}
