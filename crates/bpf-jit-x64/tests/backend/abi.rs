//! The machine ABI of docs/book/reference/abi.md, by poisoning: every register that one side may overwrite is
//! overwritten, every register it must keep is compared. `support::native` does so around every run of the suite; here
//! it is shown to notice violations, and leaves are shown to have no frame.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use crate::support::Native;
use crate::support::native::POISON;
use bpf_isa::{Size, Width};
use bpf_jit::eval::Outcome;
use bpf_jit::{AllocOptions, Base, BinOp, EmitOptions, Mem, Op, Val};
use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
use bpf_jit_suite::{Bench, Build, Start};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn raw(bytes: &[u8], call_at: Option<u32>) -> Code {
    let mut code = Code::new(Arch::X64);
    code.bytes.extend_from_slice(bytes);
    let reloc = |at| Reloc { at, kind: RelocKind::X64Rel32, symbol: Symbol::new(0) };
    code.relocs.extend(call_at.map(reloc));
    code
}

fn run_raw(bytes: &[u8], call_at: Option<u32>) -> Result<u64, String> {
    let mut native = Native::default();
    let mut bench = Bench::new(&mut native);
    let text = bench.place(&[raw(bytes, call_at)], false).expect("a host");
    let run = catch_unwind(AssertUnwindSafe(|| bench.run(text.entries[0], &Start::new([0; 5], 0))));
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
        assert_eq!(run_raw(&code, Some(2)), Ok(POISON));
    }
}

/// A leaf whose values fit the caller-saved registers saves nothing and has no frame; a small stack is the red zone.
#[test]
fn leaves_have_no_frame() {
    let mut native = Native::default();
    let mut bench = Bench::new(&mut native);
    for stack in [0, 64] {
        let mut b = Build::new();
        let params = b.params();
        b.stack(stack);
        if stack > 0 {
            b.op(Op::Store { size: Size::DW, mem: Mem::new(Base::Frame, -64), src: Val::Reg(params[0]) });
        }
        for p in &params[1..] {
            b.op(Op::Bin { op: BinOp::Xor, width: Width::W64, dst: params[0], a: params[0], b: Val::Reg(*p) });
        }
        b.exit(params[0]);
        let code = bench.emit(&b.alone(), &(AllocOptions::default(), EmitOptions::default()));
        assert_eq!(code.frames[0].bytes, 8 + stack);
        let insns: Vec<iced_x86::Mnemonic> =
            iced_x86::Decoder::new(64, &code.bytes, 0).into_iter().map(|i| i.mnemonic()).collect();
        assert!(!insns.contains(&iced_x86::Mnemonic::Push) && !insns.contains(&iced_x86::Mnemonic::Sub), "{insns:?}");
    }
}
