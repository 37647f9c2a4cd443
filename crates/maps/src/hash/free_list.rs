//! The unused elements: a sharded Treiber stack of indices.
//!
//! Problem: inserts and deletes on all cores take and give elements at once. One list head would be the bottleneck,
//! and no operation may wait for a preempted thread.
//!
//! Approach: one stack per shard, chosen by execution slot, each head on its own cache line; an empty shard takes from
//! the never-used elements (`fresh`), then from the other shards. The link of an element is only meaningful while it is
//! on a stack; a head carries a 32-bit counter against ABA.
//!
//! Invariant: an element is on at most one stack or taken, never both. `pop` may fail while another thread moves
//! elements: the caller decides with its own counts whether the pool is really empty.

use crossbeam_utils::CachePadded;

use crate::errno::Errno;
use crate::mem::boxed;
use crate::num::low;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table};

/// For each element on a stack: the one below it, plus one.
#[derive(Debug)]
pub(crate) struct Links(Table<AtomicU32>);

impl Links {
    /// Links for `elements` elements.
    pub(crate) fn new(elements: u32) -> Result<Self, Errno> {
        Ok(Self(Table::zeroed(elements as usize)?))
    }

    /// The element under `element` in a chain that is private to the caller.
    pub(crate) fn below(&self, element: u32) -> Option<u32> {
        // Relaxed: the caller owns the chain.
        self.0[element as usize].load(Ordering::Relaxed).checked_sub(1)
    }

    /// The word that [`Links::note`] stored for an element.
    #[cfg(not(loom))]
    pub(crate) fn noted(&self, element: u32) -> u32 {
        // Relaxed: the owner's own word.
        self.0[element as usize].load(Ordering::Relaxed)
    }

    /// Stores a word for the owner of a taken element, whose link is unused until the element is on a stack again.
    #[cfg(not(loom))]
    pub(crate) fn note(&self, element: u32, word: u32) {
        // Relaxed: as above. A `pop` that still reads this element's link fails, because every change of a head is
        // counted.
        self.0[element as usize].store(word, Ordering::Relaxed);
    }

    /// Bytes of the links.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// A stack of elements. The head is the top element plus one (0: empty) below a count of changes.
#[derive(Debug)]
pub(crate) struct Stack(CachePadded<AtomicU64>);

fn head(changes: u64, top: u32) -> u64 {
    changes << 32 | u64::from(top)
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(AtomicU64::new(0)))
    }

    /// Whether the stack is empty: a hint.
    #[cfg(not(loom))]
    pub(crate) fn is_empty(&self) -> bool {
        low(self.0.load(Ordering::Relaxed)) == 0
    }

    /// Puts an element on top.
    #[inline]
    pub(crate) fn push(&self, links: &Links, element: u32) {
        // Relaxed: the exchange decides.
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange below.
            links.0[element as usize].store(low(old), Ordering::Relaxed);
            let new = head((old >> 32).wrapping_add(1), element + 1);
            // Release pairs with the acquire in `pop` and `take_all`: the thread that takes an element sees its link,
            // and every access by its last owner happened before. The exchanges on one head form a release sequence,
            // so this holds for elements further down as well.
            match self.0.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Puts a chain on top, whose elements are linked from `first` to `last`.
    #[cfg(not(loom))]
    pub(crate) fn push_chain(&self, links: &Links, first: u32, last: u32) {
        // Relaxed, Release: as in `push`.
        let chain = |old: u64| {
            links.0[last as usize].store(low(old), Ordering::Relaxed);
            Some(head((old >> 32).wrapping_add(1), first + 1))
        };
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, chain);
    }

    /// Takes the element on top.
    #[inline]
    pub(crate) fn pop(&self, links: &Links) -> Option<u32> {
        // Acquire pairs with the release in `push`: the link read below belongs to this head.
        let mut old = self.0.load(Ordering::Acquire);
        loop {
            let top = low(old).checked_sub(1)?;
            // Relaxed, and possibly outdated: then the exchange fails, because every change is counted.
            let below = links.0[top as usize].load(Ordering::Relaxed);
            let new = head((old >> 32).wrapping_add(1), below);
            // Acquire as above, for the element itself and for the retry.
            match self.0.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => old = now,
            }
        }
    }

    /// Takes all elements: the top one, with the others linked below it.
    #[cfg(not(loom))]
    pub(crate) fn take_all(&self) -> Option<u32> {
        // Acquire pairs with the release in `push`. Relaxed on failure: the loop reads again.
        let take = |old: u64| (low(old) != 0).then(|| head((old >> 32).wrapping_add(1), 0));
        let old = self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?;
        low(old).checked_sub(1)
    }
}

/// Room for one element in front of a shard, for one execution slot: an element that a slot gives and soon takes
/// again costs one exchange instead of two, and no link. Only its slot fills a pocket. Any thread may empty it, so
/// that every unused element can be reached.
#[derive(Debug)]
pub(crate) struct Pocket(AtomicU32);

impl Pocket {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the element, if there is one.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        // Relaxed: the exchange decides.
        let held = self.0.load(Ordering::Relaxed);
        let element = held.checked_sub(1)?;
        // Acquire pairs with the release in `fill`. On failure another thread has the element.
        self.0.compare_exchange(held, 0, Ordering::Acquire, Ordering::Relaxed).is_ok().then_some(element)
    }

    /// Puts an element in; false if the pocket is full. Only the slot that owns the pocket may call this.
    #[inline]
    pub(crate) fn fill(&self, element: u32) -> bool {
        // Relaxed: other threads only empty it, so an empty pocket stays empty and needs no exchange.
        let room = self.0.load(Ordering::Relaxed) == 0;
        if room {
            // Release pairs with the acquire in `take`: every access to the element so far happened before.
            self.0.store(element + 1, Ordering::Release);
        }
        room
    }
}

/// All unused elements.
#[derive(Debug)]
pub(crate) struct FreeList {
    pub(crate) links: Links,
    shards: Box<[Stack]>,
    /// Elements from this number on were never taken.
    fresh: CachePadded<AtomicU32>,
    limit: u32,
    /// Accounting for maps whose elements are counted when they are first taken.
    #[cfg(not(loom))]
    growth: Option<Growth>,
}

/// Memory reserved by a map that grows, and the bytes that one more element needs.
#[cfg(not(loom))]
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    pub(crate) reservation: bpf_quiesce::Reservation,
    pub(crate) element: u64,
}

/// Number of never-used elements that a shard takes at a time: two cache lines of the smallest elements.
const NEIGHBOURS: u32 = 8;

/// Upper limit of shards: with more execution slots, several share one.
const MAX_SHARDS: u32 = 64;

impl FreeList {
    /// A list in which all of `0..limit` are free. The links have room for `elements`; the others are not listed at
    /// first.
    pub(crate) fn new(limit: u32, elements: u32, slots: u32) -> Result<Self, Errno> {
        let shards = slots.clamp(1, MAX_SHARDS).next_power_of_two();
        Ok(Self {
            links: Links::new(elements)?,
            shards: boxed(shards, |_| Stack::new())?,
            fresh: CachePadded::new(AtomicU32::new(0)),
            limit,
            #[cfg(not(loom))]
            growth: None,
        })
    }

    /// Sets the accounting for maps whose elements are counted when they are first taken.
    #[cfg(not(loom))]
    pub(crate) fn set_growth(&mut self, growth: Option<Growth>) {
        self.growth = growth;
    }

    /// Counts `elements` more fresh elements; false if the limit does not allow them.
    fn may_grow(&self, elements: u32) -> bool {
        #[cfg(not(loom))]
        if let Some(Growth { reservation, element }) = &self.growth {
            return reservation.grow(element.saturating_mul(elements.into())).is_ok();
        }
        let _ = elements;
        true
    }

    fn shard(&self, slot: u32) -> usize {
        slot as usize & (self.shards.len() - 1)
    }

    /// Takes an element, preferably from `slot`'s shard.
    #[inline]
    pub(crate) fn pop(&self, slot: u32) -> Option<u32> {
        let own = self.shard(slot);
        self.shards[own].pop(&self.links).or_else(|| self.pop_fresh(own)).or_else(|| self.steal(own))
    }

    /// Gives a chain of elements back.
    #[cfg(not(loom))]
    pub(crate) fn push_chain(&self, slot: u32, first: u32, last: u32) {
        self.shards[self.shard(slot)].push_chain(&self.links, first, last);
    }

    /// Takes an element from `slot`'s shard, if there is one.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn pop_near(&self, slot: u32) -> Option<u32> {
        self.shards[self.shard(slot)].pop(&self.links)
    }

    /// The element that [`FreeList::pop`] would probably return: a hint. Prefetches its link.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn peek(&self, slot: u32) -> Option<u32> {
        // Relaxed: only a hint.
        let top = low(self.shards[self.shard(slot)].0.load(Ordering::Relaxed)).checked_sub(1)?;
        crate::mem::prefetch_write(&self.links.0[top as usize]);
        Some(top)
    }

    /// Gives an element back.
    #[inline]
    pub(crate) fn push(&self, slot: u32, element: u32) {
        self.shards[self.shard(slot)].push(&self.links, element);
    }

    /// Number of elements that were ever taken.
    pub(crate) fn touched(&self) -> u32 {
        // Relaxed: a statistic.
        self.fresh.load(Ordering::Relaxed).min(self.limit)
    }

    /// Number of elements that can be taken.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a few never-used neighbours for a shard, so that elements of different slots do not share cache lines at
    /// first.
    #[cold]
    fn pop_fresh(&self, own: usize) -> Option<u32> {
        // Relaxed: fresh elements contain only zeros. The check first keeps the counter from overflowing.
        if self.fresh.load(Ordering::Relaxed) >= self.limit {
            return None;
        }
        // Counted before they are taken. A thread that loses the race for the last elements has counted a few in
        // vain; these stay counted, at most [`NEIGHBOURS`] per thread and map.
        if !self.may_grow(NEIGHBOURS.min(self.limit)) {
            return None;
        }
        let first = self.fresh.fetch_add(NEIGHBOURS, Ordering::Relaxed);
        let end = first.saturating_add(NEIGHBOURS).min(self.limit);
        (first + 1..end).rev().for_each(|element| self.shards[own].push(&self.links, element));
        (first < end).then_some(first)
    }

    #[cold]
    fn steal(&self, own: usize) -> Option<u32> {
        let mask = self.shards.len() - 1;
        (1..self.shards.len()).find_map(|i| self.shards[(own + i) & mask].pop(&self.links))
    }

    /// Bytes of links and heads.
    pub(crate) fn memory(&self) -> usize {
        self.links.memory() + self.heads()
    }

    /// Bytes of heads, and of the links of elements that were ever taken.
    #[cfg(not(loom))]
    pub(crate) fn memory_touched(&self) -> usize {
        self.touched() as usize * size_of::<AtomicU32>() + self.heads()
    }

    fn heads(&self) -> usize {
        size_of_val(&*self.shards)
    }
}
