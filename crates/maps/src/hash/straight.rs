//! The usual update, straight through.
//!
//! Nearly every update is `BPF_ANY` on a pre-allocated hash without frills, and nobody else changes the same key
//! meanwhile. That case is written out here without the loop, the flags and the reservations of the general one, which
//! takes over, from the beginning, whenever something is not as usual.

use super::key::Key;
use super::slot::{Op, SlotState};
use super::table::HashPlace;
use super::{HashMap, Pool};
use crate::def::update;
use crate::errno::OpResult;
use crate::mem;
use crate::value::Source;

impl HashMap {
    /// Sets the value of a key, as `flags` allow.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline(always)]
    pub(super) unsafe fn update_key<K: Key>(&self, key: &K, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        if self.is_plain && flags == update::ANY {
            // SAFETY: passed on: in a plain map a host's value is as large as a program's.
            if unsafe { self.update_straight(key, value.bytes(), slot) } {
                return Ok(());
            }
        }
        // SAFETY: passed on.
        unsafe { self.update_general(key, value, flags, slot) }
    }

    /// False if something was not as usual; then nothing has happened.
    ///
    /// # Safety
    /// `value` must be readable for the value size.
    #[inline(always)]
    unsafe fn update_straight<K: Key>(&self, key: &K, value: *const u8, slot: u32) -> bool {
        let Ok(op) = Op::begin(&self.slots[slot as usize]) else { return false };
        let place = self.table.place_to_write(self.seed.hash(key.words()));
        let searched = self.table.inserts_at(place);
        let Some(found) = self.table.find_at::<K, true>(key, place) else {
            // SAFETY: passed on.
            return unsafe { self.insert_straight(&op, key, place, searched, value, slot) };
        };
        let spare = op.spare();
        // SAFETY: passed on.
        unsafe { self.fill_plain(spare, key, value) };
        let replaced = self.table.replace(found, spare);
        if replaced {
            op.set_spare(found.element());
        }
        replaced
    }

    /// The other half, for a key that was absent when the home chunk's insert count was `searched`. Not inlined, so that a replace
    /// saves no registers for it.
    ///
    /// # Safety
    /// `value` must be readable for the value size.
    #[inline(never)]
    unsafe fn insert_straight<K: Key>(
        &self,
        op: &Op<'_>,
        key: &K,
        place: HashPlace,
        searched: u32,
        value: *const u8,
        slot: u32,
    ) -> bool {
        let Pool::Now(free) = &self.pool else { return false };
        let spare = op.spare();
        let Some(next) = self.take_free(free, slot) else { return false };
        // SAFETY: passed on.
        unsafe { self.fill_plain(spare, key, value) };
        if self.table.insert_at(key, place, searched, spare) {
            SlotState::count(&op.0.added);
            op.set_spare(next);
            return true;
        }
        self.give_free(free, slot, next);
        false
    }

    /// Writes key and value into an element of a plain map that is not in the index.
    ///
    /// # Safety
    /// `value` must be readable for the value size.
    #[inline(always)]
    unsafe fn fill_plain<K: Key>(&self, element: u32, key: &K, value: *const u8) {
        self.table.begin_write();
        self.table.write_key(element, key);
        // SAFETY: readable for the value size (contract).
        unsafe { mem::store_from_program(self.table.extra(element), value, self.shape.size) };
    }
}
