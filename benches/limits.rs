//! `cargo bench -p bpf-benches --bench limits`: the cost of limits, for a run and for an iteration of a loop.
//!
//! Two programs are measured: one whose run needs a `RunCtx`, because it contains a call of a helper that it never
//! executes, and a loop of 1000 iterations with six instructions of work each. Each is loaded without checks,
//! interruptible, with a budget, and with both; and is run without limits and under each limit that its checks allow.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{Config, Engine, Linker, Program, Raw, RunLimits, isa::assemble};
use std::hint::black_box;
use std::time::Duration;

const COULD_ASK: &str = "r0 = 0\nif r2 != 0 goto +1\ncall 8\nexit";

/// A xorshift generator: each step depends on the one before, as in most loops that are not unrolled.
const LOOP: &str = "r1 = 0\nr0 = 7\nagain: r3 = r0\nr3 <<= 13\nr0 ^= r3\nr3 = r0\nr3 >>= 7\nr0 ^= r3\nr1 += 1\nif r1 < 1000 goto again\nexit";

fn each<'a>(mut once: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                once();
            }
        })
    })
}

fn load(engine: &Engine, text: &str, budget: bool, interruptible: bool) -> Program<Raw, ()> {
    let linker = Linker::new(engine);
    let loader = linker.loader().interruptible(interruptible);
    let loader = if budget { loader.budget(1 << 40) } else { loader };
    loader.insns("bench", assemble(text).expect("BPF")).expect("a program")
}

fn main() {
    let engine = Engine::new(Config::new()).expect("a supported host");
    let deadline = engine.deadline_in(Duration::from_secs(100_000)).expect("a thread");
    let interrupter = engine.interrupter();
    let limits = [
        ("run", None),
        ("run_with no limits", Some(RunLimits::new())),
        ("run_with a budget", Some(RunLimits::new().budget(1 << 30))),
        ("run_with a deadline", Some(RunLimits::new().deadline(deadline))),
        ("run_with all", Some(RunLimits::new().budget(1 << 30).deadline(deadline).interrupter(&interrupter))),
    ];
    let checks =
        [("none", false, false), ("interruptible", false, true), ("budget", true, false), ("both", true, true)];
    for (what, text, rounds) in [("ns a run", COULD_ASK, 1.0), ("ns a round of a loop", LOOP, 1000.0)] {
        let programs = checks.map(|(_, budget, interruptible)| load(&engine, text, budget, interruptible));
        let mut names = Vec::new();
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for ((checks, budget, interruptible), program) in checks.iter().zip(&programs) {
            for (way, limits) in &limits {
                let needs =
                    (way.contains("budget") || way.contains("all"), way.contains("deadline") || way.contains("all"));
                if needs.0 && !budget || needs.1 && !interruptible {
                    continue;
                }
                names.push([(*checks).to_owned(), (*way).to_owned()]);
                let mut data = [0u8; 64];
                contenders.push(match limits {
                    None => each(move || {
                        black_box(program.run(&mut (), &mut data).expect("a result"));
                    }),
                    Some(limits) => each(move || {
                        black_box(program.run_with(&mut (), &mut data, limits).expect("a result"));
                    }),
                });
            }
        }
        let times = interleaved(&mut contenders);
        let mut table = Table::new([what, "checks", "", "over none"]);
        for ([checks, way], ns) in names.into_iter().zip(&times) {
            table.row([way, checks, figure(ns / rounds), figure((ns - times[0]) / rounds)]);
        }
        println!("{table}");
    }
}
