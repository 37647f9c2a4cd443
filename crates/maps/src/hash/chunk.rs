//! A line of the index: seven slots beside the lock that guards the empty ones.
//!
//! A slot is one word {tag 16 | version 16 | element + 1, 32}; [`super::table`] says how it changes, and what its
//! version is for.
//!
//! Invariant: a slot is empty exactly if the lower half of its word is zero. The tag of an empty slot is zero, which
//! is a possible tag of a key too: equal tags only nominate candidates.

#[cfg(not(loom))]
use crate::hash::tags;
use crate::lock::ChunkLock;
use crate::num::low;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots in a chunk: 64 bytes less the lock and the overflow count.
pub(crate) const SLOTS: usize = 7;

/// Bytes of a chunk.
pub(super) const BYTES: usize = 64;

/// Bytes of a slot.
const WORD: usize = 8;

/// One cache line of the index: lock and overflow count share the first word, the others are slots.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Chunk {
    pub(super) lock: ChunkLock,
    /// Keys that found this chunk full.
    pub(super) overflow: AtomicU32,
    pub(super) slots: [AtomicU64; SLOTS],
}

// SAFETY: made of integer atomics only, for which zero is valid; no drop glue.
#[cfg(not(loom))]
unsafe impl crate::mem::ZeroInit for Chunk {}

/// The upper half of a slot's word: tag and version.
#[inline(always)]
pub(super) fn mark_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline(always)]
pub(super) fn is_full(word: u64) -> bool {
    low(word) != 0
}

/// The element that a full slot names.
#[inline(always)]
pub(super) fn element_of(word: u64) -> u32 {
    low(word).wrapping_sub(1)
}

/// The tag of an empty slot.
const EMPTY: u32 = 0;

/// The word that follows `old`: the next version, with the tag in the upper half of `mark`.
#[inline(always)]
fn successor(old: u64, mark: u32, number: u32) -> u64 {
    let version = ((mark_of(old) & 0xffff) as u16).wrapping_add(1);
    u64::from(mark & 0xffff_0000 | u32::from(version)) << 32 | u64::from(number)
}

/// The word that follows `old` and names an element.
#[inline(always)]
pub(super) fn filled(old: u64, mark: u32, element: u32) -> u64 {
    successor(old, mark, element + 1)
}

/// The word that follows `old` and names none.
#[inline(always)]
pub(super) fn emptied(old: u64) -> u64 {
    successor(old, EMPTY, 0)
}

/// Puts `new` into a slot if it still holds `old`.
#[inline(always)]
pub(super) fn exchange(slot: &AtomicU64, old: u64, new: u64) -> bool {
    // Release pairs with the acquire loads of searches: they see the new element's key and value. Acquire: the caller
    // then owns the old element and sees all accesses to it.
    slot.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// An empty slot.
#[derive(Clone, Copy)]
pub(super) struct Vacancy<'a> {
    slot: &'a AtomicU64,
    word: u64,
}

impl Vacancy<'_> {
    /// Fills the slot with an element, whose tag is the upper half of `mark`. The caller must hold the chunk's lock.
    #[inline(always)]
    pub(super) fn fill(self, mark: u32, element: u32) {
        // Release pairs with the acquire loads of searches: they see the element's key and value. A plain store,
        // because removals and replaces exchange only full slots.
        self.slot.store(filled(self.word, mark, element), Ordering::Release);
    }
}

/// The byte of a chunk at which a slot begins.
pub(super) fn offset_of_slot(slot: usize) -> usize {
    (slot + 1) * WORD
}

/// The slot that begins at a byte of a chunk.
pub(super) fn slot_of_offset(offset: usize) -> usize {
    offset / WORD - 1
}

impl Chunk {
    /// The byte offsets of the slots whose tag is the upper half of `mark`. A slot that has the tag during the whole
    /// call is always among them.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn matching(&self, mark: u32) -> impl Iterator<Item = usize> + use<> {
        tags::matching(self.words(), mark)
    }

    #[cfg(loom)]
    pub(super) fn matching(&self, mark: u32) -> impl Iterator<Item = usize> + '_ {
        let has = move |slot: &AtomicU64| mark_of(slot.load(Ordering::Relaxed)) >> 16 == mark >> 16;
        self.slots.iter().enumerate().filter_map(move |(i, slot)| has(slot).then_some(offset_of_slot(i)))
    }

    /// The slot that begins at this byte of the chunk.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn slot(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(WORD) && (WORD..BYTES).contains(&offset));
        // SAFETY: offsets come from the tag comparison and from `offset_of_slot`: the offsets of all words of a chunk
        // but the first.
        let slot = unsafe { self.words().as_ptr().byte_add(offset) };
        // SAFETY: one of the chunk's words, aligned, and as long-lived.
        unsafe { &*slot }
    }

    #[cfg(loom)]
    pub(super) fn slot(&self, offset: usize) -> &AtomicU64 {
        &self.slots[offset / WORD - 1]
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn words(&self) -> &[AtomicU64; SLOTS + 1] {
        // SAFETY: a chunk is 64 bytes, aligned to 64, of integer atomics (`repr(C)`). Its first word consists of two
        // 32-bit ones. Only the tag comparison reads that word with the others, by assembly, and ignores it.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }

    /// Returns an empty slot.
    #[inline(always)]
    pub(super) fn vacancy(&self) -> Option<Vacancy<'_>> {
        let empty = |offset| {
            // Relaxed: empty slots change only under the chunk's lock, which the caller has or is about to take.
            let word = self.slot(offset).load(Ordering::Relaxed);
            (!is_full(word)).then_some(Vacancy { slot: self.slot(offset), word })
        };
        let mut offsets = self.matching(EMPTY);
        // Nearly always the first candidate is empty; a full slot is a candidate if its key's tag is zero.
        empty(offsets.next()?).or_else(|| offsets.find_map(empty))
    }
}
