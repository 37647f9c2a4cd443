//! The functions over memory that compilers call by themselves.
//!
//! Emitted code calls them directly. Their arguments are proven memory, which other threads may change at the same
//! time. So bytes are copied atomically ([`crate::call::bytes`]), a piece at a time: each byte read is one of before or
//! after such a change.

use crate::call::HostFn;
use crate::call::bytes::{copy_in, copy_out};
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

/// Bytes that are copied at a time.
const PIECE: usize = 256;

/// `memmove(to, from, bytes)`, and `memcpy`: a program is not proven to pass what does not overlap.
///
/// # Safety
/// `to` must be valid for writes, `from` for reads, of so many bytes.
unsafe extern "C" fn memmove(to: u64, from: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let mut copy = [0; PIECE];
    let bytes = index(bytes);
    for piece in 0..bytes.div_ceil(PIECE) {
        // Where they overlap, from the end at which nothing is overwritten that is still to be read.
        let at = PIECE * if to <= from { piece } else { bytes.div_ceil(PIECE) - 1 - piece };
        let copy = &mut copy[..(bytes - at).min(PIECE)];
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow.
        unsafe { copy_out((from as *const u8).wrapping_add(at), copy) };
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow, and may be
        // written.
        unsafe { copy_in((to as *mut u8).wrapping_add(at), copy) };
    }
    to
}

/// `memset(to, byte, bytes)`.
///
/// # Safety
/// `to` must be valid for writes of so many bytes.
unsafe extern "C" fn memset(to: u64, byte: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let piece = [(byte & 0xff) as u8; PIECE];
    for at in (0..index(bytes)).step_by(PIECE) {
        let len = (index(bytes) - at).min(PIECE);
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow.
        unsafe { copy_in((to as *mut u8).wrapping_add(at), &piece[..len]) };
    }
    to
}

/// `memcmp(a, b, bytes)`: -1, 0 or 1.
///
/// # Safety
/// `a` and `b` must be valid for reads of so many bytes.
unsafe extern "C" fn memcmp(a: u64, b: u64, bytes: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let (mut left, mut right) = ([0; PIECE], [0; PIECE]);
    for at in (0..index(bytes)).step_by(PIECE) {
        let len = (index(bytes) - at).min(PIECE);
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow.
        unsafe { copy_out((a as *const u8).wrapping_add(at), &mut left[..len]) };
        // SAFETY: the caller's contract, which the program was proven to keep: so many bytes follow `b`, too.
        unsafe { copy_out((b as *const u8).wrapping_add(at), &mut right[..len]) };
        match left[..len].cmp(&right[..len]) {
            Ordering::Less => return u64::MAX,
            Ordering::Equal => {}
            Ordering::Greater => return 1,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_move_over_themselves() {
        const PLACES: [usize; 7] = [0, 1, 8, 100, 255, 256, 300];
        for bytes in [0, 1, 7, 255, 256, 257, 512, 700] {
            for (to, from) in PLACES.iter().flat_map(|to| PLACES.map(|from| (*to, from))) {
                let mut memory: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
                let mut expected = memory.clone();
                expected.copy_within(from..from + bytes, to);
                let start = memory.as_mut_ptr() as u64;
                // SAFETY: so many bytes from both places are in the vector.
                unsafe {
                    memmove(start + to as u64, start + from as u64, bytes as u64, 0, 0, core::ptr::null_mut());
                }
                assert_eq!(memory, expected, "{bytes} bytes from {from} to {to}");
                expected[to..to + bytes].fill(7);
                // SAFETY: so many bytes from `to` on are in the vector.
                unsafe { memset(start + to as u64, 0x107, bytes as u64, 0, 0, core::ptr::null_mut()) };
                assert_eq!(memory, expected, "{bytes} bytes at {to}");
            }
        }
    }
}
