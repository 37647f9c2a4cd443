//! The documentation of the shipped packages as docs.rs builds it: each package alone, by a nightly, with the features,
//! targets and arguments of its `[package.metadata.docs.rs]`.
//!
//! `cargo doc --workspace` unites the features of all packages and has no `--cfg docsrs`, so it builds pages that
//! docs.rs does not build, and misses links that lead nowhere there. A target whose standard library the toolchain
//! lacks, or a toolchain that is not installed, is reported as skipped.

use crate::{nightly, publish, shell};
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::BTreeMap;

/// Builds the pages of each shipped package.
pub(crate) fn check() -> anyhow::Result<()> {
    let toolchain = nightly::pinned()?;
    if !nightly::is_there(&toolchain) {
        println!(
            "SKIPPED documentation as docs.rs builds it: no Rust {toolchain}; `cargo xtask test --install` installs it"
        );
        return Ok(());
    }
    let host = host(&toolchain)?;
    let metadata = publish::metadata()?;
    let mut missing: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for package in publish::shipped(&metadata)? {
        let name = package["name"].as_str().context("a package has no name")?;
        let settings = &package["metadata"]["docs"]["rs"];
        let texts = |key: &str| -> Vec<&str> {
            settings[key].as_array().map_or_else(Vec::new, |values| values.iter().filter_map(Value::as_str).collect())
        };
        let targets = match &texts("targets")[..] {
            [] => vec![host.clone()],
            targets => targets.iter().map(ToString::to_string).collect(),
        };
        for target in targets {
            if target != host && !has_library(&toolchain, &target) {
                missing.entry(target).or_default().push(name);
                continue;
            }
            let mut cargo = nightly::of(&toolchain, &["cargo", "doc", "-q", "--no-deps", "-p", name]);
            cargo.args(["--features", &texts("features").join(",")]);
            if target != host {
                cargo.args(["--target", &target]);
            }
            cargo.env("RUSTDOCFLAGS", format!("-D warnings {}", texts("rustdoc-args").join(" ")));
            // Another compiler than that of the checks: each would make the other compile everything anew.
            cargo.env("CARGO_TARGET_DIR", shell::target().join("docs-rs"));
            shell::run(&mut cargo)?;
        }
    }
    for (target, packages) in missing {
        let packages = packages.join(", ");
        let how = format!("`rustup target add {target} --toolchain {toolchain}`");
        println!("SKIPPED documentation of {packages} for {target}: no standard library for it; {how}");
    }
    Ok(())
}

/// The target that the toolchain runs on.
fn host(toolchain: &str) -> anyhow::Result<String> {
    let output = nightly::of(toolchain, &["rustc", "-vV"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("`rustc -vV` of {toolchain} names no host"),
    }
}

/// Whether the toolchain has a standard library for this target.
fn has_library(toolchain: &str, target: &str) -> bool {
    let output = nightly::of(toolchain, &["rustc", "--print", "target-libdir", "--target", target]).output();
    let folder = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    folder.is_some_and(|folder| std::path::Path::new(folder.trim()).is_dir())
}
