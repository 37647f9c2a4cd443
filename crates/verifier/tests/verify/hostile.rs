//! Programs built to make the verifier work without end stop at a limit, soon and in little memory; and bytes that are
//! hardly a program never make it panic.

use crate::common;

use std::fmt::Write;
use std::time::Duration;

use bpf_isa::{Insn, InsnIdx, Program, assemble};
use bpf_testkit::generate::{Choices, wild};
use bpf_verifier::{EffortPlace, Limits, Reason, Stats, Verifier, VerifyError};

fn verify_limited(text: &str, limits: Limits) -> Result<Stats, Box<VerifyError>> {
    common::with_env(text, |env| {
        let mut env = *env;
        env.limits = limits;
        Verifier::new().verify(common::program(text), &env).map(|v| v.stats())
    })
}

/// Every branch doubles the states: each tests a bit of a number that stays needed.
fn bits(n: usize) -> String {
    let mut t = String::from("r6 = *(u32 *)(r1 + 12)\nr7 = 0\n");
    for i in 0..n {
        writeln!(t, "if r6 & {} goto +1\nr7 += {}", 1u64 << (i % 30), i + 1).expect("a string");
    }
    // Needed exactly, to the end.
    t + "if r7 > 3 goto +1\nr7 = 0\nif r6 > 3 goto +1\nr6 = 0\nr0 = 0\nexit\n"
}

#[test]
fn an_explosion_of_paths_stops_at_each_limit() {
    let text = bits(30);
    let reason = |limit: &dyn Fn(&mut Limits)| {
        let mut limits = Limits::default();
        (limits.steps, limits.states, limits.memory) = (u64::MAX, usize::MAX, usize::MAX);
        limits.log_lines = 0;
        limit(&mut limits);
        verify_limited(&text, limits).expect_err("2^30 paths").reason
    };
    assert_eq!(reason(&|limits| limits.steps = 50_000), Reason::Steps(50_000));
    assert_eq!(reason(&|limits| limits.states = 20), Reason::States(20));
    assert_eq!(reason(&|limits| limits.memory = 20_000), Reason::Memory(20_000));
    assert_eq!(reason(&|limits| limits.fuel = 5_000_000), Reason::Fuel(5_000_000));
    // The verification returns at all only if the clock is read: 2^30 paths take minutes.
    let time = Duration::from_millis(50);
    assert_eq!(reason(&|limits| (limits.fuel, limits.time) = (u64::MAX, Some(time))), Reason::Time(time));
}

/// An exceeded time limit is no verdict: no other strategy is tried, and no run-time check is advised.
#[test]
fn a_limit_on_time_gives_no_verdict() {
    let text = format!("r5 = 0\na: r5 += 1\nif r5 < 1000 goto a\n{}", bits(30));
    for hybrid in [false, true] {
        let error = common::with_env(&text, |env| {
            let mut env = *env;
            (env.hybrid, env.limits.time, env.limits.steps) = (hybrid, Some(Duration::ZERO), u64::MAX);
            Verifier::new().verify(common::program(&text), &env).expect_err("no time")
        });
        assert_eq!(error.reason, Reason::Time(Duration::ZERO));
        assert!(error.verdict_is_unknown() && !error.checkable, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("gave up after 0ns (Limits::time); verdict unknown") && !text.contains("hybrid"),
            "{text}"
        );
    }
    // Exceeding any other limit is a refusal.
    let mut limits = Limits::default();
    limits.fuel = 100_000;
    let error = verify_limited(&text, limits).expect_err("2^30 paths");
    assert!(!error.verdict_is_unknown() && error.reason == Reason::Fuel(100_000), "{error}");
}

/// Each walk gets a share of the fuel; without a limit, the share is unbounded.
#[test]
fn there_need_be_no_limit_of_fuel() {
    let text = format!("r5 = 0\na: r5 += 1\nif r5 < 1000 goto a\n{}", bits(30));
    let mut limits = Limits::default();
    (limits.steps, limits.fuel, limits.log_lines) = (50_000, u64::MAX, 0);
    let reason = verify_limited(&text, limits).expect_err("2^30 paths").reason;
    assert_eq!(reason, Reason::Steps(50_000));
}

/// A refusal for lack of fuel names the loop that used it, not the instruction at which it ran out.
#[test]
fn limits_name_what_took_the_work() {
    // The paths are a call away from the loop.
    let mut text = String::from(
        "r6 = *(u32 *)(r1 + 12)\nr8 = 0\na: r1 = r6\ncall f\nr8 += 1\nif r8 < 1000 goto a\nr0 = 0\nexit\nf: r7 = 0\n",
    );
    for i in 0..20 {
        writeln!(text, "if r1 & {} goto +1\nr7 += {}", 1u64 << i, i + 1).expect("a string");
    }
    text += "if r7 > 3 goto +1\nr7 = 0\nif r1 > 3 goto +1\nr7 = 0\nr0 = 0\nexit\n";
    let mut limits = Limits::default();
    (limits.fuel, limits.steps, limits.states, limits.memory) = (3_000_000, u64::MAX, usize::MAX, usize::MAX);
    let by_fuel = verify_limited(&text, limits).expect_err("2^20 paths");
    assert_eq!(by_fuel.reason, Reason::Fuel(3_000_000));
    (limits.fuel, limits.memory) = (u64::MAX, 500_000);
    let by_memory = verify_limited(&text, limits).expect_err("2^20 paths");
    assert_eq!(by_memory.reason, Reason::Memory(500_000));
    for error in [by_fuel, by_memory] {
        let effort = error.effort.clone().expect("a loop");
        assert_eq!((effort.place, effort.at, error.insn), (EffortPlace::Loop, InsnIdx(2), InsnIdx(2)), "{error}");
        assert!(effort.percent > 90 && error.registers.is_empty() && error.path.is_empty(), "{error}");
        assert!(error.to_string().contains(&format!("the loop at 2 took {} % of it", effort.percent)), "{error}");
    }
}

/// Steps, fuel, states and bytes do not depend on earlier verifications or on the thread.
#[test]
fn work_does_not_depend_on_what_came_before() {
    let loops = ["r6 = 0\na: r6 += 3\nif r6 < 3000 goto a\nr0 = 0\nexit\n".to_owned(), bits(8), {
        let copy = "r6 = r1\nr7 = r2\nr3 = 0\nc: if r3 >= r7 goto d\nr4 = r6\nr4 += r3\nr5 = *(u8 *)(r4 + 0)\nr3 += 1\ngoto c\nd: r0 = 0\nexit\n";
        copy.to_owned()
    }];
    let raw = bpf_verifier::ContextLayout::raw(true);
    let helpers = bpf_verifier::Helpers::none();
    let work = |verifier: &mut Verifier, text: &str| {
        common::with_env(text, |env| {
            let mut env = *env;
            if text.contains("r7 = r2") {
                (env.context, env.helpers) = (&raw, &helpers);
            }
            let verified = verifier.verify(common::program(text), &env);
            verified.map(|v| v.stats()).map_err(|error| error.to_string())
        })
    };
    let fresh: Vec<_> = loops.iter().map(|text| work(&mut Verifier::new(), text)).collect();
    assert!(fresh.iter().all(|work| work.as_ref().is_ok_and(|stats| stats.fuel > stats.steps)), "{fresh:?}");
    let mut used = Verifier::new();
    for _ in 0..2 {
        for (text, fresh) in loops.iter().zip(&fresh).rev() {
            assert_eq!(work(&mut used, text), *fresh);
            let there = std::thread::scope(|s| s.spawn(|| work(&mut Verifier::new(), text)).join().expect("a verdict"));
            assert_eq!(there, *fresh);
        }
    }
}

/// The default limits hold for programs of every shape that multiplies work.
#[test]
fn default_limits_bound_time_and_memory() {
    let nested = "
        r6 = 0
        a: r7 = 0
        b: r8 = 0
        c: r8 += 1
        if r8 < 1000 goto c
        r7 += 1
        if r7 < 1000 goto b
        r6 += 1
        if r6 < 1000 goto a
        r0 = 0
        exit
    ";
    let counting = "r6 = 0\na: r6 += 1\nif r6 != 0 goto a\nr0 = 0\nexit\n";
    let random_walk = "
        r6 = 0
        a: call 7
        if r0 > 5 goto b
        r6 += 1
        b: r6 += 2
        if r6 < 1000000 goto a
        r0 = 0
        exit
    ";
    let mut calls = String::from("call f0\nexit\n");
    for i in 0..7 {
        let next = if i < 6 { format!("call f{}", i + 1) } else { "r0 = 0".into() };
        writeln!(calls, "f{i}:\n{}\nr0 = 0\nexit", format!("{next}\n").repeat(8)).expect("a string");
    }
    let deep_stack: String =
        (1..=64).map(|i| format!("call 7\n*(u64 *)(r10 - {}) = r0\n", i * 8)).collect::<String>() + &bits(30);
    // These loops are proven to end by an invariant.
    for text in [nested, random_walk, counting] {
        let stats = verify_limited(text, Limits::default()).expect(text);
        assert!(stats.steps < 1000, "{stats:?}");
    }
    for (name, text) in [
        ("8^7 calls", calls),
        ("bits", bits(30)),
        (
            "bits with a full stack",
            deep_stack.replacen("call 7", "r9 = r1\ncall 7", 1).replace("(r1 + 12)", "(r9 + 12)"),
        ),
    ] {
        let error = verify_limited(&text, Limits::default()).expect_err(name);
        let limit = matches!(error.reason, Reason::Steps(_) | Reason::States(_) | Reason::Memory(_) | Reason::Fuel(_));
        assert!(limit, "{name}: {error}");
        assert!(error.to_string().len() < 4000, "{name}: a short message");
    }
}

/// A million instructions are a million steps, not more.
#[test]
fn a_long_program_is_linear() {
    let mut insns = assemble("r2 = 0").expect("an instruction");
    insns.extend(assemble("r2 += 1").expect("an instruction").repeat(bpf_isa::MAX_INSNS - 3));
    insns.extend(assemble("r0 = 0\nexit").expect("instructions"));
    let program = Program::new(insns).expect("it is not too long");
    common::with_env("", |env| {
        let verified = Verifier::new().verify(program, env).expect("it is safe");
        assert_eq!(verified.stats().steps, bpf_isa::MAX_INSNS as u64);
    });
}

/// Half a million blocks in the reverse of the order in which they run: each block needs all that its successors need.
#[test]
fn a_program_laid_out_backwards_is_linear() {
    let blocks = (bpf_isa::MAX_INSNS - 4) / 2;
    let mut insns = assemble("r6 = *(u32 *)(r1 + 12)").expect("an instruction");
    insns.push(Insn::Jump { off: 2 * blocks as i32, wide: true });
    insns.extend(assemble("r0 = r6\nexit").expect("instructions"));
    for _ in 0..blocks {
        insns.extend(assemble("r7 = 0").expect("an instruction"));
        insns.push(Insn::Jump { off: -4, wide: false });
    }
    let program = Program::new(insns).expect("it is not too long");
    common::with_env("", |env| {
        let verified = Verifier::new().verify(program, env).expect("it is safe");
        assert_eq!(verified.stats().steps, 2 * blocks as u64 + 4);
    });
}

/// One verifier serves all programs; nothing left by one program affects the next.
#[test]
fn wild_bytes_never_panic_and_leave_nothing_behind() {
    let mut verifier = Verifier::new();
    let good = common::program("r0 = *(u32 *)(r1 + 12)\nif r0 > 3 goto +1\nr0 = 0\nexit\n");
    let (mut valid, mut accepted) = (0, 0);
    for seed in 0..20_000 {
        let bytes = wild(&mut Choices::from_seed(seed));
        let Ok(program) = Program::from_bytes(&bytes) else { continue };
        valid += 1;
        common::with_env(if seed % 2 == 0 { ";raw" } else { "" }, |env| {
            let mut env = *env;
            env.limits.steps = 10_000;
            match verifier.verify(program, &env) {
                Ok(_) => accepted += 1,
                Err(e) => assert!(!matches!(e.reason, Reason::Internal(_)), "seed {seed}: {e}"),
            }
        });
    }
    common::with_env("", |env| {
        let stats = verifier.verify(good.clone(), env).expect("it is safe").stats();
        assert_eq!(stats, Verifier::new().verify(good, env).expect("it is safe").stats());
    });
    assert!(valid > 100, "{valid} valid programs, {accepted} accepted");
}

/// Whole programs of random valid instructions, which get further than wild bytes.
#[test]
fn random_instructions_never_panic() {
    let lines = [
        "r0 = r1",
        "r1 = r0",
        "r2 = r10",
        "r2 += -8",
        "r3 = 0",
        "w3 = w1",
        "r1 += r3",
        "r3 -= r1",
        "r0 = 0",
        "r4 = 8",
        "r0 = *(u64 *)(r2 + 0)",
        "*(u64 *)(r2 + 0) = r1",
        "*(u64 *)(r2 + 0) = 5",
        "r1 = *(u32 *)(r1 + 0)",
        "r3 = *(u32 *)(r1 + 4)",
        "if r0 == 0 goto +1",
        "if r1 > r3 goto +2",
        "if w3 s< 5 goto +1",
        "if r0 != 0 goto -2",
        "call 1",
        "call 7",
        "call 12",
        "call 131",
        "call 132",
        "call 93",
        "call 94",
        "call 44",
        "call 181",
        "call 164",
        "call 1001",
        "call 1002",
        "exit",
        "r1 = map[fd:0]",
        "r1 = map[fd:2]",
        "r1 = map[fd:3]",
        "r2 = map[fd:4]",
        "r1 = map[fd:7]",
        "r1 = map[fd:0][0]+8",
        "r0 &= 7",
        "r2 += r0",
        "lock *(u64 *)(r2 + 0) += r0",
        "r0 = cmpxchg_64(r2 + 0, r0, r3)",
        "may_goto +1",
        "r0 = bswap64 r0",
        "r6 = r1",
        "r1 = r6",
        "r7 = r0",
        "r1 = r7",
    ];
    let pool: Vec<Vec<Insn>> = lines.iter().map(|l| assemble(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    let mut verifier = Verifier::new();
    let mut accepted = 0;
    for seed in 0..30_000u64 {
        let mut c = Choices::from_seed(seed);
        let mut insns: Vec<Insn> =
            assemble("r6 = r1\nr2 = r10\nr2 += -8\n*(u64 *)(r10 - 8) = 0").expect("instructions");
        for _ in 0..4 + c.below(16) {
            insns.extend(&pool[c.below(pool.len() as u32) as usize]);
        }
        insns.extend(assemble("r0 = 0\nexit").expect("instructions"));
        let Ok(program) = Program::new(insns) else { continue };
        common::with_env(if seed % 3 == 0 { ";raw" } else { "" }, |env| {
            let mut env = *env;
            env.limits.steps = 10_000;
            match verifier.verify(program, &env) {
                Ok(_) => accepted += 1,
                Err(e) => assert!(!matches!(e.reason, Reason::Internal(_)), "seed {seed}: {e}"),
            }
        });
    }
    assert!(accepted > 100, "{accepted} accepted");
}
