//! Tests of the host API: typed handles, iteration and batches, maps of maps, mapped arrays, dumps, and the errors
//! for bad input.

use std::sync::Arc;

use crate::common::domain;
use bpf_maps::typed::{TypedArray, TypedBloomFilter, TypedHash, TypedPerCpuArray, TypedPerCpuHash, TypedQueue};
use bpf_maps::{
    CreateOptions, Cursor, Dump, Errno, Kind, Map, MapDef, MapError, MapHeader, MapType, flags, implemented_type,
    implemented_types, program, update,
};
use bpf_quiesce::{Domain, Options};

fn create(def: MapDef) -> Map {
    Map::create(def, &domain(4)).unwrap()
}

#[test]
fn typed_handles_check_type_and_sizes_once() {
    let map = create(MapDef::new("h", MapType::Hash, 4, 16, 8));
    let hash: TypedHash<u32, [u64; 2]> = map.typed().unwrap();
    assert_eq!(hash.get(&1).unwrap(), None);
    hash.insert(&1, &[2, 3]).unwrap();
    hash.update(&1, &[4, 5], update::EXIST).unwrap();
    assert_eq!(hash.get(&1).unwrap(), Some([4, 5]));
    assert_eq!(hash.iter().collect::<Result<Vec<_>, _>>().unwrap(), [(1, [4, 5])]);
    assert_eq!(hash.take(&1).unwrap(), Some([4, 5]));
    assert!(!hash.remove(&1).unwrap());
    let error = map.typed::<TypedHash<u64, [u64; 2]>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "h": expected a key of 4 bytes, got 8"#);
    let error = map.typed::<TypedHash<u32, u64>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "h": expected a value of 16 bytes, got 8"#);
    let error = map.typed::<TypedArray<u64>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "h" is of type hash; expected array"#);
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn typed_handles_check_what_btf_says() {
    let with = |key, value| {
        let mut def = MapDef::new("h", MapType::Hash, 4, 8, 8);
        (def.key_kind, def.value_kind) = (key, value);
        create(def)
    };
    let map = with(Some(Kind::Signed), Some(Kind::Struct));
    let error = map.typed::<TypedHash<u32, [u32; 2]>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "h": the key is a signed integer, got an unsigned integer"#);
    let error = map.typed::<TypedHash<i32, f64>>().unwrap_err();
    assert_eq!(error.to_string(), r#"map "h": the value is a structure, got a floating-point number"#);
    assert_eq!(error.errno(), libc::EINVAL);
    map.typed::<TypedHash<i32, [u32; 2]>>().unwrap();
    with(None, None).typed::<TypedHash<u32, i64>>().unwrap();
    // The kind is not part of the schema: a dump without BTF fits as well.
    let typed = with(Some(Kind::Unsigned), None);
    typed.set(&[1; 4], &[2; 8]).unwrap();
    with(None, None).restore(&typed.dump().unwrap()).unwrap();
    typed.restore(&with(None, None).dump().unwrap()).unwrap();
}

/// The error number of an operation; 0 for none.
fn errno(result: Result<(), MapError>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

#[test]
fn one_slot_of_a_per_cpu_map_is_read_and_written() {
    let array: TypedPerCpuArray<u32> = create(MapDef::new("a", MapType::PerCpuArray, 4, 4, 2)).typed().unwrap();
    array.set(1, &[1, 2, 3, 4]).unwrap();
    array.set_slot(1, 2, &30).unwrap();
    assert_eq!(array.get(1).unwrap(), Some(vec![1, 2, 30, 4]));
    assert_eq!((array.get_slot(1, 2).unwrap(), array.get_slot(2, 2).unwrap()), (Some(30), None));
    array.set_same(1, &5).unwrap();
    assert_eq!((array.get(0).unwrap(), array.get(1).unwrap()), (Some(vec![0; 4]), Some(vec![5; 4])));
    assert_eq!(array.set_slot(1, 4, &30).unwrap_err().errno(), libc::ERANGE);
    assert_eq!(array.get_slot(1, u32::MAX).unwrap_err().errno(), libc::ERANGE);
    assert_eq!(array.set_same(2, &5).unwrap_err().errno(), libc::E2BIG);

    for (map_type, map_flags) in
        [(MapType::PerCpuHash, 0), (MapType::PerCpuHash, flags::NO_PREALLOC), (MapType::LruPerCpuHash, 0)]
    {
        let def = MapDef::new("h", map_type, 4, 4, 2).flags(map_flags);
        let hash: TypedPerCpuHash<u32, u32> = create(def).typed().unwrap();
        // Elements of which the values were used before, by removed keys.
        for round in 0..20 {
            hash.insert(&7, &[9; 4]).unwrap();
            assert!(hash.remove(&7).unwrap());
            hash.insert_slot(&round, 3, &40).unwrap();
            assert_eq!(hash.get(&round).unwrap(), Some(vec![0, 0, 0, 40]));
            hash.insert_slot(&round, 0, &10).unwrap();
            assert_eq!(hash.get(&round).unwrap(), Some(vec![10, 0, 0, 40]));
            hash.insert_same(&round, &6).unwrap();
            assert_eq!((hash.get(&round).unwrap(), hash.get_slot(&round, 1).unwrap()), (Some(vec![6; 4]), Some(6)));
            assert!(hash.remove(&round).unwrap());
        }
        assert_eq!(hash.get_slot(&7, 1).unwrap(), None);
        assert_eq!(hash.insert_slot(&7, 4, &1).unwrap_err().errno(), libc::ERANGE);
        let map = hash.map();
        let (key, one, all) = ([7, 0, 0, 0], [1, 0, 0, 0], [1; 32]);
        let cpu = |slot: u64| update::F_CPU | slot << 32;
        assert_eq!(errno(map.update(&key, &one, cpu(1) | update::EXIST)), libc::ENOENT);
        assert_eq!(errno(map.update(&key, &one, cpu(1) | update::NOEXIST)), 0);
        let mut padded = [0xee; 32];
        map.lookup(&key, &mut padded, 0).unwrap();
        assert_eq!(padded.map(|byte| byte == 0xee), [false; 32], "padding is written");
        assert_eq!(errno(map.update(&key, &one, cpu(1) | update::NOEXIST)), libc::EEXIST);
        assert_eq!(errno(map.update(&key, &one, cpu(1) | update::F_ALL_CPUS)), libc::EINVAL);
        assert_eq!(errno(map.update(&key, &one, cpu(1) | 32)), libc::EINVAL);
        assert_eq!(errno(map.update(&key, &one, update::F_ALL_CPUS | 1 << 32)), libc::EINVAL);
        assert_eq!(errno(map.update(&key, &all, 1 << 32)), libc::EINVAL);
        assert_eq!(errno(map.lookup(&key, &mut one.clone(), update::F_ALL_CPUS)), libc::EINVAL);
        assert!(matches!(map.update(&key, &all, cpu(1)), Err(MapError::Size { expected: 4, got: 32, .. })));
        assert!(matches!(map.lookup(&key, &mut all.clone(), cpu(1)), Err(MapError::Size { expected: 4, .. })));
        assert!(map.lookup_and_delete(&key, &mut one.clone(), cpu(1)).is_err());
        assert_eq!(errno(map.lookup_and_delete(&key, &mut all.clone(), 1 << 32)), libc::EINVAL);
        assert_eq!(map.update_batch(&[1, 0, 0, 0, 7, 0, 0, 0], &[2; 8], cpu(2)).0, 2);
        assert_eq!(hash.get_slot(&7, 2).unwrap(), Some(0x0202_0202));
    }

    // Other types have no slots.
    for def in [MapDef::new("a", MapType::Array, 4, 4, 1), MapDef::new("h", MapType::Hash, 4, 4, 1)] {
        let map = create(def);
        for flags in [update::F_CPU, update::F_ALL_CPUS] {
            assert_eq!(errno(map.update(&[0; 4], &[0; 4], flags)), libc::EINVAL);
            assert_eq!(errno(map.lookup(&[0; 4], &mut [0; 4], flags)), libc::EINVAL);
        }
    }
}

#[test]
fn typed_handles_of_the_other_types() {
    let array: TypedArray<u16> = create(MapDef::new("a", MapType::Array, 4, 2, 3)).typed().unwrap();
    array.set(2, &7).unwrap();
    assert_eq!((array.get(2).unwrap(), array.get(3).unwrap(), array.len()), (Some(7), None, 3));
    let per_cpu: TypedPerCpuArray<u32> = create(MapDef::new("p", MapType::PerCpuArray, 4, 4, 1)).typed().unwrap();
    per_cpu.set(0, &[1, 2, 3, 4]).unwrap();
    assert_eq!(per_cpu.get(0).unwrap(), Some(vec![1, 2, 3, 4]));
    assert_eq!(per_cpu.slots(), 4);
    assert!(per_cpu.set(0, &[1]).unwrap_err().to_string().contains("expected a number of per-slot values of 4"));
    let hash: TypedPerCpuHash<u64, u64> = create(MapDef::new("q", MapType::PerCpuHash, 8, 8, 1)).typed().unwrap();
    hash.insert(&9, &[1, 2, 3, 4]).unwrap();
    assert_eq!(hash.iter().next().unwrap().unwrap(), (9, vec![1, 2, 3, 4]));
    assert!(hash.remove(&9).unwrap() && hash.get(&9).unwrap().is_none());
    let queue: TypedQueue<u8> = create(MapDef::new("f", MapType::Queue, 0, 1, 2)).typed().unwrap();
    queue.push(&1).unwrap();
    queue.push(&2).unwrap();
    assert_eq!(queue.push(&3).unwrap_err().errno(), libc::E2BIG);
    queue.push_over(&3).unwrap();
    assert_eq!((queue.peek().unwrap(), queue.pop().unwrap(), queue.pop().unwrap()), (Some(2), Some(2), Some(3)));
    assert_eq!(queue.pop().unwrap(), None);
    let bloom: TypedBloomFilter<u64> = create(MapDef::new("b", MapType::BloomFilter, 0, 8, 100)).typed().unwrap();
    bloom.push(&5).unwrap();
    assert!(bloom.may_contain(&5).unwrap());
}

#[test]
fn bad_input_is_told_what_was_expected() {
    let domain = domain(4);
    let told = |def: MapDef| {
        let error = Map::create(def, &domain).unwrap_err();
        (error.errno(), error.to_string())
    };
    let (errno, text) = told(MapDef::new("m", MapType::Array, 8, 4, 1));
    assert_eq!(errno, libc::EINVAL);
    assert!(text.contains("key_size 4") && text.contains("got key_size 8"), "{text}");
    let (errno, text) = told(MapDef::new("m", MapType::LruHash, 8, 4, 1).flags(flags::NO_PREALLOC));
    assert_eq!(errno, 524);
    assert!(text.contains("no NO_PREALLOC"), "{text}");
    let (errno, text) = told(MapDef::new("m", MapType::RingBuf, 0, 0, 4097));
    assert_eq!(errno, libc::EINVAL);
    assert!(text.contains("a power of two"), "{text}");
    // Refused before it is touched: this would be 64 TiB.
    let (errno, text) = told(MapDef::new("m", MapType::Hash, 8, 1 << 20, 1 << 26));
    assert_eq!(errno, libc::ENOMEM);
    assert!(text.contains("the limit is 4294967296"), "{text}");
    let mut options = CreateOptions::default();
    options.memory_limit = 1000;
    let small = Map::create_with(MapDef::new("m", MapType::Array, 4, 8, 1024), &domain, &options);
    assert!(matches!(small, Err(MapError::MemoryLimit { needed: 8192, limit: 1000, .. })));

    let error = implemented_type(28).unwrap_err();
    assert_eq!(error.to_string(), "map type 28 (inode_storage) is not supported");
    assert_eq!(implemented_type(35).unwrap_err().to_string(), "map type 35 (rhash) is not supported");
    let (errno, text) = told(MapDef::new("m", MapType::RingBuf, 0, 0, 4096).flags(1 << 19));
    assert!(errno == libc::EINVAL && text.contains("0x80000 (BPF_F_RB_OVERWRITE: no record"), "{text}");
    for number in [19, 26, 32, 3, 99] {
        assert!(matches!(implemented_type(number), Err(MapError::Unsupported { .. })), "{number}");
    }
    for map_type in implemented_types() {
        assert_eq!(implemented_type(map_type.number()).unwrap(), map_type);
    }

    let map = create(MapDef::new("m", MapType::Hash, 4, 8, 1));
    assert!(matches!(map.set(&[0; 3], &[0; 8]), Err(MapError::Size { what: "key", expected: 4, got: 3, .. })));
    assert!(matches!(map.set(&[0; 4], &[0; 9]), Err(MapError::Size { what: "value", expected: 8, got: 9, .. })));
    assert_eq!(map.push(&[0; 8], 0).unwrap_err().errno(), libc::EOPNOTSUPP);
    assert_eq!(map.mmap_fd().unwrap_err().errno(), libc::EPERM);
}

#[test]
fn large_keys_and_values_work() {
    // Beyond the size kept on the stack, and beyond a page.
    let map = create(MapDef::new("m", MapType::Hash, 1000, 70_001, 4));
    let key = |n: u8| vec![n; 1000];
    for n in 0..4u8 {
        map.set(&key(n), &vec![n; 70_001]).unwrap();
    }
    for n in 0..4u8 {
        assert_eq!(map.get(&key(n)).unwrap(), Some(vec![n; 70_001]));
    }
    assert_eq!(map.set(&key(4), &vec![0; 70_001]).unwrap_err().errno(), libc::E2BIG);
}

/// The removed elements that slots keep must not multiply large values by many slots.
#[test]
fn large_values_allocated_on_demand_fit_into_the_usual_limit() {
    // The last two: more removals than there are elements.
    for (map_type, key_size, value_size, rounds) in [
        (MapType::Hash, 4, 1 << 20, 2),
        (MapType::LpmTrie, 8, 1 << 20, 2),
        (MapType::PerCpuHash, 4, 32 << 10, 2),
        (MapType::Hash, 4, 16 << 10, 3000),
        (MapType::LpmTrie, 8, 16 << 10, 3000),
    ] {
        let def = MapDef::new("m", map_type, key_size, value_size, 4).flags(flags::NO_PREALLOC);
        let map = Map::create(def, &domain(64)).unwrap();
        let (key, value) = (vec![0; key_size as usize], vec![7; map.host_value_size()]);
        for _ in 0..rounds {
            map.set(&key, &value).unwrap();
            map.delete(&key).unwrap();
        }
        map.set(&key, &value).unwrap();
        assert!(map.get(&key).unwrap() == Some(value), "{map_type:?}");
    }
}

#[test]
fn batches_resume_at_their_cursor() {
    let map = create(MapDef::new("m", MapType::Hash, 4, 8, 100));
    let keys: Vec<u8> = (0..50u32).flat_map(u32::to_ne_bytes).collect();
    let values: Vec<u8> = (0..50u64).flat_map(u64::to_ne_bytes).collect();
    assert_eq!(map.update_batch(&keys, &values, 0), (50, Ok(())));
    let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
    loop {
        let (mut keys, mut values) = ([0; 7 * 4], [0; 7 * 8]);
        let batch = map.lookup_batch(&mut cursor, &mut keys, &mut values).unwrap();
        for (key, value) in keys.chunks(4).zip(values.chunks(8)).take(batch.count) {
            let key = u32::from_ne_bytes(key.try_into().unwrap());
            assert_eq!(u64::from_ne_bytes(value.try_into().unwrap()), u64::from(key));
            seen.push(key);
        }
        if batch.end {
            break;
        }
        assert_eq!(batch.count, 7);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    assert_eq!(map.delete_batch(&keys[..40]), (10, Ok(())));
    let (count, result) = map.delete_batch(&keys[..44]);
    assert_eq!((count, result.unwrap_err().errno()), (0, libc::ENOENT));
    let (mut keys, mut values) = ([0; 100 * 4], [0; 100 * 8]);
    let batch = map.lookup_and_delete_batch(&mut Cursor::default(), &mut keys, &mut values).unwrap();
    assert!(batch.end && batch.count == 40 && map.is_empty());
    let odd = map.lookup_batch(&mut Cursor::default(), &mut [0; 8], &mut [0; 8]);
    assert_eq!(odd.unwrap_err().errno(), libc::EINVAL);
}

fn program_lookup(map: &Map, key: u32) -> *mut u8 {
    let guard = map.domain().enter().unwrap();
    // SAFETY: a live map under a guard with this slot; a key of its size.
    unsafe { program::lookup(map.as_ptr(), (&raw const key).cast(), guard.slot()) }
}

#[test]
fn maps_of_maps_hold_maps_of_their_templates_shape() {
    for outer_type in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        let domain = domain(4);
        let template = MapDef::new("inner", MapType::Array, 4, 8, 4);
        let outer = Map::create(MapDef::new("outer", outer_type, 4, 4, 2).inner(template.clone()), &domain).unwrap();
        let inner = || Map::create(template.clone(), &domain).unwrap();
        let key = 1u32.to_ne_bytes();
        assert!(program_lookup(&outer, 1).is_null());
        assert!(outer.get_inner(&key).unwrap().is_none());
        let (a, b) = (inner(), inner());
        outer.set_inner(&key, &a, update::ANY).unwrap();
        assert_eq!(program_lookup(&outer, 1).cast_const(), a.as_ptr().cast());
        assert!(outer.get_inner(&key).unwrap().unwrap().same_as(&a));
        assert_eq!(outer.get(&key).unwrap(), Some(a.id().to_ne_bytes().to_vec()));
        outer.set_inner(&key, &b, update::ANY).unwrap();
        assert_eq!(program_lookup(&outer, 1).cast_const(), b.as_ptr().cast());
        assert_eq!(outer.len(), 1);

        let larger = Map::create(MapDef::new("x", MapType::Array, 4, 8, 5), &domain).unwrap();
        let error = outer.set_inner(&key, &larger, 0).unwrap_err();
        assert_eq!(error.to_string(), r#"map "x": schema differs in max_entries: expected 4, got 5"#);
        let foreign = Map::create(template.clone(), &crate::common::domain(4)).unwrap();
        assert!(matches!(outer.set_inner(&key, &foreign, 0), Err(MapError::OtherDomain { .. })));
        assert_eq!(outer.set(&key, &[0; 4]).unwrap_err().errno(), libc::EINVAL);
        if outer_type == MapType::ArrayOfMaps {
            assert_eq!(outer.set_inner(&key, &a, update::NOEXIST).unwrap_err().errno(), libc::EINVAL);
            assert_eq!(outer.set_inner(&2u32.to_ne_bytes(), &a, 0).unwrap_err().errno(), libc::E2BIG);
        } else {
            assert_eq!(outer.set_inner(&key, &a, update::NOEXIST).unwrap_err().errno(), libc::EEXIST);
        }
        outer.delete(&key).unwrap();
        assert_eq!(outer.delete(&key).unwrap_err().errno(), libc::ENOENT);
        assert!(program_lookup(&outer, 1).is_null());
    }
    let nested = MapDef::new("i", MapType::ArrayOfMaps, 4, 4, 1).inner(MapDef::new("j", MapType::Array, 4, 4, 1));
    let error = Map::create(MapDef::new("o", MapType::ArrayOfMaps, 4, 4, 1).inner(nested), &domain(1)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn an_inner_map_lives_until_no_run_can_have_it() {
    for outer_type in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        let domain = domain(4);
        let template = MapDef::new("inner", MapType::Hash, 4, 8, 4);
        let outer = Map::create(MapDef::new("outer", outer_type, 4, 4, 2).inner(template.clone()), &domain).unwrap();
        let key = 0u32.to_ne_bytes();
        let inner = Map::create(template, &domain).unwrap();
        inner.set(&key, &7u64.to_ne_bytes()).unwrap();
        outer.set_inner(&key, &inner, 0).unwrap();
        drop(inner);
        let guard = domain.enter().unwrap();
        let zero = 0u32;
        // SAFETY: a live map under a guard.
        let inner: *const MapHeader =
            unsafe { program::lookup(outer.as_ptr(), (&raw const zero).cast(), guard.slot()) }.cast();
        let dropper = Arc::clone(&domain);
        let thread = outer.clone();
        std::thread::spawn(move || {
            thread.delete(&key).unwrap();
            assert_eq!(dropper.reclaim(), 0, "a run is still going on");
        })
        .join()
        .unwrap();
        // SAFETY: this run began before the delete, so the inner map is alive.
        let value = unsafe { program::lookup(inner, (&raw const zero).cast(), guard.slot()) };
        // SAFETY: and so is its element.
        assert_eq!(unsafe { value.cast::<u64>().read() }, 7);
        drop(guard);
        assert_eq!(domain.deferred(), 1);
        domain.drain().unwrap();
        assert_eq!(domain.deferred(), 0);
    }
}

#[test]
fn a_mappable_array_shows_what_programs_write() {
    use std::os::fd::AsRawFd;
    let map = create(MapDef::new("m", MapType::Array, 4, 8, 4).flags(flags::MMAPABLE));
    let fd = map.mmap_fd().unwrap().as_raw_fd();
    // SAFETY: a fresh shared mapping of the map's file.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), 32, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let third = mapped.cast::<u64>().wrapping_add(2);
    map.set(&2u32.to_ne_bytes(), &77u64.to_ne_bytes()).unwrap();
    // SAFETY: element 2 of the mapping.
    assert_eq!(unsafe { third.read_volatile() }, 77);
    // SAFETY: element 2 of the mapping, which is writable.
    unsafe { third.write_volatile(88) };
    assert_eq!(map.get(&2u32.to_ne_bytes()).unwrap(), Some(88u64.to_ne_bytes().to_vec()));
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(mapped, 32) };
}

fn fill(map: &Map) {
    for n in 0..5u32 {
        let size = map.host_value_size();
        let value: Vec<u8> = (0..size).map(|i| (i as u32 * 3 + n) as u8).collect();
        match map.map_type() {
            MapType::Queue | MapType::Stack => map.push(&value, 0).unwrap(),
            MapType::LpmTrie => map.set(&[n * 4, n].map(u32::to_ne_bytes).concat(), &value).unwrap(),
            _ => map.set(&n.to_ne_bytes(), &value).unwrap(),
        }
    }
}

fn contents(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = map.iter().map(Result::unwrap).collect();
    if !matches!(map.map_type(), MapType::Queue | MapType::Stack) {
        all.sort();
    }
    all
}

#[test]
fn a_dump_restores_every_type_that_can_be_read_back() {
    let directory = std::env::temp_dir().join(format!("bpf-maps-dump-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for def in [
        MapDef::new("array", MapType::Array, 4, 5, 5),
        MapDef::new("percpu array", MapType::PerCpuArray, 4, 8, 5),
        MapDef::new("hash", MapType::Hash, 4, 12, 10),
        MapDef::new("mapped array", MapType::Array, 4, 8, 5).flags(flags::MMAPABLE),
        MapDef::new("percpu hash", MapType::PerCpuHash, 4, 8, 10),
        MapDef::new("on demand", MapType::Hash, 4, 8, 10).flags(flags::NO_PREALLOC),
        MapDef::new("percpu on demand", MapType::PerCpuHash, 4, 8, 10).flags(flags::NO_PREALLOC),
        MapDef::new("lru", MapType::LruHash, 4, 8, 10),
        MapDef::new("own lists", MapType::LruHash, 4, 8, 10).flags(flags::NO_COMMON_LRU),
        MapDef::new("percpu lru", MapType::LruPerCpuHash, 4, 8, 10),
        MapDef::new("trie", MapType::LpmTrie, 8, 8, 10).flags(flags::NO_PREALLOC),
        MapDef::new("queue", MapType::Queue, 0, 8, 10),
        MapDef::new("stack", MapType::Stack, 0, 8, 10),
    ] {
        let path = directory.join(&def.name);
        let (map, restored) = (create(def.clone()), create(def.clone()));
        fill(&map);
        map.save(&path).unwrap();
        restored.load(&path).unwrap();
        assert_eq!(contents(&restored), contents(&map), "{def:?}");
        assert_eq!(contents(&map).len(), 5);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Two threads that save to one path neither write into each other's file nor follow a link at its name.
#[test]
fn maps_saved_to_one_path_at_once_stay_whole() {
    let directory = std::env::temp_dir().join(format!("bpf-maps-at-once-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (path, other) = (directory.join("map"), directory.join("somebody else's"));
    std::fs::write(&other, "as it was").unwrap();
    for number in 0..400 {
        let name = directory.join(format!("map.{}.{number}.tmp", std::process::id()));
        std::os::unix::fs::symlink(&other, name).unwrap();
    }
    let def = || MapDef::new("m", MapType::Array, 4, 4096, 16);
    let full = |byte: u8| {
        let map = create(def());
        (0..16u32).for_each(|i| map.update(&i.to_ne_bytes(), &[byte; 4096], 0).unwrap());
        map
    };
    full(1).save(&path).unwrap();
    std::thread::scope(|scope| {
        for byte in [1, 2] {
            let (map, path) = (full(byte), &path);
            scope.spawn(move || (0..50).for_each(|_| map.save(path).unwrap()));
        }
        let restored = create(def());
        for _ in 0..50 {
            restored.load(&path).unwrap();
            let values = contents(&restored);
            assert!([1, 2].iter().any(|byte| values.iter().all(|(_, value)| value.iter().all(|b| b == byte))));
        }
    });
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "as it was");
    let left = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_type().unwrap());
    assert_eq!(left.filter(|kind| kind.is_file()).count(), 2, "no temporary file stays");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A name longer than a dump can hold is cut, but not within a character, which would damage the dump.
#[test]
fn a_dump_with_a_long_name_can_be_read() {
    for name in ["é".repeat(3000), format!("m{}", "é".repeat(3000))] {
        let mut dump = create(MapDef::new("m", MapType::Hash, 4, 8, 10)).dump().unwrap();
        dump.def.name = name.clone();
        let mut file = Vec::new();
        dump.write(&mut file).unwrap();
        let read = Dump::read(file.as_slice()).unwrap().def.name;
        assert!(name.starts_with(&read) && (4095..=4096).contains(&read.len()), "{}", read.len());
        dump.host_value_size = u32::MAX as usize + 9;
        assert!(matches!(dump.write(Vec::new()), Err(MapError::BadDump(_))), "a size that the file has no room for");
    }
}

#[test]
fn a_dump_of_another_schema_or_a_damaged_one_is_refused() {
    let map = create(MapDef::new("m", MapType::Hash, 4, 8, 10));
    fill(&map);
    let mut file = Vec::new();
    map.dump().unwrap().write(&mut file).unwrap();
    let dump = Dump::read(file.as_slice()).unwrap();
    assert_eq!(dump, map.dump().unwrap());
    for (def, field) in [
        (MapDef::new("m", MapType::Hash, 8, 8, 10), "key_size"),
        (MapDef::new("m", MapType::Hash, 4, 9, 10), "value_size"),
        (MapDef::new("m", MapType::Hash, 4, 8, 11), "max_entries"),
        (MapDef::new("m", MapType::LruHash, 4, 8, 10), "map_type"),
        (MapDef::new("m", MapType::Hash, 4, 8, 10).flags(flags::NO_PREALLOC), "flags"),
    ] {
        let error = create(def).restore(&dump).unwrap_err();
        assert!(matches!(error, MapError::Incompatible { field: f, .. } if f == field), "{error}");
    }
    // A per-CPU map has as many values as its domain has slots.
    let per_cpu = MapDef::new("p", MapType::PerCpuArray, 4, 8, 1);
    let dump = Map::create(per_cpu.clone(), &domain(2)).unwrap().dump().unwrap();
    assert!(Map::create(per_cpu, &domain(3)).unwrap().restore(&dump).is_err());
    for cut in 0..file.len() {
        assert!(Dump::read(&file[..cut]).is_err(), "cut at {cut}");
    }
    for damaged in 0..file.len() {
        let mut file = file.clone();
        file[damaged] ^= 0x10;
        assert!(Dump::read(file.as_slice()).is_err(), "damaged at {damaged}");
    }
    let ring = create(MapDef::new("r", MapType::RingBuf, 0, 0, 1 << 16));
    assert_eq!(ring.dump().unwrap_err().errno(), Errno::ENOTSUPP.0);
}

#[test]
fn an_iteration_ends_although_keys_are_added_all_the_time() {
    for def in [
        MapDef::new("h", MapType::Hash, 8, 8, 100_000),
        MapDef::new("t", MapType::LpmTrie, 8, 8, 100_000).flags(flags::NO_PREALLOC),
    ] {
        let map = create(def);
        let key = |n: u32| [32, n.wrapping_mul(0x9e37_79b9)].map(u32::to_ne_bytes).concat();
        map.set(&key(0), &[0; 8]).unwrap();
        let (mut cursor, mut k, mut value) = (Cursor::default(), [0; 8], [0; 8]);
        let (mut met, mut n) = (0, 1);
        while map.next(&mut cursor, &mut k, &mut value).unwrap() {
            met += 1;
            for _ in 0..2 {
                if n < 90_000 {
                    map.set(&key(n), &[0; 8]).unwrap();
                    n += 1;
                }
            }
            // The key just visited is deleted: the cursor must not be affected.
            map.delete(&k).unwrap();
        }
        assert!(met > 0 && met <= 90_000);
    }
}

#[test]
fn read_only_and_write_only_maps_refuse_the_host() {
    let map = create(MapDef::new("m", MapType::Array, 4, 4, 1).flags(flags::RDONLY));
    assert_eq!(map.set(&[0; 4], &[0; 4]).unwrap_err().errno(), libc::EPERM);
    assert!(map.get(&[0; 4]).unwrap().is_some());
    assert!(!program_lookup(&map, 0).is_null(), "programs may do both");
    let map = create(MapDef::new("m", MapType::Array, 4, 4, 1).flags(flags::WRONLY));
    assert_eq!(map.get(&[0; 4]).unwrap_err().errno(), libc::EPERM);
    map.set(&[0; 4], &[0; 4]).unwrap();
    assert!(map.iter().next().unwrap().is_err());
}

#[test]
fn what_is_allocated_on_demand_counts_when_it_is_used() {
    for def in [
        MapDef::new("h", MapType::Hash, 4, 64, 10_000).flags(flags::NO_PREALLOC),
        MapDef::new("p", MapType::PerCpuHash, 4, 64, 10_000).flags(flags::NO_PREALLOC),
        MapDef::new("t", MapType::LpmTrie, 8, 64, 10_000).flags(flags::NO_PREALLOC),
    ] {
        let map = create(def);
        let (empty, value) = (map.memory_usage(), vec![0; map.host_value_size()]);
        for n in 0..5000u32 {
            let key = if map.map_type() == MapType::LpmTrie {
                [32, n].map(u32::to_ne_bytes).concat()
            } else {
                n.to_ne_bytes().to_vec()
            };
            map.set(&key, &value).unwrap();
        }
        let elements = 5000 * value.len() as u64;
        let full = map.memory_usage() - empty;
        // A trie has two nodes a key, each with room for a value.
        assert!((elements..4 * elements).contains(&full), "{:?}: {full} bytes for {elements}", map.map_type());
    }
}

#[test]
fn a_hash_costs_at_most_24_bytes_an_element_beyond_key_and_value() {
    for entries in [10_000u32, 1_000_000] {
        let map = create(MapDef::new("m", MapType::Hash, 8, 8, entries));
        let overhead = map.memory_usage() as f64 / f64::from(entries) - 16.0;
        assert!(overhead <= 24.0, "{overhead} bytes an element of {entries}");
    }
}

/// A small map uses little memory: both what it reserves of the domain's memory, and the usage it reports.
#[test]
fn small_maps_take_a_few_kilobytes() {
    let domain = Domain::new(Options::new().max_slots(64));
    let of = |def: MapDef| {
        let before = domain.memory().used();
        let map = Map::create(def, &domain).unwrap();
        let counted = domain.memory().used() - before;
        assert_eq!(map.memory_counted(), counted);
        (map, counted)
    };
    // 64 slots, each on cache lines of its own.
    let (array, counted) = of(MapDef::new("a", MapType::PerCpuArray, 4, 32, 1));
    assert_eq!((counted, array.memory_usage()), (64 * 128, 64 * 128));
    let (large, counted) = of(MapDef::new("a", MapType::PerCpuArray, 4, 32, 128));
    assert_eq!((counted, large.memory_usage()), (64 * 4096, 64 * 4096), "pages are only used for slots that run");

    let (trie, empty) = of(MapDef::new("t", MapType::LpmTrie, 8, 8, 64).flags(flags::NO_PREALLOC));
    assert!(empty <= 1024 && trie.memory_usage() <= 1024, "{empty} counted, {} used", trie.memory_usage());
    for n in 0..64u8 {
        trie.set(&[[32, 0, 0, 0], [10, n, 0, 1]].concat(), &[n; 8]).unwrap();
    }
    let (counted, used) = (trie.memory_counted(), trie.memory_usage());
    assert_eq!(domain.memory().used() - 64 * 128 - 64 * 4096, counted);
    assert!(used <= 16 << 10 && counted <= 16 << 10, "{counted} counted, {used} used");
    assert_eq!(trie.set(&[[32, 0, 0, 0], [11, 0, 0, 1]].concat(), &[0; 8]).unwrap_err().errno(), libc::ENOSPC);
    drop((array, large, trie));
    domain.drain().unwrap();
    assert_eq!(domain.memory().used(), 0);
}

/// Memory that maps allocate on demand is counted at that time, and refused beyond the limit; freed elements return
/// to the map.
#[test]
fn maps_that_grow_stop_at_the_limit() {
    for (def, each) in [
        (MapDef::new("h", MapType::Hash, 4, 1024, 100_000).flags(flags::NO_PREALLOC), 1032),
        (MapDef::new("p", MapType::PerCpuHash, 4, 128, 100_000).flags(flags::NO_PREALLOC), 1036),
        (MapDef::new("t", MapType::LpmTrie, 8, 1024, 100_000).flags(flags::NO_PREALLOC), 1052),
    ] {
        let domain = Domain::new(Options::new().max_slots(8));
        let account = domain.memory().account("plug-in", 16 << 20);
        let mut options = CreateOptions::default();
        options.account = Some(Arc::clone(&account));
        let map = Map::create_with(def, &domain, &options).unwrap();
        account.set_limit(account.used() + 256 * each).unwrap();
        let key = |n: u32| match map.map_type() {
            MapType::LpmTrie => [32, n.swap_bytes()].map(u32::to_ne_bytes).concat(),
            _ => n.to_ne_bytes().to_vec(),
        };
        let value = vec![7; map.host_value_size()];
        let (full, error) = (0..).find_map(|n| Some((n, map.set(&key(n), &value).err()?))).unwrap();
        assert_eq!(error.errno(), libc::ENOMEM, "{:?}", map.map_type());
        assert!((100..=256).contains(&full), "{:?}: {full} elements", map.map_type());
        assert!(account.used() <= account.limit() && account.used() == map.memory_counted());
        assert_eq!(account.used(), domain.memory().used());
        // Another map of this domain is not affected.
        Map::create(MapDef::new("other", MapType::Array, 4, 8, 1000), &domain).unwrap();
        map.delete(&key(0)).unwrap();
        domain.synchronize().unwrap();
        map.set(&key(0), &value).unwrap();
        assert_eq!(account.held().iter().map(|held| held.bytes).sum::<u64>(), account.used());
        drop(map);
        domain.drain().unwrap();
        assert_eq!(account.used(), 0);
    }
}

#[test]
fn an_account_of_another_domain_is_refused() {
    let (domain, other) = (Domain::new(Options::default()), Domain::new(Options::default()));
    let mut options = CreateOptions::default();
    options.account = Some(other.memory().account("other", 1 << 20));
    let made = Map::create_with(MapDef::new("m", MapType::Array, 4, 8, 1), &domain, &options);
    assert!(matches!(made, Err(MapError::OtherAccount { .. })));
    assert_eq!((domain.memory().used(), other.memory().used()), (0, 0));
}

/// An iteration ends at its first error: a loop over a ring that skips errors would otherwise not end.
#[test]
fn an_iteration_ends_with_its_first_error() {
    let page = u32::try_from(bpf_maps::page_size()).unwrap();
    let ring = create(MapDef::new("ring", MapType::RingBuf, 0, 0, page));
    assert_eq!(ring.iter().take(100).filter_map(Result::err).count(), 1);
    let unreadable = create(MapDef::new("h", MapType::Hash, 4, 4, 4).flags(flags::WRONLY));
    let typed: TypedHash<u32, u32> = unreadable.typed().unwrap();
    assert_eq!(typed.iter().take(100).filter_map(Result::err).count(), 1);
}
