//! How long verification takes, alone: median and best of many rounds, on one thread.
//!
//! `cargo run --release -p bpf-verifier --example speed`. Programs: 64 instructions of mixed arithmetic, stack and map
//! access with two branches; 4000 straight-line instructions; a chain of undecided branches; a bounded loop of 1000
//! rounds; a packet parser. With the argument `values`, what an optimiser wants is recorded too. The figures include
//! the copy of the program that the verifier consumes.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bpf_isa::{Program, assemble};
use bpf_verifier::{ContextLayout, Env, Helpers, KnownMap, MapType, Verifier};

fn mixed(insns: usize) -> String {
    let mut t = String::from("r6 = r1\nr7 = r2\n*(u32 *)(r10 - 4) = 1\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall 1\n");
    t += "if r0 == 0 goto out\nr3 = *(u64 *)(r0 + 8)\n";
    let mut n = 10;
    let body = [
        "r4 = r3",
        "r4 &= 255",
        "r4 <<= 3",
        "w5 = w4",
        "w5 += 17",
        "r3 ^= r5",
        "*(u64 *)(r10 - 16) = r3",
        "r5 = *(u64 *)(r10 - 16)",
    ];
    while n + 2 < insns {
        writeln!(t, "{}", body[(n - 10) % body.len()]).expect("a string");
        if n == insns / 2 {
            t += "if r3 > 100 goto +1\nr3 = 5\n";
            n += 2;
        }
        n += 1;
    }
    t + "r0 = 0\nout:\nr0 = 0\nexit\n"
}

fn straight(insns: usize) -> String {
    let body =
        ["r3 += 7", "r4 = r3", "r4 &= 255", "w5 = w4", "r5 *= 3", "r3 ^= r5", "r3 >>= 1", "*(u64 *)(r10 - 16) = r3"];
    let mut t = String::from("r3 = r2\nr4 = 0\nr5 = 0\n");
    for i in 0..insns - 5 {
        writeln!(t, "{}", body[i % body.len()]).expect("a string");
    }
    t + "r0 = 0\nexit\n"
}

fn branches(n: usize) -> String {
    let mut t = String::from("r0 = 0\nif r2 < 256 goto out\nr7 = 0\n");
    for i in 0..n {
        writeln!(t, "r3 = *(u8 *)(r1 + {i})\nif r3 > 9 goto +1\nr7 += {i}").expect("a string");
    }
    t + "r0 = r7\nout:\nexit\n"
}

const LOOP: &str = "
    r6 = 0
    r7 = 0
again:
    r7 += r6
    r6 += 1
    if r6 < 1000 goto again
    r0 = r7
    exit
";

const PARSER: &str = "
    r0 = 0
    if r2 < 34 goto out
    r3 = *(u16 *)(r1 + 12)
    if r3 != 8 goto out
    r4 = *(u8 *)(r1 + 14)
    r4 &= 15
    r4 <<= 2
    r5 = r4
    r5 += 22
    if r5 > r2 goto out
    r1 += r4
    r0 = *(u16 *)(r1 + 16)
out:
    exit
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = ContextLayout::raw(true);
    let helpers = Helpers::shipped();
    let maps = [KnownMap::new("m", MapType::Array, 4, 16, 4)];
    let mut env = Env::new(&context, &helpers);
    env.maps = &maps;
    env.values = std::env::args().any(|a| a == "values");
    let programs = [
        ("64 mixed", mixed(64)),
        ("32 straight-line", straight(32)),
        ("4000 straight-line", straight(4000)),
        ("200 undecided branches", branches(200)),
        ("loop of 1000 rounds", LOOP.to_owned()),
        ("packet parser", PARSER.to_owned()),
    ];
    println!(
        "{:24} {:>6} {:>8} {:>7} {:>7} {:>10} {:>10} {:>9}",
        "program", "insns", "steps", "states", "pruned", "median µs", "best µs", "peak KiB"
    );
    let mut verifier = Verifier::new();
    // For a profiler: only the programs whose name contains the first argument, so many rounds as the second says.
    let mut arguments = std::env::args().skip(1).filter(|a| a != "values");
    let only = arguments.next().unwrap_or_default();
    let rounds = arguments.next().map_or(Ok(300), |n| n.parse::<u32>())?.max(1);
    for (name, text) in programs.iter().filter(|(name, _)| name.contains(&only)) {
        let program = Program::new(assemble(text)?)?;
        let stats = verifier.verify(program.clone(), &env)?.stats();
        let mut rounds: Vec<Duration> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                let verified = verifier.verify(program.clone(), &env);
                let took = start.elapsed();
                assert!(verified.is_ok());
                took
            })
            .collect();
        rounds.sort();
        let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
        println!(
            "{name:24} {:>6} {:>8} {:>7} {:>7} {:>10.1} {:>10.1} {:>9.1}",
            program.insns().len(),
            stats.steps,
            stats.states,
            stats.pruned,
            us(rounds[rounds.len() / 2]),
            us(rounds[0]),
            stats.peak_bytes as f64 / 1024.0
        );
    }
    Ok(())
}
