//! Proofs of the rules about numbers: the verifier's domain and the optimiser's table, for all numbers, by a solver.
//!
//! Problem: one wrong bound in the verifier is a way out of the sandbox, one wrong rule of the optimiser a
//! miscompilation, and tests see a few numbers of 2^64. Approach: the code that runs is generic over the kind of number
//! (`bpf_isa::word`); here it runs on terms (`word`), once for each path through it (`paths`), and z3 decides whether
//! the claim at the end of each path is valid (`solver`). No code is translated to another language; only the
//! operations of one word have a second implementation, as terms, which is compared with the operations of `u64` on
//! sample numbers (`operations`). Products and quotients of two unknowns, which z3 cannot decide, are tried: all sets
//! of few bits, and random numbers of 64 (`tries`).
//!
//! `cargo xtask prove` runs this; docs/book/explanation/trust.md has the table of proven and of tried rules.
//!
//! Invariant: an obligation that is not shown to hold fails the run, whatever the reason.
#![forbid(unsafe_code)]

mod domain;
mod equations;
mod failure;
mod obligation;
mod operations;
mod paths;
mod rules;
mod solver;
mod term;
mod tries;
mod wrong;

#[cfg(feature = "faults")]
use anyhow::Context;
use clap::Parser;
use failure::Failure;
use obligation::Obligation;
use solver::Solver;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Proofs of the verifier's and the optimiser's rules by z3")]
struct Cli {
    /// Check only obligations whose names contain this text.
    #[arg(long)]
    only: Option<String>,
    /// Check slow obligations, which take minutes, too.
    #[arg(long)]
    all: bool,
    /// Plant bugs in the verifier instead (feature `faults`).
    #[arg(long)]
    faults: bool,
    /// Seconds for one obligation.
    #[arg(long, default_value_t = 300)]
    limit: u64,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let mut solver = Some(Solver::start(Duration::from_secs(cli.limit))?);
    let start = Instant::now();
    let (held, failed) = if cli.faults { planted(&mut solver)? } else { all(&cli, &mut solver) };
    println!("{held} as they should, {failed} not, in {:.0} s", start.elapsed().as_secs_f64());
    if failed != 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// Proves or tries each obligation, and checks that each wrong one is refuted.
fn all(cli: &Cli, solver: &mut Option<Solver>) -> (u32, u32) {
    let wanted = |o: &&Obligation| {
        cli.only.as_deref().is_none_or(|only| o.name.contains(only)) && (cli.all || cli.only.is_some() || !o.slow)
    };
    let (mut held, mut failed) = (0, 0);
    let mut count = |right: bool| *if right { &mut held } else { &mut failed } += 1;
    let so = domain::obligations()
        .into_iter()
        .chain(equations::obligations())
        .chain(rules::obligations())
        .chain(operations::obligations())
        .chain(tries::obligations());
    for obligation in so.collect::<Vec<_>>().iter().filter(wanted) {
        let (result, took) = obligation.check(solver);
        count(result.is_ok());
        let what = result.unwrap_or_else(|why| why.to_string());
        println!("{:>8.2} s  {}: {what}", took.as_secs_f64(), obligation.name);
    }
    for obligation in wrong::obligations().iter().filter(wanted) {
        let (refuted, took) = refuted(obligation, solver);
        count(refuted);
        let what = if refuted { "wrong, and refuted" } else { "FAILED: wrong, and not refuted" };
        println!("{:>8.2} s  {}: {what}", took.as_secs_f64(), obligation.name);
    }
    (held, failed)
}

/// Returns whether the solver finds numbers for which the obligation is false. An obligation that is merely not shown
/// does not count.
fn refuted(obligation: &Obligation, solver: &mut Option<Solver>) -> (bool, Duration) {
    let (result, took) = obligation.check(solver);
    (matches!(result, Err(Failure::Refuted(_))), took)
}

/// Each bug that concerns numbers, planted in the verifier, refutes an obligation that holds without it.
#[cfg(feature = "faults")]
fn planted(solver: &mut Option<Solver>) -> anyhow::Result<(u32, u32)> {
    use bpf_verifier::faults::{Fault, plant};
    let faults = [
        (Fault::SignedIsUnsigned, "sle holds at 64 bits"),
        (Fault::HalfIsWhole, "lt holds at 32 bits"),
        (Fault::RemainderTooSmall, "range mod at 4 bits"),
        (Fault::ProductsLess, "a product by the most of a factor"),
        (Fault::ProductsLess, "a product beside another with the same factor"),
        (Fault::ProductsOfAnySize, "a product that fits"),
        (Fault::LinesOfAnySize, "what a line begins with is a number"),
        (Fault::RowsFromAfar, "a row, one round later"),
        (Fault::DistanceForgetsPlace, "the distance of two pointers, of which one moves"),
        (Fault::MaskTakesLess, "what a mask takes away"),
        (Fault::MasksAlike, "two masks of one number"),
        (Fault::LearntSuffices, "a length that is kept, where more is learnt"),
    ];
    let (mut held, mut failed) = (0, 0);
    for (fault, name) in faults {
        let all: Vec<Obligation> =
            domain::obligations().into_iter().chain(equations::obligations()).chain(tries::obligations()).collect();
        let obligation = all.iter().find(|o| o.name == name).context("no such obligation")?;
        plant(Some(fault));
        let (result, took) = obligation.check(solver);
        plant(None);
        let refuted = matches!(result, Err(Failure::Refuted(_)));
        *if refuted { &mut held } else { &mut failed } += 1;
        let what = match result {
            Err(Failure::Refuted(_)) => "refuted".to_owned(),
            Err(why) => format!("FAILED: not refuted, {why}"),
            Ok(how) => format!("FAILED: not refuted, {how}"),
        };
        println!("{:>8.2} s  {fault:?}: {name} is {what}", took.as_secs_f64());
    }
    Ok((held, failed))
}

#[cfg(not(feature = "faults"))]
fn planted(_: &mut Option<Solver>) -> anyhow::Result<(u32, u32)> {
    anyhow::bail!("built without the feature `faults`")
}
