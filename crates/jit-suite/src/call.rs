//! Calls: of external functions, of subprograms, and back through a subprogram's address.

use crate::Target;
use crate::alu::{around, check_ways, corners};
use crate::bench::{Bench, Start};
use crate::build::{Build, in_frame};
use crate::host::{CALL_BACK, Called, WITH_CTX, mix};
use crate::kinds::Rng;
use bpf_isa::{Cond, Size, SubprogId, Width};
use bpf_jit::eval::Outcome;
use bpf_jit::{AtomicOp, BinOp, BlockId, CallTarget, Check, Func, Lir, Op, VReg, Val};
use bpf_jit_code::Symbol;

/// An external function with `arity` arguments that also gets the hidden argument.
fn outside(arity: u32) -> CallTarget {
    CallTarget::Extern(Symbol::new(arity | WITH_CTX))
}

/// Every number of arguments, with repeats, with and without the hidden argument and a result.
pub fn calls(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for arity in 0..=5u32 {
        for hidden in [0, WITH_CTX] {
            let ways = bench.all_ways(5, u64::from(arity));
            check_ways(bench, &format!("call {arity} {hidden}"), &[0, 1, 3], &corners()[..20], &ways, &|b, r| {
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

/// Any value may be any argument, repeatedly, while other values stay live.
pub fn arguments_in_any_order(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut b = Build::new();
        let mut values = b.params().to_vec();
        let ctx = b.ctx();
        for _ in 0..4 {
            let args = [0; 5].map(|_| Some(rng.pick(&values)));
            let ret = b.reg();
            b.op(Op::Call { target: outside(5), args, ctx: Some(ctx), ret: Some(ret) });
            values.push(ret);
        }
        let sum = hash(&mut b, &values);
        b.exit(sum);
        let ways = bench.some_ways(6, seed);
        let args = [0; 5].map(|_| rng.value());
        bench.compare(&format!("seed {seed}"), &b.alone(), &ways, &[Start::new(args, 0)]);
    }
}

/// A value that depends on all of these values.
pub(crate) fn hash(b: &mut Build, values: &[VReg]) -> VReg {
    let hash = b.imm(1);
    for v in values {
        b.op(Op::Bin { op: BinOp::Mul, width: Width::W64, dst: hash, a: hash, b: Val::Imm(31) });
        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: hash, a: hash, b: Val::Reg(*v) });
    }
    hash
}

/// The result of [`hash`], computed here.
pub(crate) fn hashed(values: &[u64]) -> u64 {
    values.iter().fold(1, |h: u64, v| h.wrapping_mul(31).wrapping_add(*v))
}

/// Stacks of every size in a callee, by r10 and by address, with few accesses and many, with and without a call.
pub fn subprograms(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(5, 5);
    for (stack, accesses) in [(8, 1), (8, 20), (24, 3), (64, 9), (64, 20), (128, 5), (136, 5), (512, 5), (1 << 14, 3)] {
        for callee_calls in [false, true] {
            let mut b = Build::new();
            let (x, y) = (b.param(0), b.param(1));
            b.stack(stack);
            let lowest = in_frame(-(stack as i32));
            b.op(Op::Store { size: Size::DW, mem: lowest, src: Val::Reg(x) });
            if callee_calls {
                let args = [Some(x), Some(y), None, None, None];
                b.op(Op::Call { target: CallTarget::Extern(Symbol::new(2)), args, ctx: None, ret: Some(y) });
            }
            let address = b.reg();
            b.op(Op::FrameAddr { dst: address, off: -(stack as i32) });
            for _ in 1..accesses {
                b.op(Op::Atomic { op: AtomicOp::Add, width: Width::W64, mem: lowest, src: y, fetch: None });
            }
            let sum = b.load(crate::build::at(address, 0));
            b.exit(sum);
            let caller = around(3, true, &|b, r| {
                let args = [Some(r.y), Some(r.x), None, None, None];
                let target = CallTarget::Subprog(SubprogId(1));
                b.op(Op::Call { target, args, ctx: None, ret: Some(r.dst) });
            });
            let what = format!("stack {stack} accesses {accesses} calls {callee_calls}");
            bench.compare(&what, &Lir { funcs: vec![caller, b.finish()] }, &ways, &corners()[..12]);
        }
    }
}

/// Three nested functions, each with a stack, slots and values that live across its calls; with a sufficient budget,
/// and with budgets that end in each of the functions.
pub fn nested_subprograms(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let level = |callee: Option<u32>, stack: u32| {
        let mut b = Build::new();
        let mut values = b.params().to_vec();
        let ctx = b.ctx();
        b.stack(stack);
        for (i, v) in values.clone().into_iter().enumerate() {
            b.op(Op::Store { size: Size::DW, mem: in_frame(-8 * (i as i32 + 1)), src: Val::Reg(v) });
            let sum = b.reg();
            b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: v, b: Val::Imm(i as i64 * 1000) });
            values.push(sum);
        }
        for n in 0..2 {
            let args = [0, 2, 4, 6, 9].map(|i| Some(values[i + n]));
            let target = callee.map_or(outside(5), |id| CallTarget::Subprog(SubprogId(id)));
            let ret = b.reg();
            b.op(Op::Check { check: Check::Budget(1), ctx });
            b.op(Op::Call { target, args, ctx: Some(ctx), ret: Some(ret) });
            values.push(ret);
        }
        for i in 0..5 {
            values.push(b.load(in_frame(-8 * (i + 1))));
        }
        let sum = hash(&mut b, &values);
        b.exit(sum);
        b.finish()
    };
    let lir = Lir { funcs: vec![level(Some(1), 40), level(Some(2), 520), level(None, 48)] };
    let ways = bench.all_ways(6, 6);
    let starts = [100, 13, 3, 2, 1, 0].map(|budget| Start { budget, ..Start::new([1, u64::MAX, 3, 1 << 40, 5], 0) });
    bench.compare("nested", &lir, &ways, &starts);
}

/// Calls subprogram 1 through its address with the other arguments, and keeps live values.
fn caller(filler: u32) -> Func {
    let mut b = Build::new();
    let params = b.params();
    let ctx = b.ctx();
    let (address, sum) = (b.reg(), b.imm(0));
    b.op(Op::SubprogAddr { dst: address, subprog: SubprogId(1) });
    if filler > 0 {
        let over = BlockId(2);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: params[0], b: Val::Imm(0), target: over });
        b.block();
        for _ in 0..filler {
            b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: sum, b: Val::Reg(params[4]) });
        }
        assert_eq!(b.block(), over);
    }
    let ret = b.reg();
    let args = [Some(address), Some(params[0]), Some(params[1]), Some(params[2]), Some(params[3])];
    b.op(Op::Call { target: CallTarget::Extern(CALL_BACK), args, ctx: Some(ctx), ret: Some(ret) });
    let all = hash(&mut b, &[params[0], params[4], ret, sum]);
    b.exit(all);
    b.finish()
}

/// A host function calls back through the address of a subprogram, which is entered like any function.
pub fn call_backs(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let args = b.params().map(Some);
    let ctx = b.ctx();
    b.stack(16);
    let ret = b.reg();
    b.op(Op::Call { target: outside(5), args, ctx: Some(ctx), ret: Some(ret) });
    b.exit(ret);
    let lir = Lir { funcs: vec![caller(0), b.finish()] };
    let start = Start::new([3, 5, 7, 11, 13], 0);
    let passed = [3, 5, 7, 11, 0];
    let call = Called { symbol: 5 | WITH_CTX, args: passed, ctx: 1 };
    let returned = mix(5 | WITH_CTX, &passed);
    for way in bench.all_ways(4, 7) {
        let code = bench.emit(&lir, &way);
        let Some(text) = bench.place(&[code], way.1.hardening.landing_pads) else { continue };
        let run = bench.run(text.entries[0], &start);
        assert_eq!(run.outcome, Outcome::Exit(hashed(&[3, 13, returned, 0])), "{way:?}");
        assert_eq!(run.calls, [call], "{way:?}");
    }
}

/// The addresses of subprograms 1 MiB away, forward and back: beyond the reach of arm64's `adr`.
pub fn far_subprogram_addresses(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let [x, main, ..] = b.params();
    let back = b.reg();
    b.op(Op::SubprogAddr { dst: back, subprog: SubprogId(0) });
    b.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: back, a: back, b: Val::Reg(main) });
    let all = hash(&mut b, &[x, back]);
    b.exit(all);
    let lir = Lir { funcs: vec![caller(270_000), b.finish()] };
    let allocations = bench.all_ways(0, 0);
    for way in [allocations[0], allocations[3], *allocations.last().expect("some way")] {
        let code = bench.emit(&lir, &way);
        let Some(text) = bench.place(&[code], way.1.hardening.landing_pads) else { continue };
        let run = bench.run(text.entries[0], &Start::new([9, text.entries[0], 0, 0, 0], 0));
        assert_eq!(run.outcome, Outcome::Exit(hashed(&[9, 0, hashed(&[9, 0]), 0])), "{way:?}");
    }
}
