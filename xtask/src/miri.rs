//! `cargo xtask miri`: tests of unsafe code that need no emitted code, under Miri.
//!
//! Problem: a test passes where an access is undefined behaviour but does no harm on this machine: a reference that
//! outlives its value, a misaligned read, an ordering that this processor does not need. Approach: Miri interprets the
//! tests and reports each of these. System calls that Miri does not know return "not here" in `bpf-os`, so that
//! domains use fences. Domains read the clock and the process's number (no isolation).
//!
//! Needs a nightly toolchain with the component `miri`.

use crate::shell;

/// Packages whose unit tests run. Arenas of bpf-prog-pack read `/proc/self/maps`, which Miri cannot open.
const PACKAGES: [&str; 1] = ["bpf-quiesce"];

pub(crate) fn run() -> anyhow::Result<()> {
    // A failed command and one that cannot be started both mean that Miri is absent.
    let here = cargo().arg("--version").output().is_ok_and(|output| output.status.success());
    if !here {
        println!("SKIPPED: no Miri; `rustup toolchain install nightly --profile minimal -c miri -c rust-src`");
        return Ok(());
    }
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    shell::run(cargo().args(["test", "--lib"]).args(packages))
}

fn cargo() -> std::process::Command {
    // By its name, not the cargo that runs us: only rustup's knows other toolchains.
    let mut cargo = shell::command("cargo");
    // A toolchain that runs us says so in the environment.
    cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC");
    cargo
        .env("MIRIFLAGS", "-Zmiri-permissive-provenance -Zmiri-disable-isolation")
        .env("CARGO_TARGET_DIR", shell::target().join("miri"))
        .args(["+nightly", "miri"]);
    cargo
}
