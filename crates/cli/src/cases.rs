//! `bpf cases`: runs a file of programs with expected results, one JSON object per line.
//!
//! Fields: `name`, `program_hex`, `mem_hex` or `mem_size`, and `expected` (64-bit r0, or "reject") or `expected_u32`
//! (its low half). r1 is the memory's address (0 if there is none), r2 its length.

use crate::input::{parse_hex, read_text};
use crate::load::{self, EngineArgs};
use crate::out::{self, line};
use anyhow::{Context, Result, anyhow, bail};
use bpf_runtime::{Engine, Linker};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a file of cases: each failure is printed, and last `N passed, M failed`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file, one case a line.
    file: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The largest `mem_size` of a case: its zero bytes cost the file nothing, but take memory.
const MAX_MEMORY: usize = 64 << 20;

#[derive(Deserialize)]
struct Case {
    name: String,
    program_hex: String,
    #[serde(default)]
    mem_hex: Option<String>,
    #[serde(default)]
    mem_size: Option<usize>,
    #[serde(default)]
    expected: Option<String>,
    #[serde(default)]
    expected_u32: Option<Number>,
}

/// A number, as JSON or as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Value(u64),
    Text(String),
}

enum Expected {
    Reject,
    Result(u64),
    Low(u32),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let file = read_text(&args.file)?;
    let engine = load::engine(&args.engine)?;
    let linker = load::conformance_linker(&engine)?;
    let (mut passed, mut failed) = (0u32, 0u32);
    for (number, line) in file.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let case: Case =
            serde_json::from_str(line).with_context(|| format!("{}:{}", args.file.display(), number + 1))?;
        match check(&engine, &linker, &case) {
            Ok(()) => passed += 1,
            Err(why) => {
                failed += 1;
                line!("{}: {why:#}", case.name)?;
            }
        }
    }
    out::totals(passed, failed)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(engine: &Engine, linker: &Linker<load::NoHost>, case: &Case) -> Result<()> {
    let expected = expected(case)?;
    let result = execute(engine, linker, case);
    match (expected, result) {
        (Expected::Reject, Err(Failure::Refused(_))) => Ok(()),
        (Expected::Reject, Ok(r0)) => bail!("was to be rejected, returned {r0:#x}"),
        (_, Err(Failure::Refused(error) | Failure::Run(error))) => Err(error),
        (Expected::Result(want), Ok(r0)) if r0 == want => Ok(()),
        (Expected::Result(want), Ok(r0)) => bail!("returned {r0:#x}, expected {want:#x}"),
        (Expected::Low(want), Ok(r0)) if low(r0) == want => Ok(()),
        (Expected::Low(want), Ok(r0)) => bail!("returned {:#x} in the low half, expected {want:#x}", low(r0)),
    }
}

/// The low half of a result.
#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
pub(crate) fn low(r0: u64) -> u32 {
    r0 as u32
}

enum Failure {
    /// The program was not loaded.
    Refused(anyhow::Error),
    /// The run failed.
    Run(anyhow::Error),
}

fn execute(engine: &Engine, linker: &Linker<load::NoHost>, case: &Case) -> Result<u64, Failure> {
    let program = parse_hex(&case.program_hex).map_err(Failure::Run)?;
    let mut memory = match (&case.mem_hex, case.mem_size) {
        (Some(hex), _) => parse_hex(hex).map_err(Failure::Run)?,
        (None, Some(size)) if size > MAX_MEMORY => {
            return Err(Failure::Run(anyhow!("mem_size is {size}; at most {MAX_MEMORY} are possible")));
        }
        (None, size) => vec![0; size.unwrap_or(0)],
    };
    let insns = bpf_runtime::isa::decode(&program).map_err(|e| Failure::Refused(e.into()))?;
    let program = load::insns(engine, linker, insns).map_err(Failure::Refused)?;
    program.run(&mut (), &mut memory).map_err(|e| Failure::Run(e.into()))
}

fn expected(case: &Case) -> Result<Expected> {
    match (&case.expected, &case.expected_u32) {
        (Some(text), _) if text == "reject" => Ok(Expected::Reject),
        (Some(text), _) => Ok(Expected::Result(number(text)?)),
        (None, Some(Number::Value(value))) => Ok(Expected::Low(low(*value))),
        (None, Some(Number::Text(text))) => Ok(Expected::Low(low(number(text)?))),
        (None, None) => bail!("the case has no expected result"),
    }
}

/// Decimal, or hexadecimal with `0x`.
fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse().or_else(|_| text.parse::<i64>().map(|v| v as u64)),
    }
    .with_context(|| format!("`{text}` is not a number"))
}
