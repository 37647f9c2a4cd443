//! Eviction: chooses the element that a full LRU hash gives up.
//!
//! The kernel keeps active and inactive lists under locks. Here the elements themselves are the clock (second chance):
//! a hand goes round the slab, passes over elements whose reference bit is set and clears it, and evicts the first
//! without. An element costs one byte; a lookup by a program sets the bit with a plain store and only if it is clear.
//! Unreferenced elements are evicted before referenced ones. Among equals the hand follows the order of the slab,
//! which is the order of insertion while the map fills.
//!
//! With `NO_COMMON_LRU` every execution slot moves a hand of its own, so that evictions do not meet on one cache line.
//! The kernel also divides the elements among the CPUs, so that each CPU evicts only its own. Slots are not CPUs: there
//! are 64 by default, whatever the number of threads, so two threads would share 2 of 64 parts of their map. Here each
//! hand visits all elements: `max_entries` keys fit even if one slot inserts all of them, and an insert may evict a key
//! that another slot inserted.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::errno::Errno;
use crate::mem::{Table, boxed};

/// Reference bits and hands.
#[derive(Debug)]
pub(crate) struct Clock {
    referenced: Table<AtomicU8>,
    hands: Box<[CachePadded<AtomicU32>]>,
    elements: u32,
}

impl Clock {
    /// A clock over `elements`, with one hand or one per slot.
    pub(crate) fn new(elements: u32, hands: u32) -> Result<Self, Errno> {
        // With several hands, they begin at equal distances, below `elements`.
        let start = |hand: u32| crate::num::low(u64::from(elements) * u64::from(hand) / u64::from(hands));
        Ok(Self {
            referenced: Table::zeroed(elements as usize)?,
            hands: boxed(hands, |hand| CachePadded::new(AtomicU32::new(start(hand))))?,
            elements,
        })
    }

    /// Marks an element as used. The bit carries no data, so every access to it is relaxed.
    #[inline]
    pub(crate) fn touch(&self, element: u32) {
        let bit = &self.referenced[element as usize];
        if bit.load(Ordering::Relaxed) == 0 {
            bit.store(1, Ordering::Relaxed);
        }
    }

    /// Marks an element as unused, because it gets a new key.
    #[inline]
    pub(crate) fn clear(&self, element: u32) {
        self.referenced[element as usize].store(0, Ordering::Relaxed);
    }

    /// Moves the hand to the next unreferenced element and returns it. `None` if a whole round found only referenced
    /// ones, whose bits it has cleared.
    pub(crate) fn advance(&self, slot: u32) -> Option<u32> {
        let hand = &self.hands[slot as usize % self.hands.len()];
        for _ in 0..self.elements {
            // Relaxed: only a starting point. The wrap of the counter makes one uneven step in 2^32.
            let element = hand.fetch_add(1, Ordering::Relaxed) % self.elements;
            let bit = &self.referenced[element as usize];
            if bit.load(Ordering::Relaxed) == 0 {
                return Some(element);
            }
            bit.store(0, Ordering::Relaxed);
        }
        None
    }

    /// The element that a hand at `element` reaches a few evictions later.
    pub(crate) fn ahead(&self, element: u32) -> u32 {
        const EVICTIONS: u32 = 4;
        element.saturating_add(EVICTIONS) % self.elements
    }

    /// Upper limit of steps in which an evictor sees every element at least twice.
    pub(crate) fn rounds(&self) -> u64 {
        2 * u64::from(self.elements) + 2
    }

    /// Bytes of bits and hands.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.referenced) + size_of_val(&*self.hands)
    }
}
