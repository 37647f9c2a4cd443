//! Casts that lose nothing, or what is not wanted, each by a name: see the lint `cast_possible_truncation` of this
//! crate.

/// A number of slots, states, loops or subprograms, or a depth in a frame: a program has a million slots at most.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// A number of frames, registers, regions, or of bytes of one access.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "there are few of each; and debug builds check it")]
pub(crate) const fn few(number: usize) -> u8 {
    debug_assert!(number <= u8::MAX as usize);
    number as u8
}

/// Bytes of a frame, or fields of a context: `Env::check` allows no more than this holds.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "checked when the walk starts; and debug builds check it")]
pub(crate) const fn half(number: usize) -> u16 {
    debug_assert!(number <= u16::MAX as usize);
    number as u16
}

/// A size or depth that was found to lie within memory of the program's, or of what is compared with one.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "regions are below 2^31; and debug builds check it")]
pub(crate) const fn size(bytes: u64) -> usize {
    debug_assert!(bytes <= usize::MAX as u64);
    bytes as usize
}

/// What operations on 32 bits see of a number.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub(crate) const fn low(number: u64) -> u32 {
    number as u32
}
