//! Tail calls: taken and not taken, from main programs and subprograms, indirect and patched.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::eval::Outcome;
use bpf_jit::{AllocOptions, Base, BinOp, CallTarget, EmitOptions, Func, Lir, Mem, Op, TailKey, VReg, Val};
use bpf_jit_code::{Code, Hardening, PatchSlot, RunCtx, Symbol, TAIL_CALL_LIMIT, TailTarget};
use bpf_jit_x64::X64;
use support::native::{Placed, Run, Start, evaluate};
use support::{Build, allocations, emit};

/// Where the table lies in the memory argument, and how many entries it has.
const TABLE: usize = 64;
const ENTRIES: u32 = 4;

fn all_options() -> [EmitOptions; 2] {
    [false, true].map(|on| EmitOptions {
        hardening: Hardening { retpolines: on, landing_pads: on, ..Hardening::default() },
        save_all: on,
        ..EmitOptions::default()
    })
}

/// `r0 = 3 * r1 + r2 + tail calls taken`, with r2 only if the site loads it.
fn target(with_len: bool) -> Func {
    let mut b = Build::new();
    let x = b.param(0);
    let len = with_len.then(|| b.param(1));
    let ctx = b.ctx();
    b.stack(32);
    let taken = b.reg();
    let mem = Mem::new(Base::Reg(ctx), RunCtx::TAIL_CALLS_OFFSET);
    b.op(Op::Load { size: Size::W, signed: false, swap: false, dst: taken, mem });
    b.op(Op::Bin { op: BinOp::Mul, width: Width::W64, dst: x, a: x, b: Val::Imm(3) });
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Reg(taken) });
    if let Some(len) = len {
        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Reg(len) });
    }
    b.exit(x);
    b.finish()
}

/// A site in the middle of live values, a stack, and optionally a call that needs saved registers; what falls through
/// is stored.
fn site(key: Option<u32>, reload_len: bool, stack: u32, call: bool) -> Func {
    let mut b = Build::new();
    let [x, y, z] = [0, 1, 2].map(|i| b.param(i));
    let memory = b.param(3);
    let ctx = b.ctx();
    if stack > 0 {
        b.stack(stack);
        b.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Frame, -8), src: Val::Reg(y) });
    }
    if call {
        b.op(Op::Call { target: CallTarget::Extern(Symbol::new(0)), args: [None; 5], ctx: None, ret: None });
    }
    let table = b.reg();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: table, a: memory, b: Val::Imm(TABLE as i64) });
    let key = match key {
        None => TailKey::Dynamic { table, index: z },
        Some(index) => TailKey::Const { table: Symbol::new(77), index },
    };
    b.op(Op::TailCall { key, arg: x, ctx, reload_len });
    for (i, v) in [x, y, z].into_iter().enumerate() {
        b.store(memory, 8 * i as i32, v);
    }
    if stack > 0 {
        let mem = Mem::new(Base::Frame, -8);
        b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: y, mem });
    }
    b.exit(y);
    b.finish()
}

/// Table with the entries `entry, 0, entry, entry`.
fn memory(entry: u64) -> Vec<u8> {
    let mut memory = vec![0x5a; TABLE];
    memory.extend_from_slice(&ENTRIES.to_le_bytes());
    memory.extend_from_slice(&[0xff; 4]);
    for e in [entry, 0, entry, entry] {
        memory.extend_from_slice(&e.to_le_bytes());
    }
    // What a wrong index would find.
    memory.extend_from_slice(&[0x11; 64]);
    memory
}

/// Places `code` and behind it the target; returns the target's offset.
fn place(code: &Code, with_len: bool, options: &EmitOptions) -> (Placed, usize, Lir) {
    let lir = Lir { funcs: vec![target(with_len)] };
    let callee = emit(&mut X64::default(), &lir, &AllocOptions::default(), options);
    let mut placed = Placed::new(code);
    let at = placed.end.next_multiple_of(16);
    placed.write(at, &callee.bytes);
    (placed, at, lir)
}

/// The evaluator's run, going on into the target.
fn expected(lir: &Lir, target: &Lir, start: &Start) -> Run {
    let mut run = evaluate(lir, start);
    if let Outcome::TailCall { arg, len, .. } = run.outcome {
        let next = Start { tail_calls: run.tail_calls, ..Start::new([arg, len.unwrap_or(0), 0, 0, 0], vec![]) };
        run.outcome = evaluate(target, &next).outcome;
    }
    run
}

#[test]
fn indirect() {
    let mut backend = X64::default();
    let mut taken = 0;
    for options in all_options() {
        for reload_len in [false, true] {
            for (stack, call) in [(0, false), (16, false), (24, true), (0, true), (200, false)] {
                let lir = Lir { funcs: vec![site(None, reload_len, stack, call)] };
                for alloc in allocations(&backend, &options, 12, u64::from(stack)) {
                    let code = emit(&mut backend, &lir, &alloc, &options);
                    assert_eq!(code.tail_calls.len(), 1);
                    assert_eq!(code.tail_calls[0].target, TailTarget::Indirect);
                    let (placed, at, target) = place(&code, reload_len, &options);
                    // The index has 32 bits: what is above them does not count.
                    for index in [0, 1, 2, 3, 4, 5, 7, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 2 | 1 << 63, 5 | 1 << 32] {
                        for tail_calls in [0, 1, TAIL_CALL_LIMIT - 1, TAIL_CALL_LIMIT, TAIL_CALL_LIMIT + 1, u32::MAX] {
                            let args = [0x1234_5678_9abc, 0x77, index, 0, 0];
                            let start = Start { tail_calls, ..Start::new(args, memory(placed.address(at))) };
                            let want = expected(&lir, &target, &start);
                            taken += u32::from(want.tail_calls != tail_calls);
                            let what =
                                format!("index {index:#x} after {tail_calls}, stack {stack}, {alloc:?} {options:?}");
                            assert_eq!(placed.run(0, &start), want, "{what}\n{:x?}", code.bytes);
                        }
                    }
                }
            }
        }
    }
    assert!(taken > 1000);
}

/// A program that calls itself: the limit counts jumps taken, and only those.
#[test]
fn the_limit_counts_jumps_taken() {
    let mut backend = X64::default();
    let mut b = Build::new();
    let x = b.param(0);
    let memory_ = b.param(3);
    let ctx = b.ctx();
    let _ = memory_;
    let one = b.imm(1);
    let zero = b.imm(0);
    // r1 is the memory itself: the target's r1 too.
    b.op(Op::Atomic {
        op: bpf_jit::AtomicOp::Add,
        width: Width::W64,
        mem: Mem::new(Base::Reg(x), 0),
        src: one,
        fetch: None,
    });
    let table = b.reg();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: table, a: x, b: Val::Imm(TABLE as i64) });
    let call = |b: &mut Build, index: VReg| {
        b.op(Op::TailCall { key: TailKey::Dynamic { table, index }, arg: x, ctx, reload_len: false })
    };
    // An empty slot and one out of range first: they do not count.
    call(&mut b, one);
    let out = b.imm(ENTRIES.into());
    call(&mut b, out);
    call(&mut b, zero);
    b.exit(one);
    let lir = Lir { funcs: vec![b.finish()] };
    for options in all_options() {
        for alloc in allocations(&backend, &options, 8, 5) {
            let code = emit(&mut backend, &lir, &alloc, &options);
            let placed = Placed::new(&code);
            // r1 = r4 = the memory: a trampoline copies it.
            let mut trampoline = vec![0x48, 0x89, 0xcf, 0xe9];
            let at = placed.end.next_multiple_of(16);
            trampoline.extend_from_slice(&(-(at as i32 + 8)).to_le_bytes());
            let mut placed = placed;
            placed.write(at, &trampoline);
            let mut start = Start::new([0; 5], memory(placed.address(0)));
            start.memory[..8].fill(0);
            let run = placed.run(at, &start);
            assert_eq!(run.outcome, Outcome::Exit(1));
            assert_eq!(run.tail_calls, TAIL_CALL_LIMIT);
            assert_eq!(run.memory[..8], u64::from(TAIL_CALL_LIMIT + 1).to_le_bytes());
        }
    }
}

/// A subprogram that tail-calls returns the target's result to its own caller, whose registers and stack are intact.
#[test]
fn from_a_subprogram() {
    let mut backend = X64::default();
    let caller = {
        let mut b = Build::new();
        let params = [0, 1, 2, 3].map(|i| b.param(i));
        let ctx = b.ctx();
        b.stack(40);
        b.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Frame, -40), src: Val::Reg(params[1]) });
        let ret = b.reg();
        let args = [Some(params[0]), Some(params[1]), Some(params[2]), Some(params[3]), None];
        b.op(Op::Call { target: CallTarget::Subprog(SubprogId(1)), args, ctx: Some(ctx), ret: Some(ret) });
        let kept = b.reg();
        let mem = Mem::new(Base::Frame, -40);
        b.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: kept, mem });
        for v in [params[0], params[1], params[2], kept] {
            b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: ret, a: ret, b: Val::Reg(v) });
        }
        b.exit(ret);
        b.finish()
    };
    for options in all_options() {
        for (stack, call) in [(0, false), (8, true), (136, false)] {
            let lir = Lir { funcs: vec![caller.clone(), site(None, true, stack, call)] };
            for alloc in allocations(&backend, &options, 12, 9) {
                let code = emit(&mut backend, &lir, &alloc, &options);
                let (placed, at, _) = place(&code, true, &options);
                let (x, y) = (0x1000, 0x77);
                for (index, result) in [(0, 3 * x + 1 + 99), (1, y), (2, 3 * x + 1 + 99), (9, y)] {
                    let start = Start::new([x, y, index, 0, 0], memory(placed.address(at)));
                    let run = placed.run(0, &start);
                    assert_eq!(run.outcome, Outcome::Exit(result + x + y + index + y), "{index} {alloc:?} {options:?}");
                }
            }
        }
    }
}

fn jmp(from: PatchSlot, to: usize) -> Vec<u8> {
    let rel = to as i32 - (from.at() + from.len()) as i32;
    [&[0xe9][..], &rel.to_le_bytes()].concat()
}

/// A direct site in each of its states, at every alignment.
#[test]
fn direct() {
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    let mut backend = X64::default();
    for options in all_options() {
        for (stack, call) in [(0, false), (16, true), (1 << 13, true)] {
            let lir = Lir { funcs: vec![site(Some(3), true, stack, call)] };
            for alloc in allocations(&backend, &options, 24, u64::from(stack)) {
                let code = emit(&mut backend, &lir, &alloc, &options);
                let TailTarget::Direct { table, index, bypass, target, out } = code.tail_calls[0].target else {
                    panic!("a constant site is direct")
                };
                assert_eq!((table, index), (Symbol::new(77), 3));
                let slot = |s: PatchSlot| &code.bytes[s.at() as usize..(s.at() + s.len()) as usize];
                assert_eq!(slot(bypass), jmp(bypass, out as usize));
                assert_eq!(slot(target), NOP);
                assert_eq!(target.at() + target.len(), out);

                let (mut placed, at, callee) = place(&code, true, &options);
                let start = Start::new([0x1000, 0x77, 0, 0, 0], memory(0));
                let linked = Start { linked: Some(1), ..start.clone() };
                let full = Start { tail_calls: TAIL_CALL_LIMIT, ..start.clone() };
                let falls = expected(&lir, &callee, &start);
                let jumps = expected(&lir, &callee, &linked);
                assert_ne!(falls.outcome, jumps.outcome);
                assert_eq!(placed.run(0, &start), falls, "unlinked");
                placed.write(target.at() as usize, &jmp(target, at));
                assert_eq!(placed.run(0, &start), falls, "armed");
                placed.write(bypass.at() as usize, &NOP);
                assert_eq!(placed.run(0, &start), jumps, "linked");
                assert_eq!(placed.run(0, &full), expected(&lir, &callee, &full), "at the limit");
                placed.write(bypass.at() as usize, &jmp(bypass, out as usize));
                assert_eq!(placed.run(0, &start), falls, "draining");
            }
        }
    }
}
