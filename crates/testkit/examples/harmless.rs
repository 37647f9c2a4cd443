//! Plants each deliberate bug of the verifier while only the trusted core decides, and runs what is accepted: a bug
//! outside of the core lets nothing unsafe be accepted.
//!
//! `cargo run -p bpf-testkit --features planted --example harmless -- [programs for each bug] [first seed]`; `cargo
//! xtask soak --faults --certified` is that. Each bug gets programs of its own. Fails if there is a violation that does
//! not occur without the bug.

use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::{self, Oracle, Outcome, Tally};
use bpf_verifier::faults::{Fault, plant};
use std::process::ExitCode;

/// Bugs in operations on numbers, which the core and the walks share.
const IN_CORE: [Fault; 3] = [Fault::SignedIsUnsigned, Fault::HalfIsWhole, Fault::RemainderTooSmall];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mut number = |or: u64| args.next().map_or(Some(or), |a| a.replace('_', "").parse().ok());
    let (Some(programs), Some(first)) = (number(1000), number(1 << 41)) else {
        eprintln!("usage: harmless [programs for each bug] [first seed]");
        return ExitCode::FAILURE;
    };
    let (mut all, mut seed, mut violations) = (Tally::default(), first, 0);
    let outside = || Fault::ALL.iter().filter(|fault| !IN_CORE.contains(fault));
    for &fault in outside() {
        let mut oracle = Oracle::interpreter_only();
        oracle.way = Some("certified");
        for seed in seed..seed + programs {
            let check = |oracle: &mut Oracle, fault| {
                let mut choices = Choices::from_seed(seed);
                let generated = match seed % 4 {
                    3 => soundness::generate_owning(&mut choices),
                    _ => soundness::generate(&mut choices),
                };
                plant(fault);
                let outcome = oracle.check(&generated, 4, &mut choices);
                plant(None);
                (generated, outcome)
            };
            let (generated, outcome) = check(&mut oracle, Some(fault));
            if let Err(what) = all.count(&generated, outcome) {
                // An oracle with the interpreter only takes long runs for endless ones.
                let (_, right) = check(&mut oracle, None);
                if !matches!(right, Outcome::Violation(_)) {
                    println!("VIOLATION at seed {seed}, {fault:?}: {what}");
                    violations += 1;
                }
            }
        }
        seed += programs;
    }
    println!("{} bugs outside of the core, seeds {first}..{seed}: {all}; {violations} violations", outside().count());
    ExitCode::from(u8::from(violations > 0))
}
