//! `cargo xtask examples`: the examples that are too heavy for the tests.
//!
//! Each is a workspace of its own, with peers that nothing else here needs (a query engine of 230 packages): so the
//! tests do not build it, and `cargo xtask check` does not look at it. It is tested and run here.

use crate::shell;

const HEAVY: [&str; 1] = ["examples/datafusion"];

pub(crate) fn run() -> anyhow::Result<()> {
    for folder in HEAVY.map(|folder| shell::root().join(folder)) {
        let cargo = |args: &[&str]| shell::run(shell::cargo().current_dir(&folder).args(args));
        cargo(&["fmt", "--check"])?;
        cargo(&["test", "--release", "--locked"])?;
        cargo(&["run", "--release", "--locked"])?;
    }
    Ok(())
}

/// `cargo xtask ballista`: the cluster's example, without optimisation, which would take the compiler longer than the
/// tests take.
pub(crate) fn ballista() -> anyhow::Result<()> {
    let folder = shell::root().join("examples/ballista");
    let cargo = |args: &[&str]| shell::run(shell::cargo().current_dir(&folder).args(args));
    cargo(&["fmt", "--check"])?;
    cargo(&["test", "--locked"])?;
    cargo(&["run", "--locked"])
}
