//! Frames: accesses to the stack, stated sizes, alignment.

use crate::Target;
use crate::bench::{Bench, Start};
use crate::build::{Build, at, in_frame};
use crate::kinds::EDGES;
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::{BinOp, CallTarget, Func, Lir, Op, Val};
use bpf_jit_code::Symbol;

/// Offsets in the stack, from small to beyond every immediate form, by r10 and by address.
pub fn frames(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(2, 1);
    for stack in [8u32, 16, 496, 504, 512, 4096, 40_000, 1 << 20] {
        let bottom = -(stack as i32);
        let mut b = Build::new();
        let (x, y, memory) = (b.param(0), b.param(1), b.param(3));
        b.stack(stack);
        let mut values = Vec::new();
        for off in [-8, bottom, bottom / 16 * 8].map(|off| off.min(-8)) {
            let pointer = b.reg();
            b.op(Op::Store { size: Size::DW, mem: in_frame(off), src: Val::Reg(x) });
            b.op(Op::Store { size: Size::B, mem: in_frame(off + 3), src: Val::Imm(0x77) });
            b.op(Op::FrameAddr { dst: pointer, off });
            values.push(b.load(at(pointer, 0)));
            b.op(Op::Store { size: Size::W, mem: at(pointer, 4), src: Val::Reg(y) });
            values.push(b.load(in_frame(off)));
        }
        b.keep(memory, 0, &values);
        b.exit(x);
        let starts: Vec<Start> =
            EDGES.iter().step_by(5).map(|x| Start::new([*x, !x, 0, Start::MEMORY, 0], 16)).collect();
        bench.compare(&format!("stack {stack}"), &b.alone(), &ways, &starts);
    }
}

/// `live` values that live across an external call and a call of function `next`.
fn frame(live: usize, stack: u32, next: Option<u32>) -> Func {
    let mut b = Build::new();
    let x = b.param(0);
    b.stack(stack);
    let values: Vec<_> = (0..live).map(|i| b.imm(i as u64 * 0x1_0001)).collect();
    for off in (8..=stack as i32).step_by(8) {
        b.op(Op::Store { size: Size::DW, mem: in_frame(-off), src: Val::Imm(0x55) });
    }
    b.op(Op::Call { target: CallTarget::Extern(Symbol::new(0)), args: [None; 5], ctx: None, ret: None });
    let sum = b.imm(1);
    if let Some(next) = next {
        let args = [Some(sum), None, None, None, None];
        b.op(Op::Call { target: CallTarget::Subprog(SubprogId(next)), args, ctx: None, ret: Some(sum) });
    }
    for v in values.into_iter().chain((live == 0).then_some(x)) {
        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: sum, b: Val::Reg(v) });
    }
    b.exit(sum);
    b.finish()
}

/// A frame has exactly the bytes of its shape, and the stack is aligned at every call (checked by the bench), for any
/// mix of saved registers, slots and BPF stack, and for any caller.
pub fn frames_are_as_large_as_stated_and_aligned(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for live in 0..9 {
        for stack in [0, 8, 16, 24, 512] {
            let funcs = vec![frame(live, stack, Some(1)), frame(8 - live, stack + 8, Some(2)), frame(live, 0, None)];
            let lir = Lir { funcs };
            for way in bench.all_ways(4, live as u64) {
                let code = bench.emit(&lir, &way);
                assert_eq!(code.frames.len(), 3);
                let mut sum = 0;
                let depths: Vec<u64> = code
                    .frames
                    .iter()
                    .map(|frame| {
                        sum += u64::from(frame.bytes);
                        sum
                    })
                    .collect();
                let Some(text) = bench.place(&[code], way.1.hardening.landing_pads) else { continue };
                bench.run(text.entries[0], &Start::new([0; 5], 0));
                assert_eq!(bench.depths(), depths, "live {live} stack {stack} {way:?}");
            }
        }
    }
}
