//! The soundness oracle at length: programs at the border of every rule of the verifier; accepted ones run on the
//! watched interpreter and as machine code at both levels. The first violation of each kind is shown, with the program
//! made small.
//!
//! `cargo run --release -p bpf-testkit --features oracle --example soundness -- [accepted programs] [first seed]`, a
//! million by default. With `objects` behind these all programs have objects of their own, else a fourth; with
//! `certified` only the trusted core decides. A line every so often says how far it is. `cargo xtask soak` is the same.

use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::{self, Oracle, Outcome, Tally};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

/// The first line without its numbers, which is equal for violations of one kind.
fn kind(what: &str) -> String {
    let line = what.lines().next().unwrap_or_default();
    let line = line.split(": [").next().unwrap_or_default().replace("0x", "");
    let words = line.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.take(12).collect::<Vec<_>>().join(" ")
}

fn main() -> ExitCode {
    let has = |word: &str| std::env::args().skip(3).any(|what| what == word);
    let (objects, certified) = (has("objects"), has("certified"));
    let mut args = std::env::args().skip(1).take(2).map(|a| a.replace('_', "").parse::<u64>());
    let (Some(Ok(wanted)), Some(Ok(first))) = (args.next().or(Some(Ok(1_000_000))), args.next().or(Some(Ok(1 << 32))))
    else {
        eprintln!("usage: soundness [accepted programs] [first seed] [objects] [certified]");
        return ExitCode::FAILURE;
    };
    let start = Instant::now();
    let mut oracle = Oracle::new();
    oracle.way = certified.then_some("certified");
    let mut tally = Tally::default();
    let mut violations: BTreeMap<String, u64> = BTreeMap::new();
    let mut seed = first;
    while tally.accepted < wanted {
        let mut choices = Choices::from_seed(seed);
        // Every fourth one has objects of its own.
        let generated = match seed % 4 {
            3 => soundness::generate_owning(&mut choices),
            _ if objects => soundness::generate_owning(&mut choices),
            _ => soundness::generate(&mut choices),
        };
        let outcome = oracle.check(&generated, 2, &mut choices);
        if let Err(what) = tally.count(&generated, outcome) {
            let count = violations.entry(kind(&what)).or_default();
            *count += 1;
            if *count == 1 {
                println!("VIOLATION at seed {seed}, after {tally}\n{what}");
                if what.starts_with(soundness::ENDLESS) {
                    // Each smaller one would take as long to be seen.
                    seed += 1;
                    continue;
                }
                // The smaller program must have the same kind of violation, since minimising may remove the statements
                // that make results comparable.
                oracle.thorough = true;
                let small = soundness::minimise(&generated, &mut |candidate| {
                    let outcome = oracle.check(candidate, 20, &mut Choices::from_seed(seed ^ u64::MAX));
                    matches!(outcome, Outcome::Violation(other) if kind(&other) == kind(&what))
                });
                oracle.thorough = false;
                println!("small:\n{}", small.program);
            }
        }
        seed += 1;
        if tally.programs.is_multiple_of(100_000) {
            println!("{:?}: {tally}", start.elapsed());
        }
    }
    println!("{:?}: {tally}; seeds {first}..{seed}; violations: {violations:#?}", start.elapsed());
    ExitCode::from(u8::from(!violations.is_empty()))
}
