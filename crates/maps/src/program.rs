//! The program's side: what helpers call, with the kernel's return values.
//!
//! Every function takes the map pointer a program holds and the execution slot of its run. None allocates (except `NO_PREALLOC`
//! for batches it retires), none takes a lock that another program could hold for long, and all report errors as
//! negative numbers.
//!
//! # Safety
//! All of them share one contract: `map` is [`Map::as_ptr`](crate::Map::as_ptr) of a live map, the caller is inside a run guard of its domain
//! with the slot `slot`, and key and value pointers are valid for the map's sizes. The runtime's verifier and linker
//! establish it.

use std::sync::atomic::AtomicU32;

use crate::errno::{Errno, ret};
use crate::header::MapHeader;
use crate::lock::ValueLock;
use crate::map::Inner;
use crate::value::Source;

/// `bpf_map_lookup_elem`: the value or null. JITs call [`MapHeader::lookup`] directly.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn lookup(map: *const MapHeader, key: *const u8, slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let lookup = unsafe { (*map).lookup };
    // SAFETY: passed on.
    unsafe { lookup(map, key, slot) }
}

/// `bpf_map_update_elem`.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn update(map: *const MapHeader, key: *const u8, value: *const u8, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    ret(unsafe { map.ops.program_update(key, value, flags, slot) })
}

/// `bpf_map_delete_elem`.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn delete(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    ret(unsafe { map.ops.program_delete(key, slot) })
}

/// `bpf_map_lookup_percpu_elem`: the value of slot `cpu` or null.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn lookup_percpu(map: *const MapHeader, key: *const u8, cpu: u32) -> *mut u8 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    unsafe { map.ops.program_lookup_percpu(key, cpu) }
}

/// `bpf_map_push_elem`.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn push(map: *const MapHeader, value: *const u8, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    ret(unsafe { map.ops.push(Source::Program(value), flags, slot) })
}

/// `bpf_map_pop_elem`: copies the next value to `out` and removes it.
///
/// # Safety
/// See the module; `out` must be writable for the value size.
pub unsafe extern "C" fn pop(map: *const MapHeader, out: *mut u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    ret(unsafe { map.ops.next_value(out, true, slot) })
}

/// `bpf_map_peek_elem`: copies the next value to `out`; for a bloom filter, looks `out` up.
///
/// # Safety
/// See the module; `out` must be valid for reads and writes of the value size.
pub unsafe extern "C" fn peek(map: *const MapHeader, out: *mut u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: passed on.
    ret(unsafe { map.ops.next_value(out, false, slot) })
}

/// `bpf_for_each_map_elem`: calls `visit` with key and value of each element until it returns false; the number of elements
/// visited, or a negative error number.
///
/// # Safety
/// See the module.
pub unsafe fn for_each(
    map: *const MapHeader,
    flags: u64,
    slot: u32,
    visit: &mut dyn FnMut(*const u8, *mut u8) -> bool,
) -> i64 {
    if flags != 0 {
        return Errno::EINVAL.as_ret();
    }
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    match map.ops.for_each(visit, slot) {
        Ok(visited) => i64::try_from(visited).unwrap_or(i64::MAX),
        Err(errno) => errno.as_ret(),
    }
}

/// `bpf_spin_lock`: 0, or `-EDEADLK` if this slot holds the lock already (a signal handler's program met its own thread's lock):
/// the run must end then.
///
/// # Safety
/// `lock` must point to an aligned `struct bpf_spin_lock` in a map value that stays mapped; `slot` must be the caller's.
pub unsafe extern "C" fn spin_lock(lock: *mut u32, slot: u32) -> i64 {
    // SAFETY: aligned and mapped (contract), and only accessed atomically by this crate.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if ValueLock::new(word).lock(slot) { 0 } else { Errno::EDEADLK.as_ret() }
}

/// `bpf_spin_unlock`: 0, or `-EPERM` if this slot does not hold the lock.
///
/// # Safety
/// As [`spin_lock`].
pub unsafe extern "C" fn spin_unlock(lock: *mut u32, slot: u32) -> i64 {
    // SAFETY: as in `spin_lock`.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if ValueLock::new(word).unlock(slot) { 0 } else { Errno::EPERM.as_ret() }
}
