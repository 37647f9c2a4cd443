//! Two pointers into one object: their distance and their order.
//!
//! Both are offsets from one base, so their distance and their order reveal nothing about the base's address. For
//! pointers into different objects they would, so these are refused.
//!
//! Invariants: two pointers are into one object only if that is proven: by the frame, by the id that names the element
//! or the result of a call, or by the region. Addresses have the order of their offsets as long as no offset leads
//! below address 0, so an offset that may is not compared.

use bpf_isa::{AluOp, Cond, Reg, Width};

use super::Walk;
use super::branch::{Lesson, aligned};
use super::linear::Form;
use super::pointers::{LOWEST_ADDRESS, bounded, checkable, lies_far_before};
use crate::faults::planted;
use crate::integer::{self, Place};
use crate::interval::Interval;
use crate::scalar::Scalar;
use crate::tnum::Tnum;
use crate::value::{Ty, Value, len_id};

/// The region of a pointer, whether it is the region's end, and whether it is a whole pointer.
fn of_region(v: &Value) -> Option<(u8, bool, bool)> {
    match v.ty {
        Ty::Packet { region } => Some((region, false, true)),
        Ty::PacketEnd { region } => Some((region, true, true)),
        Ty::Half { region, end } => Some((region, end, false)),
        Ty::Uninit(_)
        | Ty::Biased { .. }
        | Ty::Signed
        | Ty::Stale { .. }
        | Ty::Scalar
        | Ty::Ctx
        | Ty::Stack { .. }
        | Ty::Map { .. }
        | Ty::MapValue { .. }
        | Ty::Mem { .. }
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => None,
    }
}

/// Whether both are proven to point into one object other than a region.
fn one_object(d: &Value, s: &Value) -> bool {
    if d.ty != s.ty || d.null || s.null {
        return false;
    }
    match d.ty {
        Ty::Stack { .. } | Ty::Ctx => true,
        // A value without a name, of a map in the program's table, is the map's one element with a fixed address.
        Ty::MapValue { inner, .. } => d.id == s.id && (d.id != 0 || !inner),
        // The key of a callback has no name, and each frame has at most one.
        Ty::Mem { .. } => (d.id, d.owner) == (s.id, s.owner),
        Ty::Uninit(_)
        | Ty::Scalar
        | Ty::Map { .. }
        | Ty::Packet { .. }
        | Ty::PacketEnd { .. }
        | Ty::Half { .. }
        | Ty::Biased { .. }
        | Ty::Signed
        | Ty::Stale { .. }
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => false,
    }
}

/// The greatest distance from the start of their region at which the halves of two pointers may be subtracted at 64
/// bits: the size of a packet.
const NEAR_START: i64 = 0xffff;

/// The difference of the low halves of two pointers, from the pointers' difference: that, or 2^32 more or less. It
/// depends on whether a multiple of 2^32 lies between the addresses. Therefore both must lie near the start of their
/// region, or be its end: for arbitrary pointers, the result would reveal where the region is.
pub(super) fn of_halves(n: &Scalar, near: bool) -> Option<Scalar> {
    let most = i64::from(u32::MAX);
    let of = || Scalar::of(Tnum::UNKNOWN.with_low(n.bits().low::<32>()), Interval::signed(-most, most), n.low_range());
    near.then(of)
}

/// Whether an offset is at most the size of a packet.
pub(super) fn is_near_start(n: &Scalar) -> bool {
    n.smin() >= 0 && n.smax() <= NEAR_START
}

impl Walk<'_> {
    /// `d - s`, at 32 bits of the low halves; `None` if the pointers may be of different objects.
    pub(super) fn distance(&mut self, width: Width, d: &Value, s: &Value) -> Option<Value> {
        let distance = match (of_region(d), of_region(s)) {
            (Some((a, d_end, d_whole)), Some((b, s_end, s_whole))) => {
                if a != b || (width == Width::W64 && d_whole != s_whole) {
                    return None;
                }
                let distance = self.region_distance(a, (d, d_end), (s, s_end));
                if width == Width::W64 && !d_whole {
                    let near = (d_end || is_near_start(&d.n)) && (s_end || is_near_start(&s.n));
                    return of_halves(&distance.n, near).map(Value::scalar);
                }
                distance
            }
            _ if one_object(d, s) => self.object_distance(d, s),
            _ => return None,
        };
        Some(match width {
            Width::W64 => distance,
            Width::W32 if distance.is_short() => distance,
            Width::W32 => Value::scalar(distance.n.zext_low()),
        })
    }

    /// The pointer in `r`. If it is at an unknown place in an object other than a region, it gets a name: for its
    /// distance from the least possible place, which is not negative.
    pub(super) fn tied(&mut self, r: Reg) -> Value {
        let v = *self.state.reg(r);
        let object = matches!(v.ty, Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. });
        let unknown = v.n.as_const().is_none() && bounded(&v.n);
        if object && unknown && v.tie == 0 && !v.null && self.relates() {
            let least = i32::try_from(v.n.smin()).unwrap_or(0);
            let v = v.renamed(self.new_id(), 1, least);
            self.state.set(r, v);
            return v;
        }
        v
    }

    /// Claim: a named result is `scale * V + delta` exactly. Proof: offsets are, and are within ±2^31, so their
    /// difference is that of integers; it is equal to the number if it is not negative. While a candidate is formed, it
    /// is assumed not to be negative.
    fn object_distance(&mut self, d: &Value, s: &Value) -> Value {
        let n = d.n.alu(AluOp::Sub, Width::W64, &s.n);
        let n = match self.loops.guessing() {
            true => n.meet(&Scalar::signed(0, i64::MAX)).unwrap_or(n),
            false => n,
        };
        let apart = Value::scalar(n);
        if n.smin() < 0 || !self.relates() {
            return apart;
        }
        let fixed = |v: &Value| v.n.as_const().and_then(|c| i32::try_from(c.cast_signed()).ok());
        let place = |v: &Value| match fixed(v) {
            Some(at) => Some(Place::At(i128::from(at))),
            None if v.tie != 0 => Some(Place::Moves { scale: v.scale.into(), delta: v.delta.into() }),
            None => None,
        };
        let named = || {
            let (scale, delta) = integer::distance(place(d)?, place(s)?)?;
            let id = if fixed(d).is_none() { d.tie } else { s.tie };
            Some((id, i16::try_from(scale).ok()?, i32::try_from(delta).ok()?))
        };
        let Some((id, scale, delta)) = named() else { return apart };
        // Later proofs may rest on that.
        self.decides();
        apart.renamed(id, scale, delta)
    }

    /// The difference of two pointers into one region; `d_end` and `s_end` say whether each is the region's end.
    fn region_distance(&mut self, region: u8, (d, d_end): (&Value, bool), (s, s_end): (&Value, bool)) -> Value {
        let max = self.env.region(region).max_len;
        let least = self.length_flows(region);
        let length = Scalar::unsigned(least.into(), max.into());
        // end - start is the length itself.
        if d_end && !s_end && (s.id, s.delta) == (0, 0) {
            return Value { id: len_id(region), ..Value::scalar(length) };
        }
        // The end is the start plus the length.
        let moves = |v: &Value, end: bool| if end { (len_id(region), 1, 0) } else { (v.id, v.scale, v.delta) };
        let ((d_id, d_scale, d_delta), (s_id, s_scale, s_delta)) = (moves(d, d_end), moves(s, s_end));
        if (d_id, d_scale) == (s_id, s_scale) {
            return Value::constant((i64::from(d_delta) - i64::from(s_delta)) as u64);
        }
        if !d_end
            && !s_end
            && let Some(apart) = self.between(d, s)
        {
            return apart;
        }
        if !d_end
            && s_end == d_end
            && let Some(apart) = self.beyond_place(d, s)
        {
            return apart;
        }
        if d_end && !s_end {
            self.assume_before_end(region, s, i64::from(s.delta));
        }
        let place = |v: &Value, end: bool| if end { length } else { v.n };
        let n = place(d, d_end).alu(AluOp::Sub, Width::W64, &place(s, s_end));
        // The rest of the region after a pointer: the length minus the pointer's offset.
        let left = if d_end && !s_end && s.n.smin() >= 0 { self.bytes_after(region, s, least) } else { None };
        let Some(left) = left.and_then(|left| u64::try_from(left).ok()) else { return Value::scalar(n) };
        let most = u64::from(max).saturating_sub(u64::try_from(s.n.smin()).unwrap_or(0));
        let n = n.meet(&Scalar::unsigned(left, most.max(left))).unwrap_or(n);
        let len = len_id(region);
        let named = match (s.id, s.delta.checked_neg()) {
            (0, Some(delta)) => Some((len, delta)),
            _ if !s.is_of_no_negative() => None,
            _ => self.state.name_difference((len, 0), s, &mut self.next_id),
        };
        let (id, delta) = named.unwrap_or((0, 0));
        Value { n, id, delta, ..Value::scalar(n) }
    }

    /// The distance of a pointer in a region behind a constant place, if it certainly is behind: it moves with the same
    /// number.
    fn beyond_place(&self, d: &Value, s: &Value) -> Option<Value> {
        let fixed = s.id == 0 && s.n.as_const() == Some(i64::from(s.delta).cast_unsigned());
        if !fixed || d.id == 0 || !self.loops.further || !self.relates() || !d.is_of_no_negative() {
            return None;
        }
        let n = d.n.alu(AluOp::Sub, Width::W64, &s.n);
        let delta = d.delta.checked_sub(s.delta)?;
        (n.smin() >= 0).then(|| Value::scalar(n).renamed(d.id, d.scale, delta))
    }

    /// In a loop: the distance of a pointer in a region behind another, if it certainly is behind, by the names of
    /// both.
    fn between(&mut self, d: &Value, s: &Value) -> Option<Value> {
        if !self.relates() || !d.is_of_no_negative() || !s.is_of_no_negative() || d.scale != 1 || s.scale <= 0 {
            return None;
        }
        let behind = || Some(self.state.proves(&Form::of(s)?.plus(&Form::of(d)?, -1)?));
        let known = self.state.below(s.line_id(), s.scale, d.line_id());
        let apart = i64::from(s.delta) - i64::from(d.delta);
        if known.is_none_or(|bytes| bytes < apart) && !(self.loops.may_ask() && behind() == Some(true)) {
            return None;
        }
        let (id, delta) = self.state.name_difference((d.line_id(), d.delta), s, &mut self.next_id)?;
        // Later proofs may rest on that.
        self.decides();
        let n = d.n.alu(AluOp::Sub, Width::W64, &s.n);
        let n = n.meet(&Scalar::unsigned(0, u64::try_from(d.n.smax().saturating_sub(s.n.smin())).ok()?))?;
        Some(Value { n, id, delta, ..Value::scalar(n) })
    }

    /// Whether a comparison refuses the pointer because its address may have wrapped. A hybrid walk refuses none that
    /// can be checked at run time (`Walk::note_comparison`).
    pub(super) fn may_have_wrapped(&self, v: &Value) -> bool {
        lies_far_before(v) && !(self.hybrid && checkable(self.env, v).is_some())
    }

    /// The refinements of a comparison of two pointers: not taken and taken; `None` if they may be of different
    /// objects.
    pub(super) fn order(&mut self, cond: Cond, d: &Value, s: &Value) -> Option<[Lesson; 2]> {
        // Both are the end of one region.
        if d.ty == s.ty && matches!(d.ty, Ty::PacketEnd { .. }) && cond != Cond::Set {
            return Some([false, true].map(|taken| match cond.holds(Width::W64, 0, 0) == taken {
                true => Lesson::Nothing,
                false => Lesson::Never,
            }));
        }
        let regions = of_region(d).zip(of_region(s)).filter(|((a, ..), (b, ..))| a == b);
        // In a hybrid walk, pointers far from their object are compared after a run-time check
        // (`Walk::note_comparison`).
        let checked = |v: &Value| self.hybrid && checkable(self.env, v).is_some();
        let orders = !matches!(cond, Cond::Eq | Cond::Ne);
        let nothing = match regions {
            // The order of the two would depend on, and so reveal, the region's address.
            Some(_) if orders && (self.may_have_wrapped(d) || self.may_have_wrapped(s)) => return None,
            Some(((_, _, true), (_, _, true))) => true,
            Some(_) => return None,
            None if one_object(d, s) => checked(d) && checked(s),
            None if matches!(cond, Cond::Eq | Cond::Ne) && (self.is_buffer_of(d, s) || self.is_buffer_of(s, d)) => {
                return Some([Lesson::Nothing, Lesson::Nothing]);
            }
            None => return None,
        };
        let nothing = nothing.then_some([Lesson::Nothing, Lesson::Nothing]);
        // The condition on the signed offsets from the base.
        let by_offset = match cond {
            Cond::Eq | Cond::Ne => cond,
            Cond::Gt => Cond::SGt,
            Cond::Ge if planted!(PointersNeverMeet) => Cond::SGt,
            Cond::Ge => Cond::SGe,
            Cond::Lt => Cond::SLt,
            Cond::Le => Cond::SLe,
            // The bits and the sign of an address must not be revealed.
            Cond::Set => return None,
            Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe => {
                return nothing;
            }
        };
        // An address before its object's start may wrap, and an empty region may start at any address, for example at
        // 1.
        let lowest = match regions {
            Some(((region, ..), _)) if !self.state.min_len.has(region.into(), 1) => 0,
            _ => -LOWEST_ADDRESS,
        };
        let near = |v: &Value| bounded(&v.n) && v.n.smin() >= lowest;
        let inside = matches!((d.ty, s.ty), (Ty::Packet { .. }, Ty::Packet { .. })) || regions.is_none();
        if !inside || !near(d) || !near(s) {
            return nothing;
        }
        // Pointers that move with one number are compared by their constants.
        let same = (d.id, d.scale) == (s.id, s.scale);
        let (a, b) = match regions {
            Some(_) if same => (constant(d.delta), constant(s.delta)),
            // Values with known low bits are multiples of a stride: the nearest different one is a stride away.
            _ if matches!(by_offset, Cond::Eq | Cond::Ne) => (aligned(d.n), aligned(s.n)),
            _ => (d.n, s.n),
        };
        Some([false, true].map(|taken| match Scalar::refine(by_offset, Width::W64, taken, &a, &b) {
            None => Lesson::Never,
            Some(_) if regions.is_some() && same => Lesson::Nothing,
            Some((a, b)) => Lesson::Offsets(a, b),
        }))
    }
}

fn constant(delta: i32) -> Scalar {
    Scalar::constant(i64::from(delta) as u64)
}
