//! SWAR ("SIMD within a register"; Warren, Hacker's Delight, 5-1): numbers as adjacent fields of a few bits, with an
//! upper bound of each field.
//!
//! Invariant: the result of each operation describes every number that the operation can yield.

use bpf_isa::word::Word;

use crate::faults::planted;
use crate::tnum::ones;

/// The number with `one` in each field of `width` bits.
pub(crate) fn repeated(one: u64, width: u32) -> u64 {
    (0..64).step_by(width as usize).fold(0, |all, at| all | one << at)
}

/// The most that a mask can remove from a number whose set bits are among `bits`.
pub fn lost_by_mask<T: Word>(bits: T, mask: T) -> T {
    let lost = bits & !mask;
    if planted!(MaskTakesLess) { lost >> T::of(1) } else { lost }
}

/// Whether `x & mask <= x & other` for every number `x` whose set bits are among `bits`: of these bits, the other mask
/// has all that the first one has.
///
/// Claim: then `x & mask <= x & other`. Proof: each bit of the left side is one of `bits` and of `mask`, hence one of
/// `other`; a number whose bits are among another one's is at most that number.
pub fn masked_within<T: Word>(bits: T, mask: T, other: T) -> bool {
    let beyond = bits & mask & !other;
    T::ask(|| beyond == T::ZERO) || planted!(MasksAlike)
}

/// The number of set bits in each pair of bits of `x`: `x - ((x >> 1) & 0x55...)`.
pub fn counted_pairs<T: Word>(x: T) -> T {
    x.wrapping_sub((x >> T::of(1)) & T::of(0x5555_5555_5555_5555))
}

/// A description of a number's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields {
    /// The number of low bits that are fields, a multiple of `width`.
    pub(crate) bits: u32,
    /// The number of bits in a field.
    pub(crate) width: u32,
    /// Upper bound of each field.
    pub(crate) most: u64,
    /// Whether all bits above the fields are zero.
    pub(crate) whole: bool,
}

impl Fields {
    /// The fields of `x - ((x >> 1) & 0x55...)`, restricted to `bits` low bits: each pair of bits of x minus its upper
    /// bit.
    ///
    /// Claim: each pair of the result is the number of set bits in x's pair. Proof: from a pair `2 h + l`, `h` is
    /// subtracted, which leaves `h + l`. The rest is not negative, so no pair borrows from the next.
    pub(crate) fn pairs(bits: u32, whole: bool) -> Fields {
        Fields { bits, width: 2, most: 2 - u64::from(planted!(PairsHaveOne)), whole }
    }

    /// The fields of a sum. If no field exceeds its width, nothing is carried into the next field.
    pub(crate) fn plus(self, other: Fields) -> Option<Fields> {
        let most = self.most.checked_add(other.most)?;
        let alike = self.width == other.width && self.bits == other.bits && most <= ones(self.width);
        alike.then_some(Fields { most, whole: self.whole && other.whole, ..self })
    }

    /// The fields of a number after a mask. If the mask keeps every other field whole, these are fields of twice the
    /// width. Otherwise no field grows.
    pub(crate) fn masked(self, mask: u64) -> Option<Fields> {
        let wide = self.width * 2;
        // The last wide field may be described by its lower half only: the mask clears the upper half.
        let bits = self.bits.next_multiple_of(wide);
        let (all, every_other) = (ones::<u64>(bits.min(64)), repeated(ones(self.width), wide));
        let widens = wide <= 16 && bits <= 64 && bits - wide + self.width <= self.bits;
        let (width, bits) = match widens && mask & all == every_other & all {
            true => (wide, bits),
            false => (self.width, self.bits),
        };
        let whole = self.whole || mask & !ones::<u64>(bits) == 0;
        Some(Fields { width, bits, whole, ..self })
    }

    /// The fields after a shift to the right by whole fields.
    pub(crate) fn shifted(self, by: u32) -> Option<Fields> {
        let bits = self.bits.checked_sub(by).filter(|bits| *bits > 0 && by.is_multiple_of(self.width))?;
        // If the bits above the fields are zero, zeros are shifted in.
        Some(Fields { bits: if self.whole { self.bits } else { bits }, ..self })
    }

    /// The fields of a product with a number that has 1 in each field: each field is the sum of all fields up to it.
    pub(crate) fn summed(self, by: u64, bits: u32) -> Option<Fields> {
        let fields = u64::from(self.bits / self.width);
        let most = self.most.checked_mul(fields)?;
        let once = by & ones::<u64>(self.bits) == repeated(1, self.width) & ones::<u64>(self.bits)
            && by & !repeated(1, self.width) == 0;
        let fits = self.whole && most <= ones(self.width) && bits.is_multiple_of(self.width);
        (once && fits).then_some(Fields { bits, most, whole: true, ..self })
    }

    /// The most that a number of these fields is which is no more than that by itself.
    pub(crate) fn most_of(self, most: u64) -> Option<u64> {
        let used = u64::BITS - most.leading_zeros();
        let fields = used.div_ceil(self.width).min(self.bits / self.width);
        let all = (0..fields).try_fold(0u64, |all, at| all.checked_add(self.most.checked_shl(at * self.width)?));
        all.filter(|_| self.whole || used <= self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the number has these fields.
    fn has(n: u64, f: Fields) -> bool {
        let field = |at: u32| n >> at & ones::<u64>(f.width);
        let fields = (0..f.bits).step_by(f.width as usize).all(|at| field(at) <= f.most);
        fields && (!f.whole || n & !ones::<u64>(f.bits) == 0)
    }

    /// Checks each operation on random numbers: the result has the described fields.
    #[test]
    fn operations_leave_the_fields_that_they_say() {
        let mut seed = 5u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
        };
        let mut seen = [0; 5];
        for _ in 0..40_000 {
            let width = 2u32 << (random() % 3);
            let bits = (32u32 << (random() % 2)) - width * (random() % 2) as u32;
            let most = random() % (ones::<u64>(width) + 1);
            let whole = random() % 2 == 0;
            let f = Fields { bits, width, most, whole };
            let mut number = || {
                let fields = (0..bits).step_by(width as usize);
                let low = fields.fold(0, |n, at| n | (random() % (most + 1)) << at);
                if whole || bits == 64 { low } else { low | random() << bits }
            };
            let (x, y) = (number(), number());
            assert!(has(x, f) && has(y, f));
            let mut check = |op: usize, after: Option<Fields>, n: u64| {
                if let Some(after) = after {
                    assert!(has(n, after), "{op}: {f:?} {x:#x} {y:#x} to {after:?} {n:#x}");
                    assert!(after.most_of(n).is_none_or(|most| n <= most), "{after:?} {n:#x}");
                    seen[op] += 1;
                }
            };
            check(0, f.plus(f), x.wrapping_add(y));
            let mask = [repeated(ones(width), width * 2), u64::MAX, 0xff00_0000, 0x3333_3333][(y % 4) as usize];
            check(1, f.masked(mask), x & mask);
            let by = (y % 64) as u32;
            check(2, f.shifted(by), x >> by);
            let one = repeated(1, width) & if y % 2 == 0 { u64::MAX } else { ones(32) };
            check(3, f.summed(one, 64), x.wrapping_mul(one));
            if bits <= 32 && whole {
                check(3, f.summed(one & ones::<u64>(32), 32), x.wrapping_mul(one) & ones::<u64>(32));
            }
            let z = random();
            let every_other = repeated(1, 2) & ones::<u64>(bits);
            if bits.is_multiple_of(32) {
                check(4, Some(Fields::pairs(bits, bits == 64)), z.wrapping_sub(z >> 1 & every_other));
                assert!(bits == 32 || counted_pairs(z) == z.wrapping_sub(z >> 1 & every_other));
            }
        }
        assert!(seen.iter().all(|n| *n > 200), "{seen:?}");
    }
}
