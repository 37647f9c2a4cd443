//! Branch refinement: what the outcome of a comparison implies about its operands.
//!
//! Approach: one function for each condition, on the components of the compared width (the whole, or the low half),
//! then `sync`. A branch that is not taken refines by the negated condition, except for `&`, which has no negated
//! condition and gets a function of its own.
//!
//! Invariant: no pair of values with this outcome is lost; `None` is returned only if there is no such pair.

use bpf_isa::word::{Signed, Word};
use bpf_isa::{Cond, Width};

use super::Num;
use crate::domain::interval::Interval;
use crate::domain::tnum::{Tnum, ones};

/// The components that take part in a comparison at one width.
#[derive(Clone, Copy)]
struct Part<const V: u32, T: Word> {
    bits: Tnum<V, T>,
    range: Interval<V, T>,
}

/// Refines `a` and `b` by `a cond b`; `None` if no pair of values satisfies it.
fn holds<const V: u32, T: Word>(cond: Cond, a: &mut Part<V, T>, b: &mut Part<V, T>) -> Option<()> {
    match cond {
        Cond::Eq => {
            let bits = a.bits.intersect(b.bits)?;
            let range = a.range.intersect(b.range);
            *a = Part { bits, range };
            *b = *a;
        }
        Cond::Ne => {
            exclude(a, b.bits)?;
            exclude(b, a.bits)?;
        }
        Cond::Gt => unsigned_less(&mut b.range, &mut a.range)?,
        Cond::Lt => unsigned_less(&mut a.range, &mut b.range)?,
        Cond::Ge => unsigned_at_most(&mut b.range, &mut a.range),
        Cond::Le => unsigned_at_most(&mut a.range, &mut b.range),
        Cond::SGt => signed_less(&mut b.range, &mut a.range)?,
        Cond::SLt => signed_less(&mut a.range, &mut b.range)?,
        Cond::SGe => signed_at_most(&mut b.range, &mut a.range),
        Cond::SLe if crate::faults::planted!(SignedIsUnsigned) => unsigned_at_most(&mut a.range, &mut b.range),
        Cond::SLe => signed_at_most(&mut a.range, &mut b.range),
        Cond::Set => {
            let common = a.bits.max() & b.bits.max();
            if common == T::ZERO {
                return None;
            }
            if common.is_power_of_two() {
                let one = Tnum::new(common, !common);
                a.bits = a.bits.intersect(one)?;
                b.bits = b.bits.intersect(one)?;
            }
        }
    }
    Some(())
}

/// Refines `a` and `b` by `a & b == 0`; `None` if no pair of values satisfies it.
fn disjoint<const V: u32, T: Word>(a: &mut Part<V, T>, b: &mut Part<V, T>) -> Option<()> {
    let (ones_a, ones_b) = (a.bits.value(), b.bits.value());
    a.bits = a.bits.intersect(Tnum::new(T::ZERO, !ones_b))?;
    b.bits = b.bits.intersect(Tnum::new(T::ZERO, !ones_a))?;
    Some(())
}

/// Removes the value of `b` from `a`, if `b` is a constant at an end of a range of `a`.
fn exclude<const V: u32, T: Word>(a: &mut Part<V, T>, b: Tnum<V, T>) -> Option<()> {
    if !b.is_const() {
        return Some(());
    }
    let u = b.value();
    let s = u.sext(V);
    let r = &mut a.range;
    if T::ask(|| r.umin == r.umax || r.smin == r.smax) {
        return T::ask(|| (r.umin != r.umax || r.umin != u) && (r.smin != r.smax || r.smin != s)).then_some(());
    }
    // The ends differ, so a range without one of its ends is not empty.
    r.umin = r.umin + T::one_if(|| r.umin == u);
    r.umax = r.umax - T::one_if(|| r.umax == u);
    r.smin = r.smin + T::one_if(|| r.smin == s).signed();
    r.smax = r.smax - T::one_if(|| r.smax == s).signed();
    Some(())
}

fn unsigned_at_most<const V: u32, T: Word>(a: &mut Interval<V, T>, b: &mut Interval<V, T>) {
    a.umax = a.umax.min(b.umax);
    b.umin = b.umin.max(a.umin);
}

fn unsigned_less<const V: u32, T: Word>(a: &mut Interval<V, T>, b: &mut Interval<V, T>) -> Option<()> {
    if b.umax == T::ZERO || a.umin == ones(V) {
        return None;
    }
    a.umax = a.umax.min(b.umax - T::ONE);
    b.umin = b.umin.max(a.umin + T::ONE);
    Some(())
}

fn signed_at_most<const V: u32, T: Word>(a: &mut Interval<V, T>, b: &mut Interval<V, T>) {
    a.smax = a.smax.min(b.smax);
    b.smin = b.smin.max(a.smin);
}

fn signed_less<const V: u32, T: Word>(a: &mut Interval<V, T>, b: &mut Interval<V, T>) -> Option<()> {
    if b.smax == Interval::<V, T>::FULL.smin || a.smin == Interval::<V, T>::FULL.smax {
        return None;
    }
    a.smax = a.smax.min(b.smax - T::Signed::ONE);
    b.smin = b.smin.max(a.smin + T::Signed::ONE);
    Some(())
}

fn refine_part<const V: u32, T: Word>(cond: Cond, taken: bool, a: &mut Part<V, T>, b: &mut Part<V, T>) -> Option<()> {
    match (taken, cond.negate()) {
        (true, _) => holds(cond, a, b),
        (false, Some(negated)) => holds(negated, a, b),
        (false, None) => disjoint(a, b),
    }
}

impl<const W: u32, const H: u32, T: Word> Num<W, H, T> {
    /// Refines `a` and `b` by the outcome of `a cond b`, compared at `width`; `None` if the outcome is found
    /// impossible.
    pub fn refine(cond: Cond, width: Width, taken: bool, a: &Self, b: &Self) -> Option<(Self, Self)> {
        let mut both = (*a, *b);
        Self::refine_assign(cond, width, taken, &mut both.0, &mut both.1).then_some(both)
    }

    /// [`Num::refine`] in place. `false` if the outcome is found impossible; `a` and `b` have no meaning then.
    pub fn refine_assign(cond: Cond, width: Width, taken: bool, a: &mut Self, b: &mut Self) -> bool {
        let width = if crate::faults::planted!(HalfIsWhole) { Width::W64 } else { width };
        let refined = match width {
            Width::W64 => {
                let mut pa = Part { bits: a.bits, range: a.full };
                let mut pb = Part { bits: b.bits, range: b.full };
                let refined = refine_part(cond, taken, &mut pa, &mut pb);
                (a.bits, a.full, b.bits, b.full) = (pa.bits, pa.range, pb.bits, pb.range);
                refined
            }
            Width::W32 => {
                let mut pa = Part { bits: a.bits.low::<H>(), range: a.low };
                let mut pb = Part { bits: b.bits.low::<H>(), range: b.low };
                let refined = refine_part(cond, taken, &mut pa, &mut pb);
                (a.bits, a.low) = (a.bits.with_low(pa.bits), pa.range);
                (b.bits, b.low) = (b.bits.with_low(pb.bits), pb.range);
                refined
            }
        };
        refined.is_some() && a.sync() && b.sync()
    }
}
