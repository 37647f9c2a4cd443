//! `bpf header`: a described host as plug-ins include it, in C or in Rust.

use crate::out::text;
use crate::{header_rust, host};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print what plug-ins of a host include: its context and the declarations of its functions, in C.
///
/// The host is described by its service, which writes the result of `Linker::describe` as JSON.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The description of the host.
    #[arg(value_name = "HOST.json")]
    host: PathBuf,
    /// Print a module for plug-ins in Rust, which depend on `bpf-guest`: the context, the functions, the maps' types.
    #[arg(long)]
    rust: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let host = host::describe(&args.host)?;
    let module = || header_rust::module(&host).map(|text| text.trim_end().to_owned());
    let header = if args.rust { module() } else { host.header().map_err(Into::into) };
    text!("{}", header.with_context(|| args.host.display().to_string())?)?;
    Ok(ExitCode::SUCCESS)
}
