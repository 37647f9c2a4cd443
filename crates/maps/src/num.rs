//! Casts that lose nothing, or that lose only bits which the function's name says.
//!
//! Problem: `as` truncates numbers silently, and places where that is wrong look like the others. Approach: the crate
//! enables the lint `cast_possible_truncation`. Numbers packed into words, and numbers that are 64 bits wide because
//! programs use them, go through the functions here, which cost nothing. Untrusted numbers go through `try_from`.

/// The lower half of a word in which two numbers are packed, or of a hash.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is the other number")]
pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

/// A size, index or address that programs handle as a 64-bit word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "asserted: no host has narrower addresses than BPF")]
pub(crate) const fn index(number: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    number as usize
}

/// A number that a type or a definition limits to 32 bits, where the compiler cannot see it. The caller names the
/// limit.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the callers'; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
