//! The proven least length of each region, and who asks for how much of it.
//!
//! Problem: a test of a packet's length stays known after the last pointer into the packet is gone, and kept apart
//! paths that do nothing with the packet any more. (The kernel has what is proven in the pointers: it ends with them.)
//! And paths that have proven 34 and 14 bytes are alike to one that tests for 40 before it reads.
//!
//! Approach: what is proven is read and changed here only, and each reader leaves how many bytes it asked for, which
//! the next entry of the trail takes (`crate::walk::trail`). A kept state knows no more of a region's length afterwards
//! than what paths from it have asked for, and have not learnt themselves.
//!
//! What happens to a length on a path is a function from what is needed after it to what is needed before: asking for
//! `a` bytes makes of `n` the greater of the two; learning that there are `l` makes 0 of an `n` up to `l`, and leaves a
//! greater one; so does replacing the regions, with all for `l`. These functions are closed under composition, so that
//! two numbers a region say what has happened since the last entry ([`Since`]), in the order in which it has. Each of
//! them is its own square: what is entered twice does no harm.
//!
//! Invariants: whatever a step of the walk makes of a length goes through a method that says so. Not to know that there
//! are so many bytes takes nothing: where more is known, no more ways are gone. Comparisons of states
//! ([`Lens::covers`]) say nothing: they prove what they say of the states that they are given. A copy has what has not
//! been entered yet: on its path, too, that has happened. So what one side of a branch learns, the copy that goes there
//! learns, and what the other side learns, the current state once that copy is left for later, which enters what
//! both have in common (`Walk::leave`). Whoever asks a copy that is then thrown away hands on what was asked
//! ([`Lens::ask_as`]), but for guesses about loops, in which all lengths are needed (`with_numbers`).

use std::cell::Cell;
use std::ops::{Index, IndexMut};

use crate::env::Region;
use crate::faults::planted;

/// So many bytes of a region are needed; [`ALL`]: whatever is known of it is.
pub(crate) type Bytes = u16;

pub(crate) const ALL: Bytes = Bytes::MAX;

/// A length, as code sees it that is proven for all of them (`cargo xtask prove`).
pub trait Length: Copy + PartialOrd {
    /// Nothing.
    const NONE: Self;
    /// More than any that is asked for.
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

/// What has happened to a length on a part of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Since<L = Bytes> {
    /// So many bytes were asked for, which had not been learnt before.
    pub asked: L,
    /// So many have been learnt of; the most that there is: the region was replaced by another one.
    pub learnt: L,
}

impl<L: Length> Since<L> {
    /// What is needed before it, where this is needed afterwards.
    pub fn before(self, after: L) -> L {
        let learnt = if planted!(LearntSuffices) && self.learnt != L::NONE { L::ALL } else { self.learnt };
        if after <= learnt { self.asked } else { greater(self.asked, after) }
    }

    /// And then so many bytes were asked for.
    #[must_use]
    pub fn ask(self, bytes: L) -> Since<L> {
        if bytes <= self.learnt { self } else { Since { asked: greater(self.asked, bytes), ..self } }
    }

    /// And then so many were learnt of.
    #[must_use]
    pub fn learn(self, bytes: L) -> Since<L> {
        Since { learnt: greater(self.learnt, bytes), ..self }
    }
}

/// What is kept of what is known, where so much is needed.
pub fn kept_length<L: Length>(least: L, needed: L) -> L {
    if least <= needed { least } else { needed }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lens {
    least: [u32; Region::MAX_REGIONS],
    /// Since it was last taken.
    since: [Cell<Since>; Region::MAX_REGIONS],
    /// Whether any of that is not nothing.
    any: Cell<bool>,
}

impl Lens {
    pub(crate) fn new(least: [u32; Region::MAX_REGIONS]) -> Lens {
        Lens { least, ..Lens::default() }
    }

    /// The regions are others from here on, of which only this is known.
    pub(crate) fn move_all(&mut self, least: [u32; Region::MAX_REGIONS]) {
        self.least = least;
        self.since.iter().for_each(|s| s.set(s.get().learn(ALL)));
        self.any.set(true);
    }

    pub(crate) fn len(&self) -> usize {
        self.least.len()
    }

    /// Whether a region is known to have so many bytes.
    pub(crate) fn has(&self, region: usize, bytes: i64) -> bool {
        let has = self.least.get(region).is_some_and(|least| i64::from(*least) >= bytes);
        if has && bytes > 0 {
            self.ask(region, Bytes::try_from(bytes).unwrap_or(ALL));
        }
        has
    }

    /// It has.
    pub(crate) fn learn(&mut self, region: usize, bytes: u32) {
        self.least[region] = self.least[region].max(bytes);
        let since = &self.since[region];
        since.set(since.get().learn(Bytes::try_from(bytes).unwrap_or(ALL).min(ALL - 1)));
        self.any.set(true);
    }

    /// What is known, for one who says himself what it is needed for.
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

    /// Leaves only what holds of both.
    pub(crate) fn meet(&mut self, other: &Lens) {
        (0..Region::MAX_REGIONS).for_each(|region| self.ask(region, ALL));
        self.least.iter_mut().zip(&other.least).for_each(|(a, b)| *a = (*a).min(*b));
    }

    /// Whether all that is proven in the old state is in the new one.
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

    /// Whether something has happened since that was last taken.
    #[inline]
    pub(crate) fn any_since(&self) -> bool {
        self.any.get()
    }

    /// What has, by region.
    pub(crate) fn take_since(&mut self) -> [Since; Region::MAX_REGIONS] {
        self.any.set(false);
        std::array::from_fn(|region| self.since[region].take())
    }

    /// What the other, a copy, was asked for is asked of this one.
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

    /// All that happens, one after the other, and at once.
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
