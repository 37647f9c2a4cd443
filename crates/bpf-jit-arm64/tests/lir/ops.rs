//! Every op, at every width, on border values, in every place.
//!
//! `BPF_SOAK=1 cargo test -p bpf-jit-arm64 --test lir random` tries a hundred times as many random programs.

use crate::check::{Builder, EDGES, Random, all_ways, at, block, check, in_frame, some_ways};
use bpf_isa::{Size, Width};
use bpf_jit::{AtomicOp, BinOp, Cond, Op, VReg, Val};

const BIN_OPS: [BinOp; 16] = [
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::MulHighU,
    BinOp::MulHighS,
    BinOp::Div,
    BinOp::SDiv,
    BinOp::Mod,
    BinOp::SMod,
    BinOp::And,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Sar,
    BinOp::Rotl,
];
const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];

/// Constants that are no border of arithmetic but one of an encoding.
const CONSTANTS: [i64; 26] = [
    4,
    5,
    7,
    17,
    4095,
    4096,
    4097,
    -4095,
    -4096,
    -4097,
    0x10_0000,
    0xff_f000,
    0xff_ffff,
    0x100_0000,
    -0xff_f000,
    -0xff_ffff,
    0xffff,
    0x1_0000,
    -0x1_0000,
    0xf0f0_f0f0,
    0x00ff_00ff_00ff_00ff,
    0x7fff_fffe,
    0x12_3456,
    -0x12_3456,
    -2,
    0x1234_0000_5678,
];

fn constants() -> Vec<i64> {
    CONSTANTS.into_iter().chain(EDGES.map(|e| e as i64)).collect()
}

/// All pairs of border values as r1 and r2; r4 and r5 are something else, r3 is the middle of the data.
fn pairs() -> Vec<[Option<u64>; 5]> {
    let pairs = EDGES.into_iter().flat_map(|a| EDGES.map(|b| (a, b)));
    pairs.map(|(a, b)| [Some(a), Some(b), None, Some(0x4444_4444_4444), Some(!0x55)]).collect()
}

fn singles() -> Vec<[Option<u64>; 5]> {
    EDGES.into_iter().map(|a| [Some(a), Some(a ^ 0x0f0f), None, Some(0x4444_4444_4444), Some(!0x55)]).collect()
}

const A: VReg = VReg(0);
const B: VReg = VReg(1);
const DATA: VReg = VReg(2);
const OTHERS: [VReg; 4] = [VReg(0), VReg(1), VReg(3), VReg(4)];

/// A function of the ops that `make` appends, which returns a hash of all it has.
fn function(make: impl FnOnce(&mut Builder) -> Vec<VReg>) -> bpf_jit::Lir {
    let mut b = Builder::with_params();
    let mut results = make(&mut b);
    results.extend(OTHERS);
    b.exit_with(&results);
    b.finish_alone()
}

#[test]
fn binary_ops_of_registers() {
    for op in BIN_OPS {
        let lir = function(|b| {
            let mut results = Vec::new();
            for width in WIDTHS {
                for (x, y) in [(A, B), (A, A)] {
                    let dst = b.vreg();
                    b.op(Op::Bin { op, width, dst, a: x, b: Val::Reg(y) });
                    results.push(dst);
                }
                // In place, on either side.
                let (c, d) = (b.vreg(), b.vreg());
                b.op(Op::Mov { width: Width::W64, dst: c, src: Val::Reg(A) });
                b.op(Op::Bin { op, width, dst: c, a: c, b: Val::Reg(B) });
                b.op(Op::Mov { width: Width::W64, dst: d, src: Val::Reg(B) });
                b.op(Op::Bin { op, width, dst: d, a: A, b: Val::Reg(d) });
                results.extend([c, d]);
            }
            results
        });
        check(&lir, 2, &pairs(), 1, &some_ways(5));
    }
}

#[test]
fn binary_ops_of_constants() {
    for op in BIN_OPS {
        for constants in constants().chunks(11) {
            let lir = function(|b| {
                let mut results = Vec::new();
                for imm in constants {
                    for width in WIDTHS {
                        let dst = b.vreg();
                        b.op(Op::Bin { op, width, dst, a: A, b: Val::Imm(*imm) });
                        results.push(dst);
                    }
                }
                results
            });
            check(&lir, 2, &singles(), 1, &some_ways(3));
        }
    }
}

#[test]
fn unary_ops() {
    let lir = function(|b| {
        let mut results = Vec::new();
        for width in WIDTHS {
            let mut push = |b: &mut Builder, make: &dyn Fn(VReg) -> Op| {
                let dst = b.vreg();
                b.op(make(dst));
                results.push(dst);
            };
            push(b, &|dst| Op::Mov { width, dst, src: Val::Reg(A) });
            push(b, &|dst| Op::Neg { width, dst, src: A });
            for size in SIZES {
                push(b, &|dst| Op::Bswap { size, dst, src: A });
                for signed in [false, true] {
                    push(b, &|dst| Op::Ext { width, signed, from: size, dst, src: A });
                }
            }
            for shift in 0..4 {
                push(b, &|dst| Op::AddShift { width, dst, a: A, b: B, shift });
            }
        }
        // A byte is its own reverse, which no instruction is for; a 32-bit move to itself clears the upper half.
        let same = b.vreg();
        b.op(Op::Mov { width: Width::W64, dst: same, src: Val::Reg(A) });
        b.op(Op::Mov { width: Width::W32, dst: same, src: Val::Reg(same) });
        results.push(same);
        results
    });
    check(&lir, 2, &pairs(), 1, &all_ways(6));
}

#[test]
fn constants_reach_registers_and_slots() {
    for constants in constants().chunks(22) {
        let lir = function(|b| {
            let mut results = Vec::new();
            for imm in constants {
                for width in WIDTHS {
                    let dst = b.vreg();
                    b.op(Op::Mov { width, dst, src: Val::Imm(*imm) });
                    results.push(dst);
                }
            }
            results
        });
        check(&lir, 2, &singles()[..1], 1, &some_ways(4));
    }
}

/// All conditions, as a branch and as a selection, on registers and constants. (`Branch` ends a block, so each is a
/// function.)
#[test]
fn conditions() {
    let constants = constants();
    for cond in Cond::ALL {
        for width in WIDTHS {
            let operands = constants.iter().map(|imm| Val::Imm(*imm)).chain([Val::Reg(B), Val::Reg(A)]);
            let lir = function(|b| {
                let mut results = Vec::new();
                for (i, operand) in operands.enumerate() {
                    let (dst, taken) = (b.vreg(), b.vreg());
                    b.op(Op::Select { width, cond, a: A, b: operand, dst, yes: VReg(3), no: VReg(4) });
                    b.op(Op::Mov { width: Width::W64, dst: taken, src: Val::Imm(1) });
                    b.op(Op::Branch { width, cond, a: A, b: operand, target: block(2 * i as u32 + 2) });
                    b.end();
                    b.op(Op::Mov { width: Width::W64, dst: taken, src: Val::Imm(0) });
                    b.end();
                    results.extend([dst, taken]);
                }
                results
            });
            check(&lir, 2, &pairs(), 1, &some_ways(1));
        }
    }
}

#[test]
fn selections_in_place() {
    let lir = function(|b| {
        let mut results = Vec::new();
        for (yes, no) in [(A, B), (B, A), (VReg(3), VReg(3))] {
            let dst = b.vreg();
            b.op(Op::Mov { width: Width::W64, dst, src: Val::Reg(VReg(4)) });
            b.op(Op::Select { width: Width::W64, cond: Cond::Lt, a: A, b: Val::Reg(B), dst, yes, no: dst });
            b.op(Op::Select { width: Width::W32, cond: Cond::SGt, a: dst, b: Val::Imm(5), dst, yes: dst, no });
            results.push(dst);
        }
        results
    });
    check(&lir, 2, &pairs(), 1, &all_ways(6));
}

/// Offsets at the borders of both immediate forms, for each size, aligned and not.
fn offsets(size: Size) -> Vec<i32> {
    let top = 4095 * size.bytes() as i32;
    let scaled = [top - 1, top, top + 1, top + size.bytes() as i32];
    let fixed = [0, 1, 8, 255, 256, 257, -1, -8, -255, -256, -257, -264, 32767, -32768, 65536, -65544, 0x1_2345];
    fixed.into_iter().chain(scaled).collect()
}

/// Twice the reach of the offsets above, in words.
const WIDE: usize = 2 * (0x1_2345 + 16) / 8;

#[test]
fn loads() {
    for size in SIZES {
        let lir = function(|b| {
            let mut results = Vec::new();
            for off in offsets(size) {
                for (signed, swap) in [(false, false), (true, false), (false, true)] {
                    let dst = b.vreg();
                    b.op(Op::Load { size, signed, swap, dst, mem: at(DATA, off) });
                    results.push(dst);
                }
            }
            // Over its own base.
            let base = b.vreg();
            b.op(Op::Mov { width: Width::W64, dst: base, src: Val::Reg(DATA) });
            b.op(Op::Load { size, signed: false, swap: false, dst: base, mem: at(base, -257) });
            results.push(base);
            results
        });
        check(&lir, WIDE, &singles()[..1], 1, &all_ways(4));
    }
}

#[test]
fn stores() {
    for size in SIZES {
        let lir = function(|b| {
            for (i, off) in offsets(size).into_iter().enumerate() {
                let src = match i % 4 {
                    0 => Val::Imm(0),
                    1 => Val::Imm(-(0x0123_4567_89ab_cdef + i as i64)),
                    2 => Val::Imm(-1),
                    _ => Val::Reg(A),
                };
                b.op(Op::Store { size, mem: at(DATA, off), src });
            }
            vec![]
        });
        check(&lir, WIDE, &singles(), 1, &all_ways(4));
    }
}

/// The stack, from small to beyond every immediate form, by r10 and by address.
#[test]
fn frames() {
    for stack_bytes in [8u32, 16, 496, 504, 512, 4096, 40_000, 1 << 20] {
        let bottom = -(stack_bytes as i32);
        let lir = function(|b| {
            b.func.stack_bytes = stack_bytes;
            let mut results = Vec::new();
            for off in [-8, bottom, bottom / 16 * 8].map(|off| off.min(-8)) {
                let (pointer, through, direct) = (b.vreg(), b.vreg(), b.vreg());
                b.op(Op::Store { size: Size::DW, mem: in_frame(off), src: Val::Reg(A) });
                b.op(Op::Store { size: Size::B, mem: in_frame(off + 3), src: Val::Imm(0x77) });
                b.op(Op::FrameAddr { dst: pointer, off });
                b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: through, mem: at(pointer, 0) });
                b.op(Op::Store { size: Size::W, mem: at(pointer, 4), src: Val::Reg(B) });
                b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: direct, mem: in_frame(off) });
                results.extend([through, direct]);
            }
            results
        });
        check(&lir, 2, &singles()[..4], 1, &all_ways(2));
    }
}

#[test]
fn ordered_accesses() {
    let lir = function(|b| {
        let mut results = Vec::new();
        b.func.stack_bytes = 16;
        b.op(Op::Store { size: Size::DW, mem: in_frame(-16), src: Val::Reg(B) });
        for size in SIZES {
            for (i, mem) in
                [at(DATA, 0), at(DATA, 8), at(DATA, -4096), at(DATA, 0x8008), in_frame(-16)].into_iter().enumerate()
            {
                let dst = b.vreg();
                b.op(Op::LoadAcquire { size, dst, mem });
                b.op(Op::StoreRelease { size, mem, src: if i % 2 == 0 { A } else { dst } });
                results.push(dst);
            }
        }
        results
    });
    check(&lir, WIDE, &singles(), 1, &all_ways(8));
}

/// Every atomic, fetching and not, with every overlap of address, operand and result.
#[test]
fn atomics() {
    for op in [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg] {
        for width in WIDTHS {
            let lir = function(|b| {
                let mut results = Vec::new();
                b.func.stack_bytes = 16;
                b.op(Op::Store { size: Size::DW, mem: in_frame(-8), src: Val::Reg(B) });
                for mem in [at(DATA, 0), at(DATA, 16), at(DATA, -40_000), in_frame(-8)] {
                    b.op(Op::Atomic { op, width, mem, src: A, fetch: None });
                    let dst = b.vreg();
                    b.op(Op::Atomic { op, width, mem, src: B, fetch: Some(dst) });
                    results.push(dst);
                    // As BPF has it: the operand receives the old value.
                    let both = b.vreg();
                    b.op(Op::Mov { width: Width::W64, dst: both, src: Val::Reg(A) });
                    b.op(Op::Atomic { op, width, mem, src: both, fetch: Some(both) });
                    results.push(both);
                }
                // The old value replaces the address.
                let base = b.vreg();
                b.op(Op::Mov { width: Width::W64, dst: base, src: Val::Reg(DATA) });
                b.op(Op::Atomic { op, width, mem: at(base, 0), src: A, fetch: Some(base) });
                results.push(base);
                let last = b.vreg();
                b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: last, mem: in_frame(-8) });
                results.push(last);
                results
            });
            check(&lir, WIDE, &singles(), 1, &all_ways(6));
        }
    }
}

/// Compare and exchange that succeeds and fails, with every overlap. After a 32-bit one the upper half of the result is
/// zero in both outcomes.
#[test]
fn compare_and_exchange() {
    for width in WIDTHS {
        let lir = function(|b| {
            let mut results = Vec::new();
            for off in [0, 8, -40_000] {
                let (now, missed, hit) = (b.vreg(), b.vreg(), b.vreg());
                // Expecting what r1 holds, which is only by chance there.
                b.op(Op::CmpXchg { width, mem: at(DATA, off), expected: A, new: B, dst: missed });
                // Expecting what is there, with noise above it if the width is 32.
                b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: now, mem: at(DATA, off) });
                b.op(Op::CmpXchg { width, mem: at(DATA, off), expected: now, new: B, dst: hit });
                // In place, as BPF's r0.
                b.op(Op::CmpXchg { width, mem: at(DATA, off), expected: now, new: A, dst: now });
                results.extend([now, missed, hit]);
            }
            // The result over the new value, and over the address; failing, then succeeding.
            for hit in [false, true] {
                let (now, new, base) = (b.vreg(), b.vreg(), b.vreg());
                for (off, dst) in [(16, new), (0, base)] {
                    b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: now, mem: at(DATA, off) });
                    let expected = if hit { now } else { B };
                    b.op(Op::Mov { width: Width::W64, dst: new, src: Val::Reg(A) });
                    b.op(Op::Mov { width: Width::W64, dst: base, src: Val::Reg(DATA) });
                    b.op(Op::CmpXchg { width, mem: at(base, off), expected, new, dst });
                    let after = b.vreg();
                    b.op(Op::Mov { width: Width::W64, dst: after, src: Val::Reg(dst) });
                    results.push(after);
                }
            }
            results
        });
        check(&lir, WIDE, &singles(), 1, &all_ways(8));
    }
}

fn seeds(n: u64) -> u64 {
    if std::env::var_os("BPF_SOAK").is_some() { 100 * n } else { n }
}

/// Random programs of everything above but calls, with branches, all values alive all the time.
#[test]
fn random_programs() {
    for seed in 0..seeds(150) {
        let mut random = Random(seed);
        let lir = random_program(&mut random, false);
        let inputs: Vec<_> = (0..4)
            .map(|_| [Some(random.value()), Some(random.value()), None, Some(random.value()), Some(random.value())])
            .collect();
        check(&lir, 64, &inputs, 1 << 20, &some_ways(5));
    }
}

/// The same with calls of a function that overwrites whatever it may.
#[test]
fn random_programs_with_calls() {
    for seed in 0..seeds(100) {
        let mut random = Random(seed ^ 0xca11);
        let lir = random_program(&mut random, true);
        let inputs: Vec<_> = (0..3)
            .map(|_| [Some(random.value()), Some(random.value()), None, Some(random.value()), Some(random.value())])
            .collect();
        // Sometimes the budget runs out on the way.
        check(&lir, 64, &inputs, (seed % 8) as i64, &some_ways(5));
    }
    if !crate::machine::HOST {
        crate::machine::skipped("the execution of arm64 code", "the host is not arm64");
    }
}

fn random_program(random: &mut Random, calls: bool) -> bpf_jit::Lir {
    let mut b = Builder::with_params();
    b.func.stack_bytes = 64;
    let (data, ctx) = (DATA, VReg(5));
    let mut values = OTHERS.to_vec();
    for off in 1..9 {
        b.op(Op::Store { size: Size::DW, mem: in_frame(-8 * off), src: Val::Reg(random.of(&values)) });
    }
    for _ in 0..random.below(10) {
        let dst = b.vreg();
        b.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(random.value() as i64) });
        values.push(dst);
    }
    let blocks = 1 + random.below(5) as u32;
    for this in 0..blocks {
        for _ in 0..random.below(12) {
            random_op(random, &mut b, &values, data, ctx, calls);
        }
        let (a, target) = (random.of(&values), block(this + 1 + random.below((blocks - this) as usize) as u32));
        let operand = if random.below(2) == 0 { Val::Reg(random.of(&values)) } else { Val::Imm(random.value() as i64) };
        match random.below(4) {
            0 => {}
            1 => b.op(Op::Jump { target }),
            _ => b.op(Op::Branch { width: random.width(), cond: random.of(&Cond::ALL), a, b: operand, target }),
        }
        b.end();
    }
    b.exit_with(&values);
    b.finish_alone()
}

fn random_op(random: &mut Random, b: &mut Builder, values: &[VReg], data: VReg, ctx: VReg, calls: bool) {
    let (dst, x, y) = (random.of(values), random.of(values), random.of(values));
    let val = match random.below(2) {
        0 => Val::Reg(y),
        _ => Val::Imm(random.value() as i64),
    };
    let (width, size) = (random.width(), random.size());
    let mem = match random.below(2) {
        0 => at(data, 8 * (random.below(60) as i32 - 30)),
        _ => in_frame(-8 * (1 + random.below(8) as i32)),
    };
    let fetch = [None, Some(dst)][random.below(2)];
    let atomic = random.of(&[AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg]);
    b.op(match random.below(if calls { 20 } else { 16 }) {
        0 => Op::Mov { width, dst, src: val },
        1 => Op::Ext { width, signed: random.below(2) == 0, from: random.of(&SIZES[..3]), dst, src: x },
        2..6 => Op::Bin { op: random.of(&BIN_OPS), width, dst, a: x, b: val },
        6 => Op::Neg { width, dst, src: x },
        7 => Op::Bswap { size: random.of(&SIZES[1..]), dst, src: x },
        8 => Op::AddShift { width, dst, a: x, b: y, shift: random.below(4) as u8 },
        9 => Op::Select { width, cond: random.of(&Cond::ALL), a: x, b: val, dst, yes: y, no: random.of(values) },
        10 => Op::Load { size, signed: random.below(2) == 0, swap: false, dst, mem },
        11 => Op::Store { size, mem, src: val },
        12 => Op::Atomic { op: atomic, width, mem, src: x, fetch },
        13 => Op::CmpXchg { width, mem, expected: x, new: y, dst },
        14 => Op::LoadAcquire { size, dst, mem },
        15 => Op::StoreRelease { size, mem, src: x },
        16 => Op::Check { check: bpf_jit::Check::Budget, ctx },
        17 => Op::Check { check: bpf_jit::Check::Interrupt, ctx },
        // Almost always below.
        18 => Op::Bound { a: x, limit: Val::Imm(-1 << 20), ctx },
        _ => {
            let args = [x, y, random.of(values), random.of(values), random.of(values)].map(Some);
            let target = bpf_jit::CallTarget::Extern(crate::check::POISON);
            Op::Call { target, args, ctx: [None, Some(ctx)][random.below(2)], ret: fetch }
        }
    });
}
