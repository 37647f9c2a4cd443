//! Tests that missing memory is an error of the map and does not end the process: with many execution slots, for
//! copies of large values, and for whole maps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bpf_maps::typed::{TypedPerCpuArray, TypedPerCpuHash};
use bpf_maps::{CreateOptions, Map, MapDef, MapError, MapType, flags};
use bpf_quiesce::{Domain, Options};

/// An allocator that fails allocations above the thread's limit.
struct Failing;

thread_local!(static LARGEST: Cell<usize> = const { Cell::new(usize::MAX) });

fn fits(layout: Layout) -> bool {
    // A thread that is ending has no limit.
    layout.size() <= LARGEST.try_with(Cell::get).unwrap_or(usize::MAX)
}

// SAFETY: every call goes to the system allocator unchanged, or fails.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system allocator's.
        if fits(layout) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system allocator's.
        if fits(layout) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn limited<R>(largest: usize, f: impl FnOnce() -> R) -> R {
    LARGEST.set(largest);
    let result = f();
    LARGEST.set(usize::MAX);
    result
}

fn is_no_memory(error: &MapError) -> bool {
    matches!(error, MapError::System { errno, .. } if errno.0 == libc::ENOMEM)
}

#[test]
fn state_for_many_slots_that_cannot_be_had_is_an_error() {
    let domain = Domain::new(Options::new().max_slots(1 << 16));
    let mut refused = 0;
    // Tries have no batch operations.
    for map_type in [MapType::Hash, MapType::PerCpuHash, MapType::LruHash, MapType::LruPerCpuHash] {
        for flag in [0, flags::NO_PREALLOC, flags::NO_COMMON_LRU] {
            let def = MapDef::new("m", map_type, 8, 8, 16).flags(flag);
            if def.validate().is_err() {
                continue;
            }
            let mut options = CreateOptions::default();
            options.memory_limit = u64::MAX;
            let create = || Map::create_with(def.clone(), &domain, &options).map(drop);
            let error = limited(64 << 10, create).unwrap_err();
            assert!(is_no_memory(&error), "{map_type:?}: {error:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 8);
}

#[test]
fn copies_that_cannot_be_had_are_errors() {
    let domain = Domain::new(Options::new().max_slots(64));
    let create =
        |map_type, value, entries| Map::create(MapDef::new("m", map_type, 4, value, entries), &domain).unwrap();
    let large = create(MapType::Array, 1 << 20, 1);
    let per_cpu = create(MapType::PerCpuArray, 16 << 10, 1);
    let per_cpu_hash = create(MapType::PerCpuHash, 16 << 10, 1);
    per_cpu_hash.set(&[0; 4], &vec![1; per_cpu_hash.host_value_size()]).unwrap();
    let many = create(MapType::Array, 8, 10_000);
    limited(64 << 10, || {
        assert!(is_no_memory(&large.get(&[0; 4]).unwrap_err()));
        assert!(is_no_memory(&large.iter().next().unwrap().unwrap_err()));
        assert!(is_no_memory(&large.dump().unwrap_err()));
        assert!(is_no_memory(&many.dump().unwrap_err()), "the list of its elements");
        let typed = per_cpu.typed::<TypedPerCpuArray<[u8; 16 << 10]>>().unwrap();
        assert!(is_no_memory(&typed.get(0).unwrap_err()));
        let typed = per_cpu_hash.typed::<TypedPerCpuHash<u32, [u8; 16 << 10]>>().unwrap();
        assert!(is_no_memory(&typed.get(&0).unwrap_err()));
        assert!(is_no_memory(&typed.iter().next().unwrap().unwrap_err()));
    });
    assert_eq!(many.dump().unwrap().elements.len(), 10_000);
}
