//! Every op, executed, against the naive evaluator: all widths, edge values, destinations that share a register with
//! operands, operands that live on and that do not, under production's, three-register, no-register and random
//! allocations; then random programs of all of them.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use bpf_isa::{Cond, Size, SubprogId, Width};
use bpf_jit::{AtomicOp, Base, BinOp, BlockId, CallTarget, Check, EmitOptions, Func, Lir, Mem, Op, VReg, Val};
use bpf_jit_code::{Hardening, StopCode, Symbol};
use bpf_jit_x64::X64;
use support::native::{DATA, Placed, Start, evaluate};
use support::random::{BIN, SIZES, WIDTHS, WITH_CTX, options, random_program};
use support::{Build, EDGES, Rng, allocations, emit};

/// The values around the op under test.
#[derive(Clone, Copy)]
struct Regs {
    dst: VReg,
    x: VReg,
    y: VReg,
    z: VReg,
    memory: VReg,
    ctx: VReg,
}

const OP_MEMORY: i32 = 64;

/// One function: the op, and everything it may have changed stored where the test sees it. `share`: which operand's
/// register the destination is (3: its own). `live`: whether the operands live on.
fn around(share: usize, live: bool, op: &dyn Fn(&mut Build, Regs)) -> Func {
    let mut b = Build::new();
    let [x, y, z] = [0, 1, 2].map(|i| b.param(i));
    let memory = b.param(3);
    let ctx = b.ctx();
    let dst = [x, y, z].get(share).copied().unwrap_or_else(|| b.reg());
    if share == 3 {
        b.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(0x5a5a) });
    }
    op(&mut b, Regs { dst, x, y, z, memory, ctx });
    b.store(memory, 0, dst);
    if live {
        for (i, v) in [x, y, z].into_iter().enumerate() {
            b.store(memory, 8 + 8 * i as i32, v);
        }
    }
    b.exit(dst);
    b.finish()
}

/// Compares code and evaluator on each set of x, y, z.
fn compare(what: &str, funcs: Vec<Func>, options: &EmitOptions, random: u64, values: &[[u64; 3]]) {
    let lir = Lir { funcs };
    let mut backend = X64::default();
    for alloc in allocations(&backend, options, random, what.len() as u64) {
        let code = emit(&mut backend, &lir, &alloc, options);
        let placed = Placed::new(&code);
        for v in values {
            let memory = (0..128u8).map(|i| i.wrapping_mul(37) ^ 0xa5).collect();
            let start = Start::new([v[0], v[1], v[2], 0, 0xeeee], memory);
            let (got, want) = (placed.run(code.entries[0] as usize, &start), evaluate(&lir, &start));
            assert_eq!(got, want, "{what}, x y z = {v:x?}, {alloc:?}, {:?}\n{:x?}", options.features, code.bytes);
        }
    }
}

/// [`compare`] under every sharing and liveness.
fn check(what: &str, shares: &[usize], values: &[[u64; 3]], op: &dyn Fn(&mut Build, Regs)) {
    for options in options() {
        for share in shares {
            for live in [false, true] {
                let func = around(*share, live, op);
                compare(&format!("{what} share {share} live {live}"), vec![func], &options, 5, values);
            }
        }
    }
}

fn pairs() -> Vec<[u64; 3]> {
    EDGES.iter().flat_map(|x| EDGES.iter().map(move |y| [*x, *y, 0x77])).collect()
}

fn singles() -> Vec<[u64; 3]> {
    EDGES.iter().map(|x| [*x, x.rotate_left(9) ^ 0x55, 3]).collect()
}

fn bin_by_register(ops: &[BinOp]) {
    for op in ops.iter().copied() {
        for width in WIDTHS {
            check(&format!("{op:?} {width:?}"), &[0, 1, 3], &pairs(), &|b, r| {
                b.op(Op::Bin { op, width, dst: r.dst, a: r.x, b: Val::Reg(r.y) });
            });
            check(&format!("{op:?} {width:?} x x"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::Bin { op, width, dst: r.dst, a: r.x, b: Val::Reg(r.x) });
            });
        }
    }
}

fn bin_by_constant(ops: &[BinOp]) {
    for op in ops.iter().copied() {
        for width in WIDTHS {
            let more =
                [3u64, 5, 9, 10, 1 << 20, 1 << 40, 1 << 63, -2i64 as u64, -128i64 as u64, -129i64 as u64, 0xffff];
            for imm in EDGES.into_iter().chain(more) {
                check(&format!("{op:?} {width:?} {imm:#x}"), &[0, 3], &singles(), &|b, r| {
                    b.op(Op::Bin { op, width, dst: r.dst, a: r.x, b: Val::Imm(imm as i64) });
                });
            }
        }
    }
}

#[test]
fn arithmetic_by_register() {
    bin_by_register(&BIN[..5]);
    bin_by_register(&BIN[9..12]);
}

/// Operands and destination anywhere, rax and rdx included; zero divisors; MIN / -1; zero-extension of 32-bit results.
#[test]
fn division_by_register() {
    bin_by_register(&BIN[5..9]);
}

/// A count in rcx, a destination in rcx, and a live value in rcx.
#[test]
fn shifts_by_register() {
    bin_by_register(&BIN[12..]);
}

#[test]
fn arithmetic_by_constant() {
    bin_by_constant(&BIN[..5]);
    bin_by_constant(&BIN[9..12]);
}

#[test]
fn division_by_constant() {
    bin_by_constant(&BIN[5..9]);
}

#[test]
fn shifts_by_constant() {
    bin_by_constant(&BIN[12..]);
}

#[test]
fn moves_extensions_and_byte_order() {
    for width in WIDTHS {
        check("mov", &[0, 3], &singles(), &|b, r| {
            b.op(Op::Mov { width, dst: r.dst, src: Val::Reg(r.x) });
        });
        check("neg", &[0, 3], &singles(), &|b, r| b.op(Op::Neg { width, dst: r.dst, src: r.x }));
        for imm in EDGES {
            check("mov imm", &[0, 3], &[[1, 2, 3]], &|b, r| {
                b.op(Op::Mov { width, dst: r.dst, src: Val::Imm(imm as i64) });
            });
        }
        for from in [Size::B, Size::H, Size::W] {
            for signed in [false, true] {
                check(&format!("ext {from:?} {signed}"), &[0, 3], &singles(), &|b, r| {
                    b.op(Op::Ext { width, signed, from, dst: r.dst, src: r.x });
                });
            }
        }
        for shift in 0..4 {
            check(&format!("add shift {shift}"), &[0, 1, 3], &pairs(), &|b, r| {
                b.op(Op::AddShift { width, dst: r.dst, a: r.x, b: r.y, shift });
            });
        }
    }
    for size in [Size::H, Size::W, Size::DW] {
        check(&format!("bswap {size:?}"), &[0, 3], &singles(), &|b, r| b.op(Op::Bswap { size, dst: r.dst, src: r.x }));
    }
    check("symbol", &[3], &[[1, 2, 3]], &|b, r| b.op(Op::SymAddr { dst: r.dst, symbol: Symbol::new(DATA + 7) }));
}

#[test]
fn selects_and_branches() {
    let values: Vec<[u64; 3]> = pairs().into_iter().map(|[x, y, _]| [x, y, x ^ 0x1_0000_0001]).collect();
    let constants = [
        0i64,
        1,
        -1,
        127,
        -128,
        128,
        0xff,
        0x80,
        0xffff,
        i64::from(i32::MAX),
        i64::from(i32::MIN),
        0x8000_0000,
        1 << 40,
    ];
    for width in WIDTHS {
        for cond in Cond::ALL {
            check(&format!("select {cond:?} {width:?}"), &[0, 1, 2, 3], &values, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.z, no: r.x });
            });
            check(&format!("select {cond:?} {width:?} other way"), &[2, 3], &values, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.y, no: r.z });
            });
            for imm in constants {
                check(&format!("branch {cond:?} {width:?} {imm:#x}"), &[3], &singles(), &|b, r| {
                    let over = BlockId(b.block().0 + 1);
                    let over = BlockId(over.0 + 1);
                    b.op(Op::Branch { width, cond, a: r.x, b: Val::Imm(imm), target: over });
                    b.block();
                    b.op(Op::Mov { width: Width::W64, dst: r.dst, src: Val::Imm(1) });
                    assert_eq!(b.block(), over);
                });
            }
        }
    }
}

/// Regression: displacements beyond 32 KiB and 1 MiB, forward and back, and next to the reach of rel8.
#[test]
fn far_branches() {
    for filler in [17, 18, 19, 5_000, 10_000, 160_000] {
        let mut b = Build::new();
        let (x, y) = (b.param(0), b.param(1));
        // while (y--) { if (x == 3) skip the filler; filler; }
        let first = b.block();
        let skip = BlockId(first.0 + 2);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Eq, a: x, b: Val::Imm(3), target: skip });
        b.block();
        for _ in 0..filler {
            b.op(Op::Bin { op: BinOp::Xor, width: Width::W64, dst: x, a: x, b: Val::Imm(0x1234_5678) });
        }
        assert_eq!(b.block(), skip);
        b.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: y, a: y, b: Val::Imm(1) });
        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Imm(1) });
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: y, b: Val::Imm(0), target: first });
        b.block();
        b.exit(x);
        compare(
            &format!("far {filler}"),
            vec![b.finish()],
            &EmitOptions::default(),
            1,
            &[[0, 5, 0], [3, 4, 0], [1, 3, 0]],
        );
    }
}

#[test]
fn memory() {
    let at = |r: &Regs, off| Mem::new(Base::Reg(r.memory), off);
    for size in SIZES {
        for off in [OP_MEMORY, OP_MEMORY + 1] {
            for signed in [false, true] {
                check(&format!("load {size:?} {signed}"), &[0, 3], &singles()[..4], &|b, r| {
                    b.op(Op::Load { size, signed, swap: false, dst: r.dst, mem: at(&r, off) });
                });
            }
            check(&format!("load swapped {size:?}"), &[0, 3], &singles()[..4], &|b, r| {
                b.op(Op::Load { size, signed: false, swap: true, dst: r.dst, mem: at(&r, off) });
            });
            check(&format!("load acquire {size:?}"), &[0, 3], &singles()[..4], &|b, r| {
                b.op(Op::LoadAcquire { size, dst: r.dst, mem: at(&r, off) });
            });
            // Regression: a byte store from sil, dil, bpl needs a REX prefix; the random allocations put x there.
            check(&format!("store {size:?}"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::Store { size, mem: at(&r, off), src: Val::Reg(r.x) });
            });
            check(&format!("store release {size:?}"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::StoreRelease { size, mem: at(&r, off), src: r.x });
            });
            for imm in EDGES {
                check(&format!("store {size:?} {imm:#x}"), &[3], &[[1, 2, 3]], &|b, r| {
                    b.op(Op::Store { size, mem: at(&r, off), src: Val::Imm(imm as i64) });
                });
            }
        }
    }
}

/// A load whose destination is its own base, and offsets of every length.
#[test]
fn addresses() {
    for off in [0, 1, 100, -100, 127, 128, -128, -129, 4000, -4000] {
        check(&format!("address {off}"), &[3], &[[1, 2, 3]], &|b, r| {
            let moved = b.reg();
            let imm = Val::Imm(i64::from(OP_MEMORY - off));
            b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: moved, a: r.memory, b: imm });
            b.op(Op::Load {
                size: Size::DW,
                signed: false,
                swap: false,
                dst: moved,
                mem: Mem::new(Base::Reg(moved), off),
            });
            b.op(Op::Mov { width: Width::W64, dst: r.dst, src: Val::Reg(moved) });
        });
    }
}

/// Regressions: r0 as operand or destination of the fetching logical operations; the upper half after a successful
/// 32-bit cmpxchg.
#[test]
fn atomics() {
    let mem = |r: &Regs| Mem::new(Base::Reg(r.memory), OP_MEMORY);
    for width in WIDTHS {
        for op in [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg] {
            check(&format!("{op:?} {width:?}"), &[3], &singles(), &|b, r| {
                b.op(Op::Atomic { op, width, mem: mem(&r), src: r.x, fetch: None });
            });
            check(&format!("{op:?} {width:?} fetch"), &[0, 1, 3], &singles(), &|b, r| {
                b.op(Op::Atomic { op, width, mem: mem(&r), src: r.x, fetch: Some(r.dst) });
            });
        }
        for matches in [false, true] {
            check(&format!("cmpxchg {width:?} {matches}"), &[0, 1, 3], &singles(), &|b, r| {
                if matches {
                    // Dirty above the width: a 32-bit comparison must not look.
                    b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: r.x, mem: mem(&r) });
                }
                b.op(Op::CmpXchg { width, mem: mem(&r), expected: r.x, new: r.y, dst: r.dst });
            });
            check(&format!("cmpxchg {width:?} {matches} x x"), &[0, 3], &singles(), &|b, r| {
                b.op(Op::CmpXchg { width, mem: mem(&r), expected: r.x, new: r.x, dst: r.dst });
            });
        }
    }
}

#[test]
fn calls() {
    for arity in 0..=5u32 {
        for hidden in [0, WITH_CTX] {
            check(&format!("call {arity} {hidden}"), &[0, 1, 3], &pairs()[..30], &|b, r| {
                let pool = [r.y, r.x, r.x, r.z, r.y];
                let args = core::array::from_fn(|i| (i < arity as usize).then_some(pool[i]));
                let ctx = (hidden != 0).then_some(r.ctx);
                let target = CallTarget::Extern(Symbol::new(arity | hidden));
                b.op(Op::Call { target, args, ctx, ret: Some(r.dst) });
                b.op(Op::Call { target, args, ctx, ret: None });
            });
        }
    }
}

#[test]
fn subprograms_and_stacks() {
    for (stack, accesses) in [(8, 1), (8, 20), (24, 3), (64, 9), (64, 20), (128, 5), (136, 5), (512, 5), (1 << 14, 3)] {
        for callee_calls in [false, true] {
            let callee = {
                let mut b = Build::new();
                let (x, y) = (b.param(0), b.param(1));
                b.stack(stack);
                let frame = |off| Mem::new(Base::Frame, off);
                let lowest = -(stack as i32);
                b.op(Op::Store { size: Size::DW, mem: frame(lowest), src: Val::Reg(x) });
                if callee_calls {
                    let args = [Some(x), Some(y), None, None, None];
                    b.op(Op::Call { target: CallTarget::Extern(Symbol::new(2)), args, ctx: None, ret: Some(y) });
                }
                let address = b.reg();
                b.op(Op::FrameAddr { dst: address, off: lowest });
                for _ in 1..accesses {
                    b.op(Op::Atomic { op: AtomicOp::Add, width: Width::W64, mem: frame(lowest), src: y, fetch: None });
                }
                let sum = b.reg();
                let mem = Mem::new(Base::Reg(address), 0);
                b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: sum, mem });
                b.exit(sum);
                b.finish()
            };
            for options in options() {
                for save_all in [false, true] {
                    let caller = around(3, true, &|b, r| {
                        let args = [Some(r.y), Some(r.x), None, None, None];
                        let target = CallTarget::Subprog(SubprogId(1));
                        b.op(Op::Call { target, args, ctx: None, ret: Some(r.dst) });
                    });
                    let options = EmitOptions { save_all, ..options };
                    let what = format!("stack {stack} accesses {accesses} calls {callee_calls}");
                    compare(&what, vec![caller, callee.clone()], &options, 5, &pairs()[..20]);
                }
            }
        }
    }
}

#[test]
fn checks_and_stops() {
    let mut backend = X64::default();
    for retpolines in [false, true] {
        for (check, budget, interrupt) in [
            (Check::Budget, 1, 0),
            (Check::Budget, 0, 0),
            (Check::Budget, i64::MIN, 0),
            (Check::Interrupt, 5, 0),
            (Check::Interrupt, 5, 1),
            (Check::Interrupt, 5, 1 << 31),
        ] {
            // In a callee, so that stopping leaves frames behind.
            let callee = {
                let mut b = Build::new();
                let x = b.param(0);
                let ctx = b.ctx();
                b.stack(64);
                let args = [Some(x), None, None, None, None];
                b.op(Op::Call { target: CallTarget::Extern(Symbol::new(1)), args, ctx: None, ret: None });
                b.op(Op::Check { check, ctx });
                b.exit(x);
                b.finish()
            };
            let caller = around(3, true, &|b, r| {
                let args = [Some(r.y), None, None, None, None];
                let target = CallTarget::Subprog(SubprogId(1));
                b.op(Op::Call { target, args, ctx: Some(r.ctx), ret: Some(r.dst) });
            });
            let lir = Lir { funcs: vec![caller, callee] };
            let hardening = Hardening { retpolines, ..Hardening::default() };
            let options = EmitOptions { hardening, ..EmitOptions::default() };
            for alloc in allocations(&backend, &options, 8, 3) {
                let code = emit(&mut backend, &lir, &alloc, &options);
                let placed = Placed::new(&code);
                let start = Start { budget, interrupt, ..Start::new([1, 2, 3, 0, 0], vec![0; 128]) };
                assert_eq!(placed.run(0, &start), evaluate(&lir, &start), "{check:?} {budget} {interrupt} {alloc:?}");
            }
        }
        // Bounds: unsigned, in registers and slots, small constants and large.
        for (x, limit) in
            [(0u64, 0u64), (0, 1), (5, 5), (5, 6), (u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 40, 1 << 41)]
        {
            for constant in [false, true] {
                let lir = Lir {
                    funcs: vec![around(3, true, &|b, r| {
                        let limit = if constant { Val::Imm(limit as i64) } else { Val::Reg(r.y) };
                        b.op(Op::Bound { a: r.x, limit, ctx: r.ctx });
                        b.op(Op::Mov { width: Width::W64, dst: r.dst, src: Val::Imm(7) });
                    })],
                };
                let options = EmitOptions::default();
                for alloc in allocations(&backend, &options, 8, 3) {
                    let code = emit(&mut backend, &lir, &alloc, &options);
                    let start = Start::new([x, limit, 3, 0, 0], vec![0; 128]);
                    let end = Placed::new(&code).run(0, &start);
                    assert_eq!(end, evaluate(&lir, &start), "{x} {limit} {constant} {alloc:?}");
                }
            }
        }
        for code in [StopCode::Budget, StopCode::Interrupted, StopCode::Access, StopCode::Host] {
            let mut b = Build::new();
            let ctx = b.ctx();
            b.op(Op::Stop { code, ctx });
            let lir = Lir { funcs: vec![b.finish()] };
            let hardening = Hardening { retpolines, landing_pads: true, ..Hardening::default() };
            let options = EmitOptions { hardening, ..EmitOptions::default() };
            for alloc in allocations(&backend, &options, 2, 3) {
                let code = emit(&mut backend, &lir, &alloc, &options);
                let start = Start::new([0; 5], vec![0; 8]);
                assert_eq!(Placed::new(&code).run(0, &start), evaluate(&lir, &start));
            }
        }
    }
}

/// `BPF_SOAK=n` multiplies the number of programs by n.
#[test]
fn random_programs() {
    let soak: u64 = std::env::var("BPF_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut backend = X64::default();
    for seed in 0..3000 * soak {
        let mut rng = Rng(seed);
        let (lir, options) = random_program(&mut rng);
        for alloc in allocations(&backend, &options, 4, seed) {
            let code = emit(&mut backend, &lir, &alloc, &options);
            let placed = Placed::new(&code);
            for _ in 0..2 {
                let args = core::array::from_fn(|_| rng.pick(&EDGES));
                let memory = (0..256).map(|_| rng.next() as u8).collect();
                let budget = if rng.chance(4) { rng.below(8) as i64 } else { 1000 };
                let start = Start { budget, ..Start::new(args, memory) };
                let (got, want) = (placed.run(0, &start), evaluate(&lir, &start));
                assert_eq!(got, want, "seed {seed}, {alloc:?}, {options:?}\n{:#?}\n{:x?}", lir.funcs, code.bytes);
            }
        }
    }
}
