//! Operations that insist on registers, under *every* assignment of pool registers to destination, first and second
//! operand: 13^3 of them, shared ones included. Random allocations (tests/exec.rs) meet each conflict now and then;
//! this meets each of them.
//!
//! Regressions: division with an operand or destination in rax or rdx, a shift whose count or destination is rcx,
//! and/or/xor-fetch and cmpxchg with rax as source or destination, byte stores from sil, dil and bpl.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use bpf_isa::{Size, Width};
use bpf_jit::{Alloc, AtomicOp, Backend, Base, BinOp, EmitOptions, HostReg, Lir, Loc, Mem, Op, VReg, Val};
use bpf_jit_code::{Arch, Code};
use bpf_jit_x64::X64;
use support::Build;
use support::native::{Placed, Start, evaluate};
use support::random::{WIDTHS, options};

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

/// Runs `op` with `dst`, `a` and `b` in each triple of registers.
fn every_assignment(what: &str, options: &EmitOptions, op: &dyn Fn(VReg, VReg, VReg, Mem) -> Op) {
    let mut backend = X64::default();
    let machine = backend.machine(options);
    for dst_reg in machine.pool {
        for a_reg in machine.pool {
            for b_reg in machine.pool {
                let mut build = Build::new();
                let a = build.param(0);
                let b = if a_reg == b_reg { a } else { build.param(1) };
                let memory = build.param(3);
                let dst = build.reg();
                let op = op(dst, a, b, Mem::new(Base::Reg(memory), 8));
                build.op(op);
                if op.def().is_some() {
                    build.store(memory, 0, dst);
                }
                build.exit(memory);
                let lir = Lir { funcs: vec![build.finish()] };

                // The memory's address lives on: not where the op writes.
                let taken = [*dst_reg, *a_reg, *b_reg];
                let clobbers = machine.fixed(&op).clobbers;
                let free = |r: &&HostReg| !taken.contains(r) && !clobbers.contains(**r);
                let memory_reg = machine.pool.iter().find(free).expect("more registers than that");
                let mut locs = vec![Loc::Reg(*a_reg)];
                locs.extend((a_reg != b_reg).then_some(Loc::Reg(*b_reg)));
                locs.extend([Loc::Reg(*memory_reg), Loc::Reg(*dst_reg)]);
                let used = |r: &&HostReg| taken.contains(r) || *r == memory_reg;
                let saves = machine.callee_saved.iter().filter(used).copied().collect();
                let alloc = Alloc { locs, saves, slots: 0 };

                let mut code = Code::new(Arch::X64);
                backend.emit(&lir, &[alloc], options, &mut code).expect("emits");
                let placed = Placed::new(&code);
                for [x, y] in VALUES {
                    let memory = (0..24u8).map(|i| if i < 16 { i * 17 } else { (x >> (i - 16)) as u8 }).collect();
                    let start = Start::new([x, y, 0, 0, 0], memory);
                    let (got, want) = (placed.run(0, &start), evaluate(&lir, &start));
                    assert_eq!(
                        got.memory, want.memory,
                        "{what}: {dst_reg:?} = {a_reg:?} . {b_reg:?} on {x:#x}, {y:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn division() {
    for width in WIDTHS {
        for op in [BinOp::Div, BinOp::SDiv, BinOp::Mod, BinOp::SMod, BinOp::MulHighU, BinOp::MulHighS] {
            every_assignment(&format!("{op:?} {width:?}"), &EmitOptions::default(), &|dst, a, b, _| Op::Bin {
                op,
                width,
                dst,
                a,
                b: Val::Reg(b),
            });
        }
    }
}

#[test]
fn shifts() {
    for options in options() {
        for width in WIDTHS {
            for op in [BinOp::Shl, BinOp::Sar, BinOp::Rotl] {
                every_assignment(&format!("{op:?} {width:?}"), &options, &|dst, a, b, _| Op::Bin {
                    op,
                    width,
                    dst,
                    a,
                    b: Val::Reg(b),
                });
            }
        }
    }
}

#[test]
fn atomics() {
    for width in WIDTHS {
        for op in [AtomicOp::Add, AtomicOp::Xchg, AtomicOp::And] {
            every_assignment(&format!("{op:?} {width:?}"), &EmitOptions::default(), &|dst, a, _, mem| Op::Atomic {
                op,
                width,
                mem,
                src: a,
                fetch: Some(dst),
            });
        }
        every_assignment(&format!("cmpxchg {width:?}"), &EmitOptions::default(), &|dst, a, b, mem| Op::CmpXchg {
            width,
            mem,
            expected: a,
            new: b,
            dst,
        });
    }
}

#[test]
fn byte_stores_and_two_operand_arithmetic() {
    every_assignment("byte store", &EmitOptions::default(), &|_, a, _, mem| Op::Store {
        size: Size::B,
        mem,
        src: Val::Reg(a),
    });
    for op in [BinOp::Add, BinOp::Sub, BinOp::Mul, BinOp::Xor] {
        every_assignment(&format!("{op:?}"), &EmitOptions::default(), &|dst, a, b, _| Op::Bin {
            op,
            width: Width::W64,
            dst,
            a,
            b: Val::Reg(b),
        });
    }
}
