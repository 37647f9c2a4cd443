//! The nightly toolchain that `bpf new --lang rust` pins: it compiles plug-ins, and documentation as docs.rs does.

use crate::shell;
use anyhow::Context;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The toolchain's name.
pub(crate) fn pinned() -> anyhow::Result<String> {
    let pinned = fs::read_to_string(shell::root().join("crates/cli/templates/rust/rust-toolchain.toml"))?;
    let channel = pinned.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    Ok(channel.context("no channel is pinned")?.to_owned())
}

/// A program of a toolchain. By rustup, which finds the compiler beside that cargo: the one that runs us is another's.
pub(crate) fn of(toolchain: &str, program: &[&str]) -> Command {
    let mut rustup = shell::command("rustup");
    rustup.args(["run", toolchain]).args(program);
    rustup.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC").env_remove("RUSTUP_TOOLCHAIN");
    rustup
}

/// Whether the toolchain is there. Does not install it.
pub(crate) fn is_there(toolchain: &str) -> bool {
    of(toolchain, &["rustc", "--version"]).output().is_ok_and(|output| output.status.success())
}

/// Installs the pinned toolchain, and downloads the sources that cargo compiles `core` with: the tests do not use the
/// network.
pub(crate) fn install() -> anyhow::Result<()> {
    if shell::first_available(&["rustup"]).is_none() {
        return Ok(());
    }
    let channel = pinned()?;
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "install", &channel, "--no-self-update"]);
    rustup.args(["--profile", "minimal", "--component", "rust-src", "--component", "llvm-tools"]);
    shell::run(&mut rustup)?;
    let found = of(&channel, &["rustc", "--print", "sysroot"]).output()?;
    let library = Path::new(String::from_utf8(found.stdout)?.trim()).join("lib/rustlib/src/rust/library/Cargo.toml");
    shell::run(of(&channel, &["cargo", "fetch", "--manifest-path"]).arg(library))
}
