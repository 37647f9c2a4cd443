//! Builds that not everybody makes: sets of the runtime's features, other systems, and the oldest Rust.
//!
//! Problem: code of some features or systems only breaks unseen where everything is always on. Approach: the library
//! is checked for each set of features that takes something away, and without features for each target whose standard
//! library is installed; nothing is linked, so no cross linker is needed. The shipped crates are checked by the Rust
//! that their manifests promise (`rust-version`), with features that take nothing away: clippy's `incompatible_msrv`
//! knows the standard library, but not the language, nor what our dependencies need. A target or a toolchain that is
//! not installed is reported as skipped.

use crate::{nightly, publish, shell};
use anyhow::Context;
use std::path::Path;
use std::process::Command;

/// Sets of features of `bpf-runtime`, each without the defaults. The default set is built by every other command.
const SETS: [&str; 5] = ["", "derive", "jit", "debug", "serde,tracing"];

/// Systems of docs/book/reference/platforms.md other than the systems that the tests run on.
const TARGETS: [&str; 3] = ["riscv64gc-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Roots of the shipped crates: every other shipped crate is a dependency of one of these.
const SHIPPED: [&str; 3] = ["bpf-runtime", "bpf-cli", "bpf-guest"];

/// Features of [`SHIPPED`] beside the defaults.
const ALL: &str = "bpf-runtime/cross,bpf-runtime/serde,bpf-runtime/tracing";

/// Checks each set of features, each target that is installed, and the oldest Rust.
pub(crate) fn check() -> anyhow::Result<()> {
    for set in SETS {
        shell::run(library().args(["--features", set]))?;
    }
    for target in TARGETS {
        if installed(target) {
            shell::run(library().args(["--target", target]))?;
        } else {
            println!("SKIPPED {target}: no standard library for it; `rustup target add {target}`");
        }
    }
    check_oldest()
}

/// Checks what is shipped with the Rust that its manifests promise.
fn check_oldest() -> anyhow::Result<()> {
    let metadata = publish::metadata()?;
    let mut packages = metadata["packages"].as_array().context("no packages")?.iter();
    let runtime = packages.find(|package| package["name"] == SHIPPED[0]).context("no bpf-runtime")?;
    let oldest = runtime["rust_version"].as_str().context("the manifest of bpf-runtime has no `rust-version`")?;
    if !nightly::is_there(oldest) {
        println!("SKIPPED Rust {oldest}: not installed; `rustup toolchain install {oldest} --profile minimal`");
        return Ok(());
    }
    let packages = SHIPPED.iter().flat_map(|package| ["-p", package]);
    shell::run(nightly::of(oldest, &["cargo", "check", "-q", "--features", ALL]).args(packages))
}

/// `cargo check` of the library, without features.
fn library() -> Command {
    let mut cargo = shell::cargo();
    cargo.args(["check", "-q", "-p", "bpf-runtime", "--no-default-features"]);
    cargo
}

/// Whether the compiler has a standard library for this target.
pub(crate) fn installed(target: &str) -> bool {
    let output = shell::command("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    folder.is_some_and(|folder| Path::new(folder.trim()).is_dir())
}
