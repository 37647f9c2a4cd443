//! Straight programs that store and load through two pointers, of which only the run knows whether they are one.
//!
//! An optimiser assumes which memory is unchanged between a store and a load; random programs seldom store and load at
//! one place through different registers. The programs generated here have little else: accesses of all sizes that
//! overlap, bytes that are put together with a store between their loads, and calls of a function that writes.
//!
//! Invariant: a program stays inside the 64 bytes at r1, and ends.

use super::Choices;
use bpf_isa::{AluOp, Callee, Insn, Reg, Size, Src, Width};

const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];

/// A program over 64 bytes at r1.
pub fn aliases(choices: &mut Choices<'_>) -> Vec<Insn> {
    let alu = |op, dst, src| Insn::Alu { width: Width::W64, op, dst, src };
    let mov = |dst, src| Insn::Mov { width: Width::W64, dst, src };
    let load = |size, dst, base, off| Insn::Load { size, sign: false, dst, base, off };
    let mut insns = vec![
        mov(Reg::R6, Src::Reg(Reg::R1)),
        load(Size::B, Reg::R7, Reg::R1, choices.below(64) as i16),
        // At the first pointer, or 16, 32 or 48 bytes behind it.
        alu(AluOp::And, Reg::R7, Src::Imm(0x30)),
        alu(AluOp::Add, Reg::R7, Src::Reg(Reg::R6)),
        mov(Reg::R0, Src::Imm(1)),
        mov(Reg::R8, Src::Imm(2)),
    ];
    let mut calls = Vec::new();
    for _ in 0..4 + choices.below(24) {
        let (base, off) = (choices.pick(&[Reg::R6, Reg::R7]), choices.below(9) as i16);
        let store = Insn::Store {
            size: choices.pick(&SIZES),
            base: choices.pick(&[Reg::R6, Reg::R7]),
            off: choices.below(9) as i16,
            src: choices.pick(&[Src::Reg(Reg::R0), Src::Reg(Reg::R8), Src::Imm(-3)]),
        };
        match choices.below(6) {
            0 | 1 => insns.push(store),
            2 | 3 => {
                insns.push(load(choices.pick(&SIZES), Reg::R8, base, off));
                insns.extend([alu(AluOp::Mul, Reg::R0, Src::Imm(31)), alu(AluOp::Add, Reg::R0, Src::Reg(Reg::R8))]);
            }
            4 => {
                insns.push(load(Size::B, Reg::R2, base, off));
                insns.push(load(Size::B, Reg::R3, base, off + 1));
                if choices.one_in(2) {
                    insns.push(store);
                }
                insns.push(alu(AluOp::Lsh, Reg::R3, Src::Imm(8)));
                insns.push(alu(AluOp::Or, Reg::R2, Src::Reg(Reg::R3)));
                insns.push(alu(AluOp::Xor, Reg::R0, Src::Reg(Reg::R2)));
            }
            _ => {
                insns.extend([mov(Reg::R1, Src::Reg(base)), alu(AluOp::Add, Reg::R1, Src::Imm(off.into()))]);
                insns.push(mov(Reg::R2, Src::Reg(Reg::R0)));
                calls.push(insns.len());
                insns.push(Insn::Exit);
            }
        }
    }
    insns.push(Insn::Exit);
    let callee = insns.len();
    for call in &calls {
        insns[*call] = Insn::Call(Callee::Subprog((callee - call) as i32 - 1));
    }
    if !calls.is_empty() {
        insns.push(load(Size::DW, Reg::R0, Reg::R1, 0));
        insns.push(alu(AluOp::Add, Reg::R0, Src::Reg(Reg::R2)));
        insns.push(Insn::Store { size: Size::DW, base: Reg::R1, off: 0, src: Src::Reg(Reg::R0) });
        insns.push(Insn::Exit);
    }
    insns
}
