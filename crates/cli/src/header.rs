//! `bpf header`: the C header of a described host.

use crate::host;
use crate::out::text;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the C header that plug-ins of a host include: its context and the declarations of its functions.
///
/// The host is described by its service, which writes the result of `Linker::describe` as JSON.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The description of the host.
    #[arg(value_name = "HOST.json")]
    host: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let host = host::describe(&args.host)?;
    text!("{}", host.header().with_context(|| args.host.display().to_string())?)?;
    Ok(ExitCode::SUCCESS)
}
