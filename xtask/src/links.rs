//! Links of documents lead to pages and headings that exist, and the book's table of contents lists every page.
//!
//! Problem: a page that moves or a heading that is renamed leaves links behind that lead nowhere, which a reader finds
//! before we do. Approach: each relative link of each document is resolved from the document's folder; its anchor is
//! compared with the anchors that GitHub and mdBook derive from headings (both by the same rule: [`anchor`]). Each page
//! of the book is listed once, and begins with a sentence that says what the page is for.

use crate::shell;
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// The book's folder, and its table of contents.
pub(crate) const BOOK: &str = "docs/book";
const SUMMARY: &str = "SUMMARY.md";

/// Reports links that lead nowhere, and pages of the book that its table of contents lists never or twice.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut broken = Vec::new();
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path)?;
        for (line, link) in links(&text) {
            if let Some(problem) = follow(&root, &path, &text, &link)? {
                broken.push(format!("{name}:{line}: {problem}"));
            }
        }
    }
    let book = root.join(BOOK);
    for page in pages(&book)? {
        let text = fs::read_to_string(book.join(&page))?;
        broken.extend((!says_its_purpose(&text)).then(|| format!("{BOOK}/{page}: begin with \"This page ...\"")));
    }
    let summary = fs::read_to_string(book.join(SUMMARY))?;
    broken.extend(listed(&summary, &pages(&book)?));
    Ok(broken)
}

/// Documents of the repository: those of its root, of `docs`, and the READMEs of the crates, examples and tools.
pub(crate) fn documents(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (folder, below) in [("", false), ("docs", true), ("benches", false), ("fuzz", false)] {
        found.extend(markdown(&root.join(folder), below)?);
    }
    for folder in ["crates", "examples"] {
        found.extend(markdown(&root.join(folder), false)?);
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(markdown(&path, false)?);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The pages of the book, relative to its folder, without the table of contents.
fn pages(book: &Path) -> anyhow::Result<BTreeSet<String>> {
    let name = |path: PathBuf| path.strip_prefix(book).unwrap_or(&path).display().to_string();
    Ok(markdown(book, true)?.into_iter().map(name).filter(|name| name != SUMMARY).collect())
}

/// Files `*.md` of a folder, and with `below` those of the folders in it.
fn markdown(folder: &Path, below: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && below {
            found.extend(markdown(&path, true)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether the first paragraph of a page says what the page is for.
fn says_its_purpose(text: &str) -> bool {
    let first = text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
    ["This page ", "This book ", "This tutorial ", "In this tutorial "].iter().any(|words| first.starts_with(words))
}

/// Reports pages that the table of contents lists never or more than once.
fn listed(summary: &str, pages: &BTreeSet<String>) -> Vec<String> {
    let links: Vec<String> = links(summary).into_iter().map(|(_, link)| link).collect();
    let times = |page: &&String| links.iter().filter(|link| link == page).count();
    pages.iter().filter(|page| times(page) != 1).map(|page| format!("{BOOK}/{SUMMARY}: list {page} once")).collect()
}

/// The targets of the links of a document, each with its line. Links in code are none.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code ^= true;
        }
        if in_code {
            continue;
        }
        // Pieces between backquotes are code.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        found.extend(targets.map(|target| (number, target.to_owned())));
    }
    found
}

/// Describes the problem of a link, if there is one.
fn follow(root: &Path, from: &Path, text: &str, link: &str) -> anyhow::Result<Option<String>> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, fragment) = link.split_once('#').map_or((link, None), |(path, fragment)| (path, Some(fragment)));
    let target = if path.is_empty() { from.to_path_buf() } else { from.with_file_name("").join(path) };
    if !normal(&target).starts_with(root) || !target.exists() {
        return Ok(Some(format!("the link `{link}` leads to no file")));
    }
    let Some(fragment) = fragment else { return Ok(None) };
    let text = if path.is_empty() { text.to_owned() } else { fs::read_to_string(&target)? };
    let known = anchors(&text).iter().any(|anchor| anchor == fragment);
    Ok((!known).then(|| format!("the link `{link}` leads to no heading")))
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => (),
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => normal.push(component),
        }
    }
    normal
}

/// The anchors of a document's headings.
fn anchors(text: &str) -> Vec<String> {
    let (mut found, mut in_code) = (Vec::<String>::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_code && line.starts_with('#') && heading.starts_with(' ') {
            let plain = anchor(heading.trim());
            let before = found.iter().filter(|found| **found == plain).count();
            found.push(if before == 0 { plain } else { format!("{plain}-{before}") });
        }
    }
    found
}

/// The anchor of a heading: lower case, spaces as hyphens, no punctuation. GitHub and mdBook agree in this.
fn anchor(heading: &str) -> String {
    // Only the text of a link is part of an anchor.
    let heading = heading.split("](").map(|piece| piece.split_once(')').map_or(piece, |(_, after)| after));
    let heading: String = heading.collect();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_') || c.is_whitespace());
    kept.map(|c| if c.is_whitespace() { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "See [a](a.md#x), `[b](b.md)` and ![c](c.svg).\n```\n[d](d.md)\n```\n[e](#e)\n";
        let found: Vec<_> = links(text).into_iter().map(|(line, link)| format!("{line} {link}")).collect();
        assert_eq!(found, ["1 a.md#x", "1 c.svg", "5 #e"]);
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# The `Plan`: all, or nothing\n```\n# no heading\n```\n## Words\n## Words\n#no\n";
        assert_eq!(anchors(text), ["the-plan-all-or-nothing", "words", "words-1"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_reported() {
        let (root, from) = (shell::root(), shell::root().join("README.md"));
        let problem = |link: &str| follow(&root, &from, "# Here\n", link).unwrap();
        assert_eq!(problem("#here"), None);
        assert_eq!(problem("https://example.org/#x"), None);
        assert_eq!(problem("xtask/src/links.rs"), None);
        for link in ["#there", "no.md", "../outside.md", "SECURITY.md#nowhere"] {
            assert!(problem(link).is_some(), "{link}");
        }
    }

    #[test]
    fn a_page_says_first_what_it_is_for() {
        assert!(says_its_purpose("# Maps\n\nThis page lists maps.\n"));
        assert!(!says_its_purpose("# Maps\n\nMaps are kept.\nThis page lists them.\n"));
    }

    #[test]
    fn every_page_is_listed_once() {
        let pages = ["a.md", "b.md", "c.md"].map(str::to_owned).into();
        assert_eq!(listed("* [A](a.md)\n* [B](b.md)\n  * [B](b.md)\n", &pages).len(), 2);
    }
}
