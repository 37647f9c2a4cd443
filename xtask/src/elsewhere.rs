//! `cargo xtask elsewhere`: the interpreter's tests, and all that they stand on, where there is no backend or no Linux.
//!
//! Problem: `cargo check` for another system shows that it compiles, not that it works. Approach: the tests of the
//! crates without machine code, and of the example that is the smallest build, are built for riscv64 and for Windows
//! and run under qemu-user and Wine. A missing tool is reported with the package to install; macOS has no emulator.
//!
//! Trap: Wine before 9 lacks `bcryptprimitives.dll`, from which Rust's standard library has its random numbers. It has
//! one function, which is built here.

use crate::{arm64, shell};
use anyhow::Context;
use std::{fs, path::PathBuf, process::Command};

/// Packages under test: the crates that depend on no machine, the interpreter, and the smallest build of the runtime.
const PACKAGES: [&str; 6] =
    ["bpf-isa", "bpf-analysis", "bpf-object", "bpf-interp", "bpf-verifier", "bpf-example-interpreted"];

/// Seconds a test binary may take: the verifier's take minutes where they are emulated.
const TIMEOUT: u32 = 3600;

/// A system, and what builds for it and runs it here.
struct System {
    target: &'static str,
    linker: &'static str,
    emulator: &'static str,
    /// Debian's packages with both.
    packages: &'static [&'static str],
}

const RISCV64: System = System {
    target: "riscv64gc-unknown-linux-gnu",
    linker: "riscv64-linux-gnu-gcc",
    emulator: "qemu-riscv64",
    packages: &["gcc-riscv64-linux-gnu", "libc6-dev-riscv64-cross", "qemu-user"],
};

const WINDOWS: System = System {
    target: "x86_64-pc-windows-gnu",
    linker: "x86_64-w64-mingw32-gcc",
    emulator: "wine",
    packages: &["gcc-mingw-w64-x86-64-win32", "wine", "wine64"],
};

pub(crate) fn run(install: bool) -> anyhow::Result<()> {
    if install {
        arm64::update()?;
    }
    for system in [RISCV64, WINDOWS] {
        if install {
            shell::run(shell::command("rustup").args(["target", "add", system.target]))?;
            arm64::apt_install(system.packages)?;
        }
        if !crate::features::installed(system.target) {
            println!("SKIPPED {}: no standard library for it; `rustup target add {0}`", system.target);
            continue;
        }
        if let Some(tool) =
            [system.linker, system.emulator].iter().find(|tool| shell::first_available(&[tool]).is_none())
        {
            println!("SKIPPED {}: no {tool}; on Debian: apt-get install {}", system.target, system.packages.join(" "));
            continue;
        }
        system.test()?;
    }
    println!("SKIPPED macOS: nothing here runs its programs; `cargo xtask features` checks that they build");
    Ok(())
}

impl System {
    fn test(&self) -> anyhow::Result<()> {
        let mut cargo = shell::cargo();
        let variable = |what: &str| format!("CARGO_TARGET_{}_{what}", self.target.to_uppercase().replace('-', "_"));
        let mut runner = format!("timeout {TIMEOUT} {}", self.emulator);
        if self.emulator == RISCV64.emulator {
            runner += " -L /usr/riscv64-linux-gnu";
        } else {
            // No display is asked for, and what Wine lacks is said by the test that misses it.
            cargo.env("WINEDEBUG", "-all").env("WINEPATH", format!("Z:{}", random_numbers()?.display()));
        }
        cargo.args(["test", "--no-fail-fast", "--target", self.target, "--lib", "--bins", "--tests"]);
        cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
        cargo.env(variable("LINKER"), self.linker).env(variable("RUNNER"), runner);
        shell::run(&mut cargo)
    }
}

/// A folder with a `bcryptprimitives.dll`; where Wine has its own, that comes first.
fn random_numbers() -> anyhow::Result<PathBuf> {
    const SOURCE: &str = "#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom */
__declspec(dllexport) BOOL ProcessPrng(PBYTE to, SIZE_T len) { return SystemFunction036(to, (ULONG)len); }
";
    let folder = shell::target().join("wine");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (source, library) = (folder.join("random.c"), folder.join("bcryptprimitives.dll"));
    fs::write(&source, SOURCE).with_context(|| source.display().to_string())?;
    shell::run(Command::new(WINDOWS.linker).arg("-shared").arg("-o").arg(&library).arg(&source).arg("-ladvapi32"))?;
    Ok(folder)
}
