//! The elements nobody uses: a sharded Treiber stack of indices.
//!
//! Problem: inserts and deletes on all cores take and give elements at once; one list head would be the bottleneck, and
//! nothing may wait for a preempted thread.
//!
//! Approach: one stack per shard, chosen by execution slot, each head on its own cache line; an empty shard takes from the
//! never-used elements (`fresh`), then from the other shards. The link of an element is only meaningful while it is on
//! a stack; a head carries a 32-bit counter against ABA.
//!
//! Invariant: an element is on at most one stack or handed out, never both. `pop` may fail while another thread moves
//! elements: the caller decides with its own counts whether the pool is really empty.

use crossbeam_utils::CachePadded;

use crate::errno::Errno;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table};

/// Upper limit of shards: beyond it, two slots share one.
const MAX_SHARDS: u32 = 64;

#[derive(Debug)]
pub(crate) struct FreeList {
    /// For each element on a stack: the one below it, plus one.
    links: Table<AtomicU32>,
    shards: Box<[CachePadded<AtomicU64>]>,
    /// Elements from here on have never been handed out.
    fresh: CachePadded<AtomicU32>,
    limit: u32,
}

/// A stack head: the top element plus one (0: empty) below a counter of changes.
fn head(changes: u64, top: u32) -> u64 {
    changes << 32 | u64::from(top)
}

impl FreeList {
    /// All of `0..limit` free; `links` has room for `elements` (some may never be listed here at first).
    pub(crate) fn new(limit: u32, elements: u32, slots: u32) -> Result<Self, Errno> {
        let shards = slots.clamp(1, MAX_SHARDS).next_power_of_two();
        Ok(Self {
            links: Table::zeroed(elements as usize)?,
            shards: (0..shards).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            fresh: CachePadded::new(AtomicU32::new(0)),
            limit,
        })
    }

    /// Takes an element, preferably from `slot`'s shard.
    #[inline]
    pub(crate) fn pop(&self, slot: u32) -> Option<u32> {
        let own = slot as usize & (self.shards.len() - 1);
        self.pop_shard(own).or_else(|| self.pop_fresh()).or_else(|| self.steal(own))
    }

    /// Gives an element back.
    #[inline]
    pub(crate) fn push(&self, slot: u32, element: u32) {
        self.push_chain(slot, element, element);
    }

    /// Gives back a chain whose inner links are set already ([`FreeList::link`]), top to bottom.
    pub(crate) fn push_chain(&self, slot: u32, top: u32, bottom: u32) {
        let shard = &self.shards[slot as usize & (self.shards.len() - 1)];
        // Relaxed: the exchange decides, and only a popper needs what it publishes.
        let mut old = shard.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange below.
            self.links[bottom as usize].store(old as u32, Ordering::Relaxed);
            let new = head((old >> 32).wrapping_add(1), top + 1);
            // Release pairs with the acquire in `pop_shard`: whoever takes an element sees its link, and every access its
            // last owner made to it happened before. The exchanges on one head form a release sequence, so that
            // holds for elements further down as well.
            match shard.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Makes `below` the element under `element` in a chain that is private to the caller.
    pub(crate) fn link(&self, element: u32, below: Option<u32>) {
        // Relaxed: published by `push_chain`.
        self.links[element as usize].store(below.map_or(0, |b| b + 1), Ordering::Relaxed);
    }

    /// The element under `element` in a chain that is private to the caller.
    pub(crate) fn below(&self, element: u32) -> Option<u32> {
        // Relaxed: the caller owns the chain.
        self.links[element as usize].load(Ordering::Relaxed).checked_sub(1)
    }

    /// How many elements have ever been handed out.
    pub(crate) fn touched(&self) -> u32 {
        // Relaxed: a statistic.
        self.fresh.load(Ordering::Relaxed).min(self.limit)
    }

    /// Bytes of links and heads.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.links) + size_of_val(&*self.shards)
    }

    fn pop_shard(&self, shard: usize) -> Option<u32> {
        let shard = &self.shards[shard];
        // Acquire pairs with the release in `push_chain`: the link read below belongs to this head.
        let mut old = shard.load(Ordering::Acquire);
        loop {
            let top = (old as u32).checked_sub(1)?;
            // Relaxed, and possibly of another time: then the exchange fails, because every change counts.
            let below = self.links[top as usize].load(Ordering::Relaxed);
            let new = head((old >> 32).wrapping_add(1), below);
            // Acquire as above, for the element itself and for the retry.
            match shard.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => old = now,
            }
        }
    }

    fn pop_fresh(&self) -> Option<u32> {
        // Relaxed: fresh elements carry nothing but zeroes. The check first keeps the counter from running away.
        if self.fresh.load(Ordering::Relaxed) >= self.limit {
            return None;
        }
        let element = self.fresh.fetch_add(1, Ordering::Relaxed);
        (element < self.limit).then_some(element)
    }

    #[cold]
    fn steal(&self, own: usize) -> Option<u32> {
        let mask = self.shards.len() - 1;
        (1..self.shards.len()).find_map(|i| self.pop_shard((own + i) & mask))
    }
}
