//! `bpf completions` and `bpf man`: scripts for shells and manual pages, generated from the command's own arguments.

use crate::out;
use anyhow::{Context, Result};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print a script that completes the command's arguments in a shell.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write manual pages, one for the command and one for each subcommand.
#[derive(clap::Args)]
pub(crate) struct Man {
    /// The folder, for example `/usr/local/share/man/man1`. It is created if it does not exist.
    folder: PathBuf,
}

pub(crate) fn completions(args: &Completions, mut command: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "bpf", &mut script);
    out::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &Man, command: clap::Command) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(command, &args.folder))
        .with_context(|| format!("cannot write to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
