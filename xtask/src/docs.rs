//! Paths in documents lead to files that exist.
//!
//! A promise is worth the test that holds it, and documents name tests and sources by path; a file that moves must not
//! leave a document behind. So each path in backquotes that begins at a folder of the repository, or at the folder of a
//! crate, leads somewhere; and each promise of SECURITY.md names the test that holds it, by its path or by its name,
//! and every test that is named there exists. Every test, file and item that ARCHITECTURE.md
//! names in "To add" exists as well.

use crate::{links::documents, shell};
use std::{collections::BTreeSet, fs, path::Path};

/// Folders of the repository that a path may begin with.
const ROOTS: [&str; 5] = ["crates/", "benches/", "docs/", "fuzz/", "xtask/"];

/// Paths that lead nowhere.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let crates = fs::read_dir(root.join("crates"))?
        .map(|entry| Ok(format!("{}/", entry?.file_name().to_string_lossy())))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut broken = Vec::new();
    for document in documents(&root)? {
        let name = document.strip_prefix(&root).unwrap_or(&document).display().to_string();
        // A changelog names paths of the past.
        if name == "CHANGELOG.md" {
            continue;
        }
        for (number, line) in (1..).zip(fs::read_to_string(&document)?.lines()) {
            let lost = paths(line, &crates).into_iter().filter(|path| !root.join(path).exists());
            broken.extend(lost.map(|path| format!("{name}:{number}: there is no `{path}`")));
        }
    }
    let tests = Tests::of(&root.join("crates"))?;
    broken.extend(promises(&fs::read_to_string(root.join("SECURITY.md"))?, &tests));
    broken.extend(additions(&fs::read_to_string(root.join("ARCHITECTURE.md"))?, &tests));
    Ok(broken)
}

/// The tests, items and files of all crates, which documents may name.
#[derive(Default)]
struct Tests {
    functions: BTreeSet<String>,
    /// All items that are declared, by name.
    items: BTreeSet<String>,
    /// All files, by name.
    sources: BTreeSet<String>,
    /// Files in folders of tests, by name.
    files: BTreeSet<String>,
}

impl Tests {
    fn of(folder: &Path) -> anyhow::Result<Tests> {
        let mut tests = Tests::default();
        for path in shell::files(folder)? {
            let text = fs::read_to_string(folder.join(&path))?;
            tests.functions.extend(test_functions(&text));
            tests.items.extend(items(&text));
            tests.sources.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
            if path.components().any(|component| component.as_os_str() == "tests") {
                tests.files.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
        }
        Ok(tests)
    }
}

/// The functions with `#[test]` in a source.
fn test_functions(source: &str) -> Vec<String> {
    let (mut found, mut test) = (Vec::new(), false);
    for line in source.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("fn ") {
            found.extend(rest.split(['(', '<']).next().filter(|_| test).map(str::to_owned));
            test = false;
        } else if line == "#[test]" {
            test = true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            test = false;
        }
    }
    found
}

/// Names of the items that a source declares.
fn items(source: &str) -> Vec<String> {
    const KEYWORDS: [&str; 8] = ["enum", "struct", "trait", "type", "fn", "mod", "const", "macro_rules!"];
    let name =
        |word: &str| word.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        let declared = words.windows(2).find(|pair| KEYWORDS.contains(&pair[0]) && !KEYWORDS.contains(&pair[1]));
        found.extend(declared.map(|pair| name(pair[1])).filter(|name| !name.is_empty()));
    }
    found
}

/// Reports names in "To add ..." of ARCHITECTURE.md that do not exist: tests, files, types, macros.
fn additions(text: &str, tests: &Tests) -> Vec<String> {
    let section = text.split("\n## ").find(|section| section.starts_with("To add")).unwrap_or_default();
    let mut broken = Vec::new();
    if section.lines().filter(|line| line.starts_with('|')).count() < 3 {
        broken.push("ARCHITECTURE.md: no row says what to touch \"To add ...\"".to_owned());
    }
    for quoted in section.split('`').skip(1).step_by(2) {
        // Paths are checked with those of all documents.
        if quoted.contains([' ', '/', '(', '#']) {
            continue;
        }
        let item = quoted.rsplit("::").next().unwrap_or_default().trim_end_matches('!');
        let known = if quoted.ends_with(".rs") {
            tests.sources.contains(quoted)
        } else if is_test_name(quoted) {
            tests.functions.contains(quoted) || tests.items.contains(quoted)
        } else if quoted.ends_with('!') || quoted.starts_with(char::is_uppercase) {
            tests.items.contains(item)
        } else {
            true
        };
        broken.extend((!known).then(|| format!("ARCHITECTURE.md: to add something: there is no `{quoted}`")));
    }
    broken
}

/// Reports promises of SECURITY.md that name no existing test.
fn promises(text: &str, tests: &Tests) -> Vec<String> {
    let section = text.split("\n## ").find(|section| section.starts_with("What is promised")).unwrap_or_default();
    let mut broken = Vec::new();
    for promise in section.split("\n* ").skip(1) {
        let title = promise.split("**").nth(1).unwrap_or(promise);
        let mut held = false;
        for quoted in promise.split('`').skip(1).step_by(2) {
            for named in expanded(quoted) {
                let name = named.rsplit('/').next().unwrap_or_default();
                if name.ends_with(".rs") || named.ends_with("/tests") {
                    // Paths are checked with those of all documents.
                    let known = tests.files.contains(name) || named.contains('/');
                    held |= tests.files.contains(name) || named.ends_with("/tests");
                    broken.extend((!known).then(|| format!("SECURITY.md: {title} there is no test file `{named}`")));
                } else if is_test_name(&named) {
                    held = true;
                    let known = tests.functions.contains(&named);
                    broken.extend((!known).then(|| format!("SECURITY.md: {title} there is no test `{named}`")));
                }
            }
        }
        if !held {
            broken.push(format!("SECURITY.md: {title} names no test that holds it"));
        }
    }
    broken
}

/// Whether a word can only be the name of a test: a sentence.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 2 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The paths that a line of a document names, from the root of the repository. `{a,b}` stands for two paths; a path
/// with `*` is not returned.
fn paths(line: &str, crates: &[String]) -> Vec<String> {
    let quoted = line.split('`').skip(1).step_by(2);
    // Commands and sentences are left out, and so is a line number after a path (`file.rs:12`).
    let plain = quoted.filter(|text| !text.contains([' ', '*', '…', '<']));
    let plain = plain.map(|text| text.split(':').next().unwrap_or(text));
    let rooted = plain.filter_map(|text| {
        if ROOTS.iter().any(|root| text.starts_with(root)) {
            Some(text.to_owned())
        } else {
            crates.iter().any(|folder| text.starts_with(folder)).then(|| format!("crates/{text}"))
        }
    });
    rooted.flat_map(|path| expanded(&path)).collect()
}

fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_without_their_tests_are_found() {
        let functions = test_functions("#[test]\n#[cfg(x)]\nfn a_b_c() {}\nfn d_e_f() {}\n#[test]\nfn g_h_i() {\n");
        assert_eq!(functions, ["a_b_c", "g_h_i"]);
        let tests =
            Tests { functions: functions.into_iter().collect(), files: ["t.rs".to_owned()].into(), ..Tests::default() };
        let of = |promise: &str| {
            promises(&format!("# S\n\n## What is promised\n\n* {promise}\n\n## What is not\n\n* **X.**\n"), &tests)
        };
        assert!(of("**Held.** By `a_b_c`.").is_empty());
        assert!(of("**Held.** By `crates/a/tests/{t,t}.rs`, and `Config::memory_limit`.").is_empty());
        assert!(of("**Held.** By all of `crates/a/tests`.").is_empty());
        assert_eq!(of("**Not held.** See `Config::memory_limit` and `crates/a/src/x.rs`.").len(), 1);
        assert_eq!(of("**Gone.** `a_b_c`, `d_e_f`.").len(), 1);
        assert_eq!(of("**Gone.** `a_b_c`, `u.rs`.").len(), 1);
    }

    #[test]
    fn what_there_is_to_touch_exists() {
        let source = "//! mod gone;\npub(crate) enum Kind<T> {\nmacro_rules! rows {\n    pub const fn all() -> T {\n";
        assert_eq!(items(source), ["Kind", "rows", "all"]);
        let tests = Tests {
            functions: ["a_b_c".to_owned()].into(),
            items: items(source).into_iter().collect(),
            sources: ["kind.rs".to_owned()].into(),
            ..Tests::default()
        };
        let of =
            |row: &str| additions(&format!("# A\n\n## To add ...\n\n| a |\n|---|\n| {row} |\n\n## B\n`X`"), &tests);
        assert!(
            of("`Kind`, a row of `rows!` in `kind.rs`, `Kind::all`, `x/y.rs`, `cargo x y`; `a_b_c` fails").is_empty()
        );
        assert_eq!(of("`Sort`, `columns!`, `sort.rs`, `Kind::none`, `d_e_f`").len(), 5);
        assert_eq!(additions("# A", &tests).len(), 1);
    }

    #[test]
    fn paths_in_backquotes_are_found() {
        let paths = |line| paths(line, &["maps/".to_owned()]);
        let line = "See `crates/a/{b,c}.rs`, `docs/x.md:12`, crates/not and `cargo test`, `crates/d*`, `maps/src` too.";
        assert_eq!(paths(line), ["crates/a/b.rs", "crates/a/c.rs", "docs/x.md", "crates/maps/src"]);
        assert!(paths("`crates/a b`, `Packs::new`, `map/src`").is_empty());
    }
}
