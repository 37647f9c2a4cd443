//! Selections and branches: every condition, and every distance.

use crate::Target;
use crate::alu::{check, corners, pairs, singles};
use crate::bench::{Bench, Start, Way};
use crate::build::Build;
use crate::kinds::{EDGES, WIDTHS, constants};
use bpf_isa::{Cond, Width};
use bpf_jit::{BinOp, BlockId, Lir, Op, VReg, Val};

/// Every condition and sharing. (On every pair of values: `conditions_on_every_pair`.)
pub fn selections(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    for width in WIDTHS {
        for cond in Cond::ALL {
            check(bench, &format!("select {cond:?} {width:?}"), &[0, 1, 2, 3], &pairs, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.z, no: r.x });
            });
            check(bench, &format!("select {cond:?} {width:?} other way"), &[2, 3], &pairs, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.y, no: r.z });
            });
        }
    }
}

/// Selections that must not become branches, with registers and constants of every form, and in place.
pub fn confined(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    check(bench, "confine", &[0, 1, 2, 3], &pairs, &|b, r| {
        b.op(Op::Confine { a: r.x, limit: Val::Reg(r.y), dst: r.dst, yes: r.z, no: r.x });
    });
    check(bench, "confine to what is compared", &[2, 3], &pairs, &|b, r| {
        b.op(Op::Confine { a: r.x, limit: Val::Reg(r.y), dst: r.dst, yes: r.x, no: r.z });
    });
    for limit in constants() {
        check(bench, &format!("confine {limit:#x}"), &[0, 2], &singles(), &|b, r| {
            b.op(Op::Confine { a: r.x, limit: Val::Imm(limit), dst: r.dst, yes: r.x, no: r.z });
        });
    }
    let mut b = Build::new();
    let [x, y, z, memory, w] = b.params();
    let mut values = Vec::new();
    for (yes, no) in [(x, y), (y, x), (z, z)] {
        let dst = b.copy(w);
        b.op(Op::Confine { a: x, limit: Val::Reg(y), dst, yes, no: dst });
        b.op(Op::Confine { a: dst, limit: Val::Imm(5), dst, yes: dst, no });
        values.push(dst);
    }
    b.keep(memory, 0, &values);
    b.exit(x);
    let ways = bench.all_ways(6, 1);
    bench.compare("confined in place", &b.alone(), &ways, &self::pairs());
}

/// Selections whose destination is one of their operands, or whose two values are equal.
pub fn selections_in_place(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let [x, y, z, memory, w] = b.params();
    let mut values = Vec::new();
    for (yes, no) in [(x, y), (y, x), (z, z)] {
        let dst = b.copy(w);
        b.op(Op::Select { width: Width::W64, cond: Cond::Lt, a: x, b: Val::Reg(y), dst, yes, no: dst });
        b.op(Op::Select { width: Width::W32, cond: Cond::SGt, a: dst, b: Val::Imm(5), dst, yes: dst, no });
        values.push(dst);
    }
    b.keep(memory, 0, &values);
    b.exit(x);
    let ways = bench.all_ways(6, 1);
    bench.compare("selections in place", &b.alone(), &ways, &pairs());
}

/// Jumps forward, to the next op, and back: `for (;;) { if (!y) { goto out; } y--; x += 3; }`.
pub fn jumps(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for filler in [0, 1, 40, 9000] {
        let mut b = Build::new();
        let (x, y) = (b.param(0), b.param(1));
        let [next, head, out, body, skipped, end] = [1, 2, 3, 4, 5, 6].map(BlockId);
        b.op(Op::Jump { target: next });
        assert_eq!(b.block(), next);
        b.op(Op::Jump { target: head });
        assert_eq!(b.block(), head);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: y, b: Val::Imm(0), target: body });
        assert_eq!(b.block(), out);
        b.op(Op::Jump { target: end });
        assert_eq!(b.block(), body);
        b.op(bin(BinOp::Sub, y, Val::Imm(1)));
        b.op(bin(BinOp::Add, x, Val::Imm(3)));
        b.op(Op::Jump { target: head });
        assert_eq!(b.block(), skipped);
        for _ in 0..=filler {
            b.op(bin(BinOp::Add, x, Val::Imm(1 << 20)));
        }
        assert_eq!(b.block(), end);
        b.exit(x);
        let ways = bench.all_ways(2, 0);
        let starts = [0, 1, 7].map(|y| Start::new([5, y, 0, 0, 0], 0));
        bench.compare(&format!("jumps over {filler}"), &b.alone(), &ways, &starts);
    }
}

/// Every condition as a branch, on registers, alone in a function.
pub fn branches(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    for width in WIDTHS {
        for cond in Cond::ALL {
            for same in [false, true] {
                check(bench, &format!("branch {cond:?} {width:?}"), &[0, 1, 3], &pairs, &|b, r| {
                    let over = BlockId(b.block().0 + 2);
                    let second = Val::Reg(if same { r.x } else { r.y });
                    b.op(Op::Branch { width, cond, a: r.x, b: second, target: over });
                    b.block();
                    b.set(r.dst, 1);
                    assert_eq!(b.block(), over);
                });
            }
        }
    }
}

/// Every condition, as a branch and as a selection, on every pair of edge values.
pub fn conditions_on_every_pair(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.plain_ways(3, 9);
    let starts: Vec<Start> = pairs().into_iter().map(|start| Start { memory: vec![0; 2 * 24], ..start }).collect();
    for width in WIDTHS {
        let mut b = Build::new();
        let [x, y, yes, memory, no] = b.params();
        for (i, cond) in Cond::ALL.into_iter().enumerate() {
            let (dst, taken) = (b.reg(), b.imm(1));
            b.op(Op::Select { width, cond, a: x, b: Val::Reg(y), dst, yes, no });
            let over = BlockId(2 * i as u32 + 2);
            b.op(Op::Branch { width, cond, a: x, b: Val::Reg(y), target: over });
            b.block();
            b.set(taken, 0);
            assert_eq!(b.block(), over);
            b.keep(memory, 16 * i as i32 - 8 * 24, &[dst, taken]);
        }
        b.exit(x);
        bench.compare(&format!("{width:?}"), &b.alone(), &ways, &starts);
    }
}

/// Every condition, as a branch and as a selection, on constants of every form; with conditions on registers in
/// between.
pub fn conditions_by_constant(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.plain_ways(3, 8);
    let starts: Vec<Start> =
        EDGES.iter().map(|x| Start::new([*x, x ^ 1, 0x1111, Start::MEMORY, 0x2222], 2 * 36)).collect();
    for width in WIDTHS {
        for cond in Cond::ALL {
            for constants in constants().chunks(16) {
                let mut b = Build::new();
                let [x, y, yes, memory, no] = b.params();
                let operands = constants.iter().map(|imm| Val::Imm(*imm)).chain([Val::Reg(y), Val::Reg(x)]);
                for (i, operand) in operands.enumerate() {
                    let (dst, taken) = (b.reg(), b.imm(1));
                    b.op(Op::Select { width, cond, a: x, b: operand, dst, yes, no });
                    let over = BlockId(2 * i as u32 + 2);
                    b.op(Op::Branch { width, cond, a: x, b: operand, target: over });
                    b.block();
                    b.set(taken, 0);
                    assert_eq!(b.block(), over);
                    b.keep(memory, 16 * i as i32, &[dst, taken]);
                }
                b.exit(x);
                bench.compare(&format!("{cond:?} {width:?} {constants:x?}"), &b.alone(), &ways, &starts);
            }
        }
    }
    for width in WIDTHS {
        for cond in Cond::ALL {
            for imm in [0i64, 1, -1, 127, -128, 128, 0xff, 0x8000_0000] {
                check(bench, &format!("branch {cond:?} {width:?} {imm:#x}"), &[3], &singles()[..8], &|b, r| {
                    let over = BlockId(b.block().0 + 2);
                    b.op(Op::Branch { width, cond, a: r.x, b: Val::Imm(imm), target: over });
                    b.block();
                    b.set(r.dst, 1);
                    assert_eq!(b.block(), over);
                });
            }
        }
    }
}

fn bin(op: BinOp, dst: VReg, b: Val) -> Op {
    Op::Bin { op, width: Width::W64, dst, a: dst, b }
}

fn production(bench: &Bench<'_>) -> Vec<Way> {
    vec![bench.plain_ways(0, 0)[0]]
}

/// A program in which every kind of branch leads over `filler` additions.
fn far(filler: u32) -> Lir {
    let mut b = Build::new();
    let [x, y, _, step, add] = b.params();
    let sum = b.imm(0);
    let kinds = [
        (Cond::Eq, Val::Imm(0)),
        (Cond::Ne, Val::Imm(0)),
        (Cond::SLt, Val::Imm(0)),
        (Cond::SGe, Val::Imm(0)),
        (Cond::Set, Val::Imm(4)),
        (Cond::Gt, Val::Imm(100)),
        (Cond::SLe, Val::Reg(y)),
    ];
    let last = BlockId(kinds.len() as u32 + 1);
    for (i, (cond, operand)) in kinds.into_iter().enumerate() {
        // One less each time, so that each branch is the first one taken for some r1.
        b.op(bin(BinOp::Add, sum, Val::Imm(1 << i)));
        b.op(bin(BinOp::Sub, x, Val::Reg(step)));
        b.op(Op::Branch { width: Width::W64, cond, a: x, b: operand, target: last });
        b.block();
    }
    for _ in 0..filler {
        b.op(bin(BinOp::Add, sum, Val::Reg(add)));
    }
    assert_eq!(b.block(), last);
    b.op(bin(BinOp::Xor, sum, Val::Reg(x)));
    b.exit(sum);
    b.alone()
}

/// Regressions: displacements near and beyond the reach of each machine's branches (x86-64: 127 bytes; arm64: 32 KiB
/// for a test of a bit, 1 MiB for a condition).
pub fn far_branches(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let starts: Vec<Start> = EDGES.iter().step_by(3).map(|x| Start::new([*x, 77, 0, 1, 1 << 32], 0)).collect();
    for filler in (30..45).chain([8000, 8300, 12_000, 270_000]) {
        let ways = if filler > 100_000 { production(bench) } else { bench.plain_ways(0, 0) };
        bench.compare(&format!("far {filler}"), &far(filler), &ways, &starts);
    }
}

/// Backward branches of every distance: `while (y--) { if (x == 3) skip the filler; filler; }`.
pub fn long_loops(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for filler in [17, 18, 19, 5_000, 10_000, 160_000] {
        let mut b = Build::new();
        let (x, y) = (b.param(0), b.param(1));
        let first = b.block();
        let skip = BlockId(first.0 + 2);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Eq, a: x, b: Val::Imm(3), target: skip });
        b.block();
        for _ in 0..filler {
            b.op(bin(BinOp::Xor, x, Val::Imm(0x1234_5678)));
        }
        assert_eq!(b.block(), skip);
        b.op(bin(BinOp::Sub, y, Val::Imm(1)));
        b.op(bin(BinOp::Add, x, Val::Imm(1)));
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: y, b: Val::Imm(0), target: first });
        b.block();
        b.exit(x);
        let ways = if filler > 100_000 { production(bench) } else { bench.some_ways(1, 0) };
        let starts = [[0, 5], [3, 4], [1, 3]].map(|[x, y]| Start::new([x, y, 0, 0, 0], 0));
        bench.compare(&format!("loop over {filler}"), &b.alone(), &ways, &starts);
    }
    let mut b = Build::new();
    let [x, y, _, _, add] = b.params();
    let sum = b.imm(0);
    let first = b.block();
    for _ in 0..270_000 {
        b.op(bin(BinOp::Add, sum, Val::Reg(add)));
    }
    b.op(bin(BinOp::Sub, x, Val::Imm(1)));
    b.op(Op::Branch { width: Width::W32, cond: Cond::SGt, a: x, b: Val::Reg(y), target: first });
    b.block();
    b.exit(sum);
    let ways = production(bench);
    bench.compare("a loop longer than 1 MiB", &b.alone(), &ways, &[Start::new([3, 0, 0, 0, 7], 0)]);
}
