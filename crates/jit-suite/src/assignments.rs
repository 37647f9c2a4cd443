//! Operations that may require fixed registers, tested under *every* assignment of registers to destination, first
//! and second operand, including shared ones (from a pool of more than thirteen registers, some of each sort). Random
//! allocations hit each conflict rarely; this test hits all of them.
//!
//! Regressions, on x86-64: division with an operand or destination in rax or rdx, a shift whose count or destination is
//! rcx, and/or/xor-fetch and cmpxchg with rax as source or destination, byte stores from sil, dil and bpl.

use crate::Target;
use crate::bench::{Bench, Start};
use crate::build::{Build, at};
use crate::kinds::{ARITHMETIC, ATOMICS, DIVISIONS, SHIFTS, WIDTHS};
use bpf_isa::{Size, Width};
use bpf_jit::{Alloc, BinOp, EmitOptions, HostReg, Lir, Loc, Mem, Op, VReg, Val};

const VALUES: [[u64; 2]; 8] = [
    [100, 7],
    [u64::MAX, 0],
    [1 << 63, u64::MAX],
    [0xffff_ffff_8000_0000, 0xffff_ffff],
    [0x0123_4567_89ab_cdef, 0x1_0000_0021],
    [5, 5],
    [0x1122_3344_5566_7788, 0x1122_3344_5566_7788],
    [0, 1 << 32],
];

/// A program with the op between loads of its operands and stores of its results; `same`: both operands are one
/// register.
fn program(same: bool, op: &dyn Fn(VReg, VReg, VReg, Mem) -> Op) -> (Lir, Op) {
    let mut build = Build::new();
    let a = build.param(0);
    let b = if same { a } else { build.param(1) };
    let memory = build.param(3);
    let dst = build.reg();
    let op = op(dst, a, b, at(memory, 8));
    build.op(op);
    if op.def().is_some() {
        build.store(memory, 0, dst);
    }
    build.exit(memory);
    (build.alone(), op)
}

/// Runs `op` with `dst`, `a` and `b` in each triple of registers.
fn every_assignment(
    bench: &mut Bench<'_>,
    what: &str,
    options: &EmitOptions,
    op: &dyn Fn(VReg, VReg, VReg, Mem) -> Op,
) {
    let machine = bench.machine(options);
    let step = if machine.pool.len() > 13 { machine.pool.len().div_ceil(8) } else { 1 };
    let mut pool: Vec<HostReg> = machine.pool.iter().copied().step_by(step).collect();
    if !pool.contains(&machine.ret) {
        pool.push(machine.ret);
    }
    let programs = [false, true].map(|same| program(same, op));
    // For compare-and-exchange, memory holds the expected value every other time.
    let starts: Vec<Start> = VALUES
        .iter()
        .enumerate()
        .map(|(i, [x, y])| {
            let mut start = Start::new([*x, *y, 0, Start::MEMORY, 0], 4);
            if i % 2 == 0 {
                start.memory[3] = *x;
            }
            start
        })
        .collect();
    let wanted = [0, 1].map(|same| starts.iter().map(|s| bench.evaluate(&programs[same].0, s)).collect::<Vec<_>>());
    for dst_reg in &pool {
        for a_reg in &pool {
            let codes: Vec<_> = pool
                .iter()
                .map(|b_reg| {
                    let (lir, op) = &programs[usize::from(a_reg == b_reg)];
                    // The register of the memory's address stays live, so it must not be one that the op writes.
                    let taken = [*dst_reg, *a_reg, *b_reg];
                    let clobbers = machine.fixed(op).clobbers;
                    let free = |r: &&HostReg| !taken.contains(r) && !clobbers.contains(**r);
                    let memory_reg = machine.pool.iter().find(free).expect("more registers than that");
                    let mut locs = vec![Loc::Reg(*a_reg)];
                    locs.extend((a_reg != b_reg).then_some(Loc::Reg(*b_reg)));
                    locs.extend([Loc::Reg(*memory_reg), Loc::Reg(*dst_reg)]);
                    let used = |r: &&HostReg| taken.contains(r) || *r == memory_reg;
                    let saves = machine.callee_saved.iter().filter(used).copied().collect();
                    bench.emit_with(lir, &[Alloc { locs, saves, slots: 0, held: Vec::new() }], options)
                })
                .collect();
            let Some(text) = bench.place(&codes, options.hardening.landing_pads) else { continue };
            for (b_reg, entry) in pool.iter().zip(&text.entries) {
                for (start, want) in starts.iter().zip(&wanted[usize::from(a_reg == b_reg)]) {
                    let got = bench.run(*entry, start);
                    assert_eq!(&got, want, "{what}: {dst_reg:?} = {a_reg:?} . {b_reg:?} on {:x?}", start.args);
                }
            }
        }
    }
}

fn every_bin(bench: &mut Bench<'_>, op: BinOp, width: Width, options: &EmitOptions) {
    every_assignment(bench, &format!("{op:?} {width:?}"), options, &|dst, a, b, _| Op::Bin {
        op,
        width,
        dst,
        a,
        b: Val::Reg(b),
    });
}

/// Quotients, remainders and high halves.
pub fn every_division(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let options = bench.target().options()[0];
    for width in WIDTHS {
        for op in DIVISIONS.iter().chain(&[BinOp::MulHighU, BinOp::MulHighS]) {
            every_bin(bench, *op, width, &options);
        }
    }
}

/// Shifts and rotations, without and with the optional instructions.
pub fn every_shift(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for options in &bench.target().options()[..2] {
        for width in WIDTHS {
            for op in SHIFTS {
                every_bin(bench, *op, width, options);
            }
        }
    }
}

/// Atomics that fetch, and compare and exchange.
pub fn every_atomic(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for options in &bench.target().options()[..2] {
        for width in WIDTHS {
            for op in ATOMICS {
                every_assignment(bench, &format!("{op:?} {width:?}"), options, &|dst, a, _, mem| Op::Atomic {
                    op,
                    width,
                    mem,
                    src: a,
                    fetch: Some(dst),
                });
            }
            every_assignment(bench, &format!("cmpxchg {width:?}"), options, &|dst, a, b, mem| Op::CmpXchg {
                width,
                mem,
                expected: a,
                new: b,
                dst,
            });
        }
    }
}

/// Ops with two-operand forms on some machines, and registers whose low byte needs a prefix.
pub fn byte_stores_and_two_operand_arithmetic(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let options = bench.target().options()[0];
    every_assignment(bench, "byte store", &options, &|_, a, _, mem| Op::Store { size: Size::B, mem, src: Val::Reg(a) });
    for op in ARITHMETIC.iter().filter(|op| !matches!(op, BinOp::MulHighU | BinOp::MulHighS)) {
        every_bin(bench, *op, Width::W64, &options);
    }
}
