//! How much of its frame a subprogram may touch.
//!
//! Without a verifier, only the shape of the code can be trusted: as long as r10 is used as an address base and in no
//! other way, every stack access is an explicit constant offset. A program that copies r10 anywhere may reach the whole
//! frame.

use crate::{RegSet, uses};
use bpf_isa::{Insn, Reg, Src};

/// How far below r10 an instruction reaches that reads r10; `None` if it is not a memory access at a constant offset,
/// after which the whole frame may be touched.
pub fn touched_below_r10(insn: &Insn) -> Option<u32> {
    let (off, others) = match based_on_r10(insn) {
        Some(access) => access,
        None => (0, uses(insn)),
    };
    (!others.contains(Reg::R10)).then_some((-i32::from(off)).max(0) as u32)
}

/// The offset of a memory access based on r10, and the registers it reads besides.
fn based_on_r10(insn: &Insn) -> Option<(i16, RegSet)> {
    match *insn {
        Insn::Load { base: Reg::R10, off, .. } | Insn::LoadAcquire { base: Reg::R10, off, .. } => {
            Some((off, RegSet::EMPTY))
        }
        Insn::Store { base: Reg::R10, off, src: Src::Imm(_), .. } => Some((off, RegSet::EMPTY)),
        Insn::Store { base: Reg::R10, off, src: Src::Reg(src), .. }
        | Insn::StoreRelease { base: Reg::R10, off, src, .. }
        | Insn::Atomic { base: Reg::R10, off, src, .. } => Some((off, RegSet::of(src))),
        Insn::Alu { .. }
        | Insn::Mov { .. }
        | Insn::MovSx { .. }
        | Insn::Neg { .. }
        | Insn::End { .. }
        | Insn::LoadImm64 { .. }
        | Insn::SecondSlot
        | Insn::Load { .. }
        | Insn::Store { .. }
        | Insn::Atomic { .. }
        | Insn::LoadAcquire { .. }
        | Insn::StoreRelease { .. }
        | Insn::LoadAbs { .. }
        | Insn::LoadInd { .. }
        | Insn::Jump { .. }
        | Insn::JumpIf { .. }
        | Insn::MayGoto { .. }
        | Insn::Call(_)
        | Insn::Exit => None,
    }
}
