//! Counts the accepted programs for which a certificate is found that the trusted core accepts.
//!
//! `cargo run --release -p bpf-verifier --example certify [-- OBJECT ...]`. Without objects it takes the objects of
//! `tests/loops`, with `-- samples` the sample objects. Environment variables: `ONLY` selects a program by name, `FUEL`
//! is the fuel for each way of searching.

#[path = "../tests/verify/common/mod.rs"]
mod common;
#[path = "../tests/verify/objects.rs"]
mod objects;
#[path = "../tests/verify/loop_programs.rs"]
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bpf_isa::Program;
use bpf_verifier::certify::{Proof, certify_within};
use bpf_verifier::{Env, Verifier};

/// Counts over all programs.
#[derive(Default)]
struct Counts {
    accepted: u32,
    certified: u32,
    reasons: BTreeMap<String, u32>,
    /// Bytes of each proof by those of its instructions, and the time of its check.
    sizes: Vec<(f64, u128)>,
}

impl Counts {
    fn program(&mut self, file: &str, name: &str, program: &Program, env: &Env<'_>) {
        let only = std::env::var("ONLY");
        if only.as_ref().is_ok_and(|only| only != name) || Verifier::new().verify(program.clone(), env).is_err() {
            return;
        }
        self.accepted += 1;
        let start = Instant::now();
        let result = certify_within(program, env, fuel());
        let us = start.elapsed().as_micros();
        match result {
            Ok(_) => {
                self.certified += 1;
                let proof = Proof::search(program, env, fuel()).expect("again");
                let bytes = proof.to_bytes();
                let read = Proof::from_bytes(&bytes).expect("what was written");
                assert_eq!(proof, read, "{file} {name}");
                let start = Instant::now();
                read.check(program, env).expect("what was proven");
                let check_us = start.elapsed().as_micros();
                let of_insns = bytes.len() as f64 / (program.insns().len() * 8) as f64;
                self.sizes.push((of_insns, check_us));
            }
            Err(why) => {
                println!("{file:16} {name:16} {us:>8} us: {why}");
                if let Some(first) = why.tried.first() {
                    *self.reasons.entry(first.refusal.why.to_string()).or_default() += 1;
                }
            }
        }
    }
}

/// Fuel for each pass: `FUEL` in the environment, or what `bpf prove` takes.
fn fuel() -> u64 {
    std::env::var("FUEL").ok().and_then(|fuel| fuel.parse().ok()).unwrap_or(1 << 20)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The programs of the sample objects that the verifier accepts.
fn samples(counts: &mut Counts) {
    for folder in ["build", "cilium", "cilium-examples", "new_linux", "../tailcalls/v3", "../tailcalls/v4"] {
        let Some(path) = objects::objects(folder) else { continue };
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort();
        for path in files {
            let Ok(object) = objects::parse(&path) else { continue };
            for program in object.programs() {
                let name = format!("{} {}", program.section(), program.name());
                let file = file_name(&path);
                let _ = objects::with_env(&object, program, |code, env| counts.program(&file, &name, &code, env));
            }
        }
    }
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let mut counts = Counts::default();
    if arguments == [Path::new("samples")] {
        samples(&mut counts);
    } else {
        for object in if arguments.is_empty() { programs::objects() } else { arguments } {
            for p in programs::load(&object) {
                let (context, helpers) = (p.context(), bpf_verifier::Helpers::none());
                counts.program(&file_name(&object), &p.name, &p.program, &p.env(&context, &helpers, false));
            }
        }
    }
    let mut reasons: Vec<_> = counts.reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in reasons {
        println!("{count:>5} {why}");
    }
    counts.sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut times: Vec<u128> = counts.sizes.iter().map(|size| size.1).collect();
    times.sort_unstable();
    if let (Some((middle, _)), Some((most, _))) = (counts.sizes.get(counts.sizes.len() / 2), counts.sizes.last()) {
        println!("proofs: {middle:.2} bytes a byte of instructions in the middle, {most:.2} at most");
        println!("checks: {} us in the middle, {} us at most", times[times.len() / 2], times[times.len() - 1]);
    }
    println!("{} of {} certified", counts.certified, counts.accepted);
}
