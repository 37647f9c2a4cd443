//! Named casts that cut off unwanted bits, for this crate and the backends. The lint `cast_possible_truncation` of
//! these crates forbids other narrowing casts.

/// Narrows a number of ops, blocks, registers or functions, or an offset in code. A program has at most a million
/// slots.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// Narrows a number of bytes within one op, or of bits of a value.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an op is short; and debug builds check it")]
pub const fn few(number: usize) -> u8 {
    debug_assert!(number <= u8::MAX as usize);
    number as u8
}

/// Returns the low 32 bits of a constant, which an op of 32 bits reads and a store of four bytes writes.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_word(constant: i64) -> i32 {
    constant as i32
}

/// Returns the low 16 bits of a constant.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_half(constant: i64) -> i16 {
    constant as i16
}

/// Returns the low byte of a constant.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub const fn low_byte(constant: i64) -> i8 {
    constant as i8
}
