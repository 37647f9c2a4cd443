//! Prose that a stranger can read: what a script can find of the style guide's section on prose.
//!
//! Problem: a sentence that points (`What is left`, `of what it holds`, `whoever has it`, `It is`) makes its reader
//! guess which thing is meant. Approach: comments, messages and documents are cut into sentences, and a sentence with
//! one of the patterns below is reported with its place. The patterns are data:
//!
//! | table | finds | in |
//! |---|---|---|
//! | [`OPENINGS`] | words that a sentence must not begin with | comments, messages of errors, documents |
//! | [`FIRST`] | words that the first sentence of a paragraph must not begin with | comments |
//! | [`CLAUSES`] | words that a clause behind a colon or a semicolon must not begin with | comments |
//! | [`POINTERS`] | words within a sentence that stand for a thing without naming it | all but messages of errors |
//! | [`FRAGMENTS`] | openings of sentences of at most [`FRAGMENT`] words, which have no subject or no verb | comments |
//! | [`ENDINGS`] | ends of sentences that refer to a contract without naming it | comments |
//!
//! Questions are exempt, and the sentences in [`EXCEPTIONS`]. Folders that were written before the rule have a bound in
//! [`REMAINING`], which may only fall. A second table bounds the lines of documents.
//!
//! Comments of Rust are read wherever they stand, comments of C, of other text files ([`MARKERS`]) and of settings
//! ([`SETTINGS`]) where they begin a line. Help texts of the command are doc comments or string literals, and read as
//! such.

use crate::{links::documents, shell};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Patterns of two words: the first, and the words of which one follows it. An empty list: any word does.
type Pairs = [(&'static str, &'static [&'static str])];

/// How a sentence must not begin.
const OPENINGS: &Pairs = &[
    ("What", &[]),
    ("The same", &["for", "of", "in", "as", "with", "is", "are", "holds", "goes", "by", "where", "when", ""]),
    ("So", &["is", "are", "do", "does", "has", "have", "can", "did", "was", "were", "many", "that", "it", "they"]),
    ("That", &["is", "are", "it", "they", "the", "a", "an", "which", "one"]),
    // A demonstrative without its noun.
    (
        "That",
        &["all", "every", "no", "what", "holds", "has", "stores", "takes", "does", "would", "helps", "can", "may"],
    ),
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

/// How the first sentence of a comment's paragraph must not begin: there is nothing before it to refer to.
const FIRST: &Pairs = &[("It", &[]), ("They", &[]), ("Of", &[])];

/// How a clause behind a colon or a semicolon must not begin.
const CLAUSES: &Pairs =
    &[("what", &["is", "was", "were", "has", "had", "comes", "came", "lies", "follows", "others", "makes", "holds"])];

/// Words that stand for a thing without naming it, wherever they are in a sentence.
const POINTERS: &Pairs = &[
    ("of", &["what"]),
    ("by", &["what"]),
    ("to", &["what"]),
    ("from", &["what"]),
    ("on", &["what"]),
    ("for", &["what"]),
    ("with", &["what"]),
    ("in", &["what"]),
    ("at", &["what"]),
    ("than", &["what"]),
    ("like", &["what"]),
    ("into", &["what"]),
    ("behind", &["what"]),
    ("before", &["what"]),
    ("after", &["what"]),
    ("about", &["what"]),
    ("through", &["what"]),
    ("those", &["that", "who", "which"]),
    ("whoever", &[]),
    ("whomever", &[]),
    ("whichever", &[]),
];

/// Openings of fragments: a question word ("Where it is.") or a preposition ("By index.").
const FRAGMENTS: [&str; 28] = [
    "Where", "Why", "Which", "How", "When", "Who", "In", "By", "For", "To", "At", "On", "From", "Above", "Below",
    "Before", "After", "Behind", "Beyond", "Between", "Until", "Without", "With", "Unless", "Except", "Across",
    "Through", "Under",
];

/// The most words of a sentence that [`FRAGMENTS`] is about. Longer ones mostly have a verb.
const FRAGMENT: usize = 4;

/// How a sentence must not end.
const ENDINGS: [&str; 1] = ["passed on."];

/// Sentences that match a pattern and are right: a file, and the beginning of the sentence.
const EXCEPTIONS: [(&str, &str); 2] = [
    // Names of pairs of programs.
    ("crates/verifier/tests/verify/rests_on.rs", "an element of what was made in the round"),
    // The patterns above, and the texts of the tests below.
    ("xtask/src/prose.rs", ""),
];

/// Kinds of text files beside the sources, by extension, and the marker that begins a line of comment in them.
const MARKERS: [(&str, char); 7] =
    [("bpf", ';'), ("lir", ';'), ("wat", ';'), ("supp", '#'), ("toml", '#'), ("tsv", '#'), ("txt", '#')];

/// Files of settings outside of the folders of sources, whose comments begin with `#`.
const SETTINGS: [&str; 5] = [".cargo/config.toml", ".ci/run", "Cargo.toml", "deny.toml", "rustfmt.toml"];

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
            note(&mut found, &name, Kind::Comment, &comments(&text));
            note(&mut found, &name, Kind::Error, &messages(&text));
            note(&mut found, &name, Kind::Literal, &literals(&text));
        }
        for path in other_files(&root.join(folder))? {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let marker = MARKERS.iter().find(|(kind, _)| *kind == extension).map(|(_, marker)| *marker);
            if marker.is_none() && !matches!(extension, "c" | "h") {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
            let blocks = marker.map_or_else(|| comments_of_c(&text), |marker| marked_comments(&text, marker));
            note(&mut found, &name, Kind::Comment, &blocks);
        }
    }
    for name in SETTINGS {
        let text = fs::read_to_string(root.join(name))?;
        note(&mut found, name, Kind::Comment, &marked_comments(&text, '#'));
    }
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path)?;
        note(&mut found, &name, Kind::Document, &paragraphs(&text));
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

/// The kind of text that a sentence is from, which decides the patterns that apply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comment,
    /// The message of an error: a sentence of its own.
    Error,
    /// Any string literal, perhaps a part of a sentence.
    Literal,
    Document,
}

/// Notes the sentences of a file that match a pattern, under the entry of [`REMAINING`] that the file is in.
fn note(found: &mut BTreeMap<&'static str, Vec<String>>, name: &str, kind: Kind, blocks: &[(usize, String)]) {
    let place = REMAINING.iter().map(|(folder, _)| *folder).find(|folder| name.starts_with(folder)).unwrap_or("prose");
    let excepted = |sentence: &str| EXCEPTIONS.iter().any(|(file, begin)| *file == name && sentence.starts_with(begin));
    for (line, block) in blocks {
        for sentence in riddling(block, kind).filter(|sentence| !excepted(sentence)) {
            let begin: String = sentence.chars().take(90).collect();
            found.entry(place).or_default().push(format!("{name}:{line}: name the subject of \"{begin}\""));
        }
    }
}

/// The sentences of a paragraph that match a pattern.
fn riddling(block: &str, kind: Kind) -> impl Iterator<Item = &str> {
    sentences(block).enumerate().filter(move |(i, s)| riddles(s, *i == 0, kind)).map(|(_, sentence)| sentence)
}

/// Whether a sentence matches a pattern for its kind of text and asks nothing. `first`: it begins a paragraph.
fn riddles(sentence: &str, first: bool, kind: Kind) -> bool {
    if sentence.ends_with('?') {
        return false;
    }
    let opens = kind != Kind::Literal && OPENINGS.iter().any(|pair| begins(sentence, pair));
    let points = kind != Kind::Error && points(sentence);
    let table = if first { FIRST } else { CLAUSES };
    let comment = kind == Kind::Comment && (table.iter().any(|pair| begins(sentence, pair)) || breaks(sentence));
    opens || points || comment
}

/// Whether a sentence begins with the first word of a pair and one of the second.
fn begins(sentence: &str, (opening, next): &(&str, &[&str])) -> bool {
    let Some(rest) = sentence.strip_prefix(opening) else { return false };
    // The opening ends a word: "Sources" does not begin with "So".
    if rest.starts_with(|c: char| c.is_alphanumeric() || c == '\'') {
        return false;
    }
    let follows = rest.strip_prefix(' ').unwrap_or_default();
    let word = follows.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    next.is_empty() || next.contains(&word)
}

/// Whether a sentence has one of [`POINTERS`] outside of its code.
fn points(sentence: &str) -> bool {
    let prose = sentence.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let words = prose.char_indices().filter(|(at, _)| *at == 0 || !prose[..*at].ends_with(char::is_alphanumeric));
    let mut words = words.map(|(at, _)| &prose[at..]);
    words.any(|rest| {
        let begins = |pair| begins(rest, pair) || begins_lower(rest, pair);
        POINTERS.iter().any(begins)
    })
}

/// [`begins`] for a word with a capital.
fn begins_lower(sentence: &str, pair: &(&str, &[&str])) -> bool {
    let mut letters = sentence.chars();
    let Some(first) = letters.next().filter(|first| first.is_uppercase()) else { return false };
    begins(&first.to_lowercase().chain(letters).collect::<String>(), pair)
}

/// Whether a sentence is a fragment, or refers to a contract without naming it.
fn breaks(sentence: &str) -> bool {
    let mut words = sentence.split_whitespace();
    let short = words.clone().count() <= FRAGMENT && sentence.ends_with('.');
    short && words.next().is_some_and(|word| FRAGMENTS.contains(&word.trim_end_matches('.')))
        || ENDINGS.iter().any(|end| sentence.ends_with(end))
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

/// The paragraphs of the comments of a source, each with the number of its first line. A comment behind code is a
/// paragraph of its own.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Blocks::default();
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => blocks.line(number, comment.trim_start_matches(['/', '!'])),
            None => {
                blocks.end();
                if let Some(comment) = behind_code(line) {
                    blocks.line(number, comment);
                    blocks.end();
                }
            }
        }
    }
    blocks.finish()
}

/// The comment at the end of a line of code. Slashes inside a string literal begin none.
fn behind_code(line: &str) -> Option<&str> {
    let (code, comment) = line.split_once(" // ")?;
    code.matches('"').count().is_multiple_of(2).then_some(comment)
}

/// The string literals of a source, each with the number of its line. Lines that a backslash continues are one.
fn literals(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(next) = text[at..].find(['"', '\'', '/']) {
        at += next;
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some(quote) = ["'\"'", "'\\\"'", "'\\''"].into_iter().find(|quote| rest.starts_with(quote)) {
            at += quote.len();
        } else if let Some(literal) = rest.strip_prefix('"') {
            let end = end_of_literal(&text[..at], literal);
            let words = literal[..end].replace("\\\n", " ").replace("\\n", "\n");
            let line = text[..at].matches('\n').count() + 1;
            found.push((line, words.split_whitespace().collect::<Vec<_>>().join(" ")));
            at = (at + end + 2).min(text.len());
        } else {
            at += 1;
        }
    }
    found
}

/// Bytes of a literal, without the quote that ends it. `before`: the source up to the quote that begins it.
fn end_of_literal(before: &str, literal: &str) -> usize {
    let plain = before.trim_end_matches('#');
    if plain.ends_with('r') {
        let end = format!("\"{}", &before[plain.len()..]);
        return literal.find(&end).unwrap_or(literal.len());
    }
    let mut escaped = false;
    let end = literal.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.unwrap_or(literal.len())
}

/// All files under a folder, except those that a build has made.
fn other_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        if next.ends_with("target") {
            continue;
        }
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The paragraphs of the lines of a file that begin with a marker, each with the number of its first line. A marker
/// without a space behind it is part of an instruction to the test (`;raw`).
fn marked_comments(text: &str, marker: char) -> Vec<(usize, String)> {
    let mut blocks = Blocks::default();
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.trim_start().strip_prefix(marker).map(|comment| comment.trim_start_matches(marker));
        match comment.filter(|comment| comment.is_empty() || comment.starts_with(' ')) {
            Some(comment) => blocks.line(number, comment),
            None => blocks.end(),
        }
    }
    blocks.finish()
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

    fn found(kind: Kind, blocks: &[(usize, String)]) -> Vec<usize> {
        let mut lines = Vec::new();
        for (line, block) in blocks {
            lines.extend(riddling(block, kind).map(|_| *line));
        }
        lines
    }

    #[test]
    fn sentences_without_a_subject_are_found_in_comments() {
        let text = "//! A file. What covers what is decided after forgetting.\n\n/// Returns it.\n///\n/// So are\n/// all.\n\
                    fn f() {} // What stands behind code is read.\n    // The same, for pointers.\n\
                    let url = \"a // What b\";\n";
        assert_eq!(found(Kind::Comment, &comments(text)), [1, 5, 7, 8]);
    }

    #[test]
    fn sentences_without_a_subject_are_found_in_c() {
        let text = "/*\n * A file.\n *\n * What it does.\n */\nint f(void); /* So is this. */\n\t// All that is.\n/* Nor that. */\n";
        assert_eq!(found(Kind::Comment, &comments_of_c(text)), [4, 7, 8]);
    }

    #[test]
    fn sentences_without_a_subject_are_found_in_files_of_tests() {
        let text = "; A loop.\n; What nobody reads goes.\nfunc 0 {\n    v0 = mov.64 1\n}\n;raw\n-- dead\n; 4 times\n\n\
                    ; The same where\n; v1 comes last.\n";
        assert_eq!(found(Kind::Comment, &marked_comments(text, ';')), [1, 10]);
        let text = "# Calls.\n#[what]\n== a name\n# Calls of what was passed.\n;; What is no comment here.\n";
        assert_eq!(found(Kind::Comment, &marked_comments(text, '#')), [4]);
        assert_eq!(found(Kind::Comment, &marked_comments(";; So is this.\n", ';')), [1]);
    }

    #[test]
    fn sentences_that_point_are_found() {
        let text = "// A count of what was freed.\n\n// Frees it, whoever has it.\n\n// Whichever is first.\n\n// It is freed.\n\n\
                    // Frees a block. It is the first.\n\n// Frees those that wait, unlike those above.\n\n\
                    // A block: what is left is freed. A count: what it frees.\n\n\
                    // The word `of what` is code, and somewhat is a word.\n";
        assert_eq!(found(Kind::Comment, &comments(text)), [1, 3, 5, 7, 11, 13]);
    }

    #[test]
    fn fragments_are_found() {
        let text = "/// Where.\n\n/// By index.\n\n/// By this index, a map is found.\n\n/// Where it is put.\n\n\
                    // SAFETY: passed on.\n\n/// Index.\n";
        assert_eq!(found(Kind::Comment, &comments(text)), [1, 3, 7, 9]);
    }

    #[test]
    fn literals_that_point_are_found() {
        let text = "let a = \"a list of what is\";\nlet b = '\"'; // \"of what\"\nlet c = \"less \\\"than\\\" \\\n    what\";\n\
                    let d = format!(\"no {x}\");\nlet e = \"for those \\\n    who\";\n";
        assert_eq!(found(Kind::Literal, &literals(text)), [1, 6]);
        assert_eq!(literals(text).len(), 4);
    }

    #[test]
    fn messages_have_a_subject() {
        let text = "enum Error {\n    #[error(\"what holds is not enough at {0}\")]\n    A(u32),\n    #[error(transparent)]\n    B(C),\n    #[error(\"the map is full\")]\n    D,\n}\n";
        assert_eq!(messages(text).len(), 2);
        assert_eq!(found(Kind::Error, &messages(text)), [2]);
    }

    #[test]
    fn nouns_questions_and_code_may_begin_so() {
        let text = "//! Sources are read. What is a slot? The same program on both engines. That program is short.\n\
                    //!\n//! ```\n//! What stands in code.\n//! ```\n";
        assert_eq!(found(Kind::Comment, &comments(text)), [0; 0]);
    }

    #[test]
    fn rows_and_items_of_documents_are_read() {
        let text =
            "# Page\n\n* one\n* What is two.\n\n| a | What a cell says. |\n\n```\nSo is code.\n```\nNor is this.\n";
        assert_eq!(found(Kind::Document, &paragraphs(text)), [4, 11]);
    }
}
