//! Sequences of map operations against a naive model.
//!
//! The bytes choose a definition and a sequence of operations from both sides: what a program does by its map pointer,
//! and what the host does by its handle, flags and all. The model is a sorted map of keys to values as the host sees
//! them, a queue, or a list of records; after each operation result, error number and length must be the model's.

use crate::generate::Choices;
use bpf_maps::{Cursor, Map, MapDef, MapError, MapType, RingBuf, flags, implemented_types, program, update};
use bpf_quiesce::{Domain, Guard, Options};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Number of keys to choose from, so small that operations meet at one key.
const KEYS: u32 = 12;
/// Entries of tries that are to be dense: tables form under shared prefixes, and from 2048 keys on the array of the
/// first bits.
const CROWDS: &[u32] = &[40, 300, 3000];
const ENOTSUPP: i32 = 524;

/// Creates a map and uses it as the bytes say.
pub fn maps(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let def = definition(&mut choices);
    let domain = Domain::new(Options::new().max_slots(3));
    let mut options = bpf_maps::CreateOptions::default();
    options.memory_limit = 1 << 22;
    options.hash_seed = Some(choices.byte().into());
    let Ok(map) = Map::create_with(def, &domain, &options) else { return };
    if map.def().flags & (flags::RDONLY | flags::WRONLY) != 0 {
        return; // `crates/maps/tests/types/kernel.rs` has these.
    }
    let steps = 4 + choices.below(60);
    match map.map_type() {
        MapType::Queue | MapType::Stack => values(&map, &mut choices, steps),
        MapType::BloomFilter => bloom(&map, &mut choices, steps),
        MapType::RingBuf => ring(&map, &mut choices, steps),
        MapType::UserRingBuf | MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps => {}
        // Valid entries of these types depend on the host: `crates/maps/tests/types/kernel.rs` tests them.
        MapType::DevMap | MapType::DevMapHash | MapType::CpuMap | MapType::XskMap | MapType::SockMap => {}
        MapType::SockHash => {}
        // Its model is in `crates/maps/src/arena.rs`.
        MapType::Arena => {}
        _ => elements(&map, &mut choices, steps),
    }
}

/// A definition: mostly one that the type allows.
fn definition(choices: &mut Choices<'_>) -> MapDef {
    let pick = |choices: &mut Choices<'_>, of: &[u32]| of[choices.below(of.len() as u32) as usize];
    // An instruction array's values are no bytes like others, and the kernel's part in them is not the host's.
    let types: Vec<MapType> = implemented_types().filter(|map_type| *map_type != MapType::InsnArray).collect();
    let map_type = types[choices.below(types.len() as u32) as usize];
    let value = pick(choices, &[1, 4, 8, 12, 16, 64]);
    let entries = 1 + choices.below(10);
    let (key, value, entries, required) = match map_type {
        MapType::Array | MapType::PerCpuArray => (4, value, entries, 0),
        MapType::LpmTrie => {
            let entries = if choices.one_in(2) { pick(choices, CROWDS) } else { entries };
            (pick(choices, &[5, 6, 8, 20]), value, entries, flags::NO_PREALLOC)
        }
        MapType::SkStorage | MapType::TaskStorage => (8, value, entries, flags::NO_PREALLOC),
        MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, value, entries, 0),
        MapType::RingBuf | MapType::UserRingBuf => (0, 0, 4096 << choices.below(2), 0),
        MapType::Arena => (0, 0, entries, flags::MMAPABLE),
        _ => (pick(choices, &[1, 4, 8, 13, 16, 40]), value, entries, 0),
    };
    let mut def = MapDef::new("fuzz", map_type, key, value, entries).flags(required);
    if choices.one_in(3) {
        def.flags |= pick(choices, &[flags::NO_PREALLOC, flags::NO_COMMON_LRU, flags::RDONLY_PROG, flags::MMAPABLE]);
    }
    if choices.one_in(10) {
        // Anything: it is refused, or it is a map like any other.
        match choices.below(4) {
            0 => def.key_size = choices.byte().into(),
            1 => def.value_size = u32::from(choices.byte()) << choices.below(24),
            2 => def.max_entries = u32::from(choices.byte()) << choices.below(24),
            _ => def.flags = 1 << choices.below(32),
        }
    }
    def
}

/// A result with the kernel's error number.
fn numbered<T>(result: Result<T, MapError>) -> Result<T, i32> {
    result.map_err(|error| error.errno())
}

/// A helper's result.
fn returned(r0: i64) -> Result<(), i32> {
    if r0 == 0 { Ok(()) } else { Err(-r0 as i32) }
}

/// A map with keys, and what should be in it.
struct Elements<'a> {
    map: &'a Map,
    /// Keys as the map tells them apart, with values as the host sees them.
    model: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Bytes from one slot's value to the next.
fn stride(map: &Map) -> usize {
    (map.def().value_size as usize).next_multiple_of(8)
}

impl Elements<'_> {
    fn map_type(&self) -> MapType {
        self.map.map_type()
    }

    fn is_array(&self) -> bool {
        matches!(self.map_type(), MapType::Array | MapType::PerCpuArray)
    }

    fn key(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let size = self.map.def().key_size as usize;
        let n = choices.below(KEYS);
        if self.map_type() == MapType::LpmTrie {
            let bits = size as u32 * 8 - 32;
            let lengths = [0, 1, 3, 7, 8, 9, bits - 1, bits, bits + 1];
            let mut key = lengths[choices.below(9) as usize].to_ne_bytes().to_vec();
            key.resize(size, [0xa5, 0xa4, 0x25][n as usize % 3]);
            return key;
        }
        let mut key = n.to_ne_bytes().to_vec();
        key.resize(size, n as u8);
        key
    }

    /// The key without what does not count: in a trie, the bits beyond the prefix. `None` if it is longer than the
    /// data.
    fn canonical(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.map_type() != MapType::LpmTrie {
            return Some(key.to_vec());
        }
        let (length, data) = prefix(key);
        (length <= data.len() * 8).then(|| masked(data, length))
    }

    fn is_present(&self, key: &[u8]) -> bool {
        self.canonical(key).is_some_and(|key| self.model.contains_key(&key))
    }

    /// The value a look-up finds.
    fn find(&self, key: &[u8]) -> Option<&Vec<u8>> {
        if self.map_type() != MapType::LpmTrie {
            return self.model.get(key);
        }
        let (length, data) = prefix(key);
        let length = (length <= data.len() * 8).then_some(length)?;
        (0..=length).rev().find_map(|length| self.model.get(&masked(data, length)))
    }

    /// The outcome of an update that is refused.
    fn refusal(&self, key: &[u8], flags: u64) -> Option<i32> {
        let (present, full) = (self.is_present(key), self.model.len() == self.map.def().max_entries as usize);
        match flags {
            // No value here has a lock.
            _ if flags > update::EXIST => Some(libc::EINVAL),
            _ if self.canonical(key).is_none() => Some(libc::EINVAL),
            _ if self.is_array() && !present => Some(libc::E2BIG),
            update::NOEXIST if present => Some(libc::EEXIST),
            update::EXIST if !present => Some(libc::ENOENT),
            _ if present || !full || self.map_type().is_lru() => None,
            _ if self.map_type() == MapType::LpmTrie => Some(libc::ENOSPC),
            _ => Some(libc::E2BIG),
        }
    }

    /// A value as the host gives it: the padding between slots is not kept.
    fn value(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let (size, stride) = (self.map.def().value_size as usize, stride(self.map));
        let first = choices.byte();
        let byte = |i: usize| if i % stride < size { first.wrapping_add(i as u8) } else { 0 };
        (0..self.map.host_value_size()).map(byte).collect()
    }

    fn step(&mut self, guard: &Guard<'_>, choices: &mut Choices<'_>) {
        let key = self.key(choices);
        let flags = u64::from(choices.below(6)).saturating_sub(2);
        match choices.below(12) {
            0 | 1 => self.looked_up(guard, &key),
            2..5 => {
                let value = self.value(choices);
                self.updated_by_program(guard, &key, &value, flags);
            }
            5 => self.deleted_by_program(guard, &key),
            6 => {
                let mut out = vec![0xee; self.map.host_value_size()];
                let result = numbered(self.map.lookup(&key, &mut out, 0)).map(|()| out);
                let expected = self.find(&key).cloned().ok_or(libc::ENOENT);
                assert_eq!(result, expected, "{key:?}");
            }
            7 | 8 => {
                let value = self.value(choices);
                self.updated_by_host(&key, &value, flags);
            }
            9 => self.deleted(&key, numbered(self.map.delete(&key))),
            10 => {
                let mut out = vec![0xee; self.map.host_value_size()];
                let result = numbered(self.map.lookup_and_delete(&key, &mut out, 0)).map(|()| out);
                let expected = match self.find_exactly(&key) {
                    _ if self.is_array() || self.map_type() == MapType::LpmTrie => Err(ENOTSUPP),
                    Some(value) => Ok(value.clone()),
                    None => Err(libc::ENOENT),
                };
                assert_eq!(result, expected, "{key:?}");
                if result.is_ok() {
                    self.model.remove(&key);
                }
            }
            _ => self.iterate(choices),
        }
        assert_eq!(self.map.len(), self.model.len() as u64);
    }

    /// A program looks a key up.
    fn looked_up(&self, guard: &Guard<'_>, key: &[u8]) {
        let (size, slot) = (self.map.def().value_size as usize, guard.slot());
        let own = self.own(slot);
        // SAFETY: a live map under a guard with this slot; a key of its size.
        let value = unsafe { program::lookup(self.map.as_ptr(), key.as_ptr(), slot) };
        // SAFETY: null, or a value of the map's size that nobody writes to now.
        let value = (!value.is_null()).then(|| unsafe { std::slice::from_raw_parts(value, size) });
        assert_eq!(value, self.find(key).map(|value| &value[own..own + size]), "{key:?}");
    }

    /// Where a slot's part of a value begins.
    fn own(&self, slot: u32) -> usize {
        if self.map_type().is_per_cpu() { slot as usize * stride(self.map) } else { 0 }
    }

    fn updated_by_program(&mut self, guard: &Guard<'_>, key: &[u8], value: &[u8], flags: u64) {
        let (size, slot) = (self.map.def().value_size as usize, guard.slot());
        let own = self.own(slot);
        // SAFETY: a live map under a guard with this slot; key and value of its sizes.
        let result = unsafe { program::update(self.map.as_ptr(), key.as_ptr(), value[own..].as_ptr(), flags, slot) };
        let refusal = self.refusal(key, flags);
        assert_eq!(returned(result), refusal.map_or(Ok(()), Err), "{key:?} {flags}");
        if refusal.is_none() {
            let mut all = match self.find_exactly(key) {
                Some(old) if self.map_type().is_per_cpu() => old.clone(),
                _ => vec![0; value.len()],
            };
            all[own..own + size].copy_from_slice(&value[own..own + size]);
            self.put(key, all);
        }
    }

    fn updated_by_host(&mut self, key: &[u8], value: &[u8], flags: u64) {
        let refusal = self.refusal(key, flags);
        let result = numbered(self.map.update(key, value, flags));
        assert_eq!(result, refusal.map_or(Ok(()), Err), "{key:?} {flags}");
        if refusal.is_none() {
            self.put(key, value.to_vec());
        }
    }

    fn deleted_by_program(&mut self, guard: &Guard<'_>, key: &[u8]) {
        // SAFETY: a live map under a guard with this slot; a key of its size.
        let result = unsafe { program::delete(self.map.as_ptr(), key.as_ptr(), guard.slot()) };
        self.deleted(key, returned(result));
    }

    /// Many prefixes under a common one come, or go, in a trie: the bytes choose what they have in common.
    fn crowd(&mut self, choices: &mut Choices<'_>) {
        let bits = (self.map.def().key_size - 4) * 8;
        let common = choices.below(bits);
        let spread = 1 + choices.below((bits - common).min(14));
        let count = if choices.one_in(8) { 4096 } else { 1 << choices.below(9) };
        let goes = choices.below(4);
        let mut draws = Choices::from_seed(choices.byte().into());
        for _ in 0..count {
            let guard = self.map.domain().enter().expect("a slot");
            let key = crowded(&mut draws, bits, common, spread);
            let flags = u64::from(draws.below(12)).saturating_sub(9);
            match draws.below(4) < goes {
                true if draws.one_in(2) => self.deleted_by_program(&guard, &key),
                true => self.deleted(&key, numbered(self.map.delete(&key))),
                false => {
                    let value = self.value(&mut draws);
                    match draws.one_in(2) {
                        true => self.updated_by_program(&guard, &key, &value, flags),
                        false => self.updated_by_host(&key, &value, flags),
                    }
                }
            }
            assert_eq!(self.map.len(), self.model.len() as u64);
        }
        for _ in 0..64 {
            let guard = self.map.domain().enter().expect("a slot");
            let mut key = crowded(&mut draws, bits, common, spread);
            if draws.one_in(2) {
                key[..4].copy_from_slice(&bits.to_ne_bytes());
            }
            self.looked_up(&guard, &key);
        }
    }

    fn find_exactly(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.model.get(&self.canonical(key)?)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        let key = self.canonical(key).expect("it was not refused");
        self.model.insert(key.clone(), value);
        if self.map_type().is_lru() {
            // The map chooses which keys it evicts, but evicts no more than needed.
            let present: BTreeSet<Vec<u8>> = self.all().into_keys().collect();
            assert!(present.contains(&key), "the new key was evicted");
            let evicted = self.model.len() - present.len();
            assert!(evicted <= 1 && (evicted == 0 || present.len() == self.map.def().max_entries as usize));
            self.model.retain(|key, _| present.contains(key));
        }
    }

    fn deleted(&mut self, key: &[u8], result: Result<(), i32>) {
        let expected = match self.canonical(key) {
            _ if self.is_array() => Err(libc::EINVAL),
            None => Err(libc::EINVAL),
            Some(key) => self.model.remove(&key).map(|_| ()).ok_or(libc::ENOENT),
        };
        assert_eq!(result, expected, "{key:?}");
    }

    /// All elements, by a cursor.
    fn all(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let elements = self.map.iter().map(|element| element.expect("no key changes meanwhile"));
        elements.map(|(key, value)| (self.canonical(&key).expect("a valid key"), value)).collect()
    }

    fn iterate(&self, choices: &mut Choices<'_>) {
        assert_eq!(self.all(), self.model);
        // In batches of any size, where there are batches; a copy through a dump, everywhere.
        let (key, value) = (self.map.def().key_size as usize, self.map.host_value_size());
        let room = 1 + choices.below(5) as usize;
        let (mut cursor, mut count) = (Cursor::default(), 0);
        let (mut keys, mut values) = (vec![0; room * key], vec![0; room * value]);
        while let Ok(batch) = self.map.lookup_batch(&mut cursor, &mut keys, &mut values) {
            for (key, value) in keys.chunks(key).zip(values.chunks(value)).take(batch.count) {
                assert_eq!(self.find_exactly(key).map(Vec::as_slice), Some(value));
            }
            count += batch.count;
            if batch.end {
                assert_eq!(count, self.model.len());
                break;
            }
        }
        let dump = self.map.dump().expect("a type that can be read back");
        let mut file = Vec::new();
        dump.write(&mut file).expect("memory");
        assert_eq!(bpf_maps::Dump::read(file.as_slice()), Ok(dump));
    }
}

/// A key of `bits` bits of data: nearly always `common` bits that all have, up to `spread` that differ, and nothing
/// that counts behind.
fn crowded(draws: &mut Choices<'_>, bits: u32, common: u32, spread: u32) -> Vec<u8> {
    let differ = draws.below(1 << 16);
    let length = if draws.one_in(16) { draws.below(bits + 1) } else { common + draws.below(spread + 1) };
    let mut data = vec![0x5a; bits as usize / 8];
    for bit in 0..spread.min(16) {
        let (at, mask) = ((common + bit) as usize / 8, 0x80 >> ((common + bit) % 8));
        data[at] = if differ >> bit & 1 == 1 { data[at] | mask } else { data[at] & !mask };
    }
    [length.to_ne_bytes().as_slice(), &data].concat()
}

fn prefix(key: &[u8]) -> (usize, &[u8]) {
    let (length, data) = key.split_at(4);
    (u32::from_ne_bytes(length.try_into().expect("four bytes")) as usize, data)
}

/// A prefix as a key of the model: its length, and its data with the other bits cleared.
fn masked(data: &[u8], length: usize) -> Vec<u8> {
    let bits = |i: usize| match length.saturating_sub(i * 8) {
        0 => 0u8,
        bits @ 1..8 => !(0xff >> bits),
        _ => 0xff,
    };
    let data = data.iter().enumerate().map(|(i, byte)| byte & bits(i));
    (length as u32).to_be_bytes().into_iter().chain(data).collect()
}

fn elements(map: &Map, choices: &mut Choices<'_>, steps: u32) {
    let mut elements = Elements { map, model: BTreeMap::new() };
    if elements.is_array() {
        let zero = vec![0; map.host_value_size()];
        elements.model =
            (0..map.def().max_entries.min(1 << 12)).map(|n| (n.to_ne_bytes().to_vec(), zero.clone())).collect();
        if map.def().max_entries > 1 << 12 {
            return;
        }
    }
    let is_crowded = map.map_type() == MapType::LpmTrie && CROWDS.contains(&map.def().max_entries);
    for _ in 0..steps {
        if is_crowded && choices.one_in(4) {
            elements.crowd(choices);
            continue;
        }
        let guard = map.domain().enter().expect("a slot");
        elements.step(&guard, choices);
    }
    elements.iterate(choices);
}

/// Queues and stacks.
fn values(map: &Map, choices: &mut Choices<'_>, steps: u32) {
    let size = map.def().value_size as usize;
    let mut model: VecDeque<Vec<u8>> = VecDeque::new();
    let is_stack = map.map_type() == MapType::Stack;
    for _ in 0..steps {
        let guard = map.domain().enter().expect("a slot");
        let (pointer, slot) = (map.as_ptr(), guard.slot());
        let flags = u64::from(choices.below(6)).saturating_sub(2);
        let from_program = choices.one_in(2);
        let mut value = vec![choices.byte(); size];
        if choices.one_in(2) {
            let full = model.len() == map.def().max_entries as usize;
            let expected = match flags {
                update::ANY if full => Err(libc::E2BIG),
                update::ANY | update::EXIST => Ok(()),
                _ => Err(libc::EINVAL),
            };
            let result = match from_program {
                // SAFETY: a live map under a guard with this slot; a value of its size.
                true => returned(unsafe { program::push(pointer, value.as_ptr(), flags, slot) }),
                false => numbered(map.push(&value, flags)),
            };
            assert_eq!(result, expected, "{flags}");
            if expected.is_ok() {
                if full {
                    // The oldest makes room: in a stack it lies at the bottom.
                    model.pop_front();
                }
                model.push_back(value);
            }
        } else {
            let remove = choices.one_in(2);
            let expected = if is_stack { model.back() } else { model.front() }.cloned();
            let result = match (from_program, remove) {
                // SAFETY: a live map under a guard with this slot; room for a value of its size.
                (true, true) => returned(unsafe { program::pop(pointer, value.as_mut_ptr(), slot) }),
                // SAFETY: a live map under a guard with this slot; room for a value of its size.
                (true, false) => returned(unsafe { program::peek(pointer, value.as_mut_ptr(), slot) }),
                (false, true) => numbered(map.pop(&mut value)).and_then(|got| got.then_some(()).ok_or(libc::ENOENT)),
                (false, false) => numbered(map.peek(&mut value)).and_then(|got| got.then_some(()).ok_or(libc::ENOENT)),
            };
            assert_eq!(result.map(|()| value), expected.ok_or(libc::ENOENT));
            if remove {
                _ = if is_stack { model.pop_back() } else { model.pop_front() };
            }
        }
        assert_eq!(map.len(), model.len() as u64);
    }
}

/// No false negative.
fn bloom(map: &Map, choices: &mut Choices<'_>, steps: u32) {
    let size = map.def().value_size as usize;
    let mut pushed = BTreeSet::new();
    for _ in 0..steps {
        let value = vec![choices.byte(); size];
        if choices.one_in(2) {
            map.push(&value, 0).expect("a bloom filter is never full");
            pushed.insert(value);
        } else if pushed.contains(&value) {
            assert_eq!(map.peek(&mut value.clone()), Ok(true), "{value:?}");
        }
    }
}

/// A record of the model: its bytes, and whether it was submitted (or discarded) yet.
struct Record {
    bytes: Vec<u8>,
    /// The address of the record, until it is committed.
    open: Option<*mut u8>,
    discarded: bool,
}

/// Ring buffers: reserved records are committed in any order and consumed in that of their reservation.
fn ring(map: &Map, choices: &mut Choices<'_>, steps: u32) {
    let mut consumer = RingBuf::new(map).expect("the first consumer");
    let mut model: VecDeque<Record> = VecDeque::new();
    for _ in 0..steps {
        let guard = map.domain().enter().expect("a slot");
        match choices.below(4) {
            0 | 1 => {
                let length = 1 + choices.below(700);
                // SAFETY: a live map under a guard with this slot.
                let sample = unsafe { program::ringbuf_reserve(map.as_ptr(), length.into(), 0, guard.slot()) };
                if sample.is_null() {
                    continue;
                }
                let bytes = vec![choices.byte(); length as usize];
                // SAFETY: the reservation has this length, and is ours.
                unsafe { sample.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                model.push_back(Record { bytes, open: Some(sample), discarded: false });
            }
            2 => {
                let discard = choices.one_in(3);
                let at = choices.below(model.len().max(1) as u32) as usize;
                let Some(record) = model.get_mut(at) else { continue };
                let Some(sample) = record.open.take() else { continue };
                record.discarded = discard;
                let commit = if discard { program::ringbuf_discard } else { program::ringbuf_submit };
                // SAFETY: reserved above, and committed once.
                unsafe { commit(sample, choices.below(3).into()) };
            }
            _ => {
                while let Some(record) = consumer.next_record() {
                    while model.front().is_some_and(|record| record.open.is_none() && record.discarded) {
                        model.pop_front();
                    }
                    let expected = model.pop_front().expect("a record that was made");
                    assert!(expected.open.is_none(), "consumed before it was committed");
                    assert_eq!(*record, *expected.bytes);
                }
                while model.front().is_some_and(|record| record.open.is_none()) {
                    assert!(model.pop_front().is_some_and(|record| record.discarded), "a record was not consumed");
                }
            }
        }
    }
    for record in model {
        if let Some(sample) = record.open {
            // SAFETY: reserved above, and committed once.
            unsafe { program::ringbuf_discard(sample, 0) };
        }
    }
}
