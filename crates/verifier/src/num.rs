//! Named casts, which lose nothing, or only what is not wanted: see the lint `cast_possible_truncation` of this crate.

/// A number of slots, states, loops or subprograms, or a depth in a frame. It fits, since a program has at most a
/// million slots.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// A number of frames, registers or regions, or of bytes of one access.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "there are few of each; and debug builds check it")]
pub(crate) const fn few(number: usize) -> u8 {
    debug_assert!(number <= u8::MAX as usize);
    number as u8
}

/// Bytes of a frame, or fields of a context. It fits: `Env::check` limits both.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "checked when the walk starts; and debug builds check it")]
pub(crate) const fn half(number: usize) -> u16 {
    debug_assert!(number <= u16::MAX as usize);
    number as u16
}

/// A size or depth that was checked to lie within the program's memory.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "regions are below 2^31; and debug builds check it")]
pub(crate) const fn size(bytes: u64) -> usize {
    debug_assert!(bytes <= usize::MAX as u64);
    bytes as usize
}

/// The low 32 bits of a number, on which 32-bit operations work.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub(crate) const fn low(number: u64) -> u32 {
    number as u32
}
