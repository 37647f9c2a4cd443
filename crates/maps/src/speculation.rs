//! Indices that stay in range where the processor has mispredicted the comparison before.
//!
//! Problem: a processor that mispredicts `index < len` goes on with any index, and what it reads then shows in its
//! caches (Spectre v1). Approach: as the kernel's `array_index_nospec`, the index becomes 0 by arithmetic on the
//! flags of a comparison of its own. The compiler does not see that comparison, so it makes no branch of it.

/// Returns `index` if it is less than `len`, and 0 otherwise, without a branch.
#[inline]
#[must_use]
pub fn below(index: u64, len: u64) -> u64 {
    index & mask_below(index, len)
}

/// Returns a number whose bits are all set if `a < b`, and 0 otherwise, without a branch.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[must_use]
pub fn mask_below(a: u64, b: u64) -> u64 {
    let mask: u64;
    // SAFETY: the instructions change the flags and `mask` only.
    unsafe {
        core::arch::asm!(
            "cmp {a}, {b}",
            "sbb {mask}, {mask}",
            a = in(reg) a,
            b = in(reg) b,
            mask = lateout(reg) mask,
            options(pure, nomem, nostack),
        );
    }
    mask
}

/// Returns a number whose bits are all set if `a < b`, and 0 otherwise, without a branch.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
#[must_use]
pub fn mask_below(a: u64, b: u64) -> u64 {
    let mask: u64;
    // SAFETY: the instructions change the flags and `mask` only. `hint #20` is `csdb`, behind which the processor
    // uses no predicted result of `csetm`.
    unsafe {
        core::arch::asm!(
            "cmp {a}, {b}",
            "csetm {mask}, lo",
            "hint #20",
            a = in(reg) a,
            b = in(reg) b,
            mask = lateout(reg) mask,
            options(pure, nomem, nostack),
        );
    }
    mask
}

/// Returns a number whose bits are all set if `a < b`, and 0 otherwise.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline]
#[must_use]
pub fn mask_below(a: u64, b: u64) -> u64 {
    if std::hint::black_box(a) < b { u64::MAX } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::{below, mask_below};

    /// A number that is not below the length becomes 0.
    #[test]
    fn an_index_beyond_the_end_becomes_0() {
        let numbers = [0, 1, 2, 3, 1 << 31, u64::from(u32::MAX), 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
        for (index, len) in numbers.iter().flat_map(|index| numbers.map(|len| (*index, len))) {
            assert_eq!(below(index, len), if index < len { index } else { 0 }, "{index} of {len}");
            assert_eq!(mask_below(index, len), if index < len { u64::MAX } else { 0 }, "{index} of {len}");
        }
    }
}
