//! Tests that the result of a look-up stays valid: detects uses of freed or recycled elements.
//!
//! Every value names its key and the write that made it. A reader holds pointers across writes and reads them
//! repeatedly, as a program may within one run. Where elements are freed after a grace period (`NO_PREALLOC`, tries),
//! a value must not change during the run: a change means that its element was reused too early. Where elements are
//! reused at once, as in the kernel, every pointer must stay an element of the map for the map's life; unmapped
//! memory would end the test.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::domain;
use bpf_maps::{Map, MapDef, MapType, flags, program, update};

const WORDS: usize = 4;
const KEYS: u64 = 40;
const READS: usize = 3000;

fn value(key: u64, stamp: u64) -> [u64; WORDS] {
    std::array::from_fn(|i| key << 48 | stamp << 4 | i as u64)
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The key as the map's type wants it.
fn key(map: &Map, n: u64) -> Vec<u8> {
    match map.map_type() {
        MapType::LpmTrie => [64u32.to_ne_bytes().to_vec(), n.to_be_bytes().to_vec()].concat(),
        _ => n.to_ne_bytes().to_vec(),
    }
}

fn read(pointer: *const u64) -> [u64; WORDS] {
    std::array::from_fn(|i| {
        let word = pointer.wrapping_add(i).cast_mut();
        // SAFETY: an aligned word of a value of the map, which is alive; writers use atomic words as well.
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed)
    })
}

/// Runs `reader` on two threads, while two others constantly replace, delete and insert.
fn beside_writers(map: &Map, reader: impl Fn(u64) + Sync) {
    let stop = AtomicBool::new(false);
    for n in 0..KEYS {
        map.set(&key(map, n), &bytes(&value(n, 0))).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let stop = &stop;
            scope.spawn(move || {
                let mut stamp = thread;
                while !stop.load(Ordering::Relaxed) {
                    stamp += 2;
                    let n = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let (n, what) = (n % KEYS, n / KEYS % 4);
                    let result = match what {
                        0 => map.delete(&key(map, n)),
                        _ => map.update(&key(map, n), &bytes(&value(n, stamp)), update::ANY),
                    };
                    if let Err(error) = result {
                        assert_eq!(error.errno(), libc::ENOENT, "{error}");
                    }
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn({
                    let reader = &reader;
                    move || reader(thread)
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
}

/// A look-up in a run: null, or the address of the value.
fn look_up(map: &Map, n: u64, slot: u32) -> *const u64 {
    // SAFETY: the callers hold a guard with this slot; a key of the map's size.
    unsafe { program::lookup(map.as_ptr(), key(map, n).as_ptr(), slot) }.cast()
}

fn values_do_not_change_during_a_run(def: MapDef) {
    let map = Map::create(def, &domain(8)).unwrap();
    let held = AtomicU64::new(0);
    beside_writers(&map, |thread| {
        for round in 0..READS as u64 {
            let guard = map.domain().enter().unwrap();
            let found: Vec<(u64, *const u64, [u64; WORDS])> = (0..4)
                .map(|i| (round * 7 + i * 11 + thread) % KEYS)
                .filter_map(|n| {
                    let pointer = look_up(&map, n, guard.slot());
                    (!pointer.is_null()).then(|| (n, pointer, read(pointer)))
                })
                .collect();
            for again in 0..4 {
                for (n, pointer, first) in &found {
                    let stamp = (first[0] & 0xffff_ffff_ffff) >> 4;
                    assert_eq!(*first, value(*n, stamp), "not a value of key {n}");
                    assert_eq!(read(*pointer), *first, "the element of key {n} was reused during the run");
                }
                if again == 1 {
                    std::thread::yield_now();
                }
            }
            held.fetch_add(found.len() as u64, Ordering::Relaxed);
        }
    });
    assert!(held.load(Ordering::Relaxed) > READS as u64, "the readers found next to nothing");
}

#[test]
fn values_of_a_hash_without_preallocation_do_not_change_during_a_run() {
    let def = MapDef::new("h", MapType::Hash, 8, WORDS as u32 * 8, KEYS as u32);
    values_do_not_change_during_a_run(def.flags(flags::NO_PREALLOC));
}

#[test]
fn values_of_a_trie_do_not_change_during_a_run() {
    let def = MapDef::new("t", MapType::LpmTrie, 12, WORDS as u32 * 8, KEYS as u32);
    values_do_not_change_during_a_run(def.flags(flags::NO_PREALLOC));
}

#[test]
fn elements_of_a_preallocated_map_stay_elements_of_the_map() {
    for map_type in [MapType::Hash, MapType::LruHash] {
        const SLOTS: usize = 8;
        let entries = if map_type == MapType::Hash { KEYS } else { KEYS / 2 };
        let map = Map::create(MapDef::new("m", map_type, 8, WORDS as u32 * 8, entries as u32), &domain(SLOTS as u32));
        let map = map.unwrap();
        let seen = std::sync::Mutex::new(BTreeSet::new());
        beside_writers(&map, |thread| {
            let mut pointers = BTreeSet::new();
            for round in 0..READS as u64 {
                let guard = map.domain().enter().unwrap();
                let pointer = look_up(&map, (round * 7 + thread) % KEYS, guard.slot());
                if !pointer.is_null() {
                    pointers.insert(pointer as usize);
                }
                drop(guard);
                // Long after the runs, the pointers still lead to values of some key, whole or being written.
                for &pointer in pointers.iter().take(8) {
                    assert!(read(pointer as *const u64).iter().all(|word| word >> 48 < KEYS));
                }
            }
            seen.lock().unwrap().extend(pointers);
        });
        let seen = seen.into_inner().unwrap();
        let elements = entries as usize + SLOTS;
        assert!(seen.len() <= elements, "{} places for {elements} elements", seen.len());
        let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
        let stride = 8 + WORDS * 8;
        // No two spares of slots share a cache line.
        let places = entries as usize + SLOTS * 64usize.div_ceil(stride);
        assert!(last - first < places * stride, "outside of the slab");
        assert!(seen.iter().all(|pointer| (pointer - first).is_multiple_of(stride)), "not an element");
    }
}
