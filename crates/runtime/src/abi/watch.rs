//! How other threads end a run in progress.
//!
//! Problem: a thread that ends the runs of one program, or runs whose deadline has passed, must not end the next run in
//! the same slot; and a run of a few nanoseconds cannot afford to register itself. Approach: emitted code tests the
//! sign of one word ([`bpf_jit_code::RunCtx::interrupt`]). The other bits of the word identify the run, and a thread
//! that ends a run sets the sign by a compare-and-exchange of the whole word. A plain run stores the address of the
//! program, hook or dispatcher that is run. A run with limits, or inside another run, stores a number, and its
//! description is in a [`Watch`] beside the word. Two consecutive runs have the same word if their descriptions are
//! equal. A thread that means the first may then end the second, which is in progress and fits the same description.
//! The description of a nested run does not name the run outside, which may be interrupted, so each nested run has a
//! unique word. A run around which others are listed ([`crate::abi::around`]) is given one when the first is.
//!
//! Invariants: a word is 0 exactly while no run uses its level; only the thread that has the slot stores another value,
//! and other threads only set [`INTERRUPTED`] (and [`LATE`]) in a word that they have read. The word of a run changes
//! at most once in another way ([`Watch::tell_apart`]), and not after it was marked: a thread whose exchange fails
//! tries again once. The fields of a [`Watch`] are those of the run whose word it is, or of a later one: then a
//! compare-and-exchange of the earlier word fails, or changes a word that is about to be overwritten.

use crate::abi::sync::{AtomicU64, Ordering, compiler_fence};
use bpf_jit_code::RunCtx;

/// Asks the run to stop.
pub(crate) const INTERRUPTED: u64 = RunCtx::INTERRUPTED;
/// The run has a [`Watch`]; the bits below are its number.
pub(crate) const WATCHED: u64 = 1 << 62;
/// Set together with [`INTERRUPTED`] if the deadline has passed.
pub(crate) const LATE: u64 = 1 << 61;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// Returns the word of plain runs of the program, hook or dispatcher at this address. The address is a multiple of 8,
/// so no bit is lost, and the flag bits stay clear.
#[inline]
pub(crate) fn word_of<T>(what: *const T) -> u64 {
    const { assert!(align_of::<T>() >= 8) };
    what.addr() as u64 >> 3
}

/// The description of a run that has limits, or is inside another.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The [`word_of`] the program, hook or dispatcher that is run.
    of: AtomicU64,
    /// The tick at which it is to end.
    deadline: AtomicU64,
    /// The number of the [`crate::Interrupter`] that may end the run; 0: none.
    interrupter: AtomicU64,
    /// The number of the current description.
    number: AtomicU64,
}

/// The fields that a watched run sets in its [`Watch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) of: u64,
    pub(crate) deadline: u64,
    pub(crate) interrupter: u64,
}

impl Watch {
    /// Makes a description of no run.
    pub(super) fn new() -> Watch {
        Watch {
            of: AtomicU64::new(0),
            deadline: AtomicU64::new(NEVER),
            interrupter: AtomicU64::new(0),
            // Never 0 in a word.
            number: AtomicU64::new(1),
        }
    }

    /// Describes a run and sets its `word`, which must be 0 and of this thread's slot. The word is new unless the last
    /// description was equal.
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
        // Release pairs with the acquire of readers of the word: the fields they see are this run's, or a later one's.
        // A number of 61 bits does not overflow.
        word.store(WATCHED | self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Describes a run, as [`Watch::begin`], with a word that no other run of the level has. For nested runs: an
    /// interruption of the run outside must not end a nested run of the next run outside.
    pub(super) fn begin_apart(&self, word: &AtomicU64, run: Watched) {
        // Relaxed: as above.
        word.store(WATCHED, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.describe(run);
        // Release: as above.
        word.store(WATCHED | self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Gives the run in progress, of this thread's slot, a word that no other run of the level has, unless it has one
    /// or was asked to end. Returns its unmarked word. For runs that are the outermost of their slot: runs inside
    /// others have such a word from the beginning.
    pub(super) fn tell_apart(&self, word: &AtomicU64) -> u64 {
        // Relaxed: this thread has stored the word, and other threads only mark it.
        let old = word.load(Ordering::Relaxed);
        // The number of the next run with an equal description is that of the last description. A run that was told
        // apart has the number below it.
        let is_apart = old == WATCHED | (self.number.load(Ordering::Relaxed) - 1);
        // A signal handler may find a word without a number, of a run that has not begun to run.
        if is_apart || old & INTERRUPTED != 0 || old == WATCHED {
            return unmarked(old);
        }
        // A reader that has found the old word reads these fields, if any, with the values that they had.
        self.describe(Watched { of: self.of(old), deadline: self.deadline(old), interrupter: self.interrupter(old) });
        let number = self.number.load(Ordering::Relaxed);
        // Release: as in `begin`. If it fails, the run was asked to end.
        if word.compare_exchange(old, WATCHED | number, Ordering::Release, Ordering::Relaxed).is_err() {
            return old;
        }
        self.number.store(number + 1, Ordering::Relaxed);
        WATCHED | number
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

    /// Returns the [`word_of`] the program, hook or dispatcher whose run has this word.
    pub(super) fn of(&self, word: u64) -> u64 {
        if is_watched(word) { self.of.load(Ordering::Relaxed) } else { unmarked(word) }
    }

    /// Returns the number of the [`crate::Interrupter`] that may end the run that has this word; 0: none.
    pub(super) fn interrupter(&self, word: u64) -> u64 {
        if is_watched(word) { self.interrupter.load(Ordering::Relaxed) } else { 0 }
    }
}

/// Returns the word as it was before any thread has asked the run to end.
pub(super) fn unmarked(word: u64) -> u64 {
    word & !(INTERRUPTED | LATE)
}

/// Returns whether the fields of the watch describe this word: not while the word has no number yet.
fn is_watched(word: u64) -> bool {
    word & WATCHED != 0 && unmarked(word) != WATCHED
}
