//! Casts that lose nothing, or lose what they are meant to, each by a name.
//!
//! Problem: `as` cuts numbers off without a word, and most places where it may not are hard to tell from the others.
//! Approach: the crate has the lint `cast_possible_truncation`; what is packed into words, and numbers that are 64 bits
//! wide for programs' sake, go through the functions here, which cost nothing. What comes from outside goes through
//! `try_from`.

/// The lower half of a word in which two numbers are packed, or of a hash.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is the other number")]
pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

/// A size, index or address: as wide as a word, on the hosts that programs have pointers of.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "asserted: no host has narrower addresses than BPF")]
pub(crate) const fn index(number: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    number as usize
}

/// What a type or a definition limits to 32 bits, in places where the compiler cannot see it. The caller says by what.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the callers'; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
