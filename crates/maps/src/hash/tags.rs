//! Comparing the seven tags of a chunk at once.
//!
//! A chunk is eight 64-bit words: the lock and overflow count, then the slots, whose tag is their highest 16-bit lane.
//! Other threads change the slots meanwhile, so the loads must not be ordinary (vector) loads of Rust, which would be
//! data races. They are inline assembly: to the compiler a relaxed access to memory it does not see, to the hardware
//! aligned vector loads, each 64-bit half of which is read at once (x86-64: all processors in practice, AVX ones by
//! specification; arm64: by the architecture). The result only nominates candidates, which are loaded again with
//! acquire.
//!
//! The number of instructions matters here: in a map larger than the caches, the processor overlaps as many
//! operations as fit into its reorder buffer.

use crate::sync::AtomicU64;

/// A set of slots.
#[derive(Clone, Copy)]
pub(crate) struct Slots(u64);

/// Words in a chunk.
const WORDS: usize = 8;

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod imp {
    use super::{AtomicU64, WORDS};

    /// The bits that stand for slots: the upper of two bits per word, for all words but the first.
    pub(super) const SLOTS: u64 = 0xaaa8;

    /// The byte of the chunk at which the slot with this bit begins.
    #[inline(always)]
    pub(super) fn offset(bit: u32) -> usize {
        bit as usize * 4 - 4
    }

    #[inline(always)]
    pub(super) fn matching(chunk: &[AtomicU64; WORDS], mark: u32) -> u64 {
        let mask: u32;
        // SAFETY: reads the 64 bytes of the chunk, which is aligned to 16 (it is aligned to 64); changes only the
        // registers named. SSE2 is part of x86-64.
        unsafe {
            std::arch::asm!(
                "movd {mark}, {tag:e}",
                "pshufd {mark}, {mark}, 0",
                // The upper halves of the words: tag and version.
                "movaps {a}, xmmword ptr [{chunk}]",
                "movaps {b}, xmmword ptr [{chunk} + 32]",
                "shufps {a}, xmmword ptr [{chunk} + 16], 0xdd",
                "shufps {b}, xmmword ptr [{chunk} + 48], 0xdd",
                // The tag's lane determines the sign of its half, which saturation keeps; the version's lane does
                // not.
                "pcmpeqw {a}, {mark}",
                "pcmpeqw {b}, {mark}",
                "packssdw {a}, {b}",
                "pmovmskb {mask:e}, {a}",
                chunk = in(reg) chunk.as_ptr(),
                tag = in(reg) mark,
                mark = out(xmm_reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                mask = lateout(reg) mask,
                options(nostack, readonly, preserves_flags),
            );
        }
        u64::from(mask)
    }
}

#[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
mod imp {
    use super::{AtomicU64, WORDS};

    /// The bits that stand for slots: the lowest bit of a byte per word, for all words but the first.
    pub(super) const SLOTS: u64 = 0x0101_0101_0101_0100;

    /// The byte of the chunk at which the slot with this bit begins.
    #[inline(always)]
    pub(super) fn offset(bit: u32) -> usize {
        bit as usize
    }

    #[inline(always)]
    pub(super) fn matching(chunk: &[AtomicU64; WORDS], mark: u32) -> u64 {
        let mask: u64;
        // SAFETY: reads the 64 bytes of the chunk; changes only the registers named. NEON is part of the target.
        unsafe {
            std::arch::asm!(
                "ldp {a:q}, {b:q}, [{chunk}]",
                "ldp {c:q}, {d:q}, [{chunk}, #32]",
                "dup {tags:v}.8h, {tag:w}",
                // First the upper halves of the words, then the upper halves of those: the tags.
                "uzp2 {a:v}.4s, {a:v}.4s, {b:v}.4s",
                "uzp2 {c:v}.4s, {c:v}.4s, {d:v}.4s",
                "uzp2 {a:v}.8h, {a:v}.8h, {c:v}.8h",
                "cmeq {a:v}.8h, {a:v}.8h, {tags:v}.8h",
                "xtn {a:v}.8b, {a:v}.8h",
                "fmov {mask}, {a:d}",
                chunk = in(reg) chunk.as_ptr(),
                tag = in(reg) mark >> 16,
                tags = out(vreg) _,
                a = out(vreg) _,
                b = out(vreg) _,
                c = out(vreg) _,
                d = out(vreg) _,
                mask = lateout(reg) mask,
                options(nostack, readonly, preserves_flags),
            );
        }
        mask
    }
}

#[cfg(any(loom, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod imp {
    use super::{AtomicU64, WORDS};
    use crate::sync::Ordering;

    pub(super) const SLOTS: u64 = 0xfe;

    pub(super) fn offset(bit: u32) -> usize {
        bit as usize * 8
    }

    pub(super) fn matching(chunk: &[AtomicU64; WORDS], mark: u32) -> u64 {
        // Relaxed: a candidate is loaded again.
        let has = |word: &AtomicU64| word.load(Ordering::Relaxed) >> 48 == u64::from(mark >> 16);
        chunk.iter().enumerate().skip(1).fold(0, |mask, (i, word)| mask | u64::from(has(word)) << i)
    }
}

/// The slots whose tag is the upper half of `mark`. A slot that has the tag during the whole call is always among
/// them. The first word of the chunk is not a slot.
#[inline(always)]
pub(crate) fn matching(chunk: &[AtomicU64; WORDS], mark: u32) -> Slots {
    Slots(imp::matching(chunk, mark) & imp::SLOTS)
}

impl Iterator for Slots {
    /// The byte of the chunk at which the slot begins.
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(imp::offset(bit))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([AtomicU64; WORDS]);

    #[test]
    fn finds_exactly_the_slots_with_the_tag() {
        // All subsets of slots; all other bits are set to resemble the tag.
        for tag in [0u16, 1, 0x7fff, 0x8000, 0xffff] {
            for subset in 0..128u32 {
                let noise = u64::from(tag);
                let chunk = Aligned(std::array::from_fn(|i| {
                    let with = i == 0 || subset >> (i - 1) & 1 == 1;
                    let tag = if with { tag } else { tag ^ 0x8000 };
                    AtomicU64::new(u64::from(tag) << 48 | noise << 32 | noise << 16 | noise)
                }));
                let expected: Vec<usize> = (1..WORDS).filter(|i| subset >> (i - 1) & 1 == 1).map(|i| i * 8).collect();
                for rest in [0u16, 1, 0xffff, tag] {
                    let found: Vec<usize> = matching(&chunk.0, u32::from(tag) << 16 | u32::from(rest)).collect();
                    assert_eq!(found, expected, "tag {tag:#x}, slots {subset:#b}");
                }
            }
        }
    }
}
