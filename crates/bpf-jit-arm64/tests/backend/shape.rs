//! The shape of emitted code: short forms are used, and no instruction is superfluous.
//!
//! The programs are compiled from BPF text; other tests check their results. Registers in the expected text are the
//! allocator's choice and may change; the instructions matter.

use bpf_analysis::{CallArity, Facts};
use bpf_isa::{Program, assemble};
use bpf_jit::{CompileOptions, Compiler, Hidden, Signatures};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code, CpuFeatures};

/// Helpers with one argument and without the hidden one.
struct OneArgument;

impl CallArity for OneArgument {
    fn helper(&self, _: u32) -> u8 {
        1
    }
    fn host(&self, _: i32) -> u8 {
        1
    }
}

impl Signatures for OneArgument {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Nothing
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Nothing
    }
}

fn options() -> CompileOptions {
    let mut options = CompileOptions::default();
    options.emit.features = CpuFeatures::BASELINE;
    // The tests look at the code of single instructions.
    options.plain = true;
    options
}

fn compile(text: &str, options: &CompileOptions) -> Code {
    let program = Program::new(assemble(text).unwrap()).unwrap();
    let mut code = Code::new(Arch::Arm64);
    Compiler::new(Arm64::default()).compile(&program, &Facts::default(), &OneArgument, options, &mut code).unwrap();
    code
}

fn listing(text: &str, options: &CompileOptions) -> Vec<String> {
    let code = compile(text, options);
    let lines = bpf_disasm::lines(&code, &|s| format!("symbol{}", s.index)).unwrap();
    lines.into_iter().map(|line| line.text).collect()
}

fn shape(text: &str) -> Vec<String> {
    listing(text, &options())
}

#[test]
fn an_empty_program_is_two_instructions() {
    assert_eq!(shape("r0 = 0\nexit"), ["mov x0, #0x0", "ret"]);
    let mut o = options();
    o.emit.hardening.return_signing = true;
    assert_eq!(listing("r0 = 0\nexit", &o).len(), 2, "a leaf's return address never leaves the register");
    o.emit.hardening.landing_pads = true;
    assert_eq!(listing("r0 = 0\nexit", &o), ["hint #0x22", "mov x0, #0x0", "ret"]);
}

#[test]
fn values_are_where_calls_and_exits_want_them() {
    assert_eq!(shape("r0 = r1\nexit"), ["ret"]);
    assert_eq!(shape("r0 = r1\nr0 += r2\nexit"), ["add x0, x0, x1", "ret"]);
    assert_eq!(
        shape("call 7\nr1 = r0\ncall 7\nexit"),
        ["stp x30, xzr, [sp, #-0x10]!", "bl symbol7", "bl symbol7", "ldp x30, xzr, [sp], #0x10", "ret"]
    );
}

#[test]
fn only_what_lives_across_calls_is_saved() {
    assert_eq!(
        shape("r6 = r1\ncall 7\nr0 += r6\nexit"),
        [
            "stp x19, x30, [sp, #-0x10]!",
            "mov x19, x0",
            "bl symbol7",
            "add x0, x0, x19",
            "ldp x19, x30, [sp], #0x10",
            "ret"
        ]
    );
    let all = {
        let mut o = options();
        o.emit.save_all = true;
        listing("r0 = 0\nexit", &o)
    };
    assert_eq!(all.iter().filter(|l| l.starts_with("stp")).count(), 6, "ten registers and the return address");
}

#[test]
fn signed_return_addresses_are_authenticated_on_every_way_out() {
    let mut o = options();
    o.emit.hardening.return_signing = true;
    o.emit.hardening.landing_pads = true;
    let text =
        "r6 = r1\ncall 7\nif r0 == 0 goto L\nr0 = r6\nexit\nL:\nr1 = r6\nr2 = map[fd:2]\nr3 = 1\ncall 12\nr0 = 2\nexit";
    let code = listing(text, &o);
    assert_eq!(code[0], "paciasp", "which is a landing pad, too");
    assert_eq!(code.iter().filter(|l| *l == "autiasp").count(), 2, "{code:#?}");
    for (i, line) in code.iter().enumerate().filter(|(_, l)| *l == "ret" || l.starts_with("br ")) {
        assert_eq!(code[i - 1], "autiasp", "before {line}");
    }
}

#[test]
fn the_stack_is_made_and_removed_with_the_saves() {
    assert_eq!(
        shape("*(u64 *)(r10 - 8) = r1\nr0 = *(u64 *)(r10 - 8)\nexit"),
        ["sub sp, sp, #0x10", "str x0, [sp, #0x8]", "ldr x0, [sp, #0x8]", "add sp, sp, #0x10", "ret"]
    );
    assert_eq!(
        shape("*(u64 *)(r10 - 24) = r1\ncall 7\nr0 = *(u64 *)(r10 - 24)\nexit"),
        [
            "stp x30, xzr, [sp, #-0x20]!",
            "str x0, [sp, #0x8]",
            "bl symbol7",
            "ldr x0, [sp, #0x8]",
            "ldp x30, xzr, [sp], #0x20",
            "ret"
        ]
    );
}

#[test]
fn an_epilogue_longer_than_a_branch_is_shared() {
    let code = shape("r6 = r1\ncall 7\nif r0 == 0 goto L\nr0 = r6\nexit\nL:\nr0 = 2\nexit");
    assert_eq!(code.iter().filter(|l| *l == "ret").count(), 1, "{code:#?}");
    let leaf = shape("if r1 == 0 goto L\nr0 = 3\nexit\nL:\nr0 = 2\nexit");
    assert_eq!(leaf.iter().filter(|l| *l == "ret").count(), 2, "{leaf:#?}");
}

/// The instructions of `if cond goto L`, without their targets.
fn comparison(cond: &str) -> Vec<String> {
    let mut code = shape(&format!("r0 = 1\nif {cond} goto L\nr0 = 2\nL:\nexit"));
    code.truncate(code.len() - 2); // r0 = 2, ret
    code.split_off(1)
}

#[test]
fn comparisons_need_no_flags_where_one_instruction_branches() {
    for (cond, code) in [
        ("r2 == 0", "cbz x1"),
        ("w2 == 0", "cbz w1"),
        ("r2 != 0", "cbnz x1"),
        ("r2 > 0", "cbnz x1"),
        ("r2 < 1", "cbz x1"),
        ("r2 s< 0", "tbnz x1, #0x3f"),
        ("r2 s> -1", "tbz x1, #0x3f"),
        ("w2 s>= 0", "tbz w1, #0x1f"),
        ("r2 & 64", "tbnz w1, #0x6"),
    ] {
        let got = comparison(cond);
        assert_eq!(got.len(), 1, "{cond}: {got:?}");
        assert!(got[0].starts_with(code), "{cond}: {got:?}");
    }
}

#[test]
fn comparisons_take_their_constant_along() {
    for (cond, code) in [
        ("r2 == 4095", "cmp x1, #0xfff"),
        ("r2 == 4096", "cmp x1, #0x1, lsl #12"),
        ("r2 == -5", "cmn x1, #0x5"),
        ("r2 > 4096", "cmp x1, #0x1, lsl #12"),
        ("r2 > 0xffff", "cmp x1, #0x10, lsl #12"),
        ("w2 s<= 0x1fff", "cmp w1, #0x2, lsl #12"),
        ("r2 & 0xff0", "tst x1, #0xff0"),
    ] {
        let got = comparison(cond);
        assert_eq!(got.len(), 2, "{cond}: {got:?}");
        assert_eq!(got[0], code, "{cond}");
    }
    assert_eq!(comparison("r2 == 0x12345").len(), 3);
    assert_eq!(comparison("r2 >= 0").len(), 1, "always");
    assert_eq!(comparison("r2 < 0").len(), 0, "never");
}

#[test]
fn arithmetic_with_constants() {
    let one = |line: &str| {
        let code = shape(&format!("r0 = r1\n{line}\nexit"));
        assert_eq!(code.len(), 2, "{line}: {code:?}");
        code[0].clone()
    };
    assert_eq!(one("r0 += 4095"), "add x0, x0, #0xfff");
    assert_eq!(one("r0 += -4096"), "sub x0, x0, #0x1, lsl #12");
    assert_eq!(one("w0 &= 0xff00ff"), "and w0, w0, #0xff00ff");
    assert_eq!(one("r0 &= -16"), "and x0, x0, #0xfffffffffffffff0");
    assert_eq!(one("r0 ^= -1"), "eon x0, x0, xzr");
    assert_eq!(one("r0 *= 8"), "lsl x0, x0, #0x3");
    assert_eq!(one("r0 *= 9"), "add x0, x0, x0, lsl #3");
    assert_eq!(one("w0 /= 16"), "lsr w0, w0, #0x4");
    assert_eq!(one("w0 %= 16"), "and w0, w0, #0xf");
    assert_eq!(shape("r0 = r1\nr0 %= r2\nexit").len(), 3);
    assert_eq!(shape("r0 = 0x5555555555555555 ll\nexit").len(), 2);
    assert_eq!(shape("r0 = 0xffffffffffff1234 ll\nexit").len(), 2);
    assert_eq!(shape("r0 = 0x1234000000005678 ll\nexit").len(), 3);
}

/// Regression (semantics.md 2.8): displacements that span a two-slot instruction, a jump back to the very first
/// instruction, and one to the next. The listing is refused if a branch does not lead to an instruction.
#[test]
fn branches_over_two_slots_and_to_the_start() {
    let code = shape(
        "L:\nr1 += -1\nif r1 == 7 goto N\nr0 = 0x123456789abcdef ll\nN:\nif r1 != 0 goto L\ngoto +0\nr0 = 1\nexit",
    );
    assert!(code.iter().any(|l| l.starts_with("cbnz x0, sub0")), "{code:#?}");
    assert!(!code.iter().any(|l| l.starts_with("b ")), "a jump to the next instruction is none: {code:#?}");
}

/// Regression (semantics.md 2.8): a literal that straddles its alignment. There are no literals: constants and
/// addresses are moved.
#[test]
fn nothing_is_loaded_from_the_code() {
    let code = compile("r1 = map[fd:3]\nr2 = 0x123456789abcdef ll\nr0 = *(u64 *)(r1 + 0)\nr0 += r2\nexit", &options());
    for word in code.bytes.chunks(4) {
        let word = u32::from_le_bytes(word.try_into().unwrap());
        assert_ne!(word & 0x3b00_0000, 0x1800_0000, "{word:#x}: ldr (literal)");
    }
}

/// Ordering cannot be tested by running (qemu does not model weak memory), so it is pinned here: fetching atomics are
/// ordered, others relaxed.
#[test]
fn atomics_are_ordered_as_the_kernels() {
    for (line, lse, exclusive) in [
        ("lock *(u64 *)(r1 + 0) += r2", "stadd", "ldxr add stxr cbnz"),
        ("lock *(u32 *)(r1 + 0) |= w2", "stset", "ldxr orr stxr cbnz"),
        ("lock *(u64 *)(r1 + 0) &= r2", "mvn stclr", "ldxr and stxr cbnz"),
        ("lock *(u64 *)(r1 + 0) ^= r2", "steor", "ldxr eor stxr cbnz"),
        ("r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)", "ldaddal", "ldxr add stlxr cbnz dmb"),
        ("w2 = atomic_fetch_or((u32 *)(r1 + 0), w2)", "ldsetal", "ldxr orr stlxr cbnz dmb"),
        ("r2 = atomic_fetch_and((u64 *)(r1 + 0), r2)", "mvn ldclral", "ldxr and stlxr cbnz dmb"),
        ("r2 = atomic_fetch_xor((u64 *)(r1 + 0), r2)", "ldeoral", "ldxr eor stlxr cbnz dmb"),
        ("r2 = xchg_64(r1 + 0, r2)", "swpal", "ldxr stlxr cbnz dmb"),
        ("r2 = load_acquire((u64 *)(r1 + 0))", "ldar", "ldar"),
        ("store_release((u8 *)(r1 + 0), w2)", "stlrb", "stlrb"),
    ] {
        let text = format!("{line}\nr0 = r2\nexit");
        let mnemonics = |features| {
            let mut o = options();
            o.emit.features = features;
            let code = listing(&text, &o);
            let code: Vec<&str> = code.iter().map(|l| l.split(' ').next().unwrap()).collect();
            // The move of the result to x0, and the return, are of no interest.
            code.into_iter().filter(|m| !["mov", "ret"].contains(m)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(mnemonics(CpuFeatures::ALL), lse, "{line}");
        assert_eq!(mnemonics(CpuFeatures::BASELINE), exclusive, "{line}");
    }
    let exchange = "r0 = r3\nr0 = cmpxchg_64(r1 + 0, r0, r2)\nexit";
    assert!(shape(exchange).join(" ").contains("dmb"));
    let mut o = options();
    o.emit.features = CpuFeatures::ALL;
    assert!(listing(exchange, &o).join(" ").contains("casal"));
}
