//! Checks that this program accepts the commands that the book shows.
//!
//! Problem: an option that is renamed leaves a document behind that nobody can follow. Approach: each line of a block
//! of shell in the book, in which `bpf` is called, is parsed as the program parses its arguments. In the text of a page
//! a command may be cut short (`bpf verify --privileged`), so there the command and its options have to exist.

use crate::Args;
use clap::{CommandFactory, Parser};
use std::path::{Path, PathBuf};

/// The pages of the book and the README of the repository.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut found, mut folders) = (vec![root.join("README.md")], vec![root.join("docs/book")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a page in this language, and the pieces of code in its text.
fn blocks_and_pieces<'t>(text: &'t str, language: &str) -> (Vec<&'t str>, Vec<&'t str>) {
    let parts: Vec<&str> = text.split("```").collect();
    let blocks = parts.iter().skip(1).step_by(2).filter_map(|block| block.strip_prefix(language)).collect();
    let pieces = parts.iter().step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2)).collect();
    (blocks, pieces)
}

/// The words of the call of `bpf` in a line of shell, without comments, redirections and pipes.
fn call(line: &str) -> Option<Vec<&str>> {
    let line = line.split(['#', '>', '|']).next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let calls = |at: &usize| words[*at] == "bpf" && !words[..*at].contains(&"-target");
    let at = (0..words.len()).find(calls)?;
    Some(words[at..].to_vec())
}

#[test]
fn documented_commands_are_taken() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in pages() {
        for language in ["sh\n", "text\n"] {
            let (blocks, _) = blocks_and_pieces(&text, language);
            for line in blocks.iter().flat_map(|block| block.lines()) {
                // A block of text has commands behind the shell's prompt.
                let Some(line) = (if language == "sh\n" { Some(line) } else { line.strip_prefix("$ ") }) else {
                    continue;
                };
                let Some(words) = call(line) else { continue };
                checked += 1;
                if let Err(error) = Args::try_parse_from(&words) {
                    wrong.push(format!("{}: {}: {error}", path.display(), words.join(" ")));
                }
            }
        }
    }
    assert!(checked > 20, "only {checked} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_and_options_in_the_text_exist() {
    let command = Args::command();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in pages() {
        let (_, pieces) = blocks_and_pieces(&text, "");
        for piece in pieces {
            let Some(words) = piece.strip_prefix("bpf ").map(|rest| rest.split_whitespace().collect::<Vec<_>>()) else {
                continue;
            };
            let Some(name) = words.first().filter(|name| **name != "help" && !name.starts_with('-')) else { continue };
            checked += 1;
            let Some(command) = command.find_subcommand(name) else {
                wrong.push(format!("{}: there is no `bpf {name}`", path.display()));
                continue;
            };
            for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let option = option.split('=').next().unwrap_or_default();
                if command.get_arguments().all(|argument| argument.get_long() != Some(option)) {
                    wrong.push(format!("{}: `bpf {name}` has no --{option}", path.display()));
                }
            }
        }
    }
    assert!(checked > 20, "only {checked} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_are_found_in_lines_of_shell() {
    assert_eq!(call("$ perf record bpf run a.o --data b | less"), Some(vec!["bpf", "run", "a.o", "--data", "b"]));
    assert_eq!(call("bpf verify a.o --json > b.json   # bpf run"), Some(vec!["bpf", "verify", "a.o", "--json"]));
    assert_eq!(call("cargo install --path crates/cli  # the command bpf"), None);
    assert_eq!(call("clang -O2 -target bpf -c a.c -o a.o"), None);
    assert_eq!(blocks_and_pieces("a `b` c\n```sh\nd\n```\n`e`", "sh\n"), (vec!["d\n"], vec!["b", "e"]));
}
