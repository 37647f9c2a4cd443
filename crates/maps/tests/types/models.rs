//! Compares every type with a naive model, by random sequences of program operations (`kernel.rs` compares host
//! operations with the kernel).

use std::collections::{BTreeMap, VecDeque};

use crate::common::domain;
use bpf_maps::{Map, MapDef, MapHeader, MapType, flags, program, update};
use proptest::prelude::*;

/// The program's side of a map with 4-byte keys and 8-byte values.
struct Program {
    map: *const MapHeader,
    slot: u32,
}

impl Program {
    fn lookup(&self, key: &[u8]) -> Option<u64> {
        // SAFETY: the tests call this under a guard of a live map, with keys of its size.
        let value = unsafe { program::lookup(self.map, key.as_ptr(), self.slot) };
        // SAFETY: null or an aligned 8-byte value.
        unsafe { value.cast::<u64>().as_ref() }.copied()
    }

    fn update(&self, key: &[u8], value: u64, flags: u64) -> i64 {
        // SAFETY: the tests call this under a guard of a live map, with keys of its size; the value has 8 bytes.
        unsafe { program::update(self.map, key.as_ptr(), (&raw const value).cast(), flags, self.slot) }
    }

    fn delete(&self, key: &[u8]) -> i64 {
        // SAFETY: the tests call this under a guard of a live map, with keys of its size.
        unsafe { program::delete(self.map, key.as_ptr(), self.slot) }
    }

    fn push(&self, value: u64, flags: u64) -> i64 {
        // SAFETY: the tests call this under a guard of a live map whose values have 8 bytes.
        unsafe { program::push(self.map, (&raw const value).cast(), flags, self.slot) }
    }

    fn next(&self, remove: bool) -> Result<u64, i64> {
        let mut value = u64::MAX;
        let out = (&raw mut value).cast();
        let next = if remove { program::pop } else { program::peek };
        // SAFETY: the tests call this under a guard of a live map whose values have 8 bytes, as `out` has.
        let result = unsafe { next(self.map, out, self.slot) };
        if result == 0 {
            return Ok(value);
        }
        assert_eq!(value, 0, "an empty queue clears the buffer");
        Err(result)
    }
}

fn with_program(def: MapDef, f: impl FnOnce(&Program, &Map)) {
    let map = Map::create(def, &domain(2)).unwrap();
    let guard = map.domain().enter().unwrap();
    f(&Program { map: map.as_ptr(), slot: guard.slot() }, &map);
}

const fn err(errno: i32) -> i64 {
    -(errno as i64)
}

#[derive(Clone, Debug)]
enum Op {
    Lookup(u16),
    Update(u16, u64, u64),
    Delete(u16),
}

fn ops(keys: u16) -> impl Strategy<Value = Vec<Op>> {
    let key = move || 0..keys;
    let op = prop_oneof![
        key().prop_map(Op::Lookup),
        (key(), any::<u64>(), 0u64..4).prop_map(|(k, v, f)| Op::Update(k, v, f)),
        key().prop_map(Op::Delete),
    ];
    prop::collection::vec(op, 1..200)
}

fn check_hash(def: MapDef, ops: &[Op]) {
    let max = def.max_entries as usize;
    let key_size = def.key_size as usize;
    let key = |k: u16| {
        let mut bytes = k.to_ne_bytes().to_vec();
        bytes.resize(key_size, 0x5a);
        bytes
    };
    with_program(def, |p, map| {
        let mut model: BTreeMap<u16, u64> = BTreeMap::new();
        for op in ops {
            match *op {
                Op::Lookup(k) => assert_eq!(p.lookup(&key(k)), model.get(&k).copied()),
                Op::Update(k, v, flags) => {
                    let expected = match (model.contains_key(&k), flags) {
                        (_, 3..) => err(libc::EINVAL),
                        (true, update::NOEXIST) => err(libc::EEXIST),
                        (false, update::EXIST) => err(libc::ENOENT),
                        (false, _) if model.len() == max => err(libc::E2BIG),
                        _ => 0,
                    };
                    assert_eq!(p.update(&key(k), v, flags), expected, "{op:?} with {} of {max}", model.len());
                    if expected == 0 {
                        model.insert(k, v);
                    }
                }
                Op::Delete(k) => {
                    let expected = if model.remove(&k).is_some() { 0 } else { err(libc::ENOENT) };
                    assert_eq!(p.delete(&key(k)), expected);
                }
            }
            assert_eq!(map.len(), model.len() as u64);
        }
        let mut all: Vec<_> = map.iter().map(Result::unwrap).collect();
        all.sort();
        let mut expected: Vec<_> = model.iter().map(|(&k, v)| (key(k), v.to_ne_bytes().to_vec())).collect();
        expected.sort();
        assert_eq!(all, expected);
    });
}

/// A trie's keys as (length, bits above it zeroed, as an integer).
fn check_trie(ops: &[(u8, u16, u64, u8)], max: u32) {
    let def = MapDef::new("m", MapType::LpmTrie, 6, 8, max).flags(flags::NO_PREALLOC);
    let key = |len: u8, bits: u16| [u32::from(len).to_ne_bytes().as_slice(), &bits.to_be_bytes()].concat();
    let masked = |len: u8, bits: u16| if len == 0 { 0 } else { bits >> (16 - len) << (16 - len) };
    with_program(def, |p, map| {
        let mut model: BTreeMap<(u8, u16), u64> = BTreeMap::new();
        for &(len, bits, value, op) in ops {
            let id = (len, masked(len.min(16), bits));
            match op {
                _ if len > 16 => {
                    assert_eq!(p.lookup(&key(len, bits)), None);
                    assert_eq!(p.update(&key(len, bits), value, 0), err(libc::EINVAL));
                    assert_eq!(p.delete(&key(len, bits)), err(libc::EINVAL));
                }
                0 => {
                    // The longest stored prefix that is no longer than the key's own length.
                    let expected = (0..=len).rev().find_map(|l| model.get(&(l, masked(l, bits))).copied());
                    assert_eq!(p.lookup(&key(len, bits)), expected);
                }
                1 => {
                    let expected = if model.remove(&id).is_some() { 0 } else { err(libc::ENOENT) };
                    assert_eq!(p.delete(&key(len, bits)), expected);
                }
                _ => {
                    let flags = u64::from(op) % 4;
                    let expected = match (model.contains_key(&id), flags) {
                        (_, 3) => err(libc::EINVAL),
                        (true, update::NOEXIST) => err(libc::EEXIST),
                        (false, update::EXIST) => err(libc::ENOENT),
                        (false, _) if model.len() == max as usize => err(libc::ENOSPC),
                        _ => 0,
                    };
                    assert_eq!(p.update(&key(len, bits), value, flags), expected);
                    if expected == 0 {
                        model.insert(id, value);
                    }
                }
            }
            assert_eq!(map.len(), model.len() as u64);
        }
        // An iteration visits every prefix once, longer ones before their own prefixes.
        let all: Vec<(u8, u16)> = map
            .iter()
            .map(|element| {
                let (key, value) = element.unwrap();
                let (len, bits) = (key[0], u16::from_be_bytes([key[4], key[5]]));
                let id = (len, masked(len, bits));
                assert_eq!(value, model[&id].to_ne_bytes());
                id
            })
            .collect();
        assert_eq!(all.len(), model.len());
        for (i, &(len, bits)) in all.iter().enumerate() {
            for &(before_len, before_bits) in &all[..i] {
                let begins = before_len <= len && masked(before_len, bits) == before_bits;
                assert!(!begins, "({before_len}, {before_bits:#x}) came before ({len}, {bits:#x})");
            }
        }
    });
}

fn check_queue(map_type: MapType, ops: &[(u8, u64)], max: u32) {
    with_program(MapDef::new("m", map_type, 0, 8, max), |p, map| {
        let mut model: VecDeque<u64> = VecDeque::new();
        for &(op, value) in ops {
            match op {
                0..4 => {
                    let flags = u64::from(op);
                    let full = model.len() == max as usize;
                    let expected = match flags {
                        update::ANY if full => err(libc::E2BIG),
                        update::ANY | update::EXIST => 0,
                        _ => err(libc::EINVAL),
                    };
                    assert_eq!(p.push(value, flags), expected);
                    if expected == 0 {
                        if full {
                            model.pop_front();
                        }
                        model.push_back(value);
                    }
                }
                _ => {
                    let remove = op > 4;
                    let next = match (map_type, remove) {
                        (MapType::Queue, true) => model.pop_front(),
                        (MapType::Queue, false) => model.front().copied(),
                        (_, true) => model.pop_back(),
                        (_, false) => model.back().copied(),
                    };
                    assert_eq!(p.next(remove), next.ok_or(err(libc::ENOENT)));
                }
            }
            assert_eq!(map.len(), model.len() as u64);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hash(ops in ops(12), key_size in prop::sample::select(vec![2u32, 4, 8, 13, 16, 24, 31, 37, 48]), max in 1u32..10, late in any::<bool>()) {
        let map_flags = if late { flags::NO_PREALLOC } else { 0 };
        check_hash(MapDef::new("m", MapType::Hash, key_size, 8, max).flags(map_flags), &ops);
    }

    #[test]
    fn large_hash(ops in ops(4000), max in 50u32..3000) {
        check_hash(MapDef::new("m", MapType::Hash, 4, 8, max), &ops);
    }

    #[test]
    fn trie(ops in prop::collection::vec((0u8..18, any::<u16>().prop_map(|b| b & 0xf00f | 0x0100), any::<u64>(), 0u8..8), 1..120), max in 1u32..40) {
        check_trie(&ops, max);
    }

    #[test]
    fn queue(ops in prop::collection::vec((0u8..8, any::<u64>()), 1..100), max in 1u32..6) {
        check_queue(MapType::Queue, &ops, max);
    }

    #[test]
    fn stack(ops in prop::collection::vec((0u8..8, any::<u64>()), 1..100), max in 1u32..6) {
        check_queue(MapType::Stack, &ops, max);
    }

    #[test]
    fn lru_evicts_and_never_fails(keys in prop::collection::vec(0u16..300, 1..600), max in 1u32..40, own in any::<bool>(), per_cpu in any::<bool>()) {
        let map_type = if per_cpu { MapType::LruPerCpuHash } else { MapType::LruHash };
        let map_flags = if own { flags::NO_COMMON_LRU } else { 0 };
        let def = MapDef::new("m", map_type, 4, 8, max).flags(map_flags);
        with_program(def, |p, map| {
            for &key in &keys {
                let bytes = u32::from(key).to_ne_bytes();
                assert_eq!(p.update(&bytes, key.into(), 0), 0);
                assert_eq!(p.lookup(&bytes), Some(key.into()), "what was just written is there");
                assert!(map.len() <= max.into());
            }
            let distinct = keys.iter().collect::<std::collections::HashSet<_>>().len() as u64;
            assert_eq!(map.len(), distinct.min(max.into()), "nothing is evicted without need");
        });
    }

    #[test]
    fn bloom_filters_have_no_false_negatives(values in prop::collection::vec(any::<u64>(), 1..200), hashes in 0u64..16) {
        let mut def = MapDef::new("m", MapType::BloomFilter, 0, 8, 200);
        def.map_extra = hashes;
        with_program(def, |p, _| {
            for &value in &values {
                assert_eq!(p.push(value, 0), 0);
                assert_eq!(p.push(value, 1), err(libc::EINVAL));
            }
            for &value in &values {
                let mut value = value;
                // SAFETY: a live map under a guard; a value of its size.
                let found = unsafe { program::peek(p.map, (&raw mut value).cast(), p.slot) };
                assert_eq!(found, 0);
                // SAFETY: a live map under a guard; a value of its size.
                let popped = unsafe { program::pop(p.map, (&raw mut value).cast(), p.slot) };
                assert_eq!(popped, err(libc::EOPNOTSUPP));
            }
        });
    }
}

#[test]
fn lru_evicts_unreferenced_before_referenced() {
    for map_type in [MapType::LruHash, MapType::LruPerCpuHash] {
        with_program(MapDef::new("m", map_type, 4, 8, 100), |p, map| {
            let key = |n: u32| n.to_ne_bytes();
            for n in 0..100 {
                assert_eq!(p.update(&key(n), n.into(), update::NOEXIST), 0);
            }
            // Programs look up the even keys, the host all keys: only lookups by programs mark an element as used.
            for n in 0..100 {
                if n % 2 == 0 {
                    assert!(p.lookup(&key(n)).is_some());
                }
                assert!(map.get(&key(n)).unwrap().is_some());
            }
            for n in 100..150 {
                assert_eq!(p.update(&key(n), n.into(), 0), 0);
            }
            for n in 0..100 {
                assert_eq!(map.get(&key(n)).unwrap().is_some(), n % 2 == 0, "key {n}");
            }
            assert!((100..150).all(|n| map.get(&key(n)).unwrap().is_some()));
            assert_eq!(map.len(), 100);
        });
    }
}

#[test]
fn without_preallocation_a_removed_element_stays_as_it_is_until_the_run_ends() {
    let def = MapDef::new("m", MapType::Hash, 4, 8, 4).flags(flags::NO_PREALLOC);
    with_program(def, |p, map| {
        let key = 1u32.to_ne_bytes();
        assert_eq!(p.update(&key, 11, 0), 0);
        // SAFETY: a live map under a guard.
        let old = unsafe { program::lookup(map.as_ptr(), key.as_ptr(), p.slot) }.cast::<u64>();
        assert_eq!(p.update(&key, 12, 0), 0);
        // Enough changes to recycle every free element several times over, if they were recycled.
        for n in 0..2000u64 {
            let key = (2 + (n % 3) as u32).to_ne_bytes();
            assert_eq!(p.update(&key, 100 + n, 0), 0);
            assert_eq!(p.delete(&key), 0);
        }
        // SAFETY: element memory stays valid, and this run is not over.
        assert_eq!(unsafe { old.read() }, 11);
        assert_eq!(p.lookup(&key), Some(12));
    });
}
