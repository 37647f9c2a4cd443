//! Project commands: `cargo xtask <command>`.
//!
//! What a person or CI runs beyond plain cargo lives here, as Rust that builds with the workspace, so that there is one
//! place that knows how the project is tested on both architectures, what the architecture rules are, and how the
//! committed artefacts (objects, the example capture, snapshots) are made. Policy is code: a rule that a
//! script can check is checked by `cargo xtask check`.

mod capture;
mod objects;
mod shell;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Project commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Rebuild the committed BPF objects from their C sources (needs clang 19).
    Objects {
        /// Build into a temporary place and fail if a committed object differs.
        #[arg(long)]
        check: bool,
    },
    /// Rewrite examples/packets.pcap, the capture the README's command filters.
    Capture,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Objects { check } => objects::run(check),
        Command::Capture => capture::run(),
    }
}
