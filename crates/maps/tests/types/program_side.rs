//! Tests of the program's entry points, called as a JIT calls them: with raw pointers and a slot.

use std::sync::Arc;

use bpf_maps::{Errno, Map, MapDef, MapHeader, MapType, flags, implemented_types, program, update};
use bpf_quiesce::{Domain, Options};

fn domain() -> Arc<Domain> {
    Domain::new(Options::new().max_slots(4))
}

fn create(def: MapDef) -> Map {
    Map::create(def, &domain()).unwrap()
}

/// Runs `f` with map pointer and slot, inside a guard.
fn run<T>(map: &Map, f: impl FnOnce(*const MapHeader, u32) -> T) -> T {
    let guard = map.domain().enter().unwrap();
    f(map.as_ptr(), guard.slot())
}

fn update_u64(map: *const MapHeader, key: &[u8], value: u64, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live map under a guard (callers use `run`); key and value have the map's sizes.
    unsafe { program::update(map, key.as_ptr(), (&raw const value).cast(), flags, slot) }
}

fn lookup_u64(map: *const MapHeader, key: &[u8], slot: u32) -> Option<u64> {
    // SAFETY: a live map under a guard (callers use `run`); the key has the map's size.
    let value = unsafe { program::lookup(map, key.as_ptr(), slot) };
    // SAFETY: null or an aligned value of 8 bytes.
    unsafe { value.cast::<u64>().as_ref() }.copied()
}

fn delete(map: *const MapHeader, key: &[u8], slot: u32) -> i64 {
    // SAFETY: a live map under a guard (callers use `run`); the key has the map's size.
    unsafe { program::delete(map, key.as_ptr(), slot) }
}

#[test]
fn the_header_says_where_an_array_lies() {
    let map = create(MapDef::new("a", MapType::Array, 4, 12, 10));
    let header = map.header();
    assert_eq!((header.max_entries, header.stride), (10, 16));
    run(&map, |ptr, slot| {
        for index in 0..12u32 {
            // SAFETY: a live map under a guard.
            let called = unsafe { program::lookup(ptr, (&raw const index).cast(), slot) };
            let inlined = if index < header.max_entries {
                header.base.wrapping_add(index as usize * header.stride as usize)
            } else {
                std::ptr::null_mut()
            };
            assert_eq!(called, inlined);
        }
    });
}

#[test]
fn an_array_keeps_what_programs_store() {
    let map = create(MapDef::new("a", MapType::Array, 4, 8, 3));
    run(&map, |ptr, slot| {
        let key = 2u32.to_ne_bytes();
        assert_eq!(lookup_u64(ptr, &key, slot), Some(0), "zero-initialised");
        assert_eq!(update_u64(ptr, &key, 7, update::ANY, slot), 0);
        assert_eq!(lookup_u64(ptr, &key, slot), Some(7));
        assert_eq!(update_u64(ptr, &key, 8, update::NOEXIST, slot), i64::from(-libc::EEXIST));
        assert_eq!(update_u64(ptr, &3u32.to_ne_bytes(), 8, update::ANY, slot), i64::from(-libc::E2BIG));
        assert_eq!(delete(ptr, &key, slot), i64::from(-libc::EINVAL));
    });
    assert_eq!(map.get(&2u32.to_ne_bytes()).unwrap(), Some(7u64.to_ne_bytes().to_vec()));
    assert_eq!(map.get(&3u32.to_ne_bytes()).unwrap(), None);
}

#[test]
fn a_hash_follows_the_kernels_flags() {
    for key_size in [1usize, 3, 4, 8, 12, 16, 40] {
        let map = create(MapDef::new("h", MapType::Hash, key_size as u32, 8, 2));
        let key = |n: u8| vec![n; key_size];
        run(&map, |ptr, slot| {
            assert_eq!(lookup_u64(ptr, &key(1), slot), None);
            assert_eq!(update_u64(ptr, &key(1), 1, update::EXIST, slot), i64::from(-libc::ENOENT));
            assert_eq!(update_u64(ptr, &key(1), 1, update::NOEXIST, slot), 0);
            assert_eq!(update_u64(ptr, &key(1), 1, update::NOEXIST, slot), i64::from(-libc::EEXIST));
            assert_eq!(update_u64(ptr, &key(1), 1, 3, slot), i64::from(-libc::EINVAL));
            assert_eq!(update_u64(ptr, &key(1), 1, update::F_LOCK, slot), i64::from(-libc::EINVAL));
            assert_eq!(update_u64(ptr, &key(2), 2, update::ANY, slot), 0);
            assert_eq!(update_u64(ptr, &key(3), 3, update::ANY, slot), i64::from(-libc::E2BIG));
            assert_eq!(update_u64(ptr, &key(2), 22, update::ANY, slot), 0, "replace works when full");
            assert_eq!(lookup_u64(ptr, &key(2), slot), Some(22));
            assert_eq!(delete(ptr, &key(1), slot), 0);
            assert_eq!(delete(ptr, &key(1), slot), i64::from(-libc::ENOENT));
            assert_eq!(update_u64(ptr, &key(3), 3, update::ANY, slot), 0);
            assert_eq!(lookup_u64(ptr, &key(3), slot), Some(3));
        });
        assert_eq!(map.len(), 2);
    }
}

#[test]
fn per_cpu_values_are_per_slot() {
    for map_type in [MapType::PerCpuHash, MapType::PerCpuArray] {
        let map = create(MapDef::new("p", map_type, 4, 8, 2));
        let key = 1u32.to_ne_bytes();
        assert_eq!(map.host_value_size(), 4 * 8);
        let host: Vec<u8> = (1..=4u64).flat_map(u64::to_ne_bytes).collect();
        map.update(&key, &host, update::ANY).unwrap();
        run(&map, |ptr, slot| {
            assert_eq!(lookup_u64(ptr, &key, slot), Some(u64::from(slot) + 1));
            for cpu in 0..5 {
                // SAFETY: a live map under a guard.
                let value = unsafe { program::lookup_percpu(ptr, key.as_ptr(), cpu) };
                // SAFETY: null or an aligned value of 8 bytes.
                let value = unsafe { value.cast::<u64>().as_ref() }.copied();
                assert_eq!(value, (cpu < 4).then_some(u64::from(cpu) + 1));
            }
            assert_eq!(update_u64(ptr, &key, 9, update::ANY, slot), 0);
        });
        let after = map.get(&key).unwrap().unwrap();
        let changed = after.chunks(8).zip(host.chunks(8)).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 1, "a program writes its own slot only");
    }
}

#[test]
fn a_new_per_cpu_hash_element_zeroes_the_other_slots() {
    let map = create(MapDef::new("p", MapType::PerCpuHash, 4, 8, 1));
    map.update(&[1, 0, 0, 0], &[0xff; 32], update::ANY).unwrap();
    map.delete(&[1, 0, 0, 0]).unwrap();
    // Two keys are inserted, so that one reuses the element written above, whether or not it was the spare.
    for key in 2..4u8 {
        run(&map, |ptr, slot| assert_eq!(update_u64(ptr, &[key, 0, 0, 0], 5, update::ANY, slot), 0));
        let values = map.get(&[key, 0, 0, 0]).unwrap().unwrap();
        let mut values: Vec<u64> = values.chunks(8).map(|v| u64::from_ne_bytes(v.try_into().unwrap())).collect();
        values.sort_unstable();
        assert_eq!(values, [0, 0, 0, 5]);
        map.delete(&[key, 0, 0, 0]).unwrap();
    }
}

#[test]
fn for_each_visits_all_and_stops_on_request() {
    for map_type in [MapType::Hash, MapType::Array] {
        let map = create(MapDef::new("m", map_type, 4, 8, 4));
        for index in 0..4u32 {
            map.update(&index.to_ne_bytes(), &u64::from(index * 10).to_ne_bytes(), update::ANY).unwrap();
        }
        let mut seen = Vec::new();
        let visited = run(&map, |ptr, slot| {
            let mut visit = |key: *const u8, value: *mut u8| {
                // SAFETY: the callback gets a key of 4 bytes.
                let key = unsafe { key.cast::<u32>().read() };
                // SAFETY: and a value of 8 bytes.
                let value = unsafe { value.cast::<u64>().read() };
                seen.push((key, value));
                true
            };
            // SAFETY: a live map under a guard.
            unsafe { program::for_each(ptr, 0, slot, &mut visit) }
        });
        assert_eq!(visited, 4);
        seen.sort_unstable();
        assert_eq!(seen, [(0, 0), (1, 10), (2, 20), (3, 30)]);
        // SAFETY: a live map under a guard.
        let stopped = run(&map, |ptr, slot| unsafe { program::for_each(ptr, 0, slot, &mut |_, _| false) });
        assert_eq!(stopped, 1);
        // SAFETY: a live map under a guard.
        let bad = run(&map, |ptr, slot| unsafe { program::for_each(ptr, 1, slot, &mut |_, _| false) });
        assert_eq!(bad, i64::from(-libc::EINVAL));
    }
}

/// The host can neither read nor write the bytes of a timer, and the timer ends with its value.
#[test]
fn a_timers_bytes_are_no_copies() {
    let no_prealloc = |def: MapDef| def.flags(flags::NO_PREALLOC);
    for def in [
        MapDef::new("array", MapType::Array, 4, 32, 2),
        MapDef::new("hash", MapType::Hash, 4, 32, 2),
        no_prealloc(MapDef::new("on demand", MapType::Hash, 4, 32, 2)),
        MapDef::new("lru", MapType::LruHash, 4, 32, 2),
    ] {
        let (map_type, name) = (def.map_type, def.name.clone());
        let map = create(if name == "hash" { def.work(8) } else { def.timer(8) });
        let key = 1u32.to_ne_bytes();
        let seen = |last: u8| [[0xff; 8], [0; 8], [0; 8], [last; 8]].concat();
        map.set(&key, &[0xff; 32]).unwrap();
        assert_eq!(map.get(&key).unwrap().unwrap(), seen(0xff), "{name}");
        run(&map, |ptr, slot| {
            // SAFETY: a live map under a guard; the key has the map's size.
            let value = unsafe { program::lookup(ptr, key.as_ptr(), slot) };
            let mut found = [0; 4];
            // SAFETY: a live map under a guard; the key has the map's size.
            let is_there =
                |value: *mut u8, found: &mut [u8]| unsafe { program::key_of_value(&map, value, found, slot) };
            assert!(is_there(value, &mut found) && found == key, "{name}");
            for elsewhere in
                [value.wrapping_add(8), value.wrapping_sub(1), std::ptr::null_mut(), value.wrapping_add(1 << 40)]
            {
                assert!(!is_there(elsewhere, &mut found), "{name}");
            }
            assert!(!is_there(value, &mut [0; 3]), "{name}: a key of another size");
            let timer = value.wrapping_add(8).cast::<u64>();
            // SAFETY: inside the value, aligned, of a map under a guard.
            unsafe { timer.write_volatile(77) };
            assert_eq!(map.get(&key).unwrap().unwrap(), seen(0xff), "{name}");
            let new = [1u8; 32];
            // SAFETY: a live map under a guard; key and value have the map's sizes.
            let updated = unsafe { program::update(ptr, key.as_ptr(), new.as_ptr(), update::ANY, slot) };
            assert_eq!(updated, 0, "{name}");
            // SAFETY: a live map under a guard; the key has the map's size.
            let value = unsafe { program::lookup(ptr, key.as_ptr(), slot) };
            // SAFETY: inside the value, aligned, of a map under a guard.
            let now = unsafe { value.wrapping_add(8).cast::<u64>().read_volatile() };
            assert_eq!(now, 0, "{name}: a new value");
            if map_type != MapType::Array {
                assert_eq!(delete(ptr, &key, slot), 0, "{name}");
                assert!(!is_there(value, &mut found), "{name}");
            }
        });
        assert_eq!(map.freeze().unwrap_err().errno(), Errno::ENOTSUPP.0, "{name}");
    }
}

#[test]
fn timers_are_where_they_can_be() {
    let array = MapDef::new("a", MapType::Array, 4, 32, 1);
    for (def, errno) in [
        (array.clone().timer(4), libc::EINVAL),
        (array.clone().timer(24), libc::EINVAL),
        (array.clone().timer(u32::MAX - 7), libc::EINVAL),
        (array.clone().timer(8).spin_lock(20), libc::EINVAL),
        (array.clone().flags(flags::RDONLY_PROG).timer(8), libc::EACCES),
        (array.clone().work(20), libc::EINVAL),
        (array.clone().timer(8).work(16), libc::EINVAL),
        (array.clone().work(8).spin_lock(20), libc::EINVAL),
        (MapDef::new("q", MapType::Queue, 0, 32, 1).work(8), libc::EOPNOTSUPP),
        (MapDef::new("p", MapType::PerCpuArray, 4, 32, 1).timer(8), libc::EOPNOTSUPP),
        (MapDef::new("q", MapType::Queue, 0, 32, 1).timer(8), libc::EOPNOTSUPP),
    ] {
        assert_eq!(Map::create(def.clone(), &domain()).unwrap_err().errno(), errno, "{def:?}");
    }
    create(array.timer(8).spin_lock(24));
}

#[test]
fn a_spin_lock_taken_twice_is_an_error() {
    let map = create(MapDef::new("l", MapType::Array, 4, 16, 1).spin_lock(4));
    run(&map, |ptr, slot| {
        let key = 0u32;
        // SAFETY: a live map under a guard.
        let value = unsafe { program::lookup(ptr, (&raw const key).cast(), slot) };
        let lock = value.wrapping_add(4).cast::<u32>();
        // SAFETY: the value's lock.
        unsafe {
            assert_eq!(program::spin_lock(lock, slot), 0);
        }
        // SAFETY: the value's lock, under the guard of its map.
        let again = unsafe { program::spin_lock(lock, slot) };
        assert_eq!(again, i64::from(-libc::EDEADLK));
        let mut out = [0xffu8; 16];
        map.lookup(&key.to_ne_bytes(), &mut out, 0).unwrap();
        assert_eq!(out, [0; 16], "a host sees the lock as zero");
        let busy = map.lookup(&key.to_ne_bytes(), &mut out, update::F_LOCK).unwrap_err();
        assert_eq!(busy.errno(), libc::EBUSY);
        map.update(&key.to_ne_bytes(), &[1; 16], update::ANY).unwrap();
        // SAFETY: the value's lock, under the guard of its map.
        let unlocked = unsafe { program::spin_unlock(lock, slot) };
        assert_eq!(unlocked, 0, "an update left the lock alone");
        // SAFETY: the value's lock, under the guard of its map.
        let twice = unsafe { program::spin_unlock(lock, slot) };
        assert_eq!(twice, i64::from(-libc::EPERM));
        map.lookup(&key.to_ne_bytes(), &mut out, update::F_LOCK).unwrap();
        assert_eq!(out, [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    });
}

/// Calls each helper on each type: types that lack the operation return an error, even without a verifier.
#[test]
fn the_wrong_type_is_an_error() {
    let domain = domain();
    for map_type in implemented_types() {
        let (key, value, entries) = match map_type {
            MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage => (8, 8, 8),
            MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, 8, 8),
            MapType::RingBuf | MapType::UserRingBuf => (0, 0, 1 << 16),
            MapType::Arena => (0, 0, 8),
            MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::XskMap => (4, 4, 8),
            MapType::InsnArray => (4, 16, 8),
            _ => (4, 8, 8),
        };
        let mut def = MapDef::new("m", map_type, key, value, entries);
        if matches!(map_type, MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage) {
            def = def.flags(flags::NO_PREALLOC);
        }
        if map_type == MapType::Arena {
            def = def.flags(flags::MMAPABLE);
        }
        if map_type.is_map_of_maps() {
            def = def.inner(MapDef::new("i", MapType::Array, 4, 8, 1));
        }
        let map = Map::create(def, &domain).unwrap();
        let is = |types: &[MapType]| types.contains(&map_type);
        let arrays = is(&[MapType::Array, MapType::PerCpuArray]);
        let hashes = is(&[MapType::Hash, MapType::PerCpuHash, MapType::LruHash, MapType::LruPerCpuHash])
            // Keyed by cookies of sockets, which programs cannot forge.
            || is(&[MapType::SkStorage, MapType::TaskStorage]);
        let lists = is(&[MapType::Queue, MapType::Stack]);
        let bloom = is(&[MapType::BloomFilter]);
        let (absent, unsupported, invalid) =
            (Errno::ENOENT.as_ret(), Errno::EOPNOTSUPP.as_ret(), Errno::EINVAL.as_ret());
        run(&map, |ptr, slot| {
            // Large enough and aligned for every key and value here; a trie reads a prefix of one bit.
            let (key, mut value) = ([1u64], [0u64; 4]);
            let (key, out) = (key.as_ptr().cast::<u8>(), value.as_mut_ptr().cast::<u8>());
            // SAFETY: a live map under a guard with this slot; `value` is as large as any value here.
            let popped = unsafe { program::pop(ptr, out, slot) };
            assert_eq!(popped, if lists { absent } else { unsupported }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; `value` is as large as any value here.
            let peeked = unsafe { program::peek(ptr, out, slot) };
            assert_eq!(peeked, if lists || bloom { absent } else { unsupported }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; `value` is as large as any value here.
            let pushed = unsafe { program::push(ptr, out, 0, slot) };
            assert_eq!(pushed, if lists || bloom { 0 } else { unsupported }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; key and value are as large as any here.
            let updated = unsafe { program::update(ptr, key, out, 0, slot) };
            assert_eq!(updated == 0, arrays || hashes || is(&[MapType::LpmTrie]), "{map_type:?}: {updated}");
            // SAFETY: a live map under a guard with this slot; `key` is as large as any key here.
            let other = unsafe { program::lookup_percpu(ptr, key, slot) };
            let per_cpu = map_type.is_per_cpu();
            assert_eq!(!other.is_null(), per_cpu, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; `key` is as large as any key here.
            let found = unsafe { program::lookup(ptr, key, slot) };
            assert_eq!(!found.is_null(), updated == 0, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot.
            let visited = unsafe { program::for_each(ptr, 0, slot, &mut |_, _| true) };
            let present = if arrays { 8 } else { 1 };
            assert_eq!(visited, if arrays || hashes { present } else { invalid }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; `key` is as large as any key here.
            let deleted = unsafe { program::delete(ptr, key, slot) };
            assert_eq!(deleted == 0, hashes || is(&[MapType::LpmTrie]), "{map_type:?}: {deleted}");
            // SAFETY: a live map under a guard with this slot; `value` has 32 bytes.
            let sent = unsafe { program::ringbuf_output(ptr, out, 32, 0, slot) };
            let is_ring = is(&[MapType::RingBuf]);
            assert_eq!(sent, if is_ring { 0 } else { invalid }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot.
            let sample = unsafe { program::ringbuf_reserve(ptr, 8, 0, slot) };
            assert_eq!(!sample.is_null(), is_ring, "{map_type:?}");
            if is_ring {
                // SAFETY: reserved just now.
                unsafe { program::ringbuf_discard(sample, 0) };
            }
            // SAFETY: a live map under a guard.
            let size = unsafe { program::ringbuf_query(ptr, bpf_maps::query::RING_SIZE) };
            assert_eq!(size, if is_ring { 1 << 16 } else { 0 }, "{map_type:?}");
            // SAFETY: a live map under a guard.
            let drained = unsafe { program::user_ringbuf_drain(ptr, 0, &mut |_, _| true) };
            assert_eq!(drained, if is(&[MapType::UserRingBuf]) { 0 } else { invalid }, "{map_type:?}");
            // SAFETY: a live map under a guard with this slot; `value` has 32 bytes.
            let sent = unsafe { program::perf_event_output(ptr, 0, (out, 32), |_| std::iter::empty(), 0, slot) };
            assert_eq!(sent, if is(&[MapType::PerfEventArray]) { absent } else { invalid }, "{map_type:?}");
            let arena = is(&[MapType::Arena]);
            // SAFETY: a live map under a guard.
            let page = unsafe { program::arena_alloc(ptr, 0, 1, -1, 0) };
            assert_eq!(page != 0, arena, "{map_type:?}");
            // SAFETY: a live map under a guard.
            unsafe { program::arena_free(ptr, page, 1) };
            // SAFETY: a live map under a guard.
            let reserved = unsafe { program::arena_reserve(ptr, page, 1) };
            assert_eq!(reserved, if arena { 0 } else { invalid }, "{map_type:?}");
        });
        // The host's consumer and producer require their own type too.
        assert_eq!(bpf_maps::RingBuf::new(&map).is_ok(), is(&[MapType::RingBuf]), "{map_type:?}");
        assert_eq!(bpf_maps::UserRingBuf::new(&map).is_ok(), is(&[MapType::UserRingBuf]), "{map_type:?}");
        let perf = bpf_maps::open_perf_entry(&map, 0, 1 << 16);
        assert_eq!(perf.is_ok(), is(&[MapType::PerfEventArray]), "{map_type:?}");
    }
}
