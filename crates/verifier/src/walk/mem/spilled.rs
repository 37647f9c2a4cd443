//! Spilled numbers that are loaded more than once.
//!
//! Problem: a program with more values than registers spills a number, loads and tests it, and after a call loads it
//! again and uses it. A join takes the name of a number that one place holds, so the test says nothing of the slot.
//! Approach: a load gives the number a name that register and slot share, as the kernel's verifier does. Each shared
//! name keeps states apart that would cover each other, so only what is about to be bounded gets one.

use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src};

use crate::scalar::Scalar;
use crate::value::Value;
use crate::walk::Walk;

/// Instructions behind a load within which the comparison is expected.
const COMPARED_WITHIN: usize = 8;

impl Walk<'_> {
    /// The value that was spilled to exactly these bytes. A number that is compared soon has a name then, which the
    /// slot shares: so a comparison of what is loaded bounds what is loaded again.
    pub(super) fn spilled(&mut self, frame: usize, depth: usize, size: Size, dst: Reg) -> Option<Value> {
        let bytes = size.bytes() as usize;
        let v = match self.state.frames[frame].spilled(depth, bytes) {
            Some(spill) if spill.value.is_local() => return None,
            Some(spill) => spill.value,
            // Any number is kept as bytes.
            None if self.state.frames[frame].is_misc(depth, bytes) && self.is_compared_soon(dst) => {
                Value::scalar(Scalar::low_bits(size.bits()))
            }
            None => return None,
        };
        if !v.is_scalar() || v.id != 0 || v.n.as_const().is_some() || !self.is_compared_soon(dst) {
            return Some(v);
        }
        let v = Value { id: self.new_id(), ..v };
        self.state.frames[frame].name_number(depth, bytes, &v);
        Some(v)
    }

    /// Whether one of the next instructions compares the register with more or less, or a copy whose upper half it
    /// shifts out first, before it is written. (Whether it is one number says nothing that an index is bounded by.)
    fn is_compared_soon(&self, r: Reg) -> bool {
        let shifts = |next: &Insn, copy: Reg| matches!(next, Insn::Alu { op: AluOp::Lsh, dst, src: Src::Imm(_), .. } if *dst == copy);
        let from = self.pc.index() + 1;
        for (insn, next) in self.insns.iter().zip(self.insns.iter().skip(1)).skip(from).take(COMPARED_WITHIN) {
            let compared = match *insn {
                Insn::JumpIf { cond, dst, src, .. } => {
                    (dst == r || src == Src::Reg(r)) && !matches!(cond, Cond::Eq | Cond::Ne | Cond::Set)
                }
                Insn::Mov { dst, src, .. } => src == Src::Reg(r) && shifts(next, dst),
                _other => false,
            };
            if compared {
                return true;
            }
            if bpf_analysis::defs(insn).contains(r) || insn.ends_flow() {
                return false;
            }
        }
        false
    }
}
