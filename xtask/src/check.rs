//! `cargo xtask check`: formatting, lints, documentation, features and systems, the architecture rules, and what we
//! depend on. Warnings are errors here.

use crate::{dependencies, docs_rs, features, rules, shell};

pub(crate) fn run() -> anyhow::Result<()> {
    rules::check()?;
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    shell::run(shell::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    shell::run(shell::cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    docs_rs::check()?;
    features::check()?;
    dependencies::check()?;
    println!("checks passed");
    Ok(())
}
