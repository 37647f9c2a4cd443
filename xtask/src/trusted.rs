//! `cargo xtask trusted`: what must be right for "an accepted program is safe", file by file, and what shows each rule.
//!
//! The core (`crates/verifier-core`) is meant to be all of that once certificates decide; until then the verifier's own
//! walk decides, and must be right as well. `cargo xtask rules` holds the bounds on its lines.

use crate::shell::{self, files};
use anyhow::Context;
use std::{fs, path::Path};

const CORE: &str = "crates/verifier-core/src";
/// Code lines of the number domains and the rules on facts, and of the whole core, at most.
const BOUNDS: [(&str, usize); 2] = [("domain", 2_500), ("", 8_500)];

/// A rule, its file, and its justification: a file, and a name in that file.
const RULES: &[(&str, &str, &str, &str)] = &[
    ("operations on known bits", "domain/tnum.rs", "crates/prove/src/domain.rs", "fn tnums"),
    ("operations on ranges", "domain/interval.rs", "crates/prove/src/domain.rs", "fn ranges"),
    ("exchange between the parts of a number", "domain/scalar.rs", "crates/prove/src/domain.rs", "fn exchange"),
    ("products and quotients", "domain/scalar/alu.rs", "crates/prove/src/tries.rs", "fn obligations"),
    ("refinement by comparisons", "domain/scalar/branch.rs", "crates/prove/src/domain.rs", "fn comparisons"),
    (
        "linear forms and residues",
        "domain/form.rs",
        "crates/verifier-core/src/domain/form.rs",
        "operations_are_those_of_the_integers",
    ),
    (
        "learning a row, propagation",
        "domain/knowledge.rs",
        "crates/verifier-core/src/domain/knowledge_tests.rs",
        "what_is_learnt_loses_no_assignment_and_gains_none",
    ),
    (
        "multipliers (Farkas), bounds and words of forms",
        "domain/knowledge.rs",
        "crates/verifier-core/src/domain/knowledge_tests.rs",
        "what_is_proven_holds_for_every_assignment",
    ),
    (
        "steps of a combination (cutting planes)",
        "domain/knowledge.rs",
        "crates/verifier-core/src/domain/knowledge_tests.rs",
        "what_a_step_leaves_is_tightened_for_the_next",
    ),
    (
        "arithmetic on forms, definitions of names",
        "transfer/number.rs",
        "crates/verifier-core/src/transfer/number_tests.rs",
        "every_operation_has_the_value_that_its_definition_says",
    ),
    (
        "meeting a set of words",
        "domain/knowledge.rs",
        "crates/verifier-core/src/domain/knowledge_tests.rs",
        "sets_of_words_lose_no_assignment",
    ),
    (
        "instructions, calls, coverage and ranks",
        "entails.rs",
        "crates/verifier/tests/certify.rs",
        "wrong_certificates_prove_no_unsafe_program",
    ),
];

/// Lines that are neither empty nor comment, of a file without its tests.
fn code_lines(source: &str) -> usize {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    code.lines().filter(is_code).count()
}

/// Each file of the core and its code lines.
fn lines(root: &Path) -> anyhow::Result<Vec<(String, usize)>> {
    let mut all = Vec::new();
    for file in files(&root.join(CORE))? {
        let name = file.to_string_lossy().into_owned();
        if name.ends_with("tests.rs") {
            continue;
        }
        let source =
            fs::read_to_string(root.join(CORE).join(&file)).with_context(|| format!("reading {}", file.display()))?;
        all.push((name, code_lines(&source)));
    }
    all.sort();
    Ok(all)
}

/// Reports files beyond their bound of lines, and rules without a proof or test.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let all = lines(&root)?;
    let mut broken = Vec::new();
    for (folder, most) in BOUNDS {
        let sum: usize = all.iter().filter(|(name, _)| name.starts_with(folder)).map(|(_, lines)| lines).sum();
        if sum > most {
            broken.push(format!("{CORE}/{folder}: {sum} lines of code must be right; {most} may"));
        }
    }
    for (rule, file, proof, name) in RULES {
        let shown = fs::read_to_string(root.join(proof)).is_ok_and(|source| source.contains(name));
        if !shown || !all.iter().any(|(of, _)| of == file) {
            broken.push(format!("xtask/src/trusted.rs: nothing shows `{rule}` of {file} ({proof}: {name})"));
        }
    }
    Ok(broken)
}

/// Prints the files and the rules.
pub(crate) fn run() -> anyhow::Result<()> {
    let all = lines(&shell::root())?;
    for (name, lines) in &all {
        println!("{lines:>6}  {CORE}/{name}");
    }
    println!("{:>6}  in all", all.iter().map(|(_, lines)| lines).sum::<usize>());
    println!();
    for (rule, file, proof, name) in RULES {
        println!("{rule} ({file}): {name} in {proof}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn comments_and_tests_are_no_code() {
        assert_eq!(
            super::code_lines("//! A.\n\nfn a() {\n    // B\n}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"),
            2
        );
    }
}
