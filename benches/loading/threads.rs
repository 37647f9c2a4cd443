//! Loads and unloads a second by several threads at once, on one engine.
//!
//! The figures are by wall time, because they show how threads wait for each other. Other processes disturb wall
//! time, so only figures of one line can be compared. Rounds of all engines and numbers of threads are interleaved;
//! the figures are medians.

use bpf_benches::engine::Engine;
use bpf_benches::measure::median;
use bpf_benches::straight;
use bpf_benches::table::{Table, figure};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
/// Time that the loads of one thread in one round take if no other thread loads.
const SLICE: Duration = Duration::from_millis(20);

/// Returns the table, for the engines that can load the programs.
pub(crate) fn table(engines: &[Box<dyn Engine>]) -> Table {
    let programs: Vec<_> = (0..256).map(|seed| straight::program(seed, 32)).collect();
    let engines: Vec<_> = engines
        .iter()
        .filter(|engine| programs.iter().all(|program| engine.load_and_unload(program).is_ok()))
        .collect();
    let counts: Vec<_> = engines.iter().map(|engine| calibrate(engine.as_ref(), &programs)).collect();
    let mut rounds = vec![[Vec::new(), Vec::new()]; engines.len()];
    for _ in 0..ROUNDS {
        for ((engine, count), rounds) in engines.iter().zip(&counts).zip(&mut rounds) {
            for (threads, times) in (1..).zip(rounds) {
                times.push(loads_a_second(engine.as_ref(), &programs, *count, threads));
            }
        }
    }
    let mut table = Table::new(["thousands a second, wall time", "1 thread", "2 threads", "2 threads / 1"]);
    for (engine, rounds) in engines.iter().zip(rounds) {
        let [one, two] = rounds.map(median);
        table.row([engine.name().to_owned(), figure(one / 1e3), figure(two / 1e3), figure(two / one)]);
    }
    table
}

fn load_many(engine: &dyn Engine, programs: &[Vec<u8>], first: usize, count: usize) {
    for program in programs.iter().cycle().skip(first).take(count) {
        engine.load_and_unload(program).expect("it loaded before");
    }
}

fn calibrate(engine: &dyn Engine, programs: &[Vec<u8>]) -> usize {
    let start = Instant::now();
    load_many(engine, programs, 0, 64);
    (SLICE.as_secs_f64() / start.elapsed().as_secs_f64() * 64.0) as usize + 1
}

fn loads_a_second(engine: &dyn Engine, programs: &[Vec<u8>], each: usize, threads: usize) -> f64 {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    load_many(engine, programs, thread * programs.len() / 2, each);
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("loads"));
        (each * threads) as f64 / start.elapsed().as_secs_f64()
    })
}
