//! Arithmetic on pointers.
//!
//! The address of a pointer is its base's address plus the offset, modulo 2^64, so offsets add up as forms do, and no
//! bound is needed until the pointer is used. The difference of two pointers into one object is the difference of their
//! offsets.

use bpf_isa::{AluOp, Reg, Width};

use crate::check::Checker;
use crate::domain::Form;
use crate::refusal::{Res, Why};
use crate::state::{Base, Pointer, State, Value};

/// Whether a program may calculate with pointers into this base.
fn is_memory(base: Base) -> bool {
    match base {
        Base::Stack(_)
        | Base::Region(_)
        | Base::MapValue(_)
        | Base::InnerValue(_)
        | Base::Memory { .. }
        | Base::Record { .. } => true,
        Base::Context | Base::Map(_) | Base::Inner(_) => false,
    }
}

impl Checker<'_> {
    /// `p + n` or `p - n`.
    pub(crate) fn move_pointer(&mut self, reg: Reg, width: Width, op: AluOp, p: &Pointer, n: &Form) -> Res<Value> {
        if p.present.is_some() {
            return Err(Why::MayBeNull(reg));
        }
        let times = match (op, width) {
            (AluOp::Add, Width::W64) => 1,
            (AluOp::Sub, Width::W64) => -1,
            _other => return Err(Why::PointerArithmetic(reg)),
        };
        if !(is_memory(p.base) || p.base == Base::Context && n.as_const().is_some()) {
            return Err(Why::PointerArithmetic(reg));
        }
        let offset = p.offset.plus(n, times).ok_or(Why::PointerArithmetic(reg))?;
        Ok(Value::Pointer(Pointer { offset: offset.residue(64), ..p.clone() }))
    }

    /// `p - q`.
    pub(crate) fn distance(
        &mut self,
        state: &mut State,
        reg: Reg,
        (width, op): (Width, AluOp),
        p: &Pointer,
        q: &Pointer,
    ) -> Res<Value> {
        let offsets = self.in_one_object(state, p, q).filter(|_| op == AluOp::Sub && is_memory(p.base));
        let distance = offsets.and_then(|(p, q)| p.plus(&q, -1)).ok_or(Why::PointerArithmetic(reg))?;
        match width {
            Width::W64 => Ok(Value::Number(distance.residue(64))),
            Width::W32 => Ok(Value::Number(self.read_as(state, &distance, 32, false)?)),
        }
    }

    /// Returns the offsets of both pointers relative to one address, if both point into one object. Two adjacent
    /// regions count as one object.
    pub(crate) fn in_one_object(&self, state: &State, p: &Pointer, q: &Pointer) -> Option<(Form, Form)> {
        if p.present.is_some() || q.present.is_some() {
            return None;
        }
        // The length of the first region, if it ends at the start of the second.
        let before = |a: Base, b: Base| match (a, b) {
            (Base::Region(a), Base::Region(b)) => {
                let region = self.env.context.regions.get(usize::from(a))?;
                let length = state.lengths.get(usize::from(a))?;
                (region.ends_at_start_of == Some(b)).then_some(length)
            }
            _other => None,
        };
        match (p.base, q.base) {
            // Two pointers to values of a map may point to different elements, and two results of a function to
            // different objects.
            (Base::MapValue(_) | Base::InnerValue(_) | Base::Memory { .. }, _) => None,
            (a, b) if a == b => Some((p.offset.clone(), q.offset.clone())),
            (a, b) => match (before(a, b), before(b, a)) {
                (Some(length), None) => Some((p.offset.clone(), q.offset.plus(length, 1)?)),
                (None, Some(length)) => Some((p.offset.plus(length, 1)?, q.offset.clone())),
                (None, None) | (Some(_), Some(_)) => None,
            },
        }
    }
}
