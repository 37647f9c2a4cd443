//! `cargo bench -p bpf-benches --bench record`: the cost of recording a run.
//!
//! A program that only its context decides runs as machine code with a copy of the context; one that reads a map is
//! interpreted. Each is run without a recorder, loaded with and without `Loader::recordable`, and with one.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{
    Config, Engine, Linker, Raw,
    isa::assemble,
    observe::{Recorder, RecorderOptions},
};
use std::hint::black_box;

/// Number of runs that a recorder keeps.
const RUNS: usize = 16;

/// Adds the bytes of the context.
const SUM: &str = "r0 = 0\nif r2 < 16 goto end\nr0 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nr0 += r3\nend: exit";

/// Asks for the time, which comes from outside.
const ASKS: &str = "r6 = r1\ncall 5\nexit";

fn each<'a>(mut once: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                once();
            }
        })
    })
}

fn main() {
    let engine = Engine::new(Config::new()).expect("a supported host");
    let linker = Linker::<()>::new(&engine);
    for (what, text) in [("context alone", SUM), ("one call", ASKS)] {
        let mut table = Table::new([what, "bytes of context", "ns a run", "over plain", "bytes a run"]);
        for len in [16, 64, 256, 1500] {
            let load = |recordable| {
                let loader = linker.loader::<Raw>().recordable(recordable);
                loader.insns("bench", assemble(text).expect("BPF")).expect("a program")
            };
            let (plain, kept) = (load(false), load(true));
            let recorder = |_| kept.recorder(RecorderOptions::new().runs(RUNS)).expect("a recorder");
            let [mut recorder, mut measured]: [Recorder<Raw, ()>; 2] = [0, 1].map(recorder);
            for _ in 0..RUNS {
                measured.run(&mut (), &mut vec![0; len]).expect("a result");
            }
            let bytes = measured.bytes() / RUNS;
            let (mut a, mut b, mut c) = (vec![0u8; len], vec![0u8; len], vec![0u8; len]);
            let mut contenders: Vec<Contender<'_>> = vec![
                each(|| drop(black_box(plain.run(&mut (), &mut a)))),
                each(|| drop(black_box(kept.run(&mut (), &mut b)))),
                each(|| drop(black_box(recorder.run(&mut (), &mut c)))),
            ];
            let times = interleaved(&mut contenders);
            for (way, ns) in ["plain", "recordable", "recorded"].into_iter().zip(&times) {
                let bytes = if way == "recorded" { bytes.to_string() } else { String::new() };
                table.row([way.to_owned(), len.to_string(), figure(*ns), figure(ns - times[0]), bytes]);
            }
        }
        println!("{table}");
    }
}
