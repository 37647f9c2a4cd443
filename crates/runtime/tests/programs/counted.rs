//! Generated loops whose counters stop around their limits, at all widths and signs, up and down, by any step: the
//! interpreter against machine code, results, memory and where a budget stops them.
//!
//! Problem: the optimiser copies rounds, turns loops and moves limits, and what goes wrong there goes wrong by one,
//! near the ends of the number range, or in a loop that is left in the middle. Generated programs seldom come there.
//! Approach: a counter begins few steps before its limit, which is any number or one of those at the ends.

use crate::support::{Failure, Outcome, Variant, allocations, jit, soak};
use bpf_isa::{Insn, InsnIdx, assemble};
use bpf_runtime::{Mode, OptLevel, RunError};
use bpf_testkit::generate::Choices;
use bpf_testkit::skipped;
use std::fmt::Write as _;

/// Budgets that stop within the first rounds, amid copied ones, and not at all.
const BUDGETS: [u64; 7] = [3, 6, 9, 14, 21, 50, 3000];
const BYTES: usize = 272;

/// A number that loops end at.
fn limit(c: &mut Choices<'_>) -> i64 {
    let ends = [0, 0, 10, 100, i32::MAX.into(), i32::MIN.into(), i64::MAX, i64::MIN, -1, 1 << 32, 0xffff_ffff];
    c.pick(&ends).wrapping_add(i64::from(c.below(40)) - 20)
}

/// A register's name, or its lower half's.
fn name(register: &str, narrow: bool) -> String {
    if narrow { register.replace('r', "w") } else { register.to_owned() }
}

/// Writes one statement of the loop's body. r0, r2, r3, r4 and r9 are numbers, r8 counts, r7 is the limit, r6 the
/// memory.
fn statement(c: &mut Choices<'_>) -> String {
    let to = c.pick(&["r0", "r2", "r3", "r4", "r9"]);
    let from = c.pick(&["r0", "r2", "r3", "r4", "r7", "r8", "r9"]);
    let place = |c: &mut Choices<'_>| {
        let (size, index, at) = (c.pick(&["u8", "u16", "u32", "u64"]), c.pick(&["r0", "r3", "r8", "r8"]), c.below(8));
        (format!("r5 = {index}\nr5 &= 0xf0\nr5 += r6"), format!("*({size} *)(r5 + {at})"))
    };
    match c.below(14) {
        0..=4 => {
            let (narrow, op) = (c.one_in(3), c.pick(&["+=", "-=", "^=", "|=", "*=", "&="]));
            let by = if c.one_in(4) {
                c.pick(&["1", "-1", "7", "255", "4096", "-129"]).to_owned()
            } else {
                name(from, narrow)
            };
            format!("{} {op} {by}", name(to, narrow))
        }
        5 => format!("{to} = {from}"),
        6 => format!("{to} <<= {}", c.below(63)),
        7 => format!("{to} >>= {}", c.below(63)),
        8..=10 => {
            let (address, place) = place(c);
            format!("{address}\n{to} = {place}")
        }
        11 | 12 => {
            let (address, place) = place(c);
            format!("{address}\n{place} = {from}")
        }
        _ => format!("*(u64 *)(r10 - {}) = {from}\n{to} = *(u64 *)(r10 - {})", 8 + 8 * c.below(3), 8 + 8 * c.below(3)),
    }
}

/// Up to three loops one after the other, and the memory that they are run on.
fn generate(c: &mut Choices<'_>) -> (Vec<Insn>, Vec<u8>) {
    let mut text = String::from(
        "r6 = r1\nr7 = *(u64 *)(r6 + 0)\nr8 = *(u64 *)(r6 + 8)\nr9 = 3\nr0 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\n\
         *(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = 2\n*(u64 *)(r10 - 24) = 3\n",
    );
    let of_memory = limit(c);
    let mut first = 0;
    for at in 0..=c.below(3) {
        let step = c.pick(&[1, 1, 1, 2, 3, 5, 7, 8, 16, -1, -1, -2, -4]);
        let (narrow, constant) = (c.one_in(3), c.one_in(2));
        let rounds = c.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 33]);
        let beside = if c.one_in(3) { i64::from(c.below(3)) - 1 } else { 0 };
        let end = if constant { i64::from((limit(c) as i32).max(-i32::MAX)) } else { of_memory };
        let start = end.wrapping_sub(step * rounds).wrapping_add(beside);
        match at {
            0 => first = start,
            _ if c.one_in(2) => writeln!(text, "r8 = {start} ll").unwrap(),
            _ => writeln!(text, "r8 = r7\nr8 -= {}", step * rounds + beside).unwrap(),
        }
        // Some are entered in the middle, too.
        let entered = c.one_in(12);
        if entered {
            writeln!(text, "if r0 == {} goto in{at}\nr0 += 1", c.below(4)).unwrap();
        }
        writeln!(text, "head{at}:").unwrap();
        let statements = c.below(7);
        let counts = c.below(statements + 1);
        for i in 0..=statements {
            if i == counts {
                writeln!(text, "{} += {step}", name("r8", narrow && c.one_in(2))).unwrap();
            }
            if i == 0 && entered {
                writeln!(text, "in{at}:").unwrap();
            }
            if i < statements {
                writeln!(text, "{}", statement(c)).unwrap();
            }
            if c.one_in(25) {
                writeln!(text, "if r{} == {} goto out{at}", c.pick(&[0, 3, 8]), c.below(9)).unwrap();
            }
        }
        let (goes_on, ends, turned) = c.pick(&[
            ("<", ">=", ">"),
            ("<=", ">", ">="),
            ("s<", "s>=", "s>"),
            ("s<=", "s>", "s>="),
            ("!=", "==", "!="),
            ("!=", "==", "!="),
        ]);
        let counter = name("r8", narrow);
        let end = if constant { end.to_string() } else { name("r7", narrow) };
        match c.below(4) {
            0 if !constant => writeln!(text, "if {end} {turned} {counter} goto head{at}").unwrap(),
            1 => writeln!(text, "if {counter} {ends} {end} goto out{at}\ngoto head{at}").unwrap(),
            _ => writeln!(text, "if {counter} {goes_on} {end} goto head{at}").unwrap(),
        }
        writeln!(text, "out{at}:\nr4 ^= r{}", c.pick(&[0, 2, 3, 8, 9])).unwrap();
    }
    text += "r0 += r2\nr0 ^= r3\nr0 += r4\nr0 ^= r8\nr0 += r9\nexit\n";
    let mut memory: Vec<u8> = (0..BYTES).map(|_| c.byte()).collect();
    memory[..8].copy_from_slice(&of_memory.to_ne_bytes());
    memory[8..16].copy_from_slice(&first.to_ne_bytes());
    (assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), memory)
}

/// The result and the memory, or where the budget ended.
fn end(outcome: Outcome) -> Result<(u64, Vec<u8>), Option<InsnIdx>> {
    outcome.map_err(|failure| match failure {
        Failure::Run(RunError::Budget { insn, .. }) => insn,
        other => panic!("{other:?}"),
    })
}

#[test]
fn machine_code_ends_where_the_interpreter_does() {
    if jit().is_none() {
        return skipped("counted loops", &"no JIT for this host");
    }
    let (mut ended, mut stopped) = (0, 0);
    for budget in BUDGETS {
        let make = |mode, level| {
            Variant::new(format!("{mode:?} {level:?}, budget {budget}"), |config| {
                config.mode(mode).opt_level(level).budget(budget)
            })
        };
        let interpreter = make(Mode::Interpreter, OptLevel::Speed);
        let limited = [make(Mode::Jit, OptLevel::None), make(Mode::Jit, OptLevel::Speed)];
        // Those have no budget: only for loops that end.
        let free: Vec<Variant> =
            if budget == 3000 { jit().into_iter().chain(allocations(3)).collect() } else { Vec::new() };
        for seed in 0..soak(400) {
            let (insns, memory) = generate(&mut Choices::from_seed(seed));
            let expected = end(interpreter.run(&insns, &memory));
            *(if expected.is_ok() { &mut ended } else { &mut stopped }) += 1;
            for variant in limited.iter().chain(free.iter().filter(|_| expected.is_ok())) {
                let got = end(variant.run(&insns, &memory));
                assert!(got == expected, "seed {seed}, {}: {got:x?}\ninterpreter: {expected:x?}\n{}", variant.name, {
                    bpf_isa::disassemble(&insns)
                });
            }
        }
    }
    assert!(ended > 50 && stopped > 50, "{ended} ended, {stopped} were stopped");
}
