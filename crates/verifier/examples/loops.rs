//! Prints the cost of ordinary loops (for each program: instructions, steps and time), and the refused programs with
//! the reason.
//!
//! `cargo run --release -p bpf-verifier --example loops [-- OBJECT ...] [--log NAME]`. Without objects, those of
//! `tests/loops`. Sections `raw/...` have a buffer and its length as their arguments, others are run as xdp. Times are
//! the least of five, of the verifier alone. In the environment, `STEPS` is the limit on steps, and for a profile,
//! `ONLY` the name of a program and `TIMES` how often it is verified.

#[path = "../tests/verify/common/mod.rs"]
mod common;
#[path = "../tests/verify/loop_programs.rs"]
mod programs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_verifier::Verifier;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut log = None;
    if let Some(at) = args.iter().position(|a| a == "--log") {
        log = args.drain(at..).nth(1);
    }
    let mut objects: Vec<PathBuf> = args.iter().map(PathBuf::from).collect();
    if objects.is_empty() {
        objects = programs::objects();
    }
    let of_env = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let times = of_env("TIMES").unwrap_or(5);
    let only = std::env::var("ONLY");
    let (mut accepted, mut all) = (0, 0);
    for object in objects {
        let file = object.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for p in programs::load(Path::new(&object)) {
            if log.as_ref().is_some_and(|name| *name != p.name) || only.as_ref().is_ok_and(|name| *name != p.name) {
                continue;
            }
            all += 1;
            let (context, helpers) = (p.context(), bpf_verifier::Helpers::none());
            let mut env = p.env(&context, &helpers, log.is_some());
            if let Some(steps) = of_env("STEPS") {
                env.limits.steps = steps;
            }
            let mut least = Duration::MAX;
            let mut last = None;
            for _ in 0..times {
                let program = p.program.clone();
                let start = Instant::now();
                let result = Verifier::new().verify(program, &env);
                least = least.min(start.elapsed());
                let again = result.is_ok();
                last = Some(result);
                if !again || log.is_some() {
                    break;
                }
            }
            let Some(result) = last else { continue };
            let insns = p.program.insns().len();
            let us = least.as_nanos() as f64 / 1000.0;
            match result {
                Ok(v) => {
                    accepted += 1;
                    if log.is_some() {
                        println!("{}", v.log().join("\n"));
                    }
                    println!("{file:12} {:14} {insns:>5} insns {:>8} steps {us:>9.1} us", p.name, v.stats().steps);
                }
                Err(e) => {
                    println!("{}", e.log.join("\n"));
                    println!("{file:12} {:14} {insns:>5} insns REFUSED in {us:.1} us: {}", p.name, e.reason);
                    if log.is_some() {
                        println!("{e}");
                    } else {
                        e.loops.iter().for_each(|l| println!("      loop at {}: {}", l.head, l.why));
                    }
                }
            }
        }
    }
    println!("{accepted} of {all} accepted");
}
