//! Named casts that lose nothing, or only the bits that their caller does not want. The lint `cast_possible_truncation`
//! of this crate forbids other narrowing casts.

/// Narrows a number of ops, blocks or registers: a program of a million instruction slots makes far less than 2^32 of
/// each.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// Narrows a number of bits of a value, from 0 to 64.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "64 at most; and debug builds check it")]
pub(crate) const fn count(bits: u32) -> u8 {
    debug_assert!(bits <= 64);
    bits as u8
}

/// Returns the low half of a constant, which ops of 32 bits read, as a signed number.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub(crate) const fn low(number: i64) -> i32 {
    number as i32
}
