//! How much of its frame a subprogram may touch.
//!
//! Without a verifier, only the shape of the code can be trusted: as long as r10 is used as an address base and in no
//! other way, every stack access is an explicit constant offset. A program that copies r10 anywhere may reach the whole
//! frame.

use crate::regs::{RegSet, uses};
use bpf_isa::{Insn, MemoryAccess, Reg};

/// How far below r10 an instruction reaches that reads r10; `None` if it is not a memory access at a constant offset,
/// after which the whole frame may be touched.
pub fn touched_below_r10(insn: &Insn) -> Option<u32> {
    let (off, others) = match insn.memory_access() {
        Some(MemoryAccess { base: Reg::R10, off, kind, .. }) => (off, kind.operand().map_or(RegSet::EMPTY, RegSet::of)),
        Some(_) | None => (0, uses(insn)),
    };
    (!others.contains(Reg::R10)).then_some((-i32::from(off)).max(0) as u32)
}
