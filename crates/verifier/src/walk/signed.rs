//! Numbers that count below zero.
//!
//! Problem: compilers count `end - p` from 0 downwards (`i = 0; end[--i]`), or a distance that is negated behind the
//! loop. As unsigned numbers these wrap in the first round, so no name relates them to the round. Approach: in a loop's
//! candidate invariant, a register that holds a constant at the entry and falls below zero in the first round is a
//! [`Ty::Signed`]: `scale * V(tie) + delta` is its value as a signed integer, like the offset of a pointer.
//!
//! Invariants: only a 64-bit copy, a sum with a constant and a sum with a pointer into a region read such a register.
//! Before any other instruction, the registers that it may read become plain numbers ([`Walk::settle_signed`]), so no
//! other rule meets a [`Ty::Signed`] as an operand. Stack slots never hold one: a store is such an instruction.
//!
//! Claim: the sums are exact. Proof: both operands and the result are at most [`super::pointers::MAX_OFFSET`] away from
//! 0, so nothing wraps as a signed number of 64 bits.

use bpf_isa::{AluOp, Insn, Reg, Src, Width};

use super::pointers::bounded;
use super::{Res, Walk};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Room, State};
use crate::value::{Ty, Value};

impl Value {
    /// Returns the same number as a signed one, with its name if it is not negative.
    pub(super) fn as_signed(&self) -> Option<Value> {
        let exact = self.is_scalar() && bounded(&self.n);
        let named = self.n.smin() >= 0;
        let (tie, scale, delta) = if named { (self.id, self.scale, self.delta) } else { (0, 1, 0) };
        exact.then_some(Value { tie, scale, delta, ..Value { n: self.n, ..Value::pointer(Ty::Signed) } })
    }

    fn is_signed(&self) -> bool {
        matches!(self.ty, Ty::Signed)
    }

    /// Returns a signed number as a plain one. It keeps its name if it is not negative.
    fn unsigned(&self) -> Value {
        let named = self.n.smin() >= 0;
        let v = Value::scalar(self.n);
        if named { v.renamed(self.tie, self.scale, self.delta) } else { v }
    }

    /// Returns the negation of a signed number that is at most zero, as a plain number.
    fn negative(&self) -> Option<Value> {
        let n = Scalar::constant(0).alu(AluOp::Sub, Width::W64, &self.n);
        let (scale, delta) = (self.scale.checked_neg()?, self.delta.checked_neg()?);
        let delta = if planted!(NegativeForgetsDistance) { 0 } else { delta };
        let v = Value::scalar(n);
        let v = if scale > 0 && self.tie != 0 { v.renamed(self.tie, scale, delta) } else { v };
        (self.n.smax() <= 0).then_some(v)
    }
}

impl State {
    /// Makes these registers of the running frame plain numbers.
    fn unsign(&mut self, regs: &[Reg]) {
        for r in regs {
            let v = self.reg(*r);
            if v.is_signed() {
                let v = v.unsigned();
                self.set(*r, v);
            }
        }
    }
}

impl Walk<'_> {
    /// Makes the registers that an instruction reads plain numbers, unless the instruction has a rule for signed ones.
    pub(super) fn settle_signed(&mut self, insn: &Insn) {
        let is = |r: Reg| self.state.reg(r).is_signed();
        let region = |r: Reg| matches!(self.state.reg(r).ty, Ty::Packet { .. } | Ty::PacketEnd { .. });
        match *insn {
            Insn::Mov { width: Width::W64, .. } | Insn::LoadImm64 { .. } | Insn::Jump { .. } => {}
            Insn::Mov { src: Src::Imm(_), .. } => {}
            Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Src::Imm(_) } if is(dst) => {}
            Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Src::Reg(r) }
                if (is(dst) && region(r)) || (region(dst) && is(r)) => {}
            Insn::Alu { dst, src: Src::Imm(_), .. } | Insn::JumpIf { dst, src: Src::Imm(_), .. } => {
                self.state.unsign(&[dst]);
            }
            Insn::Alu { dst, src: Src::Reg(r), .. } | Insn::JumpIf { dst, src: Src::Reg(r), .. } => {
                self.state.unsign(&[dst, r]);
            }
            Insn::Load { base, .. } => self.state.unsign(&[base]),
            Insn::Store { base, src: Src::Reg(r), .. } => self.state.unsign(&[base, r]),
            Insn::Store { base, src: Src::Imm(_), .. } => self.state.unsign(&[base]),
            Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::SecondSlot
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::JumpReg { .. }
            | Insn::MayGoto { .. }
            | Insn::Call(_)
            | Insn::Exit => self.state.unsign(&Reg::ALL),
        }
    }

    /// The sum of a signed number and a constant, or of a pointer into a region and a signed number; `None` for another
    /// sum.
    pub(super) fn signed_sum(&mut self, dst: Reg, src: Src) -> Res<Option<Value>> {
        let d = *self.state.reg(dst);
        let (p, s, reg) = match src {
            Src::Imm(i) if d.is_signed() => {
                self.decides();
                let n = d.n.alu(AluOp::Add, Width::W64, &Scalar::constant(i64::from(i) as u64));
                let delta = d.delta.checked_add(i).filter(|_| bounded(&d.n) && bounded(&n));
                return Ok(Some(match delta {
                    Some(delta) => Value { n, delta, ..d },
                    None => Value::scalar(n),
                }));
            }
            Src::Reg(r) if d.is_signed() => (self.read(r)?, d, r),
            Src::Reg(r) if self.state.reg(r).is_signed() => (d, *self.state.reg(r), dst),
            Src::Reg(_) | Src::Imm(_) => return Ok(None),
        };
        self.decides();
        let v = match s.negative() {
            Some(less) if less.n.as_const() != Some(0) => {
                let less = if self.loops.guessing() { self.assume_behind(&p, less) } else { less };
                self.pointer_add(reg, &p, &less, true)?
            }
            Some(_) | None => self.pointer_add(reg, &p, &s.unsigned(), false)?,
        };
        Ok(Some(v))
    }

    /// While a loop's candidate is made: assumes that a number subtracted from a pointer into a region does not lead
    /// before the region's start.
    fn assume_behind(&mut self, p: &Value, less: Value) -> Value {
        let name = match p.ty {
            Ty::PacketEnd { region } => (crate::value::len_id(region), 0),
            _ if p.scale == 1 => (p.line_id(), p.delta),
            _ => return less,
        };
        let bytes = i64::from(less.delta) - i64::from(name.1);
        self.state.learn_below(Room { id: less.id, scale: less.scale, bytes, hi: name.0 });
        let end = matches!(p.ty, Ty::PacketEnd { .. });
        let most = if end { super::pointers::size_of(p, self.env).into() } else { p.n.smax().max(0) as u64 };
        let Some(n) = less.n.meet(&Scalar::unsigned(0, most)) else { return less };
        let less = Value { n, ..less };
        self.state.bound_by(&less);
        less
    }
}
