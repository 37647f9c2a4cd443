//! Neighbouring ops that a backend may fuse: a load and the op that reads it, arithmetic and a comparison of its
//! result with zero, selections with equal comparisons. A backend that does not fuse them passes too.

use crate::Target;
use crate::alu::{OP_MEMORY, check, corners, singles};
use crate::bench::Bench;
use crate::build::{Build, at};
use crate::kinds::{ARITHMETIC, SHIFTS, SIZES, WIDTHS};
use bpf_isa::{Cond, Size, Width};
use bpf_jit::{Base, BinOp, BlockId, Mem, Op, VReg, Val};

/// An address of the op's memory, with an index in two of three.
fn address(b: &mut Build, memory: VReg, kind: usize) -> Mem {
    if kind == 0 {
        return at(memory, OP_MEMORY);
    }
    let index = b.imm(5);
    let shift = kind as u8;
    Mem::new(Base::Indexed { base: memory, index, shift }, OP_MEMORY - (5 << shift))
}

/// Arithmetic whose first or second operand is loaded for it only, with its result in the register of its address or
/// of the other operand.
pub fn loaded_operands(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for op in ARITHMETIC.iter().copied() {
        for width in WIDTHS {
            for size in [Size::B, Size::W, Size::DW] {
                for kind in 0..3 {
                    check(
                        bench,
                        &format!("{op:?} {width:?} of {size:?} {kind}"),
                        &[0, 1, 3],
                        &singles()[..9],
                        &|b, r| {
                            for first in [false, true] {
                                // Every other time the base is not live afterwards.
                                let memory = if first { b.copy(r.memory) } else { r.memory };
                                let mem = address(b, memory, kind);
                                let loaded = b.reg();
                                b.op(Op::Load { size, signed: false, swap: false, dst: loaded, mem });
                                let (x, y) = if first { (loaded, r.x) } else { (r.x, loaded) };
                                b.op(Op::Bin { op, width, dst: r.dst, a: x, b: Val::Reg(y) });
                                b.op(Op::Store { size: Size::DW, mem: at(r.memory, OP_MEMORY), src: Val::Reg(r.dst) });
                            }
                        },
                    );
                }
            }
        }
    }
}

/// Comparisons with one operand that is loaded for them only.
pub fn loaded_comparisons(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for cond in Cond::ALL {
        for width in WIDTHS {
            for size in SIZES {
                for (n, imm) in
                    [0, 1, 0x7f, 0x80, 0xff, 0x1234, -1, i64::from(i32::MIN), 1 << 40].into_iter().enumerate()
                {
                    let what = format!("{cond:?} {width:?} of {size:?} and {imm:#x}");
                    check(bench, &what, &[3], &singles()[..6], &|b, r| {
                        b.op(Op::Store { size: Size::DW, mem: at(r.memory, OP_MEMORY), src: Val::Reg(r.x) });
                        let mem = address(b, r.memory, n % 3);
                        let loads = [b.reg(), b.reg(), b.reg()];
                        let load = |dst| Op::Load { size, signed: false, swap: false, dst, mem };
                        b.op(load(loads[0]));
                        let second = if n % 2 == 0 { Val::Imm(imm) } else { Val::Reg(r.y) };
                        let (yes, no) = (r.y, r.z);
                        b.op(Op::Select { width, cond, a: loads[0], b: second, dst: r.dst, yes, no });
                        b.op(load(loads[1]));
                        b.op(Op::Select { width, cond, a: r.y, b: Val::Reg(loads[1]), dst: r.z, yes: r.dst, no: r.z });
                        b.op(load(loads[2]));
                        let here = b.block();
                        let second = if n % 2 == 0 { Val::Reg(r.z) } else { Val::Imm(imm) };
                        b.op(load(loads[2]));
                        b.op(Op::Branch { width, cond, a: loads[2], b: second, target: BlockId(here.0 + 2) });
                        b.block();
                        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: r.dst, a: r.dst, b: Val::Imm(77) });
                        b.block();
                    });
                }
            }
        }
    }
}

/// Arithmetic, then a comparison of its result, at either width, with zero: at once, and after moves.
pub fn results_compared_with_zero(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for op in ARITHMETIC.iter().chain(SHIFTS).copied() {
        for (width, tested) in [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(a, b)| (WIDTHS[a], WIDTHS[b])) {
            for second in [None, Some(1), Some(-1), Some(32), Some(0xff)] {
                // The conditions that the zero flag decides, and one of the others in turn.
                let others = [Cond::Gt, Cond::SLt, Cond::SGe];
                for cond in [Cond::Eq, Cond::Ne, others[op as usize % 3]] {
                    let what = format!("{op:?} {width:?} {second:?}, {cond:?} {tested:?}");
                    check(bench, &what, &[0, 3], &corners()[..12], &|b, r| {
                        let result = b.reg();
                        let b_op = second.map_or(Val::Reg(r.y), Val::Imm);
                        let zero = Val::Imm(0);
                        b.op(Op::Bin { op, width, dst: result, a: r.x, b: b_op });
                        b.op(Op::Select { width: tested, cond, a: result, b: zero, dst: r.dst, yes: r.z, no: r.y });
                        b.op(Op::Bin { op, width, dst: r.z, a: r.z, b: b_op });
                        let here = b.block();
                        b.op(Op::Bin { op, width, dst: r.z, a: r.z, b: b_op });
                        b.op(Op::Branch { width: tested, cond, a: r.z, b: zero, target: BlockId(here.0 + 2) });
                        b.block();
                        b.op(Op::Bin { op: BinOp::Xor, width: Width::W64, dst: r.dst, a: r.dst, b: Val::Imm(77) });
                        b.block();
                        let masked = b.reg();
                        b.op(Op::Bin { op: BinOp::And, width, dst: masked, a: r.x, b: b_op });
                        b.op(Op::Select { width: tested, cond, a: masked, b: zero, dst: r.dst, yes: r.dst, no: r.x });
                    });
                }
            }
        }
    }
}

/// Consecutive selections by one comparison: with separate destinations, and overwriting the compared values.
pub fn selections_in_a_row(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for width in WIDTHS {
        for cond in Cond::ALL {
            for second in [None, Some(0), Some(33)] {
                check(bench, &format!("{cond:?} {width:?} {second:?}"), &[0, 1, 2, 3], &corners(), &|b, r| {
                    let other = b.copy(r.z);
                    let b_op = second.map_or(Val::Reg(r.y), Val::Imm);
                    let choose = |dst, yes, no| Op::Select { width, cond, a: r.x, b: b_op, dst, yes, no };
                    b.op(choose(other, r.x, other));
                    b.op(choose(r.dst, r.z, r.y));
                    b.op(choose(r.y, r.dst, r.y));
                    b.op(choose(r.x, other, r.x));
                    b.op(choose(r.z, other, r.dst));
                });
            }
        }
    }
}
