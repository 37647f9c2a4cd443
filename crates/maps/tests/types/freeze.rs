//! Tests of frozen maps: which writes are still allowed, and what a successful freeze guarantees. (`kernel.rs`
//! compares the error numbers.)

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::domain;
use bpf_maps::{Map, MapDef, MapType, RingBuf, UserRingBuf, flags, open_perf_entry, program};

fn array(flags: u32) -> Map {
    Map::create(MapDef::new("a", MapType::Array, 4, 8, 2).flags(flags), &domain(4)).unwrap()
}

fn map_file(map: &Map, protection: i32) -> Result<*mut u64, i32> {
    let fd = map.mmap_fd().map_err(|error| error.errno())?.as_raw_fd();
    // SAFETY: a fresh mapping of the map's file, which the test leaves in place.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 16, protection, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(at.cast()) }
}

#[test]
fn programs_may_write_to_a_frozen_map_unless_it_is_read_only_to_them() {
    let map = array(0);
    map.freeze().unwrap();
    assert!(map.is_frozen() && !map.is_constant());
    let guard = map.domain().enter().unwrap();
    let (key, value) = (1u32, 5u64);
    // SAFETY: a live map under a guard with this slot; key and value of its sizes.
    let result =
        unsafe { program::update(map.as_ptr(), (&raw const key).cast(), (&raw const value).cast(), 0, guard.slot()) };
    assert_eq!(result, 0);
    assert_eq!(map.get(&key.to_ne_bytes()).unwrap(), Some(value.to_ne_bytes().to_vec()));
    let constant = array(flags::RDONLY_PROG);
    assert!(!constant.is_constant());
    constant.freeze().unwrap();
    assert!(constant.is_constant());
}

#[test]
fn locked_values_cannot_be_frozen() {
    for map_type in [MapType::Array, MapType::Hash] {
        let mut locked = MapDef::new("l", map_type, 4, 8, 2);
        locked.spin_lock = Some(0);
        let locked = Map::create(locked, &domain(1)).unwrap();
        assert_eq!(locked.freeze().unwrap_err().errno(), 524);
        assert!(!locked.is_frozen());
        locked.set(&[0; 4], &[0; 8]).unwrap();
    }
}

#[test]
fn a_hash_is_frozen_for_the_host_and_not_for_programs() {
    let map = Map::create(MapDef::new("h", MapType::Hash, 4, 8, 2), &domain(4)).unwrap();
    map.set(&[1; 4], &[1; 8]).unwrap();
    let guard = map.domain().enter().unwrap();
    assert_eq!(map.freeze().unwrap_err().errno(), libc::EBUSY, "it would wait for its own run");
    assert!(!map.is_frozen());
    drop(guard);
    map.freeze().unwrap();
    assert!(map.is_frozen() && !map.is_constant());
    for result in
        [map.set(&[1; 4], &[2; 8]), map.delete(&[1; 4]), map.lookup_and_delete(&[1; 4], &mut [0; 8], 0), map.freeze()]
    {
        assert_eq!(result.unwrap_err().errno(), libc::EPERM);
    }
    let guard = map.domain().enter().unwrap();
    let (key, value) = ([1u8; 4], [3u8; 8]);
    // SAFETY: a live map under a guard with this slot; key and value of its sizes.
    assert_eq!(unsafe { program::update(map.as_ptr(), key.as_ptr(), value.as_ptr(), 0, guard.slot()) }, 0);
    assert_eq!(map.get(&key).unwrap(), Some(value.to_vec()));
}

#[test]
fn entries_of_frozen_or_read_only_maps_of_maps_stay() {
    let domain = domain(4);
    let inner = Map::create(MapDef::new("i", MapType::Array, 4, 8, 1), &domain).unwrap();
    for (map_type, flags) in [MapType::ArrayOfMaps, MapType::HashOfMaps].into_iter().zip([flags::RDONLY, 0]) {
        let mut def = MapDef::new("o", map_type, 4, 4, 2).flags(flags);
        def.inner = Some(Box::new(inner.def().clone()));
        let outer = Map::create(def, &domain).unwrap();
        if flags == 0 {
            outer.set_inner(&[0; 4], &inner, 0).unwrap();
            outer.freeze().unwrap();
        }
        assert_eq!(outer.set_inner(&[0; 4], &inner, 0).unwrap_err().errno(), libc::EPERM, "{map_type:?}");
        assert_eq!(outer.delete(&[0; 4]).unwrap_err().errno(), libc::EPERM, "{map_type:?}");
        assert_eq!(outer.get_inner(&[0; 4]).unwrap().is_some(), flags == 0);
    }
}

#[test]
fn a_freeze_inside_ones_own_run_fails_no_write_of_others() {
    let map = Map::create(MapDef::new("h", MapType::Hash, 4, 8, 2), &domain(4)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut refused = 0;
            while !stop.load(Ordering::Relaxed) {
                refused += u32::from(map.set(&[0; 4], &[1; 8]).is_err());
            }
            refused
        });
        let guard = map.domain().enter().unwrap();
        for _ in 0..200_000 {
            assert_eq!(map.freeze().unwrap_err().errno(), libc::EBUSY);
        }
        drop(guard);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(writer.join().unwrap(), 0, "the map was never frozen");
    });
}

/// The host's end of a ring writes to it, as the kernel's mapping does.
#[test]
fn an_end_of_a_ring_and_a_freeze_exclude_each_other() {
    let create = |map_type, entries| Map::create(MapDef::new("r", map_type, 0, 0, entries), &domain(2)).unwrap();
    let ring = create(MapType::RingBuf, 1 << 16);
    let consumer = RingBuf::new(&ring).unwrap();
    assert_eq!(ring.freeze().unwrap_err().errno(), libc::EBUSY);
    drop(consumer);
    ring.freeze().unwrap();
    assert_eq!(RingBuf::new(&ring).unwrap_err().errno(), libc::EPERM);
    let user = create(MapType::UserRingBuf, 1 << 16);
    let producer = UserRingBuf::new(&user).unwrap();
    assert_eq!(UserRingBuf::new(&user).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(user.freeze().unwrap_err().errno(), libc::EBUSY);
    drop(producer);
    user.freeze().unwrap();
    assert_eq!(UserRingBuf::new(&user).unwrap_err().errno(), libc::EPERM);
}

#[test]
fn a_frozen_perf_event_array_opens_no_entries() {
    let map = Map::create(MapDef::new("p", MapType::PerfEventArray, 4, 4, 2), &domain(2)).unwrap();
    let consumer = open_perf_entry(&map, 0, 1 << 16).unwrap();
    map.freeze().unwrap();
    assert_eq!(open_perf_entry(&map, 1, 1 << 16).unwrap_err().errno(), libc::EPERM);
    assert_eq!(map.delete(&0u32.to_ne_bytes()).unwrap_err().errno(), libc::EPERM);
    assert_eq!(map.len(), 1);
    // Not a write by the host: in the kernel, closing the event's descriptor removes the entry.
    drop(consumer);
    assert_eq!(map.len(), 0);
}

#[test]
fn a_dump_is_not_restored_into_a_frozen_map() {
    let map = array(0);
    let dump = map.dump().unwrap();
    map.freeze().unwrap();
    assert_eq!(map.restore(&dump).unwrap_err().errno(), libc::EPERM);
    assert_eq!(map.dump().unwrap(), dump);
}

#[test]
fn a_mapping_for_writing_and_a_freeze_exclude_each_other() {
    let map = array(flags::MMAPABLE);
    map_file(&map, libc::PROT_READ | libc::PROT_WRITE).unwrap();
    assert_eq!(map.freeze().unwrap_err().errno(), libc::EBUSY);
    map.set(&[0; 4], &[1; 8]).unwrap();

    let map = array(flags::MMAPABLE);
    map.set(&[0; 4], &7u64.to_ne_bytes()).unwrap();
    map.freeze().unwrap();
    assert_eq!(map_file(&map, libc::PROT_READ | libc::PROT_WRITE), Err(libc::EPERM));
    let at = map_file(&map, libc::PROT_READ).unwrap();
    // SAFETY: the first element of the mapping.
    assert_eq!(unsafe { at.read_volatile() }, 7);
    // SAFETY: our own mapping, and no memory is passed but it.
    let writable = unsafe { libc::mprotect(at.cast(), 16, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(writable, -1, "not by a detour either");
}

#[test]
fn nothing_is_written_after_a_freeze_has_succeeded() {
    let hash = || Map::create(MapDef::new("h", MapType::Hash, 4, 8, 2), &domain(4)).unwrap();
    (0..200).for_each(|_| write_and_freeze(&array(0)));
    (0..200).for_each(|_| write_and_freeze(&hash()));
}

fn write_and_freeze(map: &Map) {
    map.set(&[0; 4], &[0; 8]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=2u64 {
            let stop = &stop;
            scope.spawn(move || {
                let mut n = thread;
                while !stop.load(Ordering::Relaxed) {
                    n += 2;
                    if let Err(error) = map.set(&[0; 4], &n.to_ne_bytes()) {
                        assert_eq!(error.errno(), libc::EPERM);
                        break;
                    }
                }
            });
        }
        while let Err(error) = map.freeze() {
            assert_eq!(error.errno(), libc::EBUSY);
            std::thread::yield_now();
        }
        let contents = map.get(&[0; 4]).unwrap();
        for _ in 0..100 {
            std::thread::yield_now();
            assert_eq!(map.get(&[0; 4]).unwrap(), contents);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Shrinks the file, grows it, punches a hole, and writes; returns the error of each.
fn attack(map: &Map) -> [Option<i32>; 4] {
    let file = std::fs::File::from(map.mmap_fd().unwrap().try_clone_to_owned().unwrap());
    let (fd, len) = (file.as_raw_fd(), file.metadata().unwrap().len());
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes integers only.
    let punched = unsafe { libc::fallocate(fd, punch, 0, len as libc::off_t) };
    let punched = if punched == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    let written = std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8], 0);
    let results = [file.set_len(0), file.set_len(2 * len), punched, written];
    assert_eq!(file.metadata().unwrap().len(), len);
    results.map(|result| result.err().map(|error| error.raw_os_error().unwrap()))
}

#[test]
fn a_memory_file_keeps_its_length_and_that_of_a_constant_its_bytes() {
    let refused = Some(libc::EPERM);
    let map = array(flags::MMAPABLE);
    assert_eq!(attack(&map), [refused, refused, None, None]);
    assert_eq!(map.get(&[0; 4]).unwrap(), Some(vec![1; 8]), "no run that follows faults");

    let constant = array(flags::MMAPABLE | flags::RDONLY_PROG);
    constant.set(&[0; 4], &[7; 8]).unwrap();
    constant.freeze().unwrap();
    assert_eq!(attack(&constant), [refused; 4]);
    assert_eq!(constant.get(&[0; 4]).unwrap(), Some(vec![7; 8]));
}
