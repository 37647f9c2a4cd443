//! The soundness oracle at length: random programs near the border between provable and not; accepted ones are run and
//! watched. Stops at the first violation.
//!
//! `cargo run --release -p bpf-verifier --example watch -- [programs] [first seed] [hybrid] [privileged] [quick] [kind]
//! [--way WAY]`, a million by default, of the general kind or of one of [`KINDS`]; `privileged` lets programs show
//! addresses; `quick` refuses programs that take more than 500 steps and ends each run after 65 536 instructions, so
//! that twice to four times as many are accepted in the same time.

#[path = "../tests/verify/border/mod.rs"]
mod border;
#[path = "../tests/verify/common/mod.rs"]
mod common;
#[path = "../tests/verify/loop_programs.rs"]
mod loop_programs;
#[path = "../tests/verify/mutants.rs"]
mod mutants;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use border::{Oracle, Outcome, generate};
use bpf_isa::Program;
use bpf_testkit::generate::Choices;

/// Makes a program, unless these choices make none.
type Generator = fn(&mut Choices<'_>) -> Option<Program>;

/// The generators, each with the word that asks for it.
const KINDS: [(&str, Generator); 27] = [
    ("backwards", border::backwards::generate), // distances from the end, counted below zero
    ("loops", border::loops::generate),
    ("entered", border::loops::generate_entered), // loops that are entered in their middle
    ("sums", border::sums::generate),             // sums that a third number bounds
    ("orders", border::orders::generate),         // chains of comparisons
    ("elements", border::elements::generate),     // indices kept in arrays
    ("links", border::links::generate),           // such ones that are no more than where they are kept
    ("halves", border::halves::generate),         // searches that move a base and halve what is left
    ("folds", border::folds::generate),           // folded sums
    ("far", border::far::generate),               // numbers near the ends of 62, 63 and 64 bits
    ("begins", border::begins::generate),         // loops over such ones
    ("quotients", border::quotients::generate),   // rounds that divide a number, all or some of them
    ("products", border::products::generate),     // tables whose sizes are variables
    ("grids", border::grids::generate),           // such ones in other forms, with lines changed
    ("moves", border::grids::generate_moves),     // rows that are moved in several ways
    ("pincers", border::pincers::generate),       // two indices that approach each other
    ("varied", border::pincers::generate_varied), // the same by pointers, of 32 bits, on the stack, in nests
    ("unseen", border::pincers::generate_unseen), // rounds from which no candidate is made
    ("renamed", border::pincers::generate_renamed), // the same rounds, with a copy of a number's old value
    ("none", border::none::generate),             // indices and pointers that are none until something is found
    ("assumed", border::assumed::generate),       // assumptions of loose walks
    ("mutants", mutants::generate),               // everyday programs with a few places changed
    ("blends", border::blends::generate),         // many branches that decide little
    ("siblings", border::siblings::generate),     // results of a number that one path knows more of
    ("modulo", border::modulo::generate),         // copies of a number that are cut and wrap round
    ("straight", border::straight::generate),     // values named, split, shifted, subtracted and compared
    ("shown", border::straight::generate_shown),  // the same with addresses, for `privileged`
];

fn main() -> ExitCode {
    let (mut hybrid, mut privileged, mut quick, mut kind, mut numbers) = (false, false, false, None, Vec::new());
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let way = words.iter().position(|word| word == "--way").and_then(|at| words.drain(at..).nth(1));
    for word in words {
        match (KINDS.iter().find(|(name, _)| *name == word), word.parse::<u64>()) {
            (Some(found), _) if kind.is_none() => kind = Some(*found),
            (None, Ok(number)) if numbers.len() < 2 => numbers.push(number),
            _ if word == "hybrid" => hybrid = true,
            _ if word == "privileged" => privileged = true,
            _ if word == "quick" => quick = true,
            _ => {
                let kinds = KINDS.map(|(name, _)| name).join("|");
                eprintln!("usage: watch [programs] [first seed] [hybrid] [privileged] [quick] [{kinds}] [--way WAY]");
                return ExitCode::FAILURE;
            }
        }
    }
    let (name, generator) = kind.unwrap_or(("general", |c| Some(generate(c))));
    let count = numbers.first().copied().unwrap_or(1_000_000);
    let first = numbers.get(1).copied().unwrap_or(1 << 32);
    let start = Instant::now();
    let mut oracle = if name == "mutants" { Oracle::of_texts(hybrid) } else { Oracle::new(hybrid) };
    (oracle.way, oracle.privileged) = (way, privileged);
    if quick {
        (oracle.steps, oracle.budget) = (500, 1 << 16);
    }
    let (mut accepted, mut steps) = (0u64, 0u64);
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        let mut c = Choices::from_seed(seed);
        let Some(program) = generator(&mut c) else { continue };
        match oracle.check(&program, 4, &mut c) {
            Outcome::Refused(e) => {
                let kind = format!("{:?}", e.reason);
                let kind = kind.split(['(', '{', ' ']).next().unwrap_or_default().to_owned();
                *refused.entry(kind).or_default() += 1;
            }
            Outcome::Ran(n) => (accepted, steps) = (accepted + 1, steps + n),
            Outcome::Violation(what) => {
                println!("VIOLATION at seed {seed}: {what}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} programs in {:?}: {accepted} accepted, {} after giving up numbers, {steps} instructions watched, 0 violations",
        start.elapsed(),
        oracle.merged
    );
    println!("refused: {refused:#?}");
    ExitCode::SUCCESS
}
