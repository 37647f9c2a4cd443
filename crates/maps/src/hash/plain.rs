//! The fast paths of update and removal, written without branches for rare cases.
//!
//! Nearly every update is `BPF_ANY` on a pre-allocated hash without special fields, nearly every key is in its home
//! chunk, and no other thread changes it meanwhile. This file handles that case without the loop, the flags and the
//! reservations of the general path, which takes over from the beginning in all other cases.
//!
//! In a map larger than the caches, an operation reads memory twice, the second time at an address that depends on
//! the first read. The processor overlaps the reads of as many operations as fit into its reorder buffer. So the
//! number of instructions on the fast path decides the throughput. Code off that path is a call in tail position,
//! which compiles to a jump: the fast path saves no registers and keeps no frame for it. (Such functions are `extern
//! "C"`, which do not unwind: a call that may unwind cannot be a jump.)

use super::key::Key;
use super::slot::{Op, SlotState};
use super::table::Glance;
use super::{HashMap, Pool};
use crate::def::update;
use crate::errno::{Errno, OpResult, ret};
use crate::mem::{self, ANY_ALIGNMENT, WORD};
use crate::value::Source;

/// An operation's slot and the insert count its search began with: one register.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Search(u64);

impl Search {
    #[inline(always)]
    fn new(slot: u32, inserts: u32) -> Self {
        Self(u64::from(slot) << 32 | u64::from(inserts))
    }

    fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn inserts(self) -> u32 {
        crate::num::low(self.0)
    }
}

impl HashMap {
    /// Begins an operation, unless the slot is in one already. Returns `None` for a slot number out of range instead
    /// of panicking, because a panic must not leave a program.
    #[inline(always)]
    fn begin(&self, slot: u32) -> Option<Op<'_>> {
        Op::begin(self.slots.get(slot as usize)?).ok()
    }

    /// Whether a value can be copied by whole words.
    #[inline(always)]
    pub(super) fn is_whole(&self, value: *const u8) -> bool {
        self.shape.size.is_multiple_of(WORD) && (ANY_ALIGNMENT || value.cast::<u64>().is_aligned())
    }

    /// Sets the value of a key, present or absent, in a plain map. Returns the helper's result.
    ///
    /// # Safety
    /// `value` must be readable for the value size, and as [`HashMap::is_whole`] if `WHOLE` says so.
    #[inline(always)]
    pub(super) unsafe fn update_plain<K: Key, const WHOLE: bool>(&self, key: K, value: *const u8, slot: u32) -> i64 {
        let Some(op) = self.begin(slot) else { return Errno::EBUSY.as_ret() };
        let hash = self.seed.hash(key.words());
        let place = self.table.place_to_write(hash);
        let inserts = self.table.inserts_at(place);
        match self.table.glance::<K, true>(&key, place) {
            Glance::Found(found) => {
                let spare = op.spare();
                // SAFETY: the caller promises that `value` is readable for the value size, and whole if `WHOLE` is set.
                unsafe { self.fill_plain::<K, WHOLE>(spare, &key, value) };
                if found.replace(spare) {
                    op.set_spare(found.element());
                    return 0;
                }
            }
            Glance::Absent => {
                op.pass_on();
                // SAFETY: the caller promises that `value` is readable and whole as `WHOLE` says; the operation has
                // begun.
                return unsafe { self.insert_plain::<K, WHOLE>(key, hash, value, Search::new(slot, inserts)) };
            }
            Glance::Unclear => {}
        }
        drop(op);
        // SAFETY: the caller promises that `value` is readable for the value size.
        unsafe { self.update_closely(key, value, slot) }
    }

    /// Updates by the general path.
    ///
    /// # Safety
    /// `value` must be readable for the value size.
    #[cold]
    #[inline(never)]
    unsafe extern "C" fn update_closely<K: Key>(&self, key: K, value: *const u8, slot: u32) -> i64 {
        // SAFETY: the caller promises that `value` is readable for the value size; in a plain map it is also the host's
        // size.
        ret(unsafe { self.update_general(&key, Source::Program(value), update::ANY, slot) })
    }

    /// The second part of an update, for a key that was absent when the home chunk's insert count was as `search`
    /// says. Inserts into the home chunk, provided that no other thread inserts there, using the element that this
    /// slot gave back last.
    /// # Safety
    /// As [`HashMap::update_plain`]; and the caller must have begun an operation in the slot and passed it on.
    #[inline(never)]
    unsafe extern "C" fn insert_plain<K: Key, const WHOLE: bool>(
        &self,
        key: K,
        hash: u64,
        value: *const u8,
        search: Search,
    ) -> i64 {
        if let Some(state) = self.slots.get(search.slot() as usize)
            && let Some(next) = state.pocket.take()
        {
            let op = Op::passed_on(state);
            let spare = op.spare();
            // SAFETY: the caller promises that `value` is readable for the value size, and whole if `WHOLE` says so.
            unsafe { self.fill_plain::<K, WHOLE>(spare, &key, value) };
            if self.table.insert_at_home(self.table.place_of(hash), search.inserts(), spare) {
                SlotState::count(&state.added);
                op.set_spare(next);
                return 0;
            }
            // The pocket is empty, because this operation has taken its element.
            state.pocket.fill(next);
            op.pass_on();
        }
        // SAFETY: the caller promises that `value` is readable, and has begun the operation and passed it on.
        unsafe { self.insert_closely(key, hash, value, search) }
    }

    /// Inserts with any element, into any chunk, waiting for other inserts.
    ///
    /// # Safety
    /// `value` must be readable for the value size, and the caller must have begun an operation in the slot and passed
    /// it on.
    #[inline(never)]
    unsafe extern "C" fn insert_closely<K: Key>(&self, key: K, hash: u64, value: *const u8, search: Search) -> i64 {
        let slot = search.slot();
        let op = Op::passed_on(&self.slots[slot as usize]);
        let spare = op.spare();
        if let Pool::Now(free) = &self.pool
            && let Some(next) = self.take_free(free, slot)
        {
            // SAFETY: the caller promises that `value` is readable for the value size.
            unsafe { self.fill_plain::<K, false>(spare, &key, value) };
            if self.table.insert(&key, hash, search.inserts(), spare) {
                SlotState::count(&op.0.added);
                op.set_spare(next);
                return 0;
            }
            self.give_free(free, slot, next);
        }
        drop(op);
        // SAFETY: the caller promises that `value` is readable for the value size.
        unsafe { self.update_closely(key, value, slot) }
    }

    /// Writes key and value into an element of a plain map that is not in the index.
    ///
    /// # Safety
    /// `value` must be readable for the value size, and as [`HashMap::is_whole`] if `WHOLE` says so.
    #[inline(always)]
    unsafe fn fill_plain<K: Key, const WHOLE: bool>(&self, element: u32, key: &K, value: *const u8) {
        let words = self.table.begin_write(element, key);
        if WHOLE {
            // SAFETY: a whole number of readable words (contract), of which the element has as many.
            unsafe { mem::store_words_from_program(words, value) };
        } else {
            // SAFETY: readable for the value size (contract).
            unsafe { mem::store_from_program(words, value, self.shape.size) };
        }
    }

    /// Removes a key of a plain map. Returns the helper's result.
    #[inline(always)]
    pub(super) fn remove_plain<K: Key>(&self, key: K, slot: u32) -> i64 {
        let Some(op) = self.begin(slot) else { return Errno::EBUSY.as_ret() };
        let state = op.0;
        let place = self.table.place_to_write(self.seed.hash(key.words()));
        match self.table.glance::<K, true>(&key, place) {
            Glance::Found(found) => {
                SlotState::count(&state.removed);
                if found.remove() {
                    // As in `remove_key`.
                    let spare = op.spare();
                    op.set_spare(found.element());
                    if state.pocket.fill(spare) {
                        return 0;
                    }
                    op.pass_on();
                    return self.give_back(slot, spare);
                }
                SlotState::count(&state.added);
            }
            Glance::Absent => return Errno::ENOENT.as_ret(),
            Glance::Unclear => {}
        }
        drop(op);
        self.remove_closely(key, slot)
    }

    /// Removes by the general path.
    #[cold]
    #[inline(never)]
    extern "C" fn remove_closely<K: Key>(&self, key: K, slot: u32) -> i64 {
        ret(self.remove_key(&key, slot, |_| Ok(true)))
    }

    /// Ends a removal whose pocket is full: gives an element to the free list.
    #[inline(never)]
    extern "C" fn give_back(&self, slot: u32, element: u32) -> i64 {
        let _op = Op::passed_on(&self.slots[slot as usize]);
        if let Pool::Now(free) = &self.pool {
            free.push(slot, element);
        }
        0
    }
}

/// Converts a helper's return value back into a result.
#[expect(clippy::cast_possible_truncation, reason = "it is zero or made by `Errno::as_ret`")]
pub(super) fn result(ret: i64) -> OpResult {
    if ret == 0 { Ok(()) } else { Err(Errno(-ret as i32)) }
}
