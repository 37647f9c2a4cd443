//! Loads, stores, atomics, and their addresses.

use crate::Target;
use crate::alu::{OP_MEMORY, check, singles};
use crate::bench::{Bench, Start, WIDE};
use crate::build::{Build, at, in_frame};
use crate::host::{DATA, MEMORY_SYMBOL};
use crate::kinds::{ATOMICS, EDGES, SIZES, WIDTHS};
use bpf_isa::{Size, Width};
use bpf_jit::{Base, BinOp, Mem, Op, Val};
use bpf_jit_code::Symbol;

/// Offsets at the limits of machines' immediate forms, for each size, aligned and not.
fn offsets(size: Size) -> Vec<i32> {
    let top = 4095 * size.bytes() as i32;
    let scaled = [top - 1, top, top + 1, top + size.bytes() as i32];
    let short = [0, 1, 8, 127, 128, 255, 256, 257];
    let negative = [-1, -8, -128, -129, -255, -256, -257, -264];
    let long = [32767, -32768, 65536, -65544, 0x1_2345];
    short.into_iter().chain(negative).chain(long).chain(scaled).collect()
}

fn wide(x: u64, y: u64) -> Start {
    Start::new([x, y, 0, Start::MEMORY, 0], WIDE)
}

/// Every size, sign and offset, swapped and not, also with the destination in the load's own base.
pub fn loads(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for size in SIZES {
        for offsets in offsets(size).chunks(5) {
            let mut b = Build::new();
            let memory = b.param(3);
            let mut values = Vec::new();
            for off in offsets {
                for (signed, swap) in [(false, false), (true, false), (false, true)] {
                    let dst = b.reg();
                    b.op(Op::Load { size, signed, swap, dst, mem: at(memory, *off) });
                    values.push(dst);
                }
                let base = b.copy(memory);
                b.op(Op::Load { size, signed: false, swap: false, dst: base, mem: at(base, *off) });
                values.push(base);
            }
            b.keep(memory, 0, &values);
            b.exit(memory);
            let ways = bench.plain_ways(4, 5);
            bench.compare(&format!("loads {size:?}"), &b.alone(), &ways, &[wide(0, 0)]);
        }
    }
    for size in SIZES {
        for off in [OP_MEMORY, OP_MEMORY + 1] {
            let load = |signed, swap, acquire| {
                move |b: &mut Build, r: crate::alu::Regs| {
                    let (dst, mem) = (r.dst, at(r.memory, off));
                    b.op(match acquire {
                        true => Op::LoadAcquire { size, dst, mem },
                        false => Op::Load { size, signed, swap, dst, mem },
                    });
                }
            };
            for (signed, swap, acquire) in
                [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
            {
                let what = format!("load {size:?} signed {signed} swap {swap} acquire {acquire}");
                check(bench, &what, &[0, 3], &singles()[..4], &load(signed, swap, acquire));
            }
        }
    }
}

/// Every size and offset, of registers and of constants.
pub fn stores(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let starts: Vec<Start> = EDGES.iter().step_by(3).map(|x| wide(*x, !x)).collect();
    for size in SIZES {
        let mut b = Build::new();
        let (x, memory) = (b.param(0), b.param(3));
        for (i, off) in offsets(size).into_iter().enumerate() {
            let src = match i % 4 {
                0 => Val::Imm(0),
                1 => Val::Imm(-(0x0123_4567_89ab_cdef + i as i64)),
                2 => Val::Imm(-1),
                _ => Val::Reg(x),
            };
            b.op(Op::Store { size, mem: at(memory, off), src });
        }
        b.exit(x);
        let ways = bench.plain_ways(4, 6);
        bench.compare(&format!("stores {size:?}"), &b.alone(), &ways, &starts);
    }
    for size in SIZES {
        for off in [OP_MEMORY, OP_MEMORY + 1] {
            // Regression: on x86-64 a byte store from sil, dil, bpl needs a REX prefix.
            check(bench, &format!("store {size:?}"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::Store { size, mem: at(r.memory, off), src: Val::Reg(r.x) });
            });
            check(bench, &format!("store release {size:?}"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::StoreRelease { size, mem: at(r.memory, off), src: r.x });
            });
        }
        let ways = bench.plain_ways(5, 4);
        for constants in EDGES.chunks(7) {
            let mut b = Build::new();
            let memory = b.param(3);
            for (i, imm) in constants.iter().enumerate() {
                b.op(Op::Store { size, mem: at(memory, 16 * i as i32), src: Val::Imm(*imm as i64) });
                b.op(Op::Store { size, mem: at(memory, 16 * i as i32 + 9), src: Val::Imm(*imm as i64) });
            }
            b.exit(memory);
            let starts = [Start::new([0, 0, 0, Start::MEMORY, 0], 32)];
            bench.compare(&format!("store {size:?} {constants:x?}"), &b.alone(), &ways, &starts);
        }
    }
}

/// A computed base, and a load into its own base at offsets of every length.
pub fn addresses(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for off in [0, 1, 100, -100, 127, 128, -128, -129, 4000, -4000] {
        check(bench, &format!("address {off}"), &[3], &singles()[..1], &|b, r| {
            let moved = b.reg();
            let imm = Val::Imm(i64::from(OP_MEMORY - off));
            b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: moved, a: r.memory, b: imm });
            b.load_to(moved, at(moved, off));
            b.op(Op::Mov { width: Width::W64, dst: r.dst, src: Val::Reg(moved) });
        });
    }
}

/// An index with every shift and every kind of offset, base and index in any register, also in one, and shared with
/// the result or the stored value.
pub fn indexed(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for size in SIZES {
        for shift in 0..4u8 {
            for off in [0, 8, -8, 300, -5000] {
                let address = |b: &mut Build, r: crate::alu::Regs| {
                    // Three elements above the base.
                    let (base, index) = (b.reg(), b.imm(3));
                    let imm = Val::Imm(i64::from(OP_MEMORY - off) - (3 << shift));
                    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: base, a: r.memory, b: imm });
                    Mem::new(Base::Indexed { base, index, shift }, off)
                };
                let what = format!("{size:?} at index << {shift} + {off}");
                for (signed, swap) in [(false, false), (true, false), (false, true)] {
                    check(bench, &format!("load {what}, {signed} {swap}"), &[3], &singles()[..2], &|b, r| {
                        let mem = address(b, r);
                        b.op(Op::Load { size, signed, swap, dst: r.dst, mem });
                    });
                }
                check(bench, &format!("store {what}"), &[0, 3], &singles()[..4], &|b, r| {
                    let mem = address(b, r);
                    b.op(Op::Store { size, mem, src: Val::Reg(r.x) });
                    b.op(Op::Store { size, mem: Mem { off: mem.off + 8, ..mem }, src: Val::Imm(-0x1234_5678_9abc) });
                });
            }
        }
    }
    // One value is base and index; it, or the index alone, is overwritten.
    let mut b = Build::new();
    let (x, memory) = (b.param(0), b.param(3));
    let mut values = Vec::new();
    for shift in 0..4u8 {
        let zero = b.imm(0);
        let twice = b.reg();
        let index = b.reg();
        // memory - (memory << shift) + (memory << shift).
        b.op(Op::AddShift { width: Width::W64, dst: twice, a: zero, b: memory, shift });
        b.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: twice, a: memory, b: Val::Reg(twice) });
        b.load_to(twice, Mem::new(Base::Indexed { base: twice, index: memory, shift }, 8));
        b.set(index, 1);
        b.load_to(index, Mem::new(Base::Indexed { base: memory, index, shift }, 3));
        b.op(Op::Store {
            size: Size::B,
            mem: Mem::new(Base::Indexed { base: memory, index: zero, shift }, 5),
            src: Val::Reg(zero),
        });
        values.extend([twice, index]);
    }
    let half = b.reg();
    b.op(Op::Bin { op: BinOp::Shr, width: Width::W64, dst: half, a: memory, b: Val::Imm(1) });
    values.push(b.load(Mem::new(Base::Indexed { base: half, index: half, shift: 0 }, 16)));
    b.keep(memory, 64, &values);
    b.exit(x);
    let ways = bench.all_ways(6, 9);
    bench.compare("overlapping base and index", &b.alone(), &ways, &[wide(1, 2)]);
}

/// Acquire and release, in memory and in the stack. (A single run cannot show that they order accesses; the backends'
/// own tests fix the instructions.)
pub fn ordered_accesses(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let (x, y, memory) = (b.param(0), b.param(1), b.param(3));
    b.stack(16);
    b.op(Op::Store { size: Size::DW, mem: in_frame(-16), src: Val::Reg(y) });
    let mut values = Vec::new();
    for size in SIZES {
        let places = [at(memory, 0), at(memory, 8), at(memory, -4096), at(memory, 0x8008), in_frame(-16)];
        for (i, mem) in places.into_iter().enumerate() {
            let dst = b.reg();
            b.op(Op::LoadAcquire { size, dst, mem });
            b.op(Op::StoreRelease { size, mem, src: if i % 2 == 0 { x } else { dst } });
            values.push(dst);
        }
    }
    b.keep(memory, 64, &values);
    b.exit(x);
    let ways = bench.plain_ways(8, 1);
    let starts: Vec<Start> = EDGES.iter().map(|x| wide(*x, !x)).collect();
    bench.compare("ordered accesses", &b.alone(), &ways, &starts);
}

/// Every atomic, fetching and not, with every overlap of address, operand and result. Regressions: r0 as operand or
/// destination of the fetching logical operations.
pub fn atomics(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for width in WIDTHS {
        for op in ATOMICS {
            check(bench, &format!("{op:?} {width:?}"), &[3], &singles(), &|b, r| {
                b.op(Op::Atomic { op, width, mem: at(r.memory, OP_MEMORY), src: r.x, fetch: None });
            });
            // In place, as in BPF: the operand receives the old value.
            check(bench, &format!("{op:?} {width:?} fetch"), &[0, 1, 3], &singles(), &|b, r| {
                b.op(Op::Atomic { op, width, mem: at(r.memory, OP_MEMORY), src: r.x, fetch: Some(r.dst) });
            });
            let mut b = Build::new();
            let (x, y, memory) = (b.param(0), b.param(1), b.param(3));
            b.stack(16);
            b.op(Op::Store { size: Size::DW, mem: in_frame(-8), src: Val::Reg(y) });
            let mut values = Vec::new();
            for mem in [at(memory, 0), at(memory, 16), at(memory, -40_000), in_frame(-8)] {
                b.op(Op::Atomic { op, width, mem, src: x, fetch: None });
                let (dst, both) = (b.reg(), b.copy(x));
                b.op(Op::Atomic { op, width, mem, src: y, fetch: Some(dst) });
                b.op(Op::Atomic { op, width, mem, src: both, fetch: Some(both) });
                values.extend([dst, both]);
            }
            // The old value replaces the address.
            let base = b.copy(memory);
            b.op(Op::Atomic { op, width, mem: at(base, 0), src: x, fetch: Some(base) });
            values.push(base);
            values.push(b.load(in_frame(-8)));
            b.keep(memory, 64, &values);
            b.exit(x);
            let ways = bench.plain_ways(6, 2);
            let starts: Vec<Start> = EDGES.iter().step_by(2).map(|x| wide(*x, x ^ 0x0f0f)).collect();
            bench.compare(&format!("{op:?} {width:?}"), &b.alone(), &ways, &starts);
        }
    }
}

/// Compare and exchange that succeeds and fails, with every overlap. After a 32-bit one the upper half of the result
/// is zero in both cases.
pub fn compare_and_exchange(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for width in WIDTHS {
        for matches in [false, true] {
            check(bench, &format!("cmpxchg {width:?} {matches}"), &[0, 1, 3], &singles(), &|b, r| {
                let mem = at(r.memory, OP_MEMORY);
                if matches {
                    // Bits above the width are set: a 32-bit comparison must ignore them.
                    b.load_to(r.x, mem);
                }
                b.op(Op::CmpXchg { width, mem, expected: r.x, new: r.y, dst: r.dst });
            });
            check(bench, &format!("cmpxchg {width:?} {matches} x x"), &[0, 3], &singles(), &|b, r| {
                let mem = at(r.memory, OP_MEMORY);
                if matches {
                    b.load_to(r.x, mem);
                }
                b.op(Op::CmpXchg { width, mem, expected: r.x, new: r.x, dst: r.dst });
            });
        }
        let mut b = Build::new();
        let (x, y, memory) = (b.param(0), b.param(1), b.param(3));
        let mut values = Vec::new();
        for off in [0, 8, -40_000] {
            let mem = at(memory, off);
            let (missed, hit) = (b.reg(), b.reg());
            // Expecting r1's value, which is in memory only by chance; the value in memory, with bits set above a
            // width of 32; and in place, as BPF's r0.
            b.op(Op::CmpXchg { width, mem, expected: x, new: y, dst: missed });
            let now = b.load(mem);
            b.op(Op::CmpXchg { width, mem, expected: now, new: y, dst: hit });
            b.op(Op::CmpXchg { width, mem, expected: now, new: x, dst: now });
            values.extend([now, missed, hit]);
        }
        // The result overwrites the new value, and the address; failing, then succeeding.
        for hit in [false, true] {
            for over_base in [false, true] {
                let off = if over_base { 0 } else { 16 };
                let now = b.load(at(memory, off));
                let (new, base) = (b.copy(x), b.copy(memory));
                let dst = if over_base { base } else { new };
                b.op(Op::CmpXchg { width, mem: at(base, off), expected: if hit { now } else { y }, new, dst });
                values.push(dst);
            }
        }
        b.keep(memory, 64, &values);
        b.exit(x);
        let ways = bench.plain_ways(8, 3);
        let starts: Vec<Start> = EDGES.iter().map(|x| wide(*x, x ^ 0x0f0f)).collect();
        bench.compare(&format!("cmpxchg {width:?}"), &b.alone(), &ways, &starts);
    }
}

/// Addresses of symbols, for any address.
pub fn addresses_of_symbols(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let memory = b.param(3);
    let mut values = Vec::new();
    for symbol in [MEMORY_SYMBOL, Symbol::new(DATA), Symbol::new(DATA + 99)] {
        let dst = b.reg();
        b.op(Op::SymAddr { dst, symbol });
        values.push(dst);
    }
    values.push(b.load(at(values[0], 8)));
    b.keep(memory, 0, &values);
    b.exit(memory);
    let ways = bench.all_ways(4, 4);
    bench.compare("symbols", &b.alone(), &ways, &[Start::new([0, 0, 0, Start::MEMORY, 0], 16)]);
}
