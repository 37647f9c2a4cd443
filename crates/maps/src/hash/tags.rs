//! Comparing the seven tags of a chunk at once.
//!
//! A chunk is eight 64-bit words: the lock and overflow count, then the slots, whose tag is their third 16-bit lane. Other threads change the
//! slots meanwhile, so the loads must not be ordinary (vector) loads of Rust, which would be data races. They are inline
//! assembly: to the compiler a relaxed access to memory it does not see, to the hardware aligned vector loads, each
//! 64-bit half of which is read at once (x86-64: all processors in practice, AVX ones by specification; arm64: by the architecture). The result only nominates candidates, which
//! are loaded again with acquire.

use crate::sync::AtomicU64;

/// A set of slots.
#[derive(Clone, Copy)]
pub(crate) struct Slots(u64);

/// Words in a chunk.
const WORDS: usize = 8;

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod imp {
    use std::arch::x86_64::_mm_set1_epi16;

    use super::{AtomicU64, WORDS};

    /// Bits from one slot to the next in a mask.
    pub(super) const STEP: u32 = 4;
    /// The bits of the slots' tags: lanes 2 and 6 of each of four vectors, except the chunk's first word.
    pub(super) const TAGS: u64 = 0x4444_4440;

    #[inline(always)]
    pub(super) fn matching(chunk: &[AtomicU64; WORDS], tag: u16) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: SSE2 is part of x86-64.
        let tags = unsafe { _mm_set1_epi16(tag as i16) };
        // SAFETY: reads the 64 bytes of the chunk, which is aligned to 16 (it is aligned to 64); changes only the registers named.
        unsafe {
            std::arch::asm!(
                "movdqa {a}, xmmword ptr [{chunk}]",
                "movdqa {b}, xmmword ptr [{chunk} + 16]",
                "movdqa {c}, xmmword ptr [{chunk} + 32]",
                "movdqa {d}, xmmword ptr [{chunk} + 48]",
                "pcmpeqw {a}, {tags}",
                "pcmpeqw {b}, {tags}",
                "pcmpeqw {c}, {tags}",
                "pcmpeqw {d}, {tags}",
                "packsswb {a}, {b}",
                "packsswb {c}, {d}",
                "pmovmskb {low:e}, {a}",
                "pmovmskb {high:e}, {c}",
                chunk = in(reg) chunk.as_ptr(),
                tags = in(xmm_reg) tags,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                low = out(reg) low,
                high = out(reg) high,
                options(nostack, readonly, preserves_flags),
            );
        }
        u64::from(low | high << 16)
    }
}

#[cfg(all(target_arch = "aarch64", not(loom), not(miri)))]
mod imp {
    use super::{AtomicU64, WORDS};

    /// Bits from one slot to the next in a mask: a byte.
    pub(super) const STEP: u32 = 8;
    /// The lowest bit of each slot's byte, except the chunk's first word.
    pub(super) const TAGS: u64 = 0x0101_0101_0101_0100;

    #[inline(always)]
    pub(super) fn matching(chunk: &[AtomicU64; WORDS], tag: u16) -> u64 {
        let mask: u64;
        // SAFETY: reads the 64 bytes of the chunk; changes only the registers named. NEON is part of the target.
        unsafe {
            std::arch::asm!(
                "ldp {a:q}, {b:q}, [{chunk}]",
                "ldp {c:q}, {d:q}, [{chunk}, #32]",
                "dup {tags:v}.8h, {tag:w}",
                // The upper halves of the words, then the lower halves of those: the tags.
                "uzp2 {a:v}.4s, {a:v}.4s, {b:v}.4s",
                "uzp2 {c:v}.4s, {c:v}.4s, {d:v}.4s",
                "uzp1 {a:v}.8h, {a:v}.8h, {c:v}.8h",
                "cmeq {a:v}.8h, {a:v}.8h, {tags:v}.8h",
                "xtn {a:v}.8b, {a:v}.8h",
                "fmov {mask}, {a:d}",
                chunk = in(reg) chunk.as_ptr(),
                tag = in(reg) u32::from(tag),
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

    pub(super) const STEP: u32 = 1;
    pub(super) const TAGS: u64 = 0xfe;

    pub(super) fn matching(chunk: &[AtomicU64; WORDS], tag: u16) -> u64 {
        // Relaxed: a candidate is loaded again.
        let has = |word: &AtomicU64| (word.load(Ordering::Relaxed) >> 32) as u16 == tag;
        chunk.iter().enumerate().skip(1).fold(0, |mask, (i, word)| mask | u64::from(has(word)) << i)
    }
}

/// The slots whose tag is `tag`. A slot that has it throughout is always among them. The first word of the chunk is no slot.
#[inline(always)]
pub(crate) fn matching(chunk: &[AtomicU64; WORDS], tag: u16) -> Slots {
    Slots(imp::matching(chunk, tag) & imp::TAGS)
}

impl Iterator for Slots {
    /// The number of the slot's word in the chunk.
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let word = self.0.trailing_zeros() / imp::STEP;
        self.0 &= self.0 - 1;
        Some(word as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([AtomicU64; WORDS]);

    #[test]
    fn finds_exactly_the_slots_with_the_tag() {
        // All subsets of slots; everything but the tag is set to look like it.
        for tag in [0u16, 1, 0x7fff, 0x8000, 0xffff] {
            for subset in 0..128u32 {
                let noise = u64::from(tag);
                let chunk = Aligned(std::array::from_fn(|i| {
                    let with = i == 0 || subset >> (i - 1) & 1 == 1;
                    let tag = if with { tag } else { tag ^ 0x8000 };
                    AtomicU64::new(noise << 48 | u64::from(tag) << 32 | noise << 16 | noise)
                }));
                let found: Vec<usize> = matching(&chunk.0, tag).collect();
                let expected: Vec<usize> = (1..WORDS).filter(|i| subset >> (i - 1) & 1 == 1).collect();
                assert_eq!(found, expected, "tag {tag:#x}, slots {subset:#b}");
            }
        }
    }
}
