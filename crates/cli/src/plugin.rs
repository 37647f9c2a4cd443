//! `bpf plugin`: the plugin protocol of bpf_conformance. The memory is a hex argument, the program comes on standard
//! input, r0 goes in hex to standard output; on failure, a message goes to standard error and the exit status is 1.

use crate::input::{parse_hex, read_all};
use crate::load::{self, EngineArgs, Trust};
use crate::out::line;
use anyhow::{Context, Result};
use bpf_runtime::{Object, Raw};
use std::process::ExitCode;

/// Run one program given on standard input and print r0 in hex.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The memory in r1, as hex; its length is in r2.
    memory: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Standard input is an ELF object, as it is or in hex; its first program is run.
    #[arg(long)]
    elf: bool,
    /// The program's bytes, instead of standard input; accepted because other runners pass it.
    #[arg(long, value_name = "HEX")]
    program: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut memory = parse_hex(args.memory.as_deref().unwrap_or("")).context("memory")?;
    let mut input = Vec::new();
    match &args.program {
        Some(program) => input.extend_from_slice(program.as_bytes()),
        None => {
            input = read_all(std::io::stdin()).context("standard input")?;
        }
    }
    let engine = load::engine(&args.engine)?;
    let linker = load::conformance_linker(&engine)?;
    let program = if args.elf {
        let bytes = if input.starts_with(b"\x7fELF") { input } else { parse_text(&input)? };
        let object = Object::parse(&bytes)?;
        let first = object.programs().first().context("the object has no program")?.name();
        load::instance::<Raw>(&engine, &linker, &object, &[first], Trust::Unverified)?.program(first)?
    } else {
        load::insns(&engine, &linker, bpf_runtime::isa::decode(&parse_text(&input)?)?)?
    };
    let r0 = program.run(&mut (), &mut memory)?;
    line!("{r0:x}")?;
    Ok(ExitCode::SUCCESS)
}

fn parse_text(input: &[u8]) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(input).context("standard input is not hex")?;
    parse_hex(text).context("standard input")
}
