//! Programs as large, and of shapes as bad, as the optimiser can be given: compiled at `OptLevel::Speed`, and made fast
//! while they run (`OptLevel::Tiered`), they compute what the interpreter does.
//!
//! Problem: an algorithm that is harmless in a program of a hundred instructions (a walk from each value to its use, a
//! set for each block) takes hours or all memory in one of a hundred thousand. Approach: each test is a shape that one
//! kind of structure grows with: ops of one block, ways into one block, loops inside each other, branches inside each
//! other. No test asserts on time: one that is quadratic does not come to its end.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{
    code::Arch,
    isa::{Insn, assemble},
    *,
};
use std::fmt::Write;

type Prog = Program<Raw, u64>;

/// Emulated, a tenth.
fn size(natively: u64) -> u64 {
    if cfg!(target_arch = "aarch64") { natively / 10 } else { natively }
}

fn load(change: impl FnOnce(Config) -> Config, insns: &[Insn]) -> (Engine, Prog) {
    let config = change(Config::new());
    let engine = Engine::new(config).unwrap();
    let linker = Linker::<u64>::new(&engine);
    // SAFETY: the tests' programs read the eight bytes of their context and their own stack, and end.
    let loader = unsafe { linker.loader::<Raw>().unverified(true) };
    let program = loader.insns("big", insns.to_vec()).unwrap();
    (engine, program)
}

fn run(program: &Prog, word: u64) -> u64 {
    program.run(&mut 0, &mut word.to_le_bytes()).unwrap()
}

/// Returns the interpreter's results for contexts of one word, after checking that code of `OptLevel::Speed` gives the
/// same.
fn speed_is_as_interpreted(insns: &[Insn], words: &[u64]) -> Vec<u64> {
    let (_interpreter, program) = load(|config| config.mode(Mode::Interpreter), insns);
    let want: Vec<u64> = words.iter().map(|word| run(&program, *word)).collect();
    if Arch::HOST.is_none() {
        bpf_testkit::skipped("optimised_big", &"no backend for this host");
        return want;
    }
    let (_speed, program) = load(|config| config.opt_level(OptLevel::Speed), insns);
    let found: Vec<u64> = words.iter().map(|word| run(&program, *word)).collect();
    assert_eq!(found, want, "Speed");
    want
}

/// Compares every tier with the interpreter.
fn same_as_interpreted(text: &str, words: &[u64]) {
    let insns = assemble(text).unwrap();
    let want = speed_is_as_interpreted(&insns, words);
    if Arch::HOST.is_none() {
        return;
    }
    let (tiered, program) = load(|config| config.opt_level(OptLevel::Tiered), &insns);
    if !tiered.domain().has_core_barrier() {
        return bpf_testkit::skipped("optimised_big", &"no core barrier on this host, so no tiers");
    }
    // Code that needs more machine stack than the first tier left for it is refused, and the program stays as it is.
    while program.is_slow() && tiered.tier_stats().refused == 0 {
        for (word, want) in words.iter().zip(&want) {
            assert_eq!(run(&program, *word), *want, "Tiered, while it is made fast");
        }
    }
    let found: Vec<u64> = words.iter().map(|word| run(&program, *word)).collect();
    assert_eq!(found, want, "Tiered, afterwards");
}

const WORDS: [u64; 3] = [0, 37, 0x8000_0001_0203_0405];

/// Writes code that every pass can change: constants, shifts that form rotates, stack slots, adjacent bytes, division.
fn mixed(out: &mut String, i: u64) {
    let slot = 8 + 8 * (i % 60);
    match i % 8 {
        0 => writeln!(out, "r4 = r3\nr4 *= {}", i % 1021),
        1 => writeln!(out, "r0 += r4\nr4 <<= 7"),
        2 => writeln!(out, "*(u64 *)(r10 - {slot}) = r0\nr0 ^= r4"),
        3 => writeln!(out, "r5 = *(u64 *)(r10 - {})\nr0 += r5", slot - 8),
        4 => writeln!(out, "r5 = *(u8 *)(r6 + {})\nr3 += r5", i % 5),
        5 => writeln!(out, "r0 /= {}\nr0 |= {i}", 1 + i % 9),
        6 => writeln!(out, "r5 = r0\nr5 >>= {}", 1 + i % 63),
        _ => writeln!(out, "r0 += r5\nw4 = w0"),
    }
    .unwrap();
}

const BEGIN: &str = "r6 = r1\nr3 = *(u64 *)(r6 + 0)\nr0 = 0\nr4 = 3\nr5 = 5\n";

/// All of the stack that `mixed` reads.
fn begin() -> String {
    let mut text = BEGIN.to_owned();
    (1..=60).for_each(|slot| writeln!(text, "*(u64 *)(r10 - {}) = r3", 8 * slot).unwrap());
    text
}

#[test]
fn a_hundred_thousand_instructions() {
    let mut text = begin();
    for i in 0..size(40_000) {
        mixed(&mut text, i);
        if i % 3 == 0 {
            writeln!(text, "if r3 != {} goto +1\nr0 += {i}", i % 50).unwrap();
        }
    }
    same_as_interpreted(&(text + "exit"), &WORDS);
}

#[test]
fn a_block_of_a_million_ops() {
    let block = |length| {
        let mut text = begin();
        (0..length).for_each(|i| mixed(&mut text, i));
        text + "exit"
    };
    speed_is_as_interpreted(&assemble(&block(size(499_900))).unwrap(), &WORDS[1..2]);
    // Shorter, because the compilation is the same and the test shall be short.
    same_as_interpreted(&block(size(49_990)), &WORDS);
}

/// Each way brings values of its own for four registers.
#[test]
fn ten_thousand_blocks_that_jump_to_one() {
    let mut text = BEGIN.to_owned();
    for i in 0..size(10_000) {
        let change = ["r0 += r3", "r4 ^= r0", "r5 += r4"][i as usize % 3];
        writeln!(text, "{change}\nif r3 == {i} goto end").unwrap();
    }
    same_as_interpreted(&(text + "end:\nr0 += r4\nr0 ^= r5\nexit"), &[0, 37, size(9_999), u64::MAX]);
}

/// A loop with as many ways back to its head.
#[test]
fn ten_thousand_blocks_that_jump_back_to_one() {
    let mut text = BEGIN.to_owned() + "r3 &= 63\nhead:\nr3 -= 1\n";
    for i in 0..size(10_000) {
        let change = ["r0 += r3", "r4 ^= r0", "r5 += r4"][i as usize % 3];
        writeln!(text, "{change}\nif r3 == {i} goto head").unwrap();
    }
    same_as_interpreted(&(text + "r0 += r4\nr0 ^= r5\nexit"), &WORDS);
}

/// A loop with even more back-edges, in which as many sums are made of a variable that grows by a constant. No sum may
/// inspect every back-edge.
#[test]
fn a_hundred_thousand_sums_in_a_loop_with_as_many_ways_back() {
    let mut text = BEGIN.to_owned() + "r3 &= 63\nhead:\nr4 = r3\nr4 += 1\nr3 += 2\nr0 += r4\n";
    for i in 0..size(100_000) {
        writeln!(text, "r5 = r4\nr5 += {}\nif r5 != {} goto +1\ngotol head", 3 + i, 3 + i + (i + 1) % 67).unwrap();
    }
    speed_is_as_interpreted(&assemble(&(text + "exit")).unwrap(), &WORDS);
}

/// Loops inside each other, each of which may go round as long as the stock in r3 lasts.
#[test]
fn a_deep_nest_of_loops() {
    // The deeper one is left as it is: it has more blocks in dominance frontiers than are made.
    for depth in [400, size(5_000)] {
        let mut text = BEGIN.to_owned() + "r3 &= 255\n";
        for i in 0..depth {
            writeln!(text, "head{i}:\n{}", ["r0 += r3", "r4 ^= r0", "r5 += r4"][i as usize % 3]).unwrap();
        }
        for i in (0..depth).rev() {
            writeln!(text, "r3 -= 1\nif r3 s> {} goto head{i}", i % 100).unwrap();
        }
        same_as_interpreted(&(text + "r0 += r4\nr0 ^= r5\nexit"), &WORDS);
    }
}

/// Branches inside each other, each over all that follow.
#[test]
fn a_deep_nest_of_branches() {
    let (mut text, depth) = (BEGIN.to_owned(), size(7_500));
    for i in 0..depth {
        writeln!(text, "r0 += r3\nif r3 == {i} goto end{i}").unwrap();
    }
    for i in (0..depth).rev() {
        writeln!(text, "r4 += r0\nend{i}:\nr5 ^= r4").unwrap();
    }
    same_as_interpreted(&(text + "r0 += r4\nr0 ^= r5\nexit"), &[0, 37, size(7_499), u64::MAX]);
}
