//! The soundness oracle at length: random programs near the border of what can be proven; accepted ones are run and
//! watched. Stops at the first violation.
//!
//! `cargo run --release -p bpf-verifier --example watch -- [programs] [first seed] [hybrid] [loops] [sums] [orders]
//! [elements] [links] [halves] [folds] [entered]`, a million by default; `loops` takes the generator of loops (with
//! `entered`, of those that are entered in their middle), `sums` that of sums that a third number bounds, `orders`
//! that of chains of comparisons, `elements` that of indices kept in arrays, `links` that of such ones that are no
//! more than where they are kept, `halves` that of searches which move a base and halve what is left, `folds` that
//! of folded sums.

#[path = "../tests/verify/border/mod.rs"]
mod border;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use border::{Oracle, Outcome, generate};
use bpf_testkit::generate::Choices;

fn main() -> ExitCode {
    const WORDS: [&str; 9] = ["hybrid", "loops", "sums", "orders", "elements", "entered", "links", "halves", "folds"];
    let [hybrid, loops, sums, orders, elements, entered, links, halves, folds] =
        WORDS.map(|word| std::env::args().any(|a| a == word));
    let mut args = std::env::args().skip(1).filter(|a| !WORDS.contains(&a.as_str())).map(|a| a.parse::<u64>());
    let (Some(Ok(count)), Some(Ok(first))) = (args.next().or(Some(Ok(1_000_000))), args.next().or(Some(Ok(1 << 32))))
    else {
        eprintln!(
            "usage: watch [programs] [first seed] [hybrid] [loops] [sums] [orders] [elements] [links] [halves] [folds] [entered]"
        );
        return ExitCode::FAILURE;
    };
    let start = Instant::now();
    let mut oracle = Oracle::new(hybrid);
    let (mut accepted, mut steps) = (0u64, 0u64);
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    for seed in first..first + count {
        let mut c = Choices::from_seed(seed);
        let program = match (loops, sums, orders, elements) {
            _ if halves => border::halves::generate(&mut c),
            _ if folds => border::folds::generate(&mut c),
            _ if links => border::links::generate(&mut c),
            (true, ..) if entered => border::loops::generate_entered(&mut c),
            (true, ..) => border::loops::generate(&mut c),
            (_, true, ..) => border::sums::generate(&mut c),
            (_, _, true, _) => border::orders::generate(&mut c),
            (.., true) => border::elements::generate(&mut c),
            _ => Some(generate(&mut c)),
        };
        let Some(program) = program else { continue };
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
        "{count} programs in {:?}: {accepted} accepted, {steps} instructions watched, 0 violations",
        start.elapsed()
    );
    println!("refused: {refused:#?}");
    ExitCode::SUCCESS
}
