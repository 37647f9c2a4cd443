//! Spreading what threads share over several cache lines: a number for each thread, and a count of users that has one
//! line for each of a few shards.
//!
//! Problem: an object that every program holds on to (an engine, its memory) is counted twice a load; two threads that
//! load at once pass the count's cache line to and fro, which costs each as much as all its other bookkeeping.
//!
//! Approach: users are added and removed on the shard of the calling thread. A single shard's count has no meaning
//! and may be negative. While the object has an owner ([`Users::close`] has not been called) the sum is not needed.
//! Closing marks each shard and moves its count to one common count. A user that leaves a marked shard is subtracted
//! from the common count, and the one that brings the common count to zero is the last.
//!
//! Invariant: a user that leaves does not touch the object after the one operation that removes it: on its shard if
//! that is not marked, on the common count if it is. Until the closing thread has added the moved counts, in one
//! addition, the common count is zero or less, so no user is taken for the last one too early.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicIsize, Ordering};

/// Number of shards of [`Users`]. Other structures spread over threads should use this number too.
#[cfg(not(loom))]
pub const SHARDS: usize = 8;
#[cfg(loom)]
pub(crate) const SHARDS: usize = 2;

/// Set in a shard's count once the object is closed.
const CLOSED: isize = 1;
/// One user; bit 0 is [`CLOSED`].
const ONE: isize = 2;

/// A small number of the calling thread, different for each thread. Numbers are given in the order of first calls, so
/// modulo the number of shards they spread threads evenly.
#[cfg(not(loom))]
#[inline]
pub fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;

    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // 0: no number yet. It has no destructor, so it is available while the thread ends as well.
    thread_local!(static OWN: Cell<usize> = const { Cell::new(0) });
    match OWN.get() {
        0 => {
            // Relaxed: only the numbers matter.
            let drawn = NEXT.fetch_add(1, Ordering::Relaxed);
            OWN.set(drawn);
            drawn
        }
        own => own,
    }
}

/// Number of users that an object has besides its owner: cheap to change, and exact once the owner has left.
#[derive(Debug)]
pub struct Users {
    shards: [CachePadded<AtomicIsize>; SHARDS],
    /// Users of marked shards, after [`Users::close`].
    left: CachePadded<AtomicIsize>,
}

impl Default for Users {
    fn default() -> Self {
        Users {
            shards: std::array::from_fn(|_| CachePadded::new(AtomicIsize::new(0))),
            left: CachePadded::new(AtomicIsize::new(0)),
        }
    }
}

impl Users {
    /// Adds a user. The caller guarantees that [`Users::close`] is not called before this returns. Being a user does
    /// not suffice for that: a user added to a marked shard is counted nowhere.
    #[cfg(not(loom))]
    #[inline]
    pub fn enter(&self) {
        self.enter_on(thread_number() % SHARDS);
    }

    /// Removes a user, on any thread. True for the last one after [`Users::close`]: the object then belongs to the
    /// caller alone. After `false` the caller must not touch the object.
    #[cfg(not(loom))]
    #[inline]
    #[must_use = "the last user has to free the object"]
    pub fn leave(&self) -> bool {
        self.leave_on(thread_number() % SHARDS)
    }

    /// Ends the ownership, once. True if there is no user left, as for [`Users::leave`].
    #[must_use = "without users the owner has to free the object"]
    pub fn close(&self) -> bool {
        let mut moved = 0;
        for shard in &self.shards {
            // Release, pairs with the Acquire of a user that finds the mark. Acquire, pairs with the Release of users
            // that left before.
            moved += shard.fetch_or(CLOSED, Ordering::AcqRel) >> 1;
        }
        // Acquire and release: as in `leave_on`.
        self.left.fetch_add(moved, Ordering::AcqRel) + moved == 0
    }

    /// Number of users; exact only while none is added or removed.
    pub fn count(&self) -> usize {
        // Relaxed: a statistic.
        let open = self.shards.iter().map(|shard| shard.load(Ordering::Relaxed) >> 1).sum::<isize>();
        open.max(0) as usize
    }

    #[inline]
    pub(crate) fn enter_on(&self, shard: usize) {
        // Relaxed: no thread draws a conclusion from a growing count, as in `Arc`.
        self.shards[shard].fetch_add(ONE, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn leave_on(&self, shard: usize) -> bool {
        // Release: this user's accesses happen before the accesses of the last user to leave. Acquire pairs with
        // `close`.
        if self.shards[shard].fetch_sub(ONE, Ordering::AcqRel) & CLOSED == 0 {
            return false;
        }
        // Release as above. Acquire: the accesses of all other users happen before the object is freed.
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_have_numbers_of_their_own_and_keep_them() {
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| [thread_number(); 2])).collect();
        let mut numbers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        numbers.push([thread_number(); 2]);
        assert!(numbers.iter().all(|[first, second]| first == second));
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), 5);
    }

    #[test]
    fn the_last_one_knows_whatever_shards_the_others_left_from() {
        for users in 0..5 {
            let counted = Users::default();
            (0..users).for_each(|i| counted.enter_on(i % SHARDS));
            // Half of the users leave before the owner, from other shards than those they entered.
            for before in 0..users / 2 {
                assert!(!counted.leave_on(7 - before));
            }
            assert_eq!(counted.count(), users - users / 2);
            let mut lasts = usize::from(counted.close());
            assert_eq!(lasts == 1, users == 0);
            for after in users / 2..users {
                assert_eq!(lasts, 0, "others are left");
                lasts += usize::from(counted.leave_on(after * 3 % SHARDS));
            }
            assert_eq!(lasts, 1);
        }
    }
}
