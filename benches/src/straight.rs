//! Programs for the load benchmarks: straight-line code of any length.
//!
//! The time of a load depends on the number of instructions and their mix, not on their results. The programs are
//! therefore random arithmetic, moves, stack accesses and short forward branches: only instructions that every peer
//! supports (BPF v3, no calls, no context), and no code with many paths for a verifier.

use bpf_isa::{AluOp, Callee, Cond, Insn, Reg, Size, Src, Width};
use bpf_testkit::generate::Choices;

const OPS: [AluOp; 8] = [AluOp::Add, AluOp::Sub, AluOp::Mul, AluOp::Or, AluOp::And, AluOp::Xor, AluOp::Lsh, AluOp::Rsh];
const REGS: [Reg; 8] = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R6, Reg::R7, Reg::R8];
/// Number of eight-byte stack slots in use, all written before one is read.
const SLOTS: u32 = 4;
/// `bpf_get_prandom_u32` (linux/bpf.h).
const GET_PRANDOM_U32: u32 = 7;

/// Returns a program of exactly `length` instructions (at least 16), encoded.
///
/// # Panics
/// If `length` is below 16.
pub fn program(seed: u64, length: usize) -> Vec<u8> {
    let head = REGS.len() + SLOTS as usize;
    assert!(length >= head + 4, "too short for its own prologue");
    let mut choices = Choices::from_seed(seed);
    let mut insns = Vec::with_capacity(length);
    for reg in REGS {
        insns.push(Insn::Mov { width: Width::W64, dst: reg, src: Src::Imm(choices.imm()) });
    }
    for slot in 0..SLOTS {
        insns.push(Insn::Store {
            size: Size::DW,
            base: Reg::R10,
            off: offset(slot),
            src: Src::Reg(REGS[slot as usize]),
        });
    }
    while insns.len() < length - 1 {
        // A branch needs an instruction to jump over, before the exit.
        let room = insns.len() + 2 < length;
        insns.push(instruction(&mut choices, room));
    }
    insns.push(Insn::Exit);
    bpf_isa::encode(&insns).expect("these are valid instructions")
}

/// Returns a program for verifiers: exactly `length` instructions (at least 32), in which every number begins as the
/// unknown result of a helper that the kernel has too, so that no verifier can fold the program. With `branches`, it
/// has as many as [`program`].
///
/// # Panics
/// If `length` is below 32.
pub fn unknown(seed: u64, length: usize, branches: bool) -> Vec<u8> {
    let calls = 2 * SLOTS as usize;
    assert!(length >= calls + REGS.len() + 4, "too short for its own prologue");
    let mut choices = Choices::from_seed(seed);
    let mut insns = Vec::with_capacity(length);
    for slot in 0..SLOTS {
        insns.push(Insn::Call(Callee::Helper(GET_PRANDOM_U32)));
        insns.push(Insn::Store { size: Size::DW, base: Reg::R10, off: offset(slot), src: Src::Reg(Reg::R0) });
    }
    for (reg, slot) in REGS.into_iter().zip((0..SLOTS).cycle()) {
        insns.push(Insn::Load { size: Size::DW, sign: false, dst: reg, base: Reg::R10, off: offset(slot) });
    }
    while insns.len() < length - 1 {
        let room = branches && insns.len() + 2 < length;
        insns.push(instruction(&mut choices, room));
    }
    insns.push(Insn::Exit);
    bpf_isa::encode(&insns).expect("these are valid instructions")
}

fn offset(slot: u32) -> i16 {
    -8 * (slot as i16 + 1)
}

fn instruction(choices: &mut Choices<'_>, room: bool) -> Insn {
    let width = choices.pick(&[Width::W64, Width::W32]);
    let (dst, other) = (choices.pick(&REGS), choices.pick(&REGS));
    let off = offset(choices.below(SLOTS));
    match choices.below(16) {
        0..=6 => {
            let op = choices.pick(&OPS);
            let shift = matches!(op, AluOp::Lsh | AluOp::Rsh);
            let src = match choices.below(2) {
                0 if !shift => Src::Reg(other),
                _ => Src::Imm(if shift { 1 + choices.below(30) as i32 } else { choices.imm() }),
            };
            Insn::Alu { width, op, dst, src }
        }
        7 | 8 => Insn::Mov { width, dst, src: Src::Reg(other) },
        9 => Insn::Mov { width, dst, src: Src::Imm(choices.imm()) },
        10 | 11 => Insn::Load { size: Size::DW, sign: false, dst, base: Reg::R10, off },
        12 | 13 => Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(other) },
        _ if room => {
            let cond = choices.pick(&[Cond::Eq, Cond::Ne, Cond::Gt, Cond::SLt]);
            Insn::JumpIf { width, cond, dst, src: Src::Imm(choices.imm()), off: 1 }
        }
        _ => Insn::Mov { width, dst, src: Src::Imm(0) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_length_asked_for_and_are_valid() {
        for length in [16, 32, 64, 512, 4000] {
            let code = program(length as u64, length);
            assert_eq!(code.len(), length * 8);
            bpf_isa::Program::from_bytes(&code).unwrap();
            for branches in [false, true].into_iter().filter(|_| length >= 32) {
                let code = unknown(length as u64, length, branches);
                assert_eq!(code.len(), length * 8);
                bpf_isa::Program::from_bytes(&code).unwrap();
            }
        }
    }
}
