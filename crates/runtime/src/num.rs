//! Casts that lose nothing, each by a name: see the lint `cast_possible_truncation` of this crate.

/// A size or address in a register or an argument of a helper, as the host's: no host has narrower addresses than BPF.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn index(number: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    number as usize
}

/// Converts a number that a type or a limit keeps within 32 bits, where the compiler cannot see it. A comment at the
/// call names the bound.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the callers'; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// The low half of a register, which a C function reads of an argument declared with 32 bits, as the kernel's helpers
/// do.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the calling convention leaves the upper half undefined")]
pub(crate) const fn low(register: u64) -> u32 {
    register as u32
}
