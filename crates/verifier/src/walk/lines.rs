//! Numbers that move together: bounds of one bound the others, and comparisons order them.
//!
//! A number in a loop is `scale * V + delta` of an unknown V that others share (see [`crate::value`]); V itself may be
//! on a line `V(x) = V(n) + step * V(k)` with the loop's round k ([`crate::state::Line`]). A bound of one value
//! therefore bounds V, k, and all values made of them. Numbers without a range can still be ordered: `scale * V(a) + c
//! <= V(b)` ([`crate::state::Room`]).
//!
//! Invariants: all these are exact equations and inequalities between integers: numbers, which are not negative, and
//! offsets of pointers, which are small. In sums, in facts about multiples and on lines, no offset is negative either
//! ([`State::may_be_negative`]). A result that wraps loses its name where it is computed. Contradictions are ignored:
//! such a path has no run, and walking it is harmless.

use bpf_isa::{AluOp, Cond, Width};

use super::Walk;
use crate::by_name;
use crate::env::Region;
use crate::faults::planted;
use crate::fields::lost_by_mask;
use crate::fuel;
use crate::integer::BEYOND;
use crate::scalar::{Scalar, wrapped_by_difference, wrapped_by_whole};
use crate::state::{Room, State, Sum, Whole, Wrap};
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value};

/// Fuel for each value that may be bounded by another one.
const BOUND: u64 = 1;

/// The negated lower bound assumed for any pointer offset: offsets are above -2^40.
pub(super) const ANYWHERE: i128 = 1 << 40;

/// The most equations that are followed from one bound to the next.
pub(super) const MAX_HOPS: u32 = 3;

/// The assumption about `!=` in a havocked iteration: the loop is left where the two operands meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guessing {
    Not,
    Lines,
    /// Also for sums of a moving and an unchanged number.
    Further,
}

/// Facts for a sum of which one part is constant: the other part and the whole are at a constant distance. The constant
/// part may be forgotten before that is needed.
pub(super) fn constant_part(t: &Sum, id: u32, is: i128, facts: &mut Vec<Room>) {
    let (other, apart) = match id {
        id if id == t.b && id != t.a => (t.a, i128::from(t.scale).checked_mul(is)),
        id if id == t.a && id != t.b && t.scale == 1 => (t.b, Some(is)),
        _ => return,
    };
    let apart = apart.and_then(|by| i64::try_from(by.checked_add(t.delta.into())?).ok());
    // The negative of each distance must be representable, too.
    let Some(apart) = apart.filter(|by| *by != i64::MIN) else { return };
    let apart = apart + i64::from(planted!(ConstantPartMore));
    facts.push(Room { id: other, scale: 1, bytes: apart, hi: t.s });
    facts.push(Room { id: t.s, scale: 1, bytes: -apart, hi: other });
}

/// Division rounded down. The divisor is mostly 1, and 128-bit division is slow.
fn floor_div(a: i128, b: i128) -> i128 {
    if b == 1 { a } else { a.div_euclid(b) }
}

fn ceil_div(a: i128, b: i128) -> i128 {
    -floor_div(-a, b)
}

/// The range of V, if `scale * V + delta` lies in `min..=max`.
pub(super) fn of_multiple(min: i128, max: i128, scale: i16, delta: i32) -> (i128, i128) {
    let (scale, delta) = (i128::from(scale), i128::from(delta));
    if scale > 0 {
        (ceil_div(min - delta, scale), floor_div(max - delta, scale))
    } else {
        (ceil_div(delta - max, -scale), floor_div(delta - min, -scale))
    }
}

impl Value {
    /// The bounds as an integer: an offset is signed, a number is not.
    pub(super) fn bounds(&self) -> (i128, i128) {
        if self.is_scalar() {
            (self.n.umin().into(), self.n.umax().into())
        } else {
            (self.n.smin().into(), self.n.smax().into())
        }
    }

    /// The least value of V, if the scale is positive.
    pub(super) fn least_of_line(&self) -> i64 {
        let (min, max) = self.bounds();
        let (min, _) = of_multiple(min, max, self.scale, self.delta);
        i64::try_from(min).unwrap_or(if min < 0 { i64::MIN } else { 0 })
    }

    /// Whether V is certainly not negative. V of a number never is, nor is V of a value with a scale other than 1. But
    /// a pointer from which something was subtracted may have begun before its region, and be at a distance from there
    /// that brings it back.
    pub(super) fn is_of_no_negative(&self) -> bool {
        let offset = matches!(self.ty, Ty::Packet { .. } | Ty::Half { .. } | Ty::Stale { .. });
        !offset || self.scale != 1 || self.least_of_line() >= 0
    }

    /// The range of the line's variable (the value that `id` names), which is never negative.
    pub(super) fn range_of_line(&self) -> (u64, u64) {
        let (min, max) = self.bounds();
        let (min, max) = of_multiple(min, max, self.scale, self.delta);
        let clamp = |x: i128| u64::try_from(x.max(0)).unwrap_or(u64::MAX);
        (clamp(min), clamp(max))
    }

    /// Intersects the value with a range of integers.
    fn cut(&mut self, min: i128, max: i128) {
        let (least, most) = self.bounds();
        if min <= least && most <= max {
            // This is the common case.
            return;
        }
        let range = if self.is_scalar() {
            let min = min.max(0);
            if min > max {
                return;
            }
            let Ok(min) = u64::try_from(min) else { return };
            Scalar::unsigned(min, u64::try_from(max).unwrap_or(u64::MAX))
        } else {
            // An offset is known modulo 2^64 only: a range beyond 63 bits may wrap to the other sign.
            let (Ok(min), Ok(max)) = (i64::try_from(min), i64::try_from(max)) else { return };
            if min > max {
                return;
            }
            Scalar::signed(min, max)
        };
        if let Some(n) = self.n.meet(&range) {
            self.n = n;
        }
    }
}

impl State {
    /// Bounds all values related to this one, which has just been bounded.
    pub(crate) fn bound_by(&mut self, v: &Value) {
        let id = v.line_id();
        if id != 0 {
            let (min, max) = v.bounds();
            let (min, max) = of_multiple(min, max, v.scale, v.delta);
            self.bound(id, min, max, MAX_HOPS);
        }
    }

    /// Applies a bound of V(id) to all related values.
    pub(super) fn bound(&mut self, id: u32, min: i128, max: i128, hops: u32) {
        self.bound_all(id, (min, max), hops, &mut Vec::new(), &mut Vec::new());
    }

    /// [`State::bound`] with scratch memory. `next` holds pending bounds, those of the callers first; `facts` is empty
    /// before and after.
    fn bound_all(
        &mut self,
        id: u32,
        (min, max): (i128, i128),
        hops: u32,
        next: &mut Vec<(u32, i128, i128)>,
        facts: &mut Vec<Room>,
    ) {
        // Clamped, so that multiples stay far from the end of 128 bits; multiplications by 63-bit numbers are checked.
        let (min, max) = (min.max(-BEYOND), max.min(BEYOND));
        if min > max {
            return;
        }
        if let (Some(len), Ok(least)) =
            (self.min_len.get_mut((id as usize).wrapping_sub(1)), u32::try_from(min.clamp(0, Region::MAX_LEN.into())))
        {
            *len = (*len).max(least);
        }
        fuel::charge(BOUND * self.size());
        self.each_value_mut(|v| {
            if !v.is_named(id) {
                return;
            }
            let scale = if planted!(StrideLost) { v.scale.signum() } else { v.scale };
            let (scale, delta) = (i128::from(scale), i128::from(v.delta));
            let (a, b) = (scale * min + delta, scale * max + delta);
            v.cut(a.min(b), a.max(b));
        });
        if hops == 0 {
            return;
        }
        if !self.wraps.is_empty() {
            self.settle_wraps(id, min, max, hops);
        }
        let first = next.len();
        if self.room.iter().any(|f| f.id == id || f.hi == id) {
            self.bound_ordered(id, (min, max), hops, next);
        }
        if min == max && min >= 0 {
            self.line_sums().for_each(|t| constant_part(&t, id, min, facts));
        }
        for mark in self.frames.iter().flat_map(|f| &f.loops) {
            for line in &mark.lines {
                let step = i128::from(line.step);
                let (from, to) = (i128::from(line.start.umin()), i128::from(line.start.umax()));
                if line.x == id && step > 0 {
                    next.push((mark.k.id, ceil_div(min - to, step), floor_div(max - from, step)));
                } else if line.x == id {
                    next.push((mark.k.id, ceil_div(from - max, -step), floor_div(to - min, -step)));
                    // x = n - step * k >= min
                    if let (Ok(scale), Ok(bytes)) = (i16::try_from(-line.step), i64::try_from(min)) {
                        facts.push(Room { id: mark.k.id, scale, bytes, hi: line.n });
                    }
                } else if mark.k.id == id {
                    let (a, b) = (step * min, step * max);
                    next.push((line.x, from + a.min(b), to + a.max(b)));
                }
            }
        }
        for n in self.negatives.iter().filter(|n| n.w == id || n.v == id) {
            let all = 1i128 << n.bits;
            next.push((if n.w == id { n.v } else { n.w }, all - max, all - min));
        }
        if !self.sums.is_empty() {
            self.bound_sums(id, (min, max), facts, next);
        }
        if !self.products.is_empty() {
            self.bound_products(id, (min, max), next);
        }
        for fact in facts.drain(..) {
            self.learn_below(fact);
        }
        for i in first..next.len() {
            let (other, min, max) = next[i];
            if other != id {
                self.bound_all(other, (min, max), hops - 1, next, facts);
            }
        }
        next.truncate(first);
    }

    /// Applies a bound of V(id) to values ordered with it: yields facts, and bounds of other numbers.
    fn bound_ordered(&mut self, id: u32, (min, max): (i128, i128), hops: u32, next: &mut Vec<(u32, i128, i128)>) {
        // A number below a multiple of a number that is not 0 is strictly below it, or is 0 itself.
        if let (true, Ok(least)) = (min > 0, i64::try_from(min)) {
            let below = |f: &&Room| f.hi == id && f.scale > 1 && f.bytes >= 0;
            let found: Vec<Room> = self.room.iter().filter(below).copied().collect();
            for f in found {
                let bytes = least.min(f.bytes.saturating_add(i64::from(f.scale) - 1));
                self.learn_below(Room { scale: 1, bytes, ..f });
            }
        }
        // Orders are used for the number that was bounded itself only, since most numbers are ordered somehow.
        if hops == MAX_HOPS && max < i64::MAX.into() {
            // A number below this one is at most its maximum.
            for f in self.room.iter().filter(|f| f.hi == id && f.id >= FIRST_FREE_ID) {
                let most = floor_div(max - i128::from(f.bytes), f.scale.into());
                next.push((f.id, -ANYWHERE, most));
            }
        }
        if hops == MAX_HOPS && min > 0 {
            // A number above this one is at least its minimum.
            for f in self.room.iter().filter(|f| f.id == id && f.hi >= FIRST_FREE_ID) {
                next.push((f.hi, i128::from(f.scale) * min + i128::from(f.bytes), BEYOND));
            }
        }
        if min > 0 {
            // A region is at least as long as this number requires.
            for f in self.room.iter().filter(|f| f.id == id && f.hi < FIRST_FREE_ID) {
                let least = (i128::from(f.scale) * min + i128::from(f.bytes)).clamp(0, Region::MAX_LEN.into());
                if let (Some(len), Ok(least)) = (self.min_len.get_mut(f.hi as usize - 1), u32::try_from(least))
                    && *len < least
                {
                    *len = least;
                    next.push((f.hi, least.into(), Region::MAX_LEN.into()));
                }
            }
        }
    }

    /// Settles whether differences with V(id) have wrapped, by its new bound.
    fn settle_wraps(&mut self, id: u32, min: i128, max: i128, hops: u32) {
        for i in (0..self.wraps.len()).rev() {
            // A bound learnt from one difference may have settled others, which are removed then.
            let Some(&wrap) = self.wraps.get(i) else { continue };
            let Wrap { w, v, whole, by, bits, .. } = wrap;
            let number = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
            let (low, high) = if id == v { wrap.whole_within((min, max)) } else { (min, max) };
            let range = (number(low), number(high));
            if id == v
                && let Some(wrap) = self.wraps.get_mut(i)
            {
                wrap.most = wrap.most.min(number(max));
            }
            let wrapped = match id {
                id if id == v => wrapped_by_whole(range, by),
                id if id == w => {
                    let early = u64::from(planted!(DifferencesWrapEarly));
                    let most = match whole {
                        Whole::Name => Some(i128::from(wrap.most)),
                        Whole::Less(from) => self.least_of(v).map(|least| i128::from(from - least)),
                    };
                    let most = most.map(|most| number(most).saturating_sub(early));
                    wrapped_by_difference(range, by, ones(bits), most)
                }
                _ => continue,
            };
            let wrapped = if planted!(WrapForgotten) && wrapped != Some(true) { Some(false) } else { wrapped };
            let Some(wrapped) = wrapped else { continue };
            if let Whole::Less(from) = whole {
                self.wraps.swap_remove(i);
                let from = i128::from(from) - i128::from(by);
                let within = if id == v { (from - max, from - min) } else { (min, max) };
                if !wrapped {
                    self.settle_less((w, v), from, within);
                    if id == w {
                        self.bound(v, from - max, from - min, hops - 1);
                    }
                }
                continue;
            }
            let (whole, by, all) = (!wrapped, i128::from(by), 1i128 << bits);
            self.wraps.swap_remove(i);
            // V(v) is V(w) plus a constant. If it is small, facts and names express it; for a wrapped difference, only
            // if little was added rather than much subtracted.
            let apart = if whole { by } else { by - all };
            let small = i32::try_from(apart).ok().filter(|apart| whole || *apart > -(1 << 16));
            if let Some(by) = small {
                self.learn_below(Room { id: w, scale: 1, bytes: by.into(), hi: v });
                self.learn_below(Room { id: v, scale: 1, bytes: -i64::from(by), hi: w });
                // Values on the line of the difference are moved to the line of the minuend.
                for value in self.values_mut().filter(|value| value.line_id() == w) {
                    if let Some(delta) = by.checked_mul(value.scale.into()).and_then(|by| value.delta.checked_sub(by)) {
                        *value = value.renamed(v, value.scale, delta);
                    }
                }
            }
            if id == w {
                self.bound(v, min.max(0) + apart, (max + apart).max(0), hops - 1);
            } else {
                self.bound(w, min.max(0) - apart, max - apart, hops - 1);
            }
        }
    }

    /// V(w) is `from - V(v)` within these bounds: moves values on the line of w to the line of v.
    fn settle_less(&mut self, (w, v): (u32, u32), from: i128, (min, max): (i128, i128)) {
        for value in self.values_mut().filter(|value| value.is_scalar() && value.line_id() == w) {
            let (scale, delta) = (i128::from(value.scale), i128::from(value.delta));
            let (a, b) = (scale * min + delta, scale * max + delta);
            value.cut(a.min(b), a.max(b));
            let renamed = value.scale.checked_neg().zip(i32::try_from(scale * from + delta).ok());
            if let Some((scale, delta)) = renamed {
                *value = value.renamed(v, scale, delta);
            }
        }
    }

    /// The movement of the value in each round of the innermost loops, if it is on a line, or with
    /// [`Guessing::Further`] a sum of a line and an unchanged number. For candidates only: whether the other part is
    /// unchanged is not tested.
    fn moves_by(&self, v: &Value, guessing: Guessing) -> Option<i64> {
        let id = v.line_id();
        if id == 0 {
            return None;
        }
        let marks = || self.frames.iter().flat_map(|f| &f.loops);
        let on_line = |id: u32| {
            if marks().any(|m| m.k.id == id) {
                return Some(1);
            }
            marks().flat_map(|m| &m.lines).find(|l| l.x == id).map(|l| i64::from(l.step))
        };
        let sum = || {
            let t = self.sums.iter().find(|t| t.s == id && !t.split)?;
            match (on_line(t.a), on_line(t.b)) {
                (None, None) => None,
                (a, b) => b.unwrap_or(0).checked_mul(t.scale)?.checked_add(a.unwrap_or(0)),
            }
        };
        let step = on_line(id).or_else(|| if guessing == Guessing::Further { sum() } else { None })?;
        step.checked_mul(v.scale.into())
    }

    /// The greatest known lower bound of V(id).
    pub(crate) fn least_of(&self, id: u32) -> Option<i64> {
        by_name::note();
        let region = (id as usize).checked_sub(1).and_then(|i| self.min_len.get(i)).map(|len| i64::from(*len));
        let of = |v: &Value| match v.id == id && v.is_scalar() && v.scale == 1 {
            true => i64::try_from(i128::from(v.n.aligned_least()) - i128::from(v.delta)).ok(),
            false => None,
        };
        let mut least = region;
        self.frames.iter().for_each(|f| f.each_value(|v| least = least.max(of(v))));
        least
    }

    /// Learns `lo + gap <= hi`.
    fn order(&mut self, lo: &Value, hi: &Value, gap: i64, next_id: &mut u32) {
        // lo <= c - V bounds the sum of both by c.
        if (lo.scale, hi.scale) == (1, -1) && lo.id != 0 && hi.id != 0 && lo.is_scalar() && hi.is_scalar() {
            self.bound_sum(lo.id, hi.id, i64::from(hi.delta) - i64::from(lo.delta) - gap, next_id);
            return;
        }
        // For multiples of which one scale divides the other, the order of the base numbers is learnt, rounded.
        if lo.id != 0
            && hi.id != 0
            && hi.scale > 1
            && lo.scale > 0
            && lo.scale % hi.scale == 0
            && lo.is_scalar()
            && hi.is_scalar()
        {
            let apart = i128::from(lo.delta) - i128::from(hi.delta) + i128::from(gap);
            if let Ok(bytes) = i64::try_from(ceil_div(apart, hi.scale.into())) {
                self.learn_below(Room { id: lo.id, scale: lo.scale / hi.scale, bytes, hi: hi.id });
            }
        }
        // A multiple has a name as the sum of its parts.
        if lo.id != 0 && hi.id != 0 && hi.scale > 1 && lo.scale > 0 && lo.is_scalar() && hi.is_scalar() {
            if let Some((whole, apart)) = self.name_sum((hi.id, hi.id, hi.scale - 1), 0, i64::MAX, next_id) {
                let bytes = i64::from(lo.delta) - i64::from(hi.delta) + gap - i64::from(apart);
                self.learn_below(Room { id: lo.id, scale: lo.scale, bytes, hi: whole });
            }
            return;
        }
        if lo.id != 0 && hi.id != 0 && hi.scale == 1 && lo.is_scalar() && hi.is_scalar() {
            let bytes = i64::from(lo.delta) - i64::from(hi.delta) + gap;
            self.learn_below(Room { id: lo.id, scale: lo.scale, bytes, hi: hi.id });
        }
    }

    /// Whether `lo <= hi` is known from their order.
    pub(super) fn ordered(&self, lo: &Value, hi: &Value) -> bool {
        let named = lo.id != 0 && hi.id != 0 && hi.scale == 1 && lo.scale > 0;
        let least = i64::from(lo.delta) - i64::from(hi.delta);
        named && self.is_below(lo.id, lo.scale, least, hi.id)
    }

    /// Learns from the outcome of `d cond s` on numbers: their order, and whether differences have wrapped. While a
    /// candidate is formed, `!=` is assumed to be left where the two meet.
    pub(super) fn compared(
        &mut self,
        comparison: (Width, Cond, bool),
        d: &Value,
        s: &Value,
        guessing: Guessing,
        next_id: &mut u32,
    ) {
        self.learn_order(comparison, d, s, guessing, next_id);
        self.settle_differences();
        self.settle_wraps_by_proof();
    }

    fn learn_order(
        &mut self,
        (width, cond, taken): (Width, Cond, bool),
        d: &Value,
        s: &Value,
        guessing: Guessing,
        next_id: &mut u32,
    ) {
        let Some(cond) = (if taken { Some(cond) } else { cond.negate() }) else { return };
        // A 32-bit comparison uses the low half of a constant, which is not the named value if the upper half is not
        // zero.
        let low = |v: &Value| match (width, v.n.as_const()) {
            (Width::W32, Some(c)) if c > ones(32) => Value::constant(c & ones::<u64>(32)),
            _ => *v,
        };
        let (d, s) = (&low(d), &low(s));
        let short = |v: &Value| v.n.high_half_is_zero();
        if width == Width::W32 && !(short(d) && short(s)) {
            return;
        }
        if matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) {
            let top = match width {
                Width::W64 => i64::MAX as u64,
                Width::W32 => i32::MAX as u64,
            };
            if d.n.umax() > top || s.n.umax() > top {
                return;
            }
        }
        // Two values that agree in their low bits differ by a multiple of the remaining power of two.
        let apart = |lo: &Value, hi: &Value| {
            let t = hi.n.bits().sub(lo.n.bits());
            1i64 << t.max().trailing_zeros().min(16)
        };
        match cond {
            Cond::Lt | Cond::SLt => self.order(d, s, apart(d, s), next_id),
            Cond::Le | Cond::SLe => self.order(d, s, i64::from(planted!(AtMostIsLess)), next_id),
            Cond::Gt | Cond::SGt => self.order(s, d, apart(s, d), next_id),
            Cond::Ge | Cond::SGe => self.order(s, d, 0, next_id),
            Cond::Eq => {
                self.order(d, s, 0, next_id);
                self.order(s, d, 0, next_id);
            }
            Cond::Ne => {
                for (lo, hi) in [(d, s), (s, d)] {
                    if self.ordered(lo, hi) {
                        let gap = apart(lo, hi);
                        self.order(lo, hi, gap, next_id);
                        self.less(lo, hi, gap);
                        return;
                    }
                }
                if guessing != Guessing::Not {
                    for (v, other) in [(d, s), (s, d)] {
                        match self.moves_by(v, guessing) {
                            Some(step) if step > 0 => {
                                self.order(v, other, step, next_id);
                                self.less(v, other, step);
                            }
                            Some(step) if step < 0 => {
                                self.order(other, v, -step, next_id);
                                self.less(other, v, -step);
                            }
                            _ => continue,
                        }
                        return;
                    }
                }
            }
            Cond::Set => {}
        }
    }

    /// Refines the ranges by `lo + gap <= hi`.
    fn less(&mut self, lo: &Value, hi: &Value, gap: i64) {
        let (mut lo, mut hi) = (*lo, *hi);
        let (lo_min, hi_max) = (lo.bounds().0, hi.bounds().1);
        lo.cut(lo_min, hi_max - i128::from(gap));
        hi.cut(lo_min + i128::from(gap), hi_max);
        self.bound_by(&lo);
        self.bound_by(&hi);
    }

    /// Leaves a loop: facts that its lines imply for the last round stay true.
    pub(super) fn leave_loop(&mut self, frame: usize) {
        if let Some(mark) = self.frames[frame].loops.last() {
            self.leave_fills(mark.k.id);
        }
        let Some(mark) = self.frames[frame].loops.pop() else { return };
        // Rounds beyond 63 bits are not counted (`guess::MAX_ROUNDS`), so such a bound is not used.
        let least = i64::try_from(mark.k.n.umin());
        let (k, known) = (least.unwrap_or(0), least.is_ok() && mark.k.n.as_const().is_some());
        for line in mark.lines {
            let Some(bytes) = k.checked_mul(i64::from(line.step).abs()) else { continue };
            let (id, hi) = if line.step > 0 { (line.n, line.x) } else { (line.x, line.n) };
            self.learn_below(Room { id, scale: 1, bytes, hi });
            if known {
                self.learn_below(Room { id: hi, scale: 1, bytes: -bytes, hi: id });
            }
            self.keep_line(mark.k.id, &line);
        }
        // The names of the round stay the names of its last numbers. Loads are remembered inside candidates only.
        if !self.in_guessed_loop() {
            self.seen.clear();
        }
    }
}

/// The order of a multiple that was divided by more than its multiplier (`gap * 10 / 13`): the result is at most the
/// number, and less if the number is not 0.
///
/// Claim: with `q = (scale * V + delta) / by`, `scale < by`, `delta <= 0` and `V >= 1`, `q <= V - 1`. Proof: `q` is at
/// most `scale * V / by`, which is less than V. Without `V >= 1`, `q` is at most V.
fn part_of_multiple(d: &Value, by: i64, id: u32) -> Option<Room> {
    let smaller = d.scale > 1 && i64::from(d.scale) < by && d.delta <= 0;
    let some = d.least_of_line() >= 1 || planted!(PartOfNothing);
    (smaller && d.id != 0).then_some(Room { id, scale: 1, bytes: i64::from(some), hi: d.id })
}

/// The order of a number after a mask: the mask removes at most the bits that the number may have and the mask lacks. A
/// rounded-up length (`(len + 3) & ~3`) is therefore at least the length.
///
/// Claim: with `x = scale * V + delta` and `r = x & c`, `scale * V + delta - lost <= r`, where `lost` are those bits.
/// Proof: `x = (x & c) + (x & !c)`, as no bit is in both, and `x & !c` has only bits of `lost`, so it is at most
/// `lost`. (At 32 bits, x has no other bits.)
fn taken_by_mask(width: Width, d: &Value, s: &Value, id: u32) -> Option<Room> {
    let c = s.n.as_const()? & super::bits_mask(width);
    let lost = lost_by_mask(d.n.bits().max(), c);
    // If high bits are lost, the bound is useless.
    let bytes =
        i64::try_from(lost).ok().filter(|lost| *lost < 1 << 20 && (*lost + 1).cast_unsigned().is_power_of_two())?;
    (d.id != 0 && d.scale > 0).then(|| Room { id: d.id, scale: d.scale, bytes: i64::from(d.delta) - bytes, hi: id })
}

/// Facts about the order of an operation's result, which gets the name `id`, and its operands `d` and `s`.
pub(super) fn result_order(
    (op, width): (AluOp, Width),
    d: &Value,
    s: &Value,
    (exact, further): (bool, bool),
    id: u32,
    facts: &mut Vec<Room>,
) {
    if width == Width::W32 && !(d.n.high_half_is_zero() && s.n.high_half_is_zero()) {
        return;
    }
    // Learns that the result is below `v` by at least `by`.
    let mut below = |v: &Value, scale: i16, by: u64| {
        if let (true, Ok(by)) = (v.id != 0 && v.scale == 1, i64::try_from(by)) {
            facts.push(Room { id, scale, bytes: by.saturating_sub(v.delta.into()), hi: v.id });
        }
    };
    match op {
        AluOp::Rsh => {
            let bits = if width == Width::W32 { 32 } else { 64 };
            if s.n.umax() < bits {
                let least = crate::num::low(s.n.umin());
                match i16::try_from(1u64 << least.min(62)) {
                    Ok(scale) if least > 0 => below(d, scale, 0),
                    _ => {}
                }
                below(d, 1, u64::from(least > 0 && d.n.umin() > 0));
                facts.extend(part_of_multiple(d, 1 << least.min(62), id));
            }
        }
        AluOp::Div if s.n.umin() > 0 => {
            if let (Some(by), true) = (s.n.as_const().and_then(|c| i16::try_from(c).ok()), s.n.umin() > 1) {
                below(d, by, 0);
            }
            below(d, 1, u64::from(s.n.umin() > 1 && d.n.umin() > 0));
            facts.extend(i64::try_from(s.n.umin()).ok().and_then(|by| part_of_multiple(d, by, id)));
        }
        AluOp::And => {
            // The mask removes at least the part of the least value above the mask.
            let low = s.n.as_const().filter(|c| c.wrapping_add(1).is_power_of_two());
            below(d, 1, low.map_or(0, |mask| d.n.umin() & !mask));
            below(s, 1, 0);
            facts.extend(if further { taken_by_mask(width, d, s, id) } else { None });
        }
        AluOp::Mod => {
            below(d, 1, 0);
            // Division by zero yields the dividend.
            if s.n.umin() > 0 {
                below(s, 1, 1);
            }
        }
        AluOp::Sub if exact => below(d, 1, s.n.umin()),
        AluOp::Add if exact => {
            for (v, by) in [(d, s.n.umin()), (s, d.n.umin())] {
                if let (true, Ok(by)) = (v.id != 0 && v.scale > 0, i64::try_from(by)) {
                    facts.push(Room { id: v.id, scale: v.scale, bytes: by.saturating_add(v.delta.into()), hi: id });
                }
            }
        }
        AluOp::Add
        | AluOp::Sub
        | AluOp::Mul
        | AluOp::Div
        | AluOp::SDiv
        | AluOp::SMod
        | AluOp::Or
        | AluOp::Xor
        | AluOp::Lsh
        | AluOp::Arsh => {}
    }
}

impl Walk<'_> {
    /// Bounds V(id) by the greatest length of a region in which so many bytes follow its multiple.
    pub(super) fn bound_by_region(&mut self, region: u8, id: u32, scale: i16, bytes: u32) {
        if id >= FIRST_FREE_ID && scale > 0 && self.relates() {
            let max = i128::from(self.env.region(region).max_len) - i128::from(bytes);
            // The start of the range is unknown, since the pointer may lie before its region.
            self.state.bound(id, -ANYWHERE, floor_div(max, scale.into()), MAX_HOPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_divided_towards_the_inside() {
        for scale in [-7i16, -3, -1, 1, 2, 5] {
            for delta in -9..9 {
                for min in -20i128..20 {
                    for max in min..20 {
                        let (lo, hi) = of_multiple(min, max, scale, delta);
                        for v in -60i128..60 {
                            let at = i128::from(scale) * v + i128::from(delta);
                            assert_eq!(
                                (min..=max).contains(&at),
                                (lo..=hi).contains(&v),
                                "{scale} {delta} {min} {max} {v}"
                            );
                        }
                    }
                }
            }
        }
    }
}
