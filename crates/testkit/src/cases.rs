//! Data-driven cases: programs with expected results, the same for every engine.
//!
//! A file holds one JSON object a line: `name`, `program_hex`, `mem_hex` or `mem_size`, and `expected` (64-bit r0 in
//! hex, or "reject") or `expected_u32` (the low half). r1 is the memory (`mem_size`: zero-filled; none: r1 = 0), r2 its
//! length. The external files lie outside the repository; [`shared`] finds them, or says why not, and the caller
//! reports a skip. Our own cases are a [`suite`] in a format for people.

mod suite;

pub use suite::suite;

use serde::Deserialize;
use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
};

/// A program and what it must do.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name in the file.
    pub name: String,
    /// The instructions, eight bytes a slot.
    pub program: Vec<u8>,
    /// Memory that r1 points to; `None`: r1 = 0 and r2 = 0.
    pub memory: Option<Vec<u8>>,
    /// Expected outcome.
    pub expected: Expected,
}

/// Expected outcome of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// All of r0.
    R0(u64),
    /// The low half of r0.
    Low32(u32),
    /// The program is refused when it is loaded.
    Reject,
}

/// Outcome of a case on an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The run ended with this r0.
    Returned(u64),
    /// The program was refused at load, with this message.
    Rejected(String),
    /// The program was loaded and its run ended in an error.
    Stopped(String),
}

impl Expected {
    /// Whether the outcome is the expected one.
    pub fn met_by(self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Expected::R0(expected), Outcome::Returned(r0)) => expected == *r0,
            (Expected::Low32(expected), Outcome::Returned(r0)) => expected == *r0 as u32,
            (Expected::Reject, Outcome::Rejected(_)) => true,
            (Expected::R0(_) | Expected::Low32(_), Outcome::Rejected(_) | Outcome::Stopped(_))
            | (Expected::Reject, Outcome::Returned(_) | Outcome::Stopped(_)) => false,
        }
    }
}

/// How a file of cases went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// How many did what was expected.
    pub passed: usize,
    /// The names of the cases that failed.
    pub failed: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())
    }
}

/// Why a file of cases cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A line is not a case.
    #[error("{path}:{line}: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
}

/// A case as it stands in the file. Unknown fields are remarks.
#[derive(Deserialize)]
struct Record {
    name: String,
    program_hex: String,
    #[serde(default)]
    mem_hex: String,
    mem_size: Option<usize>,
    expected: Option<String>,
    expected_u32: Option<u32>,
}

impl Record {
    fn case(self) -> Result<Case, String> {
        let bytes = |text: &str| hex::decode(text).map_err(|e| e.to_string());
        let memory = match (self.mem_hex.as_str(), self.mem_size) {
            ("", None) => None,
            ("", Some(size)) => Some(vec![0; size]),
            (text, None) => Some(bytes(text)?),
            (_, Some(_)) => return Err("both mem_hex and mem_size".into()),
        };
        let expected = match (self.expected.as_deref(), self.expected_u32) {
            (Some("reject"), None) => Expected::Reject,
            (Some(text), None) => {
                let digits = text.strip_prefix("0x").ok_or_else(|| format!("`expected` is not hex: {text}"))?;
                Expected::R0(u64::from_str_radix(digits, 16).map_err(|e| e.to_string())?)
            }
            (None, Some(low)) => Expected::Low32(low),
            (None, None) | (Some(_), Some(_)) => return Err("one of `expected` and `expected_u32` is needed".into()),
        };
        Ok(Case { program: bytes(&self.program_hex)?, name: self.name, memory, expected })
    }
}

/// The cases of a file.
pub fn read(path: &Path) -> Result<Vec<Case>, CaseError> {
    let text = fs::read_to_string(path).map_err(|error| CaseError::Read { path: path.into(), error })?;
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str::<Record>(line)
                .map_err(|e| e.to_string())
                .and_then(Record::case)
                .map_err(|message| CaseError::Line { path: path.into(), line: i + 1, message })
        })
        .collect()
}

/// Runs every case of the file and prints the cases that fail.
pub fn run(path: &Path, engine: &mut dyn FnMut(&Case) -> Outcome) -> Result<Tally, CaseError> {
    let mut tally = Tally::default();
    for case in read(path)? {
        let outcome = engine(&case);
        if case.expected.met_by(&outcome) {
            tally.passed += 1;
        } else {
            println!("FAILED {}: expected {:x?}, got {outcome:x?}", case.name, case.expected);
            tally.failed.push(case.name);
        }
    }
    Ok(tally)
}

/// The external data is not there.
#[derive(Debug, thiserror::Error)]
#[error("no external data: neither $BPF_SHARED nor {0} has it")]
pub struct NoSharedData(PathBuf);

/// A file or folder of the external data, under `$BPF_SHARED` or the folder `shared` beside the repository.
pub fn shared(relative: &str) -> Result<PathBuf, NoSharedData> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = env::var_os("BPF_SHARED").map_or(beside, PathBuf::from);
    let path = folder.join(relative);
    if path.exists() { Ok(path) } else { Err(NoSharedData(path)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(line: &str) -> Result<Case, String> {
        serde_json::from_str::<Record>(line).map_err(|e| e.to_string()).and_then(Record::case)
    }

    #[test]
    fn reads_the_three_kinds_of_expectation() {
        let r0 = case(r#"{"name":"a","program_hex":"9500","mem_hex":"01ff","expected":"0xffffffffffffffff"}"#).unwrap();
        assert_eq!((r0.expected, r0.memory), (Expected::R0(u64::MAX), Some(vec![1, 255])));
        let low = case(r#"{"name":"a","program_hex":"","mem_size":3,"expected_u32":7}"#).unwrap();
        assert_eq!((low.expected, low.memory), (Expected::Low32(7), Some(vec![0; 3])));
        let reject = case(r#"{"name":"a","program_hex":"","mem_hex":"","expected":"reject"}"#).unwrap();
        assert_eq!((reject.expected, reject.memory), (Expected::Reject, None));
    }

    #[test]
    fn refuses_what_is_ambiguous() {
        assert!(case(r#"{"name":"a","program_hex":""}"#).is_err());
        assert!(case(r#"{"name":"a","program_hex":"","expected":"0x1","expected_u32":1}"#).is_err());
        assert!(case(r#"{"name":"a","program_hex":"","mem_hex":"00","mem_size":1,"expected":"0x1"}"#).is_err());
        assert!(case(r#"{"name":"a","program_hex":"0","expected":"0x1"}"#).is_err());
    }

    #[test]
    fn an_outcome_is_judged_by_its_kind() {
        assert!(Expected::Low32(1).met_by(&Outcome::Returned(0xffff_ffff_0000_0001)));
        assert!(!Expected::R0(1).met_by(&Outcome::Returned(0xffff_ffff_0000_0001)));
        assert!(!Expected::Reject.met_by(&Outcome::Stopped(String::new())));
    }

    #[test]
    fn the_external_files_are_read_whole() {
        for (file, count) in [("conformance", 313), ("conformance_negative", 45), ("alu_and_memory", 360)] {
            match shared(&format!("cases/{file}.jsonl")) {
                Ok(path) => assert_eq!(read(&path).unwrap().len(), count),
                Err(why) => crate::skipped(file, &why),
            }
        }
    }
}
