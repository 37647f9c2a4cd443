//! Helpers on BPF: calls by their number.
//!
//! `native.rs` has the same functions for `cargo test`.

use crate::context::Context;
use crate::definition::{Insert, Map};
use crate::plain::Plain;
use crate::printed::Value;
use core::ffi::{CStr, c_void};

/// A helper as a function pointer of this type, which LLVM compiles to a call of the number.
macro_rules! helper {
    ($id:literal: fn($($arg:ty),*) -> $ret:ty) => {
        // SAFETY: on BPF a call of a constant address is a call of the helper with this number. Its arguments and
        // result are those of the kernel's prototype, which the verifier checks.
        unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $ret>($id) }
    };
}

#[inline(always)]
fn address<T>(of: &T) -> *const c_void {
    (&raw const *of).cast()
}

#[inline(always)]
pub(crate) fn lookup<M: Map, K: Plain>(map: &M, key: &K) -> *mut c_void {
    let call = helper!(1: fn(*const c_void, *const c_void) -> *mut c_void);
    // SAFETY: the pointer is to a map, and the key has the map's key size.
    unsafe { call(address(map), address(key)) }
}

#[inline(always)]
pub(crate) fn update<M: Map, K: Plain, V: Plain>(map: &M, key: &K, value: &V, insert: Insert) -> i64 {
    let call = helper!(2: fn(*const c_void, *const c_void, *const c_void, u64) -> i64);
    // SAFETY: the pointer is to a map, and key and value have its sizes.
    unsafe { call(address(map), address(key), address(value), insert as u64) }
}

#[inline(always)]
pub(crate) fn delete<M: Map, K: Plain>(map: &M, key: &K) -> i64 {
    let call = helper!(3: fn(*const c_void, *const c_void) -> i64);
    // SAFETY: the pointer is to a map, and the key has the map's key size.
    unsafe { call(address(map), address(key)) }
}

#[inline(always)]
pub(crate) fn reserve<M: Map, T: Plain>(ring: &M) -> *mut T {
    let call = helper!(131: fn(*const c_void, u64, u64) -> *mut c_void);
    // SAFETY: the pointer is to a ring buffer.
    unsafe { call(address(ring), size_of::<T>() as u64, 0) }.cast()
}

/// # Safety
/// The record is reserved, and neither submitted nor discarded yet.
#[inline(always)]
pub(crate) unsafe fn submit<T: Plain>(record: *mut T) {
    let call = helper!(132: fn(*mut c_void, u64) -> ());
    // SAFETY: the caller's.
    unsafe { call(record.cast(), 0) };
}

/// # Safety
/// The record is reserved, and neither submitted nor discarded yet.
#[inline(always)]
pub(crate) unsafe fn discard<T: Plain>(record: *mut T) {
    let call = helper!(133: fn(*mut c_void, u64) -> ());
    // SAFETY: the caller's.
    unsafe { call(record.cast(), 0) };
}

#[inline(always)]
pub(crate) fn output<M: Map, T: Plain>(ring: &M, record: &T) -> i64 {
    let call = helper!(130: fn(*const c_void, *const c_void, u64, u64) -> i64);
    // SAFETY: the pointer is to a ring buffer, and the record has these bytes.
    unsafe { call(address(ring), address(record), size_of::<T>() as u64, 0) }
}

#[inline(always)]
pub(crate) fn tail_call<M: Map, C: Context>(context: &mut C, table: &M, index: u32) {
    let call = helper!(12: fn(*mut c_void, *const c_void, u32) -> i64);
    // SAFETY: the context is the program's own, and the pointer is to a prog array.
    unsafe { call((&raw mut *context).cast(), address(table), index) };
}

#[inline(always)]
pub(crate) fn now() -> u64 {
    let call = helper!(5: fn() -> u64);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}

#[inline(always)]
pub(crate) fn random() -> u32 {
    let call = helper!(7: fn() -> u32);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}

#[inline(always)]
pub(crate) fn slot() -> u32 {
    let call = helper!(8: fn() -> u32);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}

#[inline(always)]
fn word(value: Value) -> u64 {
    match value {
        Value::Number(number) => number,
        Value::Text(text) => text.as_ptr().expose_provenance() as u64,
    }
}

#[inline(always)]
pub(crate) fn print(format: &'static CStr, [a, b, c]: [Value; 3]) {
    let call = helper!(6: fn(*const c_void, u32, u64, u64, u64) -> i64);
    let bytes = format.to_bytes_with_nul();
    // SAFETY: the pointer is to so many bytes, the last of which is zero. A format that asks for memory gets it: the
    // verifier checks what it asks for.
    unsafe { call(bytes.as_ptr().cast(), bytes.len() as u32, word(a), word(b), word(c)) };
}
