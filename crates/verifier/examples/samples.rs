//! The work that the sample objects take: the accepted programs with the most steps, and the median and worst of all.
//!
//! `cargo run --release -p bpf-verifier --example samples`. The objects are looked for as in `tests/samples.rs`. Times
//! are medians of 15, of the verifier alone, which begins without memory each time.

#[path = "../tests/verify/objects.rs"]
mod objects;

use std::time::Duration;

use objects::{Verdict, objects, parse, verdict};

fn main() {
    let mut rows = Vec::new();
    for folder in ["build", "cilium-examples", "new_linux", "../tailcalls/v3", "../tailcalls/v4"] {
        let Some(path) = objects(folder) else { continue };
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()) {
            let Ok(object) = parse(&path) else { continue };
            for program in object.programs() {
                let mut times = Vec::new();
                let mut last = None;
                for _ in 0..15 {
                    let Verdict::Accepted(verified, took) = verdict(&object, program) else { break };
                    times.push(took);
                    last = Some(verified);
                }
                let Some(verified) = last else { continue };
                times.sort();
                let file = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
                let name = format!("{file} {}", program.name());
                rows.push((verified.stats(), verified.program().insns().len(), times[times.len() / 2], name));
            }
        }
    }
    rows.sort_by_key(|(stats, ..)| std::cmp::Reverse(stats.steps));
    let us = |d: Duration| d.as_nanos() as f64 / 1000.0;
    println!(
        "{:44} {:>6} {:>8} {:>7} {:>7} {:>10} {:>9}",
        "program", "insns", "steps", "states", "pruned", "median µs", "peak KiB"
    );
    for (stats, insns, time, name) in rows.iter().take(12) {
        let peak = stats.peak_bytes as f64 / 1024.0;
        println!(
            "{name:44} {insns:>6} {:>8} {:>7} {:>7} {:>10.1} {peak:>9.1}",
            stats.steps,
            stats.states,
            stats.pruned,
            us(*time)
        );
    }
    let mut times: Vec<Duration> = rows.iter().map(|r| r.2).collect();
    times.sort();
    if let (Some(worst), Some(median)) = (times.last(), times.get(times.len() / 2)) {
        println!("{} programs accepted: median {:.1} µs, worst {:.1} µs", times.len(), us(*median), us(*worst));
    }
}
