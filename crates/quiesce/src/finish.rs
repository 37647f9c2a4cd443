//! Runs all steps of an operation, also when some of them panic.
//!
//! Problem: foreign values (captured by a host function; a listener of events) run code of the host when they are
//! dropped or called, and that code may panic. Unwinding skips the remaining steps of the operation, such as to queue a
//! drop for after a grace period; and a panic that leaves a destructor during unwinding aborts the process.
//!
//! Approach: each such step runs in a [`Finish`], which catches its panic and keeps the first one. Dropping the
//! `Finish` resumes that panic, unless the thread is unwinding already. Foreign values that are dropped outside a step
//! of a `Finish` are wrapped in [`Foreign`].

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Drops a panic's payload. If its destructor panics, the payload of that second panic is leaked, not dropped.
pub fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// Calls `step` and returns its result, or `None` if it panicked. The panic hook has run by then.
pub fn caught<R>(step: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(step)).map_err(drop_payload).ok()
}

/// Runs steps that must all be done, and panics with the first panic among them when it is dropped.
///
/// Declare the `Finish` before locals that must be dropped before it resumes a panic: locals are dropped in reverse
/// order. Drop the `Finish` before returning a value that has a destructor: a panic in the destructor of a local leaks
/// a return value that is already in place (rust-lang/rust issue 47949).
///
/// ```
/// use bpf_quiesce::Finish;
///
/// let mut done = 0;
/// let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
///     let mut finish = Finish::default();
///     finish.step(|| panic!("a listener"));
///     finish.step(|| done += 1);
/// }));
/// assert!(result.is_err() && done == 1);
/// ```
#[derive(Default)]
#[must_use = "a panic of a step is resumed when this is dropped"]
pub struct Finish {
    first: Option<Box<dyn Any + Send>>,
}

impl Finish {
    /// Calls `step` and returns its result, or `None` if it panicked.
    pub fn step<R>(&mut self, step: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(result) => Some(result),
            Err(payload) => {
                match self.first {
                    None => self.first = Some(payload),
                    Some(_) => drop_payload(payload),
                }
                None
            }
        }
    }

    /// Whether a step has panicked.
    pub fn has_panicked(&self) -> bool {
        self.first.is_some()
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let Some(first) = self.first.take() else { return };
        // A second panic that leaves a destructor aborts the process.
        if std::thread::panicking() { drop_payload(first) } else { resume_unwind(first) }
    }
}

impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finish").field("panicked", &self.has_panicked()).finish()
    }
}

/// A foreign value, whose destructor may panic anywhere, also during another panic and while the thread unwinds. Has
/// the layout of a `T`.
#[repr(transparent)]
pub struct Foreign<T>(ManuallyDrop<T>);

impl<T> Foreign<T> {
    /// Wraps the value.
    pub fn new(value: T) -> Foreign<T> {
        Foreign(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Foreign<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        let mut finish = Finish::default();
        finish.step(|| {
            // SAFETY: the value is not used again: this is the destructor of its owner.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        });
    }
}

impl<T: fmt::Debug> fmt::Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Bomb<'a>(&'a AtomicU32, &'static str);

    impl Drop for Bomb<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("{}", self.1);
        }
    }

    fn message(body: impl FnOnce()) -> Option<String> {
        let payload = catch_unwind(AssertUnwindSafe(body)).err()?;
        Some(payload.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    #[test]
    fn every_step_is_done_and_the_first_panic_is_resumed() {
        let drops = AtomicU32::new(0);
        let told = message(|| {
            let mut finish = Finish::default();
            assert_eq!(finish.step(|| 7), Some(7));
            finish.step(|| drop(Bomb(&drops, "first")));
            assert!(finish.has_panicked());
            finish.step(|| drop(Bomb(&drops, "second")));
        });
        assert_eq!((told.as_deref(), drops.load(Ordering::Relaxed)), (Some("first"), 2));
        assert_eq!(message(|| drop(Finish::default())), None);
    }

    #[test]
    fn a_panic_that_is_on_its_way_is_not_met_by_another() {
        let drops = AtomicU32::new(0);
        let told = message(|| {
            let mut finish = Finish::default();
            finish.step(|| drop(Bomb(&drops, "kept")));
            panic!("{}", "on its way");
        });
        assert_eq!(told.as_deref(), Some("on its way"));
        // Without the wrapper, the second panicking destructor aborts the process.
        let told = message(|| drop(vec![Foreign::new(Bomb(&drops, "one")), Foreign::new(Bomb(&drops, "other"))]));
        assert_eq!((told.as_deref(), drops.load(Ordering::Relaxed)), (Some("one"), 3));
    }
}
