//! Blocks of code in the book are code that the tests compile or run.
//!
//! Problem: an example in a document is copied by its readers, and nobody notices when it no longer compiles. Approach:
//! a page with blocks of Rust is included into some crate, so that `cargo test` compiles them as doctests; a block of
//! any other page, and every block of C, is a piece of a source in the repository, which the tests build. Blocks of
//! JSON and TOML are read by the tests of [`READ`], commands by those of `commands`. The page of refusals quotes the
//! verifier's messages, each of them.

use crate::{
    links::{BOOK, documents},
    shell,
};
use anyhow::Context;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The page that explains the verifier's messages, and the source that has them.
const REFUSALS: &str = "docs/book/how-to/refused.md";
const REASONS: &str = "crates/verifier/src/error.rs";

/// The README of the repository, whose block is compiled as those of the book.
const README: &str = "README.md";

/// Blocks of other languages: page, language, and the test that reads the page and runs them.
const READ: [(&str, &str, &str); 3] = [
    ("docs/book/how-to/languages.md", "cpp", "fn plug_ins_in_other_languages_pass("),
    ("docs/book/how-to/outside.md", "toml", "fn the_documented_cases_pass("),
    ("docs/book/reference/formats.md", "json", "fn the_documented_json_is_read("),
];

/// Reports blocks that nothing compiles, and messages that the book does not explain.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let sources = Sources::read(&root)?;
    let mut broken = Vec::new();
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        if !name.starts_with(BOOK) && name != README {
            continue;
        }
        for block in blocks(&fs::read_to_string(&path)?) {
            match &*block.language {
                "rust" | "c" if sources.compile(&name, &block) => {}
                "rust" | "c" => {
                    broken.push(format!("{name}:{}: no test compiles this block, and no source has it", block.line));
                }
                // Commands: `commands`. Texts: output, drawings, and figures, of which `figures` wants the origin.
                "sh" | "text" | "" => {}
                language => {
                    let read = READ.iter().any(|(page, of, test)| {
                        (*page, *of) == (&*name, language) && sources.rust.iter().any(|source| source.contains(test))
                    });
                    broken.extend((!read).then(|| format!("{name}:{}: no test reads this block", block.line)));
                }
            }
        }
    }
    let reasons = fs::read_to_string(root.join(REASONS))?;
    broken.extend(unexplained(&reasons, &fs::read_to_string(root.join(REFUSALS))?)?);
    Ok(broken)
}

/// A block of code in a document.
struct Block {
    line: usize,
    language: String,
    code: String,
}

/// The blocks of code in a document.
fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None::<Block>);
    for (line, content) in (1..).zip(text.lines()) {
        if let Some(info) = content.trim_start().strip_prefix("```") {
            let language = info.split(',').next().unwrap_or_default().to_owned();
            let begun = Block { line, language, code: String::new() };
            match open.take() {
                Some(block) => found.push(block),
                None => open = Some(begun),
            }
        } else if let Some(block) = &mut open {
            block.code.push_str(content);
            block.code.push('\n');
        }
    }
    found
}

/// The sources of the repository, without indentation.
#[derive(Default)]
struct Sources {
    rust: Vec<String>,
    c: Vec<String>,
}

impl Sources {
    fn read(root: &Path) -> anyhow::Result<Sources> {
        let mut sources = Sources::default();
        let mut folders: Vec<PathBuf> = ["crates", "examples"].map(|folder| root.join(folder)).into();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.extend((!path.ends_with("target")).then_some(path));
                    continue;
                }
                let extension = path.extension().unwrap_or_default();
                if extension == "rs" {
                    sources.rust.push(plain(&fs::read_to_string(&path)?));
                } else if extension == "c" || extension == "h" {
                    sources.c.push(plain(&fs::read_to_string(&path)?));
                }
            }
        }
        Ok(sources)
    }

    /// Whether the tests compile a block of this page.
    fn compile(&self, page: &str, block: &Block) -> bool {
        let included = format!("#[doc = include_str!(\"../../../{page}\")]\n");
        let sources = if block.language == "c" { &self.c } else { &self.rust };
        let code = plain(&block.code);
        let is_doctest = block.language == "rust" && self.rust.iter().any(|source| source.contains(&included));
        is_doctest || sources.iter().any(|source| source.contains(&code))
    }
}

/// The text without indentation and empty lines.
fn plain(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.fold(String::new(), |plain, line| plain + line + "\n")
}

/// Messages of the enum `Reason` that the page does not quote. A message with parameters is searched for by its longest
/// constant part.
fn unexplained(source: &str, page: &str) -> anyhow::Result<Vec<String>> {
    let body = source.split_once("pub enum Reason {").context("there is no enum `Reason`")?.1;
    let body = body.split("\n}").next().unwrap_or_default();
    let mut missing = Vec::new();
    for attribute in body.split("#[error(").skip(1) {
        let message = attribute.split('"').nth(1).unwrap_or_default();
        let parts = message.split(['{', '}']).step_by(2).map(str::trim);
        let part = parts.max_by_key(|part| part.len()).unwrap_or_default();
        if !page.contains(part) {
            missing.push(format!("{REFUSALS}: explain the message \"{message}\""));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_compared_with_sources() {
        let text = "```rust,no_run\nfn f() {}\n```\n```c\nint g;\n```\n```text\nno code\n```\n";
        let found = blocks(text);
        assert_eq!(found.iter().map(|block| block.line).collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!(found[2].language, "text");
        let sources = Sources { rust: vec![plain("mod m {\n    fn f() {}\n}\n")], c: vec![plain("\tint h;\n")] };
        assert!(sources.compile("docs/book/x.md", &found[0]));
        assert!(!sources.compile("docs/book/x.md", &found[1]));
        let included =
            Sources { rust: vec!["#[doc = include_str!(\"../../../docs/book/x.md\")]\n".to_owned()], c: vec![] };
        assert!(included.compile("docs/book/x.md", &found[0]) && !included.compile("docs/book/y.md", &found[0]));
    }

    #[test]
    fn unexplained_messages_are_found() {
        let source =
            "pub enum Reason {\n    #[error(\"{0} is read but {1}\")]\n    A,\n    #[error(\"no lock\")]\n    B,\n}\n";
        assert_eq!(unexplained(source, "`rN is read but ...`, `no lock`").unwrap().len(), 0);
        assert_eq!(unexplained(source, "`rN is read but ...`").unwrap().len(), 1);
        assert!(unexplained("", "").is_err());
    }
}
