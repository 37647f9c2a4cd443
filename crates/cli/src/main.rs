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
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
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

/// Options that have an effect only with another one: the subcommand, the option, and the other one. Not by clap's
/// `requires`, which is not checked if the other one conflicts with an option that is given.
const NEEDS: [(&str, &str, &str); 9] = [
    ("run", "record", "host"),
    ("run", "field", "host"),
    ("run", "result", "host"),
    ("run", "out_only", "out"),
    ("debug", "field", "host"),
    ("debug", "result", "host"),
    ("debug", "case", "cases"),
    ("test", "fuzz_inputs", "fuzz"),
    ("replay", "host", "object"),
];

/// Refuses an option of a subcommand where the option that it needs is absent.
fn check_needs(matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, given)) = matches.subcommand() else { return Ok(()) };
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let lacks = |(of, option, needed): &&(&str, &str, &str)| *of == name && is_given(option) && !is_given(needed);
    let Some((_, option, needed)) = NEEDS.iter().find(lacks) else { return Ok(()) };
    let mut command = Args::command();
    command.build();
    let Some(command) = command.find_subcommand_mut(name) else { return Ok(()) };
    let text = format!("--{option} needs --{needed}").replace('_', "-");
    Err(command.error(ErrorKind::MissingRequiredArgument, text))
}

/// The arguments of the process.
fn arguments() -> Result<Args, Error> {
    let matches = Args::command().try_get_matches()?;
    check_needs(&matches)?;
    Args::from_arg_matches(&matches)
}

fn main() -> ExitCode {
    // A reader that closes the pipe (`bpf disasm … | head`) ends this process by SIGPIPE, instead of failing a print.
    bpf_os::process::end_with_the_pipe();
    let (result, json) = match arguments() {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// clap does not ask for a required option that conflicts with a given one.
    #[test]
    fn options_without_the_one_that_they_need_are_refused() {
        for (text, needed) in [
            ("run a.o --record a.rec", "--host"),
            ("run a.o --record a.rec --data hex:00", "--host"),
            ("run a.o --record a.rec --ctx raw --headroom 8", "--host"),
            ("run a.o --field client=7 --data hex:00", "--host"),
            ("run a.o --result say=7 --out a.pcap", "--host"),
            ("run a.o --out-only 2 --host a.json", "--out"),
            ("debug --cases a.toml --field client=7", "--host"),
            ("debug a.o --result say=7 --data hex:00", "--host"),
            ("debug a.o --case first --data hex:00", "--cases"),
            ("replay a.rec --host a.json", "--object"),
            ("test a.toml --fuzz-inputs 3", "--fuzz"),
        ] {
            let given = Args::command().try_get_matches_from(["bpf"].into_iter().chain(text.split(' ')));
            let error = given.and_then(|given| check_needs(&given)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{text}: {error}");
            assert!(error.to_string().contains(needed), "{text}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
        for text in ["run a.o", "run a.o --record a.rec --host a.json", "run a.o --out a.pcap --out-only 2"] {
            let given = Args::command().try_get_matches_from(["bpf"].into_iter().chain(text.split(' ')));
            given.and_then(|given| check_needs(&given)).unwrap();
        }
    }
}
