//! Checks that commands of cargo that documents name can be typed.
//!
//! Problem: a figure or a test that is reached by a command is lost when the command's name changes. Approach: in
//! blocks of shell and in the text of every document, `cargo xtask NAME` names a command of this program, and `--bench
//! NAME`, `--example NAME` and `--bin NAME` name a file. Lines of shell with `cargo xtask` are parsed as this program
//! parses its arguments. (Lines with the command `bpf` are parsed by a test of `bpf-cli`.)

use crate::{Cli, links::documents, shell};
use clap::{CommandFactory, Parser};
use std::{collections::BTreeSet, fs, path::Path};

/// Options that name a target of cargo, and the folder that its file is in.
const TARGETS: [(&str, &str); 3] = [("--bench", "benches"), ("--example", "examples"), ("--bin", "bin")];

/// Reports commands in documents that neither this program nor cargo has.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let targets = targets(&root)?;
    let mut broken = Vec::new();
    for path in documents(&root)? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        // A changelog names commands of the past.
        if name == "CHANGELOG.md" {
            continue;
        }
        for (line, problem) in problems(&fs::read_to_string(&path)?, &targets) {
            broken.push(format!("{name}:{line}: {problem}"));
        }
    }
    Ok(broken)
}

/// The files that options of cargo may name: folder and name without extension.
fn targets(root: &Path) -> anyhow::Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for folder in ["benches", "crates", "examples", "fuzz"] {
        for path in shell::files(&root.join(folder))? {
            let path = Path::new(folder).join(path);
            let (Some(name), Some(parent)) = (path.file_stem(), path.parent().and_then(Path::file_name)) else {
                continue;
            };
            found.insert((parent.to_string_lossy().into_owned(), name.to_string_lossy().into_owned()));
        }
    }
    Ok(found)
}

/// Commands of a document that do not exist, each with its line.
fn problems(text: &str, targets: &BTreeSet<(String, String)>) -> Vec<(usize, String)> {
    let (mut found, mut block) = (Vec::new(), None::<String>);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then(|| info.to_owned());
            continue;
        }
        let mut problem = |problem: Option<String>| found.extend(problem.map(|problem| (number, problem)));
        match block.as_deref() {
            Some("sh") => {
                let command: Vec<&str> = line.split(" #").next().unwrap_or_default().split_whitespace().collect();
                if command.starts_with(&["cargo", "xtask"]) {
                    let parsed = Cli::try_parse_from(&command[1..]).err();
                    problem(parsed.map(|_| format!("`{}` is no command", command.join(" "))));
                }
                problem(lost_target(line, targets));
            }
            Some(_) => {}
            None => {
                for piece in line.split('`').skip(1).step_by(2) {
                    if let Some(command) = piece.strip_prefix("cargo xtask ") {
                        let name = command.split_whitespace().next().unwrap_or_default();
                        let known = Cli::command().find_subcommand(name).is_some();
                        let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                        problem((is_name && !known).then(|| format!("there is no `cargo xtask {name}`")));
                    }
                    problem(lost_target(piece, targets));
                }
            }
        }
    }
    found
}

/// A target of cargo in a command whose file does not exist.
fn lost_target(command: &str, targets: &BTreeSet<(String, String)>) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    for pair in words.windows(2) {
        let Some((option, folder)) = TARGETS.iter().find(|(option, _)| *option == pair[0]) else { continue };
        let name = pair[1].trim_end_matches([')', ',', ';', '.']);
        let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let known = |folder: &str| targets.contains(&(folder.to_owned(), name.to_owned()));
        // An example of several files has a folder with its name.
        if is_name && !known(folder) && !targets.contains(&(name.to_owned(), "main".to_owned())) {
            return Some(format!("there is no `{option} {name}`"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_do_not_exist_are_found() {
        let targets = [("benches", "speed"), ("examples", "steps"), ("large", "main")]
            .map(|(folder, name)| (folder.to_owned(), name.to_owned()));
        let of =
            |text: &str| problems(text, &targets.clone().into()).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        assert_eq!(
            of("`cargo xtask rules`, `cargo xtask CMD`, `cargo bench --bench speed`, `--example large`"),
            [0; 0]
        );
        assert_eq!(of("a\n`cargo xtask rule` and `--bench slow`\n`--bin steps`"), [2, 2, 3]);
        assert_eq!(of("```sh\ncargo xtask soak 10   # programs\ncargo xtask soak ten\n```\n"), [3]);
        assert_eq!(of("```text\ncargo xtask soak ten\n```\n"), [0; 0]);
    }
}
