//! The join of two states, with widening, as a loop's candidate needs it.
//!
//! Invariant: the result covers both states; a fact on which they disagree is dropped.

use crate::content::Gap;
use crate::scalar::Scalar;
use crate::state::{Byte, Content, Frame, Order, Room, State, Sum};
use crate::value::{Value, Why};

/// The widening of a number on which two states disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Widen {
    /// No widening: the result is the join.
    Not,
    /// Widening to the range of a narrower integer type.
    Near,
    /// Widening to half a register, or to a whole one.
    Far,
}

/// Makes `into` cover `other`, too. `false` if that is impossible.
pub(super) fn merge(into: &mut State, other: &State, widen: Widen, next_id: &mut u32) -> bool {
    let same_held = into.owed == other.owed && into.locks == other.locks && into.sections == other.sections;
    if into.frames.len() != other.frames.len() || !same_held {
        return false;
    }
    let gaps: (Gap<'_>, Gap<'_>) = (&|v, region| into.gap(v, region), &|v, region| other.gap(v, region));
    let numbers = |n: Option<Scalar>, by: Option<Scalar>| join_content(n, by, widen);
    let orders = |order: &Order, by: &Order| join_order(order, by, widen);
    let joined = |(i, o): (&Frame, &Frame)| i.joined_contents(o, gaps, numbers, orders);
    let contents: Vec<Vec<Content>> = into.frames.iter().zip(&other.frames).map(joined).collect();
    for ((i, o), contents) in into.frames.iter_mut().zip(&other.frames).zip(contents) {
        if i.loops.len() != o.loops.len() {
            return false;
        }
        for (iv, ov) in i.regs.iter_mut().zip(&o.regs) {
            *iv = join(iv, ov, widen, next_id);
        }
        for (im, om) in i.loops.iter_mut().zip(&o.loops) {
            im.k.n = im.k.n.join(&om.k.n);
            for (il, ol) in im.lines.iter_mut().zip(&om.lines) {
                if il.n != ol.n {
                    il.n = 0;
                }
                il.start = il.start.join(&ol.start);
            }
        }
        i.grow(o.bytes.len());
        let bytes = &mut i.bytes;
        i.spills.retain_mut(|s| {
            let (depth, size) = (s.depth.into(), s.size.into());
            let other = match o.spilled(depth, size) {
                Some(s) => Some(s.value),
                None => o.load(depth, size).ok(),
            };
            let v = other.map_or(Value::uninit(Why::Dead), |v| join(&s.value, &v, widen, next_id));
            if v.is_uninit() {
                // A number's bytes may still be numbers in the other state.
                bytes[depth - size..depth].fill(if s.value.is_scalar() { Byte::Misc } else { Byte::Uninit });
                return false;
            }
            s.value = v;
            true
        });
        i.contents = contents;
        i.fills.retain_mut(|f| {
            let like = o.fills.iter().find(|o| (o.id, o.scale, o.bottom) == (f.id, f.scale, f.bottom));
            // A fill that falls behind its round would fall behind in the next round, too.
            let behind = widen != Widen::Not && like.is_some_and(|o| o.delta < f.delta);
            f.delta = like.map_or(f.delta, |o| f.delta.min(o.delta));
            like.is_some() && !behind
        });
        for (depth, b) in (1..).zip(&mut i.bytes) {
            *b = match *b {
                Byte::Uninit => Byte::Uninit,
                Byte::Spill => Byte::Spill,
                Byte::Zero if o.known_number(depth, 1) == Some(0) => Byte::Zero,
                Byte::Zero | Byte::Misc if o.check_readable(depth, 1).is_ok() => Byte::Misc,
                Byte::Fresh if o.byte(depth) == Byte::Fresh => Byte::Fresh,
                Byte::Zero | Byte::Misc | Byte::Fresh | Byte::Maybe if o.is_number(depth) => Byte::Maybe,
                Byte::Zero | Byte::Misc | Byte::Fresh | Byte::Maybe => Byte::Uninit,
            };
        }
        if o.rest == Byte::Uninit {
            i.rest = Byte::Uninit;
        }
    }
    into.min_len.meet(&other.min_len);
    into.sums.retain_mut(|t| match other.sums.iter().find(|o| Sum { max: t.max, split: t.split, ..**o } == *t) {
        Some(o) => {
            (t.max, t.split) = (t.max.max(o.max), t.split && o.split);
            true
        }
        None => false,
    });
    into.products.retain(|t| other.products.contains(t));
    let says =
        |f: &Room| other.room.iter().any(|o| (o.id, o.scale, o.hi) == (f.id, f.scale, f.hi) && o.bytes >= f.bytes);
    let below = |f: &Room| other.below(f.id, f.scale, f.hi).filter(|_| f.scale == 1 || !other.may_be_negative(f.id));
    into.room.retain_mut(|f| match if says(f) { Some(f.bytes) } else { below(f) } {
        // A bound that becomes smaller in each round would be weakened bit by bit, so it is dropped.
        Some(bytes) if widen == Widen::Far && bytes < f.bytes => false,
        Some(bytes) => {
            f.bytes = f.bytes.min(bytes);
            true
        }
        None => false,
    });
    true
}

/// The range of an array's elements in both. In a havocked iteration anything may be stored, so the first candidate
/// keeps the range of the state that entered.
fn join_content(n: Option<Scalar>, by: Option<Scalar>, widen: Widen) -> Option<Scalar> {
    let (Some(n), Some(by)) = (n, by) else { return if widen == Widen::Not { n } else { n.or(by) } };
    let joined = n.join(&by);
    match widen {
        Widen::Not => Some(n),
        _ if joined.subset(&n) => Some(n),
        Widen::Near => Some(joined),
        // Widened to its number of bits, and if it exceeded these, to everything.
        Widen::Far if n.umin() == 0 && n.umax() & n.umax().wrapping_add(1) == 0 => Some(Scalar::UNKNOWN),
        Widen::Far => Some(Scalar::low_bits(64 - joined.umax().leading_zeros())),
    }
}

/// The order of an array's elements in both.
fn join_order(order: &Order, by: &Order, widen: Widen) -> Order {
    let both = order.or(by);
    match widen {
        Widen::Not => {
            let least = |region: usize| Some(order.lens[region]?.min(by.lens[region].unwrap_or(u32::MAX)));
            Order { base: order.base, lens: std::array::from_fn(least) }
        }
        Widen::Near => both,
        // A bound that becomes smaller in each round would be weakened bit by bit, so it is dropped.
        Widen::Far => {
            let stays = |region: usize| both.lens[region].filter(|_| both.lens[region] == order.lens[region]);
            Order { base: both.base.filter(|_| both.base == order.base), lens: std::array::from_fn(stays) }
        }
    }
}

fn join(a: &Value, b: &Value, widen: Widen, next_id: &mut u32) -> Value {
    if a.is_uninit() || b.is_uninit() || a.ty != b.ty || a.null != b.null || a.owner != b.owner {
        return Value::uninit(Why::Dead);
    }
    let mut n = a.n.join(&b.n);
    if widen != Widen::Not && n != a.n && a.is_scalar() {
        let least = if widen == Widen::Far { 32 } else { 8 };
        n = Scalar::low_bits(if n.high_half_is_zero() {
            (64 - n.umax().leading_zeros()).next_power_of_two().max(least)
        } else {
            64
        });
    }
    let tie = |v: &Value| (v.line_id(), v.scale, v.delta);
    let mut v = Value { n, ..*a };
    if tie(a) != tie(b) {
        v = v.adrift(next_id);
    }
    if a.id != b.id && !a.is_scalar() && !a.is_in_region() {
        if a.null {
            return Value::uninit(Why::Dead);
        }
        *next_id += 1;
        v.id = *next_id;
    }
    v
}
