//! Hash maps: plain, per-CPU and LRU.
//!
//! [`table`] keeps the index, [`free_list`] the unused elements, [`key`] reads and hashes keys. This file adds values,
//! the kernel's flags and error numbers, and the accounting.
//!
//! * **Updates** write key and value into the *spare* element of their execution slot and put it into the index with
//!   one exchange. A replace gets the old element back as the next spare, so it works in a full map; an insert of a new
//!   key takes its next spare from the free list.
//! * **Full is exact.** The free list, with the slots' pockets, holds exactly `max_entries` elements at first (spares
//!   are extra), so it can only run dry with that many keys present or in transit. Then the per-slot counts decide.
//!   `added` grows after a key is in, `removed` before it is taken out. So their difference, if two readings agree,
//!   never exceeds the number of keys present at that moment. Only if it is `max_entries` does the insert fail;
//!   otherwise another thread is about to finish an operation.
//! * **Re-entry**: a slot's own state (spare, counts) is guarded by its `busy` flag. A signal handler that runs a
//!   program on the same thread has the same slot, finds the flag, and gets `EBUSY`. Lookups need no such state and
//!   always work.
//! * **`NO_PREALLOC`**: removed elements become free after a grace period ([`crate::retire`]). So there are more
//!   elements than entries, and a count of keys decides whether the map is full.
//! * **LRU**: instead of failing, a full map evicts ([`lru`]).
//! * **Per-CPU values** live beside the slab, one region per slot. They are updated in place, under the lock of the
//!   key's home chunk, which deletes of such maps take as well: an update must not reach the next owner of the element.

mod chunk;
pub(crate) mod free_list;
pub(crate) mod key;
mod lru;
mod ops;
mod plain;
mod slot;
pub(crate) mod table;
#[cfg(not(loom))]
mod tags;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_quiesce::{Domain, Reservation};
use crossbeam_utils::CachePadded;

use crate::def::{MapDef, flags, update};
use crate::errno::{Errno, OpResult};
use crate::mem::{self, Table as Memory, WORD, boxed, round_up8, words_for};
use crate::retire::GraceList;
use crate::slots::Slots;
use crate::value::{Shape, Source};
use chunk::Chunk;
use free_list::FreeList;
use key::{Key, Seed, with_key};
use lru::Clock;
use slot::{Op, SlotState};
use table::{Found, Table};

/// The values of a per-CPU hash: one region per execution slot.
#[derive(Debug)]
struct PerCpu {
    words: Memory<AtomicU64>,
    slots: usize,
    slot_stride: usize,
}

/// The source of unused elements.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per map, and an indirection would cost every insert")]
enum Pool {
    /// Pre-allocated: exactly one element per entry, reused at once.
    Now(FreeList),
    /// `NO_PREALLOC`: more elements than entries, reused after a grace period. The number counts keys present or
    /// being inserted.
    Later(GraceList, CachePadded<AtomicU32>),
}

/// Resources that an update has reserved and not used yet.
#[derive(Default)]
struct Reserved {
    /// The element that becomes the next spare.
    element: Option<u32>,
    /// The right to insert one key into a `NO_PREALLOC` map.
    permit: bool,
}

/// A hash map of any flavour.
#[derive(Debug)]
pub(crate) struct HashMap {
    key_size: usize,
    shape: Shape,
    max_entries: u32,
    seed: Seed,
    table: Table,
    pool: Pool,
    slots: Box<[CachePadded<SlotState>]>,
    per_cpu: Option<PerCpu>,
    clock: Option<Clock>,
    /// Pre-allocated, without per-CPU values, eviction, or fields that copies of values leave out: see [`plain`].
    is_plain: bool,
    /// Number of elements in the slab.
    elements: u32,
}

fn is_prealloc(def: &MapDef) -> bool {
    def.flags & flags::NO_PREALLOC == 0
}

/// Bytes of a key and a value.
fn element_bytes(def: &MapDef) -> usize {
    round_up8(def.key_size as usize) + round_up8(def.value_size as usize)
}

/// Bytes of an element with its per-slot values and bookkeeping.
fn element_memory(def: &MapDef, slots: u32) -> u64 {
    let value = round_up8(def.value_size as usize) as u64;
    let values = if def.map_type.is_per_cpu() { value.saturating_mul(slots.into()) } else { value };
    let bookkeeping = size_of::<AtomicU32>() as u64 + u64::from(def.map_type.is_lru());
    values.saturating_add(round_up8(def.key_size as usize) as u64 + bookkeeping)
}

/// Elements that [`Pool`] hands out; each slot has a spare beyond them.
fn pooled(def: &MapDef, slots: u32) -> u64 {
    if is_prealloc(def) {
        return def.max_entries.into();
    }
    u64::from(def.max_entries) + GraceList::headroom(def.max_entries, element_bytes(def), slots)
}

/// Distance from one slot's first spare to the next slot's, in elements: no two share a cache line. (1 for LRU maps,
/// whose clock would have to step over the gaps.)
fn spare_stride(def: &MapDef) -> u32 {
    if def.map_type.is_lru() {
        return 1;
    }
    let value = if def.map_type.is_per_cpu() { 0 } else { round_up8(def.value_size as usize) };
    // Fits: at most CACHE_LINE.
    crate::num::small(CACHE_LINE.div_ceil(round_up8(def.key_size as usize) + value))
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

impl HashMap {
    /// Bytes a hash of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef, slots: u32) -> u64 {
        Self::memory_for(def, slots, pooled(def, slots))
    }

    /// Bytes of a hash of this definition before any element was taken.
    pub(crate) fn memory_at_first(def: &MapDef, slots: u32) -> u64 {
        if is_prealloc(def) {
            return Self::memory_needed(def, slots);
        }
        Self::memory_for(def, slots, 0).saturating_add(GraceList::fixed_memory(slots))
    }

    /// Bytes of a hash of this definition whose pool has `pooled` elements.
    fn memory_for(def: &MapDef, slots: u32, pooled: u64) -> u64 {
        let elements = pooled + u64::from(slots) * u64::from(spare_stride(def));
        let index = (Table::chunks_for(def.max_entries) * size_of::<Chunk>()) as u64;
        let states = size_of::<CachePadded<SlotState>>() as u64;
        element_memory(def, slots)
            .saturating_mul(elements)
            .saturating_add(index)
            .saturating_add(states.saturating_mul(slots.into()))
    }

    /// Creates a hash. `NO_PREALLOC` maps count their elements when they are taken.
    pub(crate) fn new(
        def: &MapDef,
        domain: &Arc<Domain>,
        seed: Option<u64>,
        reservation: Option<&Reservation>,
    ) -> OpResult<Self> {
        let slots = domain.max_slots();
        let pooled = u32::try_from(pooled(def, slots)).map_err(|_| Errno::E2BIG)?;
        let apart = spare_stride(def);
        let elements = slots.checked_mul(apart).and_then(|spares| pooled.checked_add(spares)).ok_or(Errno::E2BIG)?;
        let shape = Shape::of(def);
        let has_fields = shape.has_fields();
        let words = shape.words();
        let per_cpu = def.map_type.is_per_cpu();
        let slot_stride = words * elements as usize;
        let hands = if def.flags & flags::NO_COMMON_LRU != 0 { slots } else { 1 };
        Ok(Self {
            key_size: def.key_size as usize,
            shape,
            max_entries: def.max_entries,
            seed: match seed {
                _ if def.flags & flags::ZERO_SEED != 0 => Seed::fixed(0),
                Some(seed) => Seed::fixed(seed),
                None => Seed::random(),
            },
            table: Table::new(
                def.max_entries,
                elements,
                words_for(def.key_size as usize),
                if per_cpu { 0 } else { words },
            )?,
            pool: if is_prealloc(def) {
                Pool::Now(FreeList::new(pooled, elements, slots)?)
            } else {
                let list = GraceList::new(pooled, elements, element_bytes(def), slots, domain)?
                    .growing(reservation, element_memory(def, slots));
                Pool::Later(list, CachePadded::new(AtomicU32::new(0)))
            },
            slots: boxed(slots, |slot| CachePadded::new(SlotState::new(pooled + slot * apart)))?,
            per_cpu: per_cpu
                .then(|| {
                    let words = Memory::zeroed(slot_stride * slots as usize)?;
                    OpResult::Ok(PerCpu { words, slots: slots as usize, slot_stride })
                })
                .transpose()?,
            clock: def.map_type.is_lru().then(|| Clock::new(elements, hands)).transpose()?,
            is_plain: is_prealloc(def) && !per_cpu && !def.map_type.is_lru() && !has_fields,
            elements,
        })
    }

    /// The value of `element` that `slot` sees.
    #[inline]
    fn value(&self, element: u32, slot: usize) -> &[AtomicU64] {
        match &self.per_cpu {
            None => self.table.extra(element),
            Some(per_cpu) => {
                let start = slot * per_cpu.slot_stride + element as usize * self.shape.words();
                &per_cpu.words[start..start + self.shape.words()]
            }
        }
    }

    #[inline]
    fn value_ptr(&self, element: u32, slot: u32) -> *mut u8 {
        self.value(element, slot as usize).as_ptr().cast_mut().cast()
    }

    /// Sums of the per-slot counts: keys added, keys removed.
    fn counts(&self) -> (u64, u64) {
        self.slots.iter().fold((0, 0), |(added, removed), state| {
            // Acquire: the second of two equal readings must not move before the first.
            let more = (state.added.load(Ordering::Acquire), state.removed.load(Ordering::Acquire));
            (added + more.0, removed + more.1)
        })
    }

    /// Whether `max_entries` keys were present at one moment during this call.
    fn is_full(&self) -> bool {
        let counts = self.counts();
        counts.0.wrapping_sub(counts.1) >= u64::from(self.max_entries) && self.counts() == counts
    }

    /// Takes an unused element of a pre-allocated map.
    #[inline]
    fn take_free(&self, free: &FreeList, slot: u32) -> Option<u32> {
        self.slots[slot as usize].pocket.take().or_else(|| free.pop(slot))
    }

    /// Gives an element of a pre-allocated map back.
    #[inline]
    fn give_free(&self, free: &FreeList, slot: u32, element: u32) {
        // Not into a pocket of an LRU map, which would have to search all pockets before it evicts.
        if self.clock.is_some() || !self.slots[slot as usize].pocket.fill(element) {
            free.push(slot, element);
        }
    }

    /// Reserves the resources for the insert of a new key.
    #[inline]
    fn reserve_insert<K: Key>(&self, reserved: &mut Reserved, slot: u32) -> OpResult {
        match &self.pool {
            Pool::Now(free) => {
                if reserved.element.is_none() {
                    let element = self.take_free(free, slot);
                    reserved.element = Some(element.map_or_else(|| self.make_room::<K>(free, slot), Ok)?);
                }
                Ok(())
            }
            Pool::Later(_, count) => {
                if !reserved.permit {
                    self.permit(count)?;
                    reserved.permit = true;
                }
                self.reserve_replace(reserved, slot)
            }
        }
    }

    /// Reserves the resources for a replace: none, unless the old element must wait before it is reused.
    #[inline]
    fn reserve_replace(&self, reserved: &mut Reserved, slot: u32) -> OpResult {
        if let (Pool::Later(free, _), None) = (&self.pool, reserved.element) {
            reserved.element = Some(free.pop(slot).ok_or(Errno::ENOMEM)?);
        }
        Ok(())
    }

    /// Gives back unused reservations.
    #[inline]
    fn unreserve(&self, reserved: &Reserved, slot: u32) {
        match (&self.pool, reserved.element) {
            (Pool::Now(free), Some(element)) => self.give_free(free, slot, element),
            (Pool::Later(free, _), Some(element)) => free.push(slot, element),
            (_, None) => {}
        }
        if let (Pool::Later(_, count), true) = (&self.pool, reserved.permit) {
            // Relaxed: a count.
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts one more key, unless the map is full.
    fn permit(&self, count: &AtomicU32) -> OpResult {
        // Relaxed: a count; whether the map is full is decided by `is_full`.
        let more = |n| (n < self.max_entries).then_some(n + 1);
        while count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            if self.is_full() {
                return Err(Errno::E2BIG);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Finds an element when the free list looked empty.
    #[cold]
    fn make_room<K: Key>(&self, free: &FreeList, slot: u32) -> OpResult<u32> {
        if let Some(clock) = &self.clock {
            return self.evict::<K>(clock, free, slot);
        }
        loop {
            if self.is_full() {
                return Err(Errno::E2BIG);
            }
            // Another slot has one in its pocket, or is between taking or giving an element and counting it.
            let elsewhere = || self.slots.iter().find_map(|state| state.pocket.take());
            if let Some(element) = free.pop(slot).or_else(elsewhere) {
                return Ok(element);
            }
            std::thread::yield_now();
        }
    }

    /// Takes an element from the key that the clock selects.
    fn evict<K: Key>(&self, clock: &Clock, free: &FreeList, slot: u32) -> OpResult<u32> {
        let state = &self.slots[slot as usize];
        for _ in 0..clock.rounds() {
            let Some(victim) = clock.advance(slot) else { continue };
            // The hand soon reaches a neighbour, whose chunk may be anywhere in memory: its line is prefetched.
            let neighbour = K::load(self.table.key(clock.ahead(victim)));
            self.table.place_to_write(self.seed.hash(neighbour.words()));
            // The victim may be unused, or get another key while its key is read: `find` tells whether it holds that
            // key.
            let key = K::load(self.table.key(victim));
            let hash = self.seed.hash(key.words());
            if let Some(found) = self.table.find(&key, hash).filter(|found| found.element() == victim) {
                SlotState::count(&state.removed);
                if self.remove_found(found, hash) {
                    self.let_go(found, slot);
                    return Ok(victim);
                }
                SlotState::count(&state.added);
            }
            if let Some(element) = free.pop(slot) {
                return Ok(element);
            }
        }
        Err(Errno::ENOMEM)
    }

    /// Writes key and value into an element that is not in the index.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline]
    unsafe fn fill<K: Key>(&self, element: u32, key: &K, value: Source<'_>, slot: u32) -> OpResult {
        let words = self.table.begin_write(element, key);
        if let Some(clock) = &self.clock {
            clock.clear(element);
        }
        let Some(per_cpu) = &self.per_cpu else {
            // SAFETY: the caller promises that a program's source is readable for the value size.
            self.shape.locked(words, slot, || unsafe { self.shape.write(words, value) })?;
            // A program that still had the previous value may have stored an object in it since.
            self.shape.let_go(words, slot);
            return Ok(());
        };
        let only = match value {
            Source::Program(_) => Some(slot as usize),
            Source::Slots(_, Slots::One(slot)) => Some(slot),
            Source::Slots(..) | Source::Host(_) => None,
        };
        if let Some(only) = only {
            for of in (0..per_cpu.slots).filter(|&of| of != only) {
                mem::zero(self.value(element, of));
            }
        }
        // SAFETY: the caller promises that a program's source is readable for the value size.
        unsafe { self.write_per_cpu(per_cpu, element, value, slot) };
        Ok(())
    }

    /// Writes a per-CPU value in place: a program's own slot, or the slots that the host names.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn write_per_cpu(&self, per_cpu: &PerCpu, element: u32, value: Source<'_>, slot: u32) {
        match value {
            // SAFETY: the caller promises that a program's source is readable for the value size.
            Source::Program(_) | Source::Host(_) => unsafe {
                self.shape.write(self.value(element, slot as usize), value)
            },
            Source::Slots(bytes, slots) => {
                for (of, place) in slots.places(per_cpu.slots, self.shape.words() * WORD, self.shape.size) {
                    // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
                    unsafe { self.shape.write(self.value(element, of), Source::Host(&bytes[place])) };
                }
            }
        }
    }

    /// Copies the value of a found key out; false if the key was replaced or removed meanwhile.
    #[inline]
    fn read(&self, found: Found, out: &mut [u8], flags: u64, slot: u32) -> OpResult<bool> {
        match &self.per_cpu {
            Some(per_cpu) => {
                // A value and the zeros that it is padded with; without those where the slice has one value.
                let (stride, slots) = (self.shape.words() * WORD, Slots::split(flags).0);
                for (of, place) in slots.places(per_cpu.slots, stride, out.len().min(stride)) {
                    self.shape.read(self.value(found.element(), of), &mut out[place]);
                }
            }
            None if flags & update::F_LOCK != 0 => {
                let words = self.table.extra(found.element());
                self.shape.locked(words, slot, || self.shape.read(words, out))?;
            }
            None => self.shape.read(self.table.extra(found.element()), out),
        }
        Ok(self.table.unchanged(found))
    }

    /// An update with any flags, of any kind of hash; [`plain`] has the fast path.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline(never)]
    unsafe fn update_general<K: Key>(&self, key: &K, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        self.shape.check_flags(flags)?;
        let op = Op::begin(&self.slots[slot as usize])?;
        let mut reserved = Reserved::default();
        // SAFETY: the caller promises that a program's source is readable for the value size.
        let result = unsafe { self.update_in(&op, key, value, flags, slot, &mut reserved) };
        self.unreserve(&reserved, slot);
        result
    }

    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline]
    unsafe fn update_in<K: Key>(
        &self,
        op: &Op<'_>,
        key: &K,
        value: Source<'_>,
        flags: u64,
        slot: u32,
        reserved: &mut Reserved,
    ) -> OpResult {
        let hash = self.seed.hash(key.words());
        let spare = op.spare();
        let mut filled = false;
        // Each further round means that another thread changed this key in between.
        loop {
            let searched = self.table.inserts(hash);
            let found = self.table.find(key, hash);
            match (found, flags & !update::F_LOCK) {
                (Some(_), update::NOEXIST) => return Err(Errno::EEXIST),
                (None, update::EXIST) => return Err(Errno::ENOENT),
                (Some(found), _) if flags & update::F_LOCK != 0 || self.per_cpu.is_some() => {
                    // SAFETY: the caller promises that a program's source is readable for the value size.
                    if unsafe { self.update_in_place(found, hash, value, slot) }? {
                        return Ok(());
                    }
                    continue;
                }
                (Some(_), _) => self.reserve_replace(reserved, slot)?,
                (None, _) => match self.reserve_insert::<K>(reserved, slot) {
                    // The search may have missed this key, which filled the map and is removed again: unless nothing
                    // was inserted in this chunk since, the key may have been present when the map was full.
                    Err(Errno::E2BIG) if self.table.inserts(hash) != searched => continue,
                    result => result?,
                },
            }
            if !filled {
                // SAFETY: the caller promises that a program's source is readable; the spare element belongs to this
                // slot.
                unsafe { self.fill(spare, key, value, slot) }?;
                filled = true;
            }
            match found {
                Some(found) if self.table.replace(found, spare) => {
                    self.touch(spare);
                    self.let_go(found, slot);
                    match (&self.pool, reserved.element.take()) {
                        (Pool::Later(free, _), Some(next)) => {
                            op.set_spare(next);
                            free.retire(slot, found.element());
                        }
                        (_, unneeded) => {
                            op.set_spare(found.element());
                            reserved.element = unneeded;
                        }
                    }
                    return Ok(());
                }
                None if self.table.insert(key, hash, searched, spare) => {
                    SlotState::count(&op.0.added);
                    reserved.permit = false;
                    if let Some(next) = reserved.element.take() {
                        op.set_spare(next);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Releases the objects that the value of an element owns. The element is out of the index and not yet given
    /// back.
    #[inline]
    fn let_go(&self, found: Found, slot: u32) {
        if self.shape.owns() {
            self.shape.let_go(self.table.extra(found.element()), slot);
        }
    }

    /// Marks an element of an LRU map as used.
    #[inline]
    fn touch(&self, element: u32) {
        if let Some(clock) = &self.clock {
            clock.touch(element);
        }
    }

    /// Writes the value of a found key in place; false if the key has moved meanwhile.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn update_in_place(&self, found: Found, hash: u64, value: Source<'_>, slot: u32) -> OpResult<bool> {
        match &self.per_cpu {
            Some(per_cpu) => Ok(self.table.with_home_locked(hash, |_| {
                let present = self.table.unchanged(found);
                if present {
                    self.touch(found.element());
                    // SAFETY: the caller promises that a program's source is readable for the value size.
                    unsafe { self.write_per_cpu(per_cpu, found.element(), value, slot) };
                }
                present
            })),
            None => {
                let words = self.table.extra(found.element());
                let present = self.shape.locked(words, slot, || {
                    let present = self.table.unchanged(found);
                    if present {
                        // SAFETY: the caller promises that a program's source is readable for the value size.
                        unsafe { self.shape.write(words, value) };
                    }
                    present
                })?;
                if present {
                    self.shape.let_go(words, slot);
                }
                Ok(present)
            }
        }
    }

    /// Removes a key after `before` has seen it. `before` returns false if the key changed, and the search is
    /// repeated.
    #[inline]
    fn remove_key<K: Key>(&self, key: &K, slot: u32, mut before: impl FnMut(Found) -> OpResult<bool>) -> OpResult {
        let state = &self.slots[slot as usize];
        let op = Op::begin(state)?;
        let hash = self.seed.hash(key.words());
        let place = self.table.place_to_write(hash);
        let mut counted = false;
        let result = loop {
            let Some(found) = self.table.find_at(key, place) else {
                break Err(Errno::ENOENT);
            };
            match before(found) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(errno) => break Err(errno),
            }
            if !counted {
                SlotState::count(&state.removed);
                counted = true;
            }
            if self.remove_found(found, hash) {
                self.let_go(found, slot);
                match &self.pool {
                    Pool::Now(free) => {
                        // The removed element is in this core's cache: it becomes the spare, which the next insert
                        // writes. The previous spare goes to the free list, by its number only.
                        let spare = op.spare();
                        op.set_spare(found.element());
                        self.give_free(free, slot, spare);
                    }
                    Pool::Later(free, count) => {
                        // Relaxed: a count.
                        count.fetch_sub(1, Ordering::Relaxed);
                        free.retire(slot, found.element());
                    }
                }
                return Ok(());
            }
        };
        if counted {
            SlotState::count(&state.added);
        }
        result
    }

    #[inline]
    fn remove_found(&self, found: Found, hash: u64) -> bool {
        if self.per_cpu.is_some() {
            return self.table.with_home_locked(hash, |_| self.table.remove(found, hash));
        }
        self.table.remove(found, hash)
    }

    /// The first word of a key's value, read while the key had it.
    #[inline]
    pub(crate) fn first_word<K: Key>(&self, key: &K) -> Option<u64> {
        loop {
            let found = self.find(key)?;
            // Acquire pairs with the release that published the element, and so also with the host's accesses before.
            let word = self.table.extra(found.element())[0].load(Ordering::Acquire);
            if self.table.unchanged(found) {
                return Some(word);
            }
        }
    }

    #[inline(always)]
    fn find<K: Key>(&self, key: &K) -> Option<Found> {
        self.table.find(key, self.seed.hash(key.words()))
    }

    fn position_after(&self, key: &[u8]) -> u64 {
        let found = with_key!(self.key_size, K => self.find(&K::from_host(key)));
        found.map_or(0, |found| self.table.position(found) + 1)
    }
}

impl Drop for HashMap {
    fn drop(&mut self) {
        if self.shape.owns() {
            // Removed elements too: a program may have stored an object in one after its removal.
            (0..self.elements).for_each(|element| self.shape.let_go_alone(self.table.extra(element)));
        }
    }
}
