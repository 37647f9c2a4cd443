//! Contained programs under planted bugs of the verifier, at length: for each bug, generated programs that it alone
//! lets through run as machine code beside canaries.
//!
//! The first programs are the refused ones of the verifier's pairs, and the programs in the sources of its tests.
//!
//! `cargo run -p bpf-testkit --features planted --example planted -- [programs] [first seed] [file]`; `cargo xtask soak
//! --contained --faults` is that. With a file, up to three programs for each bug are written to it, made smaller, those
//! first whose runs the interpreter finds harmful; `tests/contained/planted.txt` was made so.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::planted::{Bug, Planted, Thanks, print};
use bpf_testkit::soundness::{self, Context, Generated};
use std::path::Path;
use std::process::ExitCode;

/// Programs of each bug that are kept.
const KEPT: usize = 2;
/// Runs of each program.
const RUNS: u32 = 4;

/// Programs of a bug that are made smaller because containment refuses them as they are.
const TRIES: u64 = 4;

/// Counts and programs of one bug.
#[derive(Default)]
struct Row {
    ran: u64,
    harmful: u64,
    uncontained: u64,
    why: String,
    kept: Vec<(bool, Generated)>,
}

impl Row {
    /// Counts a program, and keeps it if there are few, or if it is harmful and another is not.
    fn keep(&mut self, harmful: bool, generated: Generated) {
        self.ran += 1;
        self.harmful += u64::from(harmful);
        if let Some(worse) = self.kept.iter_mut().find(|(other, _)| harmful && !*other) {
            *worse = (harmful, generated);
        } else if self.kept.len() < KEPT {
            self.kept.push((harmful, generated));
        }
    }
}

/// The programs in the sources of the verifier's tests: each string that assembles, as it is or with an end.
fn of_tests() -> Vec<Program> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verifier/tests");
    let files = ["verify", "certify"].map(|folder| std::fs::read_dir(tests.join(folder)).into_iter().flatten());
    let mut paths: Vec<_> = files.into_iter().flatten().flatten().map(|file| file.path()).collect();
    paths.sort();
    let mut programs = Vec::new();
    for source in paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
        // The strings, and what lies between them where a quote stands for something else: that does not assemble.
        for text in source.split('"') {
            let text = text.replace("\\\n", " ").replace("\\n", "\n").replace(';', "\n");
            if !text.contains('=') {
                continue;
            }
            let ended = format!("r0 = 0\n{text}\nr0 = 0\nexit");
            let assembled = [text, ended].into_iter().filter_map(|text| Program::new(assemble(&text).ok()?).ok());
            programs.extend(assembled);
        }
    }
    programs
}

/// The refused programs of the verifier's pairs, and those of its other tests, in each context.
fn pairs() -> Vec<Generated> {
    let text = include_str!("../../verifier/tests/pairs.txt");
    let refused = text.split("\n== ").skip(1).filter_map(|pair| {
        let (_name, both) = pair.split_once('\n')?;
        let insns = assemble(both.split_once("\n-- ").map_or(both, |(refused, _)| refused)).ok()?;
        Program::new(insns).ok()
    });
    let in_each = |program: Program| {
        [Context::Xdp, Context::Raw, Context::Skb].map(|context| {
            let globals = vec![None; program.subprogs().len()];
            let program = program.clone();
            let lens = vec![14, 0, 1, 64];
            Generated { program, context, globals, maps: 0xfff, lens, ordered: false, lured: true }
        })
    };
    refused.chain(of_tests()).flat_map(in_each).collect()
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let mut number = |or: u64| args.next().map_or(Some(or), |a| a.replace('_', "").parse().ok());
    let (Some(programs), Some(first)) = (number(100_000), number(1 << 33)) else {
        eprintln!("usage: planted [programs] [first seed] [file]");
        return ExitCode::FAILURE;
    };
    let file = args.next();
    let mut planted = Planted::default();
    let mut rows: Vec<Row> = Bug::all().map(|_| Row::default()).collect();
    let pairs = pairs();
    for seed in first..first + programs {
        let mut choices = Choices::from_seed(seed);
        let nth = usize::try_from(seed - first).unwrap_or(usize::MAX);
        let generated = match (pairs.get(nth), seed % 4) {
            (Some(refused), _) => refused.clone(),
            (None, 0) => soundness::generate_owning(&mut choices),
            (None, _) => soundness::generate(&mut choices),
        };
        if (seed - first).is_multiple_of(500) {
            println!("seed {seed}: {:?}", planted.seen);
        }
        if !generated.lured || !planted.is_refused(&generated) {
            continue;
        }
        let inputs = choices.value();
        for (fault, row) in Bug::all().zip(&mut rows) {
            // To write the file, a few harmful ones of each will do.
            if file.is_some() && row.kept.len() == KEPT && row.kept.iter().all(|(harmful, _)| *harmful) {
                continue;
            }
            match planted.check_refused(fault, &generated, RUNS, &mut Choices::from_seed(inputs)) {
                Ok(Thanks::Sound | Thanks::Refused) => {}
                Ok(Thanks::Uncontained(why)) => {
                    (row.uncontained, row.why) = (row.uncontained + 1, why);
                    // The bug often does not need the part that containment refuses.
                    if row.kept.is_empty() && row.uncontained <= TRIES {
                        let mut through = |candidate: &Generated| planted.is_let_through(fault, candidate);
                        let small = soundness::minimise(&generated, &mut through);
                        match planted.check_refused(fault, &small, RUNS, &mut Choices::from_seed(inputs)) {
                            Ok(Thanks::Ran { harmful }) => row.keep(harmful > 0, small),
                            Ok(Thanks::Sound | Thanks::Refused | Thanks::Uncontained(_)) => {}
                            Err(what) => {
                                println!("VIOLATION at seed {seed}, made smaller, {fault:?}: {what}");
                                return ExitCode::FAILURE;
                            }
                        }
                    }
                }
                Ok(Thanks::Ran { harmful }) => row.keep(harmful > 0, generated.clone()),
                Err(what) => {
                    println!("VIOLATION at seed {seed}, {fault:?}: {what}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let mut missing = 0;
    for (fault, row) in Bug::all().zip(&rows) {
        let name = format!("{fault:?}");
        println!(
            "{name:26} {:>6} contained, {:>6} harmful; {} refused {}",
            row.ran, row.harmful, row.uncontained, row.why
        );
        missing += usize::from(row.ran == 0);
    }
    println!("{:?}\n{missing} of {} have no contained program", planted.seen, rows.len());
    if let Some(file) = file {
        let mut text =
            String::from("Programs that only a planted bug of the verifier lets through; see examples/planted.rs.\n\n");
        for (fault, row) in Bug::all().zip(rows) {
            for (harmful, generated) in row.kept {
                let mut fails = |candidate: &Generated| {
                    let thanks = planted.check(fault, candidate, 8, &mut Choices::from_seed(1));
                    matches!(thanks, Ok(Thanks::Ran { harmful: found }) if !harmful || found > 0)
                };
                let small = if fails(&generated) { soundness::minimise(&generated, &mut fails) } else { generated };
                text += &print(fault, &small);
            }
        }
        if let Err(error) = std::fs::write(&file, text) {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
