//! The functions over memory that compilers call by themselves.
//!
//! Emitted code calls them directly, and they the C library's. What a program is proven to pass may be memory that
//! other threads change meanwhile, as whatever else it loads and stores: bytes are then those of before or after.

use crate::call::HostFn;
use crate::call::bytes::copy_out;
use crate::num::index;
use bpf_jit_code::RunCtx;
use bpf_uapi::Builtin;
use core::cmp::Ordering;

/// The function behind it.
pub(crate) fn builtin(builtin: Builtin) -> HostFn {
    match builtin {
        Builtin::Memcpy | Builtin::Memmove => HostFn::plain(memmove),
        Builtin::Memset => HostFn::plain(memset),
        Builtin::Memcmp => HostFn::plain(memcmp),
    }
}

/// `memmove(to, from, bytes)`, and `memcpy`: a program is not proven to pass what does not overlap.
///
/// # Safety
/// `to` must be valid for writes, `from` for reads, of so many bytes.
unsafe extern "C" fn memmove(to: u64, from: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract, which the program was proven to keep.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, index(bytes)) };
    to
}

/// `memset(to, byte, bytes)`.
///
/// # Safety
/// `to` must be valid for writes of so many bytes.
unsafe extern "C" fn memset(to: u64, byte: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract, which the program was proven to keep.
    unsafe { core::ptr::write_bytes(to as *mut u8, (byte & 0xff) as u8, index(bytes)) };
    to
}

/// `memcmp(a, b, bytes)`: -1, 0 or 1.
///
/// # Safety
/// `a` and `b` must be valid for reads of so many bytes.
unsafe extern "C" fn memcmp(a: u64, b: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    /// What is copied, to be compared: no slice may be of what others change.
    const CHUNK: usize = 256;
    let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
    for at in (0..index(bytes)).step_by(CHUNK) {
        let len = (index(bytes) - at).min(CHUNK);
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow.
        unsafe { copy_out((a as *const u8).wrapping_add(at), &mut left[..len]) };
        // SAFETY: as before.
        unsafe { copy_out((b as *const u8).wrapping_add(at), &mut right[..len]) };
        match left[..len].cmp(&right[..len]) {
            Ordering::Less => return u64::MAX,
            Ordering::Equal => {}
            Ordering::Greater => return 1,
        }
    }
    0
}
