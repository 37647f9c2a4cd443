//! Casts that cut off what is not wanted, each by a name, for this crate and the backends: see the lint
//! `cast_possible_truncation` of all three.

/// A number of ops, blocks, registers or functions, or an offset in code: a program has a million slots at most.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// A number of bytes within one op, or of bits of a value.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an op is short; and debug builds check it")]
pub const fn few(number: usize) -> u8 {
    debug_assert!(number <= u8::MAX as usize);
    number as u8
}

/// The low 32 bits of a constant: what an op of 32 bits sees, and what a store of so many writes.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_word(constant: i64) -> i32 {
    constant as i32
}

/// The low 16 bits of a constant.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_half(constant: i64) -> i16 {
    constant as i16
}

/// The low byte of a constant.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_byte(constant: i64) -> i8 {
    constant as i8
}
