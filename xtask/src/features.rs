//! Builds that not everybody makes: sets of the runtime's features, other systems, and what loom explores.
//!
//! Problem: what only some features or systems have breaks unseen where everything is always on, and so does what loom
//! leaves out. Approach: the library is checked for each set of features that takes something away, and without
//! features for each target whose standard library is installed; nothing is linked, so no cross linker is needed. A
//! target that is not installed is reported as skipped.

use crate::shell;
use std::path::Path;
use std::process::Command;

/// Sets of features of `bpf-runtime`, each without the defaults. What everybody builds is checked elsewhere.
const SETS: [&str; 5] = ["", "derive", "jit", "debug", "serde,tracing"];

/// Systems of docs/platforms.md other than those that the tests run on.
const TARGETS: [&str; 3] = ["riscv64gc-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Checks each set of features, each target that is installed, and what is built for loom.
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
    shell::run(&mut crate::test::for_loom(&["check", "-q", "--profile", "test"], &crate::test::LOOM))
}

/// `cargo check` of the library, without features.
fn library() -> Command {
    let mut cargo = shell::cargo();
    cargo.args(["check", "-q", "-p", "bpf-runtime", "--no-default-features"]);
    cargo
}

/// Whether the compiler has a standard library for this target.
fn installed(target: &str) -> bool {
    let output = shell::command("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    folder.is_some_and(|folder| Path::new(folder.trim()).is_dir())
}
