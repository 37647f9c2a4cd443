//! Which programs have a certificate that the trusted core accepts: of those that the verifier accepts.
//!
//! `cargo run --release -p bpf-verifier --example certify [-- OBJECT ...]`. Without objects, those of `tests/loops`. In
//! the environment, `ONLY` is the name of a program.

#[path = "../tests/verify/common/mod.rs"]
mod common;
#[path = "../tests/verify/loop_programs.rs"]
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bpf_verifier::Verifier;
use bpf_verifier::certify::certify;

fn main() {
    let mut objects: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    if objects.is_empty() {
        objects = programs::objects();
    }
    let only = std::env::var("ONLY");
    let (mut accepted, mut certified) = (0, 0);
    let mut reasons: BTreeMap<String, u32> = BTreeMap::new();
    for object in objects {
        for p in programs::load(Path::new(&object)) {
            if only.as_ref().is_ok_and(|name| *name != p.name) {
                continue;
            }
            let (context, helpers) = (p.context(), bpf_verifier::Helpers::none());
            let env = p.env(&context, &helpers, false);
            if Verifier::new().verify(p.program.clone(), &env).is_err() {
                continue;
            }
            accepted += 1;
            let start = Instant::now();
            let result = certify(&p.program, &env);
            let us = start.elapsed().as_micros();
            match result {
                Ok(_) => certified += 1,
                Err(why) => {
                    let file = object.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    println!("{file:16} {:16} {us:>8} us: {why}", p.name);
                    *reasons.entry(why.why.to_string()).or_default() += 1;
                }
            }
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in reasons {
        println!("{count:>5} {why}");
    }
    println!("{certified} of {accepted} certified");
}
