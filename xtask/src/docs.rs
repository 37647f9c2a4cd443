//! What the documents say of files: that there are such files.
//!
//! A promise is worth the test that holds it, and documents name tests and sources by path; a file that moves must not
//! leave a document behind. So each path in backquotes that begins at a folder of the repository, or at the folder of a
//! crate, leads somewhere.

use crate::shell;
use std::{fs, path::PathBuf};

/// Folders of the repository that a path may begin with.
const ROOTS: [&str; 5] = ["crates/", "benches/", "docs/", "fuzz/", "xtask/"];

/// Paths that lead nowhere.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut documents: Vec<PathBuf> = Vec::new();
    for folder in [root.clone(), root.join("docs"), root.join("fuzz"), root.join("benches")] {
        let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        documents
            .extend(entries.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    documents.sort();
    let crates = fs::read_dir(root.join("crates"))?
        .map(|entry| Ok(format!("{}/", entry?.file_name().to_string_lossy())))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut broken = Vec::new();
    for document in documents {
        let name = document.strip_prefix(&root).unwrap_or(&document).display().to_string();
        // What was so when a version came out stays as it was.
        if name == "CHANGELOG.md" {
            continue;
        }
        for (number, line) in (1..).zip(fs::read_to_string(&document)?.lines()) {
            let lost = paths(line, &crates).into_iter().filter(|path| !root.join(path).exists());
            broken.extend(lost.map(|path| format!("{name}:{number}: there is no `{path}`")));
        }
    }
    Ok(broken)
}

/// The paths that a line of a document names, from the root of the repository. `{a,b}` stands for two; with `*` it is
/// up to the reader.
fn paths(line: &str, crates: &[String]) -> Vec<String> {
    let quoted = line.split('`').skip(1).step_by(2);
    // Not a command or a sentence; and what is in a file (`file.rs:12`) is not looked for.
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
    fn paths_in_backquotes_are_found() {
        let paths = |line| paths(line, &["maps/".to_owned()]);
        let line = "See `crates/a/{b,c}.rs`, `docs/x.md:12`, crates/not and `cargo test`, `crates/d*`, `maps/src` too.";
        assert_eq!(paths(line), ["crates/a/b.rs", "crates/a/c.rs", "docs/x.md", "crates/maps/src"]);
        assert!(paths("`crates/a b`, `Packs::new`, `map/src`").is_empty());
    }
}
