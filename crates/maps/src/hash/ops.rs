//! A hash map as the handle and the entry points see it: key sizes picked, sizes counted, positions walked.

use crossbeam_utils::CachePadded;

use super::key::{Key, with_key};
use super::lru::Clock;
use super::slot::SlotState;
use super::{HashMap, Pool};
use crate::errno::{Errno, OpResult, ret};
use crate::header::{DeleteFn, LookupFn, MapHeader, UpdateFn};
use crate::mem::{self, WORD};
use crate::ops::{Cursor, MapOps, Visit};
use crate::value::Source;

/// The specialised lookup.
///
/// # Safety
/// See [`LookupFn`]; the map must be a hash whose key size is `K`'s and which is per-CPU and LRU as the constants say.
unsafe extern "C" fn lookup<K: Key, const PER_CPU: bool, const LRU: bool>(
    map: *const MapHeader,
    key: *const u8,
    slot: u32,
) -> *mut u8 {
    // SAFETY: a live hash (contract).
    let map = unsafe { of_header(map) };
    // SAFETY: the key is readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    let Some(found) = map.find(&key) else { return std::ptr::null_mut() };
    if LRU {
        map.touch(found.element());
    }
    if PER_CPU {
        return map.value_ptr(found.element(), slot);
    }
    map.table.extra(found.element()).as_ptr().cast_mut().cast()
}

/// The hash behind a program's map pointer.
///
/// # Safety
/// `map` must be the header of a live hash.
#[inline(always)]
unsafe fn of_header<'a>(map: *const MapHeader) -> &'a HashMap {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of a hash, whose implementation lives as long (contract).
    unsafe { &*imp.cast::<HashMap>() }
}

/// The specialised update.
///
/// # Safety
/// See [`crate::program::update`]; the map must be a hash whose key size is `K`'s.
unsafe extern "C" fn update<K: Key>(
    map: *const MapHeader,
    key: *const u8,
    value: *const u8,
    flags: u64,
    slot: u32,
) -> i64 {
    // SAFETY: a live hash (contract).
    let map = unsafe { of_header(map) };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    // SAFETY: readable for the value size (contract).
    ret(unsafe { map.update_key(&key, Source::Program(value), flags, slot) })
}

/// The specialised delete.
///
/// # Safety
/// See [`crate::program::delete`]; the map must be a hash whose key size is `K`'s.
unsafe extern "C" fn delete<K: Key>(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    // SAFETY: a live hash (contract).
    let map = unsafe { of_header(map) };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    ret(map.remove_key(&key, slot, |_| Ok(true)))
}

impl MapOps for HashMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        with_key!(self.key_size, K => match (self.per_cpu.is_some(), self.clock.is_some()) {
            (false, false) => lookup::<K, false, false>,
            (false, true) => lookup::<K, false, true>,
            (true, false) => lookup::<K, true, false>,
            (true, true) => lookup::<K, true, true>,
        })
    }

    fn update_fn(&self) -> UpdateFn {
        with_key!(self.key_size, K => update::<K>)
    }

    fn delete_fn(&self) -> DeleteFn {
        with_key!(self.key_size, K => delete::<K>)
    }

    fn host_value_size(&self) -> usize {
        self.per_cpu.as_ref().map_or(self.shape.size, |per_cpu| per_cpu.slots * self.shape.words() * WORD)
    }

    unsafe fn program_lookup_percpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        if self.per_cpu.as_ref().is_none_or(|per_cpu| cpu as usize >= per_cpu.slots) {
            return std::ptr::null_mut();
        }
        with_key!(self.key_size, K => {
            // SAFETY: readable for the key size (contract).
            let key = unsafe { K::read(key, self.key_size) };
            self.find(&key).map_or(std::ptr::null_mut(), |found| self.value_ptr(found.element(), cpu))
        })
    }

    fn for_each(&self, visit: Visit<'_>, slot: u32) -> OpResult<u64> {
        let (mut at, mut visited) = (0, 0);
        while let Some((position, found)) = self.table.scan(at) {
            visited += 1;
            let key = self.table.key(found.element()).as_ptr().cast();
            if !visit(key, self.value_ptr(found.element(), slot)) {
                break;
            }
            at = position + 1;
        }
        Ok(visited)
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        with_key!(self.key_size, K => {
            let key = K::from_host(key);
            loop {
                let found = self.find(&key).ok_or(Errno::ENOENT)?;
                if self.read(found, out, flags, slot)? {
                    return Ok(());
                }
            }
        })
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        // SAFETY: a host source.
        with_key!(self.key_size, K => unsafe { self.update_key(&K::from_host(key), Source::Host(value), flags, slot) })
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        with_key!(self.key_size, K => self.remove_key(&K::from_host(key), slot, |_| Ok(true)))
    }

    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        with_key!(self.key_size, K => {
            // The removal exchanges the very word the value was read under.
            self.remove_key(&K::from_host(key), slot, |found| self.read(found, out, flags, slot))
        })
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let mut at = key.map_or(0, |key| self.position_after(key));
        loop {
            let (position, found) = self.table.scan(at).ok_or(Errno::ENOENT)?;
            mem::load_bytes(self.table.key(found.element()), out);
            if self.table.unchanged(found) {
                return Ok(());
            }
            at = position;
        }
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        loop {
            let (position, found) = self.table.scan(cursor.position).ok_or(Errno::ENOENT)?;
            mem::load_bytes(self.table.key(found.element()), key);
            cursor.position = position;
            if self.read(found, value, 0, slot)? {
                cursor.position += 1;
                return Ok(());
            }
        }
    }

    fn has_batch(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        let (added, removed) = self.counts();
        added.saturating_sub(removed)
    }

    fn memory_usage(&self) -> u64 {
        let per_cpu = self.per_cpu.as_ref().map_or(0, |per_cpu| per_cpu.words.len() * WORD);
        let states = self.slots.len() * size_of::<CachePadded<SlotState>>();
        let fixed = self.table.index_memory() + states + self.clock.as_ref().map_or(0, Clock::memory);
        let elements = match &self.pool {
            Pool::Now(free) => self.table.slab_memory() + per_cpu + free.memory(),
            // Only what has been touched takes up memory.
            Pool::Later(free, _) => {
                let all = self.table.slab_memory() + per_cpu;
                let touched = u64::from(free.touched()) + self.slots.len() as u64;
                let total = u64::from(free.limit()) + self.slots.len() as u64;
                (all as u128 * u128::from(touched) / u128::from(total)) as usize + free.memory()
            }
        };
        (fixed + elements) as u64
    }
}
