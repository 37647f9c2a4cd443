//! The memory that a thread loads from and drops to without meeting other threads.
//!
//! Problem: the chunks of all packs are under one lock ([`crate::packs`]); two cores that pass it to and fro, and the
//! allocator's lists with it, are slower together than one alone.
//!
//! Approach: threads are spread over a few shards. Each has its own queue of dropped programs, and when a batch of them
//! is free, keeps some of its runs at hand: of each length up to [`LONGEST`], as many as were asked for since the last
//! batch, and no more. So a thread that loads and unloads goes round in its own runs, and one that only drops keeps
//! nothing from being merged and given back for longer than a batch. Threads that share a shard are correct, only
//! slower.
//!
//! Invariants: a shard is locked before the allocator, shards among each other in ascending order. Runs at hand are
//! free: traps, which no CPU has fetched anything else from. Whatever looks for memory, or at all of it, empties the
//! shards first ([`crate::Packs::reclaim`]) or locks them all.

use crate::place::Place;
use crate::retire::Queue;

/// Longest run kept at hand, in chunks: 1 KiB.
const LONGEST: usize = 16;

/// One shard's memory.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) spare: Spare,
    pub(crate) retired: Queue,
    /// Whether the shard is one of those that are counted as in use.
    pub(crate) in_use: bool,
}

/// Free runs at hand.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// By length, from 1.
    lists: [List; LONGEST],
}

#[derive(Debug, Default)]
struct List {
    places: Vec<Place>,
    /// How many were asked for since [`Spare::keep`].
    wanted: usize,
}

impl Spare {
    /// A run of so many chunks, if there is one.
    #[inline]
    pub(crate) fn take(&mut self, chunks: u32) -> Option<Place> {
        let list = self.lists.get_mut(chunks as usize - 1)?;
        list.wanted += 1;
        list.places.pop()
    }

    /// Keeps as many of the freed runs as were asked for since the last time. Afterwards `freed` has the surplus, that
    /// of the runs already at hand included.
    pub(crate) fn keep(&mut self, freed: &mut Vec<Place>) {
        freed.retain(|place| {
            let Some(list) = self.lists.get_mut(place.extent.len as usize - 1) else { return true };
            let full = list.places.len() >= list.wanted;
            if !full {
                list.places.push(*place);
            }
            full
        });
        for list in &mut self.lists {
            let kept = list.places.len().min(list.wanted);
            freed.extend(list.places.drain(kept..));
            list.wanted = 0;
        }
    }

    /// Gives all of it away.
    pub(crate) fn empty(&mut self, into: &mut Vec<Place>) {
        for list in &mut self.lists {
            into.append(&mut list.places);
        }
    }

    /// All that is at hand.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.lists.iter().flat_map(|list| &list.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Extent;

    fn places(lens: &[u32]) -> Vec<Place> {
        let place = |(start, len): (u32, &u32)| Place {
            extent: Extent { pack: 0, start: 100 * start, len: *len },
            rx: 0,
            rw: 0,
        };
        (0..).zip(lens).map(place).collect()
    }

    #[test]
    fn as_much_is_kept_as_was_wanted_and_no_longer_than_that() {
        let mut spare = Spare::default();
        assert!(
            spare.take(3).is_none() && spare.take(3).is_none() && spare.take(5).is_none() && spare.take(99).is_none()
        );
        let mut freed = places(&[3, 3, 3, 4, 5, 99]);
        spare.keep(&mut freed);
        assert_eq!(freed.iter().map(|place| place.extent.len).collect::<Vec<_>>(), [3, 4, 99]);
        assert_eq!(spare.places().count(), 3);
        // One of three is wanted again.
        assert_eq!(spare.take(3).unwrap().extent.len, 3);
        let mut freed = places(&[3, 3]);
        spare.keep(&mut freed);
        assert_eq!(freed.iter().map(|place| place.extent.len).collect::<Vec<_>>(), [3, 3, 5]);
        // Nothing is.
        let mut freed = Vec::new();
        spare.keep(&mut freed);
        assert_eq!((freed.len(), spare.places().count()), (1, 0));
    }
}
