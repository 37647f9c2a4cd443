//! Spilled numbers that are loaded more than once.
//!
//! Problem: a program with more values than registers spills a number, loads and tests it, and after a call loads it
//! again and uses it. A join takes the name of a number that one place holds, so the test says nothing of the slot.
//! Approach: a load gives the number a name that register and slot share, as the kernel's verifier does. Each shared
//! name keeps states apart that would cover each other, so only what is about to be bounded gets one, in a slot that
//! another instruction of the function loads, too.

use bpf_isa::{AluOp, Cond, Insn, InsnIdx, Program, Reg, Size, Src, SubprogId};

use crate::scalar::Scalar;
use crate::value::Value;
use crate::walk::Walk;

/// Instructions behind a load within which the comparison is expected.
const COMPARED_WITHIN: usize = 8;

/// Returns the offsets from r10, with their function, that more than one instruction loads from; ascending.
fn reloaded(program: &Program) -> Vec<(SubprogId, i16)> {
    let loads = (0..).map(InsnIdx).zip(program.insns()).filter_map(|(at, insn)| match insn {
        Insn::Load { base: Reg::R10, off, .. } => Some((program.subprog_of(at), *off)),
        _other => None,
    });
    let mut places: Vec<_> = loads.collect();
    places.sort_unstable();
    let again: Vec<_> = places.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    places.clear();
    places.extend(again);
    places.dedup();
    places
}

impl Walk<'_> {
    /// The value that was spilled to exactly these bytes. A number that is compared soon gets a name that register and
    /// slot share, so that a comparison after this load bounds the number at the next load.
    pub(super) fn spilled(&mut self, frame: usize, depth: usize, size: Size, dst: Reg) -> Option<Value> {
        let bytes = size.bytes() as usize;
        let v = match self.state.frames[frame].spilled(depth, bytes) {
            Some(spill) if spill.value.is_local() => return None,
            Some(spill) => spill.value,
            // Any number is kept as bytes.
            None if self.state.frames[frame].is_misc(depth, bytes) && self.is_tested_and_reloaded(dst) => {
                Value::scalar(Scalar::low_bits(size.bits()))
            }
            None => return None,
        };
        if !v.is_scalar() || v.id != 0 || v.n.as_const().is_some() || !self.is_tested_and_reloaded(dst) {
            return Some(v);
        }
        let v = Value { id: self.new_id(), ..v };
        self.state.frames[frame].name_number(depth, bytes, &v);
        Some(v)
    }

    /// Whether the number that is loaded into the register is compared soon, and another load of the function may be of
    /// the same slot.
    fn is_tested_and_reloaded(&self, dst: Reg) -> bool {
        self.is_compared_soon(dst) && self.is_reloaded()
    }

    /// Whether more than one instruction of the function loads from the place of the current one. Other addresses than
    /// offsets from r10, to which compilers spill, count as loaded again.
    fn is_reloaded(&self) -> bool {
        let Insn::Load { base: Reg::R10, off, .. } = self.insns[self.pc.index()] else { return true };
        let subprog = self.program.subprog_of(self.pc);
        let reloaded = self.reloaded.get_or_init(|| reloaded(self.program));
        reloaded.binary_search(&(subprog, off)).is_ok()
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
