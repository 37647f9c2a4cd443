//! Unsigned and signed bounds of a `W`-bit value.
//!
//! Problem: the same bits are compared as unsigned and as signed numbers, and each view loses what the other keeps.
//! Approach: keep both ranges; every operator computes each from exact arithmetic in 128 bits and gives a range up
//! only when the exact result straddles a multiple of 2^W (then it wraps to two pieces). [`Interval::sync`] carries
//! what one view knows to the other.
//!
//! The operators are inlined into the one place that uses each: an interval passed through memory costs more than its
//! arithmetic.
//!
//! Invariants: all four bounds are `W`-bit numbers (the signed ones sign-extended); a value is in the interval when
//! it is in both ranges. An empty interval exists only between a refinement and its `sync`.

use crate::tnum::{Tnum, ones, sext};

/// Both ranges, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interval<const W: u32> {
    /// Least unsigned value.
    pub umin: u64,
    /// Greatest unsigned value.
    pub umax: u64,
    /// Least signed value.
    pub smin: i64,
    /// Greatest signed value.
    pub smax: i64,
}

/// Every bit up to the highest one of `x` set.
fn fill(x: u64) -> u64 {
    ones(64 - x.leading_zeros())
}

impl<const W: u32> Interval<W> {
    const SMIN: i64 = sext(1 << (W - 1), W);
    const SMAX: i64 = !Self::SMIN;
    /// Every `W`-bit value.
    pub const FULL: Self = Interval { umin: 0, umax: ones(W), smin: Self::SMIN, smax: Self::SMAX };

    /// Exactly `v`, taken modulo 2^W.
    pub fn constant(v: u64) -> Self {
        let (u, s) = (v & ones(W), sext(v & ones(W), W));
        Interval { umin: u, umax: u, smin: s, smax: s }
    }

    /// The unsigned range, nothing known as signed.
    pub fn unsigned(umin: u64, umax: u64) -> Self {
        Interval { umin, umax, ..Self::FULL }
    }

    /// The signed range, nothing known as unsigned.
    pub fn signed(smin: i64, smax: i64) -> Self {
        Interval { smin, smax, ..Self::FULL }
    }

    /// Whether the `W`-bit pattern `x` is in both ranges.
    pub fn contains(self, x: u64) -> bool {
        let s = sext(x, W);
        self.umin <= x && x <= self.umax && self.smin <= s && s <= self.smax
    }

    /// Whether both ranges lie in those of `other`.
    pub fn subset(self, other: Self) -> bool {
        self.umin >= other.umin && self.umax <= other.umax && self.smin >= other.smin && self.smax <= other.smax
    }

    /// Both ranges cut by those of `other`.
    pub fn intersect(self, other: Self) -> Self {
        Interval {
            umin: self.umin.max(other.umin),
            umax: self.umax.min(other.umax),
            smin: self.smin.max(other.smin),
            smax: self.smax.min(other.smax),
        }
    }

    /// The least ranges that hold both.
    pub fn join(self, other: Self) -> Self {
        Interval {
            umin: self.umin.min(other.umin),
            umax: self.umax.max(other.umax),
            smin: self.smin.min(other.smin),
            smax: self.smax.max(other.smax),
        }
    }

    /// Whether one of the ranges holds nothing.
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
        let as_u = |s: i64| s as u64 & ones(W);
        let as_s = |u: u64| sext(u, W);
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

    /// Cuts both ranges to what the known bits allow.
    #[inline(always)]
    pub fn meet_tnum(&mut self, t: Tnum<W>) {
        let sign = 1u64 << (W - 1);
        self.umin = self.umin.max(t.value());
        self.umax = self.umax.min(t.max());
        self.smin = self.smin.max(sext(t.value() | t.mask() & sign, W));
        self.smax = self.smax.min(sext(t.value() | t.mask() & !sign, W));
    }

    /// The unsigned range of exact results `lo ..= hi`, if they wrap alike.
    fn wrap_u(lo: i128, hi: i128) -> (u64, u64) {
        if lo >> W == hi >> W { (lo as u64 & ones(W), hi as u64 & ones(W)) } else { (0, ones(W)) }
    }

    /// The signed range of exact results `lo ..= hi`, if they wrap alike.
    fn wrap_s(lo: i128, hi: i128) -> (i64, i64) {
        let half = 1i128 << (W - 1);
        if (lo + half) >> W == (hi + half) >> W {
            (sext(lo as u64 & ones(W), W), sext(hi as u64 & ones(W), W))
        } else {
            (Self::SMIN, Self::SMAX)
        }
    }

    fn wrapped(u: (i128, i128), s: (i128, i128)) -> Self {
        let ((umin, umax), (smin, smax)) = (Self::wrap_u(u.0, u.1), Self::wrap_s(s.0, s.1));
        Interval { umin, umax, smin, smax }
    }

    /// Sum: given up when its ends wrap differently.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    #[inline(always)]
    pub fn add(self, other: Self) -> Self {
        let mut r = Self::FULL;
        let (umin, umax) = (self.umin.wrapping_add(other.umin) & ones(W), self.umax.wrapping_add(other.umax) & ones(W));
        // A sum that wrapped is below each of its summands.
        if (umin < self.umin) == (umax < self.umax) {
            (r.umin, r.umax) = (umin, umax);
        }
        let ends = [(self.smin, other.smin), (self.smax, other.smax)];
        let [(smin, below), (smax, above)] = ends.map(|(a, b)| {
            let sum = sext(a.wrapping_add(b) as u64 & ones(W), W);
            // It wrapped if its sign is that of neither summand: up or down, as theirs says.
            let wrapped = (a ^ sum) & (b ^ sum) < 0;
            (sum, if wrapped { a.signum() | 1 } else { 0 })
        });
        if below == above {
            (r.smin, r.smax) = (smin, smax);
        }
        r
    }

    /// Difference: given up when its ends wrap differently.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    #[inline(always)]
    pub fn sub(self, other: Self) -> Self {
        let mut r = Self::FULL;
        let (umin, umax) = (self.umin.wrapping_sub(other.umax) & ones(W), self.umax.wrapping_sub(other.umin) & ones(W));
        if (self.umin < other.umax) == (self.umax < other.umin) {
            (r.umin, r.umax) = (umin, umax);
        }
        let ends = [(self.smin, other.smax), (self.smax, other.smin)];
        let [(smin, below), (smax, above)] = ends.map(|(a, b)| {
            let difference = sext(a.wrapping_sub(b) as u64 & ones(W), W);
            // It wrapped if the operands' signs differ and the first's is lost.
            let wrapped = (a ^ b) & (a ^ difference) < 0;
            (difference, if wrapped { a.signum() | 1 } else { 0 })
        });
        if below == above {
            (r.smin, r.smax) = (smin, smax);
        }
        r
    }

    /// Product.
    #[expect(clippy::should_implement_trait, reason = "wraps at W, unlike the operator's usual contract")]
    pub fn mul(self, other: Self) -> Self {
        let (c, d, r, s) = (self.smin as i128, self.smax as i128, other.smin as i128, other.smax as i128);
        let corners = [c * r, c * s, d * r, d * s];
        let smin = corners.into_iter().fold(i128::MAX, i128::min);
        let smax = corners.into_iter().fold(i128::MIN, i128::max);
        let ulo = u128::from(self.umin) * u128::from(other.umin);
        let uhi = u128::from(self.umax) * u128::from(other.umax);
        let (umin, umax) =
            if ulo >> W == uhi >> W { (ulo as u64 & ones(W), uhi as u64 & ones(W)) } else { (0, ones(W)) };
        let (smin, smax) = Self::wrap_s(smin, smax);
        Interval { umin, umax, smin, smax }
    }

    /// Bitwise and.
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        let mut r = Self::unsigned(0, self.umax.min(other.umax));
        match (self.smin >= 0, other.smin >= 0) {
            (true, true) => (r.smin, r.smax) = (0, self.smax.min(other.smax)),
            (true, false) => (r.smin, r.smax) = (0, self.smax),
            (false, true) => (r.smin, r.smax) = (0, other.smax),
            (false, false) => {
                // Two numbers >= -2^k share the ones from bit k up when negative, so their and is >= -2^k.
                r.smin = !(fill(!self.smin.min(other.smin) as u64) as i64);
                r.smax = self.smax.max(other.smax);
            }
        }
        r
    }

    /// Bitwise or.
    #[inline(always)]
    pub fn or(self, other: Self) -> Self {
        let mut r = Self::unsigned(self.umin.max(other.umin), fill(self.umax | other.umax));
        r.smin = match (self.smax < 0, other.smax < 0) {
            (true, true) => self.smin.max(other.smin),
            (true, false) => self.smin,
            (false, true) => other.smin,
            (false, false) => self.smin.min(other.smin),
        };
        r.smax = if self.smax < 0 || other.smax < 0 { -1 } else { fill((self.smax | other.smax) as u64) as i64 };
        r
    }

    /// Bitwise exclusive or.
    #[inline(always)]
    pub fn xor(self, other: Self) -> Self {
        let mut r = Self::unsigned(0, fill(self.umax | other.umax));
        let magnitude = |i: Self| if i.smin < 0 { !i.smin as u64 | i.smax.max(0) as u64 } else { i.smax as u64 };
        let most = fill(magnitude(self) | magnitude(other)) as i64;
        let same = (self.smin >= 0 && other.smin >= 0) || (self.smax < 0 && other.smax < 0);
        let differ = (self.smin >= 0 && other.smax < 0) || (self.smax < 0 && other.smin >= 0);
        r.smin = if same { 0 } else { !most };
        r.smax = if differ { -1 } else { most };
        r
    }

    /// Left shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn lsh(self, kmin: u32, kmax: u32) -> Self {
        let u = (i128::from(self.umin) << kmin, (u128::from(self.umax) << kmax) as i128);
        // At W = 64 a shift by 63 of a 64-bit number still fits in 127 bits and a sign.
        let shift = |x: i64, when_neg: u32, when_pos: u32| i128::from(x) << if x < 0 { when_neg } else { when_pos };
        let s = (shift(self.smin, kmax, kmin), shift(self.smax, kmin, kmax));
        if kmin == kmax {
            return Self::wrapped(u, s);
        }
        // Different counts wrap differently: keep only what does not wrap at all.
        let mut r = Self::FULL;
        if u.1 <= i128::from(ones(W)) {
            (r.umin, r.umax) = (u.0 as u64, u.1 as u64);
        }
        if s.0 >= i128::from(Self::SMIN) && s.1 <= i128::from(Self::SMAX) {
            (r.smin, r.smax) = (s.0 as i64, s.1 as i64);
        }
        r
    }

    /// Logical right shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn rsh(self, kmin: u32, kmax: u32) -> Self {
        Self::unsigned(self.umin >> kmax, self.umax >> kmin)
    }

    /// Arithmetic right shift by `kmin ..= kmax`, both below W.
    #[inline(always)]
    pub fn arsh(self, kmin: u32, kmax: u32) -> Self {
        let smin = self.smin >> if self.smin < 0 { kmin } else { kmax };
        let smax = self.smax >> if self.smax < 0 { kmax } else { kmin };
        Self::signed(smin, smax)
    }

    /// Unsigned quotient; x / 0 = 0.
    pub fn udiv(self, other: Self) -> Self {
        if other.umax == 0 {
            return Self::constant(0);
        }
        let least = if other.umin == 0 { 0 } else { self.umin / other.umax };
        Self::unsigned(least, self.umax / other.umin.max(1))
    }

    /// Unsigned remainder; x % 0 = x.
    pub fn umod(self, other: Self) -> Self {
        if self.umax < other.umin || other.umax == 0 {
            return self;
        }
        let by_zero = if other.umin == 0 { self.umax } else { 0 };
        Self::unsigned(0, self.umax.min(other.umax - 1).max(by_zero))
    }

    /// Signed, truncating quotient; x / 0 = 0, MIN / -1 = MIN.
    pub fn sdiv(self, other: Self) -> Self {
        if self.smin == Self::SMIN && other.smin <= -1 && other.smax >= -1 {
            return Self::FULL;
        }
        let has_zero = other.smin <= 0 && other.smax >= 0;
        let (mut smin, mut smax) = if has_zero { (0, 0) } else { (i64::MAX, i64::MIN) };
        // The quotient is monotone in each operand on each side of a zero divisor, so its extremes are at corners.
        for (lo, hi) in [(other.smin, other.smax.min(-1)), (other.smin.max(1), other.smax)] {
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
        // The remainder is smaller than the divisor in magnitude, unless by zero: then it is the dividend.
        let by_zero = other.smin <= 0 && other.smax >= 0;
        let greatest = other.smin.unsigned_abs().max(other.smax.unsigned_abs());
        let (mut smin, mut smax) = (self.smin, self.smax);
        if !by_zero {
            smin = smin.max(-((greatest - 1) as i64));
            smax = smax.min((greatest - 1) as i64);
        }
        let (smin, smax) = (smin.min(0), smax.max(0));
        Self::signed(smin, smax)
    }
}
