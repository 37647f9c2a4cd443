//! `cargo xtask check`: formatting, lints, documentation, and the architecture rules. Warnings are errors here.

use crate::{rules, shell};

pub(crate) fn run() -> anyhow::Result<()> {
    rules::check()?;
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    shell::run(shell::cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    println!("checks passed");
    Ok(())
}
