//! Compilers and verifiers between loads, with the scratch memory that they keep.
//!
//! Problem: a load is fast with an item whose memory is warm, and an item that another thread used last is in another
//! core's cache. Approach: a few shelves; a thread takes an item from its own shelf and puts it back there, by one
//! atomic exchange each. Threads that share a shelf are correct, only slower: a shelf holds one item, and others are in
//! a list behind a lock. No thread waits for that lock, which in a forked child may be held for ever: a thread that
//! finds it taken makes a new item, or drops its own.
//!
//! Invariant: no lock is held while an item is in use.

use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use std::fmt;
use std::sync::Mutex;

const SHELVES: usize = 8;

/// Items not in use.
pub(crate) struct Pool<I> {
    shelves: [CachePadded<Shelf<I>>; SHELVES],
}

struct Shelf<I> {
    /// Lock-free, as large as a pointer.
    item: AtomicCell<Option<Box<I>>>,
    /// Boxed as well, so that taking an item moves a pointer and not a kilobyte.
    #[allow(clippy::vec_box, reason = "see above")]
    more: Mutex<Vec<Box<I>>>,
}

impl<I> Default for Shelf<I> {
    fn default() -> Self {
        Shelf { item: AtomicCell::new(None), more: Mutex::default() }
    }
}

impl<I> Default for Pool<I> {
    fn default() -> Self {
        Pool { shelves: Default::default() }
    }
}

impl<I> fmt::Debug for Pool<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl<I: Default> Pool<I> {
    /// Lends an idle item, or a new one, to `f`.
    pub(crate) fn lend<T>(&self, f: impl FnOnce(&mut I) -> T) -> T {
        let shelf = &self.shelves[bpf_quiesce::thread_number() % SHELVES];
        let more = || shelf.more.try_lock().ok()?.pop();
        let mut item = shelf.item.take().or_else(more).unwrap_or_default();
        let result = f(&mut item);
        // A nested `lend`, or another thread on this shelf, may have put its item back meanwhile.
        if let Some(other) = shelf.item.swap(Some(item))
            && let Ok(mut more) = shelf.more.try_lock()
        {
            more.push(other);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_back_what_it_used_last() {
        let pool = Pool::<u32>::default();
        pool.lend(|item| *item = 7);
        assert_eq!(pool.lend(|item| *item), 7);
        // A nested `lend` gets a different item.
        pool.lend(|outer| {
            *outer = 8;
            assert_eq!(pool.lend(|inner| *inner), 0);
        });
        // Both items were put back.
        let back = |shelf: &CachePadded<Shelf<u32>>| {
            usize::from(shelf.item.take().is_some()) + shelf.more.lock().unwrap().len()
        };
        assert_eq!(pool.shelves.iter().map(back).sum::<usize>(), 2);
        assert!(AtomicCell::<Option<Box<u32>>>::is_lock_free());
    }
}
