//! Tools that run arm64 tests on another machine: a Rust with an arm64 standard library, a cross linker, and qemu-user.
//!
//! Each of the three is looked for, and installed on demand on Debian. The traps, each found by measurement:
//! * qemu-user before 10 does not see code written through an alias mapping, so that a JIT with two mappings runs stale
//!   code and tests of patching pass vacuously: an older one is refused. On bookworm the right one is in backports.
//! * `-L` with Debian's arm64 libc installed mixes two libc versions, and thread creation spins for ever: no `-L`.
//! * Emulated code can hang where real code does not: every test binary runs under `timeout`.

use crate::shell;
use anyhow::{Context, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
pub(crate) const QEMU: &str = "qemu-aarch64";
const QEMU_MAJOR: u32 = 10;
/// Seconds a test binary may take under emulation.
const TIMEOUT: u32 = 900;
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

const HOW: &str = "on Debian, `cargo xtask test --install` (as root); elsewhere install qemu-user 10 or newer, \
                   an aarch64-linux-gnu cross compiler, and `rustup target add aarch64-unknown-linux-gnu`";

/// Tools for arm64 tests, each found or installed.
pub(crate) struct Cross {
    rustc: PathBuf,
    qemu: String,
}

/// Something is missing and was not to be installed.
pub(crate) struct Missing {
    pub(crate) what: String,
    pub(crate) how: &'static str,
}

impl Cross {
    /// Finds the tools; with `install`, installs the missing ones.
    pub(crate) fn find(install: bool) -> anyhow::Result<Result<Cross, Missing>> {
        if install {
            install_missing()?;
        }
        let mut missing = Vec::new();
        let rustc = rustc();
        if rustc.is_none() {
            missing.push(format!("no Rust with a standard library for {TARGET}"));
        }
        if shell::first_available(&[LINKER]).is_none() {
            missing.push(format!("no {LINKER}"));
        }
        let qemu = qemu_version();
        match &qemu {
            None => missing.push(format!("no {QEMU}")),
            Some((major, version)) if *major < QEMU_MAJOR => {
                missing.push(format!("{QEMU} {version} is too old (needs {QEMU_MAJOR})"));
            }
            Some(_) => {}
        }
        Ok(match (rustc, qemu) {
            (Some(rustc), Some((_, qemu))) if missing.is_empty() => Ok(Cross { rustc, qemu }),
            (_, _) => Err(Missing { what: missing.join(", "), how: HOW }),
        })
    }

    /// The tools in one line.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {LINKER}, {QEMU} {}", self.rustc.display(), self.qemu)
    }

    /// Cargo, set to build for arm64 and to run under the emulator.
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = shell::cargo();
        // Its own target directory: the compilers differ, and would rebuild each other's build scripts.
        cargo
            .env("RUSTC", &self.rustc)
            .env("RUSTDOC", self.rustc.with_file_name("rustdoc"))
            .env("CARGO_TARGET_DIR", shell::target().join("arm64"))
            .env("CARGO_BUILD_TARGET", TARGET)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("timeout {TIMEOUT} {QEMU}"));
        cargo
    }
}

/// A compiler with an arm64 standard library: the default one, else Debian's.
fn rustc() -> Option<PathBuf> {
    [Path::new("rustc"), Path::new(DEBIAN_RUSTC)].into_iter().find(|rustc| has_std(rustc)).map(Path::to_path_buf)
}

fn has_std(rustc: &Path) -> bool {
    let Some(folder) = output(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET])) else {
        return false;
    };
    let Ok(entries) = fs::read_dir(folder.trim()) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

/// The emulator's major version and its whole version.
fn qemu_version() -> Option<(u32, String)> {
    // "qemu-aarch64 version 10.0.2 (Debian …)"
    let text = output(Command::new(QEMU).arg("--version"))?;
    let version = text.split_whitespace().skip_while(|word| *word != "version").nth(1)?.to_owned();
    Some((version.split('.').next()?.parse().ok()?, version))
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn install_missing() -> anyhow::Result<()> {
    let rust = rustc().is_none();
    let linker = shell::first_available(&[LINKER]).is_none();
    let qemu = qemu_version().is_none_or(|(major, _)| major < QEMU_MAJOR);
    if !(rust || linker || qemu) {
        return Ok(());
    }
    if shell::first_available(&["apt-get"]).is_none() {
        bail!("--install works on Debian only; {HOW}");
    }
    if rust {
        add_architecture()?;
    } else {
        update()?;
    }
    if linker {
        apt_install(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])?;
    }
    if rust && apt_install(&["rustc-web", "libstd-rust-web-dev:arm64"]).is_err() {
        // Only Debian's stable releases carry the second Rust; rustup has the target where its server can be reached.
        shell::run(shell::command("rustup").args(["target", "add", TARGET]))?;
    }
    if qemu {
        install_emulator("qemu-user")?;
    }
    Ok(())
}

/// Makes apt know arm64 packages.
pub(crate) fn add_architecture() -> anyhow::Result<()> {
    shell::run(shell::command("dpkg").args(["--add-architecture", "arm64"]))?;
    update()
}

pub(crate) fn update() -> anyhow::Result<()> {
    shell::run(shell::command("apt-get").args(["update", "-q"]))
}

/// Installs a package of qemu, from the release that has it new enough.
pub(crate) fn install_emulator(package: &str) -> anyhow::Result<()> {
    add_backports()?;
    update()?;
    match backports()? {
        Some(suite) => apt_install(&["-t", &suite, package]),
        None => apt_install(&[package]),
    }
}

pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    shell::run(
        shell::command("apt-get")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// The backports suite, on the release whose own qemu is too old.
fn backports() -> anyhow::Result<Option<String>> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok((codename == Some("bookworm")).then(|| "bookworm-backports".to_owned()))
}

fn add_backports() -> anyhow::Result<()> {
    let Some(suite) = backports()? else { return Ok(()) };
    let file = Path::new("/etc/apt/sources.list.d/bookworm-backports.list");
    if !file.exists() {
        let line = format!("deb http://deb.debian.org/debian {suite} main\n");
        fs::write(file, line).with_context(|| format!("cannot write {}: root is needed", file.display()))?;
    }
    Ok(())
}
