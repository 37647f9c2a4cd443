//! Compares lists that no compiler compares, and reports entries that are in one list only.
//!
//! A bug that is planted in the verifier is worth something if generated programs find it, and
//! docs/book/explanation/faults.md says after how many; a call of the operating system that can fail is one that some
//! test makes fail.

use crate::shell;
use std::{collections::BTreeSet, fs};

/// Calls that no test makes fail, and why.
const NOT_MADE_TO_FAIL: &[(&str, &str)] =
    &[("ThreadKey", "one for the whole process, made before a test can ask for anything")];

/// Instead of a figure: no generated program finds the fault.
const NONE: &str = "none";

/// Reports entries that one of two lists lacks.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let read = |path: &str| fs::read_to_string(root.join(path));
    let mut broken = faults(&read("crates/verifier/src/faults.rs")?, &read("docs/book/explanation/faults.md")?);
    let mut sources = Vec::new();
    for path in shell::files(&root.join("crates"))? {
        if !path.starts_with("os/src") && path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(root.join("crates").join(path))?);
        }
    }
    broken.extend(calls(&read("crates/os/src/error.rs")?, &sources));
    Ok(broken)
}

/// The names before a comma that are the first word of a line, between two texts.
fn variants(source: &str, from: &str, to: &str) -> BTreeSet<String> {
    let body = source.split_once(from).map_or("", |(_, rest)| rest.split(to).next().unwrap_or_default());
    let name = |line: &str| line.trim().split([',', '(', ' ', '{']).next().unwrap_or_default().to_owned();
    body.lines().map(name).filter(|name| name.starts_with(char::is_uppercase)).collect()
}

/// Bugs of the verifier without a row in the table of docs/book/explanation/faults.md, and the other way round.
fn faults(source: &str, document: &str) -> Vec<String> {
    let planted = variants(source, "\"the verifier\":", "\n    }");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let programs = cells.next()?;
        (programs == NONE || programs.parse::<u64>().is_ok()).then_some(())?;
        Some(cells.next()?.to_owned())
    };
    let found: BTreeSet<String> = document.lines().filter_map(row).collect();
    let mut broken = Vec::new();
    if planted.is_empty() {
        broken.push("crates/verifier/src/faults.rs: no faults were read".to_owned());
    }
    let missing = planted.difference(&found);
    broken.extend(
        missing.map(|fault| format!("docs/book/explanation/faults.md: after how many programs is {fault} found?")),
    );
    let gone = found.difference(&planted);
    broken.extend(
        gone.map(|fault| format!("docs/book/explanation/faults.md: there is no fault {fault} in the verifier")),
    );
    broken
}

/// Calls that can fail, of which no test makes one fail.
fn calls(source: &str, sources: &[String]) -> Vec<String> {
    let all = variants(source, "pub enum Call {", "\n}");
    let mut broken = Vec::new();
    if all.is_empty() {
        broken.push("crates/os/src/error.rs: no calls were read".to_owned());
    }
    for call in all {
        let named = |source: &String| {
            let words = source.split(|c: char| !c.is_alphanumeric());
            source.contains("inject::") && source.contains("Call::") && words.into_iter().any(|word| word == call)
        };
        let excused = NOT_MADE_TO_FAIL.iter().any(|(name, _)| *name == call);
        if sources.iter().any(named) == excused {
            broken.push(match excused {
                true => format!("xtask/src/tables.rs: a test makes Call::{call} fail, which is said not to be so"),
                false => format!("crates/os/src/error.rs: no test makes Call::{call} fail (bpf_os::inject)"),
            });
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_their_rows_are_compared() {
        let source = "    bpf_isa::faults! {\n        \"the verifier\":\n        /// A.\n        Some,\n        /// B.\n        Other,\n    }\n\n    impl Fault {\n        Gone,\n    }";
        let of = |document| faults(source, document);
        assert!(of("| programs | fault | what |\n|---:|---|---|\n| 1 | Some | A. |\n| 20 | Other | B. |").is_empty());
        assert_eq!(of("| 1 | Some | A. |").len(), 1);
        assert_eq!(of("| 1 | Some | A. |\n| 20 | Other | B. |\n| 3 | Gone | C. |").len(), 1);
        assert_eq!(faults("", "").len(), 1);
    }

    #[test]
    fn calls_that_never_fail_are_found() {
        let source =
            "pub enum Call {\n    /// A.\n    Mmap,\n    /// B.\n    Membarrier(Membarrier),\n    ThreadKey,\n}";
        let with = |test: &str| calls(source, &[format!("use bpf_os::inject::failing; use bpf_os::Call::*; {test}")]);
        assert!(with("failing(Mmap); failing(Membarrier(x))").is_empty());
        assert_eq!(with("failing(Mmap)").len(), 1);
        assert_eq!(with("failing(Mmap, Membarrier, ThreadKey)").len(), 1);
        assert_eq!(calls("", &[]).len(), 1);
    }
}
