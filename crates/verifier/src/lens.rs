//! The proven least length of each region, and who asks for it.
//!
//! Problem: a test of a packet's length stays known after the last pointer into the packet is gone, and kept apart
//! paths that do nothing with the packet any more. (The kernel has what is proven in the pointers: it ends with them.)
//!
//! Approach: what is proven is read and changed here only, and each reader leaves a bit, which the next entry of the
//! trail takes (`crate::walk::trail`). A kept state from which no path has asked for a region's length forgets it.
//!
//! Invariants: whatever a step of the walk makes of a length goes through a method that leaves the bit. Comparisons of
//! states ([`Lens::covers`]) leave none: they prove what they say of the states that they are given. A copy has the
//! bits that are not taken yet: on its path, too, that has happened. Whoever asks a copy that is then thrown away hands
//! its bits on ([`Lens::ask_as`]), but for guesses about loops, in which all lengths are needed (`with_numbers`).

use std::cell::Cell;
use std::ops::{Index, IndexMut};

use crate::env::Region;

/// A bit a region.
pub(crate) type Regions = u8;

const _: () = assert!(Region::MAX_REGIONS <= Regions::BITS as usize);

#[derive(Clone, Debug, Default)]
pub(crate) struct Lens {
    least: [u32; Region::MAX_REGIONS],
    /// Since it was last taken: asked for or bounded.
    asked: Cell<Regions>,
    /// The same: all of it was replaced by what the environment promises.
    moved: bool,
}

impl Lens {
    pub(crate) fn new(least: [u32; Region::MAX_REGIONS]) -> Lens {
        Lens { least, ..Lens::default() }
    }

    /// The regions are others from here on, of which only this is known.
    pub(crate) fn move_all(&mut self, least: [u32; Region::MAX_REGIONS]) {
        (self.least, self.moved) = (least, true);
    }

    pub(crate) fn len(&self) -> usize {
        self.least.len()
    }

    pub(crate) fn get(&self, region: usize) -> Option<&u32> {
        self.ask(region);
        self.least.get(region)
    }

    pub(crate) fn get_mut(&mut self, region: usize) -> Option<&mut u32> {
        self.ask(region);
        self.least.get_mut(region)
    }

    /// Leaves only what holds of both.
    pub(crate) fn meet(&mut self, other: &Lens) {
        self.asked.set(Regions::MAX);
        self.least.iter_mut().zip(&other.least).for_each(|(a, b)| *a = (*a).min(*b));
    }

    /// Whether all that is proven in the old state is in the new one.
    pub(crate) fn covers(&self, new: &Lens) -> bool {
        self.least.iter().zip(&new.least).all(|(o, n)| n >= o)
    }

    /// Gives up what is known of all but these regions.
    pub(crate) fn forget_all_but(&mut self, needed: Regions) {
        for (region, least) in self.least.iter_mut().enumerate() {
            if needed >> region & 1 == 0 {
                *least = 0;
            }
        }
    }

    /// What was asked for since it was last taken, and whether all of it was replaced.
    #[inline]
    pub(crate) fn take_asked(&mut self) -> (Regions, bool) {
        (self.asked.take(), std::mem::take(&mut self.moved))
    }

    /// What the other was asked for is asked of this one.
    pub(crate) fn ask_as(&self, other: &Lens) {
        self.asked.set(self.asked.get() | other.asked.get());
    }

    fn ask(&self, region: usize) {
        if region < Region::MAX_REGIONS {
            self.asked.set(self.asked.get() | 1 << region);
        }
    }
}

impl Index<usize> for Lens {
    type Output = u32;

    fn index(&self, region: usize) -> &u32 {
        self.ask(region);
        &self.least[region]
    }
}

impl IndexMut<usize> for Lens {
    fn index_mut(&mut self, region: usize) -> &mut u32 {
        self.ask(region);
        &mut self.least[region]
    }
}
