//! Casts that lose nothing, or what is not wanted, each by a name: see the lint `cast_possible_truncation` of this
//! crate.

/// A number of ops, blocks, registers or what is kept of them: a program of a million slots makes far less than 2^32.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// A number of bits of a value.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "64 at most; and debug builds check it")]
pub(crate) const fn count(bits: u32) -> u8 {
    debug_assert!(bits <= 64);
    bits as u8
}

/// The low half of a constant: what ops of 32 bits see, as the signed number that it is.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub(crate) const fn low(number: i64) -> i32 {
    number as i32
}
