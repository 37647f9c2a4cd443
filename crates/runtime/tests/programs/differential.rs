//! Generated programs: the interpreter against machine code in every variant, and against the kernel where bpf(2) is
//! permitted.
//!
//! A program depends on its seed alone. `cargo test` takes a few thousand seeds; a soak is
//! `BPF_SOAK=100 cargo test --release -p bpf-runtime --test programs differential`.

use crate::support::{Failure, Outcome, Variant, allocations, interpreter, jit, options, soak};
use bpf_runtime::{Mode, RunError, code::Arch};
use bpf_testkit::generate::{self, Generated, Shape};
use bpf_testkit::skipped;

/// Runs it on both; the text of the program is part of the message.
fn agree(expected: &Outcome, variant: &Variant, generated: &Generated, seed: u64) {
    let result = variant.run(generated.program.insns(), &generated.memory);
    let same = match (expected, &result) {
        (Ok(expected), Ok(result)) => expected == result,
        (Ok(_) | Err(_), Err(_)) | (Err(_), Ok(_)) => false,
    };
    assert!(
        same,
        "seed {seed}: interpreter {expected:x?}\n{}: {result:x?}\n{}",
        variant.name,
        bpf_isa::disassemble(generated.program.insns())
    );
}

/// The seeds in turn through the variants, each also through the production JIT.
fn compare(shape: &Shape, seeds: std::ops::Range<u64>) {
    let Some(jit) = jit() else { return skipped("generated programs", &"no JIT for this host") };
    let interpreter = interpreter();
    let variants: Vec<Variant> = allocations(8).into_iter().chain(options()).collect();
    for seed in seeds {
        let generated = generate::from_seed(seed, shape);
        let expected = interpreter.run(generated.program.insns(), &generated.memory);
        agree(&expected, &jit, &generated, seed);
        for turn in 0..3 {
            let variant = &variants[(seed * 3 + turn) as usize % variants.len()];
            agree(&expected, variant, &generated, seed);
        }
    }
}

#[test]
fn small_programs() {
    compare(&Shape { packet_loads: true, ..Shape::default() }, 10_000..10_000 + soak(2500));
}

#[test]
fn programs_without_calls() {
    let shape = Shape { helper: false, subprogs: 0, statements: 60, ..Shape::default() };
    compare(&shape, 30_000..30_000 + soak(500));
}

#[test]
fn large_programs() {
    let shape = Shape { statements: 500, memory: 4096, steps: 200_000, subprogs: 5, ..Shape::default() };
    compare(&shape, 50_000..50_000 + soak(30));
}

/// Returns the outcome of a run that may stop early: its result, or the instruction at which the budget ended it.
fn stop_of(outcome: Outcome) -> String {
    match outcome {
        Ok((r0, memory)) => format!("{r0:x} {memory:x?}"),
        Err(Failure::Run(RunError::Budget { insn, .. })) => format!("budget at {insn:?}"),
        Err(other) => format!("{other:?}"),
    }
}

/// The budget counts the same on both engines: every budget up to the first that suffices gives the same outcome, at
/// the same instruction.
#[test]
fn the_budget_stops_both_engines_at_the_same_place() {
    if Arch::HOST.is_none() {
        return skipped("the_budget_stops_both_engines_at_the_same_place", &"no JIT for this host");
    }
    let shape = Shape { subprogs: 3, ..Shape::default() };
    let budgets = [1u64, 2, 3, 5, 8, 13, 40, 100, 1000, 1 << 40];
    let (mut stopped, mut finished) = (0, 0);
    for budget in budgets {
        let make = |mode| Variant::new(format!("{mode:?}, budget {budget}"), |config| config.mode(mode).budget(budget));
        let (interpreter, jit) = (make(Mode::Interpreter), make(Mode::Jit));
        for seed in 70_000..70_000 + soak(150) {
            let generated = generate::from_seed(seed, &shape);
            let run = |variant: &Variant| stop_of(variant.run(generated.program.insns(), &generated.memory));
            let expected = run(&interpreter);
            let text = || bpf_isa::disassemble(generated.program.insns());
            assert_eq!(run(&jit), expected, "seed {seed}, budget {budget}\n{}", text());
            if expected.starts_with("budget") { stopped += 1 } else { finished += 1 }
        }
    }
    assert!(stopped > 50 && finished > 50, "{stopped} stopped, {finished} finished");
}

/// A control of the tests above: the variants do make other code.
#[test]
fn the_variants_make_different_code() {
    let Some(jit) = jit() else { return skipped("the_variants_make_different_code", &"no JIT for this host") };
    let shape = Shape { subprogs: 2, statements: 60, ..Shape::default() };
    let generated = generate::from_seed(3, &shape);
    let size = |variant: &Variant| {
        let program = variant.load(generated.program.insns()).expect("it loads");
        program.machine_code().expect("it is machine code").0.len()
    };
    let normal = size(&jit);
    for variant in allocations(4) {
        assert!(size(&variant) > normal, "{}: {} bytes, not more than {normal}", variant.name, size(&variant));
    }
}
