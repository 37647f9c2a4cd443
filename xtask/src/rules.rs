//! The architecture rules that a script can enforce (ARCHITECTURE.md says why each exists).
//!
//! * The arrows: which crate of the family may depend on which, and that nobody ships with the testkit.
//! * The operating system is asked in `bpf-os` only: no other shipped crate depends on `libc` or its like, or declares
//!   functions that some library has, but for the unwinder's, the debugger's and a sanitizer's.
//! * `forbid(unsafe_code)` where the design promises it.
//! * The lint against casts that cut numbers off, in every crate that was gone through for it.
//! * Both backends have the same files, the same match over `Op`, and items of one name lie in the same file of both.
//! * A backend never sees a BPF instruction: it knows `Op`, and the words of the instruction set (`Width`, `Cond`).
//! * A match over `Insn`, `Op`, `MapType` or `Helper` in shipped code has no `_ =>` arm, so that a new instruction is a
//!   compile error everywhere. With one or two other arms it is an `if let … else` in other words, and may have one; so
//!   may a match whose last arm names the rest and hands it on.
//! * The files of a crate are in no circles, and the layers of the runtime in their order (`layers`).
//! * Lists that belong together agree (`tables`).
//! * Links of documents lead to files and headings, and the book lists each of its pages once (`links`).
//! * Pages have a bounded number of words, and the changelog has the form of Keep a Changelog (`form`).
//! * Commands of cargo that documents name exist (`commands`).
//! * Tables of figures in the book have a date, a machine and a command (`figures`).
//! * Blocks of code in the book are compiled by tests, and it explains each message of the verifier (`blocks`).
//! * Pages that list all errors, settings or fields of the hidden argument list all of them (`listed`).
//! * An error has its cause in its text, and returns none from `source()` (`causes`).
//! * Paths in documents lead to files, and each promise of SECURITY.md has its tests (`docs`).
//! * The verifier's core is no longer than it may be, and each of its rules has its justification (`trusted`).
//! * The pictures of the documents agree with their data (`pictures`).
//! * Shipped crates have the manifests and documents that crates.io and its readers ask for (`publish`), and their
//!   public interface is the reviewed one (`api`).
//! * Lock files of the workspaces that the tests leave out have the family's dependencies (`locks`).
//! * Sentences of comments and documents have a subject, and documents a bounded length (`prose`).
//! * No `#[ignore]`; every file opens with a `//!` comment; no comment goes beyond 120 columns.
//! * A `PhantomData` over a user's type parameter, and an `unsafe impl` of `Send` or `Sync`, has a comment that says
//!   why it is so: the compiler infers variance and thread safety from it, which the code does not show.
//! * Where emitted code calls, an argument `ctx` is the hidden one, not the address of a context.
//! * No SAFETY comment says only "by contract", "as above", "as before" or "the same": each states its reason in place.
//!
//! Dependencies come from `cargo metadata` and matches from the syntax tree, not from patterns over text.

use crate::{
    api, blocks, causes, commands, docs, figures, form, layers, links, listed, locks, pictures, prose, publish,
    shell::{self, files},
    tables, trusted,
};
use anyhow::{Context, bail};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{Arm, Pat, spanned::Spanned, visit::Visit};

/// Package, and the packages of the family that it may depend on. A shipped package that is not here may not exist.
const ARROWS: &[(&str, &[&str])] = &[
    ("bpf-uapi", &[]),
    ("bpf-isa", &[]),
    ("bpf-analysis", &["bpf-uapi", "bpf-isa"]),
    ("bpf-verifier-core", &["bpf-uapi", "bpf-isa", "bpf-analysis"]),
    ("bpf-verifier", &["bpf-uapi", "bpf-isa", "bpf-analysis", "bpf-verifier-core"]),
    ("bpf-interp", &["bpf-uapi", "bpf-isa"]),
    ("bpf-jit-code", &[]),
    ("bpf-debug", &["bpf-jit-code", "bpf-os", "bpf-quiesce"]),
    ("bpf-disasm", &["bpf-jit-code"]),
    ("bpf-lir", &["bpf-isa", "bpf-jit-code"]),
    ("bpf-opt", &["bpf-isa", "bpf-lir"]),
    ("bpf-jit", &["bpf-uapi", "bpf-isa", "bpf-analysis", "bpf-jit-code", "bpf-lir", "bpf-opt"]),
    ("bpf-jit-x64", &["bpf-isa", "bpf-jit", "bpf-jit-code"]),
    ("bpf-jit-arm64", &["bpf-isa", "bpf-jit", "bpf-jit-code"]),
    ("bpf-os", &["bpf-uapi"]),
    ("bpf-quiesce", &["bpf-os"]),
    ("bpf-prog-pack", &["bpf-jit-code", "bpf-quiesce", "bpf-os"]),
    ("bpf-tailcall", &["bpf-jit-code", "bpf-prog-pack", "bpf-quiesce"]),
    ("bpf-dispatcher", &["bpf-jit-code", "bpf-prog-pack", "bpf-quiesce"]),
    ("bpf-maps", &["bpf-uapi", "bpf-os", "bpf-quiesce"]),
    ("bpf-object", &["bpf-uapi", "bpf-isa"]),
    ("bpf-context-derive", &[]),
    ("bpf-guest", &["bpf-guest-macros"]),
    ("bpf-guest-macros", &[]),
    ("bpf-runtime", RUNTIME),
    ("bpf-cli", &["bpf-runtime", "bpf-disasm", "bpf-os"]),
];

/// Crates that are not shipped. They may depend on any crate, and no shipped crate may depend on them.
const UNSHIPPED: [&str; 14] = [
    "bpf-testkit",
    "bpf-jit-suite",
    "bpf-misuse",
    "bpf-parking",
    "bpf-prove",
    "bpf-benches",
    "bpf-example-gateway",
    "bpf-example-interpreted",
    "bpf-example-limiter",
    "bpf-example-live",
    "bpf-example-policy",
    "bpf-example-service",
    "bpf-example-tenants",
    "xtask",
];

const RUNTIME: &[&str] = &[
    "bpf-uapi",
    "bpf-os",
    "bpf-isa",
    "bpf-analysis",
    "bpf-verifier",
    "bpf-verifier-core",
    "bpf-interp",
    "bpf-jit-code",
    "bpf-debug",
    "bpf-jit",
    "bpf-jit-x64",
    "bpf-jit-arm64",
    "bpf-quiesce",
    "bpf-prog-pack",
    "bpf-tailcall",
    "bpf-dispatcher",
    "bpf-maps",
    "bpf-object",
    "bpf-context-derive",
];

/// Packages through which a crate would ask the operating system, and those of ours that may. Tests may.
const SYSTEM: &[(&str, &[&str])] = &[
    ("libc", &["bpf-os"]),
    // The mark in a jitdump is a mapping of a file, and nothing else: files that other processes may truncate are read,
    // never mapped.
    ("memmap2", &["bpf-debug"]),
    ("rustix", &[]),
    ("nix", &[]),
    ("windows-sys", &[]),
];

/// Foreign functions that shipped code may declare, because no crate offers them.
const FOREIGN: &[&str] = &[
    // Where the unwinder finds frames of emitted code, and its walk over a thread's stack (debug).
    "__register_frame",
    "__deregister_frame",
    "_Unwind_Backtrace",
    "_Unwind_GetCFA",
    "_Unwind_GetIPInfo",
    // Where GDB looks for emitted code: in the same file's assembly.
    "__jit_debug_register_code",
    "__jit_debug_descriptor",
    // Tells the address sanitizer that a jump leaves frames of emitted code.
    "__asan_handle_no_return",
    // Tell the thread sanitizer of the stacks of runs that wait.
    "__tsan_get_current_fiber",
    "__tsan_create_fiber",
    "__tsan_destroy_fiber",
    "__tsan_switch_to_fiber",
];

/// Source folders whose crates forbid unsafe code.
const SAFE: &[&str] = &[
    "uapi",
    "bpf-isa",
    "bpf-analysis",
    "lir",
    "bpf-opt",
    "bpf-jit",
    "dispatcher",
    "verifier",
    "verifier-core",
    "object",
    "context-derive",
];

/// Source folders whose crates have no cast that may cut a number off without a reason beside it. (In tests, a number
/// cut off fails the test.)
const UNCUT: &[&str] = &[
    "object",
    "maps",
    "quiesce",
    "prog-pack",
    "uapi",
    "runtime",
    "tailcall",
    "jit-code",
    "context-derive",
    "bpf-interp",
    "disasm",
    "debug",
    "cli",
    "bpf-isa",
    "bpf-analysis",
    "dispatcher",
    "lir",
    "os",
    "bpf-opt",
    "bpf-jit",
    "bpf-jit-x64",
    "bpf-jit-arm64",
    "verifier",
    "verifier-core",
];

/// Attribute that turns the lint on.
const UNCUT_LINT: &str = "#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]";

const BACKENDS: [&str; 2] = ["crates/bpf-jit-x64/src", "crates/bpf-jit-arm64/src"];

/// Where a line of comment ends, as a line of code (rustfmt.toml).
const MAX_COLUMNS: usize = 120;

/// How a SAFETY comment says nothing of its place.
const ELSEWHERE: [&str; 11] = [
    "as above",
    "as before",
    "as said at",
    "as the verifier has proven",
    "see above",
    "by contract",
    "by the contract",
    "module's contract",
    "the same.",
    "the same;",
    "valid (contract)",
];

/// Enums over which every match is exhaustive: instructions, ops, and what the kernel defines.
const EXHAUSTIVE: [&str; 4] = ["Insn", "Op", "MapType", "Helper"];

pub(crate) fn check() -> anyhow::Result<()> {
    let root = shell::root();
    let metadata = publish::metadata()?;
    let mut broken = arrows(&metadata)?;
    broken.extend(publish::check(&metadata)?);
    broken.extend(locks::check(&metadata)?);
    for folder in SAFE {
        let path = root.join("crates").join(folder).join("src/lib.rs");
        if !fs::read_to_string(&path)?.contains("#![forbid(unsafe_code)]") {
            broken.push(format!("{}: must forbid unsafe code", shown(&path)));
        }
    }
    for folder in UNCUT {
        let source = root.join("crates").join(folder).join("src");
        let path = [source.join("lib.rs"), source.join("main.rs")].into_iter().find(|path| path.exists());
        let path = path.context("a crate has neither lib.rs nor main.rs")?;
        if !fs::read_to_string(&path)?.lines().any(|line| line == UNCUT_LINT) {
            broken.push(format!("{}: must have `{UNCUT_LINT}`", shown(&path)));
        }
    }
    let [x64, arm64] = BACKENDS.map(|folder| files(&root.join(folder)));
    for path in x64?.symmetric_difference(&arm64?) {
        broken.push(format!("{}: only one backend has this file", path.display()));
    }
    broken.extend(same_jobs()?);
    broken.extend(layers::check()?);
    broken.extend(docs::check()?);
    broken.extend(commands::check()?);
    broken.extend(figures::check()?);
    broken.extend(form::check()?);
    broken.extend(links::check()?);
    broken.extend(blocks::check()?);
    broken.extend(listed::check()?);
    broken.extend(causes::check()?);
    broken.extend(tables::check()?);
    broken.extend(api::check()?);
    broken.extend(pictures::check()?);
    broken.extend(prose::check()?);
    broken.extend(trusted::check()?);
    for folder in ["crates", "benches", "xtask", "fuzz"] {
        for path in files(&root.join(folder))? {
            let path = root.join(folder).join(path);
            let text = fs::read_to_string(&path)?;
            broken.extend(source(&text, kind(&path)).into_iter().map(|what| format!("{}: {what}", shown(&path))));
        }
    }
    if broken.is_empty() { Ok(()) } else { bail!("architecture rules are broken:\n  {}", broken.join("\n  ")) }
}

/// Functions of the two backends that do the same have one name, by which they are found in the same file. The file
/// with the match over `Op` is the same text.
fn same_jobs() -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    let [x64, arm64] = BACKENDS.map(|folder| shell::root().join(folder));
    if fs::read_to_string(x64.join("emit/mod.rs"))? != fs::read_to_string(arm64.join("emit/mod.rs"))? {
        broken.push("emit/mod.rs differs between the backends".to_owned());
    }
    let functions = |root: &Path| -> anyhow::Result<BTreeMap<String, BTreeSet<PathBuf>>> {
        let mut found: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for path in files(root)? {
            for name in methods(&fs::read_to_string(root.join(&path))?) {
                found.entry(name).or_default().insert(path.clone());
            }
        }
        Ok(found)
    };
    let (x64, arm64) = (functions(&x64)?, functions(&arm64)?);
    for (name, files) in &x64 {
        if let Some(others) = arm64.get(name)
            && files.is_disjoint(others)
        {
            broken.push(format!("`{name}` is in {files:?} of one backend and in {others:?} of the other"));
        }
    }
    Ok(broken)
}

/// The methods that a source shares with other files of its crate.
fn methods(source: &str) -> BTreeSet<String> {
    let shared = ["    pub(crate) fn ", "    pub(super) fn "];
    let names = source.lines().filter_map(|line| shared.iter().find_map(|prefix| line.strip_prefix(prefix)));
    names.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(shell::root()).unwrap_or(path).display().to_string()
}

fn arrows(metadata: &serde_json::Value) -> anyhow::Result<Vec<String>> {
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let mut broken = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("no name")?;
        if UNSHIPPED.contains(&name) {
            continue;
        }
        let Some(may) = allowed.get(name) else {
            broken.push(format!("{name}: not in the table of arrows"));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let on = dependency["name"].as_str().context("no name")?;
            // Tests may look at anything.
            let shipped = dependency["kind"].as_str() != Some("dev");
            let ours = allowed.contains_key(on) || UNSHIPPED.contains(&on);
            if shipped && ours && !may.contains(&on) {
                broken.push(format!("{name}: may not depend on {on}"));
            }
            if shipped && SYSTEM.iter().any(|(system, users)| *system == on && !users.contains(&name)) {
                broken.push(format!("{name}: asks the operating system through {on}, and only bpf-os may"));
            }
            if shipped && matches!(name, "bpf-isa" | "bpf-uapi") {
                broken.push(format!("{name}: has no dependencies, {on} is one"));
            }
        }
    }
    Ok(broken)
}

/// Which rules a file is under.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Backend,
    Shipped,
    Other,
    /// A program that must not compile: a test's input, not a source of ours.
    Fixture,
}

fn kind(path: &Path) -> Kind {
    let within = |folder: &str| path.starts_with(shell::root().join(folder));
    let in_source = path.components().any(|component| component.as_os_str() == "src");
    if path.with_extension("stderr").exists() {
        Kind::Fixture
    } else if BACKENDS.iter().any(|folder| within(folder)) {
        Kind::Backend
    } else if within("crates") && in_source && !within("crates/testkit") && !within("crates/jit-suite") {
        Kind::Shipped
    } else {
        Kind::Other
    }
}

/// Reports the rules that a source file breaks.
fn source(text: &str, kind: Kind) -> Vec<String> {
    let mut broken = Vec::new();
    if kind == Kind::Fixture {
        return broken;
    }
    if !text.starts_with("//!") {
        broken.push("does not open with a `//!` comment".to_owned());
    }
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start().strip_prefix("//");
        // A row of a table cannot be broken.
        let row = comment.is_some_and(|comment| comment.trim_start_matches(['/', '!', ' ']).starts_with('|'));
        if comment.is_some() && !row && line.chars().count() > MAX_COLUMNS {
            broken.push(format!("line {number}: a comment beyond {MAX_COLUMNS} columns"));
        }
        let safety = comment.and_then(|comment| comment.trim().strip_prefix("SAFETY:")).unwrap_or_default();
        if ELSEWHERE.iter().any(|words| safety.contains(words)) {
            broken.push(format!("line {number}: a SAFETY comment that points elsewhere"));
        }
    }
    match syn::parse_file(text) {
        Ok(file) => {
            let mut visitor = Visitor { kind, lines: text.lines().collect(), params: Vec::new(), broken: Vec::new() };
            visitor.visit_file(&file);
            broken.extend(visitor.broken);
        }
        Err(error) => broken.push(format!("does not parse: {error}")),
    }
    broken
}

struct Visitor<'t> {
    kind: Kind,
    lines: Vec<&'t str>,
    /// The type parameters in scope.
    params: Vec<String>,
    broken: Vec<String>,
}

impl Visitor<'_> {
    /// The comment that ends in the line before this one (1 is the first), attributes between them aside.
    fn comment_before(&self, line: usize) -> String {
        let above = self.lines[..line.saturating_sub(1).min(self.lines.len())].iter().rev().map(|line| line.trim());
        let mut comment: Vec<_> = above
            .skip_while(|line| line.starts_with("#["))
            .take_while(|line| line.starts_with("//") && !line.starts_with("//!"))
            .map(|line| line.trim_start_matches('/').trim())
            .collect();
        comment.reverse();
        comment.join(" ")
    }

    /// Whether the comment before the line gives a reason of its own.
    fn has_reason(&self, line: usize) -> bool {
        let comment = self.comment_before(line);
        let text = comment.trim_start_matches("SAFETY:").trim().to_lowercase();
        // Four words are no reason: "as above", "see the other one".
        text.split_whitespace().count() > 4 && !text.starts_with("as above") && !text.starts_with("as before")
    }

    /// Looks at the type of a field or alias that begins in this line.
    fn phantom(&mut self, ty: &syn::Type, line: usize) {
        let mut found = Phantom { params: &self.params, found: false };
        found.visit_type(ty);
        if found.found && self.kind == Kind::Shipped && !self.has_reason(line) {
            self.broken.push(format!(
                "line {line}: a `PhantomData` over a type parameter without a comment that says why it is so"
            ));
        }
    }

    fn in_scope_of(&mut self, generics: &syn::Generics, visit: impl FnOnce(&mut Self)) {
        let before = self.params.len();
        self.params.extend(generics.type_params().map(|param| param.ident.to_string()));
        visit(self);
        self.params.truncate(before);
    }
}

/// Whether a type has a `PhantomData` in it that mentions one of the parameters.
struct Phantom<'p> {
    params: &'p [String],
    found: bool,
}

impl<'ast> Visit<'ast> for Phantom<'_> {
    fn visit_path_segment(&mut self, node: &'ast syn::PathSegment) {
        if node.ident == "PhantomData" {
            let mut names = UseNames::default();
            names.visit_path_arguments(&node.arguments);
            self.found |= names.0.iter().any(|name| self.params.contains(name));
        }
        syn::visit::visit_path_segment(self, node);
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_struct(&mut self, node: &'ast syn::ItemStruct) {
        self.in_scope_of(&node.generics, |this| {
            for field in &node.fields {
                let start = field.ident.as_ref().map_or_else(|| field.ty.span(), Spanned::span).start().line;
                // The fields of a tuple in one line have their comment before the struct.
                let line = if field.ident.is_none() && start == node.ident.span().start().line {
                    node.struct_token.span.start().line
                } else {
                    start
                };
                this.phantom(&field.ty, line);
            }
        });
        syn::visit::visit_item_struct(self, node);
    }

    fn visit_item_type(&mut self, node: &'ast syn::ItemType) {
        self.in_scope_of(&node.generics, |this| this.phantom(&node.ty, node.type_token.span.start().line));
        syn::visit::visit_item_type(self, node);
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let name = node.trait_.as_ref().and_then(|(path, _)| path.segments.last()).map(|last| last.ident.to_string());
        if let (Some(unsafety), Some("Send" | "Sync")) = (&node.unsafety, name.as_deref()) {
            let line = unsafety.span.start().line;
            if self.kind != Kind::Other && !self.has_reason(line) {
                self.broken.push(format!(
                    "line {line}: an `unsafe impl` of `Send` or `Sync` without a comment that says why it is so"
                ));
            }
        }
        syn::visit::visit_item_impl(self, node);
    }

    fn visit_signature(&mut self, node: &'ast syn::Signature) {
        // Functions that emitted code calls.
        let called = node.abi.is_some() && matches!(self.kind, Kind::Shipped | Kind::Backend);
        for arg in node.inputs.iter().filter(|_| called) {
            if let syn::FnArg::Typed(arg) = arg
                && let (Pat::Ident(name), syn::Type::Path(of)) = (&*arg.pat, &*arg.ty)
                && (name.ident == "ctx" && of.path.is_ident("u64"))
            {
                let line = proc_macro2::Span::start(&name.ident.span()).line;
                self.broken
                    .push(format!("line {line}: `ctx` is the hidden argument; what r1 points to is a `context`"));
            }
        }
        syn::visit::visit_signature(self, node);
    }

    fn visit_item_foreign_mod(&mut self, node: &'ast syn::ItemForeignMod) {
        let declared = node.items.iter().filter_map(|item| match item {
            syn::ForeignItem::Fn(item) => Some(&item.sig.ident),
            syn::ForeignItem::Static(item) => Some(&item.ident),
            _ => None,
        });
        let shipped = matches!(self.kind, Kind::Shipped | Kind::Backend);
        for name in declared.filter(|name| shipped && !FOREIGN.iter().any(|foreign| *name == foreign)) {
            let line = proc_macro2::Span::start(&name.span()).line;
            self.broken.push(format!("line {line}: declares `{name}`, which bpf-os should offer"));
        }
        syn::visit::visit_item_foreign_mod(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        let shipped = matches!(self.kind, Kind::Shipped | Kind::Backend) && node.arms.len() > 3;
        let over =
            EXHAUSTIVE.into_iter().filter(|_| shipped).find(|name| node.arms.iter().any(|arm| names(&arm.pat, name)));
        if let (Some(name), Some(arm)) = (over, node.arms.iter().find(|arm| catches_all(arm))) {
            let line = proc_macro2::Span::start(&arm.pat.span()).line;
            self.broken.push(format!("line {line}: a match over `{name}` with a catch-all arm"));
        }
        syn::visit::visit_expr_match(self, node);
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        let mut names = UseNames::default();
        names.visit_item_use(node);
        if self.kind == Kind::Backend
            && names.0.starts_with(&["bpf_isa".to_owned()])
            && names.0.contains(&"Insn".to_owned())
        {
            let line = node.span().start().line;
            self.broken.push(format!("line {line}: a backend imports `Insn`"));
        }
    }

    fn visit_attribute(&mut self, node: &'ast syn::Attribute) {
        if node.path().is_ident("ignore") {
            self.broken.push("has an ignored test".to_owned());
        }
    }
}

/// The names in a `use`, in order.
#[derive(Default)]
struct UseNames(Vec<String>);

impl<'ast> Visit<'ast> for UseNames {
    fn visit_ident(&mut self, node: &'ast syn::Ident) {
        self.0.push(node.to_string());
    }
}

/// Whether the arm is `_ =>`. (With a guard it is a `Pat::Guard`.)
fn catches_all(arm: &Arm) -> bool {
    matches!(arm.pat, Pat::Wild(_))
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
        source(&format!("//! A file.\nfn f() {{ {body} }}\n"), Kind::Shipped)
    }

    #[test]
    fn a_catch_all_over_instructions_is_found() {
        assert_eq!(of_function("match x { Insn::A => 1, Insn::B => 2, Insn::C => 3, _ => 4 }").len(), 1);
        assert_eq!(of_function("match x { &Op::A { .. } => 1, &Op::B(_) | &Op::C => 2, Op::D => 3, _ => 4 }").len(), 1);
        let nested = "match y { 1 => match x { Insn::A => 1, Insn::B => 2, Insn::C => 3, _ => 4 }, _ => 5 }";
        assert_eq!(of_function(nested).len(), 1);
    }

    #[test]
    fn other_matches_may_have_one() {
        let four = "match x { Insn::A => 1, Insn::B => 2, Insn::C => 3, _ => 4 }";
        assert!(of_function(&four.replace('_', "Insn::D")).is_empty());
        assert!(of_function(&four.replace('_', "_ if y")).is_empty());
        assert!(of_function(&four.replace("_ => 4", "other => f(other)")).is_empty());
        assert!(of_function("match x { Insn::A => 1, Insn::B => 2, _ => 3 }").is_empty());
        assert!(of_function("match x { 1 => Insn::A, 2 => Insn::B, 3 => Insn::C, _ => Insn::D }").is_empty());
        assert!(source(&format!("//! A file.\nfn f() {{ {four} }}"), Kind::Other).is_empty());
    }

    #[test]
    fn a_context_is_not_called_ctx() {
        let broken = |arg: &str| source(&format!("//! A file.\nextern \"C\" fn f({arg}) {{}}\n"), Kind::Shipped).len();
        assert_eq!(broken("ctx: u64"), 1);
        assert_eq!(broken("context: u64, ctx: *mut RunCtx"), 0);
    }

    #[test]
    fn declared_functions_are_found() {
        let broken = |item: &str, kind| source(&format!("//! A file.\nunsafe extern \"C\" {{ {item} }}\n"), kind).len();
        assert_eq!(broken("fn getpid() -> i32; fn getppid() -> i32;", Kind::Shipped), 2);
        assert_eq!(broken("static environ: *const *const u8;", Kind::Backend), 1);
        assert_eq!(broken("fn __register_frame(frame: *const u8);", Kind::Shipped), 0);
        assert_eq!(broken("fn getpid() -> i32;", Kind::Other), 0);
    }

    #[test]
    fn ignored_tests_and_bare_files_are_found() {
        assert_eq!(source("//! A file.\n#[test]\n#[ignore]\nfn f() {}\n", Kind::Other).len(), 1);
        assert_eq!(source("fn f() {}\n", Kind::Other).len(), 1);
        let long = "x".repeat(MAX_COLUMNS);
        assert_eq!(source(&format!("//! A file.\n// {long}\n"), Kind::Other).len(), 1);
        assert!(source(&format!("//! A file.\n// | {long} |\nstatic X: &str = \"{long}\";\n"), Kind::Other).is_empty());
        assert!(source("fn f() {}\n", Kind::Fixture).is_empty());
    }

    #[test]
    fn markers_without_a_reason_are_found() {
        let broken = |item: &str| source(&format!("//! A file.\n{item}\n"), Kind::Shipped).len();
        let reason = "/// Invariant: it is written through a reference.\n";
        assert_eq!(broken("struct S<T> {\n    a: u8,\n    t: PhantomData<fn(T)>,\n}"), 1);
        assert_eq!(broken(&format!("struct S<T> {{\n    {reason}    t: PhantomData<fn(T) -> T>,\n}}")), 0);
        assert_eq!(broken("struct S<T>(*mut T, PhantomData<Box<T>>);"), 1);
        assert_eq!(broken(&format!("{reason}struct S<T>(*mut T, PhantomData<Box<T>>);")), 0);
        assert_eq!(broken("type Over<T> = PhantomData<T>;"), 1);
        assert_eq!(broken("struct S<'a> {\n    t: PhantomData<&'a [u8]>,\n}"), 0, "no type of a user's");

        let imp = "unsafe impl<T> Send for S<T> {}";
        assert_eq!(broken(imp), 1);
        assert_eq!(broken(&format!("// SAFETY: see the other one.\n{imp}")), 1);
        assert_eq!(broken(&format!("// SAFETY: as before.\n{imp}")), 2, "no reason, and it points elsewhere");
        assert_eq!(broken(&format!("// SAFETY: the value\n// owns the memory that it points to.\n{imp}")), 0);
        assert_eq!(broken("impl Send for S {}"), 0);
    }

    #[test]
    fn a_safety_comment_says_what_holds_here() {
        assert_eq!(of_function("\n// SAFETY: as above.\nunsafe { g() }").len(), 1);
        assert_eq!(of_function("\n// SAFETY: readable by contract; the length fits.\nunsafe { g() }").len(), 1);
        assert!(of_function("\n// SAFETY: the caller has `len` readable bytes.\nunsafe { g() }").is_empty());
        assert!(of_function("\n// As above.\ng()").is_empty());
    }

    #[test]
    fn shared_methods_are_found() {
        let source =
            "impl A {\n    pub(crate) fn get(&self) {}\n    fn own(&self) {}\n    pub(super) fn put<T>(&self) {}\n}\n";
        assert_eq!(methods(source), BTreeSet::from(["get".to_owned(), "put".to_owned()]));
    }

    #[test]
    fn a_backend_that_sees_instructions_is_found() {
        assert_eq!(source("//! A file.\nuse bpf_isa::Insn;\n", Kind::Backend).len(), 1);
        assert!(source("//! A file.\nuse bpf_isa::{InsnIdx, Width};\n", Kind::Backend).is_empty());
    }
}
