//! Elements that were removed from a map but may still be used by a running program.
//!
//! Problem: maps that allocate per element (`NO_PREALLOC`, tries) promise that a removed element does not change
//! until every run that could have found it has ended. The removal may happen in a program, even in a signal handler,
//! so it can neither allocate nor wait for a lock.
//!
//! Approach: removed elements go on a lock-free stack. From time to time a thread takes the whole stack as a batch
//! and starts one grace period for it; when the period is over, the batch goes back to the free list. A flag guards
//! these two steps; a thread that finds it set skips them. Each slot keeps a few free and a few removed elements of
//! its own, so that most operations execute no locked instruction here: a second one in an update would keep the
//! processor from starting the next update's cache misses.
//!
//! Invariants: an element is reused only after a grace period that began after its removal. A slot's own elements are
//! used by one operation at a time (the callers exclude re-entry), and there are at most [`Share::most`] of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bpf_quiesce::{Domain, GracePeriod, Reservation};
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;

use crate::errno::Errno;
use crate::hash::free_list::{FreeList, Growth, Stack};
use crate::mem::boxed;

/// Number of removals of a slot between two looks at the batches.
const BATCH: u32 = 64;

/// Bytes of removed elements that a slot may keep (at least one element). With many slots and large values, [`BATCH`]
/// elements each would be more memory than the map.
const OWN_BYTES: u64 = 16 << 10;

/// Number of removed elements that a slot keeps before it passes them on, computed from the size of an element.
#[derive(Clone, Copy, Debug)]
struct Share(u32);

impl Share {
    fn of(element_bytes: usize) -> Self {
        Self(crate::num::low((OWN_BYTES / (element_bytes.max(1) as u64)).clamp(1, BATCH.into())))
    }

    /// Number of free elements that a slot takes at a time.
    fn refill(self) -> u32 {
        self.0.div_ceil(2)
    }

    /// The largest number of elements that a slot keeps: free ones (up to two of a trie's are given back unused), and
    /// removed ones.
    fn most(self) -> u64 {
        u64::from(self.refill()) + 1 + u64::from(self.0)
    }
}

/// The elements that a slot keeps: two chains, linked as in a stack. All accesses are relaxed, because there is one
/// operation at a time.
#[derive(Debug, Default)]
struct Own {
    /// The first free element plus one.
    free: AtomicU32,
    /// The most recently removed element, plus one.
    retired: AtomicU32,
    /// The element removed first.
    last: AtomicU32,
    /// Number of removed elements in the chain.
    count: AtomicU32,
    /// Number of elements passed on since the last look at the batches.
    removals: AtomicU32,
}

/// How often an allocation yields for a grace period to end before it fails. Yielding helps if runs of other threads
/// delay the period. The caller's own run may delay it too, so longer waits belong outside of the run ([`crate::Map`]
/// retries there).
const PATIENCE: u32 = 16;

/// Memory for elements that wait for a grace period: this many bytes, limited to this range of element counts. Only
/// used elements are backed by memory.
const WAITING_BYTES: u64 = 16 << 20;
const WAITING: std::ops::RangeInclusive<u64> = 4 * BATCH as u64..=1 << 16;

/// A free list whose elements come back after a grace period.
pub(crate) struct GraceList {
    free: FreeList,
    domain: Arc<Domain>,
    own: Box<[CachePadded<Own>]>,
    share: Share,
    retired: Stack,
    /// Guards `batch`.
    busy: AtomicBool,
    batch: UnsafeCell<Option<(GracePeriod, u32)>>,
    /// Whether `batch` is not empty.
    pending: AtomicBool,
}

// SAFETY: `batch` is only accessed by the thread that set `busy`; everything else is `Send + Sync`.
unsafe impl Sync for GraceList {}

impl std::fmt::Debug for GraceList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraceList").field("free", &self.free).finish_non_exhaustive()
    }
}

impl GraceList {
    /// Number of elements of this size to allocate beyond `max_entries`: elements that wait for a grace period, or that
    /// a slot keeps.
    pub(crate) fn headroom(max_entries: u32, element_bytes: usize, slots: u32) -> u64 {
        let waiting = WAITING_BYTES / (element_bytes.max(1) as u64);
        u64::from(max_entries) + waiting.clamp(*WAITING.start(), *WAITING.end()) + Self::owned(element_bytes, slots)
    }

    /// Number of elements of this size that slots may keep.
    pub(crate) fn owned(element_bytes: usize, slots: u32) -> u64 {
        Share::of(element_bytes).most() * u64::from(slots)
    }

    /// A list in which all of `0..limit` are free, with room for `elements` of this size.
    pub(crate) fn new(
        limit: u32,
        elements: u32,
        element_bytes: usize,
        slots: u32,
        domain: &Arc<Domain>,
    ) -> Result<Self, Errno> {
        Ok(Self {
            free: FreeList::new(limit, elements, slots)?,
            domain: Arc::clone(domain),
            own: boxed(slots, |_| CachePadded::default())?,
            share: Share::of(element_bytes),
            retired: Stack::new(),
            busy: AtomicBool::new(false),
            batch: UnsafeCell::new(None),
            pending: AtomicBool::new(false),
        })
    }

    /// Takes an element. Like the other operations, it must not be called from within another one on its slot.
    #[inline]
    pub(crate) fn pop(&self, slot: u32) -> Option<u32> {
        let own = &self.own[slot as usize];
        match own.free.load(Ordering::Relaxed).checked_sub(1) {
            Some(element) => {
                own.free.store(self.free.links.noted(element), Ordering::Relaxed);
                Some(element)
            }
            None => self.refill(slot),
        }
    }

    /// Takes an element, and a few more for the slot if its shard has them.
    #[inline(never)]
    fn refill(&self, slot: u32) -> Option<u32> {
        let element = self.free.pop(slot).or_else(|| self.pop_patiently(slot))?;
        for _ in 1..self.share.refill() {
            let Some(more) = self.free.pop_near(slot) else { break };
            self.push(slot, more);
        }
        Some(element)
    }

    #[cold]
    fn pop_patiently(&self, slot: u32) -> Option<u32> {
        self.flush(slot);
        for _ in 0..PATIENCE {
            let waits = self.turn_over(slot);
            if let Some(element) = self.free.pop(slot) {
                return Some(element);
            }
            if !waits {
                break;
            }
            std::thread::yield_now();
        }
        None
    }

    /// The element that [`GraceList::pop`] would probably give: a hint, for prefetching.
    #[inline]
    pub(crate) fn peek(&self, slot: u32) -> Option<u32> {
        let own = self.own[slot as usize].free.load(Ordering::Relaxed).checked_sub(1);
        own.or_else(|| self.free.peek(slot))
    }

    /// Gives back an element that was never visible to other threads.
    #[inline]
    pub(crate) fn push(&self, slot: u32, element: u32) {
        let own = &self.own[slot as usize];
        self.free.links.note(element, own.free.load(Ordering::Relaxed));
        own.free.store(element + 1, Ordering::Relaxed);
    }

    /// Gives back an element that was just taken out of the map.
    #[inline]
    pub(crate) fn retire(&self, slot: u32, element: u32) {
        let own = &self.own[slot as usize];
        let top = own.retired.load(Ordering::Relaxed);
        if top == 0 {
            own.last.store(element, Ordering::Relaxed);
        }
        self.free.links.note(element, top);
        own.retired.store(element + 1, Ordering::Relaxed);
        let count = own.count.load(Ordering::Relaxed) + 1;
        own.count.store(count, Ordering::Relaxed);
        if count >= self.share.0 {
            self.pass_on(slot, count);
        }
    }

    /// Passes a slot's removed elements on and counts them.
    #[inline(never)]
    fn pass_on(&self, slot: u32, count: u32) {
        self.flush(slot);
        let own = &self.own[slot as usize];
        let removals = own.removals.load(Ordering::Relaxed) + count;
        own.removals.store(removals % BATCH, Ordering::Relaxed);
        if removals >= BATCH {
            self.turn_over(slot);
        }
    }

    /// Moves a slot's removed elements to the stack, where they wait for a grace period.
    fn flush(&self, slot: u32) {
        let own = &self.own[slot as usize];
        if let Some(first) = own.retired.load(Ordering::Relaxed).checked_sub(1) {
            own.retired.store(0, Ordering::Relaxed);
            own.count.store(0, Ordering::Relaxed);
            self.retired.push_chain(&self.free.links, first, own.last.load(Ordering::Relaxed));
        }
    }

    /// Frees the batch if its grace period is over, and starts the next. Returns whether elements may be waiting.
    #[cold]
    fn turn_over(&self, slot: u32) -> bool {
        // Acquire pairs with the release below.
        if self.busy.swap(true, Ordering::Acquire) {
            return true;
        }
        // SAFETY: `busy` was clear, so no other thread, and no caller further up this stack, is in here.
        let batch = unsafe { &mut *self.batch.get() };
        if let Some((_, top)) = batch.take_if(|(period, _)| period.is_complete()) {
            let mut last = top;
            while let Some(below) = self.free.links.below(last) {
                last = below;
            }
            self.free.push_chain(slot, top, last);
        }
        if batch.is_none() {
            *batch = self.retired.take_all().map(|top| (self.domain.start_grace_period(), top));
        }
        let waits = batch.is_some();
        // Relaxed: a hint.
        self.pending.store(waits, Ordering::Relaxed);
        // Release pairs with the acquire above: the next one in sees the batch.
        self.busy.store(false, Ordering::Release);
        waits
    }

    /// Whether elements outside the slots' own wait for a grace period: a hint.
    pub(crate) fn waits(&self) -> bool {
        self.pending.load(Ordering::Relaxed) || !self.retired.is_empty()
    }

    /// The word that [`GraceList::note`] stored for an element.
    pub(crate) fn noted(&self, element: u32) -> u32 {
        self.free.links.noted(element)
    }

    /// Stores a word for the owner of an element; it is lost when the element is given back.
    pub(crate) fn note(&self, element: u32, word: u32) {
        self.free.links.note(element, word);
    }

    /// Number of elements that were ever taken.
    pub(crate) fn touched(&self) -> u32 {
        self.free.touched()
    }

    /// Number of elements that can be taken.
    pub(crate) fn limit(&self) -> u32 {
        self.free.limit()
    }

    /// Sets the accounting for elements that are counted when they are first taken.
    pub(crate) fn growing(mut self, reservation: Option<&Reservation>, element: u64) -> Self {
        let growth = reservation.cloned().map(|reservation| Growth { reservation, element });
        self.free.set_growth(growth);
        self
    }

    /// Bytes of heads for `slots` slots, which exist before any element.
    pub(crate) fn fixed_memory(slots: u32) -> u64 {
        u64::from(slots) * (size_of::<CachePadded<Own>>() + size_of::<CachePadded<u64>>()) as u64
    }

    /// Bytes of heads, and of the links of elements that were ever taken.
    pub(crate) fn memory(&self) -> usize {
        self.free.memory_touched() + size_of_val(&*self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slots_have_of_their_own_is_provided_for() {
        const SLOTS: u32 = 8;
        const OTHERS: u32 = 10;
        for bytes in [16, 1000, 1 << 20] {
            let domain = Domain::new(bpf_quiesce::Options::new().max_slots(SLOTS));
            let limit = GraceList::owned(bytes, SLOTS) as u32 + OTHERS;
            let list = GraceList::new(limit, limit, bytes, SLOTS, &domain).unwrap();
            // The guard keeps removed elements from being reused.
            let _guard = domain.enter().unwrap();
            for slot in 1..SLOTS {
                for _ in 1..list.share.0 {
                    let element = list.pop(slot).unwrap();
                    list.retire(slot, element);
                }
                // An insert that a trie refuses gives its elements back like this.
                let unneeded = [list.pop(slot).unwrap(), list.pop(slot).unwrap()];
                unneeded.into_iter().for_each(|element| list.push(slot, element));
            }
            let mut held: Vec<u32> = (0..OTHERS).map(|_| list.pop(0).expect("not in the other slots")).collect();
            held.sort_unstable();
            held.dedup();
            assert_eq!(held.len(), OTHERS as usize, "{bytes} bytes: each once");
        }
    }
}
