//! Random programs of all ops. They compute with a few values, a memory argument and their stack; branches go forward
//! only, and all values are live to the end.

use crate::Target;
use crate::bench::{Bench, Start};
use crate::build::{Build, at, in_frame};
use crate::host::{DATA, WITH_CTX};
use crate::kinds::{ATOMICS, BIN, EDGES, Rng, SIZES, WIDTHS};
use bpf_isa::{Cond, Size, SubprogId};
use bpf_jit::{Base, BinOp, BlockId, CallTarget, Check, Func, Lir, Mem, Op, VReg, Val};
use bpf_jit_code::{StopCode, Symbol};

/// Words of memory.
const WORDS: usize = 128;

/// The operands that the ops of a function may use.
struct Names {
    values: Vec<VReg>,
    /// In the first function the middle of the memory, in the other one the lowest address of its stack.
    base: VReg,
    ctx: VReg,
    main: bool,
}

impl Names {
    fn mem(&self, rng: &mut Rng) -> Mem {
        match (rng.chance(2), self.main) {
            (true, true) => at(self.base, 8 * (rng.below(60) as i32 - 30)),
            (true, false) => at(self.base, 8 * rng.below(8) as i32),
            (false, _) => in_frame(8 * rng.below(8) as i32 - 64),
        }
    }
}

/// One random op on random values.
fn random_op(rng: &mut Rng, b: &mut Build, names: &Names) {
    let Names { values, ctx, main, .. } = names;
    let ctx = *ctx;
    let dst = rng.pick(values);
    let a = rng.pick(values);
    let second = match rng.chance(3) {
        true => Val::Imm(rng.value() as i64),
        false => Val::Reg(rng.pick(values)),
    };
    let width = rng.pick(&WIDTHS);
    let size = rng.pick(&SIZES);
    let mem = names.mem(rng);
    let op = match rng.below(19) {
        0..4 => Op::Bin { op: rng.pick(&BIN), width, dst, a, b: second },
        4 => Op::Mov { width, dst, src: second },
        5 => Op::Ext { width, signed: rng.chance(2), from: rng.pick(&SIZES[..3]), dst, src: a },
        6 => Op::Neg { width, dst, src: a },
        7 => Op::Bswap { size: rng.pick(&SIZES[1..]), dst, src: a },
        8 => Op::AddShift { width, dst, a, b: rng.pick(values), shift: rng.below(4) as u8 },
        9 => {
            let (yes, no) = (rng.pick(values), rng.pick(values));
            match rng.chance(4) {
                true => Op::Confine { a, limit: second, dst, yes, no },
                false => Op::Select { width, cond: rng.pick(&Cond::ALL), a, b: second, dst, yes, no },
            }
        }
        10 => match rng.below(3) {
            0 => Op::Load { size, signed: false, swap: true, dst, mem },
            1 => Op::LoadAcquire { size, dst, mem },
            _ => Op::Load { size, signed: rng.chance(2), swap: false, dst, mem },
        },
        11 => match rng.chance(4) {
            true => Op::StoreRelease { size, mem, src: a },
            false => Op::Store { size, mem, src: second },
        },
        12 => {
            let fetch = (!rng.chance(3)).then_some(dst);
            Op::Atomic { op: rng.pick(&ATOMICS), width, mem, src: a, fetch }
        }
        13 => Op::CmpXchg { width, mem, expected: a, new: rng.pick(values), dst },
        14 => {
            let arity = rng.below(6);
            let args = core::array::from_fn(|i| (i < arity).then(|| rng.pick(values)));
            let ret = (!rng.chance(4)).then_some(dst);
            if *main && rng.chance(2) {
                let args = core::array::from_fn(|_| Some(rng.pick(values)));
                Op::Call { target: CallTarget::Subprog(SubprogId(1)), args, ctx: Some(ctx), ret }
            } else {
                let hidden = if rng.chance(2) { WITH_CTX } else { 0 };
                let target = CallTarget::Extern(Symbol::new(arity as u32 | hidden));
                Op::Call { target, args, ctx: (hidden != 0).then_some(ctx), ret }
            }
        }
        // Almost always below the limit.
        15 => Op::Bound { a, limit: Val::Imm(-1 << 20), ctx },
        16 => Op::Check {
            check: if rng.chance(2) { Check::Budget(1 + rng.below(3) as u8) } else { Check::Interrupt },
            ctx,
        },
        // The address must not reach the result, because it differs between code and evaluator.
        17 if rng.chance(2) => {
            let index = b.reg();
            b.op(Op::Bin { op: BinOp::And, width, dst: index, a, b: Val::Imm(3) });
            let (base, shift) = (names.base, rng.below(4) as u8);
            let mem = Mem::new(Base::Indexed { base, index, shift }, 8 * rng.below(4) as i32);
            match rng.chance(2) {
                true => Op::Load { size, signed: false, swap: rng.chance(3), dst, mem },
                false => Op::Store { size, mem, src: second },
            }
        }
        17 => {
            let address = b.reg();
            b.op(Op::FrameAddr { dst: address, off: -64 });
            Op::Load { size, signed: false, swap: false, dst, mem: at(address, 8 * rng.below(8) as i32) }
        }
        _ => match rng.below(3) {
            0 => Op::SymAddr { dst, symbol: Symbol::new(DATA + rng.below(100) as u32) },
            1 => Op::SubprogAddr { dst: b.reg(), subprog: SubprogId(rng.below(2) as u32) },
            // A direct site that is not linked.
            _ => {
                let key = bpf_jit::TailKey::Const { table: Symbol::new(77), index: rng.below(4) as u32 };
                Op::TailCall { key, arg: a, ctx, reload_len: rng.chance(2) }
            }
        },
    };
    b.op(op);
}

fn random_func(rng: &mut Rng, main: bool) -> Func {
    let mut b = Build::new();
    let mut values: Vec<VReg> = [0, 1, 2, 4].map(|i| b.param(i)).to_vec();
    let memory = b.param(3);
    let ctx = b.ctx();
    b.stack(64 + 8 * rng.below(20) as u32);
    for slot in 0..8 {
        let src = if rng.chance(2) { Val::Imm(rng.value() as i64) } else { Val::Reg(rng.pick(&values)) };
        b.op(Op::Store { size: Size::DW, mem: in_frame(slot * 8 - 64), src });
    }
    let base = if main {
        memory
    } else {
        // The callee has no memory except its stack: its r4 is a value.
        values.push(memory);
        let base = b.reg();
        b.op(Op::FrameAddr { dst: base, off: -64 });
        base
    };
    for _ in 0..1 + rng.below(9) {
        let value = rng.value();
        values.push(b.imm(value));
    }
    let names = Names { values, base, ctx, main };
    let blocks = rng.below(5) as u32;
    let first = b.block().0 + 1;
    for i in 0..blocks {
        for _ in 0..rng.below(12) {
            random_op(rng, &mut b, &names);
        }
        let target = BlockId(first + i + rng.below((blocks - i) as usize) as u32);
        let (width, cond, a) = (rng.pick(&WIDTHS), rng.pick(&Cond::ALL), rng.pick(&names.values));
        let second = if rng.chance(2) { Val::Imm(rng.value() as i64) } else { Val::Reg(rng.pick(&names.values)) };
        b.op(match rng.below(20) {
            0 => Op::Stop { code: rng.pick(&StopCode::ALL), ctx },
            1..4 => Op::Jump { target },
            _ => Op::Branch { width, cond, a, b: second, target },
        });
        assert_eq!(b.block().0, first + i);
    }
    for _ in 0..rng.below(12) {
        random_op(rng, &mut b, &names);
    }
    if main {
        b.keep(memory, 256, &names.values);
    }
    b.exit(rng.pick(&names.values));
    b.finish()
}

/// A program of two functions.
pub fn random_program(rng: &mut Rng) -> Lir {
    Lir { funcs: vec![random_func(rng, true), random_func(rng, false)] }
}

/// Tests as many programs as the target says; `BPF_SOAK=n` multiplies the number by n.
pub fn random_programs(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let soak: u64 = std::env::var("BPF_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in 0..bench.target().programs() * soak {
        let mut rng = Rng(seed);
        let lir = random_program(&mut rng);
        let starts: Vec<Start> = (0..3)
            .map(|_| {
                let mut args = core::array::from_fn(|_| rng.value());
                args[0] = rng.pick(&EDGES);
                args[3] = Start::MEMORY;
                let budget = if rng.chance(4) { rng.below(8) as i64 } else { 1000 };
                let interrupt = rng.value() >> 1 | u64::from(rng.chance(8)) << 63;
                Start { budget, interrupt, ..Start::new(args, WORDS) }
            })
            .collect();
        let ways = bench.some_ways(4, seed);
        bench.compare(&format!("seed {seed}"), &lir, &ways, &starts);
    }
}
