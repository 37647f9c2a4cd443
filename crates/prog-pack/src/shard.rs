//! The memory that a thread loads from and drops to without synchronising with other threads.
//!
//! Problem: one lock guards the chunks of all packs ([`crate::packs`]); two cores that pass the lock and the
//! allocator's lists to and fro are slower together than one alone.
//!
//! Approach: threads are spread over a few shards. Each shard has its own queue of dropped programs. When a batch of
//! them is free, the shard keeps some of its extents: of each length up to [`LONGEST`], as many as were requested
//! since the last batch. So a thread that loads and unloads reuses its own extents, and a thread that only drops
//! delays merging and giving back by at most one batch. Threads that share a shard are correct, only slower.
//!
//! Invariants: a shard is locked before the allocator, shards among each other in ascending order. Kept extents are
//! free: they are traps, and no CPU has fetched any other bytes of them. Code that needs more memory, or inspects all
//! of it, first empties the shards ([`crate::Packs::reclaim`]) or locks them all.

use crate::place::Place;
use crate::retire::Queue;

/// Length of the longest extent that is kept, in chunks: 1 KiB.
const LONGEST: usize = 16;

/// One shard's memory.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) spare: Spare,
    pub(crate) retired: Queue,
    /// Whether the shard is counted as in use.
    pub(crate) in_use: bool,
}

/// Free extents that the shard keeps.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// By length in chunks, from 1.
    lists: [List; LONGEST],
}

#[derive(Debug, Default)]
struct List {
    places: Vec<Place>,
    /// Number of requests since [`Spare::keep`].
    wanted: usize,
}

impl Spare {
    /// Takes an extent of `chunks` chunks, if there is one.
    #[inline]
    pub(crate) fn take(&mut self, chunks: u32) -> Option<Place> {
        let list = self.lists.get_mut(chunks as usize - 1)?;
        list.wanted += 1;
        list.places.pop()
    }

    /// Keeps as many of the freed extents as were requested since the last call. Afterwards `freed` contains the
    /// surplus, including that of the extents kept before.
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

    /// Moves all kept extents into `into`.
    pub(crate) fn empty(&mut self, into: &mut Vec<Place>) {
        for list in &mut self.lists {
            into.append(&mut list.places);
        }
    }

    /// All kept extents.
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
        // One of the three is requested again.
        assert_eq!(spare.take(3).unwrap().extent.len, 3);
        let mut freed = places(&[3, 3]);
        spare.keep(&mut freed);
        assert_eq!(freed.iter().map(|place| place.extent.len).collect::<Vec<_>>(), [3, 3, 5]);
        // None is requested.
        let mut freed = Vec::new();
        spare.keep(&mut freed);
        assert_eq!((freed.len(), spare.places().count()), (1, 0));
    }
}
