//! Tests of hostile dumps: whatever numbers a dump claims, reading it ends and takes little more memory than it has
//! bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf_maps::{Dump, MapError, MapType};

/// An allocator that refuses allocations beyond the limit.
struct Limited;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
const LIMIT: usize = 16 << 20;

impl Limited {
    /// Whether `size` more bytes may be allocated.
    fn take(size: usize) -> bool {
        // Relaxed: statistics, which order nothing.
        let fits = IN_USE.fetch_add(size, Ordering::Relaxed) + size <= LIMIT;
        if !fits {
            IN_USE.fetch_sub(size, Ordering::Relaxed);
        }
        fits
    }
}

// SAFETY: every call goes to the system allocator unchanged, or fails.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system allocator's.
        if Limited::take(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system allocator's.
        if Limited::take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// The head of a dump: type, key, value and host value size, entries, flags; then the number of elements, and a name
/// of `name` bytes.
fn head(numbers: [u32; 6], elements: u64, name: u32) -> Vec<u8> {
    let mut bytes = b"BPFMAP\0\x01".to_vec();
    for n in numbers.into_iter().chain([u32::MAX, 0]) {
        bytes.extend(n.to_le_bytes());
    }
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(elements.to_le_bytes());
    bytes.extend(name.to_le_bytes());
    bytes
}

#[test]
fn numbers_in_a_dump_allocate_nothing() {
    const NO_PREALLOC: u32 = 1;
    let shapes: [[u32; 3]; 6] = [
        [0, 0, 0],
        [4, 4, 4],
        [4, 1, 1],
        [4, i32::MAX as u32, i32::MAX as u32],
        [260, 3 << 20, 3 << 20],
        [0, 3 << 20, 3 << 20],
    ];
    let mut read = 0;
    for number in 0..40 {
        for [key, value, host] in shapes {
            for entries in [1, 4096, u32::MAX] {
                for flags in [0, NO_PREALLOC] {
                    for elements in [1, u64::from(u32::MAX), u64::MAX] {
                        let dump = head([number, key, value, host, entries, flags], elements, 0);
                        // Without further bytes, and with some.
                        for rest in [0, 100] {
                            let bytes: Vec<u8> = dump.iter().copied().chain(std::iter::repeat_n(0, rest)).collect();
                            let error = Dump::read(bytes.as_slice()).unwrap_err();
                            read += u32::from(error == MapError::BadDump("it ends too early".into()));
                        }
                    }
                }
            }
        }
    }
    // The shapes are such that reading gets as far as the elements.
    assert!(read > 100, "{read}");
    // A per-CPU value with the largest number of slots.
    let per_cpu = head([MapType::PerCpuArray as u32, 4, 32 << 10, (32 << 10) * 65536 - 65536, 1, 0], u64::MAX, 0);
    assert!(Dump::read(per_cpu.as_slice()).is_err());
    assert!(Dump::read(head([2, 4, 8, 8, 1, 0], 0, u32::MAX).as_slice()).is_err());
}

#[test]
fn names_with_control_characters_are_refused() {
    let mut bytes = head([2, 4, 8, 8, 1, 0], 0, 3);
    bytes.extend(b"a\x1bb");
    let error = Dump::read(bytes.as_slice()).unwrap_err().to_string();
    assert!(error.contains("control characters"), "{error}");
}
