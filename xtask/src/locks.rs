//! The lock files of the workspaces that the tests leave out (heavy peers, another target, nightly).
//!
//! Their commands build with `--locked`, and nothing else looks at them: a dependency that a crate of the family gains
//! would end `cargo xtask bench-wasm` with an error, some day. The rule reads files only, because cargo would ask the
//! registry: each package of the family that a lock file lists must list all dependencies that its manifest demands,
//! always or by a feature that the lock file shows to be on.

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

/// Names of the packages that a package depends on, not for tests alone, with the features that turn each on: `None`
/// for a dependency that is always there.
fn dependencies(package: &serde_json::Value) -> Vec<(&str, Option<Vec<&str>>)> {
    let all = package["dependencies"].as_array().into_iter().flatten().filter(|on| on["kind"] != "dev");
    let named = all.filter_map(|on| {
        let name = on["name"].as_str()?;
        let entry = format!("dep:{}", on["rename"].as_str().unwrap_or(name));
        let features = package["features"].as_object().into_iter().flatten();
        let turn_on =
            features.filter(|(_, list)| list.as_array().is_some_and(|list| list.iter().any(|e| *e == *entry)));
        let optional = on["optional"] == true;
        Some((name, optional.then(|| turn_on.map(|(feature, _)| feature.as_str()).collect())))
    });
    named.collect()
}

/// Names of the dependencies that a lock file must list if it lists `listed`. They are the dependencies that are always
/// there, and the dependencies of each feature that is on for certain: a listed dependency needs it, and no other one.
fn demanded<'p>(package: &'p serde_json::Value, listed: &BTreeSet<&str>) -> impl Iterator<Item = &'p str> {
    let all = dependencies(package);
    let shows = |(name, features): &(&str, Option<Vec<&'p str>>)| match features.as_deref() {
        Some([only]) if listed.contains(name) => Some(*only),
        Some(_) | None => None,
    };
    let on: BTreeSet<&str> = all.iter().filter_map(shows).collect();
    let demands = move |features: Option<Vec<&str>>| features.is_none_or(|by| by.iter().any(|f| on.contains(f)));
    all.into_iter().filter(move |(_, features)| demands(features.clone())).map(|(name, _)| name)
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
        let missing = demanded(package, listed).find(|on| !listed.contains(on))?;
        Some(format!("{name} depends on {missing} (run `cargo metadata` in that folder)"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn dependency(name: &str, optional: bool, kind: Option<&str>) -> Value {
        json!({"name": name, "optional": optional, "kind": kind, "rename": null})
    }

    /// Complaints about a lock file in which a package with these dependencies and features lists those.
    fn stale(dependencies: &[Value], features: &Value, listed: &str) -> Vec<String> {
        let package = json!({"name": "bpf-maps", "dependencies": dependencies, "features": features});
        let others = "[[package]]\nname = \"thiserror\"\nversion = \"2.0.0\"\nsource = \"registry\"\n";
        let lock = format!("version = 4\n\n[[package]]\nname = \"bpf-maps\"\ndependencies = [\n{listed}]\n\n{others}");
        super::stale(&json!({"packages": [package]}), &lock).collect()
    }

    #[test]
    fn a_lock_file_that_lacks_a_dependency_is_stale() {
        let dependencies = [
            dependency("bpf-isa", false, None),
            dependency("thiserror", false, None),
            dependency("tracing", true, None),
            dependency("proptest", false, Some("dev")),
        ];
        let stale = |listed| stale(&dependencies, &json!({"tracing": ["dep:tracing"]}), listed);
        assert_eq!(stale(" \"bpf-isa\",\n \"thiserror 2.0.0\",\n"), [""; 0]);
        assert_eq!(stale(" \"thiserror 2.0.0\",\n").len(), 1);
        assert!(stale(" \"bpf-isa\",\n")[0].contains("bpf-maps depends on thiserror"));
    }

    #[test]
    fn a_lock_file_that_lacks_a_dependency_of_a_feature_that_is_on_is_stale() {
        let dependencies = ["gimli", "memmap2", "bpf-quiesce"].map(|name| dependency(name, true, None));
        let features = json!({"tools": ["dep:gimli", "dep:memmap2", "dep:bpf-quiesce"], "dump": ["dep:memmap2"]});
        let stale = |listed| stale(&dependencies, &features, listed);
        // `memmap2` does not tell which of two features is on.
        for complete in ["", " \"memmap2\",\n", " \"bpf-quiesce\",\n \"gimli\",\n \"memmap2\",\n"] {
            assert_eq!(stale(complete), [""; 0], "{complete}");
        }
        assert!(stale(" \"gimli\",\n \"memmap2\",\n")[0].contains("bpf-maps depends on bpf-quiesce"));
    }
}
