//! Stops of a run: by the budget, by another thread, by a bound, and for each reason.

use crate::Target;
use crate::alu::around;
use crate::bench::{Bench, Start};
use crate::build::{Build, at};
use bpf_isa::{Cond, SubprogId, Width};
use bpf_jit::{BinOp, CallTarget, Check, Lir, Op, Val};
use bpf_jit_code::{StopCode, Symbol};

fn call_of_one(b: &mut Build, target: CallTarget, arg: bpf_jit::VReg, ctx: Option<bpf_jit::VReg>) {
    b.op(Op::Call { target, args: [Some(arg), None, None, None, None], ctx, ret: Some(arg) });
}

/// Checks that fail and that do not, in a callee, so that stopping leaves frames behind.
pub fn checks(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(8, 3);
    for (check, budget, interrupt) in [
        (Check::Budget(1), 1, 0),
        (Check::Budget(7), 7, 0),
        (Check::Budget(8), 7, 0),
        (Check::Budget(255), 255, 0),
        (Check::Budget(255), 254, 0),
        (Check::Budget(1), 0, 0),
        (Check::Budget(1), i64::MIN, 0),
        (Check::Interrupt, 5, 0),
        // The bits below the sign identify the run.
        (Check::Interrupt, 5, u64::MAX >> 1),
        (Check::Interrupt, 5, 1 << 63),
        (Check::Interrupt, 5, u64::MAX),
    ] {
        for stack in [64, 600] {
            let mut callee = Build::new();
            let x = callee.param(0);
            let ctx = callee.ctx();
            callee.stack(stack);
            call_of_one(&mut callee, CallTarget::Extern(Symbol::new(1)), x, None);
            callee.op(Op::Check { check, ctx });
            callee.exit(x);
            let caller = around(3, true, &|b, r| {
                let target = CallTarget::Subprog(SubprogId(1));
                let args = [Some(r.y), None, None, None, None];
                b.op(Op::Call { target, args, ctx: Some(r.ctx), ret: Some(r.dst) });
            });
            let lir = Lir { funcs: vec![caller, callee.finish()] };
            let start = Start { budget, interrupt, ..Start::new([1, 2, 3, Start::MEMORY, 0], 32) };
            bench.compare(&format!("{check:?} {budget} {interrupt}"), &lir, &ways, &[start]);
        }
    }
}

/// Unsigned, against registers, slots and constants of every form, with outcomes known and unknown.
pub fn bounds(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(4, 2);
    let values = [0u64, 1, 5, 6, 4095, 4096, 1 << 24, 1 << 40, 1 << 41, u64::MAX - 1, u64::MAX];
    let starts: Vec<Start> =
        values.iter().flat_map(|x| values.map(|y| Start::new([*x, y, 3, Start::MEMORY, 0], 32))).step_by(2).collect();
    for limit in values.map(Some).into_iter().chain([None]) {
        let func = around(3, true, &|b, r| {
            let limit = limit.map_or(Val::Reg(r.y), |limit| Val::Imm(limit as i64));
            b.op(Op::Bound { a: r.x, limit, ctx: r.ctx });
            b.set(r.dst, 7);
        });
        bench.compare(&format!("bound {limit:x?}"), &Lir { funcs: vec![func] }, &ways, &starts);
    }
}

/// Every stop code, in the first function and in a callee.
pub fn stops(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(3, 1);
    for code in StopCode::ALL {
        let mut inner = Build::new();
        let (x, ctx) = (inner.param(0), inner.ctx());
        inner.set(x, 1);
        inner.op(Op::Stop { code, ctx });
        let inner = inner.finish();
        let mut outer = Build::new();
        let (x, ctx) = (outer.param(0), outer.ctx());
        call_of_one(&mut outer, CallTarget::Subprog(SubprogId(1)), x, Some(ctx));
        outer.exit(x);
        for funcs in [vec![inner.clone()], vec![outer.finish(), inner]] {
            bench.compare(&format!("{code:?}"), &Lir { funcs }, &ways, &[Start::new([0; 5], 4)]);
        }
    }
}

/// A loop that counts until the budget is spent, storing in each iteration.
pub fn loops_end_with_the_budget(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let [add, n, _, memory, _] = b.params();
    let ctx = b.ctx();
    let sum = b.imm(0);
    let first = b.block();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: sum, b: Val::Reg(add) });
    b.op(Op::Store { size: bpf_isa::Size::DW, mem: at(memory, 0), src: Val::Reg(sum) });
    b.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: n, a: n, b: Val::Imm(1) });
    b.op(Op::Check { check: Check::Interrupt, ctx });
    b.op(Op::Check { check: Check::Budget(1), ctx });
    b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: n, b: Val::Imm(0), target: first });
    b.block();
    b.exit(sum);
    let ways = bench.all_ways(4, 4);
    let starts = [1, 9, 10, 11].map(|n| Start { budget: 10, ..Start::new([7, n, 0, Start::MEMORY, 0], 4) });
    bench.compare("a loop", &b.alone(), &ways, &starts);
}
