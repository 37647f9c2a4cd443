//! The `bpf` command.
//!
//! One module a subcommand; what they share is `input` (objects, packets, hex) and `load` (an object or instructions through the
//! runtime). Results go to standard output, everything else to standard error; the exit status is 0, or 1 with a message.

mod cases;
mod disasm;
mod input;
mod inspect;
mod load;
mod maps;
mod plugin;
mod run;
mod scenario;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Load, run, inspect and disassemble BPF programs in user space.
#[derive(Parser)]
#[command(name = "bpf", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Inspect(inspect::Args),
    Disasm(disasm::Args),
    Cases(cases::Args),
    Plugin(plugin::Args),
    Scenario(scenario::Args),
    Verify(verify::Args),
}

fn main() -> ExitCode {
    // A reader that has seen enough (`bpf disasm … | head`) ends this process as it ends any other, instead of failing a print.
    // SAFETY: nothing else has run yet, and the default action is a valid one.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let result = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Disasm(args) => disasm::run(&args),
        Command::Cases(args) => cases::run(&args),
        Command::Plugin(args) => plugin::run(&args),
        Command::Scenario(args) => scenario::run(&args),
        Command::Verify(args) => verify::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bpf: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, without those that it repeats itself.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
