//! The proven least length of each region, and how much of it later steps ask for.
//!
//! Problem: the result of a test of a packet's length stays known after the last pointer into the packet is gone, and
//! would keep paths apart that no longer use the packet. (In the kernel, proven lengths are stored in the pointers, so
//! they end with them.) Moreover, paths that have proven 34 and 14 bytes are equivalent for code that tests for 40
//! bytes before it reads.
//!
//! Approach: proven lengths are read and changed here only, and each reader records how many bytes it asked for; the
//! next entry of the trail takes the records (`crate::walk::trail`). A kept state then forgets what exceeds the bytes
//! that paths from it have asked for and not learnt themselves.
//!
//! The effect of a step on the need of a length is a function from the need after the step to the need before it.
//! Asking for `a` bytes maps `n` to the greater of both. Learning that there are `l` bytes maps an `n` up to `l` to 0,
//! and leaves a greater one. Replacing the regions learns all. These functions are closed under composition, so two
//! numbers for each region summarise all that happened since the last entry ([`Since`]), in order. Each function is
//! idempotent, so entering it twice is harmless.
//!
//! Invariants: every use of a length by a step of the walk goes through a method that records it. The answer that a
//! length is *not* proven records nothing: if more were known, no further branch would become feasible. Comparisons of
//! states ([`Lens::covers`]) record nothing: their conclusions hold for the two states at hand only. A copy of a state
//! inherits records that have not been entered, since they happened on its path, too. Each side of a branch records
//! what it learns itself: the copy that goes to one side, and the current state for the other, once the copy is
//! pending, with the records that both share entered before (`Walk::leave`). Code that asks a copy which is then
//! dropped hands the records on ([`Lens::ask_as`]), except in loops' candidate invariants, where all lengths are needed
//! (`with_numbers`).

use std::cell::Cell;
use std::ops::{Index, IndexMut};

use crate::env::Region;
use crate::faults::planted;

/// A need: a number of bytes of a region, or [`ALL`], the whole known length.
pub(crate) type Bytes = u16;

pub(crate) const ALL: Bytes = Bytes::MAX;

/// A length, generic so that the proof covers the code for all lengths (`cargo xtask prove`).
pub trait Length: Copy + PartialOrd {
    /// No bytes.
    const NONE: Self;
    /// More than any number that is asked for.
    const ALL: Self;
}

impl Length for Bytes {
    const NONE: Bytes = 0;
    const ALL: Bytes = ALL;
}

impl Length for u32 {
    const NONE: u32 = 0;
    const ALL: u32 = u32::MAX;
}

fn greater<L: Length>(a: L, b: L) -> L {
    if a <= b { b } else { a }
}

/// The effects on one length along a part of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Since<L = Bytes> {
    /// The bytes that were asked for and had not been learnt before.
    pub asked: L,
    /// The bytes that were learnt; [`Length::ALL`] if the region was replaced by another one.
    pub learnt: L,
}

impl<L: Length> Since<L> {
    /// The need before these effects, for the need `after` them.
    pub fn before(self, after: L) -> L {
        let learnt = if planted!(LearntSuffices) && self.learnt != L::NONE { L::ALL } else { self.learnt };
        if after <= learnt { self.asked } else { greater(self.asked, after) }
    }

    /// Appends a request for so many bytes.
    #[must_use]
    pub fn ask(self, bytes: L) -> Since<L> {
        if bytes <= self.learnt { self } else { Since { asked: greater(self.asked, bytes), ..self } }
    }

    /// Appends the learning of so many bytes.
    #[must_use]
    pub fn learn(self, bytes: L) -> Since<L> {
        Since { learnt: greater(self.learnt, bytes), ..self }
    }
}

/// The part of a known length that is kept where `needed` bytes are needed.
pub fn kept_length<L: Length>(least: L, needed: L) -> L {
    if least <= needed { least } else { needed }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lens {
    least: [u32; Region::MAX_REGIONS],
    /// The effects since the last [`Lens::take_since`].
    since: [Cell<Since>; Region::MAX_REGIONS],
    /// Whether any entry of `since` is not empty.
    any: Cell<bool>,
}

impl Lens {
    pub(crate) fn new(least: [u32; Region::MAX_REGIONS]) -> Lens {
        Lens { least, ..Lens::default() }
    }

    /// Replaces the regions by others, of which only these lengths are known.
    pub(crate) fn move_all(&mut self, least: [u32; Region::MAX_REGIONS]) {
        self.least = least;
        self.since.iter().for_each(|s| s.set(s.get().learn(ALL)));
        self.any.set(true);
    }

    pub(crate) fn len(&self) -> usize {
        self.least.len()
    }

    /// Whether a region is proven to have so many bytes.
    pub(crate) fn has(&self, region: usize, bytes: i64) -> bool {
        let has = self.least.get(region).is_some_and(|least| i64::from(*least) >= bytes);
        if has && bytes > 0 {
            self.ask(region, Bytes::try_from(bytes).unwrap_or(ALL));
        }
        has
    }

    /// Records a proven lower bound on the region's length.
    pub(crate) fn learn(&mut self, region: usize, bytes: u32) {
        self.least[region] = self.least[region].max(bytes);
        let since = &self.since[region];
        since.set(since.get().learn(Bytes::try_from(bytes).unwrap_or(ALL).min(ALL - 1)));
        self.any.set(true);
    }

    /// The known length, for callers that record the need themselves.
    pub(crate) fn unasked(&self, region: usize) -> u32 {
        self.least.get(region).copied().unwrap_or(0)
    }

    pub(crate) fn get(&self, region: usize) -> Option<&u32> {
        self.ask(region, ALL);
        self.least.get(region)
    }

    pub(crate) fn get_mut(&mut self, region: usize) -> Option<&mut u32> {
        self.ask(region, ALL);
        self.least.get_mut(region)
    }

    /// Keeps only what holds in both.
    pub(crate) fn meet(&mut self, other: &Lens) {
        (0..Region::MAX_REGIONS).for_each(|region| self.ask(region, ALL));
        self.least.iter_mut().zip(&other.least).for_each(|(a, b)| *a = (*a).min(*b));
    }

    /// Whether everything that is proven in the old state (`self`) is proven in the new one.
    pub(crate) fn covers(&self, new: &Lens) -> bool {
        self.least.iter().zip(&new.least).all(|(o, n)| n >= o)
    }

    /// Gives up what is known beyond what is needed.
    pub(crate) fn forget_all_but(&mut self, needed: &[Bytes; Region::MAX_REGIONS]) {
        for (least, needed) in self.least.iter_mut().zip(needed) {
            if *needed != ALL {
                *least = kept_length(*least, u32::from(*needed));
            }
        }
    }

    /// Whether anything was recorded since [`Lens::take_since`].
    #[inline]
    pub(crate) fn any_since(&self) -> bool {
        self.any.get()
    }

    /// The effects on each region; they are reset.
    pub(crate) fn take_since(&mut self) -> [Since; Region::MAX_REGIONS] {
        self.any.set(false);
        std::array::from_fn(|region| self.since[region].take())
    }

    /// Records the requests that were made of `other`, a copy.
    pub(crate) fn ask_as(&self, other: &Lens) {
        for (region, since) in other.since.iter().enumerate() {
            self.ask(region, since.get().asked);
        }
    }

    fn ask(&self, region: usize, bytes: Bytes) {
        if let Some(since) = self.since.get(region)
            && bytes != 0
        {
            since.set(since.get().ask(bytes));
            self.any.set(true);
        }
    }
}

impl Index<usize> for Lens {
    type Output = u32;

    fn index(&self, region: usize) -> &u32 {
        self.ask(region, ALL);
        &self.least[region]
    }
}

impl IndexMut<usize> for Lens {
    fn index_mut(&mut self, region: usize) -> &mut u32 {
        self.ask(region, ALL);
        &mut self.least[region]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the effects one after the other equal their composition.
    #[test]
    fn what_happens_composes() {
        let some = [0, 1, 2, 3, 5, 8, ALL - 1, ALL];
        let events = some.map(|n| Since { asked: n, learnt: 0 }).into_iter();
        let events: Vec<Since> = events.chain(some.map(|n| Since { asked: 0, learnt: n })).collect();
        let apply = |s: Since, e: Since| if e.learnt != 0 { s.learn(e.learnt) } else { s.ask(e.asked) };
        for a in &events {
            for b in &events {
                for c in &events {
                    let all = [*a, *b, *c];
                    let at_once = all.iter().fold(Since::default(), |s, e| apply(s, *e));
                    for after in some {
                        let one_by_one = all.iter().rev().fold(after, |n, e| e.before(n));
                        assert_eq!(at_once.before(after), one_by_one, "{all:?} {after}");
                        assert_eq!(at_once.before(one_by_one), one_by_one, "{all:?} {after}");
                    }
                }
            }
        }
    }
}
