//! Plants each deliberate bug in the verifier and counts the programs until the soundness oracle finds it: a violation
//! that is none without the fault.
//!
//! `cargo run -p bpf-testkit --features faults --example faults -- [most programs] [fault ...]`. Fails if one is not
//! found.

use bpf_testkit::generate::Choices;
use bpf_testkit::sleepers::{Kind, Sleepers};
use bpf_testkit::soundness::{self, Generated, Oracle, Outcome, Tally};
use bpf_verifier::faults::{Fault, plant};
use std::process::ExitCode;

/// Returns a program for a fault. Faults in objects need programs that own objects; but one that lets programs write
/// over their links ends the process, and is found by programs written for it alone.
fn generate(fault: Fault, choices: &mut Choices<'_>) -> Generated {
    match Fault::OF_OBJECTS.contains(&fault) && fault != Fault::LinksOpen {
        true => soundness::generate_owning(choices),
        false => soundness::generate(choices),
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let most = args.next().and_then(|a| a.replace('_', "").parse().ok()).unwrap_or(200_000u64);
    let only: Vec<String> = args.collect();
    let mut missed = 0;
    let wanted = |fault: &&Fault| only.is_empty() || only.contains(&format!("{fault:?}"));
    let sleepers = Sleepers::default();
    for &fault in Fault::ALL.iter().filter(wanted) {
        if Fault::OF_SLEEPING.contains(&fault) || Fault::OF_YIELDING.contains(&fault) {
            let shown = |seed: &u64| sleepers.shows(fault, Kind::of(fault), &mut Choices::from_seed(*seed));
            let found = (0..most).find(shown).map(|seed| format!("{:>8} programs that sleep", seed + 1));
            missed += u32::from(found.is_none());
            println!("{:24} {}", format!("{fault:?}"), found.unwrap_or("NOT FOUND".into()));
            continue;
        }
        let mut oracle = Oracle::interpreter_only();
        let mut tally = Tally::default();
        plant(Some(fault));
        let found = (1 << 40..(1u64 << 40) + most).find_map(|seed| {
            let mut choices = Choices::from_seed(seed);
            let generated = generate(fault, &mut choices);
            let outcome = oracle.check(&generated, 4, &mut choices);
            let what = tally.count(&generated, outcome).err()?;
            // An oracle with the interpreter only takes long runs for endless ones, so the program is checked without
            // the fault on the same inputs.
            plant(None);
            let mut choices = Choices::from_seed(seed);
            generate(fault, &mut choices);
            let right = oracle.check(&generated, 4, &mut choices);
            plant(Some(fault));
            (!matches!(right, Outcome::Violation(_))).then_some((seed, what))
        });
        plant(None);
        let name = format!("{fault:?}");
        match found {
            Some((seed, what)) => {
                println!("{name:24} {:>8} programs: {}", tally.programs, what.lines().next().unwrap_or_default());
                if !only.is_empty() {
                    println!("seed {seed}: {what}");
                }
            }
            None => {
                missed += 1;
                println!("{name:24} NOT FOUND: {tally}");
            }
        }
    }
    println!("{missed} not found");
    ExitCode::from(u8::from(missed > 0))
}
