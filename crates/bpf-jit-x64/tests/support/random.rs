//! Random programs of every op. They compute in a few values, a memory argument and their stack; branches go forward
//! only.

use super::{Build, EDGES, Rng};
use bpf_isa::{Cond, Size, SubprogId, Width};
use bpf_jit::{AtomicOp, Base, BinOp, BlockId, CallTarget, Check, EmitOptions, Func, Lir, Mem, Op, VReg, Val};
use bpf_jit_code::{CpuFeatures, Hardening, Symbol};

/// Calls of external functions with this bit set in their number pass the hidden argument on.
pub(crate) const WITH_CTX: u32 = 8;

pub(crate) const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
pub(crate) const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::DW];
pub(crate) const BIN: [BinOp; 16] = [
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

/// The two kinds of CPU: without and with the optional instructions.
pub(crate) fn options() -> [EmitOptions; 2] {
    let features = [CpuFeatures::BASELINE, CpuFeatures::host()];
    features.map(|features| EmitOptions { features, ..EmitOptions::default() })
}

/// One random op on random values.
fn random_op(rng: &mut Rng, b: &mut Build, values: &[VReg], memory: VReg, ctx: VReg, has_callee: bool) {
    let dst = rng.pick(values);
    let a = rng.pick(values);
    let second = match rng.chance(3) {
        true => Val::Imm(rng.pick(&EDGES) as i64),
        false => Val::Reg(rng.pick(values)),
    };
    let width = rng.pick(&WIDTHS);
    let size = rng.pick(&SIZES);
    let slot = 8 * rng.below(8) as i32;
    let mem = match rng.chance(2) {
        true => Mem::new(Base::Reg(memory), slot),
        false => Mem::new(Base::Frame, slot - 64),
    };
    b.op(match rng.below(16) {
        0..4 => Op::Bin { op: rng.pick(&BIN), width, dst, a, b: second },
        4 => Op::Mov { width, dst, src: second },
        5 => Op::Ext { width, signed: rng.chance(2), from: rng.pick(&SIZES[..3]), dst, src: a },
        6 => Op::Neg { width, dst, src: a },
        7 => Op::Bswap { size: rng.pick(&SIZES[1..]), dst, src: a },
        8 => Op::AddShift { width, dst, a, b: rng.pick(values), shift: rng.below(4) as u8 },
        9 => Op::Select {
            width,
            cond: rng.pick(&Cond::ALL),
            a,
            b: second,
            dst,
            yes: rng.pick(values),
            no: rng.pick(values),
        },
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
            let op = rng.pick(&[AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg]);
            let fetch = (!rng.chance(3)).then_some(dst);
            Op::Atomic { op, width, mem, src: a, fetch }
        }
        13 => Op::CmpXchg { width, mem, expected: a, new: rng.pick(values), dst },
        14 => {
            let arity = rng.below(6);
            let args = core::array::from_fn(|i| (i < arity).then(|| rng.pick(values)));
            let ret = (!rng.chance(4)).then_some(dst);
            if has_callee && rng.chance(2) {
                let args = core::array::from_fn(|_| Some(rng.pick(values)));
                Op::Call { target: CallTarget::Subprog(SubprogId(1)), args, ctx: Some(ctx), ret }
            } else {
                let hidden = if rng.chance(2) { WITH_CTX } else { 0 };
                let target = CallTarget::Extern(Symbol::new(arity as u32 | hidden));
                Op::Call { target, args, ctx: (hidden != 0).then_some(ctx), ret }
            }
        }
        // Almost always below.
        _ if rng.chance(3) => Op::Bound { a: rng.pick(values), limit: Val::Imm(-1 << 20), ctx },
        _ => match rng.chance(2) {
            true => Op::Check { check: Check::Budget, ctx },
            false => Op::Check { check: Check::Interrupt, ctx },
        },
    });
}

/// A random function. Only forward branches; all it computes ends up in memory or in the result.
fn random_func(rng: &mut Rng, main: bool) -> Func {
    let mut b = Build::new();
    let count = 1 + rng.below(9);
    let mut values: Vec<VReg> = [0, 1, 2].map(|i| b.param(i)).to_vec();
    // The callee has no memory but its stack: its r4 is a value.
    let memory = b.param(3);
    let ctx = b.ctx();
    b.stack(64 + 8 * rng.below(20) as u32);
    for slot in 0..8 {
        let mem = Mem::new(Base::Frame, slot * 8 - 64);
        b.op(Op::Store { size: Size::DW, mem, src: Val::Imm(rng.next() as i64) });
    }
    let base = if main {
        memory
    } else {
        values.push(memory);
        let base = b.reg();
        b.op(Op::FrameAddr { dst: base, off: -64 });
        base
    };
    for _ in 0..count {
        let v = b.imm(rng.pick(&EDGES));
        values.push(v);
    }
    let blocks = rng.below(5) as u32;
    let first = b.block().0 + 1;
    for i in 0..blocks {
        for _ in 0..rng.below(12) {
            random_op(rng, &mut b, &values, base, ctx, main);
        }
        let target = BlockId(first + i + rng.below((blocks - i) as usize) as u32);
        let (width, cond) = (rng.pick(&WIDTHS), rng.pick(&Cond::ALL));
        let second = if rng.chance(2) { Val::Imm(rng.pick(&EDGES) as i64) } else { Val::Reg(rng.pick(&values)) };
        b.op(Op::Branch { width, cond, a: rng.pick(&values), b: second, target });
        assert_eq!(b.block().0, first + i);
    }
    for _ in 0..rng.below(12) {
        random_op(rng, &mut b, &values, base, ctx, main);
    }
    if main {
        for (i, v) in values.iter().enumerate() {
            b.store(memory, 64 + 8 * i as i32, *v);
        }
    }
    b.exit(rng.pick(&values));
    b.finish()
}

/// A program of two functions and the options to emit it with.
pub(crate) fn random_program(rng: &mut Rng) -> (Lir, EmitOptions) {
    let lir = Lir { funcs: vec![random_func(rng, true), random_func(rng, false)] };
    let hardening = Hardening { retpolines: rng.chance(4), landing_pads: rng.chance(4), return_signing: false };
    (lir, EmitOptions { hardening, save_all: rng.chance(4), ..rng.pick(&options()) })
}
