//! The entry points of programs: the functions that helpers call, with the kernel's return values.
//!
//! Every function takes the map pointer a program holds and the execution slot of its run. None allocates (except
//! `NO_PREALLOC` for batches it retires), none takes a lock that another program could hold for long, and all report
//! errors as negative numbers.
//!
//! # Safety
//! All of them share one contract: `map` is [`Map::as_ptr`](crate::Map::as_ptr) of a live map, the caller is inside a
//! run guard of its domain with the slot `slot`, and key and value pointers are valid for the map's sizes. The
//! runtime's verifier and linker establish it.

use std::sync::atomic::AtomicU32;

use crate::arena;
use crate::def::{MAX_STORAGE_VALUE, MapDef, MapType, update as update_flags};
use crate::errno::{Errno, ret};
use crate::header::MapHeader;
use crate::lock::{PATIENCE, ValueLock};
use crate::map::{Inner, Map, WeakMap};
use crate::num::index;
use crate::redirect::{DeviceHash, IndexMap, RedirectEntry};
use crate::ring::perf::PerfMap;
use crate::ring::{Ring, RingMap};
use crate::socket::with_key;
use crate::value::Source;
use bpf_uapi::MapTypes;

/// The definition of the map behind a program's map pointer. The linker of a program does not know its inner maps.
///
/// # Safety
/// `map` must be [`Map::as_ptr`](crate::Map::as_ptr) of a map that is alive for `'a`.
pub unsafe fn def<'a>(map: *const MapHeader) -> &'a MapDef {
    // SAFETY: a live map (contract).
    &unsafe { Inner::from_header(map) }.def
}

/// A reference to the map behind a program's map pointer that does not keep the map alive.
///
/// # Safety
/// `map` must be [`Map::as_ptr`](crate::Map::as_ptr) of a map that is alive.
pub unsafe fn weak(map: *const MapHeader) -> WeakMap {
    // SAFETY: made from a handle that is alive (contract).
    unsafe { Map::of_ptr(map) }.downgrade()
}

/// Writes the key of the value at this address: `false` if no key has its value there any more. `key` has the map's
/// key size.
///
/// # Safety
/// See the module; the map pointer is `map`'s own.
pub unsafe fn key_of_value(map: &Map, value: *const u8, key: &mut [u8], slot: u32) -> bool {
    // The key is a private copy, so the lookup below finds the value of exactly this key.
    // SAFETY: a live map, and a key of its size, of which `key_of` has written all bytes.
    map.key_of(value, key) && unsafe { lookup(map.as_ptr(), key.as_ptr(), slot) }.addr() == value.addr()
}

/// `bpf_map_lookup_elem`: the value or null. JITs call [`MapHeader::lookup`] directly.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn lookup(map: *const MapHeader, key: *const u8, slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let lookup = unsafe { (*map).lookup };
    // SAFETY: the map's own lookup has the contract of this module, which the caller keeps.
    unsafe { lookup(map, key, slot) }
}

/// `bpf_map_update_elem`. [`MapHeader::update`] is the map's own function.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn update(map: *const MapHeader, key: *const u8, value: *const u8, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live header (contract).
    let update = unsafe { (*map).update };
    // SAFETY: the map's own update has the contract of this module, which the caller keeps.
    unsafe { update(map, key, value, flags, slot) }
}

/// The update function of types without a specialised one.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn update_any(
    map: *const MapHeader,
    key: *const u8,
    value: *const u8,
    flags: u64,
    slot: u32,
) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: key and value are readable for the map's sizes, and `slot` is the caller's (contract).
    ret(unsafe { map.ops.program_update(key, value, flags, slot) })
}

/// `bpf_map_delete_elem`. [`MapHeader::delete`] is the map's own function.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn delete(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    // SAFETY: a live header (contract).
    let delete = unsafe { (*map).delete };
    // SAFETY: the map's own delete has the contract of this module, which the caller keeps.
    unsafe { delete(map, key, slot) }
}

/// The delete function of types without a specialised one.
///
/// # Safety
/// See the module.
pub(crate) unsafe extern "C" fn delete_any(map: *const MapHeader, key: *const u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: the key is readable for the key size, and `slot` is the caller's (contract).
    ret(unsafe { map.ops.program_delete(key, slot) })
}

/// `bpf_map_lookup_percpu_elem`: the value of slot `cpu` or null.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn lookup_percpu(map: *const MapHeader, key: *const u8, cpu: u32) -> *mut u8 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: the key is readable for the key size (contract).
    unsafe { map.ops.program_lookup_percpu(key, cpu) }
}

/// `bpf_map_push_elem`.
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn push(map: *const MapHeader, value: *const u8, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: the value is readable for the value size (contract).
    ret(unsafe { map.ops.push(Source::Program(value), flags, slot) })
}

/// `bpf_map_pop_elem`: copies the next value to `out` and removes it.
///
/// # Safety
/// See the module; `out` must be writable for the value size.
pub unsafe extern "C" fn pop(map: *const MapHeader, out: *mut u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: `out` is writable for the value size (contract).
    ret(unsafe { map.ops.next_value(out, true, slot) })
}

/// `bpf_map_peek_elem`: copies the next value to `out`; for a bloom filter, looks `out` up.
///
/// # Safety
/// See the module; `out` must be valid for reads and writes of the value size.
pub unsafe extern "C" fn peek(map: *const MapHeader, out: *mut u8, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    // SAFETY: `out` is readable and writable for the value size (contract).
    ret(unsafe { map.ops.next_value(out, false, slot) })
}

/// `bpf_for_each_map_elem`: calls `visit` with key and value of each element until it returns false. Returns the
/// number of elements visited, or a negative error number.
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

/// The ring behind a map pointer, if it has this direction. Decided by the header, which saves two indirect calls
/// against `Any`.
///
/// # Safety
/// `map` must be [`Map::as_ptr`](crate::Map::as_ptr) of a map that is alive for `'a`.
#[inline(always)]
unsafe fn ring<'a>(map: *const MapHeader, direction: MapType) -> Option<&'a Ring> {
    debug_assert!(matches!(direction, MapType::RingBuf | MapType::UserRingBuf));
    // SAFETY: a live header (contract).
    let header = unsafe { &*map };
    // SAFETY: the implementation of both types is a `RingMap`, which lives as long as the map.
    (header.map_type == direction as u32).then(|| unsafe { &*(*header.imp.cast::<RingMap>()).ring })
}

/// `bpf_ringbuf_output`: copies `size` bytes of `data` into a record.
///
/// # Safety
/// See the module; `data` must be readable for `size` bytes.
pub unsafe extern "C" fn ringbuf_output(
    map: *const MapHeader,
    data: *const u8,
    size: u64,
    flags: u64,
    slot: u32,
) -> i64 {
    // SAFETY: a live map (contract).
    let Some(ring) = (unsafe { ring(map, MapType::RingBuf) }) else { return Errno::EINVAL.as_ret() };
    // SAFETY: `data` is readable for `size` bytes, and the caller is inside a guard of the domain (contract).
    ret(unsafe { ring.output(index(size), core::iter::once((data, index(size))), flags, slot) })
}

/// `bpf_ringbuf_reserve`: returns `size` writable bytes, or null. They must be given to [`ringbuf_submit`] or
/// [`ringbuf_discard`].
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn ringbuf_reserve(map: *const MapHeader, size: u64, flags: u64, slot: u32) -> *mut u8 {
    // SAFETY: a live map (contract).
    match unsafe { ring(map, MapType::RingBuf) } {
        Some(ring) if flags == 0 => ring.reserve(size, slot).map_or(std::ptr::null_mut(), |header| header.data()),
        _ => std::ptr::null_mut(),
    }
}

/// `bpf_ringbuf_submit`: makes a reserved record visible.
///
/// # Safety
/// `sample` must come from [`ringbuf_reserve`] of a live map and be given back once.
pub unsafe extern "C" fn ringbuf_submit(sample: *mut u8, flags: u64) {
    // SAFETY: the sample is a reserved record, given back once (contract).
    unsafe { Ring::commit(sample, flags, false) };
}

/// `bpf_ringbuf_discard`: gives up a reserved record.
///
/// # Safety
/// As [`ringbuf_submit`].
pub unsafe extern "C" fn ringbuf_discard(sample: *mut u8, flags: u64) {
    // SAFETY: the sample is a reserved record, given back once (contract).
    unsafe { Ring::commit(sample, flags, true) };
}

/// `bpf_ringbuf_query`; see [`crate::query`].
///
/// # Safety
/// See the module.
pub unsafe extern "C" fn ringbuf_query(map: *const MapHeader, what: u64) -> u64 {
    // SAFETY: a live map (contract).
    unsafe { ring(map, MapType::RingBuf) }.map_or(0, |ring| ring.query(what))
}

/// `bpf_user_ringbuf_drain`: calls `visit` with data and length of each record until it returns false. Returns the
/// number of records, or a negative error number. A record may only be used during the call.
///
/// # Safety
/// See the module.
pub unsafe fn user_ringbuf_drain(
    map: *const MapHeader,
    flags: u64,
    visit: &mut dyn FnMut(*mut u8, u32) -> bool,
) -> i64 {
    // SAFETY: a live map (contract).
    let Some(ring) = (unsafe { ring(map, MapType::UserRingBuf) }) else { return Errno::EINVAL.as_ret() };
    match ring.drain(flags, visit) {
        Ok(visited) => visited as i64,
        Err(errno) => errno.as_ret(),
    }
}

/// `bpf_perf_event_output`: writes `data`, then as many bytes of the context as the flags ask for, at most
/// `context_size`. `context(n)` iterates over the pieces of memory that hold the first `n` bytes of the context.
///
/// # Safety
/// See the module; `data` and the pieces must be readable for their sizes.
pub unsafe fn perf_event_output<C: Iterator<Item = (*mut u8, usize)>>(
    map: *const MapHeader,
    flags: u64,
    (data, size): (*const u8, u64),
    context: impl FnOnce(usize) -> C,
    context_size: usize,
    slot: u32,
) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    let Some(map) = map.ops.as_any().downcast_ref::<PerfMap>() else { return Errno::EINVAL.as_ret() };
    // SAFETY: `data` and the pieces are readable for their sizes; the caller is inside a guard (contract).
    ret(unsafe { map.output(flags, (data, index(size)), context, context_size, slot) })
}

/// `bpf_map_sum_elem_count`: number of elements of a hash; 0 for other types, whose elements the kernel does not
/// count.
///
/// # Safety
/// See the module.
pub unsafe fn elem_count(map: *const MapHeader) -> u64 {
    const HASHES: MapTypes = MapTypes::of(&[
        MapType::Hash,
        MapType::PerCpuHash,
        MapType::LruHash,
        MapType::LruPerCpuHash,
        MapType::HashOfMaps,
    ]);
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    if HASHES.contains(map.def.map_type) { map.ops.len() } else { 0 }
}

/// The type and number ([`Map::id`](crate::Map::id)) of a redirect map; `None` for maps of other types.
///
/// # Safety
/// See the module.
pub unsafe fn redirect_map(map: *const MapHeader) -> Option<(MapType, u32)> {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    MapTypes::REDIRECT.contains(map.def.map_type).then_some((map.def.map_type, map.id))
}

/// The entry of a redirect map at `key`, for `bpf_redirect_map`; `None` if it is absent, and for maps of other types.
///
/// # Safety
/// See the module.
pub unsafe fn redirect_entry(map: *const MapHeader, key: u32) -> Option<RedirectEntry> {
    // SAFETY: a live map (contract).
    let ops = unsafe { Inner::from_header(map) }.ops.as_any();
    let by_index = ops.downcast_ref::<IndexMap>().and_then(|map| map.entry(key));
    by_index.or_else(|| ops.downcast_ref::<DeviceHash>()?.entry(key))
}

/// The number of the socket at this key in a map of sockets (`SOCKMAP`, `SOCKHASH`). `None` if there is none, and for
/// maps of other types.
///
/// # Safety
/// See the module.
pub unsafe fn socket(map: *const MapHeader, key: *const u8, slot: u32) -> Option<u64> {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    if !MapTypes::SOCKETS.contains(map.def.map_type) {
        return None;
    }
    // SAFETY: readable for the key size (contract).
    unsafe { with_key(key, index(map.def.key_size.into()), |key| map.ops.socket(key, slot)) }?.ok()
}

/// `bpf_sock_map_update`, `bpf_sock_hash_update`: stores the number of a socket at a key.
///
/// # Safety
/// See the module.
pub unsafe fn set_socket(map: *const MapHeader, key: *const u8, number: u64, flags: u64, slot: u32) -> i64 {
    // SAFETY: a live map (contract).
    let map = unsafe { Inner::from_header(map) };
    let size = index(map.def.key_size.into());
    // SAFETY: readable for the key size (contract).
    let set = unsafe { with_key(key, size, |key| map.ops.set_socket(key, number, flags, slot)) };
    ret(set.unwrap_or(Err(Errno::EINVAL)))
}

/// `bpf_sk_storage_get`, `bpf_task_storage_get`: the value of the socket with this cookie, or of the thread with this
/// number, or null. With `create`, a missing value is created as a copy of `initial`, or as zeros where that is null.
/// Null then means that there is no room, or that another thread removed the value at once.
///
/// # Safety
/// See the module; `initial` must be null or readable for the value size.
pub unsafe fn storage(map: *const MapHeader, cookie: u64, initial: *const u8, create: bool, slot: u32) -> *mut u8 {
    static ZEROS: [u64; (MAX_STORAGE_VALUE as usize).div_ceil(8)] = [0; (MAX_STORAGE_VALUE as usize).div_ceil(8)];
    // SAFETY: a live map (contract).
    if !MapTypes::STORAGE.contains(unsafe { def(map) }.map_type) {
        return std::ptr::null_mut();
    }
    let key = (&raw const cookie).cast();
    // SAFETY: a live map (contract), whose keys are cookies.
    let found = unsafe { lookup(map, key, slot) };
    if !found.is_null() || !create {
        return found;
    }
    let initial = if initial.is_null() { ZEROS.as_ptr().cast() } else { initial };
    // The lookup finds the value whether this call or another thread created it. SAFETY: a live map and a key of its
    // size (contract); `initial` has the value size (contract), or is zeros of the longest value that a definition may
    // have.
    unsafe { update(map, key, initial, update_flags::NOEXIST, slot) };
    // SAFETY: a live map and a key of its size (contract).
    unsafe { lookup(map, key, slot) }
}

/// `bpf_arena_alloc_pages`: allocates consecutive pages, which are zero, at `address` unless that is 0. Returns their
/// user address; 0 if there is no room. `node` is -1 or 0.
///
/// # Safety
/// See the module.
pub unsafe fn arena_alloc(map: *const MapHeader, address: u64, pages: u32, node: i32, flags: u64) -> u64 {
    // SAFETY: a live map (contract).
    arena::calls::alloc(unsafe { Inner::from_header(map) }, address, pages, node, flags)
}

/// `bpf_arena_free_pages`: frees those of `pages` pages at this address that are in use.
///
/// # Safety
/// See the module.
pub unsafe fn arena_free(map: *const MapHeader, address: u64, pages: u32) {
    // SAFETY: a live map (contract).
    arena::calls::free(unsafe { Inner::from_header(map) }, address, pages);
}

/// `bpf_arena_reserve_pages`: excludes these pages from allocation until they are freed. Returns 0; `-EBUSY` if some
/// are in use, `-EINVAL` if the arena has no such pages.
///
/// # Safety
/// See the module.
pub unsafe fn arena_reserve(map: *const MapHeader, address: u64, pages: u32) -> i64 {
    // SAFETY: a live map (contract).
    arena::calls::reserve(unsafe { Inner::from_header(map) }, address, pages)
}

/// `bpf_spin_lock`: 0, or `-EDEADLK` if this slot holds the lock already (a signal handler's program met its own
/// thread's lock): the run must then end.
///
/// # Safety
/// `lock` must point to an aligned `struct bpf_spin_lock` in a map value that stays mapped; `slot` must be the
/// caller's.
pub unsafe extern "C" fn spin_lock(lock: *mut u32, slot: u32) -> i64 {
    // SAFETY: aligned and mapped (contract), and only accessed atomically by this crate.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if ValueLock::new(word).lock(slot) { 0 } else { Errno::EDEADLK.as_ret() }
}

/// `bpf_res_spin_lock`: 0, `-EDEADLK` if this slot holds the lock already, `-ETIMEDOUT` if it was not released for a
/// quarter of a second, or the error of `waits`, which is called repeatedly with the slot that holds the lock.
///
/// # Safety
/// As [`spin_lock`], of a `struct bpf_res_spin_lock`.
pub unsafe fn res_spin_lock(lock: *mut u32, slot: u32, mut waits: impl FnMut(u32) -> Result<(), Errno>) -> i64 {
    // SAFETY: aligned and mapped (contract), and only accessed atomically by this crate.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    match ValueLock::new(word).lock_within(slot, PATIENCE, &mut waits) {
        Ok(()) => 0,
        Err(errno) => errno.as_ret(),
    }
}

/// `bpf_spin_unlock`, `bpf_res_spin_unlock`: 0, or `-EPERM` if this slot does not hold the lock.
///
/// # Safety
/// As [`spin_lock`].
pub unsafe extern "C" fn spin_unlock(lock: *mut u32, slot: u32) -> i64 {
    // SAFETY: aligned and mapped (contract), and only accessed atomically by this crate.
    let word = unsafe { AtomicU32::from_ptr(lock) };
    if ValueLock::new(word).unlock(slot) { 0 } else { Errno::EPERM.as_ret() }
}
