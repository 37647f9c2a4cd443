//! The machine ABI (docs/book/reference/abi.md) by poisoning: every register that a call may overwrite is overwritten,
//! every register that it must preserve is looked at, and the stack is aligned wherever Rust is called.
//!
//! From inside: a host function fills all caller-saved registers before it returns, so a value that emitted code left
//! in one is lost. From outside: emitted code is entered with every register that carries nothing filled, and the
//! callee-saved ones compared after it.

use crate::support::{Variant, allocations, interpreter, jit, options, program, soak};
use bpf_jit_code::RunCtx;
use bpf_runtime::{Caller, Linker, Raw, code::Arch};
use bpf_testkit::generate::{self, HELPER_ID, Shape};
use bpf_testkit::skipped;
use zerocopy::IntoBytes;

/// The assembly of each architecture.
mod imp {
    /// The result of a call, and a bit for each callee-saved register that the call has changed.
    pub(super) struct Entered {
        pub(super) r0: u64,
        pub(super) changed: u64,
    }

    /// The value that registers are filled with: a pattern that is no valid address and differs by register.
    const POISON: u64 = 0x5a5a_0000_dead_0000;

    #[cfg(target_arch = "x86_64")]
    mod arch {
        use super::{Entered, POISON};
        use core::arch::{asm, global_asm};

        // fn(entry: rdi, args: *const [u64; 5]: rsi, ctx: rdx, changed: *mut u64: rcx) -> rax
        global_asm!(
            ".globl bpf_abi_test_enter",
            "bpf_abi_test_enter:",
            "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "push rcx",
            "mov r10, rdi", "mov r11, rsi", "mov r9, rdx",
            "mov rdi, [r11]", "mov rsi, [r11 + 8]", "mov rdx, [r11 + 16]", "mov rcx, [r11 + 24]", "mov r8, [r11 + 32]",
            "movabs rax, {poison}",
            "lea rbx, [rax + 1]", "lea rbp, [rax + 2]", "lea r12, [rax + 3]", "lea r13, [rax + 4]", "lea r14, [rax + 5]",
            "lea r15, [rax + 6]", "lea r11, [rax + 7]",
            "call r10",
            "movabs r10, {poison}",
            "xor r11d, r11d",
            "sub rbx, r10", "cmp rbx, 1", "setne r11b",
            "sub rbp, r10", "cmp rbp, 2", "setne cl", "shl r11, 1", "or r11b, cl",
            "sub r12, r10", "cmp r12, 3", "setne cl", "shl r11, 1", "or r11b, cl",
            "sub r13, r10", "cmp r13, 4", "setne cl", "shl r11, 1", "or r11b, cl",
            "sub r14, r10", "cmp r14, 5", "setne cl", "shl r11, 1", "or r11b, cl",
            "sub r15, r10", "cmp r15, 6", "setne cl", "shl r11, 1", "or r11b, cl",
            "pop rcx",
            "mov [rcx], r11",
            "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
            "ret",
            poison = const POISON,
        );

        unsafe extern "C" {
            fn bpf_abi_test_enter(entry: *const u8, args: *const [u64; 5], ctx: *mut u8, changed: *mut u64) -> u64;
        }

        pub(crate) unsafe fn enter(entry: *const u8, args: &[u64; 5], ctx: *mut u8) -> Entered {
            let mut changed = u64::MAX;
            // SAFETY: the caller's contract; the assembly saves what it fills.
            let r0 = unsafe { bpf_abi_test_enter(entry, args, ctx, &mut changed) };
            Entered { r0, changed }
        }

        pub(crate) fn poison_caller_saved() {
            // SAFETY: every register written is declared; memory and stack are not touched.
            unsafe {
                asm!(
                    "mov rcx, rax", "mov rdx, rax", "mov rsi, rax", "mov rdi, rax", "mov r8, rax", "mov r9, rax",
                    "mov r10, rax", "mov r11, rax",
                    inout("rax") POISON => _,
                    out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _,
                    out("r11") _,
                    options(nomem, nostack),
                );
            }
        }
    }

    #[cfg(target_arch = "aarch64")]
    mod arch {
        use super::{Entered, POISON};
        use core::arch::{asm, global_asm};

        // fn(entry: x0, args: *const [u64; 5]: x1, ctx: x2, changed: *mut u64: x3) -> x0
        global_asm!(
            ".globl bpf_abi_test_enter",
            "bpf_abi_test_enter:",
            "stp x29, x30, [sp, #-112]!",
            "stp x19, x20, [sp, #16]", "stp x21, x22, [sp, #32]", "stp x23, x24, [sp, #48]", "stp x25, x26, [sp, #64]",
            "stp x27, x28, [sp, #80]", "str x3, [sp, #96]",
            "mov x17, x0", "mov x16, x1", "mov x5, x2",
            "ldp x0, x1, [x16]", "ldp x2, x3, [x16, #16]", "ldr x4, [x16, #32]",
            "ldr x16, ={poison}",
            "add x19, x16, #1", "add x20, x16, #2", "add x21, x16, #3", "add x22, x16, #4", "add x23, x16, #5",
            "add x24, x16, #6", "add x25, x16, #7", "add x26, x16, #8", "add x27, x16, #9", "add x28, x16, #10",
            "add x29, x16, #11",
            "mov x6, x16", "mov x7, x16", "mov x8, x16", "mov x9, x16", "mov x10, x16", "mov x11, x16", "mov x12, x16",
            "mov x13, x16", "mov x14, x16", "mov x15, x16",
            "blr x17",
            "ldr x16, ={poison}",
            "mov x17, xzr",
            "sub x9, x19, x16", "cmp x9, #1", "cinc x17, x17, ne",
            "sub x9, x20, x16", "cmp x9, #2", "cinc x17, x17, ne",
            "sub x9, x21, x16", "cmp x9, #3", "cinc x17, x17, ne",
            "sub x9, x22, x16", "cmp x9, #4", "cinc x17, x17, ne",
            "sub x9, x23, x16", "cmp x9, #5", "cinc x17, x17, ne",
            "sub x9, x24, x16", "cmp x9, #6", "cinc x17, x17, ne",
            "sub x9, x25, x16", "cmp x9, #7", "cinc x17, x17, ne",
            "sub x9, x26, x16", "cmp x9, #8", "cinc x17, x17, ne",
            "sub x9, x27, x16", "cmp x9, #9", "cinc x17, x17, ne",
            "sub x9, x28, x16", "cmp x9, #10", "cinc x17, x17, ne",
            "sub x9, x29, x16", "cmp x9, #11", "cinc x17, x17, ne",
            "ldr x3, [sp, #96]",
            "str x17, [x3]",
            "ldp x19, x20, [sp, #16]", "ldp x21, x22, [sp, #32]", "ldp x23, x24, [sp, #48]", "ldp x25, x26, [sp, #64]",
            "ldp x27, x28, [sp, #80]",
            "ldp x29, x30, [sp], #112",
            "ret",
            ".ltorg",
            poison = const POISON,
        );

        unsafe extern "C" {
            fn bpf_abi_test_enter(entry: *const u8, args: *const [u64; 5], ctx: *mut u8, changed: *mut u64) -> u64;
        }

        pub(crate) unsafe fn enter(entry: *const u8, args: &[u64; 5], ctx: *mut u8) -> Entered {
            let mut changed = u64::MAX;
            // SAFETY: the caller's contract; the assembly saves what it fills.
            let r0 = unsafe { bpf_abi_test_enter(entry, args, ctx, &mut changed) };
            Entered { r0, changed }
        }

        pub(crate) fn poison_caller_saved() {
            // SAFETY: every register written is declared; memory and stack are not touched. (x18 belongs to the
            // platform.)
            unsafe {
                asm!(
                    "mov x1, x0", "mov x2, x0", "mov x3, x0", "mov x4, x0", "mov x5, x0", "mov x6, x0", "mov x7, x0",
                    "mov x8, x0", "mov x9, x0", "mov x10, x0", "mov x11, x0", "mov x12, x0", "mov x13, x0", "mov x14, x0",
                    "mov x15, x0", "mov x16, x0", "mov x17, x0",
                    inout("x0") POISON => _,
                    out("x1") _, out("x2") _, out("x3") _, out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _,
                    out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _,
                    out("x16") _, out("x17") _,
                    options(nomem, nostack),
                );
            }
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    mod arch {
        use super::Entered;

        pub(crate) unsafe fn enter(_: *const u8, _: &[u64; 5], _: *mut u8) -> Entered {
            unreachable!("no code is made on this architecture")
        }
        pub(crate) fn poison_caller_saved() {}
    }

    pub(super) use arch::{enter, poison_caller_saved};
}

/// The JIT in every variant.
fn variants() -> Vec<Variant> {
    jit().into_iter().chain(options()).chain(allocations(6)).collect()
}

/// The stack pointer's distance from alignment in a function that is called like a helper. Rust assumes alignment at
/// entry, so a local that is to be 16-byte aligned is where it should be only if the caller kept the rule.
#[inline(never)]
fn misalignment() -> usize {
    // 16-byte aligned. Not initialised: an aligned store would fault where this is to report.
    let local = core::mem::MaybeUninit::<u128>::uninit();
    // Past the optimiser, which knows that the answer must be 0.
    std::hint::black_box(local.as_ptr()).addr() % 16
}

#[test]
fn a_helper_may_overwrite_every_caller_saved_register() {
    let variants: Vec<Linker<u64>> = variants()
        .iter()
        .map(|variant| {
            let mut linker = Linker::new(&variant.engine);
            let mix = |c: &mut Caller<'_, u64>, a: u64, b: u64, c3: u64, d: u64, e: u64| {
                *c.host() += misalignment() as u64;
                let result = generate::helper([a, b, c3, d, e]);
                imp::poison_caller_saved();
                result
            };
            linker.func(HELPER_ID, "mix", mix).expect("a free id");
            linker
        })
        .collect();
    if variants.is_empty() {
        return skipped("a_helper_may_overwrite_every_caller_saved_register", &"no JIT for this host");
    }
    let interpreter = interpreter();
    let shape = Shape { statements: 40, subprogs: 3, ..Shape::default() };
    let mut calls = 0;
    for seed in 90_000..90_000 + soak(600) {
        let generated = generate::from_seed(seed, &shape);
        let insns = generated.program.insns();
        calls += insns.iter().filter(|i| matches!(i, bpf_isa::Insn::Call(bpf_isa::Callee::Helper(_)))).count();
        let (expected, _) = interpreter.run(insns, &generated.memory).expect("a result");
        let linker = &variants[seed as usize % variants.len()];
        // SAFETY: the interpreter has seen the program stay inside its memory and end.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let program = loader.insns("test", insns.to_vec()).expect("it loads");
        let mut words = vec![0u64; generated.memory.len().div_ceil(8)];
        words.as_mut_bytes()[..generated.memory.len()].copy_from_slice(&generated.memory);
        let mut misaligned = 0;
        let r0 = program.run(&mut misaligned, &mut words.as_mut_bytes()[..generated.memory.len()]).expect("a result");
        assert_eq!((r0, misaligned), (expected, 0), "seed {seed}\n{}", bpf_isa::disassemble(insns));
    }
    assert!(calls > 300, "only {calls} calls of the helper");
}

/// A misaligned stack would be seen: a control of [`misalignment`].
#[test]
#[cfg(target_arch = "x86_64")]
fn misalignment_is_seen() {
    extern "C" fn look() -> usize {
        misalignment()
    }
    let seen: usize;
    // SAFETY: the stack is moved by a word, back after the call; the registers that a call overwrites are declared.
    unsafe {
        core::arch::asm!(
            "push rbx", "mov rbx, rsp", "and rsp, -16", "sub rsp, 8", "call {look}", "mov rsp, rbx", "pop rbx",
            look = sym look, out("rax") seen, clobber_abi("C"),
        );
    }
    assert_eq!(seen, 8);
}

#[test]
fn emitted_code_preserves_the_callee_saved_registers() {
    let variants = variants();
    if Arch::HOST.is_none() {
        return skipped("emitted_code_preserves_the_callee_saved_registers", &"no JIT for this host");
    }
    let interpreter = interpreter();
    // No helper: one would need the runtime's own state behind the hidden argument.
    let shape = Shape { helper: false, statements: 40, subprogs: 3, ..Shape::default() };
    for seed in 95_000..95_000 + soak(600) {
        let generated = generate::from_seed(seed, &shape);
        let insns = generated.program.insns();
        let (expected, _) = interpreter.run(insns, &generated.memory).expect("a result");
        let variant = &variants[seed as usize % variants.len()];
        let program = variant.load(insns).expect("it loads");
        // The main program's entry is the code's first byte.
        let (_, base) = program.machine_code().expect("machine code");
        let mut words = vec![0u64; generated.memory.len().div_ceil(8)];
        words.as_mut_bytes()[..generated.memory.len()].copy_from_slice(&generated.memory);
        let at = words.as_mut_ptr() as u64;
        let mut ctx = RunCtx {
            tail_calls: 0,
            stop_code: 0,
            stop_insn: 0,
            interrupt: 0,
            budget: i64::MAX,
            stop_to: 0,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: at,
            packet_len: generated.memory.len() as u64,
            host_env: 0,
            slot: 0,
            context: at,
            stop_pc: 0,
            stop_sp: 0,
            stop_link: 0,
            thrown: 0,
            lent: [0; 5],
            allowance: i64::MAX,
            counters: 0,
        };
        let args = [at, generated.memory.len() as u64, 0x5a5a_0003, 0x5a5a_0004, 0x5a5a_0005];
        // SAFETY: the code stays while `program` lives; its memory and hidden argument are valid, and it makes no call.
        let entered = unsafe { imp::enter(base as *const u8, &args, (&raw mut ctx).cast()) };
        let text = bpf_isa::disassemble(insns);
        assert_eq!(entered.changed, 0, "seed {seed} on {}: a callee-saved register was changed\n{text}", variant.name);
        assert_eq!(entered.r0, expected, "seed {seed} on {}\n{text}", variant.name);
    }
}

/// Registers that a call clobbers have no value a program may rely on, but reading them is no reason to fail: an
/// unverified program reads an unspecified number.
#[test]
fn registers_that_were_clobbered_can_be_read() {
    let Some(jit) = jit() else { return skipped("clobbered registers", &"no JIT for this host") };
    let calls = [
        "call 7".to_owned(),
        "call sub".to_owned(),
        format!("call {HELPER_ID}"),
        "r0 = *(u8 *)skb[0]".to_owned(),
        "r2 = 0; r0 = *(u8 *)skb[r2 + 0]".to_owned(),
    ];
    for (call, reg) in calls.iter().flat_map(|call| (1..=5).map(move |reg| (call, reg))) {
        // Read in the same block; behind a join of a path with the call and one without; and in a loop around the call.
        let sub = if call == "call sub" { "; sub: r0 = 3; exit" } else { "" };
        for text in [
            format!("r6 = r1; {call}; r0 = r{reg}; exit{sub}"),
            format!("r6 = r1; if r1 == 0 goto join; {call}; join: r0 = r{reg}; exit{sub}"),
            format!(
                "r6 = r1; r7 = 3; again: r0 = r{reg}; {call}; r7 -= 1; if r7 != 0 goto again; r0 = r{reg}; exit{sub}"
            ),
        ] {
            for variant in [&jit, &interpreter()] {
                variant
                    .run(&program(&text), &[0; 64])
                    .unwrap_or_else(|error| panic!("{}: {text}: {error:?}", variant.name));
            }
        }
    }
}
