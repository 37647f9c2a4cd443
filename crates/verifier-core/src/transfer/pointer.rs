//! Arithmetic on pointers.
//!
//! An address is that of the base plus the offset, modulo 2^64, so offsets add up as forms do; no bound is needed until
//! the pointer is used. A difference of two pointers into one object is that of their offsets.

use bpf_isa::{AluOp, Reg, Width};

use crate::check::Checker;
use crate::domain::Form;
use crate::refusal::{Res, Why};
use crate::state::{Base, Pointer, Value};

/// Whether a program may calculate with pointers to it.
fn is_memory(base: Base) -> bool {
    match base {
        Base::Stack(_) | Base::Region(_) | Base::MapValue(_) | Base::Memory { .. } | Base::Record { .. } => true,
        Base::Context | Base::Map(_) => false,
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
    pub(crate) fn distance(&mut self, reg: Reg, width: Width, op: AluOp, p: &Pointer, q: &Pointer) -> Res<Value> {
        let one_object = p.base == q.base && is_memory(p.base) && p.present.is_none() && q.present.is_none();
        // Two values of a map may be two elements.
        let one_object = one_object && !matches!(p.base, Base::MapValue(_) | Base::Memory { .. });
        if (op, width) != (AluOp::Sub, Width::W64) || !one_object {
            return Err(Why::PointerArithmetic(reg));
        }
        let distance = p.offset.plus(&q.offset, -1).ok_or(Why::PointerArithmetic(reg))?;
        Ok(Value::Number(distance.residue(64)))
    }
}
