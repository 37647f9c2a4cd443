//! `cargo xtask sanitize`: the tests of state that threads share, under AddressSanitizer and under ThreadSanitizer.
//!
//! The standard library is built with the sanitizer too (`-Zbuild-std`): ThreadSanitizer sees only synchronisation that
//! it has instrumented. It does not see emitted code at all: `xtask/tsan.supp` lists the suppressions that this needs,
//! each with its reason, and `xtask/lsan.supp` the intended leaks. Needs a nightly toolchain with `rust-src`.

use crate::shell;
use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses outside of objects and to freed memory, and leaks.
    Address,
    /// ThreadSanitizer: data races.
    Thread,
}

/// The crates with state that threads share.
const PACKAGES: [&str; 5] = ["bpf-quiesce", "bpf-prog-pack", "bpf-maps", "bpf-dispatcher", "bpf-runtime"];
/// Tests that are left out (part of their names), under which sanitizer (`None`: either), and why.
const LEFT_OUT: &[(Option<Sanitizer>, &str, &str)] = &[
    (
        None,
        "an_address_space_that_is_used_up_ends_nothing_but_what_asks_for_more",
        "the sanitizers need address space of their own",
    ),
    (
        Some(Sanitizer::Address),
        "gdb_shows_the_programs_and_their_lines",
        "LeakSanitizer does not work under a debugger, and ends the process with an error",
    ),
    (
        Some(Sanitizer::Address),
        "an_overflow_of_the_stack_of_a_run_hits_its_guard_page",
        "AddressSanitizer reports the overflow itself, and ends the process without the signal that the test waits for",
    ),
    (
        Some(Sanitizer::Address),
        "a_signal_handler_runs",
        "a handler may interrupt a switch between stacks, and AddressSanitizer follows one switch at a time",
    ),
    (
        Some(Sanitizer::Address),
        "a_forgotten_run_is_never_touched_again",
        "LeakSanitizer reports the memory of the run that the test forgets",
    ),
    (
        Some(Sanitizer::Address),
        "a_signal_handler_on_a_signal_stack_is_refused",
        "LeakSanitizer reports the memory of the run that the test forgets",
    ),
    (
        Some(Sanitizer::Address),
        "misalignment_is_seen",
        "an instrumented function aligns its frame itself, so that no misaligned call is seen in it",
    ),
    (
        Some(Sanitizer::Thread),
        "handlers_enter_at_every_instruction_or_are_refused",
        "single steps lead through ThreadSanitizer's own code too, where its lock is held that the handler waits for",
    ),
    (
        Some(Sanitizer::Thread),
        "the_child_may_neither_enter_nor_wait",
        "a child by a raw clone(2), of which ThreadSanitizer does not know, ends in a CHECK of its own",
    ),
];
/// The stress programs, and the seconds that each of them runs.
const STRESS: [(&str, &str); 2] = [("stress", "30"), ("tenants", "180")];

pub(crate) fn run(only: Option<Sanitizer>) -> anyhow::Result<()> {
    let all = [Sanitizer::Address, Sanitizer::Thread];
    for sanitizer in all.into_iter().filter(|s| only.is_none_or(|only| only == *s)) {
        for (example, seconds) in STRESS {
            let stress = ["-p", "bpf-runtime", "--example", example, "--", seconds];
            shell::run(cargo(sanitizer).args(sanitized("run")).args(stress))?;
        }
        let left_out: Vec<_> =
            LEFT_OUT.iter().filter(|(under, ..)| under.is_none_or(|under| under == sanitizer)).collect();
        for (_, test, why) in &left_out {
            println!("LEFT OUT under {sanitizer:?}Sanitizer: tests named {test}: {why}");
        }
        let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
        let tests = sanitized("test").into_iter().chain(["--lib", "--tests", "--no-fail-fast"]).chain(packages);
        let skip = left_out.iter().flat_map(|(_, test, _)| ["--skip", test]);
        shell::run(cargo(sanitizer).args(tests).arg("--").args(skip))?;
    }
    Ok(())
}

fn sanitized(command: &'static str) -> Vec<&'static str> {
    vec!["+nightly", command, "-Zbuild-std", "--target", TARGET]
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn cargo(sanitizer: Sanitizer) -> std::process::Command {
    let name = match sanitizer {
        Sanitizer::Address => "address",
        Sanitizer::Thread => "thread",
    };
    // By its name, not the cargo that runs us: only rustup's knows other toolchains.
    let mut cargo = shell::command("cargo");
    let suppressions = |name: &str| shell::root().join("xtask").join(name).display().to_string();
    // A toolchain that runs us says so in the environment.
    cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    cargo
        .env("RUSTFLAGS", format!("-Zsanitizer={name} --cfg sanitizer=\"{name}\""))
        .env("CARGO_TARGET_DIR", shell::target().join(format!("sanitize-{name}")))
        // Places of errors are found from return addresses, which are not on a stack with frames elsewhere.
        .env("ASAN_OPTIONS", "detect_stack_use_after_return=0")
        .env("LSAN_OPTIONS", format!("suppressions={} print_suppressions=0", suppressions("lsan.supp")))
        .env(
            "TSAN_OPTIONS",
            // A test allocates in handlers on purpose, where no handler is refused. Unit tests count what is allocated.
            format!(
                "suppressions={} history_size=4 second_deadlock_stack=1 report_signal_unsafe=0",
                suppressions("tsan.supp")
            ),
        );
    cargo
}
