//! Tests of this machine's ABI: landing pads that are checked, branches that become two, and violations that the
//! suite's entry sequence notices.

use crate::support::Native;
use bpf_isa::Width;
use bpf_jit::{AllocOptions, BinOp, BlockId, Cond, Lir, Op, Val};
use bpf_jit_suite::{Bench, Build, Target};

/// One function in which every kind of branch leads `filler` instructions forward, over nothing but additions.
fn far(filler: u32) -> Lir {
    let mut b = Build::new();
    let [x, y, _, step, add] = b.params();
    let sum = b.imm(0);
    let kinds = [
        (Cond::Eq, Val::Imm(0)),
        (Cond::Ne, Val::Imm(0)),
        (Cond::SLt, Val::Imm(0)),
        (Cond::SGe, Val::Imm(0)),
        (Cond::Set, Val::Imm(4)),
        (Cond::Gt, Val::Imm(100)),
        (Cond::SLe, Val::Reg(y)),
    ];
    let last = BlockId(kinds.len() as u32 + 1);
    let bin = |op, dst, b| Op::Bin { op, width: Width::W64, dst, a: dst, b };
    for (i, (cond, operand)) in kinds.into_iter().enumerate() {
        b.op(bin(BinOp::Add, sum, Val::Imm(1 << i)));
        b.op(bin(BinOp::Sub, x, Val::Reg(step)));
        b.op(Op::Branch { width: Width::W64, cond, a: x, b: operand, target: last });
        b.block();
    }
    for _ in 0..filler {
        b.op(bin(BinOp::Add, sum, Val::Reg(add)));
    }
    b.block();
    b.exit(sum);
    b.alone()
}

/// Beyond 32 KiB a `tbz` and beyond 1 MiB a `b.cond` or `cbz` becomes its inverse over a `b`: one word more each. (What
/// they do is the suite's `far_branches`.)
#[test]
fn branches_beyond_their_reach_take_a_word_more() {
    let mut native = Native::default();
    let plain = native.options()[0];
    let mut bench = Bench::new(&mut native);
    let way = (AllocOptions::default(), plain);
    let near = bench.emit(&far(1), &way).bytes.len();
    for (filler, words) in [(8000, 0), (8300, 3), (270_000, 7)] {
        assert_eq!(bench.emit(&far(filler), &way).bytes.len() - near, 4 * (filler as usize - 1 + words), "{filler}");
    }
}

/// The negative controls of the suite: code that breaks the ABI is noticed when it runs.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
mod violations {
    use super::*;
    use crate::support::{native::checks_landing_pads, skipped};
    use bpf_jit::EmitOptions;
    use bpf_jit::eval::Outcome;
    use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
    use bpf_jit_suite::Start;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const RET: u32 = 0xd65f_03c0;

    /// Runs these words, with a call of a function outside in place of the zero.
    fn run(words: &[u32]) -> Result<Outcome, String> {
        let mut code = Code::new(Arch::Arm64);
        for word in words {
            if *word == 0 {
                let at = code.bytes.len() as u32;
                code.relocs.push(Reloc { at, kind: RelocKind::Arm64Branch26, symbol: Symbol::new(0) });
            }
            let bl = 0x9400_0000u32;
            code.bytes.extend_from_slice(&(if *word == 0 { bl } else { *word }).to_le_bytes());
        }
        let mut native = Native::default();
        let mut bench = Bench::new(&mut native);
        let text = bench.place(&[code], false).expect("a host");
        let run = catch_unwind(AssertUnwindSafe(|| bench.run(text.entries[0], &Start::new([0; 5], 0))));
        match run {
            Ok(run) => Ok(run.outcome),
            Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_default()),
        }
    }

    /// Each callee-saved register, and the stack pointer at a call.
    #[test]
    fn violations_are_noticed() {
        // mov x0, #0; ret
        assert_eq!(run(&[0xd280_0000, RET]), Ok(Outcome::Exit(0)));
        for reg in 19..29 {
            // mov xN, #0; ret
            let error = run(&[0xd280_0000 | reg, RET]).unwrap_err();
            assert!(error.contains("callee-saved"), "x{reg}: {error}");
        }
        // mov x9, x30; mov x10, sp; sub sp, sp, #8; bl; add sp, sp, #8; x30 is lost, so: a second frame keeps it.
        // stp x29, x30, [sp, #-16]!; sub sp, sp, #8; bl; add sp, sp, #8; ldp x29, x30, [sp], #16; ret
        let error = run(&[0xa9bf_7bfd, 0xd100_23ff, 0, 0x9100_23ff, 0xa8c1_7bfd, RET]).unwrap_err();
        assert!(error.contains("misaligned"), "{error}");
    }

    /// A call overwrites every register it may: stp x29, x30, [sp, #-16]!; bl; ldp x29, x30, [sp], #16; mov x0, xN;
    /// ret.
    #[test]
    fn calls_poison_what_they_may_overwrite() {
        for reg in 1..18u32 {
            let mov = 0xaa00_03e0 | reg << 16;
            let outcome = run(&[0xa9bf_7bfd, 0, 0xa8c1_7bfd, mov, RET]);
            let Ok(Outcome::Exit(value)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(value & 0xfff, if reg == 17 { 0xead } else { 0xdad }, "x{reg} is {value:#x}");
        }
    }

    /// The signal that ends a child process which runs `body`, if one does.
    fn fatal_signal(body: impl FnOnce()) -> Option<i32> {
        // SAFETY: the child calls `body` and leaves; `body` runs emitted code and takes no lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            body();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    /// The negative control of every run with landing pads on: without one, the same call is fatal.
    #[test]
    fn a_missing_landing_pad_is_fatal() {
        if !checks_landing_pads() {
            return skipped("a_missing_landing_pad_is_fatal", "no branch target identification here");
        }
        let mut native = Native::default();
        let options: [EmitOptions; 4] = native.options();
        let mut bench = Bench::new(&mut native);
        let [bare, padded] = [options[0], options[2]].map(|options| {
            let mut b = Build::new();
            let x = b.param(0);
            b.exit(x);
            bench.emit(&b.alone(), &(AllocOptions::default(), options))
        });
        let text = bench.place(&[bare, padded], true).expect("a host");
        let start = Start::new([0; 5], 0);
        let mut signal = |code: usize| {
            fatal_signal(|| {
                bench.run(text.entries[code], &start);
            })
        };
        assert_eq!(signal(0), Some(libc::SIGILL));
        assert_eq!(signal(1), None);
    }
}
