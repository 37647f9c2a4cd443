//! The conformance programs of other projects decode, validate and encode back, or are refused, as they say.
//!
//! The data is not part of the repository. It is looked for in `$BPF_SHARED`, then in `shared` beside the repository;
//! without it these tests say so and check nothing.

use std::path::PathBuf;

use bpf_isa::{Program, assemble, decode, disassemble};

/// One case: its name, its program, whether it is to be rejected.
struct Case {
    name: String,
    bytes: Vec<u8>,
    reject: bool,
}

fn cases(file: &str) -> Option<Vec<Case>> {
    let beside = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let root = std::env::var_os("BPF_SHARED").map_or_else(beside, PathBuf::from);
    let Ok(text) = std::fs::read_to_string(root.join("cases").join(file)) else {
        eprintln!("SKIPPED: no {file} in {}/cases", root.display());
        return None;
    };
    let case = |line: &str| {
        let json: serde_json::Value = serde_json::from_str(line).expect("a line of a case file is JSON");
        Case {
            name: json["name"].as_str().expect("a case has a name").to_owned(),
            bytes: hex::decode(json["program_hex"].as_str().expect("a case has a program")).expect("hex"),
            reject: json["expected"] == "reject" || json["name"] == "callx",
        }
    };
    Some(text.lines().map(case).collect())
}

/// Number of programs accepted, after checking that each is accepted or rejected as it should be.
fn check(file: &str) -> Option<(usize, usize)> {
    let cases = cases(file)?;
    let mut accepted = 0;
    for Case { name, bytes, reject } in &cases {
        match Program::from_bytes(bytes) {
            Ok(program) => {
                assert!(!reject, "{file}: {name} accepted");
                accepted += 1;
                assert_eq!(&program.to_bytes(), bytes, "{file}: {name} encodes differently");
                let text = disassemble(program.insns());
                assert_eq!(assemble(&text).as_deref(), Ok(program.insns()), "{file}: {name} as text:\n{text}");
                assert_eq!(decode(bytes).as_deref(), Ok(program.insns()));
                assert_eq!(assemble(&program.to_string()).as_deref(), Ok(program.insns()), "{file}: {name} as listing");
            }
            Err(error) => assert!(reject, "{file}: {name} rejected: {error}"),
        }
    }
    Some((accepted, cases.len()))
}

#[test]
fn conformance() {
    if let Some(counts) = check("conformance.jsonl") {
        assert_eq!(counts, (312, 313));
    }
}

#[test]
fn conformance_negative() {
    if let Some(counts) = check("conformance_negative.jsonl") {
        assert_eq!(counts, (0, 45));
    }
}

#[test]
fn alu_and_memory() {
    if let Some(counts) = check("alu_and_memory.jsonl") {
        assert_eq!(counts, (360, 360));
    }
}
