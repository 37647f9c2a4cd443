//! Publication of the crates on crates.io: `cargo xtask publish` rehearses it, and a rule checks the manifests.
//!
//! crates.io refuses a crate whose dependencies are not there, tests included as soon as they state a version; and a
//! crate without description, keywords or licence texts is refused by its readers. The rehearsal packs every shipped
//! crate, and builds each from its package, against the others as packed. It needs the registry's index, so it is a
//! command of its own; the rule only reads manifests.

use crate::shell;
use anyhow::{Context, bail};
use std::path::Path;

/// Packs all shipped crates and builds what was packed.
pub(crate) fn rehearse() -> anyhow::Result<()> {
    // A package of an earlier rehearsal has this version too, and cargo would use it.
    let packed = shell::root().join("target/package");
    if packed.exists() {
        std::fs::remove_dir_all(packed)?;
    }
    shell::run(shell::cargo().args(["publish", "--dry-run", "--workspace"]))
}

/// Reports what shipped crates lack for their publication.
pub(crate) fn check(metadata: &serde_json::Value) -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    let name = |package: &serde_json::Value| package["name"].as_str().unwrap_or_default().to_owned();
    let shipped: Vec<_> = shipped(metadata)?.collect();
    let names: Vec<_> = shipped.iter().map(|package| name(package)).collect();
    for package in shipped {
        let name = name(package);
        for field in ["description", "license", "readme", "documentation"] {
            if package[field].as_str().is_none_or(str::is_empty) {
                broken.push(format!("{name}: its manifest has no `{field}`"));
            }
        }
        for field in ["keywords", "categories"] {
            if !package[field].as_array().is_some_and(|words| (1..=5).contains(&words.len())) {
                broken.push(format!("{name}: its manifest has no `{field}`, or more than five"));
            }
        }
        let manifest = Path::new(package["manifest_path"].as_str().context("no manifest")?);
        let folder = manifest.parent().context("a manifest lies in a folder")?;
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !folder.join(file).is_file() {
                broken.push(format!("{name}: there is no `{file}` beside its manifest"));
            }
        }
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let on = dependency["name"].as_str().context("no name")?;
            let local = dependency["path"].is_string();
            let versioned = dependency["req"].as_str() != Some("*");
            if local && versioned && !names.iter().any(|n| n == on) {
                broken.push(format!("{name}: states a version of {on}, which is not published"));
            }
        }
    }
    Ok(broken)
}

/// The packages of the workspace that are published.
pub(crate) fn shipped(metadata: &serde_json::Value) -> anyhow::Result<impl Iterator<Item = &serde_json::Value>> {
    let packages = metadata["packages"].as_array().context("no packages")?;
    Ok(packages.iter().filter(|package| package["publish"].as_array().is_none_or(|to| !to.is_empty())))
}

/// Reads cargo's metadata of the workspace.
pub(crate) fn metadata() -> anyhow::Result<serde_json::Value> {
    let output = shell::cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
