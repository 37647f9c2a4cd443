//! `cargo xtask soak`: generated programs at the border of the verifier's rules, for as long as one likes.

use crate::{
    arm64::{self, Missing},
    shell,
};
use anyhow::bail;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of a soak: without a flag, accepted programs run on all engines.
#[derive(clap::Args)]
pub(crate) struct Kind {
    /// Instead, plant deliberate bugs in the verifier and count the programs until each is found. With `--contained`,
    /// run contained what each lets through; with `--certified`, run what the trusted core accepts under each.
    #[arg(long)]
    faults: bool,
    /// Instead, run contained, unverified programs, most of them damaged: so many runs must stay inside their memory.
    #[arg(long)]
    contained: bool,
    /// Only the trusted core decides, by certificates.
    #[arg(long, conflicts_with = "contained")]
    certified: bool,
}

pub(crate) fn run(programs: u64, seed: Option<u64>, arm64: bool, kind: &Kind) -> anyhow::Result<()> {
    let Kind { faults, contained, certified } = *kind;
    if faults {
        // With debug assertions: a release build refuses the feature.
        let (feature, example) = match (contained, certified) {
            (true, _) => ("planted", "planted"),
            (false, true) => ("planted", "harmless"),
            (false, false) => ("faults", "faults"),
        };
        let arguments = ["run", "-p", "bpf-testkit", "--features", feature, "--example", example, "--"];
        return shell::run(shell::cargo().args(arguments).arg(programs.to_string()));
    }
    // No two runs the same, unless asked for.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = seed.unwrap_or(now << 32);
    let mut cargo = match arm64 {
        false => shell::cargo(),
        true => match arm64::Cross::find(false)? {
            Ok(cross) => {
                let mut cargo = cross.cargo();
                // As long as it takes, unlike a test.
                cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", arm64::QEMU);
                cargo
            }
            Err(Missing { what, how }) => bail!("{what}\nTo run it: {how}"),
        },
    };
    let example = if contained { "contained" } else { "soundness" };
    let arguments = ["run", "--release", "-p", "bpf-testkit", "--features", "oracle", "--example", example, "--"];
    cargo.args(arguments).args([programs.to_string(), seed.to_string()]);
    if certified {
        cargo.arg("certified");
    }
    shell::run(&mut cargo)
}
