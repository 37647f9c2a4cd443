//! Prose that a stranger can read: what a script can find of the style guide's section on prose.
//!
//! Problem: a sentence whose subject is a bare "What", "So" or "The same" makes its reader guess which thing is meant.
//! Approach: comments and documents are cut into sentences, and a sentence that begins with one of [`OPENINGS`] is
//! reported with its place. Questions are exempt. Folders that were written before the rule have a bound in
//! [`REMAINING`], which may only fall. A second table bounds the lines of documents.
//!
//! Comments of Rust and C that take whole lines are read, and the messages of errors. A comment at the end of a line
//! of code is too short to riddle.

use crate::{links::documents, shell};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// How a sentence must not begin: its first words, and the words of which one follows. An empty list: any word does.
const OPENINGS: [(&str, &[&str]); 14] = [
    ("What", &[]),
    ("The same", &["for", "of", "in", "as", "with", "is", "are", "holds", "goes", "by", "where", "when", ""]),
    ("So", &["is", "are", "do", "does", "has", "have", "can", "did", "was", "were", "many", "that", "it", "they"]),
    ("That", &["is", "are", "it", "they", "the", "a", "an", "which", "one"]),
    ("Such", &["is", "are", "as", "a", "an"]),
    ("Those", &["that", "who", "which", "of", "are", "in", "below", "above", "it"]),
    ("One", &["that", "which", "who"]),
    ("As", &["ever", "above", "before", "there"]),
    ("Who", &[]),
    ("Whoever", &[]),
    ("Whose", &[]),
    ("Nor", &[]),
    ("All that", &[]),
    ("Of what", &[]),
];

/// Folders and documents with sentences from before the rule, and how many each may have. All others have none.
const REMAINING: [(&str, usize); 0] = [];

/// Documents, and the lines each may have. Every other page of `docs` may have [`PAGE`].
const LENGTHS: [(&str, usize); 5] = [
    ("README.md", 60),
    ("ARCHITECTURE.md", 220),
    ("CHANGELOG.md", 200),
    // One program step by step, and tables of figures: nothing to split.
    ("docs/book/tutorials/c-plugin.md", 370),
    ("docs/book/explanation/maps.md", 345),
];

/// Lines of a page of `docs`.
const PAGE: usize = 250;

/// Reports sentences with a forbidden opening beyond what [`REMAINING`] allows, and documents that are too long.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut broken = Vec::new();
    for folder in ["crates", "benches", "xtask", "fuzz", "examples"] {
        for path in shell::files(&root.join(folder))? {
            let name = format!("{folder}/{}", path.display());
            let text = fs::read_to_string(root.join(&name))?;
            note(&mut found, &name, &comments(&text));
            note(&mut found, &name, &messages(&text));
        }
        for path in files_of_c(&root.join(folder))? {
            let text = fs::read_to_string(&path)?;
            let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
            note(&mut found, &name, &comments_of_c(&text));
        }
    }
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path)?;
        note(&mut found, &name, &paragraphs(&text));
        let bound = LENGTHS.iter().find(|(document, _)| *document == name).map(|(_, bound)| *bound);
        let bound = bound.or_else(|| name.starts_with("docs/").then_some(PAGE));
        let lines = text.lines().count();
        if let Some(bound) = bound.filter(|bound| lines > *bound) {
            broken.push(format!("{name}: {lines} lines, and at most {bound} are allowed"));
        }
    }
    for (place, sentences) in found {
        let allowed = REMAINING.iter().find(|(folder, _)| *folder == place).map_or(0, |(_, allowed)| *allowed);
        if sentences.len() > allowed {
            broken.push(format!("{place}: {} riddling sentences, and {allowed} are allowed", sentences.len()));
            broken.extend(sentences);
        }
    }
    Ok(broken)
}

/// Notes the sentences of a file that begin as they must not, under the entry of [`REMAINING`] that the file is in.
fn note(found: &mut BTreeMap<&'static str, Vec<String>>, name: &str, blocks: &[(usize, String)]) {
    let place = REMAINING.iter().map(|(folder, _)| *folder).find(|folder| name.starts_with(folder)).unwrap_or("prose");
    for (line, block) in blocks {
        for sentence in sentences(block).filter(|sentence| riddles(sentence)) {
            let begin: String = sentence.chars().take(60).collect();
            found.entry(place).or_default().push(format!("{name}:{line}: name the subject of \"{begin}\""));
        }
    }
}

/// Whether a sentence begins with one of [`OPENINGS`] and asks nothing.
fn riddles(sentence: &str) -> bool {
    let opens = |(opening, next): &(&str, &[&str])| {
        let Some(rest) = sentence.strip_prefix(opening) else { return false };
        // The opening ends a word: "Sources" does not begin with "So".
        if rest.starts_with(|c: char| c.is_alphanumeric() || c == '\'') {
            return false;
        }
        let follows = rest.strip_prefix(' ').unwrap_or_default();
        let word = follows.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        next.is_empty() || next.contains(&word)
    };
    !sentence.ends_with('?') && OPENINGS.iter().any(opens)
}

/// The sentences of a paragraph: a period, a colon, a semicolon or a question mark and a space end one.
fn sentences(block: &str) -> impl Iterator<Item = &str> {
    let mut rest = block;
    core::iter::from_fn(move || {
        let trimmed = rest.trim_start_matches(['-', '*', '|', '>', ' ']);
        if trimmed.is_empty() {
            return None;
        }
        let ends = |pair: &[u8]| matches!(pair, [b'?' | b'.' | b':' | b';', b' ']);
        let end = trimmed.as_bytes().windows(2).position(ends);
        let (sentence, after) = end.map_or((trimmed, ""), |end| trimmed.split_at(end + 1));
        rest = after;
        Some(sentence)
    })
}

/// The paragraphs of the whole-line comments of a source, each with the number of its first line.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Blocks::default();
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => blocks.line(number, comment.trim_start_matches(['/', '!'])),
            None => blocks.end(),
        }
    }
    blocks.finish()
}

/// C sources and headers under a folder: programs of tests, examples and benches.
fn files_of_c(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        if next.ends_with("target") {
            continue;
        }
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "c" || extension == "h") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The paragraphs of the comments of a C source that begin a line, each with the number of its first line.
fn comments_of_c(text: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut open) = (Blocks::default(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let begun = line.strip_prefix("/*");
        if begun.is_some() {
            blocks.end();
            open = true;
        }
        match begun.or_else(|| line.strip_prefix("//")).or_else(|| open.then_some(line)) {
            Some(comment) => blocks.line(number, comment.trim_start_matches('*').trim_end_matches("*/")),
            None => blocks.end(),
        }
        if open && line.ends_with("*/") {
            open = false;
            blocks.end();
        }
    }
    blocks.finish()
}

/// The messages of the errors of a source, as sentences, each with the number of its line.
fn messages(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, attribute) in text.match_indices("#[error(") {
        let rest = text[at + attribute.len()..].trim_start();
        let Some(literal) = rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) else { continue };
        let mut letters = literal.0.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        let line = text[..at].matches('\n').count() + 1;
        found.push((line, first.into_iter().chain(letters).collect()));
    }
    found
}

/// The paragraphs of a document, code aside, each with the number of its first line.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Blocks::default();
    for (number, line) in (1..).zip(text.lines()) {
        blocks.line(number, line);
    }
    blocks.finish()
}

/// Paragraphs as they are gathered, line by line.
#[derive(Default)]
struct Blocks {
    done: Vec<(usize, String)>,
    /// The paragraph that the next line belongs to.
    open: Option<(usize, String)>,
    /// Inside a fenced block of code.
    in_code: bool,
}

impl Blocks {
    fn line(&mut self, number: usize, line: &str) {
        let line = line.trim();
        let fence = line.starts_with("```");
        self.in_code ^= fence;
        if self.in_code || fence || line.is_empty() {
            self.end_paragraph();
            return;
        }
        // A heading is no sentence.
        if line.starts_with('#') {
            self.end_paragraph();
            return;
        }
        // An item of a list and a row of a table are paragraphs of their own.
        if line.starts_with(['-', '*', '|']) {
            self.end_paragraph();
        }
        let (_, open) = self.open.get_or_insert_with(|| (number, String::new()));
        if !open.is_empty() {
            open.push(' ');
        }
        open.push_str(line);
    }

    fn end_paragraph(&mut self) {
        self.done.extend(self.open.take());
    }

    /// Ends a comment, and with it a block of code that it did not close.
    fn end(&mut self) {
        self.in_code = false;
        self.end_paragraph();
    }

    fn finish(mut self) -> Vec<(usize, String)> {
        self.end();
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(blocks: &[(usize, String)]) -> Vec<usize> {
        let mut lines = Vec::new();
        for (line, block) in blocks {
            lines.extend(sentences(block).filter(|sentence| riddles(sentence)).map(|_| *line));
        }
        lines
    }

    #[test]
    fn sentences_without_a_subject_are_found_in_comments() {
        let text = "//! A file. What covers what is decided after forgetting.\n\n/// Returns it.\n///\n/// So are\n/// all.\n\
                    fn f() {} // What stands behind code is not read.\n    // The same, for pointers.\n";
        assert_eq!(found(&comments(text)), [1, 5, 8]);
    }

    #[test]
    fn sentences_without_a_subject_are_found_in_c() {
        let text = "/*\n * A file.\n *\n * What it does.\n */\nint f(void); /* So is this. */\n\t// All that is.\n/* Nor that. */\n";
        assert_eq!(found(&comments_of_c(text)), [4, 7, 8]);
    }

    #[test]
    fn messages_have_a_subject() {
        let text = "enum Error {\n    #[error(\"what holds is not enough at {0}\")]\n    A(u32),\n    #[error(transparent)]\n    B(C),\n    #[error(\"the map is full\")]\n    D,\n}\n";
        assert_eq!(messages(text).len(), 2);
        assert_eq!(found(&messages(text)), [2]);
    }

    #[test]
    fn nouns_questions_and_code_may_begin_so() {
        let text = "//! Sources are read. What is a slot? The same program on both engines. That program is short.\n\
                    //!\n//! ```\n//! What stands in code.\n//! ```\n";
        assert_eq!(found(&comments(text)), [0; 0]);
    }

    #[test]
    fn rows_and_items_of_documents_are_read() {
        let text =
            "# Page\n\n* one\n* What is two.\n\n| a | What a cell says. |\n\n```\nSo is code.\n```\nNor is this.\n";
        assert_eq!(found(&paragraphs(text)), [4, 11]);
    }
}
