//! The numeric domain: known bits, and ranges of the whole number and of its low half, each unsigned and signed.
//!
//! Problem: BPF programs bound a value in one width and use it in the other, by sign or by magnitude or by mask; a
//! domain that loses the connection refuses real programs, one that invents it is a CVE. Approach: [`Num`] keeps a
//! [`Tnum`] and an [`Interval`] for the whole and for the low half. An operator computes every component separately
//! from the same component of its operands (each is sound alone), and `Num::sync` carries knowledge between them.
//!
//! Invariants: γ(Num) = the `W`-bit values in *all* components; `sync` never removes a value of γ; a `Num` handed out
//! is synced and not empty. The width is a parameter: [`Scalar`] is `Num<64, 32>`, and the tests run the same code
//! exhaustively at 4/2 and 6/3 bits. `H` is always `W / 2`. The word type is a parameter, too: the code runs on `u64`,
//! and is proven on terms (`bpf_isa::word`, `cargo xtask prove`).

mod alu;
mod branch;
/// Whether `v - by` wraps, decided by the bounds of `v` (both included); `None` if the bounds do not decide it.
#[doc(hidden)]
pub fn wrapped_by_whole<T: Word>((min, max): (T, T), by: T) -> Option<bool> {
    match (min >= by, max < by) {
        (true, false) => Some(false),
        (false, true) => Some(true),
        _ => None,
    }
}

/// Whether `v - by`, modulo `top + 1`, wrapped, decided by the bounds of the difference (both included); `None` if they
/// do not decide it. `v` is at most `top`, and at most `whole` if that is known. `by` is at least 1.
#[doc(hidden)]
pub fn wrapped_by_difference<T: Word>((min, max): (T, T), by: T, top: T, whole: Option<T>) -> Option<bool> {
    // A difference that did not wrap is at most `top - by`. A difference that wrapped is above that.
    let most = top.checked_sub(by)?;
    // A difference that did not wrap is also at most `whole - by`.
    let beyond = whole.is_some_and(|whole| match whole.checked_sub(by) {
        Some(most) => min > most,
        None => true,
    });
    match (max <= most, min > most || beyond) {
        (true, false) => Some(false),
        (false, true) => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

pub use self::alu::eval;
pub(crate) use self::alu::{bits, range};
use crate::domain::interval::Interval;
use crate::domain::tnum::{Tnum, ones};
use bpf_isa::word::{Numbers, Signed, Word};
use std::fmt;

/// The abstract value of a `W`-bit number and of its low `H` bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Num<const W: u32, const H: u32, T: Word = u64> {
    bits: Tnum<W, T>,
    full: Interval<W, T>,
    low: Interval<H, T>,
}

/// The abstract value of a 64-bit register.
pub type Scalar = Num<64, 32>;

impl<const W: u32, const H: u32, T: Word> Num<W, H, T> {
    /// Nothing known.
    pub const UNKNOWN: Self = Num { bits: Tnum::UNKNOWN, full: Interval::FULL, low: Interval::FULL };

    /// Exactly `v`, taken modulo 2^W.
    pub fn constant(v: T) -> Self {
        Num { bits: Tnum::constant(v), full: Interval::constant(v), low: Interval::constant(v) }
    }

    /// At least `min` and at most `max`, unsigned. A `min` above `max` is taken as `max`.
    pub fn unsigned(min: T, max: T) -> Self {
        Self::of(Tnum::UNKNOWN, Interval::unsigned(min.min(max), max), Interval::FULL)
    }

    /// At least `min` and at most `max`, signed. A `min` above `max` is taken as `max`.
    pub fn signed(min: T::Signed, max: T::Signed) -> Self {
        Self::of(Tnum::UNKNOWN, Interval::signed(min.min(max), max), Interval::FULL)
    }

    /// Any value of the low `bits` bits, zero above.
    pub fn low_bits(bits: u32) -> Self {
        if bits >= W { Self::UNKNOWN } else { Self::unsigned(T::ZERO, ones(bits)) }
    }

    /// The number whose values are those in all three components.
    ///
    /// The components must have a value in common, as components computed from non-empty operands have. If they had
    /// none, the result would be empty and every later check on it vacuous, so this gives up all knowledge instead.
    #[doc(hidden)]
    pub fn of(bits: Tnum<W, T>, full: Interval<W, T>, low: Interval<H, T>) -> Self {
        let mut n = Num { bits, full, low };
        n.settle();
        n
    }

    /// [`Num::of`], in place.
    fn settle(&mut self) {
        if !self.sync() {
            *self = Self::UNKNOWN;
        }
    }

    /// Least unsigned value.
    pub fn umin(&self) -> T {
        self.full.umin
    }
    /// Greatest unsigned value.
    pub fn umax(&self) -> T {
        self.full.umax
    }
    /// A lower bound of all values: the least number, at or above the least unsigned value, whose low bits are those
    /// known.
    #[doc(hidden)]
    pub fn aligned_least(&self) -> T {
        let known = self.bits.mask();
        // The bits below the lowest unknown bit.
        let low = !known & known.wrapping_sub(T::ONE);
        let up = self.full.umin & !low | self.bits.value() & low;
        match up >= self.full.umin {
            true => up,
            false => up.checked_add(low.wrapping_add(T::ONE)).unwrap_or(self.full.umin),
        }
    }
    /// A lower bound of all values as signed numbers, found as in [`Num::aligned_least`].
    #[doc(hidden)]
    pub fn aligned_signed_least(&self) -> T::Signed {
        let known = self.bits.mask();
        let low = !known & known.wrapping_sub(T::ONE);
        let up = self.full.smin.unsigned() & !low | self.bits.value() & low;
        let beyond = up.wrapping_add(low).wrapping_add(T::ONE).signed();
        // If the sum overflows the signed numbers, it is below `smin`, and `smin` stays the bound.
        match up.signed() >= self.full.smin {
            true => up.signed(),
            false => beyond.max(self.full.smin),
        }
    }
    /// The number with both lower bounds raised to the least value that has the known low bits. A loop's distance in
    /// strides is counted from there: `!=` may have removed just one value at an end of the range.
    #[doc(hidden)]
    pub fn aligned(&self) -> Self {
        let above = Num::signed(self.aligned_signed_least(), T::Signed::MOST[W as usize]);
        let above = self.meet(&above).unwrap_or(*self);
        above.meet(&Num::unsigned(above.aligned_least(), T::ONES[W as usize])).unwrap_or(above)
    }
    /// Least signed value.
    pub fn smin(&self) -> T::Signed {
        self.full.smin
    }
    /// Greatest signed value.
    pub fn smax(&self) -> T::Signed {
        self.full.smax
    }
    /// The known bits.
    pub fn bits(&self) -> Tnum<W, T> {
        self.bits
    }
    /// Ranges of the low half.
    pub fn low_range(&self) -> Interval<H, T> {
        self.low
    }

    /// The value, if there is only one.
    pub fn as_const(&self) -> Option<T> {
        (self.full.umin == self.full.umax).then_some(self.full.umin)
    }

    /// Whether all bits above the low half are known to be zero.
    pub fn high_half_is_zero(&self) -> bool {
        self.full.umax <= ones(H)
    }

    /// Whether `x` is one of the values.
    pub fn contains(&self, x: T) -> bool {
        self.bits.contains(x) && self.full.contains(x) && self.low.contains(x & ones(H))
    }

    /// Whether every value of `self` is one of `other`, component by component.
    pub fn subset(&self, other: &Self) -> bool {
        self.full.subset(other.full) && self.low.subset(other.low) && self.bits.subset(other.bits)
    }

    /// The values in both numbers; `None` if the components are found to have none in common.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        let bits = self.bits.intersect(other.bits)?;
        let mut n = Num { bits, full: self.full.intersect(other.full), low: self.low.intersect(other.low) };
        n.sync().then_some(n)
    }

    /// An abstract value that holds the values of both.
    pub fn join(&self, other: &Self) -> Self {
        Self::of(self.bits.join(other.bits), self.full.join(other.full), self.low.join(other.low))
    }

    /// Carries knowledge between all components. `false` if they are found to have no value in common.
    fn sync(&mut self) -> bool {
        T::step(self, Self::exchange)
    }

    /// [`Num::sync`] without the hook that lets a proof treat it as one step.
    ///
    /// Most numbers of most programs are bytes, lengths and offsets whose high half is zero; they take a short way.
    pub(crate) fn exchange(&mut self) -> bool {
        if self.bits.is_const() {
            return self.sync_const(self.bits.value());
        }
        if self.bits.max() <= ones(H) {
            return T::step(self, Self::sync_small);
        }
        if self.knows_nothing() {
            return true;
        }
        T::step(self, Self::sync_wide)
    }

    /// Whether this is [`Num::UNKNOWN`]. The comparison that decides most calls stands first.
    fn knows_nothing(&self) -> bool {
        T::ask(|| self.bits.mask() == ones(W) && self.full == Interval::FULL && self.low == Interval::FULL)
    }

    /// `sync` for a number whose high half is zero. Its unsigned value in either width and its signed value in the
    /// whole width agree. If the low half's sign bit is zero, its signed value in the low half agrees as well.
    pub(crate) fn sync_small(&mut self) -> bool {
        let half = ones::<T>(H) >> 1;
        let (full, low) = (&self.full, &self.low);
        // A signed bound of the whole below zero says nothing of a number that is not negative.
        let mut lo = full.umin.max(low.umin).max(full.smin.max(T::Signed::ZERO).unsigned());
        let mut hi = match full.smax.not_negative() {
            Some(smax) => full.umax.min(low.umax).min(smax),
            None => return false,
        };
        let (mut smin, mut smax) = (low.smin, low.smax);
        // Two rounds, as in `sync_wide`: the ranges refine the bits, and the bits can refine the ranges again.
        for _ in 0..2 {
            lo = lo.max(self.bits.value());
            hi = hi.min(self.bits.max());
            if lo > hi || smin > smax {
                return false;
            }
            if hi <= half {
                lo = lo.max(smin.max(T::Signed::ZERO).unsigned());
                match smax.not_negative() {
                    Some(smax) => hi = hi.min(smax),
                    None => return false,
                }
                (smin, smax) = (lo.signed(), hi.signed());
            } else {
                let mut view = Interval::<H, T> { umin: lo, umax: hi, smin, smax };
                view.meet_tnum(self.bits.low());
                view.sync();
                (lo, hi, smin, smax) = (view.umin, view.umax, view.smin, view.smax);
            }
            if lo > hi || smin > smax {
                return false;
            }
            let before = self.bits;
            let Some(bits) = self.bits.intersect(Tnum::range(lo, hi)) else { return false };
            self.bits = bits;
            if bits.is_const() {
                self.full = Interval { umin: lo, umax: hi, ..Interval::FULL };
                self.low = Interval { umin: lo, umax: hi, smin, smax };
                return self.sync_const(bits.value());
            }
            if T::ask(|| bits == before) {
                break;
            }
        }
        self.low = Interval { umin: lo, umax: hi, smin, smax };
        self.low.meet_tnum(self.bits.low());
        (lo, hi) = (self.low.umin, self.low.umax);
        self.full = Interval { umin: lo, umax: hi, smin: lo.signed(), smax: hi.signed() };
        !self.low.is_empty()
    }

    /// `sync` of any number.
    ///
    /// Two rounds: the ranges refine the bits, and the bits can refine the ranges again. More rounds would gain little
    /// and are never needed for soundness, because each step only cuts away values that another component excludes.
    pub(crate) fn sync_wide(&mut self) -> bool {
        for _ in 0..2 {
            let before = self.bits;
            if !T::step(self, Self::round) {
                return false;
            }
            if T::ask(|| self.bits == before) {
                return true;
            }
            if self.bits.is_const() {
                return self.sync_const(self.bits.value());
            }
        }
        // The last round may have fixed bits after the ranges were computed.
        self.full.meet_tnum(self.bits);
        self.low.meet_tnum(self.bits.low());
        !self.full.is_empty() && !self.low.is_empty()
    }

    /// Refines the ranges by the bits, then by each other, and then the bits by the ranges.
    #[inline(always)]
    pub(crate) fn round(&mut self) -> bool {
        self.full.meet_tnum(self.bits);
        self.full.sync();
        // If nothing is known of the low half, only a whole range that keeps one high half can change that.
        let nothing_low = T::ask(|| self.low == Interval::FULL && self.bits.low::<H>().mask() == ones(H));
        if !nothing_low {
            self.low.meet_tnum(self.bits.low());
            self.low.sync();
        }
        if self.full.is_empty() || self.low.is_empty() {
            return false;
        }
        self.full_to_low();
        if !nothing_low || T::ask(|| self.low != Interval::FULL) {
            self.low.sync();
            if self.low.is_empty() {
                return false;
            }
            self.low_to_full();
        }
        self.full.sync();
        if self.full.is_empty() {
            return false;
        }
        let Some(bits) = self.bits.intersect(Tnum::range(self.full.umin, self.full.umax)) else { return false };
        let low = Tnum::<H, T>::range(self.low.umin, self.low.umax);
        let Some(low) = bits.low::<H>().intersect(low) else { return false };
        self.bits = bits.with_low(low);
        true
    }

    /// Reduces all components to `v`. `false` if a component does not contain `v`.
    fn sync_const(&mut self, v: T) -> bool {
        let held = T::ask(|| self.full.contains(v) && self.low.contains(v & ones(H)));
        *self = Self::constant(v);
        held
    }

    fn full_to_low(&mut self) {
        T::step(self, |n| {
            n.teach_low();
            true
        });
    }

    /// Where all values share their high half, the bounds of the low half are the low halves of the bounds.
    #[inline(always)]
    pub(crate) fn teach_low(&mut self) {
        let f = &self.full;
        if f.umin >> H == f.umax >> H {
            self.low.umin = self.low.umin.max(f.umin & ones(H));
            self.low.umax = self.low.umax.min(f.umax & ones(H));
        }
        if f.smin >> H == f.smax >> H {
            self.low.umin = self.low.umin.max(f.smin.unsigned() & ones(H));
            self.low.umax = self.low.umax.min(f.smax.unsigned() & ones(H));
        }
        // If all values fit the low half as signed numbers, both widths have the same signed value.
        if f.smin >= Interval::<H, T>::FULL.smin && f.smax <= Interval::<H, T>::FULL.smax {
            self.low.smin = self.low.smin.max(f.smin);
            self.low.smax = self.low.smax.min(f.smax);
        }
    }

    /// Moves the ends of the whole inwards to the nearest value whose low half is in the low range.
    ///
    /// If that leaves the width's range, no value is left. The old end stays, and the caller finds the range empty or
    /// keeps a wider, still sound, range.
    #[inline(always)]
    fn low_to_full(&mut self) {
        if self.low.umin > T::ZERO || self.low.umax < ones(H) {
            T::step(self, |n| {
                n.teach_full();
                true
            });
            T::step(self, |n| {
                n.teach_full_signed();
                true
            });
        }
        let f = &mut self.full;
        if f.smin >= Interval::<H, T>::FULL.smin && f.smax <= Interval::<H, T>::FULL.smax {
            f.smin = f.smin.max(self.low.smin);
            f.smax = f.smax.min(self.low.smax);
        }
    }

    /// Moves the unsigned ends of the whole inwards to the nearest value whose low half is in the low range.
    #[inline(always)]
    pub(crate) fn teach_full(&mut self) {
        let (lmin, lmax) = (self.low.umin, self.low.umax);
        let (high, next) = (!ones::<T>(H), T::ONE << H);
        let f = &mut self.full;
        f.umin = match f.umin & ones(H) {
            low if low > lmax => (f.umin & high).checked_add(next).map_or(f.umin, |up| up | lmin),
            low => f.umin & high | low.max(lmin),
        };
        f.umax = match f.umax & ones(H) {
            low if low < lmin => (f.umax & high).checked_sub(next).map_or(f.umax, |down| down | lmax),
            low => f.umax & high | low.min(lmax),
        };
    }

    /// Moves the signed ends of the whole inwards to the nearest value whose low half is in the low range.
    #[inline(always)]
    pub(crate) fn teach_full_signed(&mut self) {
        let (lmin, lmax) = (self.low.umin.signed(), self.low.umax.signed());
        let (high, next) = (!ones::<T>(H).signed(), (T::ONE << H).signed());
        let f = &mut self.full;
        f.smin = match f.smin & !high {
            low if low > lmax => (f.smin & high).checked_add(next).map_or(f.smin, |up| up | lmin),
            low => f.smin & high | low.max(lmin),
        };
        f.smax = match f.smax & !high {
            low if low < lmin => (f.smax & high).checked_sub(next).map_or(f.smax, |down| down | lmax),
            low => f.smax & high | low.min(lmax),
        };
    }
}

impl<const W: u32, const H: u32, T: Word> Numbers<T> for Num<W, H, T> {
    const BITS: u32 = W;

    fn of_words(next: &mut impl FnMut() -> T) -> Self {
        Num { bits: Tnum::of_words(next), full: Interval::of_words(next), low: Interval::of_words(next) }
    }
    fn well_formed(&self) -> bool {
        self.bits.well_formed() && self.full.well_formed() && self.low.well_formed()
    }
    fn holds(&self, x: T) -> bool {
        self.contains(x)
    }
}

impl<const W: u32, const H: u32> fmt::Debug for Num<W, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints the facts that do not follow from others: `7`, `0..=255`, `signed -4..=3`, `bits (0x0; 0xf8)`, `any`.
impl<const W: u32, const H: u32> fmt::Display for Num<W, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(v) = self.as_const() {
            let s = v.sext(W);
            return if s < 0 { write!(f, "{s}") } else { write!(f, "{v}") };
        }
        let mut sep = "";
        let mut part = |f: &mut fmt::Formatter<'_>, s: fmt::Arguments<'_>| {
            let r = write!(f, "{sep}{s}");
            sep = ", ";
            r
        };
        let full = &self.full;
        if full.umin > 0 || full.umax < ones(W) {
            part(f, format_args!("{}..={}", full.umin, full.umax))?;
        }
        let crosses = full.smin < 0 && full.smax >= 0;
        if crosses && (full.smin, full.smax) != (Interval::<W>::FULL.smin, Interval::<W>::FULL.smax) {
            part(f, format_args!("signed {}..={}", full.smin, full.smax))?;
        }
        if full.umax > ones(H) {
            let low = &self.low;
            if low.umin > 0 || low.umax < ones(H) {
                part(f, format_args!("low half {}..={}", low.umin, low.umax))?;
            }
            let crosses = low.smin < 0 && low.smax >= 0;
            if crosses && (low.smin, low.smax) != (Interval::<H>::FULL.smin, Interval::<H>::FULL.smax) {
                part(f, format_args!("low half signed {}..={}", low.smin, low.smax))?;
            }
        }
        if self.bits != Tnum::range(full.umin, full.umax) {
            part(f, format_args!("bits {:?}", self.bits))?;
        }
        if sep.is_empty() { f.write_str("any") } else { Ok(()) }
    }
}
