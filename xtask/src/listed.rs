//! Pages of the book that list all there is of something: errors, settings, fields of the hidden argument.
//!
//! Problem: a list in a document is believed to be whole, and nobody remembers it when a variant or a field is added.
//! Approach: the names are read from the syntax tree of the sources and compared with the tables of the page. A table
//! belongs to the item that its header names first, in backquotes; the names of its rows stand in their first cells.
//! Errors are compared both ways; of settings and fields, each name has to have a row.

use crate::shell;
use anyhow::Context;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, ImplItem, Item, ReceiverKind, Visibility};

/// The pages that list errors.
const ERRORS: [&str; 3] =
    ["docs/book/reference/errors.md", "docs/book/reference/errors-modules.md", "docs/book/reference/errors-objects.md"];

/// Errors that another page explains, and the rule that holds it.
const ELSEWHERE: [(&str, &str); 1] = [("Reason", "each message has a row of refused.md (`blocks`)")];

/// Enums whose name says nothing of their crate, and the name by which pages and users know them.
const RENAMED: [(&str, &str, &str); 2] =
    [("bpf-prog-pack", "Error", "PackError"), ("bpf-debug", "Error", "bpf_debug::Error")];

/// Structs with a row for each public field: source, struct, page.
const FIELDS: [(&str, &str, &str); 3] = [
    ("crates/jit-code/src/hardening.rs", "Hardening", "docs/book/reference/settings.md"),
    ("crates/verifier-core/src/contract/env.rs", "Limits", "docs/book/reference/settings.md"),
    ("crates/jit-code/src/run_ctx.rs", "RunCtx", "docs/book/reference/abi.md"),
];

/// Types with a row for each public method that takes `self` by value, a setter or the end of a chain: source, type,
/// page.
const METHODS: [(&str, &str, &str); 2] = [
    ("crates/runtime/src/engine/config.rs", "Config", "docs/book/reference/settings.md"),
    ("crates/runtime/src/load/loader.rs", "Loader", "docs/book/reference/settings.md"),
];

/// Reports names that a page lacks, and errors of a page that do not exist.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let mut pages = String::new();
    for page in ERRORS {
        pages.push_str(&read(page)?);
    }
    let mut broken = differences(&errors_of_shipped_crates(&root)?, &tables(&pages));
    for (source, name, page) in FIELDS {
        broken.extend(unlisted(name, &fields(&read(source)?, name)?, page, &read(page)?));
    }
    for (source, name, page) in METHODS {
        broken.extend(unlisted(name, &methods(&read(source)?, name)?, page, &read(page)?));
    }
    Ok(broken)
}

/// The crates with a reviewed interface, and the folders of their sources.
pub(crate) fn reviewed(root: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = entry?.file_name().to_string_lossy().into_owned();
        let package = if folder.starts_with("bpf-") { folder.clone() } else { format!("bpf-{folder}") };
        if root.join("xtask/api").join(format!("{package}.txt")).is_file() {
            found.push((package, root.join("crates").join(&folder).join("src")));
        }
    }
    found.sort();
    Ok(found)
}

/// Public enums of errors and their variants, of all crates with a reviewed interface.
fn errors_of_shipped_crates(root: &Path) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut found = BTreeMap::new();
    for (package, sources) in reviewed(root)? {
        for path in shell::files(&sources)? {
            let text = fs::read_to_string(sources.join(&path))?;
            if path.extension().is_some_and(|extension| extension == "rs") && text.contains("pub enum ") {
                found.extend(errors(&package, &text)?);
            }
        }
    }
    Ok(found)
}

/// The public enums of a source that are errors, by their names on the pages.
fn errors(package: &str, text: &str) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let mut found = Vec::new();
    for item in syn::parse_file(text)?.items {
        let Item::Enum(item) = item else { continue };
        let name = item.ident.to_string();
        let is_error = derives_error(&item.attrs) || name.ends_with("Error") || name.ends_with("ErrorKind");
        if !matches!(item.vis, Visibility::Public(_)) || !is_error {
            continue;
        }
        if ELSEWHERE.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let renamed = RENAMED.iter().find(|(of, enumeration, _)| (*of, *enumeration) == (package, &*name));
        let name = renamed.map_or(name, |(.., name)| (*name).to_owned());
        found.push((name, item.variants.iter().map(|variant| variant.ident.to_string()).collect()));
    }
    Ok(found)
}

/// Whether an item derives `thiserror::Error`.
pub(crate) fn derives_error(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut found = false;
        let derive = attribute.path().is_ident("derive").then(|| {
            attribute.parse_nested_meta(|meta| {
                found |= meta.path.segments.last().is_some_and(|segment| segment.ident == "Error");
                Ok(())
            })
        });
        derive.is_some_and(|parsed| parsed.is_ok()) && found
    })
}

/// The tables of a document by the first name in backquotes of their headers: the names in the first cells.
fn tables(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    let mut open = None;
    for (at, line) in lines.iter().enumerate() {
        let Some(cell) = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            open = open.filter(|_| line.starts_with('|'));
            continue;
        };
        let mut names = cell.split('`').skip(1).step_by(2).map(str::to_owned);
        if lines.get(at + 1).is_some_and(|next| next.starts_with("|--")) {
            open = names.next();
        } else if let Some(table) = &open {
            found.entry(table.clone()).or_default().extend(names);
        }
    }
    found
}

/// Variants without a row, and rows without a variant.
fn differences(
    errors: &BTreeMap<String, BTreeSet<String>>,
    tables: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let mut broken = Vec::new();
    if errors.is_empty() {
        broken.push("crates: no public errors were read".to_owned());
    }
    for (name, variants) in errors {
        let Some(rows) = tables.get(name) else {
            broken.push(format!("{}: there is no table of `{name}`", ERRORS[0]));
            continue;
        };
        let missing = variants.difference(rows);
        broken.extend(missing.map(|variant| format!("{}: explain `{name}::{variant}`", ERRORS[0])));
        let gone = rows.difference(variants);
        broken.extend(gone.map(|row| format!("{}: `{name}` has no variant `{row}`", ERRORS[0])));
    }
    let gone = tables.keys().filter(|name| name.ends_with("Error") && !errors.contains_key(*name));
    broken.extend(gone.map(|name| format!("{}: there is no public enum `{name}`", ERRORS[0])));
    broken
}

/// The public fields of a struct.
fn fields(text: &str, name: &str) -> anyhow::Result<Vec<String>> {
    for item in syn::parse_file(text)?.items {
        if let Item::Struct(item) = item
            && item.ident == name
        {
            let public = item.fields.iter().filter(|field| matches!(field.vis, Visibility::Public(_)));
            return Ok(public.filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect());
        }
    }
    anyhow::bail!("there is no struct `{name}`")
}

/// The public methods of a type that take `self` by value.
fn methods(text: &str, name: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for item in syn::parse_file(text)?.items {
        let Item::Impl(item) = item else { continue };
        let syn::Type::Path(of) = &*item.self_ty else { continue };
        if item.trait_.is_some() || of.path.segments.last().is_none_or(|segment| segment.ident != name) {
            continue;
        }
        for item in item.items {
            if let ImplItem::Fn(method) = item
                && matches!(method.vis, Visibility::Public(_))
                && method.sig.receiver().is_some_and(|receiver| matches!(receiver.kind, ReceiverKind::Value))
            {
                found.push(method.sig.ident.to_string());
            }
        }
    }
    anyhow::ensure!(!found.is_empty(), "`{name}` has no public methods");
    Ok(found)
}

/// Names that stand in no first cell of a table of the page.
fn unlisted(item: &str, names: &[String], page: &str, text: &str) -> Vec<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let missing = names.iter().filter(|name| !listed.contains(name.as_str()));
    missing.map(|name| format!("{page}: there is no row for `{name}` of `{item}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        #[derive(Debug, thiserror::Error)] pub enum Odd { #[error(\"a\")] One, Two { n: u8 } }
        pub enum SomeErrorKind { Three(u8) }
        pub enum Fine { Four }
        enum HiddenError { Five }
        #[derive(Debug)] pub struct Config { pub a: u8, pub b: u8, c: u8 }
        impl Config { pub fn new() -> Self { loop {} } pub fn with(self) {} pub fn get(&self) {} fn hidden(self) {} }
        impl Clone for Config { fn clone(&self) -> Self { loop {} } }
    ";

    #[test]
    fn errors_and_their_rows_are_compared() {
        let errors: BTreeMap<_, _> = errors("bpf-x", SOURCE).unwrap().into_iter().collect();
        assert_eq!(errors.keys().collect::<Vec<_>>(), ["Odd", "SomeErrorKind"]);
        let of = |page: &str| differences(&errors, &tables(page)).len();
        let other = "\n| `SomeErrorKind` | what |\n|---|---|\n| `Three` | see `Four` |\n";
        assert_eq!(of(&format!("| `Odd` | what |\n|---|---|\n| `One`, `Two` | x |\n{other}")), 0);
        assert_eq!(of(&format!("| `Odd` | what |\n|---|---|\n| `One` | x |\n{other}")), 1);
        assert_eq!(of(&format!("| `Odd` | what |\n|---|---|\n| `One`, `Two`, `Six` | x |\n{other}")), 1);
        assert_eq!(of(other), 1);
        assert_eq!(of(&format!("{other}\n| `GoneError` | what |\n|---|---|\n| `One` | x |\n")), 2);
        assert_eq!(differences(&BTreeMap::new(), &BTreeMap::new()).len(), 1);
    }

    #[test]
    fn an_error_without_a_name_of_its_own_is_known_by_its_crate() {
        let source = "#[derive(thiserror::Error)] pub enum Error { One }";
        assert_eq!(errors("bpf-prog-pack", source).unwrap()[0].0, "PackError");
        assert_eq!(errors("bpf-verifier", "#[derive(Error)] pub enum Reason { One }").unwrap().len(), 0);
    }

    #[test]
    fn fields_and_methods_without_a_row_are_found() {
        assert_eq!(fields(SOURCE, "Config").unwrap(), ["a", "b"]);
        assert_eq!(methods(SOURCE, "Config").unwrap(), ["with"]);
        assert!(fields(SOURCE, "Gone").is_err() && methods(SOURCE, "Gone").is_err());
        let page = "| setting | what |\n|---|---|\n| `a`, `with` | not `b` |\n";
        let names = ["a", "b", "with"].map(str::to_owned);
        assert_eq!(unlisted("Config", &names, "p.md", page), ["p.md: there is no row for `b` of `Config`"]);
    }
}
