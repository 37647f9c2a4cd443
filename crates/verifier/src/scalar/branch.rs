//! Branch refinement: what a comparison that went one way says about its operands.
//!
//! Approach: one function a condition, on the components of the compared width (the whole, or the low half), then
//! `sync`. A condition that went the other way is the negated condition, except `&`, which has none and gets its own.
//!
//! Invariant: no pair of values for which the comparison goes that way is lost; `None` only if there is no such pair.

use bpf_isa::{Cond, Width};

use super::Num;
use crate::interval::Interval;
use crate::tnum::{Tnum, ones};

/// The components that take part in a comparison at one width.
#[derive(Clone, Copy)]
struct Part<const V: u32> {
    bits: Tnum<V>,
    range: Interval<V>,
}

/// What is left of `a` and `b` when `a cond b` holds.
fn holds<const V: u32>(cond: Cond, a: &mut Part<V>, b: &mut Part<V>) -> Option<()> {
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
            if common == 0 {
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

/// What is left of `a` and `b` when `a & b == 0`.
fn disjoint<const V: u32>(a: &mut Part<V>, b: &mut Part<V>) -> Option<()> {
    let (ones_a, ones_b) = (a.bits.value(), b.bits.value());
    a.bits = a.bits.intersect(Tnum::new(0, !ones_b))?;
    b.bits = b.bits.intersect(Tnum::new(0, !ones_a))?;
    Some(())
}

/// `a` without the value of `b`, if that is a single one at an end of a range of `a`.
fn exclude<const V: u32>(a: &mut Part<V>, b: Tnum<V>) -> Option<()> {
    if !b.is_const() {
        return Some(());
    }
    let u = b.value();
    let s = crate::tnum::sext(u, V);
    let r = &mut a.range;
    if r.umin == r.umax {
        return (r.umin != u).then_some(());
    }
    if r.umin == u {
        r.umin += 1;
    } else if r.umax == u {
        r.umax -= 1;
    }
    if r.smin == r.smax {
        return (r.smin != s).then_some(());
    }
    if r.smin == s {
        r.smin += 1;
    } else if r.smax == s {
        r.smax -= 1;
    }
    Some(())
}

fn unsigned_at_most<const V: u32>(a: &mut Interval<V>, b: &mut Interval<V>) {
    a.umax = a.umax.min(b.umax);
    b.umin = b.umin.max(a.umin);
}

fn unsigned_less<const V: u32>(a: &mut Interval<V>, b: &mut Interval<V>) -> Option<()> {
    if b.umax == 0 || a.umin == ones(V) {
        return None;
    }
    a.umax = a.umax.min(b.umax - 1);
    b.umin = b.umin.max(a.umin + 1);
    Some(())
}

fn signed_at_most<const V: u32>(a: &mut Interval<V>, b: &mut Interval<V>) {
    a.smax = a.smax.min(b.smax);
    b.smin = b.smin.max(a.smin);
}

fn signed_less<const V: u32>(a: &mut Interval<V>, b: &mut Interval<V>) -> Option<()> {
    if b.smax == Interval::<V>::FULL.smin || a.smin == Interval::<V>::FULL.smax {
        return None;
    }
    a.smax = a.smax.min(b.smax - 1);
    b.smin = b.smin.max(a.smin + 1);
    Some(())
}

fn refine_part<const V: u32>(cond: Cond, taken: bool, a: &mut Part<V>, b: &mut Part<V>) -> Option<()> {
    match (taken, cond.negate()) {
        (true, _) => holds(cond, a, b),
        (false, Some(negated)) => holds(negated, a, b),
        (false, None) => disjoint(a, b),
    }
}

impl<const W: u32, const H: u32> Num<W, H> {
    /// The values of `a` and `b` for which `a cond b`, compared at `width`, is `taken`; `None` if there are none.
    pub fn refine(cond: Cond, width: Width, taken: bool, a: &Self, b: &Self) -> Option<(Self, Self)> {
        let mut both = (*a, *b);
        Self::refine_assign(cond, width, taken, &mut both.0, &mut both.1).then_some(both)
    }

    /// The same, in place. `false` if there are none; `a` and `b` mean nothing then.
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
