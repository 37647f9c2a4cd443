//! Arithmetic, moves, extensions, byte order.
//!
//! Each form of an op is tested twice: alone in a function, with its destination in the register of each operand and
//! in a separate one, and with operands that are live afterwards and that are not; and with many ops in one function,
//! on every pair of edge values.

use crate::Target;
use crate::bench::{Bench, Start, Way};
use crate::build::Build;
use crate::host::{DATA, WITH_CTX};
use crate::kinds::{ARITHMETIC, BIN, DIVISIONS, EDGES, SHIFTS, SIZES, WIDTHS, constants};
use bpf_jit::{BinOp, Func, Lir, Op, VReg, Val};
use bpf_jit_code::Symbol;

/// The registers around the tested op.
#[derive(Clone, Copy)]
pub(crate) struct Regs {
    pub(crate) dst: VReg,
    pub(crate) x: VReg,
    pub(crate) y: VReg,
    pub(crate) z: VReg,
    pub(crate) memory: VReg,
    pub(crate) ctx: VReg,
}

/// Words of memory around a tested op.
pub(crate) const WORDS: usize = 32;
/// The offset of the memory that the op accesses.
pub(crate) const OP_MEMORY: i32 = 64;

/// A function with the op, which stores everything that the op may have changed to memory. `share`: the operand whose
/// register is the destination (3: a register of its own). `live`: whether the operands are live afterwards.
pub(crate) fn around(share: usize, live: bool, op: &dyn Fn(&mut Build, Regs)) -> Func {
    let mut b = Build::new();
    let [x, y, z, memory] = [0, 1, 2, 3].map(|i| b.param(i));
    let ctx = b.ctx();
    let dst = [x, y, z].get(share).copied().unwrap_or_else(|| b.reg());
    if share == 3 {
        b.set(dst, 0x5a5a);
    }
    op(&mut b, Regs { dst, x, y, z, memory, ctx });
    b.store(memory, 0, dst);
    if live {
        b.keep(memory, 8, &[x, y, z]);
    }
    b.exit(dst);
    b.finish()
}

/// Compares an op with the evaluator, for every sharing and liveness.
pub(crate) fn check(
    bench: &mut Bench<'_>,
    what: &str,
    shares: &[usize],
    starts: &[Start],
    op: &dyn Fn(&mut Build, Regs),
) {
    let ways = bench.plain_ways(5, what.len() as u64);
    check_ways(bench, what, shares, starts, &ways, op);
}

/// [`check`] with the given ways of compiling.
pub(crate) fn check_ways(
    bench: &mut Bench<'_>,
    what: &str,
    shares: &[usize],
    starts: &[Start],
    ways: &[Way],
    op: &dyn Fn(&mut Build, Regs),
) {
    for share in shares {
        for live in [false, true] {
            let lir = Lir { funcs: vec![around(*share, live, op)] };
            bench.compare(&format!("{what} share {share} live {live}"), &lir, ways, starts);
        }
    }
}

pub(crate) fn start(x: u64, y: u64, z: u64) -> Start {
    Start::new([x, y, z, Start::MEMORY, 0xeeee], WORDS)
}

/// Every pair of edge values.
pub(crate) fn pairs() -> Vec<Start> {
    EDGES.iter().flat_map(|x| EDGES.map(|y| start(*x, y, x ^ 0x1_0000_0001))).collect()
}

/// Each edge value with two others.
pub(crate) fn corners() -> Vec<Start> {
    let others = [0, 1, u64::MAX, 33, i64::MIN as u64, 0xffff_ffff];
    let pair = |(i, x): (usize, &u64)| [EDGES[(7 * i + 3) % EDGES.len()], others[i % others.len()]].map(|y| (*x, y));
    EDGES.iter().enumerate().flat_map(pair).map(|(x, y)| start(x, y, 0x77)).collect()
}

/// Each edge value, paired with one other.
pub(crate) fn singles() -> Vec<Start> {
    EDGES.iter().map(|x| start(*x, x.rotate_left(9) ^ 0x55, 3)).collect()
}

fn by_register(target: &mut dyn Target, ops: &[BinOp]) {
    let bench = &mut Bench::new(target);
    for op in ops.iter().copied() {
        for width in WIDTHS {
            check(bench, &format!("{op:?} {width:?}"), &[0, 1, 3], &corners(), &|b, r| {
                b.op(Op::Bin { op, width, dst: r.dst, a: r.x, b: Val::Reg(r.y) });
            });
            check(bench, &format!("{op:?} {width:?} x x"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::Bin { op, width, dst: r.dst, a: r.x, b: Val::Reg(r.x) });
            });
        }
    }
}

/// Ops with constants, many in a function: each with an operand that is live afterwards, and in place.
fn by_constant(target: &mut dyn Target, ops: &[BinOp]) {
    let bench = &mut Bench::new(target);
    let words = 2 * 4 * 8;
    let starts: Vec<Start> = EDGES.iter().map(|x| Start::new([*x, 0, 0, Start::MEMORY, 0], words)).collect();
    for op in ops.iter().copied() {
        for constants in constants().chunks(8) {
            let mut b = Build::new();
            let (x, memory) = (b.param(0), b.param(3));
            let mut off = -8 * 32;
            for imm in constants.iter().map(|imm| Val::Imm(*imm)) {
                for width in WIDTHS {
                    let dst = b.reg();
                    b.op(Op::Bin { op, width, dst, a: x, b: imm });
                    let same = b.copy(x);
                    b.op(Op::Bin { op, width, dst: same, a: same, b: imm });
                    b.keep(memory, off, &[dst, same]);
                    off += 16;
                }
            }
            b.exit(x);
            let ways = bench.plain_ways(4, constants.len() as u64);
            bench.compare(&format!("{op:?} by {constants:x?}"), &b.alone(), &ways, &starts);
        }
    }
}

/// Sums, products and logic, with operands and destination in any register.
pub fn arithmetic_by_register(target: &mut dyn Target) {
    by_register(target, ARITHMETIC);
}

/// Zero divisors; MIN / -1; zero-extension of 32-bit results.
pub fn division_by_register(target: &mut dyn Target) {
    by_register(target, DIVISIONS);
}

/// Counts modulo the width; where the machine requires the count in a fixed register, with a destination or live
/// value there.
pub fn shifts_by_register(target: &mut dyn Target) {
    by_register(target, SHIFTS);
}

/// Every op on every pair of edge values, in five forms.
pub fn every_pair_by_register(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.plain_ways(3, 7);
    for op in BIN {
        for width in WIDTHS {
            let mut b = Build::new();
            let [x, y, _, memory, _] = b.params();
            let bin = |b: &mut Build, dst, a, second| b.op(Op::Bin { op, width, dst, a, b: Val::Reg(second) });
            let (own, both, first, second) = (b.reg(), b.reg(), b.copy(x), b.copy(y));
            bin(&mut b, own, x, y);
            bin(&mut b, both, x, x);
            bin(&mut b, first, first, y);
            bin(&mut b, second, x, second);
            b.keep(memory, 0, &[own, both, first, second, x, y]);
            bin(&mut b, x, x, x);
            b.exit(x);
            bench.compare(&format!("{op:?} {width:?}"), &b.alone(), &ways, &pairs());
        }
    }
}

/// Sums, products and logic with constants of every form.
pub fn arithmetic_by_constant(target: &mut dyn Target) {
    by_constant(target, ARITHMETIC);
}

/// Division by zero, one, powers of two and their negatives.
pub fn division_by_constant(target: &mut dyn Target) {
    by_constant(target, DIVISIONS);
}

/// Counts below, at and beyond the width.
pub fn shifts_by_constant(target: &mut dyn Target) {
    by_constant(target, SHIFTS);
}

/// Every size, width and sign.
pub fn moves_extensions_and_byte_order(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for width in WIDTHS {
        // In place, a 32-bit move clears the upper half.
        for share in [0, 3] {
            check(bench, "mov", &[share], &singles(), &|b, r| {
                b.op(Op::Mov { width, dst: r.dst, src: Val::Reg(r.x) });
            });
        }
        check(bench, "neg", &[0, 3], &singles(), &|b, r| b.op(Op::Neg { width, dst: r.dst, src: r.x }));
        for from in SIZES {
            for signed in [false, true] {
                check(bench, &format!("ext {from:?} {signed}"), &[0, 3], &singles(), &|b, r| {
                    b.op(Op::Ext { width, signed, from, dst: r.dst, src: r.x });
                });
            }
        }
        for shift in 0..4 {
            check(bench, &format!("add shift {shift}"), &[0, 1, 3], &corners(), &|b, r| {
                b.op(Op::AddShift { width, dst: r.dst, a: r.x, b: r.y, shift });
            });
            check(bench, &format!("add shift {shift} x x"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::AddShift { width, dst: r.dst, a: r.x, b: r.x, shift });
            });
        }
    }
    for size in SIZES {
        check(bench, &format!("bswap {size:?}"), &[0, 3], &singles(), &|b, r| {
            b.op(Op::Bswap { size, dst: r.dst, src: r.x });
        });
    }
    check(bench, "symbol", &[3], &singles()[..1], &|b, r| {
        b.op(Op::SymAddr { dst: r.dst, symbol: Symbol::new(DATA + 7) });
    });
}

/// Every constant, in registers and slots, and as an argument.
pub fn constants_reach_registers_and_slots(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for constants in constants().chunks(16) {
        let mut b = Build::new();
        let memory = b.param(3);
        let ctx = b.ctx();
        let mut values = Vec::new();
        for imm in constants {
            for width in WIDTHS {
                let dst = b.reg();
                b.op(Op::Mov { width, dst, src: Val::Imm(*imm) });
                values.push(dst);
            }
        }
        let target = bpf_jit::CallTarget::Extern(Symbol::new(3 | WITH_CTX));
        let args = [Some(values[0]), Some(values[1]), Some(values[2]), None, None];
        let ret = b.reg();
        b.op(Op::Call { target, args, ctx: Some(ctx), ret: Some(ret) });
        values.push(ret);
        b.keep(memory, -8 * 32, &values);
        b.exit(ret);
        let ways = bench.plain_ways(6, constants.len() as u64);
        bench.compare("constants", &b.alone(), &ways, &[Start::new([0, 0, 0, Start::MEMORY, 0], 80)]);
    }
}
