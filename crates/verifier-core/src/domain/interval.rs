//! Unsigned and signed bounds of a `W`-bit value.
//!
//! Problem: the same bits are compared as unsigned and as signed numbers, and each view loses what the other keeps.
//! Approach: keep both ranges; every operator computes each exactly and gives a range up only when the exact result
//! straddles a multiple of 2^W (then it wraps to two pieces). [`Interval::sync`] carries what one view knows to the
//! other.
//!
//! The operators are inlined into the one place that uses each: an interval passed through memory costs more than its
//! arithmetic.
//!
//! Invariants: all four bounds are `W`-bit numbers (the signed ones sign-extended); a value is in the interval when
//! it is in both ranges. An empty interval exists only between a refinement and its `sync`.

use bpf_isa::word::{Numbers, Signed, Wide, Word};

use crate::domain::tnum::Tnum;

/// Both ranges, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interval<const W: u32, T: Word = u64> {
    /// Least unsigned value.
    pub umin: T,
    /// Greatest unsigned value.
    pub umax: T,
    /// Least signed value.
    pub smin: T::Signed,
    /// Greatest signed value.
    pub smax: T::Signed,
}

/// 0, of the bounds as signed numbers.
const fn zero<S: Signed>() -> S {
    S::ZERO
}

impl<const W: u32, T: Word> Interval<W, T> {
    const UMAX: T = T::ONES[W as usize];
    const SMIN: T::Signed = T::Signed::LEAST[W as usize];
    const SMAX: T::Signed = T::Signed::MOST[W as usize];
    /// Every `W`-bit value.
    pub const FULL: Self = Interval { umin: T::ZERO, umax: Self::UMAX, smin: Self::SMIN, smax: Self::SMAX };

    /// Exactly `v`, taken modulo 2^W.
    pub fn constant(v: T) -> Self {
        let (u, s) = (v & Self::UMAX, v.sext(W));
        Interval { umin: u, umax: u, smin: s, smax: s }
    }

    /// The unsigned range, nothing known as signed.
    pub fn unsigned(umin: T, umax: T) -> Self {
        Interval { umin, umax, ..Self::FULL }
    }

    /// The signed range, nothing known as unsigned.
    pub fn signed(smin: T::Signed, smax: T::Signed) -> Self {
        Interval { smin, smax, ..Self::FULL }
    }

    /// Whether the `W`-bit pattern `x` is in both ranges.
    pub fn contains(self, x: T) -> bool {
        let s = x.sext(W);
        self.umin <= x && x <= self.umax && self.smin <= s && s <= self.smax
    }

    /// Whether both ranges lie in those of `other`.
    pub fn subset(self, other: Self) -> bool {
        self.umin >= other.umin && self.umax <= other.umax && self.smin >= other.smin && self.smax <= other.smax
    }

    /// The intersection of both ranges with those of `other`.
    pub fn intersect(self, other: Self) -> Self {
        Interval {
            umin: self.umin.max(other.umin),
            umax: self.umax.min(other.umax),
            smin: self.smin.max(other.smin),
            smax: self.smax.min(other.smax),
        }
    }

    /// The least ranges that hold the values of both intervals.
    pub fn join(self, other: Self) -> Self {
        Interval {
            umin: self.umin.min(other.umin),
            umax: self.umax.max(other.umax),
            smin: self.smin.min(other.smin),
            smax: self.smax.max(other.smax),
        }
    }

    /// Whether one of the ranges is empty.
    pub fn is_empty(self) -> bool {
        self.umin > self.umax || self.smin > self.smax
    }

    /// Whether a single unsigned value is left.
    pub fn is_const(self) -> bool {
        self.umin == self.umax
    }

    /// Carries what each view knows to the other.
    ///
    /// On the circle of 2^W values the unsigned range is one arc and the signed range another. Where a range does not
    /// cross the other view's seam its ends translate directly. Where both cross, their intersection is the
    /// non-negative piece `umin ..= smax` and the negative piece `smin ..= umax`; if one is empty the other remains.
    #[inline(always)]
    pub fn sync(&mut self) {
        T::step(self, |i| {
            i.exchange();
            true
        });
    }

    /// [`Interval::sync`] without the hook that lets a proof treat it as one step.
    #[inline(always)]
    pub(crate) fn exchange(&mut self) {
        let as_u = |s: T::Signed| s.unsigned() & Self::UMAX;
        let as_s = |u: T| u.sext(W);
        if as_s(self.umin) <= as_s(self.umax) {
            self.smin = self.smin.max(as_s(self.umin));
            self.smax = self.smax.min(as_s(self.umax));
        }
        if as_u(self.smin) <= as_u(self.smax) {
            self.umin = self.umin.max(as_u(self.smin));
            self.umax = self.umax.min(as_u(self.smax));
        } else if self.umin > as_u(self.smax) {
            self.umin = self.umin.max(as_u(self.smin));
            self.smax = self.smax.min(as_s(self.umax));
        } else if as_u(self.smin) > self.umax {
            self.smin = self.smin.max(as_s(self.umin));
            self.umax = self.umax.min(as_u(self.smax));
        }
    }

    /// Intersects both ranges with the bounds that the known bits imply.
    #[inline(always)]
    pub fn meet_tnum(&mut self, t: Tnum<W, T>) {
        let sign = T::ONE << (W - 1);
        self.umin = self.umin.max(t.value());
        self.umax = self.umax.min(t.max());
        self.smin = self.smin.max((t.value() | t.mask() & sign).sext(W));
        self.smax = self.smax.min((t.value() | t.mask() & !sign).sext(W));
    }

    /// Sum. A view's range is given up when one of its ends wraps and the other does not.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    #[inline(always)]
    pub fn add(self, other: Self) -> Self {
        let mut r = Self::FULL;
        let (umin, umax) =
            (self.umin.wrapping_add(other.umin) & Self::UMAX, self.umax.wrapping_add(other.umax) & Self::UMAX);
        // An unsigned sum wrapped exactly if it is below its summands.
        if T::ask(|| (umin < self.umin) == (umax < self.umax)) {
            (r.umin, r.umax) = (umin, umax);
        }
        let ends = [(self.smin, other.smin), (self.smax, other.smax)];
        let [(smin, below), (smax, above)] = ends.map(|(a, b)| {
            let sum = a.wrapping_add(b).unsigned().sext(W);
            // A signed sum wrapped exactly if its sign differs from the sign of both summands. The summands' sign tells
            // whether it wrapped upwards or downwards.
            let wrapped = ((a ^ sum) & (b ^ sum)) >> 63;
            (sum, wrapped & (a.signum() | Signed::ONE))
        });
        if below == above {
            (r.smin, r.smax) = (smin, smax);
        }
        r
    }

    /// Difference. A view's range is given up when one of its ends wraps and the other does not.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    #[inline(always)]
    pub fn sub(self, other: Self) -> Self {
        let mut r = Self::FULL;
        let (umin, umax) =
            (self.umin.wrapping_sub(other.umax) & Self::UMAX, self.umax.wrapping_sub(other.umin) & Self::UMAX);
        if T::ask(|| (self.umin < other.umax) == (self.umax < other.umin)) {
            (r.umin, r.umax) = (umin, umax);
        }
        let ends = [(self.smin, other.smax), (self.smax, other.smin)];
        let [(smin, below), (smax, above)] = ends.map(|(a, b)| {
            let difference = a.wrapping_sub(b).unsigned().sext(W);
            // A signed difference wrapped exactly if the operands' signs differ and the difference does not have the
            // minuend's sign.
            let wrapped = ((a ^ b) & (a ^ difference)) >> 63;
            (difference, wrapped & (a.signum() | Signed::ONE))
        });
        if below == above {
            (r.smin, r.smax) = (smin, smax);
        }
        r
    }

    /// Product.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    pub fn mul(self, other: Self) -> Self {
        let mut r = Self::FULL;
        let product = |a: T, b: T| a.wide().wrapping_mul(b.wide());
        let (least, most) = (product(self.umin, other.umin), product(self.umax, other.umax));
        // Products of 2^127 and more are negative here, which changes no bit between W and 2W: equal high halves mean
        // equal wraps.
        if least >> W == most >> W {
            (r.umin, r.umax) = (least.low() & Self::UMAX, most.low() & Self::UMAX);
        }
        let product = |a: T::Signed, b: T::Signed| a.wide().wrapping_mul(b.wide());
        let (a, b) = (product(self.smin, other.smin), product(self.smin, other.smax));
        let (c, d) = (product(self.smax, other.smin), product(self.smax, other.smax));
        let (least, most) = (a.min(b).min(c.min(d)), a.max(b).max(c.max(d)));
        let half = T::ONE.wide() << (W - 1);
        if (least + half) >> W == (most + half) >> W {
            (r.smin, r.smax) = (least.low().sext(W), most.low().sext(W));
        }
        r
    }

    /// Bitwise and.
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        let mut r = Self::unsigned(T::ZERO, self.umax.min(other.umax));
        match (self.smin >= zero(), other.smin >= zero()) {
            (true, true) => (r.smin, r.smax) = (zero(), self.smax.min(other.smax)),
            (true, false) => (r.smin, r.smax) = (zero(), self.smax),
            (false, true) => (r.smin, r.smax) = (zero(), other.smax),
            (false, false) => {
                // Two numbers >= -2^k share the ones from bit k up when negative, so their and is >= -2^k.
                r.smin = !(!self.smin.min(other.smin)).unsigned().fill().signed();
                r.smax = self.smax.max(other.smax);
            }
        }
        r
    }

    /// Bitwise or.
    #[inline(always)]
    pub fn or(self, other: Self) -> Self {
        let mut r = Self::unsigned(self.umin.max(other.umin), (self.umax | other.umax).fill());
        r.smin = match (self.smax < zero(), other.smax < zero()) {
            (true, true) => self.smin.max(other.smin),
            (true, false) => self.smin,
            (false, true) => other.smin,
            (false, false) => self.smin.min(other.smin),
        };
        r.smax = match self.smax < zero() || other.smax < zero() {
            true => -T::Signed::ONE,
            false => (self.smax | other.smax).unsigned().fill().signed(),
        };
        r
    }

    /// Bitwise exclusive or.
    #[inline(always)]
    pub fn xor(self, other: Self) -> Self {
        let mut r = Self::unsigned(T::ZERO, (self.umax | other.umax).fill());
        let magnitude = |i: Self| if i.smin < zero() { !i.smin | i.smax.max(zero()) } else { i.smax };
        let most = (magnitude(self) | magnitude(other)).unsigned().fill().signed();
        let positive = |i: Self| i.smin >= zero();
        let negative = |i: Self| i.smax < zero();
        let same = (positive(self) && positive(other)) || (negative(self) && negative(other));
        let differ = (positive(self) && negative(other)) || (negative(self) && positive(other));
        r.smin = if same { zero() } else { !most };
        r.smax = if differ { -T::Signed::ONE } else { most };
        r
    }

    /// Left shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn lsh(self, kmin: T, kmax: T) -> Self {
        let mut r = Self::FULL;
        let (s, top) = (self.smin, T::of(u64::from(W - 1)));
        if kmin == kmax {
            // Both unsigned ends wrap alike if the same bits are shifted out. Both signed ends wrap alike if the same
            // bits are shifted out and the new sign bits agree.
            let k = kmin;
            if self.umin >> (top - k) >> 1 == self.umax >> (top - k) >> 1 {
                (r.umin, r.umax) = (self.umin << k & Self::UMAX, self.umax << k & Self::UMAX);
            }
            // Half of `s`, rounded up. Adding 1 before the shift would overflow for the greatest number, at a shift by
            // W - 1.
            // 1.
            let half_up = |s: T::Signed| (s >> 1) + (s & Signed::ONE);
            let out = |s: T::Signed| half_up(s >> (top - k));
            if out(self.smin) == out(self.smax) {
                (r.smin, r.smax) = ((self.smin << k).unsigned().sext(W), (self.smax << k).unsigned().sext(W));
            }
            return r;
        }
        // Different counts wrap differently, so only ranges that do not wrap for any count are kept.
        if self.umax <= Self::UMAX >> kmax {
            (r.umin, r.umax) = (self.umin << kmin, self.umax << kmax);
        }
        let (low, high) = (if s < zero() { kmax } else { kmin }, if self.smax < zero() { kmin } else { kmax });
        if self.smin >= Self::SMIN >> low && self.smax <= Self::SMAX >> high {
            (r.smin, r.smax) = (self.smin << low, self.smax << high);
        }
        r
    }

    /// Logical right shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn rsh(self, kmin: T, kmax: T) -> Self {
        Self::unsigned(self.umin >> kmax, self.umax >> kmin)
    }

    /// Arithmetic right shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn arsh(self, kmin: T, kmax: T) -> Self {
        let smin = self.smin >> if self.smin < zero() { kmin } else { kmax };
        let smax = self.smax >> if self.smax < zero() { kmax } else { kmin };
        Self::signed(smin, smax)
    }

    /// Unsigned quotient; x / 0 = 0.
    pub fn udiv(self, other: Self) -> Self {
        let Some(least) = self.umin.checked_div(other.umax) else { return Self::constant(T::ZERO) };
        let least = if other.umin == T::ZERO { T::ZERO } else { least };
        Self::unsigned(least, self.umax.checked_div(other.umin.max(T::ONE)).unwrap_or(self.umax))
    }

    /// Unsigned remainder; x % 0 = x.
    pub fn umod(self, other: Self) -> Self {
        if self.umax < other.umin || other.umax == T::ZERO {
            return self;
        }
        let by_zero = if other.umin == T::ZERO { self.umax } else { T::ZERO };
        Self::unsigned(T::ZERO, self.umax.min(other.umax - T::ONE).max(by_zero))
    }

    /// Signed, truncating quotient; x / 0 = 0, MIN / -1 = MIN.
    pub fn sdiv(self, other: Self) -> Self {
        let (one, minus) = (T::Signed::ONE, -T::Signed::ONE);
        if self.smin == Self::SMIN && other.smin <= minus && other.smax >= minus {
            return Self::FULL;
        }
        let has_zero = other.smin <= zero() && other.smax >= zero();
        let nothing = (T::Signed::MOST[64], T::Signed::LEAST[64]);
        let (mut smin, mut smax) = if has_zero { (zero(), zero()) } else { nothing };
        // The quotient is monotone in each operand on each side of a zero divisor, so its extremes are at corners.
        for (lo, hi) in [(other.smin, other.smax.min(minus)), (other.smin.max(one), other.smax)] {
            if lo <= hi {
                for (x, y) in [(self.smin, lo), (self.smin, hi), (self.smax, lo), (self.smax, hi)] {
                    smin = smin.min(x / y);
                    smax = smax.max(x / y);
                }
            }
        }
        Self::signed(smin, smax)
    }

    /// Signed remainder with the dividend's sign; x % 0 = x, MIN % -1 = 0.
    pub fn smod(self, other: Self) -> Self {
        // The remainder is smaller in magnitude than a divisor that is not 0. For divisor 0 it is the dividend.
        let by_zero = other.smin <= zero() && other.smax >= zero();
        let greatest = other.smin.unsigned_abs().max(other.smax.unsigned_abs());
        let (mut smin, mut smax) = (self.smin, self.smax);
        if !by_zero {
            let most = (greatest - T::ONE).signed();
            smin = smin.max(-most);
            smax = smax.min(most);
        }
        Self::signed(smin.min(zero()), smax.max(zero()))
    }
}

impl<const W: u32, T: Word> Numbers<T> for Interval<W, T> {
    const BITS: u32 = W;

    fn of_words(next: &mut impl FnMut() -> T) -> Self {
        Interval { umin: next(), umax: next(), smin: next().signed(), smax: next().signed() }
    }
    fn well_formed(&self) -> bool {
        let signed = |s: T::Signed| Self::SMIN <= s && s <= Self::SMAX;
        self.umin <= Self::UMAX && self.umax <= Self::UMAX && signed(self.smin) && signed(self.smax)
    }
    fn holds(&self, x: T) -> bool {
        self.contains(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full width needs a test of its own: at 64 bits the machine word has no spare bit, unlike at the exhaustively
    /// tested small widths.
    #[test]
    fn left_shifts_keep_the_ends_at_full_width() {
        let ends = [i64::MIN, i64::MIN + 1, -2, -1, 0, 1, 2, i64::MAX - 1, i64::MAX];
        for k in 0..64 {
            for (i, &smin) in ends.iter().enumerate() {
                for &smax in &ends[i..] {
                    let shifted = Interval::<64>::signed(smin, smax).lsh(k, k);
                    for x in ends.into_iter().filter(|x| (smin..=smax).contains(x)) {
                        let result = (x as u64) << k;
                        assert!(
                            shifted.contains(result),
                            "{x} << {k} is {result:#x}: {smin}..={smax} give {shifted:?}"
                        );
                    }
                }
            }
        }
    }
}
