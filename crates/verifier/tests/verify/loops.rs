//! Ordinary loops of C programs: each is accepted, in a number of steps that does not depend on the number of rounds.
//!
//! The programs are `loops/*.c`, built for two versions of the instruction set (`cargo xtask objects`).

use crate::common;

use crate::loop_programs as programs;

use bpf_isa::Program;
use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};

/// Upper bound on the steps of a walk that does not depend on the number of rounds.
const MOST_STEPS: u64 = 10_000;

#[test]
fn ordinary_loops_verify() {
    let only = std::env::var("LOOP").ok();
    let mut wrong = Vec::new();
    for (file, p) in programs::objects().iter().flat_map(|o| programs::load(o).into_iter().map(move |p| (o, p))) {
        let name = format!("{} {}", file.file_name().unwrap_or_default().display(), p.name);
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let (context, helpers, program) = (p.context(), Helpers::none(), &p.program);
        let result = Verifier::new().verify(program.clone(), &p.env(&context, &helpers, only.is_some()));
        if let (Some(_), Ok(v)) = (&only, &result) {
            println!("{}", v.log().join("\n"));
        }
        match result {
            Ok(v) => {
                println!("{name}: {} instructions, {:?}", program.insns().len(), v.stats());
                if v.stats().steps > MOST_STEPS {
                    wrong.push(format!("{name}: {:?}", v.stats()));
                }
            }
            Err(e) => {
                if only.is_some() {
                    println!("{}", e.log.join("\n"));
                }
                wrong.push(format!("{name}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A spilled number that only one instruction loads gets no name when it is compared: a name shared by register and
/// slot would be of no use, and would keep states apart that cover each other.
#[test]
fn slots_that_one_instruction_loads_keep_no_states_apart() {
    let programs = programs::objects().iter().flat_map(|o| programs::load(o)).collect::<Vec<_>>();
    let memcached: Vec<_> = programs.iter().filter(|p| p.name == "memcached").collect();
    assert!(!memcached.is_empty());
    for p in memcached {
        let (context, helpers) = (p.context(), Helpers::none());
        let verified = Verifier::new().verify(p.program.clone(), &p.env(&context, &helpers, false)).expect("accepted");
        assert!(verified.stats().steps < 2500, "{:?}", verified.stats());
    }
}

/// The number of rounds makes no difference.
#[test]
fn rounds_cost_nothing() {
    let steps = |n: u32| {
        let text = format!("r0 = 0\nr3 = 0\na: r0 += r3\nw3 += 1\nif w3 != {} goto a\nr0 = 0\nexit", n as i32);
        common::verify(&text).unwrap_or_else(|e| panic!("{n}: {e}")).stats().steps
    };
    assert_eq!(steps(10), steps(1 << 31));
}

/// Endless loops are refused.
#[test]
fn endless_loops_are_refused() {
    for text in [
        // The counter wraps round without meeting the constant.
        "r3 = 1\na: r3 += 2\nif r3 != 0 goto a\nr0 = 0\nexit",
        "w3 = 1\na: w3 += 2\nif w3 != 0 goto a\nr0 = 0\nexit",
        // A step past the bound.
        "r3 = 0\na: r3 += 3\nif r3 != 64 goto a\nr0 = 0\nexit",
        // One path does not move.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = 0\na: r4 = *(u8 *)(r1 + 0)\nif r4 == 7 goto b\nr3 += 1\nb: if r3 < 8 goto a\nout: exit",
        // The counter goes up and down.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = 3\na: r4 = *(u8 *)(r1 + 0)\nif r4 == 7 goto b\nr3 += 1\ngoto c\nb: r3 -= 1\nc: if r3 != 0 goto a\nout: exit",
        // 0 stays 0.
        ";raw\nr0 = 0\nif r2 < 8 goto out\nr3 = *(u64 *)(r1 + 0)\na: r3 >>= 1\nif r3 < 8 goto a\nout: exit",
    ] {
        let error = common::verify(text).expect_err(text);
        println!("{text}\n{error}");
    }
}

/// An error names the loop that was not proven, the candidate invariant and why it did not suffice.
#[test]
fn errors_name_the_loops_that_were_not_proven() {
    use bpf_verifier::{LoopFailure, SourceLine};
    let program = |text: &str| Program::new(bpf_isa::assemble(text).expect("instructions")).expect("valid");
    let line = |insn, line| SourceLine { insn, file: "a.c".into(), line, text: String::new() };
    let lines = [line(0, 1), line(3, 7), line(4, 9), line(6, 12)];
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let mut env = Env::new(&context, &helpers);
    env.lines = &lines;
    // 0 stays 0.
    let text = "r0 = 0\nif r2 < 8 goto out\nr3 = *(u64 *)(r1 + 0)\na: r3 >>= 1\nr4 = r3\nif r3 < 8 goto a\nout: exit";
    let error = Verifier::new().verify(program(text), &env).expect_err(text);
    let [l] = &error.loops[..] else { panic!("{error}") };
    assert_eq!((l.head.0, &l.why), (3, &LoopFailure::Endless), "{error}");
    assert_eq!(l.source, Some(("a.c".into(), 7, 9)));
    assert!(l.guess.iter().any(|(what, _)| what == "r3"), "{error}");
    let message = error.to_string();
    assert!(message.contains("loop at 3 (a.c:7-9)") && message.contains("may_goto"), "{message}");

    // The bytes read are not proven to be in bounds, so they do not end the loop.
    let text = "r3 = 0\na: r4 = r1\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\nr3 += 1\nif r0 != 0 goto a\nr0 = 0\nexit";
    env.lines = &[];
    let error = Verifier::new().verify(program(text), &env).expect_err(text);
    assert!(!error.to_string().contains(".c:"), "{error}");
}

/// The log is cut to the limit, and says so.
#[test]
fn the_log_has_a_limit() {
    let text = "r0 = 0\nr0 += 1\nr0 += 1\nr0 += 1\nr0 += 1\nr0 += 1\nr0 += 1\nexit";
    let program = Program::new(bpf_isa::assemble(text).expect("instructions")).expect("valid");
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let mut env = Env::new(&context, &helpers);
    env.log = true;
    env.limits.log_lines = 4;
    let verified = Verifier::new().verify(program, &env).expect("it is safe");
    let log = verified.log();
    assert_eq!(log.len(), 5, "{log:#?}");
    assert!(log[0].starts_with("0:") && log[2].contains("log_lines") && log[4].starts_with("7:"), "{log:#?}");
}

/// No candidate is made for a loop that ends after a few rounds, unless facts about its rounds are requested; a longer
/// loop gets one.
#[test]
fn what_ends_soon_needs_no_guess() {
    let guessed = |rounds: u32, values: bool| {
        let text = format!("r3 = 0\na: r3 += 1\nif r3 != {rounds} goto a\nr0 = 0\nexit");
        let program = Program::new(bpf_isa::assemble(&text).expect("instructions")).expect("valid");
        let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
        let mut env = Env::new(&context, &helpers);
        (env.log, env.values) = (true, values);
        let verified = Verifier::new().verify(program, &env).expect("it is safe");
        verified.log().iter().any(|line| line.starts_with("loop at"))
    };
    assert!(!guessed(3, false));
    assert!(guessed(3, true) && guessed(100, false) && guessed(100, true));
}

/// The order of two variables in one round implies nothing about the next round, in which the greater one is smaller.
#[test]
fn an_order_ends_with_the_round_that_changes_the_greater() {
    // r3 < r4 holds when the loop begins and when r4 is taken anew; their difference is an offset.
    let text = ";raw
        r0 = 0
        if r2 < 64 goto out
        r3 = 0
        r4 = 60
        a: r6 = r4
        r6 -= r3
        if r6 > 60 goto out
        r5 = r1
        r5 += r4
        r5 -= r3
        r0 = *(u8 *)(r5 + 0)
        r7 = *(u8 *)(r1 + 1)
        r7 &= 7
        r7 += 1
        r3 += r7
        if r3 >= r4 goto out
        r4 = *(u8 *)(r1 + 2)
        if r4 > 60 goto out
        goto a
        out: r0 = 0
        exit";
    // With the comparison the program is safe. Without it, the program must be refused: r4 - r3 may be negative.
    let with_test = common::verify(text);
    let without = common::verify(&text.replace("if r6 > 60 goto out", "r6 = 0"));
    assert!(without.is_err(), "accepted without the comparison; with it: {}", with_test.is_ok());
}

/// A nest of 64 loops, and one entered in its middle: an answer within the limits.
#[test]
fn nests_and_irreducible_loops_end_within_the_limits() {
    use std::fmt::Write;
    let mut text = String::from("r0 = 0\n");
    for i in 0..60 {
        writeln!(text, "*(u64 *)(r10 - {}) = 0\nl{i}:", 8 * i + 8).expect("a string");
    }
    for i in (0..60).rev() {
        let at = 8 * i + 8;
        writeln!(text, "r3 = *(u64 *)(r10 - {at})\nr3 += 1\n*(u64 *)(r10 - {at}) = r3\nif r3 < 3 goto l{i}")
            .expect("a string");
    }
    text.push_str("exit");
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let mut env = Env::new(&context, &helpers);
    env.limits.steps = 50_000;
    let program = Program::new(bpf_isa::assemble(&text).expect("instructions")).expect("valid");
    if let Err(e) = Verifier::new().verify(program, &env) {
        assert_eq!(e.reason, bpf_verifier::Reason::Steps(50_000), "{e}");
        assert!(e.to_string().contains("Limits::steps"), "{e}");
    }
    // Entered in its middle: from there it ends, and from its head it steps over its end.
    let text = |step: u32| {
        let text =
            format!("r0 = 0\nr3 = 0\nif r2 == 0 goto b\na: r3 += {step}\nb: r3 += 1\nif r3 != 1000001 goto a\nexit");
        Program::new(bpf_isa::assemble(&text).expect("instructions")).expect("valid")
    };
    let error = Verifier::new().verify(text(1), &env).expect_err("it has no end");
    assert!(error.loops.iter().any(|l| l.head.0 == 3), "{error}");
    let verified = Verifier::new().verify(text(0), &env).expect("it ends");
    assert!(verified.stats().steps < 100, "{:?}", verified.stats());
}

/// A pointer that falls in an unbounded number of rounds leaves its memory, whatever number its start is named by.
#[test]
fn what_falls_leaves_its_memory() {
    for (begins, step) in [("r4 += r3", 8), ("r4 += r3\nr4 += r3", 1), ("r6 = r3\nr6 <<= 4\nr4 += r6", 8)] {
        let text = |tested: &str| {
            format!(
                ";raw\nr0 = 0\nif r2 < 5000 goto out\nr3 = *(u8 *)(r1 + 0)\nr4 = r1\n{begins}\nr5 = 0\na: {tested}\n\
                 r0 = *(u8 *)(r4 + 0)\nr4 += -{step}\nr5 += 1\nif r5 != 100 goto a\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\n\
                 out: exit"
            )
        };
        let error = common::verify(&text("")).expect_err(begins);
        assert!(matches!(error.reason, bpf_verifier::Reason::PacketBefore { .. }), "{begins}: {error}");
        // With a test against the start of the buffer, the pointer stays in the buffer.
        common::verify(&text("if r4 <= r1 goto out")).unwrap_or_else(|e| panic!("{begins}: {e}"));
    }
}

/// Branches that choose a summand, in consecutive loops. The steps do not double with each loop, whether the blended
/// states suffice for the proof (the sum is masked to few bits) or not (it is masked to many).
#[test]
fn branches_in_loops_one_after_another_do_not_multiply() {
    let steps = |loops: u32, addend: u32| {
        let mut text = format!(";raw\nr0 = 0\nif r2 < {} goto out\n", 31 * addend + 1);
        for l in 0..loops {
            text += &format!("r3 = 0\na{l}: r4 = r3\nr4 += 6\nif r4 >= r2 goto n{l}\nr5 = 0\nr4 = r1\nr4 += r3\n");
            for b in 0..5 {
                let by = addend << b;
                text += &format!("r6 = *(u8 *)(r4 + {b})\nif r6 < 9 goto s{l}x{b}\nr5 += {by}\ns{l}x{b}: r6 = 0\n");
            }
            text +=
                &format!("r6 = r1\nr6 += r5\nr6 = *(u8 *)(r6 + 0)\nr0 += r6\nr3 += 1\nif r3 < 1000 goto a{l}\nn{l}:\n");
        }
        let verified = common::verify(&(text + "out: exit")).expect("it is safe");
        verified.stats().steps
    };
    let few: Vec<u64> = [1, 3, 6].map(|loops| steps(loops, 1)).into();
    let many: Vec<u64> = [1, 3, 6].map(|loops| steps(loops, 3)).into();
    assert!(few[2] < 12 * few[0], "{few:?}");
    assert!(many[2] < 12 * many[0], "{many:?}");
}

/// A counter that goes down to 0, where the round that finds 0 is the last: the difference that the compiler computes
/// before it compares has wrapped round only then. Clang makes this of `for (i = N; i; i--)` with exits inside.
const COUNTDOWN: &str = "
    w4 = 149
    a: w3 = w4
    r5 = r10
    r5 += -150
    r5 += r4
    *(u8 *)(r5 + 0) = 1
    if w2 == 7 goto out
    w4 = w3
    w4 += -1
    if w3 != 0 goto a
    out: r0 = 0
    exit";

#[test]
fn what_counts_down_stays_on_its_line_until_it_wraps() {
    let steps = |text: &str| common::verify(text).unwrap_or_else(|e| panic!("{text}: {e}")).stats().steps;
    let program = format!(";raw\n{COUNTDOWN}");
    assert!(steps(&program) < 300, "{}", steps(&program));
    assert!(common::verify(&program.replace("w3 != 0", "w3 != 1")).is_ok());
    for (from, to) in [("w3 != 0", "w3 != 200"), ("+= -1", "+= -2"), ("-150", "-149"), ("w4 += -1", "w4 += 1")] {
        assert!(program.contains(from));
        assert!(common::verify(&program.replace(from, to)).is_err(), "{from} {to}");
    }
}
