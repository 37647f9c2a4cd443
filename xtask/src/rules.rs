//! The architecture rules that a script can enforce (ARCHITECTURE.md says why each exists).
//!
//! * The arrows: which crate of the family may depend on which, and that nobody ships with the testkit.
//! * `forbid(unsafe_code)` where the design promises it.
//! * Both backends have the same files.
//! * A match over `Insn` or `Op` has no catch-all arm, so that a new instruction is a compile error everywhere.
//! * No `#[ignore]`; every file opens with a `//!` comment.
//!
//! Dependencies come from `cargo metadata` and matches from the syntax tree, not from patterns over text.

use crate::shell;
use anyhow::{Context, bail};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{Arm, Pat, spanned::Spanned, visit::Visit};

/// Package, and the packages of the family that it may depend on. A package that is not here may not exist.
const ARROWS: &[(&str, &[&str])] = &[
    ("bpf-isa", &[]),
    ("bpf-analysis", &["bpf-isa"]),
    ("bpf-verifier", &["bpf-isa", "bpf-analysis"]),
    ("bpf-interp", &["bpf-isa"]),
    ("bpf-jit-code", &[]),
    ("bpf-jit", &["bpf-isa", "bpf-analysis", "bpf-jit-code"]),
    ("bpf-jit-x64", &["bpf-jit", "bpf-jit-code"]),
    ("bpf-jit-arm64", &["bpf-jit", "bpf-jit-code"]),
    ("bpf-quiesce", &[]),
    ("bpf-prog-pack", &["bpf-jit-code", "bpf-quiesce"]),
    ("bpf-tailcall", &["bpf-prog-pack", "bpf-quiesce"]),
    ("bpf-dispatcher", &["bpf-jit-code", "bpf-prog-pack", "bpf-quiesce"]),
    ("bpf-maps", &["bpf-quiesce"]),
    ("bpf-object", &["bpf-isa"]),
    ("bpf-runtime", RUNTIME),
    ("bpf-cli", &["bpf-runtime", "bpf-isa", "bpf-object"]),
    // Not shipped.
    ("bpf-testkit", &["bpf-isa", "bpf-jit-code"]),
    ("bpf-benches", &["bpf-isa", "bpf-runtime", "bpf-testkit", "bpf-jit-code"]),
    ("xtask", &[]),
];

const RUNTIME: &[&str] = &[
    "bpf-isa",
    "bpf-analysis",
    "bpf-verifier",
    "bpf-interp",
    "bpf-jit-code",
    "bpf-jit",
    "bpf-jit-x64",
    "bpf-jit-arm64",
    "bpf-quiesce",
    "bpf-prog-pack",
    "bpf-tailcall",
    "bpf-dispatcher",
    "bpf-maps",
    "bpf-object",
];

/// Source folders whose crates forbid unsafe code.
const SAFE: &[&str] = &["bpf-isa", "bpf-analysis", "bpf-jit", "verifier", "object"];

const BACKENDS: [&str; 2] = ["crates/bpf-jit-x64/src", "crates/bpf-jit-arm64/src"];

/// Enums over which every match is exhaustive.
const EXHAUSTIVE: [&str; 2] = ["Insn", "Op"];

pub(crate) fn check() -> anyhow::Result<()> {
    let root = shell::root();
    let mut broken = arrows()?;
    for folder in SAFE {
        let path = root.join("crates").join(folder).join("src/lib.rs");
        if !fs::read_to_string(&path)?.contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{}: must forbid unsafe code", shown(&path)));
        }
    }
    let [x64, arm64] = BACKENDS.map(|folder| files(&root.join(folder)));
    for path in x64?.symmetric_difference(&arm64?) {
        broken.push(format!("{}: only one backend has this file", path.display()));
    }
    for folder in ["crates", "benches", "xtask", "fuzz"] {
        for path in files(&root.join(folder))? {
            let path = root.join(folder).join(path);
            let text = fs::read_to_string(&path)?;
            broken.extend(source(&text).into_iter().map(|what| format!("{}: {what}", shown(&path))));
        }
    }
    if broken.is_empty() { Ok(()) } else { bail!("architecture rules are broken:\n  {}", broken.join("\n  ")) }
}

fn shown(path: &Path) -> String {
    path.strip_prefix(shell::root()).unwrap_or(path).display().to_string()
}

/// Every Rust file under the folder, relative to it; none if the folder does not exist.
fn files(folder: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        if !next.is_dir() || next.ends_with("target") {
            continue;
        }
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.insert(path.strip_prefix(folder)?.to_path_buf());
            }
        }
    }
    Ok(found)
}

fn arrows() -> anyhow::Result<Vec<String>> {
    let output = shell::cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let mut broken = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("no name")?;
        let Some(may) = allowed.get(name) else {
            broken.push(format!("{name}: not in the table of arrows"));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let on = dependency["name"].as_str().context("no name")?;
            // Tests may look at anything.
            let shipped = dependency["kind"].as_str() != Some("dev");
            if shipped && allowed.contains_key(on) && !may.contains(&on) {
                broken.push(format!("{name}: may not depend on {on}"));
            }
            if shipped && name == "bpf-isa" {
                broken.push(format!("{name}: has no dependencies, {on} is one"));
            }
        }
    }
    Ok(broken)
}

/// What is wrong with a source file.
fn source(text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if !text.starts_with("//!") {
        broken.push("does not open with a `//!` comment".to_owned());
    }
    match syn::parse_file(text) {
        Ok(file) => {
            let mut visitor = Visitor::default();
            visitor.visit_file(&file);
            broken.extend(visitor.broken);
        }
        Err(error) => broken.push(format!("does not parse: {error}")),
    }
    broken
}

#[derive(Default)]
struct Visitor {
    broken: Vec<String>,
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        let over = EXHAUSTIVE.into_iter().find(|name| node.arms.iter().any(|arm| names(&arm.pat, name)));
        if let (Some(name), Some(arm)) = (over, node.arms.iter().find(|arm| catches_all(arm))) {
            let line = proc_macro2::Span::start(&arm.pat.span()).line;
            self.broken.push(format!("line {line}: a match over `{name}` with a catch-all arm"));
        }
        syn::visit::visit_expr_match(self, node);
    }

    fn visit_attribute(&mut self, node: &'ast syn::Attribute) {
        if node.path().is_ident("ignore") {
            self.broken.push("has an ignored test".to_owned());
        }
    }
}

/// Whether the arm takes whatever the others left: `_` or a name. (With a guard it is a `Pat::Guard`.)
fn catches_all(arm: &Arm) -> bool {
    match &arm.pat {
        Pat::Wild(_) => true,
        Pat::Ident(ident) => ident.subpat.is_none() && ident.ident.to_string().starts_with(char::is_lowercase),
        _ => false,
    }
}

/// Whether the pattern is of a variant of the enum `name`: `Insn::Exit`, `Op::Alu { .. } | Op::Mov { .. }`.
fn names(pat: &Pat, name: &str) -> bool {
    let of = |path: &syn::Path| {
        let segments = &path.segments;
        segments.len() >= 2 && segments[segments.len() - 2].ident == name
    };
    match pat {
        Pat::Or(or) => or.cases.iter().any(|case| names(case, name)),
        Pat::Struct(pat) => of(&pat.path),
        Pat::TupleStruct(pat) => of(&pat.path),
        Pat::Path(pat) => of(&pat.path),
        Pat::Reference(pat) => names(&pat.pat, name),
        Pat::Paren(pat) => names(&pat.pat, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_function(body: &str) -> Vec<String> {
        source(&format!("//! A file.\nfn f() {{ {body} }}\n"))
    }

    #[test]
    fn a_catch_all_over_instructions_is_found() {
        assert_eq!(of_function("match x { Insn::Exit => 1, _ => 2 }").len(), 1);
        assert_eq!(of_function("match x { &Op::Alu { .. } | &Op::Mov(_) => 1, other => 2 }").len(), 1);
        assert_eq!(of_function("match y { 1 => match x { Insn::Exit => 1, _ => 2 }, _ => 3 }").len(), 1);
    }

    #[test]
    fn other_matches_may_have_one() {
        assert!(of_function("match x { Insn::Exit => 1, Insn::Jump { .. } => 2 }").is_empty());
        assert!(of_function("match x { 1 => Insn::Exit, _ => Insn::SecondSlot }").is_empty());
        assert!(of_function("match x { Insn::Exit => 1, _ if y => 2, Insn::Jump { .. } => 3 }").is_empty());
    }

    #[test]
    fn ignored_tests_and_bare_files_are_found() {
        assert_eq!(source("//! A file.\n#[test]\n#[ignore]\nfn f() {}\n").len(), 1);
        assert_eq!(source("fn f() {}\n").len(), 1);
    }
}
