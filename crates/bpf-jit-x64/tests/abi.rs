//! The machine ABI of docs/abi.md, by poisoning: every register that one side may overwrite is overwritten, every
//! register it must keep is compared. `support::native` does so around every run of every test; here it is shown to
//! notice violations, and frames are measured.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::eval::Outcome;
use bpf_jit::{Base, BinOp, CallTarget, EmitOptions, Func, Lir, Mem, Op, Val};
use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
use bpf_jit_x64::X64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::native::{Placed, Start, stack_depths};
use support::{Build, allocations, emit};

fn raw(bytes: &[u8], call_at: Option<u32>) -> Code {
    let mut code = Code::new(Arch::X64);
    code.bytes.extend_from_slice(bytes);
    let reloc = |at| Reloc { at, kind: RelocKind::X64Rel32, symbol: Symbol::new(0) };
    code.relocs.extend(call_at.map(reloc));
    code
}

fn run_raw(bytes: &[u8], call_at: Option<u32>) -> Result<u64, String> {
    let placed = Placed::new(&raw(bytes, call_at));
    let start = Start::new([0; 5], vec![0; 8]);
    let run = catch_unwind(AssertUnwindSafe(|| placed.run(0, &start)));
    match run {
        Ok(run) => match run.outcome {
            Outcome::Exit(value) => Ok(value),
            other => Err(format!("{other:?}")),
        },
        Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_default()),
    }
}

/// Code that breaks the ABI in one way each is caught.
#[test]
fn violations_are_noticed() {
    assert_eq!(run_raw(&[0x31, 0xc0, 0xc3], None), Ok(0));
    // xor ebx, ebx; xor ebp, ebp; xor r12d, r12d and so on; ret.
    let clobbers: [&[u8]; 6] = [
        &[0x31, 0xdb],
        &[0x31, 0xed],
        &[0x45, 0x31, 0xe4],
        &[0x45, 0x31, 0xed],
        &[0x45, 0x31, 0xf6],
        &[0x45, 0x31, 0xff],
    ];
    for clobber in clobbers {
        let error = run_raw(&[clobber, &[0xc3]].concat(), None).unwrap_err();
        assert!(error.contains("callee-saved"), "{error}");
    }
    // call without aligning the stack; ret.
    let error = run_raw(&[0xe8, 0, 0, 0, 0, 0xc3], Some(1)).unwrap_err();
    assert!(error.contains("misaligned"), "{error}");
}

/// A call overwrites every register it may: push rax; call; pop r10 (not rcx); mov rax, reg; ret.
#[test]
fn calls_poison_what_they_may_overwrite() {
    let moves: [&[u8]; 7] = [
        &[0x48, 0x89, 0xc8],
        &[0x48, 0x89, 0xd0],
        &[0x48, 0x89, 0xf0],
        &[0x48, 0x89, 0xf8],
        &[0x4c, 0x89, 0xc0],
        &[0x4c, 0x89, 0xc8],
        &[0x4c, 0x89, 0xd8],
    ];
    for mov in moves {
        let code = [&[0x50, 0xe8, 0, 0, 0, 0, 0x41, 0x5a], mov, &[0xc3]].concat();
        assert_eq!(run_raw(&code, Some(2)), Ok(0xdead_0100_dead_0100));
    }
}

/// `live` values that live across an external call and a call of function `next`.
fn frame(live: usize, stack: u32, next: Option<u32>) -> Func {
    let mut b = Build::new();
    let x = b.param(0);
    b.stack(stack);
    let values: Vec<_> = (0..live).map(|i| b.imm(i as u64 * 0x1_0001)).collect();
    if stack > 0 {
        for off in (8..=stack as i32).step_by(8) {
            b.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Frame, -off), src: Val::Imm(0x55) });
        }
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

/// `frame_bytes` is exactly what a frame takes, and the stack is aligned at every call (the harness looks), whatever
/// mix of saved registers, slots and BPF stack a function has, and whatever it was called from.
#[test]
fn frames_are_as_large_as_stated_and_aligned() {
    let mut backend = X64::default();
    for save_all in [false, true] {
        let options = EmitOptions { save_all, ..EmitOptions::default() };
        for live in 0..9 {
            for stack in [0, 8, 16, 24, 512] {
                let lir = Lir {
                    funcs: vec![frame(live, stack, Some(1)), frame(8 - live, stack + 8, Some(2)), frame(live, 0, None)],
                };
                for alloc in allocations(&backend, &options, 4, live as u64) {
                    let code = emit(&mut backend, &lir, &alloc, &options);
                    Placed::new(&code).run(0, &Start::new([0; 5], vec![0; 8]));
                    let mut sum = 0;
                    let depths: Vec<u64> = code
                        .frame_bytes
                        .iter()
                        .map(|bytes| {
                            sum += u64::from(*bytes);
                            sum
                        })
                        .collect();
                    assert_eq!(stack_depths(), depths, "live {live} stack {stack} {alloc:?}");
                }
            }
        }
    }
}

/// A leaf whose values fit the caller-saved registers saves nothing and has no frame; a small stack is the red zone.
#[test]
fn leaves_have_no_frame() {
    let mut backend = X64::default();
    let options = EmitOptions::default();
    for stack in [0, 64] {
        let mut b = Build::new();
        let params = [0, 1, 2, 3, 4].map(|i| b.param(i));
        b.stack(stack);
        if stack > 0 {
            b.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Frame, -64), src: Val::Reg(params[0]) });
        }
        for p in &params[1..] {
            b.op(Op::Bin { op: BinOp::Xor, width: Width::W64, dst: params[0], a: params[0], b: Val::Reg(*p) });
        }
        b.exit(params[0]);
        let lir = Lir { funcs: vec![b.finish()] };
        let code = emit(&mut backend, &lir, &bpf_jit::AllocOptions::default(), &options);
        assert_eq!(code.frame_bytes, [8 + stack]);
        let insns: Vec<iced_x86::Mnemonic> =
            iced_x86::Decoder::new(64, &code.bytes, 0).into_iter().map(|i| i.mnemonic()).collect();
        assert!(!insns.contains(&iced_x86::Mnemonic::Push) && !insns.contains(&iced_x86::Mnemonic::Sub), "{insns:?}");
    }
}
