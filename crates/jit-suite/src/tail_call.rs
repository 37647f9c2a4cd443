//! Tail calls: taken and not taken, from main programs and subprograms, indirect and patched.

use crate::Target;
use crate::bench::{Bench, Start, Way};
use crate::build::{Build, at, in_frame};
use crate::call::{hash, hashed};
use crate::host::{Run, Text};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::eval::Outcome;
use bpf_jit::{AtomicOp, BinOp, CallTarget, Func, Lir, Op, TailKey, Val};
use bpf_jit_code::{Code, PatchSlot, RunCtx, Symbol, TAIL_CALL_LIMIT, TailTarget};

/// Words of memory.
const WORDS: usize = 48;
/// The table's offset from the memory's middle, and its number of entries.
const TABLE: i32 = 64;
const ENTRIES: u32 = 4;
/// The table of direct sites.
const DIRECT: Symbol = Symbol::new(77);

/// `r0 = 3 * r1 + r2 + tail calls taken`, with r2 only if the site loads it.
fn target_program(with_len: bool) -> Lir {
    let mut b = Build::new();
    let x = b.param(0);
    let len = with_len.then(|| b.param(1));
    let ctx = b.ctx();
    b.stack(32);
    let taken = b.reg();
    let mem = at(ctx, RunCtx::TAIL_CALLS_OFFSET);
    b.op(Op::Load { size: Size::W, signed: false, swap: false, dst: taken, mem });
    b.op(Op::Bin { op: BinOp::Mul, width: Width::W64, dst: x, a: x, b: Val::Imm(3) });
    for v in [Some(taken), len].into_iter().flatten() {
        b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Reg(v) });
    }
    b.exit(x);
    b.alone()
}

/// A site amid live values, with a stack, and optionally a call that needs saved registers; falling through is
/// recorded in memory. The index of a dynamic site is r3.
fn site(key: Option<u32>, reload_len: bool, stack: u32, call: bool) -> Func {
    let mut b = Build::new();
    let [x, y, z, memory] = [0, 1, 2, 3].map(|i| b.param(i));
    let ctx = b.ctx();
    if stack > 0 {
        b.stack(stack);
        b.op(Op::Store { size: Size::DW, mem: in_frame(-8), src: Val::Reg(y) });
    }
    let mixed = b.reg();
    b.op(Op::Bin { op: BinOp::Xor, width: Width::W64, dst: mixed, a: x, b: Val::Reg(y) });
    if call {
        b.op(Op::Call { target: CallTarget::Extern(Symbol::new(0)), args: [None; 5], ctx: None, ret: None });
    }
    let table = b.reg();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: table, a: memory, b: Val::Imm(TABLE.into()) });
    let key = match key {
        None => TailKey::Dynamic { table, index: z },
        Some(index) => TailKey::Const { table: DIRECT, index },
    };
    b.op(Op::TailCall { key, arg: x, ctx, reload_len });
    b.keep(memory, 0, &[x, y, z, mixed]);
    if stack > 0 {
        b.load_to(y, in_frame(-8));
    }
    b.exit(y);
    b.finish()
}

const MEMORY: u64 = Start::MEMORY;

/// A start with the table `entry, 0, entry, entry`, followed by the data that a wrong index would read.
fn start(args: [u64; 5], entry: u64) -> Start {
    let mut start = Start::new(args, WORDS);
    let table = WORDS / 2 + TABLE as usize / 8;
    start.memory[table] = u64::from(ENTRIES) | 0xffff_ffff << 32;
    start.memory[table + 1..table + 5].copy_from_slice(&[entry, 0, entry, entry]);
    start.memory[table + 5..].fill(0x1111_1111_1111_1111);
    start
}

/// Emits a program and the target with one way of compiling, and places them one after the other.
fn place(bench: &mut Bench<'_>, lir: &Lir, target: &Lir, way: &Way) -> (Code, Option<Text>) {
    let code = bench.emit(lir, way);
    let callee = bench.emit(target, way);
    let text = bench.place(&[code.clone(), callee], way.1.hardening.landing_pads);
    (code, text)
}

/// The evaluator's run, continued in the target.
fn expected(bench: &Bench<'_>, lir: &Lir, target: &Lir, start: &Start) -> Run {
    let mut run = bench.evaluate(lir, start);
    if let Outcome::TailCall { arg, len, .. } = run.outcome {
        let next = Start { tail_calls: run.tail_calls(), ..Start::new([arg, len.unwrap_or(0), 0, 0, 0], 0) };
        run.outcome = bench.evaluate(target, &next).outcome;
    }
    run
}

const SITES: [(u32, bool); 5] = [(0, false), (16, false), (24, true), (0, true), (200, false)];

/// Every index and count around the limits. Regression (the kernel's arm64 JIT): an index has 32 bits, and higher
/// bits are ignored.
pub fn indirect_tail_calls(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut taken = [0; 2];
    for reload_len in [false, true] {
        let callee = target_program(reload_len);
        for (stack, call) in SITES {
            let lir = Lir { funcs: vec![site(None, reload_len, stack, call)] };
            for way in bench.all_ways(3, u64::from(stack)) {
                let (code, text) = place(bench, &lir, &callee, &way);
                assert_eq!(code.tail_calls.len(), 1);
                assert_eq!(code.tail_calls[0].target, TailTarget::Indirect);
                let Some(text) = text else { continue };
                for index in [0, 1, 2, 3, 4, 5, 7, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 2 | 1 << 63, 5 | 1 << 32] {
                    for tail_calls in [0, 1, TAIL_CALL_LIMIT - 1, TAIL_CALL_LIMIT, TAIL_CALL_LIMIT + 1, u32::MAX] {
                        let args = [0x1234_5678_9abc, 0x77, index, MEMORY, 0];
                        let start = Start { tail_calls, ..start(args, text.entries[1]) };
                        let want = expected(bench, &lir, &callee, &start);
                        taken[usize::from(want.tail_calls() != tail_calls)] += 1;
                        let got = bench.run(text.entries[0], &start);
                        assert_eq!(got, want, "index {index:#x} after {tail_calls}, stack {stack}, {way:?}");
                    }
                }
            }
        }
    }
    assert!(bench.target().host().is_none() || taken.iter().all(|n| *n > 1000), "{taken:?}");
}

/// A program that tail-calls itself: the limit counts taken jumps only.
pub fn the_limit_counts_jumps_taken(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    // The memory, which is passed to the target again.
    let x = b.param(0);
    let ctx = b.ctx();
    let (one, zero) = (b.imm(1), b.imm(0));
    b.op(Op::Atomic { op: AtomicOp::Add, width: Width::W64, mem: at(x, 0), src: one, fetch: None });
    let table = b.reg();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: table, a: x, b: Val::Imm(TABLE.into()) });
    // First an empty slot and an index out of range: they do not count.
    let out = b.imm(ENTRIES.into());
    for index in [one, out, zero] {
        let key = TailKey::Dynamic { table, index };
        b.op(Op::TailCall { key, arg: x, ctx, reload_len: false });
    }
    b.exit(one);
    let lir = b.alone();
    for way in bench.all_ways(8, 5) {
        let code = bench.emit(&lir, &way);
        let Some(text) = bench.place(&[code], way.1.hardening.landing_pads) else { continue };
        let mut start = start([MEMORY, 0, 0, 0, 0], text.entries[0]);
        start.memory[WORDS / 2] = 0;
        let run = bench.run(text.entries[0], &start);
        assert_eq!(run.outcome, Outcome::Exit(1), "{way:?}");
        assert_eq!(run.tail_calls(), TAIL_CALL_LIMIT, "{way:?}");
        assert_eq!(run.memory[WORDS / 2], u64::from(TAIL_CALL_LIMIT) + 1, "{way:?}");
    }
}

/// A subprogram that makes a tail call returns the target's result to its own caller, whose registers and stack are
/// intact. The limit holds for the whole run.
pub fn tail_calls_from_subprograms(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let params = b.params();
    let ctx = b.ctx();
    b.stack(40);
    b.op(Op::Store { size: Size::DW, mem: in_frame(-40), src: Val::Reg(params[1]) });
    let mut values = params[..3].to_vec();
    for _ in 0..2 {
        let ret = b.reg();
        let target = CallTarget::Subprog(SubprogId(1));
        b.op(Op::Call { target, args: params.map(Some), ctx: Some(ctx), ret: Some(ret) });
        values.push(ret);
    }
    values.push(b.load(in_frame(-40)));
    let all = hash(&mut b, &values);
    b.exit(all);
    let caller = b.finish();
    let callee = target_program(true);
    for (stack, call) in SITES {
        let lir = Lir { funcs: vec![caller.clone(), site(None, true, stack, call)] };
        for way in bench.all_ways(6, 9) {
            let (_, text) = place(bench, &lir, &callee, &way);
            let Some(text) = text else { continue };
            let (x, y) = (0x1000, 0x77);
            for index in [0, 1, 2, 9] {
                for before in [0, TAIL_CALL_LIMIT - 1, TAIL_CALL_LIMIT] {
                    let mut count = before;
                    let mut one = || {
                        if [0, 2].contains(&index) && count < TAIL_CALL_LIMIT {
                            count += 1;
                            3 * x + u64::from(count) + 99
                        } else {
                            y
                        }
                    };
                    let want = hashed(&[x, y, index, one(), one(), y]);
                    let start = Start { tail_calls: before, ..start([x, y, index, MEMORY, 0], text.entries[1]) };
                    let run = bench.run(text.entries[0], &start);
                    assert_eq!(run.outcome, Outcome::Exit(want), "{index} after {before}, {way:?}");
                    assert_eq!(run.tail_calls(), count);
                }
            }
        }
    }
}

/// A direct site in each of its states, at every alignment.
pub fn direct_tail_calls(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let callee = target_program(true);
    for (stack, call) in [(0, false), (16, true), (24, true), (1 << 13, true)] {
        let lir = Lir { funcs: vec![site(Some(3), true, stack, call)] };
        for way in bench.all_ways(12, u64::from(stack)) {
            let (code, text) = place(bench, &lir, &callee, &way);
            let [site] = code.tail_calls[..] else { panic!("{:?}", code.tail_calls) };
            let TailTarget::Direct { table: DIRECT, index: 3, bypass, target: jump, out } = site.target else {
                panic!("a constant site is direct: {site:?}")
            };
            let slot = |slot: PatchSlot| &code.bytes[slot.at() as usize..(slot.at() + slot.len()) as usize];
            let around = bench.target().branch((out - bypass.at()).into());
            let nop = bench.target().nop();
            assert_eq!(slot(bypass), around);
            assert_eq!(slot(jump), nop);
            assert_eq!(jump.at() + jump.len(), out);

            let Some(text) = text else { continue };
            let at = |slot: PatchSlot| text.starts[0] + u64::from(slot.at());
            let there = bench.target().branch((text.entries[1] - at(jump)) as i64);
            let start = Start::new([0x1000, 0x77, 0, MEMORY, 0], WORDS);
            let linked = Start { linked: Some(text.entries[1]), ..start.clone() };
            let last = Start { tail_calls: TAIL_CALL_LIMIT - 1, ..linked.clone() };
            let full = Start { tail_calls: TAIL_CALL_LIMIT, ..start.clone() };
            let [falls, jumps, jumps_last, falls_full] =
                [&start, &linked, &last, &full].map(|start| expected(bench, &lir, &callee, start));
            assert_ne!(falls.outcome, jumps.outcome);
            let entry = text.entries[0];
            assert_eq!(bench.run(entry, &start), falls, "unlinked");
            bench.patch(&text, at(jump), &there);
            assert_eq!(bench.run(entry, &start), falls, "armed");
            bench.patch(&text, at(bypass), &nop);
            assert_eq!(bench.run(entry, &start), jumps, "linked");
            assert_eq!(bench.run(entry, &last), jumps_last, "the last one");
            assert_eq!(bench.run(entry, &full), falls_full, "at the limit");
            bench.patch(&text, at(bypass), &around);
            assert_eq!(bench.run(entry, &start), falls, "draining");
        }
    }
}
