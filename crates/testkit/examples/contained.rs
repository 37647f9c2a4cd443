//! Contained programs under a verifier that believes everything, at length: each is damaged, run as machine code beside
//! canaries, and must stay inside its objects and its budget.
//!
//! `cargo run --release -p bpf-testkit --features oracle --example contained -- [runs] [first seed]`, a million by
//! default. `cargo xtask soak --contained` is the same.

use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::Sabotage;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|a| a.replace('_', "").parse::<u64>());
    let (Some(Ok(wanted)), Some(Ok(first))) = (args.next().or(Some(Ok(1_000_000))), args.next().or(Some(Ok(1 << 32))))
    else {
        eprintln!("usage: contained [runs] [first seed]");
        return ExitCode::FAILURE;
    };
    if bpf_runtime::code::Arch::HOST.is_none() {
        eprintln!("there is no machine code on this host");
        return ExitCode::FAILURE;
    }
    let mut sabotage = Sabotage::default();
    let mut seed = first;
    while sabotage.seen.runs < wanted {
        if let Err(what) = sabotage.check(4, &mut Choices::from_seed(seed)) {
            println!("VIOLATION at seed {seed}: {what}");
            return ExitCode::FAILURE;
        }
        seed += 1;
        if seed.is_multiple_of(20_000) {
            println!("seed {seed}: {:?}", sabotage.seen);
        }
    }
    println!("seeds {first}..{seed}: {:?}", sabotage.seen);
    ExitCode::SUCCESS
}
