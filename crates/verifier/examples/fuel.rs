//! Verdict, fuel and steps of each program, a line each: a verdict is the same whatever built the verifier, so two
//! builds print the same lines.
//!
//! `cargo run -p bpf-verifier --example fuel [-- OBJECT ...] > debug`, the same with `--release` into another file,
//! and `diff` of the two. Without objects, the samples (looked for as in `tests/samples.rs`) and the loops of
//! `tests/loops`.

#[path = "../tests/verify/common/mod.rs"]
mod common;
#[path = "../tests/verify/objects.rs"]
mod objects;
#[path = "../tests/verify/loop_programs.rs"]
mod programs;

use std::path::{Path, PathBuf};

use bpf_verifier::{Helpers, Verified, Verifier, VerifyError};

fn line(file: &Path, name: &str, verdict: &Result<Verified, Box<VerifyError>>) {
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    match verdict {
        Ok(v) => println!("{file} {name} accepted {} {}", v.stats().fuel, v.stats().steps),
        Err(e) => println!("{file} {name} refused {}", e.reason.to_string().replace('\n', " ")),
    }
}

fn main() {
    let given: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let mut found = given.clone();
    if given.is_empty() {
        for folder in ["build", "cilium", "cilium-examples", "new_linux", "../tailcalls/v3", "../tailcalls/v4"] {
            let Some(path) = objects::objects(folder) else { continue };
            found.extend(std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()));
        }
    }
    found.sort();
    for path in found {
        let Ok(object) = objects::parse(&path) else { continue };
        for program in object.programs() {
            let verdict = objects::with_env(&object, program, |code, env| Verifier::new().verify(code, env));
            if let Ok(verdict) = verdict {
                line(&path, program.name(), &verdict);
            }
        }
    }
    if given.is_empty() {
        for path in programs::objects() {
            for p in programs::load(&path) {
                let (context, helpers) = (p.context(), Helpers::none());
                let verdict = Verifier::new().verify(p.program.clone(), &p.env(&context, &helpers, false));
                line(&path, &p.name, &verdict);
            }
        }
    }
}
