//! Tests in which every system call that creates a map fails once, at each place where it is made: the error is
//! typed, nothing is left behind, and a repeated call succeeds.

use std::sync::{Arc, Mutex, PoisonError};

use bpf_os::Call;
use bpf_os::inject::{self, failing, mapped_bytes};
use bpf_quiesce::{Domain, Options};

use crate::def::{Family, flags, implemented_types};
use crate::{CreateOptions, Map, MapDef, MapError, MapType, RingBuf, open_perf_entry};

/// Held by each test, because they count descriptors of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const CALLS: [Call; 7] =
    [Call::Mmap, Call::Madvise, Call::Mprotect, Call::Memfd, Call::Ftruncate, Call::Seal, Call::Eventfd];

/// A map of each type, large enough that huge pages are requested where that is cheap, and each flag that decides
/// what is allocated.
fn definitions() -> Vec<MapDef> {
    let mut definitions: Vec<MapDef> = implemented_types().map(definition).collect();
    let with = |map_type, flags| definition(map_type).flags(flags);
    definitions.extend([
        with(MapType::Array, flags::MMAPABLE),
        with(MapType::Hash, flags::NO_PREALLOC),
        with(MapType::PerCpuHash, flags::NO_PREALLOC),
        with(MapType::LruHash, flags::NO_COMMON_LRU),
        with(MapType::LruPerCpuHash, flags::NO_COMMON_LRU),
        with(MapType::HashOfMaps, flags::NO_PREALLOC),
    ]);
    definitions
}

fn definition(map_type: MapType) -> MapDef {
    let (key, value, entries) = match map_type {
        MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage => (8, 8, 100_000),
        MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, 8, 1 << 20),
        MapType::RingBuf | MapType::UserRingBuf => (0, 0, 1 << 20),
        MapType::Arena => (0, 0, 1 << 10),
        MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::XskMap => (4, 4, 1 << 20),
        MapType::CpuMap => (4, 8, 8192),
        MapType::InsnArray => (4, 16, 1 << 20),
        _other => (4, 8, 1 << 20),
    };
    let def = MapDef::new(map_type.name(), map_type, key, value, entries);
    let on_demand = matches!(map_type, MapType::LpmTrie | MapType::SkStorage | MapType::TaskStorage);
    let def = if on_demand { def.flags(flags::NO_PREALLOC) } else { def };
    let def = if map_type == MapType::Arena { def.flags(flags::MMAPABLE) } else { def };
    if map_type.is_map_of_maps() { def.inner(MapDef::new("inner", MapType::Array, 4, 8, 1)) } else { def }
}

/// Number of open descriptors that maps can have made. (No other test of this crate's library makes any.)
fn descriptors() -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let ours = |link: &std::path::PathBuf| {
        let link = link.to_string_lossy();
        link.contains("bpf-map") || link.contains("eventfd")
    };
    links.filter(ours).count()
}

/// The state that a failed operation must restore: mapped bytes, descriptors, references to the domain.
fn state(domain: &Arc<Domain>) -> (usize, usize, usize) {
    (mapped_bytes(), descriptors(), Arc::strong_count(domain))
}

#[test]
fn a_failing_call_leaves_no_half_of_a_map() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = Domain::new(Options::new().max_slots(3));
    let before = state(&domain);
    let mut reached = CALLS.map(|call| (call, 0));
    for def in definitions() {
        for (call, places) in &mut reached {
            for nth in 0.. {
                let (result, was_reached) = failing(*call, nth, || Map::create(def.clone(), &domain));
                if !was_reached {
                    break;
                }
                *places += 1;
                match result {
                    // Without huge pages the map is still created.
                    Ok(map) => {
                        assert_eq!(*call, Call::Madvise, "{def:?}");
                        drop(map);
                    }
                    Err(MapError::System { map, errno, .. }) => {
                        assert_eq!((map.as_str(), errno.0), (def.name.as_str(), inject::ERRNO), "{call:?} {nth}");
                    }
                    Err(other) => panic!("{call:?} {nth} of {def:?}: {other:?}"),
                }
                assert_eq!(state(&domain), before, "{call:?} {nth} of {def:?}");
            }
        }
        let map = Map::create(def.clone(), &domain).unwrap();
        assert!(mapped_bytes() > 0, "{def:?}: its memory is counted");
        if def.value_size > 0 && !matches!(def.map_type, MapType::PerfEventArray) && !def.map_type.is_map_of_maps() {
            let (key, mut value) = (vec![1; def.key_size as usize], vec![0; map.host_value_size()]);
            value[0] = 1;
            let key = if def.map_type == MapType::LpmTrie { [32u32.to_ne_bytes(), [1; 4]].concat() } else { key };
            let by_index = matches!(Family::of(def.map_type), Ok(Family::Array | Family::Redirect | Family::InsnArray));
            let key = if by_index { 1u32.to_ne_bytes().to_vec() } else { key };
            map.set(&key, &value).unwrap();
        }
        drop(map);
        assert_eq!(state(&domain), before, "{def:?}");
    }
    for (call, places) in reached {
        println!("{call:?}: failed at {places} places");
        assert!(places > 0, "{call:?} is part of making some map");
    }
    perf_entries(&domain);
    lent_arrays(&domain);
}

/// The rings of perf event arrays are made when they are opened.
fn perf_entries(domain: &Arc<Domain>) {
    let map = Map::create(definition(MapType::PerfEventArray), domain).unwrap();
    let before = state(domain);
    for call in CALLS {
        for nth in 0.. {
            let (result, reached) = failing(call, nth, || open_perf_entry(&map, 0, 1 << 16));
            if !reached {
                // The consumer is dropped, and its ring a grace period later.
                drop(result);
                domain.drain().unwrap();
                break;
            }
            match result {
                // If the advice fails, a forked child shares the pages, which it must not use anyway.
                Ok(consumer) => {
                    assert_eq!(call, Call::Madvise);
                    drop(consumer);
                    domain.drain().unwrap();
                }
                Err(MapError::Op { errno, .. }) => assert_eq!(errno.0, inject::ERRNO, "{call:?} {nth}"),
                Err(other) => panic!("{call:?} {nth}: {other:?}"),
            }
            assert_eq!((state(domain), map.len()), (before, 0), "{call:?} {nth}");
        }
    }
    let consumer: RingBuf = open_perf_entry(&map, 0, 1 << 16).unwrap();
    assert_eq!(map.len(), 1);
    drop(consumer);
    domain.drain().unwrap();
    assert_eq!(state(domain), before);
}

/// An array is frozen even if its file could not be sealed: the file is not given out before it is sealed.
fn lent_arrays(domain: &Arc<Domain>) {
    let map = Map::create(definition(MapType::Array).flags(flags::MMAPABLE), domain).unwrap();
    let (frozen, reached) = failing(Call::Seal, 0, || map.freeze());
    assert!(reached);
    frozen.unwrap();
    let (result, reached) = failing(Call::Seal, 0, || map.mmap_fd().map(|_| ()));
    assert!(reached);
    assert_eq!(result.unwrap_err().errno(), inject::ERRNO);
    map.mmap_fd().unwrap();
}

#[test]
fn a_wait_that_fails_is_an_error_and_the_next_one_is_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = Domain::new(Options::new().max_slots(3));
    let map = Map::create(definition(MapType::RingBuf), &domain).unwrap();
    let mut ring = RingBuf::new(&map).unwrap();
    let (waited, reached) = failing(Call::Poll, 0, || ring.poll(Some(std::time::Duration::ZERO)));
    assert!(reached);
    assert_eq!(waited.unwrap_err().raw_os_error(), Some(inject::ERRNO));
    assert!(!ring.poll(Some(std::time::Duration::ZERO)).unwrap());
}

/// Definitions that need more than the limit are refused before anything is mapped.
#[test]
fn what_is_beyond_the_limit_is_refused_before_it_is_mapped() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = Domain::new(Options::new().max_slots(3));
    for def in definitions() {
        let map = Map::create(def.clone(), &domain).unwrap();
        let (mapped, used) = (mapped_bytes() as u64, map.memory_usage());
        drop(map);
        let create = |memory_limit| {
            // Fails the test if a system call is made.
            let options = CreateOptions { memory_limit, ..CreateOptions::default() };
            failing(Call::Mmap, 0, || Map::create_with(def.clone(), &domain, &options))
        };
        let (result, reached) = create(1 << 16);
        let Err(MapError::MemoryLimit { needed, limit, .. }) = result else { panic!("{def:?}: {result:?}") };
        assert!(!reached && limit == 1 << 16, "{def:?}");
        // The bytes asked for are the bytes mapped, up to rounding to pages (a ring maps its data twice).
        assert!(
            needed <= mapped + (1 << 16) && mapped <= 2 * needed + (1 << 20),
            "{def:?}: {needed} asked, {mapped} mapped"
        );
        // The counted bytes also equal the usage that the map reports, except memory that is allocated on demand.
        let on_demand = def.flags & flags::NO_PREALLOC != 0;
        assert!(used <= mapped + (1 << 16) && (on_demand || used + (1 << 16) >= needed), "{def:?}: {used} of {needed}");
        assert!(create(needed - 1).0.is_err_and(|error| matches!(error, MapError::MemoryLimit { .. })), "{def:?}");
        let options = CreateOptions { memory_limit: needed, ..CreateOptions::default() };
        Map::create_with(def.clone(), &domain, &options).unwrap();
    }
}

/// This includes files that are never given out: `/proc/self/fd` leads to all of them.
#[test]
fn every_memory_file_keeps_its_length() {
    use std::os::fd::AsRawFd;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = Domain::new(Options::new().max_slots(3));
    let maps: Vec<Map> = definitions().into_iter().map(|def| Map::create(def, &domain).unwrap()).collect();
    let perf = maps.iter().find(|map| map.map_type() == MapType::PerfEventArray).unwrap();
    let _entry = open_perf_entry(perf, 0, 1 << 16).unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if !std::fs::read_link(&path).is_ok_and(|link| link.to_string_lossy().contains("bpf-map")) {
            continue;
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let before = file.metadata().unwrap().len();
        assert!(before > 0);
        for len in [0, before - 1, before + 1] {
            assert_eq!(file.set_len(len).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        // SAFETY: takes integers only.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        assert_eq!(seals & wanted, wanted);
        files += 1;
    }
    assert_eq!(files, 4, "two rings, the ring of a perf event array, an array");
}
