//! `bpf verify`: is each program of an object harmless, and if not, why?

use crate::load::{self, ContextArg, EngineArg};
use anyhow::{Result, bail};
use bpf_runtime::{Linker, MapSet, Raw, Skb, VerifyReport, Xdp};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Verify the programs of an object. Exit status 1 if one is refused.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The object file.
    object: PathBuf,
    /// Only this program.
    #[arg(long)]
    program: Option<String>,
    /// What the programs run on; by default what their sections are for.
    #[arg(long, value_enum)]
    ctx: Option<ContextArg>,
    /// Show the walk.
    #[arg(long)]
    log: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Verdict {
    program: String,
    accepted: bool,
    /// Instructions walked, over all paths.
    steps: Option<u64>,
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let engine = load::engine(EngineArg::Interp)?;
    let object = load::object(&args.object)?;
    let linker = Linker::<load::NoHost>::new(&engine);
    let mut verdicts = Vec::new();
    for program in object.programs().iter().filter(|p| args.program.as_deref().is_none_or(|name| name == p.name())) {
        let maps = MapSet::for_object(&engine, &object)?;
        let name = program.name();
        let result = match args.ctx.unwrap_or(ContextArg::of(program.kind())) {
            ContextArg::Raw => linker.loader::<Raw>().only(&[name]).verify(&object, maps, args.log),
            ContextArg::Xdp => linker.loader::<Xdp>().only(&[name]).verify(&object, maps, args.log),
            ContextArg::Skb => linker.loader::<Skb>().only(&[name]).verify(&object, maps, args.log),
        };
        verdicts.push(verdict(name, result));
    }
    if verdicts.is_empty() {
        bail!("the object has no such program");
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&verdicts)?);
    } else {
        verdicts.iter().for_each(print);
    }
    let accepted = verdicts.iter().all(|v| v.accepted);
    Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(name: &str, result: Result<Vec<VerifyReport>, bpf_runtime::LoadError>) -> Verdict {
    let program = name.to_owned();
    match result {
        Ok(reports) => {
            let (steps, log) = reports.into_iter().next().map(|r| (r.steps, r.log)).unzip();
            Verdict { program, accepted: true, steps, error: None, log: log.unwrap_or_default() }
        }
        Err(error) => {
            Verdict { program, accepted: false, steps: None, error: Some(error.to_string()), log: Vec::new() }
        }
    }
}

fn print(verdict: &Verdict) {
    for line in &verdict.log {
        println!("{line}");
    }
    match &verdict.error {
        None => println!("{}: accepted, {} instructions walked", verdict.program, verdict.steps.unwrap_or(0)),
        Some(error) => println!("{}: refused\n{error}", verdict.program),
    }
}
