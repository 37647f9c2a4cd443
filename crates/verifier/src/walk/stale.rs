//! Stale pointers: operations that remain allowed after a pointer's memory was moved or released.
//!
//! Problem: compilers sink `end - p` below the call that moves the packet, keep a null test below the call that submits
//! a record, and spill pointers that are not read again. Approach: such a pointer is a [`Ty::Stale`], through which
//! nothing is accessed. A stale pointer into a region is an offset from the region's former start: two that the same
//! move made stale may be subtracted and compared, and numbers may be added. For other stale pointers, only their
//! nullness is known.
//!
//! Claim: these operations reveal no address. Proof: distances and orders of offsets from one place do not depend on
//! that place, as long as neither address wraps (far offsets, and offsets that may lead below address 0, are compared
//! for equality only). A comparison with null reveals only whether the pointer was null before.

use bpf_isa::{AluOp, Cond, Reg, Src, Width};

use super::branch::Lesson;
use super::objects::{is_near_start, of_halves};
use super::pointers::{bounded, lies_far_before};
use super::{Res, Walk, refuse};
use crate::error::Reason;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::value::{Ty, Value};

/// The region into which a stale pointer pointed, and whether it is a whole pointer.
fn was_in(v: &Value) -> Option<(u8, bool)> {
    match v.ty {
        Ty::Stale { region: Some(region), half, .. } => Some((region, !half)),
        _other => None,
    }
}

/// The region into which both pointers pointed before one and the same move, and whether both are whole.
fn of_one_move(d: &Value, s: &Value) -> Option<(u8, bool)> {
    let same = d.owner == s.owner || planted!(MovesAlike);
    was_in(d).filter(|at| Some(*at) == was_in(s) && same)
}

/// The distance from the second pointer to the first.
fn apart(d: &Value, s: &Value) -> Scalar {
    if (d.id, d.scale) == (s.id, s.scale) && d.id != 0 {
        return Scalar::constant((i64::from(d.delta) - i64::from(s.delta)).cast_unsigned());
    }
    d.n.alu(AluOp::Sub, Width::W64, &s.n)
}

impl Walk<'_> {
    /// Arithmetic with a stale operand.
    pub(super) fn stale_alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Res<Value> {
        let d = self.read_stale(dst)?;
        let s = match src {
            Src::Reg(r) => self.read_stale(r)?,
            Src::Imm(_) => self.read_src(src)?,
        };
        if let (AluOp::Sub, Some((_, whole))) = (op, of_one_move(&d, &s)) {
            let n = apart(&d, &s);
            let n = match width {
                Width::W32 => Some(n.zext_low()),
                Width::W64 if whole => Some(n),
                Width::W64 => of_halves(&n, is_near_start(&d.n) && is_near_start(&s.n)),
            };
            return match n {
                Some(n) => Ok(Value::scalar(n)),
                None => self.refuse_stale((dst, &d), (src, &s)),
            };
        }
        let moved = match (op, width) {
            (AluOp::Add, Width::W64) if s.is_scalar() => moved(&d, &s, op),
            (AluOp::Add, Width::W64) if d.is_scalar() => moved(&s, &d, op),
            (AluOp::Sub, Width::W64) if s.is_scalar() => moved(&d, &s, op),
            _other => None,
        };
        match moved {
            Some(moved) => Ok(moved),
            None => self.refuse_stale((dst, &d), (src, &s)),
        }
    }

    /// The refinements of a comparison with a stale operand: not taken, and taken.
    pub(super) fn stale_lessons(
        &self,
        width: Width,
        cond: Cond,
        (dst, d): (Reg, &Value),
        (src, s): (Src, &Value),
    ) -> Res<[Lesson; 2]> {
        let nothing = [Lesson::Nothing, Lesson::Nothing];
        let decided =
            |holds: bool| [false, true].map(|taken| if holds == taken { Lesson::Nothing } else { Lesson::Never });
        // The order of a pointer far outside its region would depend on, and so reveal, the region's address; and no
        // run-time check of a stale pointer is possible.
        let near = |v: &Value| bounded(&v.n) && !lies_far_before(v);
        let shown = matches!(cond, Cond::Eq | Cond::Ne) || (cond != Cond::Set && near(d) && near(s));
        if let (Width::W64, Some((_, true)), true) = (width, of_one_move(d, s), shown) {
            let apart = apart(d, s).as_const().filter(|_| bounded(&d.n) && bounded(&s.n));
            let unsigned = !matches!(cond, Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe);
            // An address before the region's start may wrap.
            let near = d.n.smin() >= 0 && s.n.smin() >= 0 || matches!(cond, Cond::Eq | Cond::Ne);
            return Ok(match apart {
                // Compared as offsets from the middle of the address space, where they do not wrap.
                Some(apart) if unsigned && near => {
                    decided(cond.holds(Width::W64, apart.wrapping_add(1 << 62), 1 << 62))
                }
                _other => nothing,
            });
        }
        let with_null = (d.is_stale() && s.as_const() == Some(0)) || (s.is_stale() && d.as_const() == Some(0));
        if width == Width::W64 && with_null && matches!(cond, Cond::Eq | Cond::Ne) {
            let p = if d.is_stale() { d } else { s };
            // A comparison of null with a pointer before its memory, or with half of a pointer that is not at the
            // start, would reveal the address. Valid pointers are refused there as well.
            let half = was_in(p).is_some_and(|(_, whole)| !whole) && p.n.as_const() != Some(0);
            if half || lies_far_before(p) {
                return self.refuse_stale((dst, d), (src, s));
            }
            // An empty region may have been at any address.
            let known = was_in(p).is_none() && !p.null;
            return Ok(if known { decided(cond == Cond::Ne) } else { nothing });
        }
        self.refuse_stale((dst, d), (src, s))
    }

    fn refuse_stale<T>(&self, (dst, d): (Reg, &Value), (src, s): (Src, &Value)) -> Res<T> {
        let (r, v) = match src {
            Src::Reg(r) if !d.is_stale() => (r, s),
            Src::Reg(_) | Src::Imm(_) => (dst, d),
        };
        refuse(Reason::Uninit(r, v.describe(self.env)))
    }
}

/// A stale pointer plus or minus a number.
fn moved(p: &Value, by: &Value, op: AluOp) -> Option<Value> {
    was_in(p).filter(|(_, whole)| *whole)?;
    let n = p.n.alu(op, Width::W64, &by.n);
    if !bounded(&by.n) || !bounded(&n) {
        return None;
    }
    let step = by.n.as_const().and_then(|c| i32::try_from(c.cast_signed()).ok());
    let delta = step.and_then(|step| match op {
        AluOp::Sub => p.delta.checked_sub(step),
        _add => p.delta.checked_add(step),
    });
    // Without a name, only the range describes the offset.
    Some(match delta {
        Some(delta) if p.id != 0 => Value { n, delta, ..*p },
        _other => Value { n, ..p.renamed(0, 1, 0) },
    })
}
