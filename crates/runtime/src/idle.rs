//! Compilers and verifiers between loads, with the scratch memory that they keep.
//!
//! Problem: each load wants one whose memory is warm, and one that another thread used last has its memory in another core's cache.
//! Approach: a few shelves; a thread takes from its own and puts back there. Threads that share a shelf are correct, only slower.
//!
//! Invariant: no lock is held while an item is in use.

use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHELVES: usize = 8;

/// Items not in use.
#[derive(Debug)]
pub(crate) struct Idle<I> {
    /// Boxed: what is taken out and put back at each load is a pointer, not a kilobyte.
    #[allow(clippy::vec_box, reason = "see above")]
    shelves: [CachePadded<Mutex<Vec<Box<I>>>>; SHELVES],
}

impl<I> Default for Idle<I> {
    fn default() -> Self {
        Idle { shelves: Default::default() }
    }
}

impl<I: Default> Idle<I> {
    /// Lends an idle item, or a new one, to `f`.
    pub(crate) fn lend<T>(&self, f: impl FnOnce(&mut I) -> T) -> T {
        let shelf = &self.shelves[own_shelf()];
        // A statement of its own: the lock must not be held during `f`.
        let taken = lock(shelf).pop();
        let mut item = taken.unwrap_or_default();
        let result = f(&mut item);
        lock(shelf).push(item);
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shelf of this thread: threads take turns as they come.
fn own_shelf() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    // A thread that is ending has no thread-local storage left: any shelf will do.
    let own = OWN.try_with(|own| {
        let shelf = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % SHELVES);
        own.set(Some(shelf));
        shelf
    });
    own.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_back_what_it_used_last() {
        let idle = Idle::<u32>::default();
        idle.lend(|item| *item = 7);
        assert_eq!(idle.lend(|item| *item), 7);
        // One inside another is another one.
        idle.lend(|outer| {
            *outer = 8;
            assert_eq!(idle.lend(|inner| *inner), 0);
        });
        // Both are back.
        assert_eq!(idle.shelves.iter().map(|shelf| lock(shelf).len()).sum::<usize>(), 2);
    }
}
