//! Reset maps equal new ones ([`Map::reset`]).

use bpf_maps::{Arena, Map, MapDef, MapType, UserRingBuf, flags, implemented_types, page_size};
use bpf_quiesce::{Domain, Options};
use std::sync::atomic::{AtomicBool, Ordering};

fn definition(map_type: MapType) -> MapDef {
    let page = u32::try_from(page_size()).unwrap();
    let (key, value, entries) = match map_type {
        MapType::LpmTrie => (8, 8, 100),
        MapType::SkStorage | MapType::TaskStorage => (8, 8, 100),
        MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, 8, 100),
        MapType::RingBuf | MapType::UserRingBuf => (0, 0, page),
        MapType::Arena => (0, 0, 4),
        MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::XskMap => (4, 4, 100),
        MapType::InsnArray => (4, 16, 100),
        _other => (4, 8, 100),
    };
    let def = MapDef::new(map_type.name(), map_type, key, value, entries);
    let def = match map_type {
        MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage => def.flags(flags::NO_PREALLOC),
        MapType::Arena => def.flags(flags::MMAPABLE),
        _other => def,
    };
    if map_type.is_map_of_maps() { def.inner(MapDef::new("inner", MapType::Array, 4, 8, 1)) } else { def }
}

/// The number of elements, and the elements.
type Contents = (u64, Vec<(Vec<u8>, Vec<u8>)>);

/// All contents that the host can read.
fn contents(map: &Map) -> Contents {
    let mut elements: Vec<_> = map.iter().filter_map(Result::ok).collect();
    elements.sort();
    (map.len(), elements)
}

/// Puts elements into a map; `false` for types that the host cannot write to in this way.
fn fill(map: &Map, seed: u32) -> bool {
    let value = vec![seed as u8 + 1; map.host_value_size()];
    match map.map_type() {
        MapType::Queue | MapType::Stack | MapType::BloomFilter => map.push(&value, 0).unwrap(),
        MapType::LpmTrie => map.set(&[32u32.to_ne_bytes(), [seed as u8; 4]].concat(), &value).unwrap(),
        MapType::ArrayOfMaps | MapType::HashOfMaps => {
            let inner = Map::create(MapDef::new("inner", MapType::Array, 4, 8, 1), map.domain()).unwrap();
            map.set_inner(&seed.to_ne_bytes(), &inner, 0).unwrap();
        }
        MapType::Arena => {
            let arena = Arena::new(map).unwrap();
            let page = arena.alloc(1).unwrap().unwrap();
            arena.write(page, &[7]).unwrap();
        }
        MapType::Hash
        | MapType::PerCpuHash
        | MapType::LruHash
        | MapType::LruPerCpuHash
        | MapType::Array
        | MapType::PerCpuArray => map.set(&seed.to_ne_bytes(), &value).unwrap(),
        _other => return false,
    }
    true
}

#[test]
fn maps_of_every_type_are_as_they_were_made() {
    let mut filled = 0;
    for map_type in implemented_types() {
        let domain = Domain::new(Options::new().max_slots(3));
        let map = Map::create(definition(map_type), &domain).unwrap_or_else(|error| panic!("{map_type:?}: {error}"));
        let before = contents(&map);
        let value = vec![1; map.host_value_size()];
        for round in 0..3 {
            let wrote = (0..3).all(|seed| fill(&map, seed + round));
            if wrote && map_type == MapType::BloomFilter {
                assert!(map.peek(&mut [round as u8 + 1; 8]).unwrap());
            } else if wrote {
                assert_ne!(contents(&map), before, "{map_type:?}");
            }
            filled += u32::from(wrote);
            map.reset().unwrap_or_else(|error| panic!("{map_type:?}: {error}"));
            assert_eq!(contents(&map), before, "{map_type:?}");
            if map_type == MapType::BloomFilter {
                assert!(!map.peek(&mut value.clone()).unwrap());
            }
        }
        if map_type == MapType::Arena {
            let arena = Arena::new(&map).unwrap();
            let mut byte = [1];
            arena.read(arena.alloc(1).unwrap().unwrap(), &mut byte).unwrap();
            assert_eq!(byte, [0]);
        }
        domain.drain().unwrap();
    }
    assert!(filled >= 3 * 13, "{filled}");
}

/// A reset does not write locks in values, and does not change frozen maps.
#[test]
fn what_is_not_to_be_written_stays() {
    let domain = Domain::new(Options::new().max_slots(3));
    let mut locked = MapDef::new("locked", MapType::Array, 4, 16, 3);
    locked.spin_lock = Some(0);
    let map = Map::create(locked, &domain).unwrap();
    for index in 0..3u32 {
        map.update(&index.to_ne_bytes(), &[9; 16], 0).unwrap();
    }
    map.reset().unwrap();
    assert!(map.iter().all(|element| element.unwrap().1 == [0; 16]));

    let frozen = Map::create(MapDef::new("frozen", MapType::Array, 4, 8, 1), &domain).unwrap();
    frozen.update(&[0; 4], &[5; 8], 0).unwrap();
    frozen.freeze().unwrap();
    frozen.reset().unwrap();
    assert_eq!(frozen.get(&[0; 4]).unwrap().unwrap(), [5; 8]);
}

/// Concurrent inserts do not prevent a reset from ending.
#[test]
fn a_reset_ends_beside_writers() {
    for map_type in [MapType::Hash, MapType::LruHash, MapType::PerCpuHash, MapType::LpmTrie] {
        let domain = Domain::new(Options::new().max_slots(4));
        let map = Map::create(definition(map_type), &domain).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seeds in [0..50u32, 50..100] {
                let (map, done) = (&map, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        seeds.clone().for_each(|seed| assert!(fill(map, seed)));
                    }
                });
            }
            (0..100).for_each(|_| map.reset().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        map.reset().unwrap();
        assert_eq!(contents(&map), (0, Vec::new()), "{map_type:?}");
    }
}

/// More samples than a program drains at once.
#[test]
fn a_user_ring_is_empty_however_many_samples_it_had() {
    let domain = Domain::new(Options::new().max_slots(3));
    let map = Map::create(MapDef::new("samples", MapType::UserRingBuf, 0, 0, 4 << 20), &domain).unwrap();
    let mut host = UserRingBuf::new(&map).unwrap();
    let mut fill = || {
        let mut samples = 0;
        while let Some(sample) = host.reserve(1) {
            sample.submit();
            samples += 1;
        }
        samples
    };
    let room = fill();
    assert!(room > 128 * 1024, "{room}");
    map.reset().unwrap();
    assert_eq!(fill(), room);
}

/// A reset visits a table once, not once for each element, which would be 10^10 steps here.
#[test]
fn a_large_map_is_gone_through_once() {
    let domain = Domain::new(Options::new().max_slots(3));
    let entries = 1 << 17;
    let map = Map::create(MapDef::new("large", MapType::Hash, 4, 8, entries), &domain).unwrap();
    (0..entries).for_each(|key| map.set(&key.to_ne_bytes(), &[1; 8]).unwrap());
    assert_eq!(map.len(), u64::from(entries));
    map.reset().unwrap();
    assert_eq!(contents(&map), (0, Vec::new()));
}
