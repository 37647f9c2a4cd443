//! Code that the tests and benches of the family share; never a dependency of shipped code.
//!
//! * [`cases`]: programs with expected results, one file for all engines;
//! * [`kernel`]: the Linux kernel as an oracle and as a peer, through bpf(2);
//! * [`generate`]: programs for differential testing, valid and terminating by construction;
//! * `sleepers` (feature `oracle`): programs that sleep, beside a host that frees memory meanwhile;
//! * [`disasm`] and [`snapshot`]: machine code as text, and files that hold the text to compare with;
//! * [`elf`]: the bytes of a section, without the loader under test;
//! * `forked`: forked children, which must end well;
//! * `fuzz` (feature `engines`): the bodies of the fuzz targets;
//! * `kernel_object` (feature `objects`): an object's programs and maps in the kernel.
//!
//! A test that cannot run (no permission, no data) says so through [`skipped`], so that `cargo xtask test` counts it:
//! a skip is never silent and never a pass.

pub mod cases;
pub mod elf;
#[cfg(unix)]
pub mod forked;
#[cfg(feature = "engines")]
pub mod fuzz;
pub mod generate;
#[cfg(target_os = "linux")]
pub mod kernel;
#[cfg(all(feature = "objects", target_os = "linux"))]
pub mod kernel_object;
#[cfg(feature = "oracle")]
pub mod sleepers;
pub mod snapshot;
pub mod soundness;

pub use bpf_disasm as disasm;
use std::io::Write;

/// Says on the standard error stream, past the capture of the test harness, that `what` did not run and why. The line
/// begins with `SKIPPED`, by which `cargo xtask test` counts it; a test writes at most one.
pub fn skipped(what: &str, why: &dyn std::fmt::Display) {
    // One write, so that lines of tests that run at once do not mix. A closed stream is no reason to fail a test.
    let _ = std::io::stderr().write_all(format!("SKIPPED {what}: {why}\n").as_bytes());
}

/// Whether qemu runs this process: a process that it starts runs on the machine itself, which cannot run this binary.
pub fn emulated() -> bool {
    static EMULATED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *EMULATED.get_or_init(|| {
        let machine = std::process::Command::new("uname").arg("-m").output();
        machine.is_ok_and(|machine| String::from_utf8_lossy(&machine.stdout).trim() != std::env::consts::ARCH)
    })
}

/// A binary that was built beside this one. Under qemu it is the runner that cargo was told to use which starts it.
pub fn command(binary: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    if !emulated() {
        return std::process::Command::new(binary);
    }
    let arch = std::env::consts::ARCH;
    let runner = std::env::var(format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", arch.to_uppercase()));
    let runner = runner.unwrap_or_else(|_| format!("qemu-{arch}"));
    let mut words = runner.split_whitespace();
    let mut command = std::process::Command::new(words.next().expect("a runner"));
    command.args(words).arg(binary);
    command
}

/// A command that runs this test binary, for tests that need a process of their own. The caller adds arguments.
///
/// # Panics
///
/// If the system does not tell the path of the running binary.
pub fn itself() -> std::process::Command {
    command(std::env::current_exe().expect("this file"))
}
