//! The lock files of the workspaces that the tests leave out (heavy peers, another target, nightly).
//!
//! Their commands build with `--locked`, and nothing else looks at them: a dependency that a crate of the family gains
//! would end `cargo xtask bench-wasm` with an error, some day. The rule reads files only, because cargo would ask the
//! registry: each package of the family that a lock file lists must list all dependencies that its manifest demands.

use crate::shell;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Packages that have no source (they are folders of ours), with the names of their dependencies.
fn ours(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]\n").skip(1).filter(|package| !package.contains("\nsource = ")) {
        let Some(name) = package.lines().find_map(|line| line.strip_prefix("name = ")) else { continue };
        // `"name",` or `"name version",` where there are several versions.
        let listed = package.lines().filter_map(|line| line.strip_prefix(" \""));
        let names = listed.filter_map(|entry| entry.split([' ', '"']).next());
        found.insert(name.trim_matches('"'), names.collect());
    }
    found
}

/// Names of the packages that a package always depends on: neither optional nor for tests alone.
fn demanded(package: &serde_json::Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let always = dependencies.filter(|on| on["optional"] == false && on["kind"] != "dev");
    always.filter_map(|on| on["name"].as_str())
}

/// Lists each demanded dependency that a lock file lacks.
pub(crate) fn check(metadata: &serde_json::Value) -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    let manifest = fs::read_to_string(shell::root().join("Cargo.toml"))?;
    let excluded = manifest.lines().find_map(|line| line.strip_prefix("exclude = [")).context("nothing is excluded")?;
    let (folders, _) = excluded.split_once(']').context("a list over several lines")?;
    for folder in folders.split(", ").map(|folder| folder.trim_matches('"')) {
        let lock =
            fs::read_to_string(shell::root().join(folder).join("Cargo.lock")).with_context(|| folder.to_owned())?;
        broken.extend(stale(metadata, &lock).map(|lacks| format!("{folder}/Cargo.lock is stale: {lacks}")));
    }
    Ok(broken)
}

fn stale(metadata: &serde_json::Value, lock: &str) -> impl Iterator<Item = String> {
    let ours = ours(lock);
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.filter_map(move |package| {
        let name = package["name"].as_str()?;
        let listed = ours.get(name)?;
        let missing = demanded(package).find(|on| !listed.contains(on))?;
        Some(format!("{name} depends on {missing} (run `cargo metadata` in that folder)"))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_lock_file_that_lacks_a_dependency_is_stale() {
        let dependency = |name, optional, kind| serde_json::json!({"name": name, "optional": optional, "kind": kind});
        let none: Option<&str> = None;
        let dependencies = [
            dependency("bpf-isa", false, none),
            dependency("thiserror", false, none),
            dependency("tracing", true, none),
            dependency("proptest", false, Some("dev")),
        ];
        let metadata = serde_json::json!({"packages": [{"name": "bpf-maps", "dependencies": dependencies}]});
        let lock = |listed: &str| {
            let others = "[[package]]\nname = \"thiserror\"\nversion = \"2.0.0\"\nsource = \"registry\"\n";
            format!("version = 4\n\n[[package]]\nname = \"bpf-maps\"\ndependencies = [\n{listed}]\n\n{others}")
        };
        let stale = |listed: &str| super::stale(&metadata, &lock(listed)).collect::<Vec<_>>();
        assert_eq!(stale(" \"bpf-isa\",\n \"thiserror 2.0.0\",\n"), [""; 0]);
        assert_eq!(stale(" \"thiserror 2.0.0\",\n").len(), 1);
        assert!(stale(" \"bpf-isa\",\n")[0].contains("bpf-maps depends on thiserror"));
    }
}
