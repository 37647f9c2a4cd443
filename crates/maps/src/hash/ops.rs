//! A hash map as the handle and the entry points see it: selects the key type, counts sizes, iterates.

use std::sync::atomic::AtomicU64;

use crossbeam_utils::CachePadded;

use super::key::{Key, with_key};
use super::lru::Clock;
use super::plain::result;
use super::slot::SlotState;
use super::table::Glance;
use super::{HashMap, Pool};
use crate::def::update;
use crate::errno::{Errno, OpResult, ret};
use crate::header::{DeleteFn, LookupFn, MapHeader, UpdateFn};
use crate::mem::{self, ANY_ALIGNMENT, WORD};
use crate::ops::{Cursor, MapOps, Visit};
use crate::slots::Slots;
use crate::value::Source;

/// The specialised lookup. (For why rare cases come last, see [`super::plain`].)
///
/// # Safety
/// See [`LookupFn`]; the map must be a hash whose key size is `K`'s and which is per-CPU and LRU as the constants say.
unsafe extern "C" fn lookup<K: Key, const PER_CPU: bool, const LRU: bool>(
    map: *const MapHeader,
    key: *const u8,
    slot: u32,
) -> *mut u8 {
    if K::is_at_hand(key) {
        // SAFETY: a live hash (contract).
        let map = unsafe { of_header(map) };
        // SAFETY: the key is readable for the key size (contract).
        let key = unsafe { K::read(key, map.key_size) };
        let place = map.table.place_of(map.seed.hash(key.words()));
        match map.table.glance::<K, false>(&key, place) {
            Glance::Found(found) if found.unchanged() => {
                return map.value_found::<PER_CPU, LRU>(found.element(), found.extra(), slot);
            }
            Glance::Absent => return std::ptr::null_mut(),
            Glance::Found(_) | Glance::Unclear => {}
        }
    }
    // SAFETY: this function's contract is that of `lookup_closely`.
    unsafe { lookup_closely::<K, PER_CPU, LRU>(map, key, slot) }
}

/// The general path of [`lookup`], which repeats the search from the beginning.
///
/// # Safety
/// As [`lookup`].
#[cold]
#[inline(never)]
unsafe extern "C" fn lookup_closely<K: Key, const PER_CPU: bool, const LRU: bool>(
    map: *const MapHeader,
    key: *const u8,
    slot: u32,
) -> *mut u8 {
    // SAFETY: a live hash (contract).
    let map = unsafe { of_header(map) };
    // SAFETY: the key is readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    let place = map.table.place_of(map.seed.hash(key.words()));
    let found = map.table.find_anywhere(&key, place);
    let value = |element| map.value_found::<PER_CPU, LRU>(element, map.table.extra(element), slot);
    found.map_or(std::ptr::null_mut(), |found| value(found.element()))
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

/// The specialised update of a plain map. With `WHOLE`, its values have whole words.
///
/// # Safety
/// See [`crate::program::update`]; the map must be a plain hash whose key size is `K`'s and whose values are as `WHOLE`
/// says.
unsafe extern "C" fn update_plain<K: Key, const WHOLE: bool>(
    map: *const MapHeader,
    key: *const u8,
    value: *const u8,
    flags: u64,
    slot: u32,
) -> i64 {
    let fits = !WHOLE || ANY_ALIGNMENT || value.cast::<u64>().is_aligned();
    if flags == update::ANY && K::is_at_hand(key) && fits {
        // SAFETY: a live hash (contract).
        let map = unsafe { of_header(map) };
        // SAFETY: readable for the key size (contract).
        let key = unsafe { K::read(key, map.key_size) };
        // SAFETY: readable for the value size (contract), and as `WHOLE` says.
        return unsafe { map.update_plain::<K, WHOLE>(key, value, slot) };
    }
    // SAFETY: this function's contract implies that of `update_any`: a live hash, and key and value of its sizes.
    unsafe { update_any::<K>(map, key, value, flags, slot) }
}

/// The specialised update of any map.
///
/// # Safety
/// See [`crate::program::update`]; the map must be a hash whose key size is `K`'s.
#[inline(never)]
unsafe extern "C" fn update_any<K: Key>(
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
    ret(unsafe { map.update_general(&key, Source::Program(value), flags, slot) })
}

/// The specialised delete of a plain map.
///
/// # Safety
/// See [`crate::program::delete`]; the map must be a plain hash whose key size is `K`'s.
unsafe extern "C" fn delete_plain<K: Key>(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    if K::is_at_hand(key) {
        // SAFETY: a live hash (contract).
        let map = unsafe { of_header(map) };
        // SAFETY: readable for the key size (contract).
        return map.remove_plain(unsafe { K::read(key, map.key_size) }, slot);
    }
    // SAFETY: this function's contract implies that of `delete_any`: a live hash, and a key of its size.
    unsafe { delete_any::<K>(map, key, slot) }
}

/// The specialised delete of any map.
///
/// # Safety
/// See [`crate::program::delete`]; the map must be a hash whose key size is `K`'s.
#[inline(never)]
unsafe extern "C" fn delete_any<K: Key>(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    // SAFETY: a live hash (contract).
    let map = unsafe { of_header(map) };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    ret(map.remove_key(&key, slot, |_| Ok(true)))
}

impl HashMap {
    /// The pointer that a program gets for a found key.
    #[inline(always)]
    fn value_found<const PER_CPU: bool, const LRU: bool>(
        &self,
        element: u32,
        extra: &[AtomicU64],
        slot: u32,
    ) -> *mut u8 {
        if LRU {
            self.touch(element);
        }
        if PER_CPU {
            return self.value_ptr(element, slot);
        }
        extra.as_ptr().cast_mut().cast()
    }
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

    fn update_fn(&self) -> Option<UpdateFn> {
        let whole = self.shape.size.is_multiple_of(WORD);
        let update: UpdateFn = with_key!(self.key_size, K => match (self.is_plain, whole) {
            (true, true) => update_plain::<K, true>,
            (true, false) => update_plain::<K, false>,
            (false, _) => update_any::<K>,
        });
        Some(update)
    }

    fn delete_fn(&self) -> Option<DeleteFn> {
        let delete: DeleteFn =
            with_key!(self.key_size, K => if self.is_plain { delete_plain::<K> } else { delete_any::<K> });
        Some(delete)
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

    fn key_of(&self, value: *const u8, key: &mut [u8]) -> bool {
        let element = if self.per_cpu.is_some() { None } else { self.table.element_at(value) };
        // The key may be another one's by this time, or torn: the caller looks the key up.
        element.map(|element| mem::load_bytes(self.table.key(element), key)).is_some()
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
        with_key!(self.key_size, K => {
            let key = K::from_host(key);
            match (self.is_plain && flags == update::ANY, self.is_whole(value.as_ptr())) {
                // SAFETY: the handle has checked that the value has the map's size; whole as asked.
                (true, true) => result(unsafe { self.update_plain::<K, true>(key, value.as_ptr(), slot) }),
                // SAFETY: the handle has checked that the value has the map's size; it need not be whole words.
                (true, false) => result(unsafe { self.update_plain::<K, false>(key, value.as_ptr(), slot) }),
                (false, _) => {
                    let (source, flags) = match (&self.per_cpu, Slots::split(flags)) {
                        (Some(_), (slots, rest)) => (Source::Slots(value, slots), rest),
                        (None, _) => (Source::Host(value), flags),
                    };
                    // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
                    unsafe { self.update_general(&key, source, flags, slot) }
                }
            }
        })
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        with_key!(self.key_size, K => match (K::from_host(key), self.is_plain) {
            (key, true) => result(self.remove_plain(key, slot)),
            (key, false) => self.remove_key(&key, slot, |_| Ok(true)),
        })
    }

    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        with_key!(self.key_size, K => {
            // The removal exchanges the slot word under which the value was read.
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

    fn may_recover(&self) -> bool {
        match &self.pool {
            Pool::Now(_) => true,
            Pool::Later(list, _) => list.waits(),
        }
    }

    fn memory_usage(&self) -> u64 {
        let per_cpu = self.per_cpu.as_ref().map_or(0, |per_cpu| per_cpu.words.len() * WORD);
        let states = self.slots.len() * size_of::<CachePadded<SlotState>>();
        let fixed = self.table.index_memory() + states + self.clock.as_ref().map_or(0, Clock::memory);
        let elements = match &self.pool {
            Pool::Now(free) => self.table.slab_memory() + per_cpu + free.memory(),
            // Only touched elements occupy memory.
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
