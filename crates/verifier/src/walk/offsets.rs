//! Arithmetic with pointers: the new offset, and the name of the number that it moves with.
//!
//! Approach: a number is bounded before it is added, so that no sum wraps back into range. A region pointer takes the
//! name of the first number that is added, and then the name of the sum. A pointer from which a number was subtracted
//! is named by the difference, if the difference is proven not to be negative, and at the start of its region by the
//! number itself with the scale -1.
//!
//! Invariants: each name says exactly where the pointer is, `start + scale * V + delta`; V is not negative, but for
//! pointers that have lost their name to a new one and may have begun before their region.

use bpf_isa::{AluOp, Insn, Reg, Src, Width};

use super::linear::Form;
use super::pointers::{MAX_OFFSET, bounded, checkable, size_of};
use super::{Res, Walk, refuse};
use crate::env::{Field, FieldKind};
use crate::error::Reason;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::Room;
use crate::value::{Ty, Value, len_id, offset_name};

impl Walk<'_> {
    /// While a candidate is formed: assumes that a number added to a pointer does not lead far out of its memory.
    pub(super) fn assume_near(&mut self, r: Reg, p: &Value) -> Value {
        let size = size_of(p, self.env);
        let v = &mut self.state.top_mut().regs[r.index()];
        if let Some(n) = v.n.meet(&Scalar::unsigned(0, size.into())) {
            v.n = n;
        }
        let v = *v;
        self.state.bound_by(&v);
        v
    }

    /// Notes that a pointer moves by a number that is not bounded. If its value may have been forgotten as carried
    /// only, the program is walked again.
    fn see_move(&mut self) {
        let Some(Insn::Alu { dst, src: Src::Reg(src), .. }) = self.insns.get(self.pc.index()) else { return };
        let by = if self.state.reg(*dst).is_scalar() { *dst } else { *src };
        if self.needs_built && !self.loops.guessing() {
            self.misses_moves |= self.scratch.needs.see_move(self.pc, by);
        }
    }

    /// Whether arithmetic on the region's end is allowed: for memory of a host's own. (A packet's end may not be moved,
    /// as in the kernel, where its contexts have fields of 32 bits for it.)
    fn moves_end(&self, region: u8) -> bool {
        let whole = |f: &Field| f.kind == FieldKind::DataEnd(region) && f.size == 8;
        self.env.context.raw || self.env.context.fields.iter().any(whole)
    }

    /// `p + s`, or `p - s`.
    pub(super) fn pointer_add(&mut self, reg: Reg, p: &Value, s: &Value, subtract: bool) -> Res<Value> {
        let op = if subtract { AluOp::Sub } else { AluOp::Add };
        if p.null && !planted!(NullMoves) {
            return refuse(Reason::PointerOp(reg, p.describe(self.env)));
        }
        // The end is the start plus the length.
        let end = match p.ty {
            Ty::PacketEnd { region } if self.moves_end(region) => {
                let (least, most) = (self.state.min_len[usize::from(region)], self.env.region(region).max_len);
                let n = Scalar::unsigned(least.into(), most.into());
                Some(Value { n, id: len_id(region), ..Value::pointer(Ty::Packet { region }) })
            }
            _ => None,
        };
        let p = end.as_ref().unwrap_or(p);
        match p.ty {
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Packet { .. } | Ty::Table { .. } => {}
            Ty::Ctx if s.n.as_const().is_some() => {}
            Ty::Ctx => return refuse(Reason::CtxOffset),
            Ty::Map { .. }
            | Ty::PacketEnd { .. }
            | Ty::Half { .. }
            | Ty::Biased { .. }
            | Ty::Signed
            | Ty::Stale { .. }
            | Ty::Host { .. }
            | Ty::Func { .. }
            | Ty::Arena
            | Ty::Insn { .. }
            | Ty::Local(_) => return refuse(Reason::PointerOp(reg, p.describe(self.env))),
            Ty::Uninit(_) | Ty::Scalar => return refuse(Reason::Internal("offset of a number")),
        }
        // Bound the number before adding, so that the sum cannot wrap back into range.
        let n = p.n.alu(op, Width::W64, &s.n);
        // While a candidate is formed, the sum is assumed to be bounded as well.
        let near = Scalar::signed(-MAX_OFFSET, MAX_OFFSET);
        let n = if self.loops.guessing() { n.meet(&near).unwrap_or(n) } else { n };
        if !bounded(&s.n) || !bounded(&n) {
            if self.hybrid && checkable(self.env, p).is_some() {
                // The offset is unknown: every access through the pointer is checked at run time.
                return Ok(Value { n: Scalar::UNKNOWN, ..p.adrift(&mut self.next_id) });
            }
            self.see_move();
            return refuse(Reason::OffsetUnbounded(reg, s.describe(self.env)));
        }
        let Ty::Packet { region } = p.ty else {
            let (tie, scale, delta) = self.moved(p, s, subtract);
            let n = if tie == 0 { n } else { self.within_sum(n, tie, scale, delta) };
            // The named value is not negative.
            let n = match tie != 0 && subtract && scale == 1 && s.n.as_const().is_none() {
                true => n.meet(&Scalar::signed(delta.into(), i64::MAX)).unwrap_or(n),
                false => n,
            };
            return Ok(Value { n, tie, scale, delta, ..*p });
        };
        if let Some(c) = s.n.as_const() {
            let c = if subtract { -(c as i64) } else { c as i64 };
            let delta = i64::from(p.delta) + c;
            return match i32::try_from(delta) {
                Ok(delta) if i64::from(delta).abs() <= MAX_OFFSET => Ok(Value { n, delta, ..*p }),
                Ok(_) | Err(_) => refuse(Reason::OffsetUnbounded(reg, s.describe(self.env))),
            };
        }
        // start + (V + a) + b is start + V + (a + b) if that is the first unknown part.
        let delta = p.delta.checked_add(s.delta);
        let mut differs = false;
        let (id, scale, delta) = match delta {
            // A number that may be negative as a signed offset is not equal to that offset.
            Some(delta) if p.id == 0 && s.id != 0 && !subtract && s.n.smin() >= 0 => (s.id, s.scale, delta),
            // A number before the start: named by that number, which is not negative.
            _ if p.id == 0 && s.id != 0 && subtract && s.scale == 1 && s.n.smin() >= 0 && self.relates() => {
                match p.delta.checked_sub(s.delta) {
                    Some(delta) => (s.id, -1, delta),
                    None => (self.name_offset(&n), 1, 0),
                }
            }
            _ => match self.pointer_sum(p, s, subtract) {
                Some(named) => {
                    // A difference has a name only if it is not negative.
                    differs = subtract || p.scale < 0;
                    named
                }
                None => (self.name_offset(&n), 1, 0),
            },
        };
        if id == len_id(region) && (scale, delta) == (1, 0) {
            return Ok(Value::pointer(Ty::PacketEnd { region }));
        }
        if id != s.id && !subtract {
            self.order_sum(region, p, s, (id, delta));
        }
        let n = self.within_sum(n, id, scale, delta);
        let n = if differs { n.meet(&Scalar::signed(delta.into(), i64::MAX)).unwrap_or(n) } else { n };
        Ok(Value { n, id, scale, delta, ..*p })
    }

    /// A new name for an offset in a region.
    fn name_offset(&mut self, n: &Scalar) -> u32 {
        let id = self.new_id();
        if n.smin() < 0 { offset_name(id) } else { id }
    }

    /// The name and distance of `p + s` in a loop, if both are named.
    fn pointer_sum(&mut self, p: &Value, s: &Value, subtract: bool) -> Option<(u32, i16, i32)> {
        if !subtract && p.scale == -1 && s.id != 0 && s.scale == 1 && s.n.smin() >= 0 && self.relates() {
            // start - V(n) + V(i), where V(i) - V(n) is not negative.
            let less = || Form::name(p.line_id()).plus(&Form::name(s.id), -1);
            let below = self.state.below(p.line_id(), 1, s.id).is_some_and(|b| b >= 0)
                || less().is_some_and(|f| self.state.proves(&f));
            if !below {
                return None;
            }
            let taken = Value { id: p.line_id(), ..Value::unknown() };
            let (id, apart) = self.state.name_difference((s.id, 0), &taken, &mut self.next_id)?;
            let delta = p.delta.checked_add(s.delta)?.checked_add(apart)?;
            return Some((id, 1, delta));
        }
        let exact = !subtract && p.n.smin() >= 0 && s.n.smin() >= 0 && p.is_of_no_negative();
        if subtract && s.id != 0 && s.n.smin() >= 0 && self.relates() {
            return self.behind(p, s);
        }
        if !exact || !self.relates() {
            return None;
        }
        let delta = i64::from(p.delta) + i64::from(s.delta);
        let most = p.n.smax().checked_add(s.n.smax())?;
        self.state.name_multiples((p.line_id(), p.scale), (s.id, s.scale), delta, most, &mut self.next_id)
    }

    /// Narrows an offset that moves with a sum which has a bound.
    fn within_sum(&self, n: Scalar, id: u32, scale: i16, delta: i32) -> Scalar {
        if scale != 1 || self.state.sums.is_empty() {
            return n;
        }
        let Some(most) = self.state.most_by_sums(id) else { return n };
        let most = most.saturating_add(delta.into());
        n.meet(&Scalar::signed(i64::MIN, most)).unwrap_or(n)
    }

    /// Facts about a pointer `start + V(id) + apart` that is `p + s`: the bytes after it in its region, and that it
    /// lies behind `p`. (`apart` is not 0 if the name is that of a sum of these parts at another distance.)
    fn order_sum(&mut self, region: u8, p: &Value, s: &Value, (id, apart): (u32, i32)) {
        if p.id == 0 || p.scale != 1 || !self.relates() {
            return;
        }
        let (least, delta, apart) = (s.n.smin(), i64::from(p.delta), i64::from(apart));
        if least >= 0 {
            let bytes = least.saturating_add(delta).saturating_sub(apart);
            self.state.learn_below(Room { id: p.id, scale: 1, bytes, hi: id });
        }
        // s <= V(p) - c, and 2 V(p) + d <= the length: so p + s + c + d <= the length.
        if s.id != 0 && s.scale > 0 {
            let below = self.state.below(s.id, s.scale, p.id);
            let twice = self.state.below(p.id, 2, len_id(region));
            if let (Some(c), Some(d)) = (below, twice) {
                let bytes = i128::from(c) + i128::from(d) + i128::from(apart - delta - i64::from(s.delta));
                if let Ok(bytes) = i64::try_from(bytes) {
                    self.state.learn_below(Room { id, scale: 1, bytes, hi: len_id(region) });
                }
            }
        }
    }

    /// The name and distance of `p - s`, if the number that `p` moves with is at least `s`.
    fn behind(&mut self, p: &Value, s: &Value) -> Option<(u32, i16, i32)> {
        let of = p.line_id();
        if s.scale <= 0 || p.scale != 1 || of == 0 {
            return None;
        }
        let less = || Form::of(s)?.plus(&Form::name(of), -1);
        let below = self.state.below(s.id, s.scale, of).is_some_and(|b| b >= i64::from(s.delta))
            || (self.loops.rich() && less().is_some_and(|f| self.state.proves(&f)));
        if !below {
            return None;
        }
        let (id, apart) = self.state.name_difference((of, 0), s, &mut self.next_id)?;
        Some((id, 1, p.delta.checked_add(apart)?))
    }

    /// The name, scale and distance with which a pointer into other memory moves after an addition to its offset.
    fn moved(&mut self, p: &Value, s: &Value, subtract: bool) -> (u32, i16, i32) {
        let moved = match (s.n.as_const(), p.n.as_const()) {
            (Some(c), _) if p.tie != 0 => {
                let c = if subtract { (c as i64).checked_neg() } else { Some(c as i64) };
                let delta = c.and_then(|c| i32::try_from(c).ok()).and_then(|c| p.delta.checked_add(c));
                delta.map(|delta| (p.tie, p.scale, delta))
            }
            (None, Some(at)) if s.id != 0 && !subtract && s.n.smin() >= 0 && self.relates() => {
                let delta = i32::try_from(at as i64).ok().and_then(|at| s.delta.checked_add(at));
                delta.map(|delta| (s.id, s.scale, delta))
            }
            (None, _) if p.tie != 0 && s.id != 0 && subtract && p.scale == 1 => self.behind(p, s),
            (None, None) if p.tie != 0 && s.id != 0 && !subtract && self.relates() => {
                // V(tie) and the summand are not negative, so the sum is not either.
                let exact = s.n.smin() >= 0;
                let delta = i64::from(p.delta) + i64::from(s.delta);
                let most = p.n.smax().checked_sub(p.delta.into()).and_then(|m| m.checked_add(s.n.smax()));
                let most = most.and_then(|m| m.checked_sub(s.delta.into())).filter(|_| exact);
                let (p, s) = ((p.tie, p.scale), (s.id, s.scale));
                most.and_then(|most| self.state.name_multiples(p, s, 0, most, &mut self.next_id)).and_then(
                    |(id, scale, apart)| Some((id, scale, i32::try_from(delta.checked_add(apart.into())?).ok()?)),
                )
            }
            _ => None,
        };
        moved.unwrap_or((0, 1, 0))
    }
}
