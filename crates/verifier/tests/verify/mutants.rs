//! Everyday programs with a few places changed: one condition, constant, register, offset, size, operation or jump is
//! another, an instruction is left out or comes later.
//!
//! The programs of `tests/loops` are everyday code that is provable as written; each change moves a program a little
//! towards or over the border. Generators of loops cover the shapes that their author thought of, while these loops
//! were written to compute something. Programs with maps or packets are left out.

use std::sync::OnceLock;

use bpf_isa::{AluOp, Cond, Insn, Program, Reg, Size, Src, Width};
use bpf_testkit::generate::Choices;

use crate::loop_programs;

/// The programs that may be mutated, sorted by name, so that a seed has one meaning everywhere.
fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let named = loop_programs::objects().into_iter().flat_map(|o| loop_programs::load(&o));
        let plain = |p: &loop_programs::Named| {
            p.raw && p.maps.is_empty() && !p.program.insns().iter().any(|i| matches!(i, Insn::Call(_)))
        };
        // Longer ones take most of the time, and one change is a smaller part of them.
        named.filter(plain).map(|p| p.program).filter(|p| p.insns().len() <= 64).collect()
    })
}

/// Another register that the program uses.
fn register(c: &mut Choices<'_>, r: &mut Reg) {
    *r = c.pick(&[Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9]);
}

fn immediate(c: &mut Choices<'_>, i: i32) -> i32 {
    match c.below(6) {
        0 | 1 => i.wrapping_add(1),
        2 | 3 => i.wrapping_sub(1),
        4 => c.pick(&[i.wrapping_neg(), i.wrapping_mul(2), i / 2, i.wrapping_add(8), i.wrapping_sub(8)]),
        _ => c.imm(),
    }
}

fn source(c: &mut Choices<'_>, src: &mut Src) {
    match src {
        Src::Imm(i) => *i = immediate(c, *i),
        Src::Reg(r) => register(c, r),
    }
}

fn other_width(width: &mut Width) {
    *width = if *width == Width::W64 { Width::W32 } else { Width::W64 };
}

/// A condition that is easily taken for this one, or any.
fn other_cond(c: &mut Choices<'_>, cond: Cond) -> Cond {
    if c.one_in(4) {
        return c.pick(&Cond::ALL);
    }
    match cond {
        Cond::Eq => Cond::Ge,
        Cond::Ne => c.pick(&[Cond::Lt, Cond::Gt, Cond::SLt]),
        Cond::Gt => c.pick(&[Cond::Ge, Cond::SGt, Cond::Ne]),
        Cond::Ge => c.pick(&[Cond::Gt, Cond::SGe, Cond::Eq]),
        Cond::Lt => c.pick(&[Cond::Le, Cond::SLt, Cond::Ne]),
        Cond::Le => c.pick(&[Cond::Lt, Cond::SLe, Cond::Ne]),
        Cond::SGt => c.pick(&[Cond::SGe, Cond::Gt, Cond::Ne]),
        Cond::SGe => c.pick(&[Cond::SGt, Cond::Ge, Cond::Eq]),
        Cond::SLt => c.pick(&[Cond::SLe, Cond::Lt, Cond::Ne]),
        Cond::SLe => c.pick(&[Cond::SLt, Cond::Le, Cond::Ne]),
        Cond::Set => Cond::Ne,
    }
}

fn other_op(c: &mut Choices<'_>, op: AluOp) -> AluOp {
    match op {
        _ if c.one_in(4) => c.pick(&AluOp::ALL),
        AluOp::Add => AluOp::Sub,
        AluOp::Sub => AluOp::Add,
        AluOp::Lsh => AluOp::Rsh,
        AluOp::Rsh => AluOp::Arsh,
        AluOp::Arsh => AluOp::Rsh,
        AluOp::Or => AluOp::Add,
        AluOp::And => AluOp::Mod,
        AluOp::Mod => AluOp::And,
        op => op,
    }
}

/// Changes this instruction, in one way that its kind has.
fn change(c: &mut Choices<'_>, insn: &mut Insn) {
    match insn {
        Insn::JumpIf { width, cond, dst, src, off } => match c.below(10) {
            0..=3 => *cond = other_cond(c, *cond),
            4..=6 => source(c, src),
            7 => other_width(width),
            8 => register(c, dst),
            _ => *off = off.wrapping_add(c.pick(&[1, -1, 2, -2])),
        },
        Insn::Alu { width, op, dst, src } => match c.below(8) {
            0..=3 => source(c, src),
            4 | 5 => *op = other_op(c, *op),
            6 => other_width(width),
            _ => register(c, dst),
        },
        Insn::Mov { width, dst, src } => match c.below(6) {
            0..=3 => source(c, src),
            4 => other_width(width),
            _ => register(c, dst),
        },
        Insn::Load { size, off, base, sign, .. } => match c.below(6) {
            0 => *size = c.pick(&[Size::B, Size::H, Size::W, Size::DW]),
            1..=3 => *off = off.wrapping_add(c.pick(&[1, -1, 4, -4, 8, -8])),
            4 => *sign = !*sign && *size != Size::DW,
            _ => register(c, base),
        },
        Insn::Store { size, off, base, .. } => match c.below(6) {
            0 | 1 => *size = c.pick(&[Size::B, Size::H, Size::W, Size::DW]),
            2..=4 => *off = off.wrapping_add(c.pick(&[1, -1, 4, -4, 8, -8])),
            _ => register(c, base),
        },
        Insn::Neg { width, .. } => other_width(width),
        _ => {}
    }
}

/// Makes a program, unless the change makes none.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let all = programs();
    let mut insns = all[c.below(all.len() as u32) as usize].insns().to_vec();
    let n = insns.len() as u32;
    for _ in 0..1 + c.below(3) {
        let at = c.below(n) as usize;
        match c.below(12) {
            // Left out: a jump to the next instruction is there instead, so that all others keep their places.
            0 if !matches!(insns[at], Insn::LoadImm64 { .. } | Insn::SecondSlot) => {
                insns[at] = Insn::Jump { off: 0, wide: false };
            }
            // Later.
            1 if at + 1 < insns.len() && straight(&insns[at]) && straight(&insns[at + 1]) => insns.swap(at, at + 1),
            _ => change(c, &mut insns[at]),
        }
    }
    Program::new(insns).ok()
}

fn straight(insn: &Insn) -> bool {
    matches!(insn, Insn::Alu { .. } | Insn::Mov { .. } | Insn::Load { .. } | Insn::Store { .. } | Insn::Neg { .. })
}
