//! The usual update, straight through.
//!
//! Nearly every update is `BPF_ANY` on a pre-allocated hash without frills, and nobody else changes the same key
//! meanwhile. That case is written out here without the loop, the flags and the reservations of the general one, which
//! takes over, from the beginning, whenever something is not as usual.

use super::free_list::FreeList;
use super::key::Key;
use super::slot::{Op, SlotState};
use super::{HashMap, Pool};
use crate::def::update;
use crate::errno::OpResult;
use crate::value::Source;

impl HashMap {
    /// Sets the value of a key, as `flags` allow.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline(always)]
    pub(super) unsafe fn update_key<K: Key>(&self, key: &K, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        if let (Pool::Now(free), true, update::ANY) = (&self.pool, self.is_plain, flags) {
            let op = Op::begin(&self.slots[slot as usize])?;
            // SAFETY: passed on.
            if unsafe { self.update_straight(&op, free, key, value, slot) } {
                return Ok(());
            }
        }
        // SAFETY: passed on.
        unsafe { self.update_general(key, value, flags, slot) }
    }

    /// False if something was not as usual; then nothing has happened.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline(always)]
    unsafe fn update_straight<K: Key>(
        &self,
        op: &Op<'_>,
        free: &FreeList,
        key: &K,
        value: Source<'_>,
        slot: u32,
    ) -> bool {
        let hash = self.seed.hash(key.words());
        let spare = op.spare();
        let searched = self.table.inserts(hash);
        let found = self.table.find(key, hash);
        self.table.begin_write();
        self.table.write_key(spare, key);
        // SAFETY: passed on.
        unsafe { self.shape.write_unlocked(self.table.extra(spare), value) };
        if let Some(found) = found {
            let replaced = self.table.replace(found, spare);
            if replaced {
                op.set_spare(found.element());
            }
            return replaced;
        }
        let Some(next) = self.take_free(free, slot) else { return false };
        if self.table.insert(key, hash, searched, spare) {
            SlotState::count(&op.0.added);
            op.set_spare(next);
            return true;
        }
        self.give_free(free, slot, next);
        false
    }
}
