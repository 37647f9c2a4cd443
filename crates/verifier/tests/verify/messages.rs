//! Tests the messages for an author: the whole message for every unsafe program of `pairs.txt`, in golden files.
//!
//! `BLESS=1 cargo test -p bpf-verifier --test verify messages` rewrites them; read the difference before you commit it.

use crate::common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use bpf_verifier::{SourceLine, Verifier};

fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

#[test]
fn messages_are_the_golden_ones() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("BLESS").is_some();
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for pair in common::pairs() {
        if !common::has_code(pair.refused) {
            continue;
        }
        let message = common::verify(pair.refused).err().map(|e| e.to_string()).unwrap_or_default();
        let file = format!("{}.txt", slug(pair.name));
        let golden = format!("{}\n\n{}\n{message}", pair.name, common::program(pair.refused));
        let path = folder.join(&file);
        if bless {
            std::fs::write(&path, &golden).expect("the golden folder can be written");
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(golden.as_str()) {
            wrong.push(format!("{file}:\n{golden}"));
        }
        assert!(names.insert(file), "two pairs are named {}", pair.name);
    }
    for entry in std::fs::read_dir(&folder).expect("the golden folder is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name of ours");
        assert!(names.contains(&name), "golden file {name} belongs to no pair");
    }
    assert!(names.len() >= 40, "{} messages", names.len());
    assert!(wrong.is_empty(), "{} messages changed (BLESS=1 accepts them):\n{}", wrong.len(), wrong.join("\n"));
}

/// Reasons that no pair of programs shows, and why.
const WITHOUT_PAIR: &[(&str, &str)] = &[
    ("Environment", "what the embedder describes is wrong, not the program: environment.rs"),
    ("Internal", "a bug of ours"),
    ("Time", "the machine decides; hostile.rs"),
    ("Steps", "a limit, which takes a large program: hostile.rs"),
    ("Memory", "a limit: hostile.rs"),
    ("OutOfMemory", "the machine decides; tests/memory_limit.rs"),
    ("Fuel", "a limit: hostile.rs"),
];

/// Each reason for a refusal has a program that is refused for it, and the nearest safe program.
#[test]
fn every_reason_is_shown_by_a_pair() {
    let name = |text: &str| text.split(['(', ' ', ',', '{']).next().unwrap_or_default().to_owned();
    let source = include_str!("../../src/error.rs");
    let body = source.split_once("pub enum Reason {").map_or("", |(_, rest)| rest.split("\n}").next().unwrap_or(""));
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let all: BTreeSet<String> = lines.filter(|line| line.starts_with(char::is_uppercase)).map(name).collect();
    assert!(all.len() > 30, "reasons are read: {all:?}");
    let pairs = common::pairs();
    let refusals = pairs.iter().filter(|pair| common::has_code(pair.refused));
    // A reason may be about another one, so all the names in it are shown.
    let texts = refusals.filter_map(|pair| Some(format!("{:?}", common::verify(pair.refused).err()?.reason)));
    let shown: BTreeSet<String> = texts
        .flat_map(|text| text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let excused: BTreeSet<String> = WITHOUT_PAIR.iter().map(|(reason, _)| (*reason).to_owned()).collect();
    let missing: Vec<_> = all.difference(&shown).filter(|reason| !excused.contains(*reason)).collect();
    assert!(missing.is_empty(), "no pair of programs shows {missing:?}");
    let needless: Vec<_> = excused.iter().filter(|reason| shown.contains(*reason) || !all.contains(*reason)).collect();
    assert!(needless.is_empty(), "excused without need: {needless:?}");
}

/// Source line, calls and path are shown when there are any.
#[test]
fn a_message_shows_line_calls_and_path() {
    let text = "
        r6 = *(u32 *)(r1 + 12)
        if r6 > 5 goto +1
        r6 = 0
        call f
        exit
        f:
        r0 = *(u64 *)(r10 - 8)
        exit
    ";
    let lines = [
        SourceLine { insn: 0, file: "a.c".into(), line: 10, text: "int main() {".into() },
        SourceLine { insn: 5, file: "a.c".into(), line: 3, text: "    return local;".into() },
    ];
    let error = common::with_env(text, |env| {
        let mut env = *env;
        env.lines = &lines;
        env.log = true;
        Verifier::new().verify(common::program(text), &env).expect_err("reads what it never wrote")
    });
    assert_eq!(
        error.to_string(),
        "error: stack byte at r10-8 is read but was never written, or holds part of a pointer\n  \
         at 5: r0 = *(u64 *)(r10 - 8)\n  \
         in a.c:3: return local;\n  \
         called from 3\n  \
         path: 1 not taken\n  \
         hint: initialise the whole variable, padding included, for example with memset\n"
    );
    assert_eq!(error.log.len(), 5, "{:#?}", error.log);
    assert_eq!(error.log[1], "1: if r6 > 5 goto +1  ; r6=a number (0..=4294967295)");
}
