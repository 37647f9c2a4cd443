//! The `bpf` command.
//!
//! One module per subcommand; `input` (objects, packets, hex) and `load` (an object or instructions through the
//! runtime) are shared. Results go to standard output, all other text to standard error (`out`). The exit status is
//! 0, or 1 with a message. Under `--json` that message is a result too: `{"error": "…"}`.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod build;
mod cases;
mod context;
mod coverage;
mod debug;
mod disasm;
#[cfg(test)]
mod documented;
mod fill;
mod fuzz;
mod header;
mod header_rust;
mod host;
mod input;
mod inspect;
mod load;
mod manual;
mod maps;
mod new;
mod out;
mod packets;
mod plugin;
mod prove;
mod replay;
mod run;
mod run_host;
mod scenario;
mod stepper;
mod test;
mod test_case;
mod values;
mod verify;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
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
    Build(build::Args),
    Run(run::Args),
    Inspect(inspect::Args),
    Debug(debug::Args),
    Disasm(disasm::Args),
    Header(header::Args),
    Cases(cases::Args),
    Completions(manual::Completions),
    Man(manual::Man),
    New(new::Args),
    Plugin(plugin::Args),
    Prove(prove::Args),
    Replay(replay::Args),
    Scenario(scenario::Args),
    Test(test::Args),
    Verify(verify::Args),
}

impl Command {
    fn run(&self) -> Result<ExitCode> {
        match self {
            Command::Build(args) => build::run(args),
            Command::Run(args) => run::run(args),
            Command::Inspect(args) => inspect::run(args),
            Command::Debug(args) => debug::run(args),
            Command::Disasm(args) => disasm::run(args),
            Command::Header(args) => header::run(args),
            Command::Cases(args) => cases::run(args),
            Command::Completions(args) => manual::completions(args, Args::command()),
            Command::Man(args) => manual::man(args, Args::command()),
            Command::New(args) => new::run(args),
            Command::Plugin(args) => plugin::run(args),
            Command::Prove(args) => prove::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Scenario(args) => scenario::run(args),
            Command::Test(args) => test::run(args),
            Command::Verify(args) => verify::run(args),
        }
    }

    /// Whether the command's output is JSON.
    fn json(&self) -> bool {
        match self {
            Command::Run(args) => args.json,
            Command::Inspect(args) => args.json,
            Command::Prove(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Disasm(args) => args.json,
            Command::Test(args) => args.json,
            Command::Build(_)
            | Command::Cases(_)
            | Command::Completions(_)
            | Command::Debug(_)
            | Command::Header(_)
            | Command::Man(_)
            | Command::New(_)
            | Command::Plugin(_)
            | Command::Replay(_)
            | Command::Scenario(_) => false,
        }
    }
}

fn main() -> ExitCode {
    // A reader that closes the pipe (`bpf disasm … | head`) ends this process by SIGPIPE, instead of failing a print.
    bpf_os::process::end_with_the_pipe();
    let (result, json) = match Args::try_parse() {
        Ok(Args { command }) => (command.run(), command.json()),
        // Help and version are results, and go to standard output.
        Err(usage) if !usage.use_stderr() => (usage.print().map(|()| ExitCode::SUCCESS).map_err(Into::into), false),
        Err(usage) => usage.exit(),
    };
    let result = result.and_then(|code| {
        out::finish()?;
        Ok(code)
    });
    let Err(error) = result else { return result.unwrap_or(ExitCode::SUCCESS) };
    out::failure(&error, json);
    ExitCode::FAILURE
}
