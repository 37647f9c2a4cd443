//! Host files and test files with random changes: each is accepted or refused by a message, never by a panic.
//! `BPF_SOAK=N`: N times as many.

use super::{Folder, root};
use bpf_testkit::generate::Choices;

/// Text that takes the place of a part of a file.
const PARTS: [&str; 28] = [
    "",
    "0",
    "1",
    "-1",
    "7",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "nan",
    "true",
    "null",
    "\"\"",
    "\"x\"",
    "\"u64\"",
    "\"/index.html\"",
    "{}",
    "[]",
    "[[[[[[[[",
    "}",
    "\"",
    "\u{0}",
    "\u{fffd}",
    "=",
    "\n",
];

/// A copy of a text with up to four changes: a word or a sign replaced, removed, repeated or moved.
fn mutated(text: &str, choices: &mut Choices<'_>) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len()).max(first);
        words.push(&rest[..len]);
        rest = &rest[len..];
    }
    for _ in 0..1 + choices.below(4) {
        let mut at = || choices.below(words.len() as u32) as usize;
        let (from, to) = (at(), at());
        match choices.below(6) {
            0..=2 => words[from] = choices.pick(&PARTS),
            3 => words[from] = "",
            4 => words.insert(to, words[from]),
            _ => words.swap(from, to),
        }
    }
    words.concat()
}

#[test]
fn changed_host_files_and_test_files_are_read() {
    let folder = Folder::new("mutated");
    let example = |name: &str| std::fs::read_to_string(root().join("examples").join(name)).unwrap();
    let (host, tests) = (example("limit_host.json"), example("limit_test.toml"));
    std::fs::copy(root().join("examples/limit.o"), folder.path("limit.o")).unwrap();
    let mut accepted = [0; 3];
    let soak = std::env::var("BPF_SOAK").ok().and_then(|times| times.parse::<u64>().ok()).unwrap_or(1);
    for seed in 0..300 * soak {
        let mut choices = Choices::from_seed(seed);
        let is_host = choices.one_in(2);
        let (host, tests) = if is_host {
            (mutated(&host, &mut choices), tests.clone())
        } else {
            (host.clone(), mutated(&tests, &mut choices))
        };
        let (host, tests) = (folder.file("limit_host.json", &host), folder.file("limit_test.toml", &tests));
        let commands: [&[&str]; 3] =
            [&["test", &tests], &["header", &host], &["verify", "--host", &host, &folder.path("limit.o")]];
        for (i, args) in commands.iter().enumerate().filter(|(i, _)| is_host || *i == 0) {
            let output = super::bpf(args);
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(
                matches!(output.status.code(), Some(0..=3)),
                "seed {seed}: {args:?}: {:?}: {message}",
                output.status
            );
            accepted[i] += u32::from(output.status.success());
        }
    }
    assert!(accepted.iter().all(|n| *n > 5), "{accepted:?}");
}
