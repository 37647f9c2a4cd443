//! Arrays of instructions: the jump tables of indirect jumps (`gotox`).
//!
//! Problem: the host writes the instruction of each entry as a value of 16 bytes (the kernel's `struct
//! bpf_insn_array_value`: `orig_off`, `xlated_off`, `jitted_off` and padding), and programs load entries of eight
//! bytes. Approach: an entry is one word, the number by which programs know the instruction; the host's value is
//! computed from it. The kernel moves instructions and gives them addresses, so it fills in the other two fields.
//! Here instructions keep their offsets and no jump goes to an address, so both fields are zero.
//!
//! Invariants: programs only read. The entries that a program was loaded with stay, because loading requires a frozen
//! map.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::def::{INSN_VALUE_SIZE as VALUE_SIZE, MapDef, update};
use crate::errno::{Errno, OpResult};
use crate::header::LookupFn;
use crate::mem::Table;
use crate::ops::{Addressable, Cursor, MapOps};
use crate::queue::no_lookup;

/// Bytes of an entry in the view of programs.
const ENTRY: usize = 8;

/// The number by which programs know the instruction at this offset (`bpf_isa::InsnIdx::target_number`); never 0.
fn number_of(offset: u32) -> u64 {
    u64::from(offset) + 1
}

/// The offset of the instruction that has this number.
fn offset_of(number: u64) -> u32 {
    crate::num::low(number.saturating_sub(1))
}

#[derive(Debug)]
pub(crate) struct InsnArray {
    entries: Table<AtomicU64>,
}

impl InsnArray {
    /// Bytes an array of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        u64::from(def.max_entries) * ENTRY as u64
    }

    pub(crate) fn new(def: &MapDef) -> OpResult<Self> {
        let entries: Table<AtomicU64> = Table::zeroed(def.max_entries as usize)?;
        // Every entry of a new map names the first instruction.
        entries.iter().for_each(|entry| entry.store(number_of(0), Ordering::Relaxed));
        Ok(Self { entries })
    }

    fn entry(&self, key: &[u8]) -> OpResult<Option<&AtomicU64>> {
        let index = u32::from_ne_bytes(key.try_into().map_err(|_| Errno::EINVAL)?);
        Ok(self.entries.get(index as usize))
    }
}

/// The host's value of an entry.
fn read(entry: &AtomicU64, out: &mut [u8]) {
    out.fill(0);
    // Relaxed: an entry publishes no other memory.
    out[..4].copy_from_slice(&offset_of(entry.load(Ordering::Relaxed)).to_ne_bytes());
}

impl MapOps for InsnArray {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    fn addressable(&self) -> Addressable {
        Addressable { base: self.entries.base().cast(), stride: ENTRY, slot_stride: 0 }
    }

    fn host_value_size(&self) -> usize {
        VALUE_SIZE as usize
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, _slot: u32) -> OpResult {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        read(self.entry(key)?.ok_or(Errno::ENOENT)?, out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, _slot: u32) -> OpResult {
        if flags > update::EXIST {
            return Err(Errno::EINVAL);
        }
        let entry = self.entry(key)?.ok_or(Errno::E2BIG)?;
        if flags == update::NOEXIST {
            return Err(Errno::EEXIST);
        }
        let (offset, rest) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        // `xlated_off` and `jitted_off` are written by the kernel only, so they must be zero; the padding is ignored.
        if rest.iter().take(8).any(|byte| *byte != 0) {
            return Err(Errno::EINVAL);
        }
        // Relaxed: as above.
        entry.store(number_of(u32::from_ne_bytes(*offset)), Ordering::Relaxed);
        Ok(())
    }

    fn delete(&self, _key: &[u8], _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let current = key.and_then(|key| key.try_into().ok()).map(u32::from_ne_bytes);
        let next = current.filter(|index| (*index as usize) < self.entries.len()).map_or(0, |index| index + 1);
        if next as usize >= self.entries.len() {
            return Err(Errno::ENOENT);
        }
        out.copy_from_slice(&next.to_ne_bytes());
        Ok(())
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], _slot: u32) -> OpResult {
        let index = u32::try_from(cursor.position).map_err(|_| Errno::ENOENT)?;
        let entry = self.entries.get(index as usize).ok_or(Errno::ENOENT)?;
        key.copy_from_slice(&index.to_ne_bytes());
        read(entry, value);
        cursor.position += 1;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    fn memory_usage(&self) -> u64 {
        (self.entries.len() * ENTRY) as u64
    }
}
