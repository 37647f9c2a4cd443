//! `cargo xtask test`: every test of the workspace, natively and on arm64 (but those of [`TOOLS`] and [`PORTABLE`]),
//! with the verifier's deliberate bugs to find, and the concurrent protocols under loom.
//!
//! The output of cargo is passed through and read on its way: the `test result:` lines and the `SKIPPED` lines (one
//! from each test that misses something it needs) are summed over all test binaries of both architectures, and the sum
//! is the last line: `N passed, N failed, N skipped`. Tests that could not even be built or started count as failed.
//! Without the means to run arm64 code every test of that architecture counts as skipped, and what to install
//! is printed.
//!
//! arm64 goes beside the rest, which leaves a core idle while it links or waits for one long test; what it says is
//! kept in `target/arm64.log`, and printed when the rest has ended.

use crate::{
    arm64::{self, Missing},
    nightly, shell,
};
use anyhow::Context;
use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// How many tests did what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// The lines that name what failed: tests, and the test binaries or crates as cargo lists them.
    failures: Vec<String>,
}

impl Tally {
    /// Both.
    fn and(mut self, other: Tally) -> Tally {
        self.failures.extend(other.failures);
        Tally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
            failures: self.failures,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The crates whose protocols loom explores: those with `cfg(loom)` in them. `bpf-parking` has the
/// runtime's.
const LOOM: [&str; 3] = ["bpf-quiesce", "bpf-maps", "bpf-parking"];

/// Packages that are tested with deliberate bugs to plant, and the feature that has them.
pub(crate) const PLANTED: [(&str, &str); 2] =
    [("bpf-verifier", "bpf-verifier/faults"), ("bpf-testkit", "bpf-testkit/planted")];

/// Packages that are not tested on arm64: tools for developers, packages without tests, the x86-64 backend, and the
/// command and services around the runtime, whose own tests run on both architectures.
/// Building them and their dependencies for another machine takes minutes.
const TOOLS: [&str; 10] = [
    "bpf-benches",
    "bpf-cli",
    "bpf-example-*",
    "bpf-guest-macros",
    "bpf-jit-suite",
    "bpf-jit-x64",
    "bpf-misuse",
    "bpf-parking",
    "bpf-prove",
    "xtask",
];

/// Packages without a line that depends on the architecture. Their tests take ten times as long under emulation and are
/// run natively only; the runtime's tests use them on arm64. With `-p` their own tests run there too.
const PORTABLE: [&str; 11] = [
    "bpf-analysis",
    "bpf-context-derive",
    "bpf-disasm",
    "bpf-isa",
    "bpf-jit",
    "bpf-lir",
    "bpf-object",
    "bpf-opt",
    "bpf-uapi",
    "bpf-verifier",
    "bpf-verifier-core",
];

/// The tests of the libraries of these crates, as loom explores them.
fn for_loom(crates: &[&str]) -> Command {
    let mut cargo = shell::cargo();
    cargo.args(["test", "--no-fail-fast", "--lib"]).args(crates.iter().flat_map(|package| ["-p", package]));
    cargo.env("CARGO_TARGET_DIR", shell::target().join("loom")).env("RUSTFLAGS", "--cfg loom");
    cargo
}

pub(crate) fn run(install: bool, packages: &[String]) -> anyhow::Result<()> {
    let selection: Vec<&str> = match packages {
        [] => vec!["--workspace"],
        packages => packages.iter().flat_map(|package| ["-p", package]).collect(),
    };
    if install {
        install_tools();
    }
    let cross = match cfg!(target_arch = "aarch64") {
        true => None,
        false => Some(arm64::Cross::find(install)?),
    };
    let total = match &cross {
        Some(Ok(cross)) => thread::scope(|scope| -> anyhow::Result<Tally> {
            let emulated = scope.spawn(|| beside(&mut emulated(cross, &selection, packages)));
            let here = here(&selection, packages);
            println!("\n== aarch64: {}", cross.describe());
            let emulated = emulated.join().map_err(|_| anyhow::anyhow!("the thread of the arm64 tests panicked"))?;
            io::copy(&mut File::open(log())?, &mut io::stdout())?;
            let emulated = emulated?;
            println!("\n== aarch64: {emulated}");
            Ok(here?.and(emulated))
        })?,
        Some(Err(Missing { what, how })) => {
            let here = here(&selection, packages)?;
            println!("\nSKIPPED all arm64 tests: {what}\nTo run them: {how}");
            let skipped = here.passed + here.failed + here.skipped;
            here.and(Tally { skipped, ..Tally::default() })
        }
        None => here(&selection, packages)?,
    };
    println!();
    for failure in &total.failures {
        println!("FAILED {failure}");
    }
    println!("{total}");
    if total.failed != 0 {
        // The sum stays the last line.
        std::process::exit(1);
    }
    Ok(())
}

/// The tests that run on this machine as it is.
fn here(selection: &[&str], packages: &[String]) -> anyhow::Result<Tally> {
    let mut native = shell::cargo();
    native.args(["test", "--no-fail-fast"]).args(selection);
    // With deliberate bugs in the verifier to find and to survive, none of them planted elsewhere. `cargo xtask soak
    // --faults` counts how many generated programs it takes to find each.
    let has = |wanted: &str| packages.is_empty() || packages.iter().any(|package| package == wanted);
    for (package, feature) in PLANTED {
        if has(package) {
            native.args(["--features", feature]);
        }
    }
    let native = cargo_test(&mut native)?;
    println!("\n== {}: {native}", std::env::consts::ARCH);
    let mut total = native;
    let explored: Vec<&str> =
        LOOM.into_iter().filter(|krate| packages.is_empty() || packages.iter().any(|p| p == krate)).collect();
    if !explored.is_empty() {
        let explored = cargo_test(&mut for_loom(&explored))?;
        println!("\n== loom: {explored}");
        total = total.and(explored);
    }
    Ok(total)
}

/// The tests that run on arm64 too.
fn emulated(cross: &arm64::Cross, selection: &[&str], packages: &[String]) -> Command {
    let left_out = TOOLS.iter().chain(&PORTABLE).filter(|_| packages.is_empty());
    let without = left_out.flat_map(|package| ["--exclude", package]);
    let mut cargo = cross.cargo();
    // Doc tests are compiled one by one, and say nothing about the architecture; examples are for people.
    cargo.args(["test", "--no-fail-fast"]).args(selection).args(without).args(["--lib", "--bins", "--tests"]);
    cargo
}

/// File with the output of the tests on arm64.
fn log() -> PathBuf {
    shell::target().join("arm64.log")
}

/// Installs `ip` for the live example's test, the loader of the tests beside the kernel, the compilers of the tests
/// that compile plug-ins, and debuggers. Without these tools the tests report that they are skipped.
fn install_tools() {
    let missing = |(tool, package)| shell::first_available(&[tool]).is_none().then_some(package);
    let tools = [
        ("ip", "iproute2"),
        ("ping", "iputils-ping"),
        ("ethtool", "ethtool"),
        ("bpftool", "bpftool"),
        ("clang-19", "clang-19"),
        ("llvm-strip-19", "llvm-19"),
        ("make", "make"),
        ("gdb", "gdb"),
    ];
    let mut packages: Vec<&str> = tools.into_iter().filter_map(missing).collect();
    if !Path::new("/usr/include/bpf/bpf_helpers.h").exists() {
        packages.push("libbpf-dev");
    }
    if !packages.is_empty()
        && shell::first_available(&["apt-get"]).is_some()
        && let Err(error) = arm64::update().and_then(|()| arm64::apt_install(&packages))
    {
        eprintln!("cannot install {}: {error:#}", packages.join(", "));
    }
    if let Err(error) = nightly::install() {
        eprintln!("cannot install the compiler of plug-ins in Rust: {error:#}");
    }
}

/// `cargo xtask bless`: the tests that compare with files, told to rewrite them.
pub(crate) fn bless() -> anyhow::Result<()> {
    for (package, tests, name) in [("bpf-jit", "steps", "filetests::"), ("bpf-testkit", "whole", "snapshots::")] {
        shell::run(shell::cargo().args(["test", "-p", package, "--test", tests, name]).env("BLESS", "1"))?;
    }
    Ok(())
}

/// Runs a `cargo test`, passes its output through and sums it up.
fn cargo_test(command: &mut Command) -> anyhow::Result<Tally> {
    tally(command, io::stdout(), io::stderr())
}

/// Runs a command while another one runs; its output goes to [`log`].
fn beside(command: &mut Command) -> anyhow::Result<Tally> {
    fs::create_dir_all(shell::target())?;
    let log = File::create(log()).with_context(|| format!("cannot write {}", log().display()))?;
    tally(command, log.try_clone()?, log)
}

fn tally(command: &mut Command, mut output: impl Write, errors: impl Write + Send) -> anyhow::Result<Tally> {
    writeln!(output, "$ {}", shell::line(command))?;
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{}`", shell::line(command)))?;
    let stderr = child.stderr.take().context("no standard error")?;
    let stdout = child.stdout.take().context("no standard output")?;
    let (results, skips) = thread::scope(|scope| {
        let skips = scope.spawn(|| tee(stderr, errors));
        (tee(stdout, output), skips.join())
    });
    let skips = skips.map_err(|_| anyhow::anyhow!("the reader of standard error panicked"))??;
    let at_run_time = skips.skipped;
    let mut tally = results?.and(skips);
    // The harness knows no skip at run time: it has counted those tests as passed.
    tally.passed = tally.passed.saturating_sub(at_run_time);
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        // The tests did not compile, or a test binary died before its summary.
        tally.failed = 1;
    }
    Ok(tally)
}

fn tee(from: impl Read, mut to: impl Write) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    // Bytes, not text: a test may print anything.
    while reader.read_until(b'\n', &mut line)? != 0 {
        to.write_all(&line)?;
        tally = tally.and(count(&String::from_utf8_lossy(&line)));
        line.clear();
    }
    Ok(tally)
}

/// Counts the tests that one line of cargo's output reports.
fn count(line: &str) -> Tally {
    if line.starts_with("SKIPPED ") {
        return Tally { skipped: 1, ..Tally::default() };
    }
    if let Some(failure) = failure(line) {
        return Tally { failures: vec![failure.to_owned()], ..Tally::default() };
    }
    let Some(result) = line.trim().strip_prefix("test result: ") else { return Tally::default() };
    // "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s"
    let number = |word: &str| -> u64 {
        let words: Vec<&str> = result.split([' ', ';']).collect();
        let at = words.iter().position(|&other| other == word);
        at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
    };
    Tally { passed: number("passed"), failed: number("failed"), skipped: number("ignored"), failures: Vec::new() }
}

/// Finds the name of a failure in a line of cargo: `test NAME ... FAILED` of the harness, the packages and targets that
/// cargo lists when all have run, and a crate that does not compile.
fn failure(line: &str) -> Option<&str> {
    let test = || line.strip_prefix("test ")?.trim_end().strip_suffix("... FAILED");
    let target = || line.strip_prefix("    `").filter(|rest| rest.starts_with("-p "))?.trim_end().strip_suffix('`');
    let uncompiled = || line.strip_prefix("error: could not compile ");
    test().or_else(target).or_else(uncompiled).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let text = "running 3 tests\nSKIPPED kernel: no\ntest a::b ... FAILED\ntest c ... ok\n\
                    test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s\n\
                    test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured\n\
                    error: 1 target failed:\n    `-p bpf-maps --lib`\n";
        let mut copy = Vec::new();
        let tally = tee(text.as_bytes(), &mut copy).unwrap();
        let failures = vec!["a::b".to_owned(), "-p bpf-maps --lib".to_owned()];
        assert_eq!(tally, Tally { passed: 13, failed: 2, skipped: 2, failures });
        assert_eq!(copy, text.as_bytes());
        assert_eq!(tally.to_string(), "13 passed, 2 failed, 2 skipped");
    }

    #[test]
    fn what_is_portable_has_no_line_for_an_architecture() {
        let metadata = crate::publish::metadata().unwrap();
        for package in metadata["packages"].as_array().unwrap() {
            if !PORTABLE.contains(&package["name"].as_str().unwrap()) {
                continue;
            }
            let manifest = std::path::Path::new(package["manifest_path"].as_str().unwrap());
            let found = Command::new("grep")
                .args(["-rlE", r"target_(arch|endian|pointer_width)|\bunsafe \{"])
                .arg(manifest.with_file_name("src"))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(found.stdout).unwrap(), "", "{manifest:?}");
        }
    }

    #[test]
    fn a_run_that_dies_without_a_summary_has_failed() {
        let tally = cargo_test(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(tally, Tally { failed: 1, ..Tally::default() });
    }
}
