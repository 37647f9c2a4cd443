//! Tests with the conformance programs of other projects, if present (see `bpf_testkit::cases::shared`): each
//! decodes, validates, encodes back and survives conversion to text, or is refused, as the case says.

use bpf_isa::{Program, assemble, decode, disassemble};
use bpf_testkit::cases::{self, Expected};

/// Checks the number of accepted programs, and that exactly the programs marked for it are refused.
fn check(file: &str, accepted: usize) {
    let path = match cases::shared(&format!("cases/{file}.jsonl")) {
        Ok(path) => path,
        Err(why) => return bpf_testkit::skipped(file, &why),
    };
    let mut count = 0;
    for case in cases::read(&path).expect("a file of cases") {
        let name = &case.name;
        let reject = case.expected == Expected::Reject;
        match Program::from_bytes(&case.program) {
            Ok(program) => {
                assert!(!reject, "{name} accepted");
                count += 1;
                assert_eq!(program.to_bytes(), case.program, "{name} encodes differently");
                let text = disassemble(program.insns());
                assert_eq!(assemble(&text).as_deref(), Ok(program.insns()), "{name} as text:\n{text}");
                assert_eq!(assemble(&program.to_string()).as_deref(), Ok(program.insns()), "{name} as listing");
                assert_eq!(decode(&case.program).as_deref(), Ok(program.insns()));
            }
            Err(error) => assert!(reject, "{name} rejected: {error}"),
        }
    }
    assert_eq!(count, accepted);
}

#[test]
fn conformance() {
    check("conformance", 313);
}

#[test]
fn conformance_negative() {
    check("conformance_negative", 0);
}

#[test]
fn alu_and_memory() {
    check("alu_and_memory", 360);
}
