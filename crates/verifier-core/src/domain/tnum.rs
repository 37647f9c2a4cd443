//! Tristate numbers: which bits of a value are known.
//!
//! Problem: masks, shifts and alignment decide most memory accesses, and ranges cannot express "the low three bits
//! are zero". Approach: a pair (value, mask); a mask bit says the bit is unknown, otherwise the value bit is the
//! bit. Source of the domain: Vishwanathan et al., "Sound, Precise, and Fast Abstract Interpretation with Tristate
//! Numbers" (CGO 2022); the operators here are derived from the definition and tested against it.
//!
//! Invariants: `value & mask == 0`; no bit above `W` is set in either. The width is a parameter so that the very code
//! that runs at 64 bits is tested exhaustively at 4. The word type is a parameter, too: `u64` at run time, terms in the
//! proofs (`bpf_isa::word`).

use std::fmt;

use bpf_isa::word::{Numbers, Signed, Word};

/// All ones in the low `w` bits.
#[inline(always)]
#[doc(hidden)]
pub fn ones<T: Word>(w: u32) -> T {
    T::of(if w >= 64 { u64::MAX } else { (1u64 << w) - 1 })
}

/// A `W`-bit value of which some bits are known.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tnum<const W: u32, T = u64> {
    value: T,
    mask: T,
}

impl<const W: u32, T: Word> Tnum<W, T> {
    const ONES: T = T::ONES[W as usize];
    /// Nothing known.
    pub const UNKNOWN: Self = Tnum { value: T::ZERO, mask: Self::ONES };

    /// Exactly `v`, taken modulo 2^W.
    pub fn constant(v: T) -> Self {
        Tnum { value: v & Self::ONES, mask: T::ZERO }
    }

    /// The tnum with these unknown bits and, in all other bits, this value.
    pub fn new(value: T, mask: T) -> Self {
        let mask = mask & Self::ONES;
        Tnum { value: value & !mask & Self::ONES, mask }
    }

    /// The bits shared by all numbers in `min ..= max`: their common leading bits.
    pub fn range(min: T, max: T) -> Self {
        Tnum::new(min, (min ^ max).fill())
    }

    /// The known bits; unknown ones are 0, so this is also the least unsigned value.
    pub fn value(self) -> T {
        self.value
    }

    /// The unknown bits.
    pub fn mask(self) -> T {
        self.mask
    }

    /// The greatest unsigned value: every unknown bit set.
    pub fn max(self) -> T {
        self.value | self.mask
    }

    /// Whether a single value is left.
    pub fn is_const(self) -> bool {
        self.mask == T::ZERO
    }

    /// Whether `x` is one of the values.
    pub fn contains(self, x: T) -> bool {
        x & !self.mask == self.value
    }

    /// Whether every value of `self` is one of `other`.
    pub fn subset(self, other: Self) -> bool {
        self.mask & !other.mask == T::ZERO && self.value & !other.mask == other.value
    }

    /// The values in both; `None` if a bit is known to be 0 in one and 1 in the other.
    pub fn intersect(self, other: Self) -> Option<Self> {
        if (self.value ^ other.value) & !self.mask & !other.mask != T::ZERO {
            return None;
        }
        Some(Tnum::new(self.value | other.value, self.mask & other.mask))
    }

    /// The least tnum that holds the values of both.
    pub fn join(self, other: Self) -> Self {
        Tnum::new(self.value, self.mask | other.mask | (self.value ^ other.value))
    }

    /// The low `V` bits.
    pub fn low<const V: u32>(self) -> Tnum<V, T> {
        Tnum::new(self.value, self.mask)
    }

    /// Zero-extended to `V` bits.
    pub fn zext<const V: u32>(self) -> Tnum<V, T> {
        Tnum { value: self.value, mask: self.mask }
    }

    /// `self` with its low bits replaced by `low`.
    pub fn with_low<const V: u32>(self, low: Tnum<V, T>) -> Self {
        let keep = !ones::<T>(V);
        Tnum { value: self.value & keep | low.value, mask: self.mask & keep | low.mask }
    }

    /// The low `bits` bits, zero above.
    pub fn truncate(self, bits: u32) -> Self {
        Tnum { value: self.value & ones(bits), mask: self.mask & ones(bits) }
    }

    /// The low `bits` bits, sign-extended.
    pub fn sign_extend(self, bits: u32) -> Self {
        Tnum::new(self.value.sext(bits).unsigned(), self.mask.sext(bits).unsigned())
    }

    /// Sum. A bit is unknown if it is unknown in a summand, or if its carry differs between the least and the greatest
    /// sum.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    pub fn add(self, other: Self) -> Self {
        let values = self.value.wrapping_add(other.value);
        let all = values.wrapping_add(self.mask.wrapping_add(other.mask));
        let carries = values ^ all;
        Tnum::new(values, carries | self.mask | other.mask)
    }

    /// Difference. A bit is unknown if it is unknown in an operand, or if its borrow differs between the least and the
    /// greatest difference.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    pub fn sub(self, other: Self) -> Self {
        let values = self.value.wrapping_sub(other.value);
        let most = values.wrapping_add(self.mask);
        let least = values.wrapping_sub(other.mask);
        Tnum::new(values, (most ^ least) | self.mask | other.mask)
    }

    /// Bitwise and. A bit is unknown if it may be 1 in both operands and is not known to be 1 in both.
    pub fn and(self, other: Self) -> Self {
        let value = self.value & other.value;
        Tnum::new(value, self.max() & other.max() & !value)
    }

    /// Bitwise or. A bit is unknown if it is unknown in one operand and not known to be 1 in the other.
    pub fn or(self, other: Self) -> Self {
        let value = self.value | other.value;
        Tnum::new(value, (self.mask | other.mask) & !value)
    }

    /// Bitwise exclusive or.
    pub fn xor(self, other: Self) -> Self {
        Tnum::new(self.value ^ other.value, self.mask | other.mask)
    }

    /// Product, by long multiplication: an unknown bit of `self` may or may not add the shifted `other`.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    pub fn mul(self, other: Self) -> Self {
        // Multiplying by a mostly unknown factor would end at this bound anyway, only slowly.
        let mostly_unknown = |t: Self| t.mask.count_ones() > T::of(16);
        if (mostly_unknown(self) && !other.is_const()) || other.mask == Self::ONES || self.mask == Self::ONES {
            let zeros = self.max().trailing_zeros() + other.max().trailing_zeros();
            return Tnum::new(T::ZERO, if zeros < T::of(64) { T::of(u64::MAX) << zeros } else { T::ZERO });
        }
        let (mut a, mut b, mut acc) = (self, other, Self::constant(T::ZERO));
        while a.max() != T::ZERO {
            if a.value & T::ONE != T::ZERO {
                acc = acc.add(b);
            } else if a.mask & T::ONE != T::ZERO {
                acc = acc.join(acc.add(b));
            }
            a = a.rsh(T::ONE);
            b = b.lsh(T::ONE);
        }
        acc
    }

    /// Left shift by `k < W`.
    pub fn lsh(self, k: T) -> Self {
        Tnum::new(self.value << k, self.mask << k)
    }

    /// Logical right shift by `k < W`.
    pub fn rsh(self, k: T) -> Self {
        Tnum { value: self.value >> k, mask: self.mask >> k }
    }

    /// Arithmetic right shift by `k < W`: an unknown sign spreads as unknown.
    pub fn arsh(self, k: T) -> Self {
        Tnum::new((self.value.sext(W) >> k).unsigned(), (self.mask.sext(W) >> k).unsigned())
    }
}

impl<T: Word> Tnum<64, T> {
    /// The low `bits` bits with their bytes reversed, zero above.
    pub fn byte_swap(self, bits: u32) -> Self {
        let swap = |x: T| x.swap_bytes() >> (64 - bits);
        Tnum { value: swap(self.value), mask: swap(self.mask) }
    }
}

impl<const W: u32, T: Word> Numbers<T> for Tnum<W, T> {
    const BITS: u32 = W;

    fn of_words(next: &mut impl FnMut() -> T) -> Self {
        Tnum { value: next(), mask: next() }
    }
    fn well_formed(&self) -> bool {
        self.value & self.mask == T::ZERO && self.max() <= Self::ONES
    }
    fn holds(&self, x: T) -> bool {
        self.contains(x)
    }
}

impl<const W: u32> fmt::Debug for Tnum<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({:#x}; {:#x})", self.value, self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u32 = 4;
    type T = Tnum<W>;

    fn sext(x: u64, w: u32) -> i64 {
        x.sext(w)
    }

    fn all() -> Vec<T> {
        (0..16u64).flat_map(|mask| (0..16u64).filter(move |v| v & mask == 0).map(move |v| T::new(v, mask))).collect()
    }

    fn values(t: T) -> impl Iterator<Item = u64> {
        (0..16u64).filter(move |&x| t.contains(x))
    }

    /// The best abstraction of a set: the join of its elements.
    fn best(set: impl Iterator<Item = u64>) -> T {
        set.map(|x| T::constant(x & 15)).reduce(T::join).expect("not empty")
    }

    #[test]
    fn binary_operators_are_sound_and_the_exact_ones_are_best() {
        type Op = (&'static str, fn(T, T) -> T, fn(u64, u64) -> u64, bool);
        let ops: [Op; 6] = [
            ("add", T::add, u64::wrapping_add, true),
            ("sub", T::sub, u64::wrapping_sub, true),
            ("and", T::and, |a, b| a & b, true),
            ("or", T::or, |a, b| a | b, true),
            ("xor", T::xor, |a, b| a ^ b, true),
            ("mul", T::mul, u64::wrapping_mul, false),
        ];
        for (name, abs, conc, exact) in ops {
            for a in all() {
                for b in all() {
                    let got = abs(a, b);
                    let want = best(values(a).flat_map(|x| values(b).map(move |y| conc(x, y))));
                    assert!(want.subset(got), "{name} {a:?} {b:?}: {got:?} misses values of {want:?}");
                    assert!(!exact || got == want, "{name} {a:?} {b:?}: {got:?}, best is {want:?}");
                }
            }
        }
    }

    #[test]
    fn unary_operators_are_best() {
        for a in all() {
            for k in 0..u64::from(W) {
                assert_eq!(a.lsh(k), best(values(a).map(|x| x << k)));
                assert_eq!(a.rsh(k), best(values(a).map(|x| x >> k)));
                assert_eq!(a.arsh(k), best(values(a).map(|x| (sext(x, W) >> k) as u64)));
            }
            for bits in 1..=W {
                assert_eq!(a.truncate(bits), best(values(a).map(|x| x & ones::<u64>(bits))));
                assert_eq!(a.sign_extend(bits), best(values(a).map(|x| sext(x & ones::<u64>(bits), bits) as u64)));
            }
        }
    }

    #[test]
    fn lattice_operations_match_the_sets() {
        for a in all() {
            for b in all() {
                let sub = values(a).all(|x| b.contains(x));
                assert_eq!(a.subset(b), sub, "{a:?} {b:?}");
                let both: Vec<u64> = values(a).filter(|&x| b.contains(x)).collect();
                match a.intersect(b) {
                    None => assert!(both.is_empty(), "{a:?} {b:?}"),
                    Some(i) => assert_eq!(values(i).collect::<Vec<_>>(), both, "{a:?} {b:?}"),
                }
            }
        }
        for min in 0..16u64 {
            for max in min..16 {
                assert_eq!(T::range(min, max), best(min..=max));
            }
        }
    }
}
