//! The structure that a program's "map pointer" points to.
//!
//! A program holds the address of a [`MapHeader`], which stays fixed as long as the map lives. Emitted code does not
//! read it: the numbers it inlines for an array (bounds, stride, base) and the functions it calls directly are known
//! at compile time. Only the functions that programs call through it read it.

/// A program's lookup: `map` is the map pointer, `key` points to `key_size` readable bytes, `slot` is the run's
/// execution slot. The result is null or the value, which stays mapped as long as the map.
pub type LookupFn = unsafe extern "C" fn(map: *const MapHeader, key: *const u8, slot: u32) -> *mut u8;

/// A program's update; see [`crate::program::update`].
pub type UpdateFn =
    unsafe extern "C" fn(map: *const MapHeader, key: *const u8, value: *const u8, flags: u64, slot: u32) -> i64;

/// A program's delete; see [`crate::program::delete`].
pub type DeleteFn = unsafe extern "C" fn(map: *const MapHeader, key: *const u8, slot: u32) -> i64;

/// The fixed part of a map, at the address that programs use.
#[derive(Debug)]
#[repr(C)]
pub struct MapHeader {
    /// The kernel's number of the map type.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Elements, or bytes of a ring.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: u32,
    /// Bytes from one element of an array to the next.
    pub stride: u32,
    /// The first element of an array; null for types that are not addressed by index.
    pub base: *mut u8,
    /// Per-CPU array: bytes from one execution slot's elements to the next slot's.
    pub slot_stride: u64,
    /// The lookup function for this map.
    pub lookup: LookupFn,
    /// The update function for this map.
    pub update: UpdateFn,
    /// The delete function for this map.
    pub delete: DeleteFn,
    /// The implementation, for the entry points of this crate.
    pub(crate) imp: *const (),
}

// SAFETY: the header is never written after creation, and its pointers lead to memory that is shared by atomics only.
unsafe impl Send for MapHeader {}
// SAFETY: a shared header is never written, and its pointers lead to memory that is accessed by atomics.
unsafe impl Sync for MapHeader {}
