//! Tests pruning against its definition: a program is safe if each of its paths, walked alone, is safe.
//!
//! The programs store numbers and pointers of several kinds to a few stack slots (whole, in part, through pointers, in
//! a subprogram), load them again and use them where only some kinds of values are allowed. Their branches test fresh
//! random numbers, so every combination of outcomes is a path. A path alone is the same program with each branch made a
//! jump one way.

use crate::common;

use bpf_isa::{Insn, Program, assemble};
use bpf_testkit::generate::Choices;
use bpf_verifier::{Stats, Verifier, VerifyError};
use std::fmt::Write;

/// Branches of a program at most: 2^this paths are walked alone.
const BRANCHES: usize = 5;

/// Calls put their own stack slots in the way, and read the caller's through a pointer.
const SUBPROGS: &str = "
reader:
    r0 = *(u64 *)(r1 + 0)
    *(u64 *)(r10 - 8) = r0
    exit
writer:
    *(u64 *)(r10 - 16) = 7
    *(u64 *)(r1 + 0) = 1
    r0 = 0
    exit
busy:
    call 7
    *(u64 *)(r10 - 8) = r0
    r0 = *(u64 *)(r10 - 8)
    r0 &= 3
    exit
early:
    r6 = r2
    r9 = r1
    *(u64 *)(r10 - 8) = 5
    r0 = *(u8 *)skb[0]
    r1 = *(u64 *)(r10 - 8)
    *(u64 *)(r9 + 0) = r1
    r0 = 0
    exit
round:
    r9 = r2
    r6 = *(u64 *)(r9 + 0)
    r7 = *(u64 *)(r9 + 48)
    *(u64 *)(r10 - 8) = r7
    r0 = *(u8 *)skb[0]
    r7 = *(u64 *)(r10 - 8)
    *(u64 *)(r9 + 56) = 1
    r0 = 0
    exit
";

struct Text<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    branches: usize,
    labels: usize,
}

impl Text<'_, '_> {
    fn line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.text, "{line}").expect("a string");
    }

    /// The offset of one of three slots from r10.
    fn slot(&mut self) -> i32 {
        -8 * (1 + self.c.below(3) as i32)
    }

    /// A pointer to the bytes at an offset, in this register.
    fn pointer(&mut self, reg: &str, off: i32) {
        self.line(format_args!("{reg} = r10\n{reg} += {off}"));
    }

    fn statement(&mut self, depth: u32) {
        let slot = self.slot();
        match self.c.below(20) {
            0..=3 => {
                let what = self.c.pick(&["0", "1", "9", "r6", "r7", "r9"]);
                self.line(format_args!("*(u64 *)(r10 {slot:+}) = {what}"));
            }
            4 => self.line(format_args!("*(u32 *)(r10 {slot:+}) = 2")),
            5 => self.line(format_args!("*(u8 *)(r10 {:+}) = 0", slot + 5)),
            // A store across two slots.
            6 => self.line(format_args!("*(u32 *)(r10 {:+}) = 0", slot + 6 - 8)),
            7 | 8 => {
                self.line(format_args!("r2 = *(u64 *)(r10 {slot:+})"));
                self.use_r2();
            }
            9 => {
                let size = self.c.pick(&["u8", "u16", "u32"]);
                self.line(format_args!("r2 = *({size} *)(r10 {slot:+})"));
                self.use_r2();
            }
            10 => {
                // Written at one of two places.
                self.line("call 7\nr0 &= 8\nr3 = r10\nr3 += -16\nr3 += r0");
                self.line("*(u64 *)(r3 + 0) = r7");
            }
            11 => {
                self.pointer("r2", slot);
                self.line("r1 = map[fd:0]\n*(u32 *)(r10 - 28) = 1\ncall 1");
            }
            // A helper writes one byte at least, eight at most.
            12 => {
                self.line("r2 = r7\nr2 &= 7\nr2 += 1");
                self.pointer("r1", slot);
                self.line("call 16");
            }
            13 => {
                self.pointer("r1", slot);
                let callee = self.c.pick(&["reader", "writer", "busy"]);
                self.line(format_args!("call {callee}"));
            }
            14 => {
                self.pointer("r1", slot);
                self.line("r2 = r6\ncall early");
            }
            15 => {
                self.line("*(u64 *)(r10 - 64) = r6\nr1 = 3\nr2 = subprog[round]\nr4 = 0");
                self.pointer("r3", -64);
                self.line("call 181");
            }
            16 => self.line("r0 = *(u16 *)skb[r7]"),
            _ if depth < 2 && self.branches < BRANCHES => {
                self.branches += 1;
                self.labels += 1;
                let label = self.labels;
                self.line(format_args!("call 7\nif r0 > 5 goto l{label}"));
                for _ in 0..self.c.below(3) {
                    self.statement(depth + 1);
                }
                if self.c.one_in(2) {
                    self.line(format_args!("goto e{label}\nl{label}:"));
                    self.statement(depth + 1);
                    self.line(format_args!("e{label}:\nr0 = 0"));
                } else {
                    self.line(format_args!("l{label}:\nr0 = 0"));
                }
            }
            _ => {}
        }
    }

    /// A use that only some values allow.
    fn use_r2(&mut self) {
        match self.c.below(6) {
            // A small number.
            0 => self.line("r3 = r10\nr3 += -56\nr3 += r2\n*(u8 *)(r3 + 0) = 1"),
            // The context.
            1 => self.line("r0 = *(u32 *)(r2 + 12)"),
            // A number.
            2 => self.line("r2 += 1\nr2 *= 3"),
            3 => self.line("if r2 > 3 goto +1\nr2 = 0"),
            // Anything that may be read.
            _ => {}
        }
    }
}

fn generate(c: &mut Choices<'_>) -> Program {
    let mut text = Text { c, text: String::new(), branches: 0, labels: 0 };
    text.line("r6 = r1\ncall 7\nr7 = r0\nr7 &= 7\nr9 = r10\nr9 += -40\n*(u64 *)(r10 - 32) = 0");
    for slot in 1..=3 {
        if !text.c.one_in(4) {
            text.line(format_args!("*(u64 *)(r10 - {}) = 3", 8 * slot));
        }
    }
    for _ in 0..10 {
        text.statement(0);
    }
    text.line("r0 = 0\nexit");
    text.text.push_str(SUBPROGS);
    Program::new(assemble(&text.text).expect("it assembles")).expect("it is valid")
}

fn verify(verifier: &mut Verifier, program: Program) -> Result<Stats, Box<VerifyError>> {
    common::with_env(";skb", |env| verifier.verify(program, env).map(|verified| verified.stats()))
}

/// The branches on fresh random numbers.
fn branches(program: &Program) -> Vec<usize> {
    let insns = program.insns();
    let random =
        |i: &usize| matches!(insns[*i], Insn::JumpIf { .. }) && insns[i - 1] == Insn::Call(bpf_isa::Callee::Helper(7));
    (1..insns.len()).filter(random).collect()
}

/// The program with its branches made jumps: bit i says whether branch i is taken.
fn path(program: &Program, branches: &[usize], taken: u32) -> Program {
    let mut insns = program.insns().to_vec();
    for (i, at) in branches.iter().enumerate() {
        let Insn::JumpIf { off, .. } = insns[*at] else { unreachable!("a branch") };
        let off = if taken >> i & 1 != 0 { off.into() } else { 0 };
        insns[*at] = Insn::Jump { off, wide: false };
    }
    Program::new(insns).expect("its jumps lead where the branches did")
}

#[test]
fn a_program_is_accepted_if_and_only_if_each_of_its_paths_is() {
    let mut verifier = Verifier::new();
    let (mut accepted, mut refused, mut pruned) = (0, 0, 0);
    for seed in 0..10_000 {
        let program = generate(&mut Choices::from_seed(seed));
        let branches = branches(&program);
        let bad = (0..1u32 << branches.len())
            .find_map(|taken| verify(&mut verifier, path(&program, &branches, taken)).err().map(|e| (taken, e)));
        match (verify(&mut verifier, program.clone()), bad) {
            (Ok(stats), None) => (accepted, pruned) = (accepted + 1, pruned + stats.pruned),
            (Err(_), Some(_)) => refused += 1,
            (Ok(_), Some((taken, e))) => panic!("seed {seed} accepted, but path {taken:b}: {e}\n{program}"),
            // A rule about an instruction, not about a path.
            (Err(e), None) if matches!(e.reason, bpf_verifier::Reason::MixedContext { .. }) => {}
            (Err(e), None) => panic!("seed {seed} refused, but no path of it is: {e}\n{program}"),
        }
    }
    assert!(accepted > 500 && refused > 500 && pruned > 500, "{accepted} accepted, {refused} refused, {pruned} pruned");
}

/// Each branch leaves another value in a slot of its own, which nothing reads.
fn dead_slots(branches: usize, read: bool) -> String {
    let mut t = String::from("r6 = r10\nr6 += -8\n");
    for i in 1..=branches {
        writeln!(t, "*(u64 *)(r10 - {0}) = 1\ncall 7\nif r0 > 5 goto +1\n*(u64 *)(r10 - {0}) = {i}0", 8 * i)
            .expect("a string");
    }
    for i in (1..=branches).filter(|_| read) {
        // The exact number is needed: only some numbers keep the offset in the frame.
        writeln!(t, "r1 = *(u64 *)(r10 - {})\nr2 = r10\nr2 += -512\nr2 += r1\n*(u8 *)(r2 + 0) = 0", 8 * i)
            .expect("a string");
    }
    t + "r0 = 0\nexit\n"
}

#[test]
fn dead_slots_do_not_multiply_paths() {
    let mut verifier = Verifier::new();
    let stats = |verifier: &mut Verifier, text: &str| verify(verifier, common::program(text)).expect("it is safe");
    // There would be 2^40 paths if states with different slots were kept apart.
    let dead = stats(&mut verifier, &dead_slots(40, false));
    assert!(dead.steps < 1000, "{dead:?}");
    // Where the slots are read, their states must be kept apart.
    let (dead, live) = (stats(&mut verifier, &dead_slots(8, false)), stats(&mut verifier, &dead_slots(8, true)));
    assert!(live.steps > 256 && dead.steps < 100, "{live:?} {dead:?}");
}

/// Paths that have proven more of a packet's length than the rest of the program needs are merged, even if a register
/// holds the length, as long as no branch depends on it.
#[test]
fn lengths_that_nothing_asks_for_do_not_multiply_paths() {
    let text = |last: &str| {
        let mut t = String::from("r6 = r1\n");
        for i in 1..=30 {
            writeln!(
                t,
                "call 7\nif r0 == 1 goto +4\nr2 = *(u32 *)(r6 + 0)\nr3 = *(u32 *)(r6 + 4)\nr2 += {i}\nif r2 > r3 goto out"
            )
            .expect("a string");
        }
        // Tests more bytes than needed, and computes the packet's length.
        t + "r2 = *(u32 *)(r6 + 0)\nr3 = *(u32 *)(r6 + 4)\nr4 = r2\nr4 += 40\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 + 39)\n"
            + "r3 -= r2\n"
            + last
            + "r0 = 0\nexit\nout:\nr0 = 1\nexit\n"
    };
    let mut verifier = Verifier::new();
    let mut steps = |last: &str| verify(&mut verifier, common::program(&text(last))).expect("it is safe").steps;
    let (alike, apart) = (steps("*(u64 *)(r10 - 8) = r3\n"), steps("if r3 s< 45 goto out\n"));
    assert!(alike < 500 && apart > 1000, "{alike} {apart}");
}

/// Paths with different numbers are merged if each exact use follows a comparison with a constant, as in the cases of a
/// `switch`.
#[test]
fn numbers_that_turn_out_to_be_a_constant_do_not_multiply_paths() {
    let text = |compared: &str| {
        let mut t = String::from("r8 = 0\n");
        for i in 1..=24 {
            // Each of the numbers may be 77.
            writeln!(t, "call 7\nif r0 == 1 goto +2\nr8 = r0\nw8 &= {}", 77 | 1 << (6 + i)).expect("a string");
        }
        t + compared + "r2 = r10\nr2 += -512\nr2 += r8\n*(u8 *)(r2 + 0) = 0\nout:\nr0 = 0\nexit\n"
    };
    let mut verifier = Verifier::new();
    let mut steps = |compared: &str| verify(&mut verifier, common::program(&text(compared))).expect("it is safe").steps;
    let apart = steps("if r8 > 77 goto out\n");
    let taken = "if {}8 == 77 goto +2\nr0 = 0\nexit\n";
    for compared in ["if {}8 != 77 goto out\n", taken] {
        for half in ["r", "w"] {
            let alike = steps(&compared.replace("{}", half));
            assert!(alike < 300 && apart > 2 * alike, "{alike} {apart} {half} {compared}");
        }
    }
}

/// A slot that a callback reads in its next round is not dead in this one, although this round's path ends where the
/// next begins, and the walk comes to the read only after it has come to the write.
#[test]
fn slots_live_from_round_to_round() {
    let text = |value: &str| {
        format!(
            "*(u64 *)(r10 - 8) = 3\n*(u64 *)(r10 - 16) = r1\nr1 = 10\nr2 = subprog[round]\nr3 = r10\nr4 = 0\ncall 181\nr0 = 0\nexit
            round:
            r6 = r2
            r8 = *(u64 *)(r6 - 16)
            call 7
            if r0 > 9 goto late
            call 7
            if r0 > 5 goto other
            join:
            r0 = 0
            exit
            other:
            *(u64 *)(r6 - 8) = {value}
            goto join
            late:
            r1 = *(u64 *)(r6 - 8)
            r1 *= 2
            goto join"
        )
    };
    let mut verifier = Verifier::new();
    verify(&mut verifier, common::program(&text("3"))).expect("it is safe");
    let error = verify(&mut verifier, common::program(&text("r8"))).expect_err("the next round multiplies an address");
    assert!(matches!(error.reason, bpf_verifier::Reason::PointerOp(..)), "{error}");
}

/// A function that a legacy load may leave early: it writes one of two numbers to a slot of its own, joins, loads, and
/// reads the slot back. As an offset, only the small number keeps within the frame.
fn legacy_load_after_join(name: &str, ctx: &str, number: &str) -> String {
    format!(
        "{name}:
        r6 = {ctx}
        r8 = r10
        r8 += -16
        call 7
        if r0 > 5 goto {name}_other
        *(u64 *)(r10 - 8) = 0
        goto {name}_join
        {name}_other:
        *(u64 *)(r10 - 8) = {number}
        {name}_join:
        r0 = *(u8 *)skb[0]
        r1 = *(u64 *)(r10 - 8)
        r8 -= r1
        *(u8 *)(r8 + 0) = 1
        r0 = 0
        exit
        "
    )
}

/// The early return of a legacy load is a path of its own: liveness after the return does not cover the slots that the
/// continuing path still reads.
#[test]
fn slots_live_across_legacy_loads() {
    let call_loop =
        |callee: &str, ctx: &str| format!("r1 = 10\nr2 = subprog[{callee}]\nr3 = {ctx}\nr4 = 0\ncall 181\n");
    let store_ctx = "*(u64 *)(r10 - 8) = r1\nr3 = r10\nr3 += -8\n";
    let end = "r0 = 0\nexit\n";
    let nested = format!("outer:\nr3 = r2\n{}{end}", call_loop("round", "r3"));
    let via_call = "outer:\nr1 = *(u64 *)(r2 + 0)\ncall round\nr0 = 0\nexit\n";
    let each = "r1 = map[fd:0]\nr2 = subprog[round]\nr4 = 0\ncall 164\n";
    let read = |ctx: &str| format!("*(u64 *)({ctx} + 0)");
    let cases = [
        ("loop", format!("{store_ctx}{}{end}", call_loop("round", "r3")), read("r2")),
        ("for_each", format!("{store_ctx}{each}{end}"), read("r4")),
        ("nested", format!("{store_ctx}{}{end}{nested}", call_loop("outer", "r3")), read("r2")),
        ("call in a round", format!("{store_ctx}{}{end}{via_call}", call_loop("outer", "r3")), "r1".into()),
        ("call", format!("call round\n{end}"), "r1".into()),
        (
            "call that calls rounds",
            format!("call outer\n{end}outer:\n{store_ctx}{}{end}", call_loop("round", "r3")),
            read("r2"),
        ),
    ];
    let mut verifier = Verifier::new();
    for (name, main, ctx) in cases {
        let text = |number| main.clone() + &legacy_load_after_join("round", &ctx, number);
        verify(&mut verifier, common::program(&text("8"))).unwrap_or_else(|e| panic!("{name}: it is safe: {e}"));
        let error = verify(&mut verifier, common::program(&text("0x100000"))).expect_err(name);
        assert!(matches!(error.reason, bpf_verifier::Reason::StackBounds { .. }), "{name}: {error}");
    }
}
