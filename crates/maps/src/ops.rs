//! The interface that every map type implements: raw pointers for programs, slices for the host.
//!
//! The default methods return the kernel's error for a type that lacks the operation, so an implementation lists
//! exactly what it supports. The caller (the handle, the entry points) has checked sizes and access rights and holds
//! a run guard whose slot it passes. An implementation must not keep anything that depends on the guard beyond the
//! call.

use std::any::Any;

use crate::errno::{Errno, OpResult};
use crate::header::{DeleteFn, LookupFn, UpdateFn};
use crate::value::Source;

/// The callback of [`MapOps::for_each`]: key and value of an element; returns whether to continue.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(*const u8, *mut u8) -> bool;

/// The progress of an iteration: a position, or for types without positions the last key. A cursor belongs to the map
/// that moved it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The number of that map. Position and key have no meaning in another map.
    pub(crate) map: Option<u32>,
    pub(crate) position: u64,
    pub(crate) key: Option<Vec<u8>>,
}

/// The memory that programs may address directly: base, element stride, slot stride.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressable {
    pub(crate) base: *mut u8,
    pub(crate) stride: usize,
    pub(crate) slot_stride: usize,
}

impl Addressable {
    /// The value for types whose elements are not addressed by index.
    pub(crate) const NONE: Self = Self { base: std::ptr::null_mut(), stride: 0, slot_stride: 0 };
}

pub(crate) trait MapOps: Send + Sync + std::fmt::Debug {
    /// For operations that only one type has.
    fn as_any(&self) -> &dyn Any;

    /// The program's lookup function, specialised for this map. It is called with a header whose `imp` is `self`.
    fn lookup_fn(&self) -> LookupFn;

    /// The program's update function, or `None` for one that calls [`MapOps::program_update`]. It is called with a
    /// header whose `imp` is `self`.
    fn update_fn(&self) -> Option<UpdateFn> {
        None
    }

    /// The program's delete function, or `None` for one that calls [`MapOps::program_delete`]. It is called with a
    /// header whose `imp` is `self`.
    fn delete_fn(&self) -> Option<DeleteFn> {
        None
    }

    /// The memory that JITs may address inline.
    fn addressable(&self) -> Addressable {
        Addressable::NONE
    }

    /// The address from which entry points get `self` back.
    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Bytes of a value in the host's view.
    fn host_value_size(&self) -> usize;

    /// A program's update.
    ///
    /// # Safety
    /// `key` and `value` must be readable for the map's sizes; `slot` must be the caller's.
    unsafe fn program_update(&self, key: *const u8, value: *const u8, flags: u64, slot: u32) -> OpResult {
        let _ = (key, value, flags, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// A program's delete.
    ///
    /// # Safety
    /// `key` must be readable for the key size; `slot` must be the caller's.
    unsafe fn program_delete(&self, key: *const u8, slot: u32) -> OpResult {
        let _ = (key, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// The value of another slot (`bpf_map_lookup_percpu_elem`), or null.
    ///
    /// # Safety
    /// `key` must be readable for the key size.
    unsafe fn program_lookup_percpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        let _ = (key, cpu);
        std::ptr::null_mut()
    }

    /// Adds a value to a map without keys.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn push(&self, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        let _ = (value, flags, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Takes (`remove`) or reads the next value of a map without keys; a bloom filter looks `out` up.
    ///
    /// # Safety
    /// `out` must be valid for reads and writes of the value size.
    unsafe fn next_value(&self, out: *mut u8, remove: bool, slot: u32) -> OpResult {
        let _ = (out, remove, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// The number of the socket at a key, for maps of sockets that programs look up.
    fn socket(&self, key: &[u8], slot: u32) -> OpResult<u64> {
        let _ = (key, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Stores the number of a socket at a key, for a program.
    fn set_socket(&self, key: &[u8], number: u64, flags: u64, slot: u32) -> OpResult {
        let _ = (key, number, flags, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Writes the key of the element whose value is at this address at this moment; `false` if there is none, and for
    /// types whose values have no timers.
    fn key_of(&self, value: *const u8, key: &mut [u8]) -> bool {
        let _ = (value, key);
        false
    }

    /// Visits every element and returns how many were visited.
    fn for_each(&self, visit: Visit<'_>, slot: u32) -> OpResult<u64> {
        let _ = (visit, slot);
        Err(Errno::EINVAL)
    }

    /// Copies a value out; it is never a mixture of two keys' values.
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        let _ = (key, out, flags, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Copies a value in; for per-CPU types, the values of all slots.
    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        let _ = (key, value, flags, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Removes a key.
    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        let _ = (key, slot);
        Err(Errno::EOPNOTSUPP)
    }

    /// Copies a value out and removes its key, in one step.
    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        let _ = (key, out, flags, slot);
        Err(Errno::ENOTSUPP)
    }

    /// The key after `key`, or the first.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let _ = (key, out);
        Err(Errno::EOPNOTSUPP)
    }

    /// Copies the element after `cursor` and moves the cursor there; `ENOENT` at the end. Whatever changes meanwhile,
    /// a cursor reaches the end, and meets a key that is present throughout exactly once.
    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        let _ = (cursor, key, value, slot);
        Err(Errno::ENOTSUPP)
    }

    /// Whether the batch operations exist for this type.
    fn has_batch(&self) -> bool {
        false
    }

    /// Elements present.
    fn len(&self) -> u64;

    /// Whether an operation that found no memory may succeed later: elements wait for a grace period, or other
    /// threads hold some for a moment. A hint.
    fn may_recover(&self) -> bool {
        true
    }

    /// Bytes of memory the map takes up.
    fn memory_usage(&self) -> u64;
}
