//! Project commands: `cargo xtask <command>`.
//!
//! Commands that a person or CI runs beyond plain cargo live here, as Rust that builds with the workspace, so that one
//! place knows how the project is tested on both architectures, what the architecture rules are, and how the
//! committed artefacts (objects, the example capture, snapshots) are made. Policy is code: a rule that a
//! script can check is checked by `cargo xtask check`.

mod api;
mod arm64;
mod bench_wasm;
mod blocks;
mod book;
mod capture;
mod causes;
mod check;
mod commands;
mod dependencies;
mod docs;
mod docs_rs;
mod elsewhere;
mod examples;
mod features;
mod figures;
mod form;
mod kernel_arm64;
mod layers;
mod links;
mod listed;
mod locks;
mod miri;
mod nightly;
mod objects;
mod pictures;
mod prose;
mod prove;
mod publish;
mod rules;
mod sanitize;
mod shell;
mod soak;
mod tables;
mod test;
mod trusted;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Project commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests, on this machine's architecture and on arm64 (emulated where it is not this machine's).
    Test {
        /// Install what the arm64 tests need and this machine lacks (Debian; needs root).
        #[arg(long)]
        install: bool,
        /// Only these packages.
        #[arg(short, long)]
        package: Vec<String>,
    },
    /// Rewrite the snapshots of emitted code.
    Bless,
    /// Formatting, lints, documentation, features and systems, the architecture rules, and what we depend on (with
    /// cargo-deny).
    Check,
    /// Sets of features, and other systems whose standard library is installed: `cargo check` of each.
    Features,
    /// Builds the shipped packages' documentation as docs.rs does (part of check).
    DocsRs,
    /// The tests that need no machine code, on riscv64 (qemu-user) and Windows (Wine):
    /// docs/book/reference/platforms.md.
    Elsewhere {
        /// Install missing tools (Debian; needs root).
        #[arg(long)]
        install: bool,
    },
    /// Rewrite the lists of public interfaces, xtask/api/*.txt, which the rules compare.
    Api,
    /// Draw the pictures of the documents, docs/book/images; benches draw their own by `--plot`.
    Pictures,
    /// Build the book, docs/book, as HTML (target/book), with mdBook.
    Book {
        /// Install mdBook into the target folder if it is missing.
        #[arg(long)]
        install: bool,
        /// Address below which readers find the repository's files; without it, links lead to this clone.
        #[arg(long)]
        repository: Option<String>,
    },
    /// The architecture rules alone: seconds.
    Rules,
    /// Our arm64 code beside the kernel's, in an emulated machine: docs/book/explanation/arm64.md.
    KernelArm64 {
        /// Install what this needs and the machine lacks (Debian; needs root).
        #[arg(long)]
        install: bool,
    },
    /// Rebuild the committed BPF objects from their C sources (needs clang 19).
    Objects {
        /// Build into a temporary place and fail if a committed object differs.
        #[arg(long)]
        check: bool,
    },
    /// Run generated programs against the verifier's promises, at length: docs/book/explanation/testing.md.
    Soak {
        /// Accepted programs to run.
        #[arg(default_value_t = 1_000_000)]
        programs: u64,
        /// The first seed; those of other runs are far from it by default.
        #[arg(long)]
        seed: Option<u64>,
        /// On arm64, emulated where it is not this machine's.
        #[arg(long)]
        arm64: bool,
        #[command(flatten)]
        kind: soak::Kind,
    },
    /// Prove the verifier's and the optimiser's rules about numbers with z3: docs/book/explanation/trust.md.
    Prove {
        /// Only obligations with this in their names.
        #[arg(long)]
        only: Option<String>,
        /// Check slow obligations, which take minutes, too.
        #[arg(long)]
        all: bool,
        /// Seconds for one obligation.
        #[arg(long, default_value_t = 120)]
        limit: u64,
        /// Instead, plant deliberate bugs in the verifier: each must be refuted.
        #[arg(long)]
        faults: bool,
        /// Install z3 if it is missing (Debian; needs root).
        #[arg(long)]
        install: bool,
    },
    /// List what must be right in the verifier's core, file by file, and what shows each rule.
    Trusted,
    /// Check the machine code of contained programs, from objects or the corpora: docs/book/explanation/tenants.md.
    Selected {
        /// The objects; by default the speed programs, the verifier's loops, and the shared samples if they are there.
        objects: Vec<std::path::PathBuf>,
    },
    /// Run the tests of the runtime, the maps and the packs under sanitizers:
    /// docs/book/explanation/testing-sanitizers.md.
    Sanitize {
        /// Run under this sanitizer only.
        #[arg(value_enum)]
        sanitizer: Option<sanitize::Sanitizer>,
    },
    /// Run tests of unsafe code that need no emitted code under Miri:
    /// docs/book/explanation/testing-sanitizers.md.
    Miri,
    /// One plug-in's job here, in wasmtime, and in Rust: docs/book/explanation/comparison.md. Builds wasmtime first
    /// (minutes).
    BenchWasm,
    /// Test and run the examples that the tests leave out, DataFusion with it: builds it first (ten minutes).
    Examples,
    /// Test and run the example of a cluster, Ballista: builds it first (400 packages: some ten minutes of two cores).
    Ballista,
    /// Rehearse publishing: pack every shipped crate, and build each from its package. Nothing is uploaded.
    Publish,
    /// Rewrite examples/packets.pcap, the capture the README's command filters.
    Capture,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Test { install, package } => test::run(install, &package),
        Command::Bless => test::bless(),
        Command::Check => check::run(),
        Command::Features => features::check(),
        Command::DocsRs => docs_rs::check(),
        Command::Elsewhere { install } => elsewhere::run(install),
        Command::Api => api::bless(),
        Command::Pictures => pictures::draw(),
        Command::Book { install, repository } => book::build(install, repository),
        Command::Rules => rules::check(),
        Command::KernelArm64 { install } => kernel_arm64::run(install),
        Command::Objects { check } => objects::run(check),
        Command::Soak { programs, seed, arm64, kind } => soak::run(programs, seed, arm64, &kind),
        Command::Prove { only, all, limit, faults, install } => {
            let only = only.into_iter().flat_map(|only| ["--only".to_owned(), only]);
            let arguments: Vec<String> =
                only.chain(all.then(|| "--all".to_owned())).chain([format!("--limit={limit}")]).collect();
            prove::run(install, faults, &arguments)
        }
        Command::Trusted => trusted::run(),
        Command::Selected { objects } => {
            let example = ["run", "-q", "-p", "bpf-testkit", "--features", "oracle", "--example", "selected", "--"];
            shell::run(shell::cargo().args(example).args(objects))
        }
        Command::Sanitize { sanitizer } => sanitize::run(sanitizer),
        Command::Miri => miri::run(),
        Command::BenchWasm => bench_wasm::run(),
        Command::Examples => examples::run(),
        Command::Ballista => examples::ballista(),
        Command::Publish => publish::rehearse(),
        Command::Capture => capture::run(),
    }
}
