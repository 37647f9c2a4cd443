//! How others end a run that is going on.
//!
//! Problem: a thread that wants to end the runs of one program, or those whose time is over, must not end the run that
//! comes after in the same slot; and a run of a few nanoseconds cannot afford to be announced. Approach: the word whose
//! sign emitted code looks at anyway ([`bpf_jit_code::RunCtx::interrupt`]) says in its other bits which run it is, and
//! whoever ends one sets the sign by a compare-and-exchange of the whole word. A plain run stores the address of what
//! it is a run of, instead of a zero: nothing more. Of a run that others may end in more ways, and of one inside
//! another, the word is a number, and the rest is in a [`Watch`] beside it. Two runs that follow each other have the
//! same word if all that is known of them is the same: whoever meant the one may end the other, which is going on, too,
//! and is meant by the same description. What is known of a run inside another is not all in its description, so its
//! word is its own.
//!
//! Invariants: a word is 0 exactly while no run uses its level; only the thread that has the slot stores one that is
//! not, and others change none but by setting [`INTERRUPTED`] in one that they have looked at. The fields of a
//! [`Watch`] are those of the run whose word it is, or of a later one: then a compare-and-exchange of the earlier word
//! fails, or changes a word that is about to be overwritten.

use bpf_jit_code::RunCtx;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// Asks the run to stop.
pub(crate) const INTERRUPTED: u64 = RunCtx::INTERRUPTED;
/// The run has a [`Watch`]; the bits below are its number.
pub(crate) const WATCHED: u64 = 1 << 62;
/// Beside [`INTERRUPTED`]: because its deadline has passed.
pub(crate) const LATE: u64 = 1 << 61;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// The word of the plain runs of what is at this address: that is a multiple of 8, so nothing is lost, and the bits
/// above stay clear.
#[inline]
pub(crate) fn word_of<T>(what: *const T) -> u64 {
    const { assert!(align_of::<T>() >= 8) };
    what.addr() as u64 >> 3
}

/// What there is to know of a run that has limits, or is inside another.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The [`word_of`] the program, hook or dispatcher that is run.
    of: AtomicU64,
    /// The tick at which it is to end.
    deadline: AtomicU64,
    /// The number of the [`crate::Interrupter`] that may end the run; 0: none.
    interrupter: AtomicU64,
    /// Descriptions so far.
    number: AtomicU64,
}

/// What a watched run begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) of: u64,
    pub(crate) deadline: u64,
    pub(crate) interrupter: u64,
}

impl Watch {
    /// Of no run yet.
    pub(super) fn new() -> Watch {
        Watch {
            of: AtomicU64::new(0),
            deadline: AtomicU64::new(NEVER),
            interrupter: AtomicU64::new(0),
            // Never 0 in a word.
            number: AtomicU64::new(1),
        }
    }

    /// Makes `word`, which must be 0 and of this thread's slot, that of a run like this: of its own, unless the run
    /// before was like it.
    #[inline(always)]
    pub(super) fn begin(&self, word: &AtomicU64, run: Watched) {
        // Relaxed, until the last store: see there. A signal handler that strikes from here on takes another level, so
        // the fields stay as they are found.
        word.store(WATCHED, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let same = self.of.load(Ordering::Relaxed) == run.of
            && self.deadline.load(Ordering::Relaxed) == run.deadline
            && self.interrupter.load(Ordering::Relaxed) == run.interrupter;
        if !same {
            self.describe(run);
        }
        // Release pairs with the acquire of whoever reads the word: the fields are this run's, or a later one's. 61
        // bits do not run out.
        word.store(WATCHED | self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    /// The same with a word that no other run of the level ever has: for a run inside another, which whoever has
    /// interrupted that one ends, and not the next inside the next.
    pub(super) fn begin_apart(&self, word: &AtomicU64, run: Watched) {
        // Relaxed: as above.
        word.store(WATCHED, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.describe(run);
        // Release: as above.
        word.store(WATCHED | self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    fn describe(&self, run: Watched) {
        self.number.store(self.number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.of.store(run.of, Ordering::Relaxed);
        self.deadline.store(run.deadline, Ordering::Relaxed);
        self.interrupter.store(run.interrupter, Ordering::Relaxed);
    }

    /// The deadline of the run that has this word.
    pub(super) fn deadline(&self, word: u64) -> u64 {
        // Relaxed: the word was read with Acquire.
        if is_watched(word) { self.deadline.load(Ordering::Relaxed) } else { NEVER }
    }

    /// What the run that has this word is a run of.
    pub(super) fn of(&self, word: u64) -> u64 {
        if is_watched(word) { self.of.load(Ordering::Relaxed) } else { word & !(INTERRUPTED | LATE) }
    }

    /// Who may end the run that has this word.
    pub(super) fn interrupter(&self, word: u64) -> u64 {
        if is_watched(word) { self.interrupter.load(Ordering::Relaxed) } else { 0 }
    }
}

/// Whether the fields of the watch are about this word: not yet while it has no number.
fn is_watched(word: u64) -> bool {
    word & WATCHED != 0 && word & !(WATCHED | INTERRUPTED | LATE) != 0
}
