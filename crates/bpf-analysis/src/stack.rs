//! How much of its frame a subprogram may touch.
//!
//! Without a verifier, only the shape of the code can be trusted: as long as r10 is used as an address base and in no
//! other way, every stack access is an explicit constant offset. A program that copies r10 anywhere may reach the whole frame.

use crate::uses;
use bpf_isa::{Insn, Program, Reg, Subprog};

/// Bytes of stack below r10 that the subprogram may touch, at most `max`.
pub fn frame_bytes(program: &Program, sub: &Subprog, max: u32) -> u32 {
    let mut bytes = 0u32;
    for insn in &program.insns()[sub.start as usize..sub.end as usize] {
        let off = match *insn {
            Insn::Load { base: Reg::R10, off, .. } | Insn::LoadAcquire { base: Reg::R10, off, .. } => off,
            Insn::Store { base: Reg::R10, off, src, .. } if src != bpf_isa::Src::Reg(Reg::R10) => off,
            Insn::Atomic { base: Reg::R10, off, src, .. } | Insn::StoreRelease { base: Reg::R10, off, src, .. }
                if src != Reg::R10 =>
            {
                off
            }
            _ if uses(insn).contains(Reg::R10) => return max,
            _ => continue,
        };
        bytes = bytes.max((-i32::from(off)).max(0) as u32);
    }
    bytes.min(max)
}
