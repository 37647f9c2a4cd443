//! `cargo xtask prove`: the rules about numbers, the verifier's and the optimiser's, for all numbers, by a solver.
//!
//! The proofs are a program of their own (`crates/prove`), so that the other commands need not be built with the
//! verifier and the optimiser. The solver is Debian's `z3`; where it is missing, a line that starts with `SKIPPED` says
//! so.

use crate::{arm64, shell, test::PLANTED};
use std::process::Command;

pub(crate) fn run(install: bool, faults: bool, arguments: &[String]) -> anyhow::Result<()> {
    let missing = || shell::first_available(&["z3"]).is_none();
    if install && missing() {
        arm64::update()?;
        arm64::apt_install(&["z3"])?;
    }
    if missing() {
        println!("SKIPPED all proofs: no z3\nTo run them: apt-get install z3");
        return Ok(());
    }
    // In the whole workspace, with the features of its tests: cargo builds the verifier once for both.
    let mut build = shell::cargo();
    build.args(["build", "-q", "--workspace", "--bin", "bpf-prove"]);
    if faults {
        // With debug assertions: a release build refuses the feature.
        build.args(["--features", "bpf-prove/faults"]);
        build.args(PLANTED.iter().flat_map(|(_, feature)| ["--features", feature]));
    }
    shell::run(&mut build)?;
    let mut prove = Command::new(shell::target().join("debug/bpf-prove"));
    prove.args(arguments);
    if faults {
        prove.arg("--faults");
    }
    shell::run(&mut prove)
}
