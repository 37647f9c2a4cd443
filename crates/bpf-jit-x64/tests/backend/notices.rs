//! The suite fails a wrong backend: for each kind of op, a backend that emits another op instead.
//!
//! The mistake is made in the program before the backend sees it, so that the emitted code is sound code for another
//! program, whose accesses are still in bounds.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use crate::support::Native;
use bpf_isa::{Size, Width};
use bpf_jit::{Alloc, AtomicOp, Check, EmitError, EmitOptions, Lir, MachineDesc, Op, VReg, Val};
use bpf_jit_code::{Arch, Code, Reloc, StopCode, Symbol};
use bpf_jit_suite::{Host, Kind, Target, tests};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn other_width(width: Width) -> Width {
    match width {
        Width::W32 => Width::W64,
        Width::W64 => Width::W32,
    }
}

fn other_value(value: Val) -> Val {
    match value {
        Val::Imm(imm) => Val::Imm(imm ^ 1),
        Val::Reg(_) => Val::Imm(5),
    }
}

/// Returns a similar op with another meaning.
fn mistaken(op: Op) -> Op {
    match op {
        Op::Mov { width, dst, src } => Op::Mov { width: other_width(width), dst, src },
        Op::Ext { width, signed, from, dst, src } => Op::Ext { width, signed: !signed, from, dst, src },
        Op::Bin { op, width, dst, a, b } => Op::Bin { op, width: other_width(width), dst, a, b },
        Op::Neg { width, dst, src } | Op::AddShift { width, dst, a: src, .. } => {
            Op::Mov { width, dst, src: Val::Reg(src) }
        }
        Op::Bswap { dst, src, .. } => Op::Mov { width: Width::W64, dst, src: Val::Reg(src) },
        Op::Select { width, cond, a, b, dst, yes, no } => Op::Select { width, cond, a, b, dst, yes: no, no: yes },
        Op::Confine { a, limit, dst, yes, no } => Op::Confine { a, limit, dst, yes: no, no: yes },
        Op::FrameAddr { dst, off } => Op::FrameAddr { dst, off: off - 1 },
        Op::SymAddr { dst, symbol } => Op::SymAddr { dst, symbol: Symbol::new(symbol.index + 1) },
        Op::SubprogAddr { dst, subprog } => Op::SubprogAddr { dst, subprog: bpf_isa::SubprogId(subprog.0.max(1)) },
        Op::Load { size, signed, dst, mem, .. } => Op::Load { size, signed: !signed, swap: false, dst, mem },
        Op::Store { size, mem, src } => Op::Store { size, mem, src: other_value(src) },
        Op::LoadAcquire { dst, mem, .. } => Op::LoadAcquire { size: Size::B, dst, mem },
        Op::StoreRelease { mem, src, .. } => Op::StoreRelease { size: Size::B, mem, src },
        Op::Atomic { op, width, mem, src, fetch } => {
            let op = if op == AtomicOp::Add { AtomicOp::Or } else { AtomicOp::Add };
            Op::Atomic { op, width, mem, src, fetch }
        }
        Op::CmpXchg { width, mem, new, dst, .. } => Op::CmpXchg { width, mem, expected: new, new, dst },
        Op::Call { target, mut args, ctx, ret } => {
            args.reverse();
            Op::Call { target, args, ctx, ret }
        }
        Op::TailCall { key, arg, ctx, reload_len } => Op::TailCall { key, arg, ctx, reload_len: !reload_len },
        Op::Check { check: Check::Budget(_), ctx } => Op::Check { check: Check::Interrupt, ctx },
        Op::Check { check: Check::Interrupt, ctx } => Op::Check { check: Check::Budget(1), ctx },
        Op::Bound { a, limit, ctx } => Op::Bound { a, limit: other_value(limit), ctx },
        Op::Stop { code, ctx } => {
            let code = if code == StopCode::Host { StopCode::Budget } else { StopCode::Host };
            Op::Stop { code, ctx }
        }
        Op::Jump { .. } => Op::Exit { value: VReg(0) },
        Op::Branch { width, cond, a, b, target } => Op::Branch { width: other_width(width), cond, a, b, target },
        Op::Exit { .. } => Op::Exit { value: VReg(0) },
    }
}

/// The test that must detect the mistake. Random programs contain no tail calls, addresses of subprograms or frames, or
/// bounds.
fn witness(kind: Kind) -> fn(&mut dyn Target) {
    match kind {
        Kind::TailCall => tests::indirect_tail_calls,
        Kind::SubprogAddr => tests::far_subprogram_addresses,
        Kind::FrameAddr => tests::frames,
        Kind::Bound => tests::bounds,
        _ => tests::random_programs,
    }
}

/// A backend that is wrong about one kind of op.
struct Mistaken {
    native: Native,
    kind: Kind,
    /// Whether the backend refused a mistaken op, which is no wrong code.
    refused: bool,
}

impl Target for Mistaken {
    fn arch(&self) -> Arch {
        self.native.arch()
    }
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        self.native.machine(options)
    }
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        let mut lir = lir.clone();
        for op in lir.funcs.iter_mut().flat_map(|func| &mut func.ops).filter(|op| Kind::of(op) == self.kind) {
            *op = mistaken(*op);
        }
        let result = self.native.emit(&lir, allocs, options, code);
        self.refused |= result.is_err();
        result
    }
    fn size_bound(&self, _: &Lir) -> usize {
        usize::MAX
    }
    fn options(&self) -> [EmitOptions; 4] {
        self.native.options()
    }
    fn assert_decodes(&self, code: &Code) {
        self.native.assert_decodes(code);
    }
    fn stub(&self, symbol: u32) -> Vec<u8> {
        self.native.stub(symbol)
    }
    fn relocate(&self, bytes: &mut [u8], address: u64, reloc: &Reloc, to: u64) {
        self.native.relocate(bytes, address, reloc, to);
    }
    fn data_address(&self, symbol: u32) -> u64 {
        self.native.data_address(symbol)
    }
    fn branch(&self, distance: i64) -> Vec<u8> {
        self.native.branch(distance)
    }
    fn nop(&self) -> Vec<u8> {
        self.native.nop()
    }
    fn host(&self) -> Option<Host> {
        self.native.host()
    }
    fn programs(&self) -> u64 {
        self.native.programs()
    }
}

#[test]
fn a_mistake_about_any_op_is_noticed() {
    let missed: Vec<&Kind> = Kind::ALL
        .iter()
        .filter(|kind| {
            let mut backend = Mistaken { native: Native::default(), kind: **kind, refused: false };
            let passed = catch_unwind(AssertUnwindSafe(|| witness(**kind)(&mut backend))).is_ok();
            passed || backend.refused
        })
        .collect();
    assert!(missed.is_empty(), "no test noticed what is wrong about {missed:?}");
}
