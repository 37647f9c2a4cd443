//! The time of a load in a process that did other work since the last load, so that code and data of the loader are
//! in no cache.
//!
//! Between loads a buffer larger than the caches is written, by code with unpredictable branches, which also replaces
//! the contents of the branch predictors. Each load is timed alone, hence by wall time; the figure is the median of
//! many.

use bpf_benches::engine::Engine;
use bpf_benches::measure::median;
use bpf_benches::programs;
use bpf_benches::table::{Table, figure};
use std::hint::black_box;
use std::time::Instant;

/// Speed programs of about 58 to 257 instructions.
const PROGRAMS: [&str; 5] = ["jhash", "siphash", "sort", "sha256", "parse"];
/// Bytes written between two loads.
const OTHER: usize = 64 << 20;
/// Loads of each program by each engine.
const ROUNDS: usize = 21;

/// Returns the table: microseconds of a load and an unload.
pub(crate) fn table(engines: &[Box<dyn Engine>]) -> String {
    let names = engines.iter().map(|engine| engine.name().to_owned());
    let mut table = Table::new(["µs, cold", "instructions"].map(str::to_owned).into_iter().chain(names));
    let mut other = vec![0u8; OTHER];
    for name in PROGRAMS {
        let Some(program) = programs::Program::named(name) else { continue };
        let code = program.code();
        let mut times = vec![Vec::new(); engines.len()];
        for round in 0..ROUNDS * engines.len() {
            let at = round % engines.len();
            do_other_things(&mut other, round);
            let start = Instant::now();
            if engines[at].load_and_unload(black_box(&code)).is_ok() {
                times[at].push(start.elapsed().as_nanos() as f64);
            }
        }
        let cells = times.into_iter().map(|of| if of.is_empty() { "-".into() } else { figure(median(of) / 1e3) });
        table.row([name.to_owned(), (code.len() / 8).to_string()].into_iter().chain(cells));
    }
    table.to_string()
}

/// Writes every cache line of the buffer, with branches that cannot be predicted.
fn do_other_things(other: &mut [u8], seed: usize) {
    let mut random = seed as u64 | 1;
    for line in other.chunks_mut(64) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        line[0] = if random >> 63 == 0 { line[0].wrapping_add(1) } else { line[1] ^ 1 };
    }
    black_box(other);
}
