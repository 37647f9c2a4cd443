//! `cargo bench -p bpf-benches --bench asleep`: the cost of host functions that wait, and the memory of runs that wait.
//!
//! A program calls a host function 1000 times: one that does not wait, one whose future is ready at once, and one whose
//! future is ready when it is polled for the second time, so that each call suspends the run and resumes it. The
//! programs differ in nothing else. The second table is of a run of an empty program, the third of a loop that may
//! yield: loaded without yields, with a budget that is not spent, and yielding every 1000 rounds or never. Then 100,000
//! runs are begun, wait at the same time, and go on; the resident memory of the process is read in between.

use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{AsyncCaller, Caller, Config, Engine, Linker, Program, Raw, RunLimits, isa::assemble};
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const CALLS: f64 = 1000.0;
const LOOP: &str =
    "r6 = 0\nr7 = 0\nagain: r1 = r6\ncall 1001\nr7 += r0\nr6 += 1\nif r6 < 1000 goto again\nr0 = r7\nexit";
const PARKED: usize = 100_000;

fn each<'a>(mut once: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                once();
            }
        })
    })
}

/// Polls until the result is there.
fn drive<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// Ready when it is polled for the second time.
async fn once() {
    let mut asked = false;
    poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// A way of answering `call 1001`.
fn linker(engine: &Engine, way: &str) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    let registered = match way {
        "plain" => linker.func(1001, "answer", |c: &mut Caller<'_, u64>, n: u64| -> u64 { *c.host() ^ n }),
        "ready" => {
            linker.func_async(1001, "answer", async |mut c: AsyncCaller<'_, u64>, n: u64| -> u64 { *c.host() ^ n })
        }
        _ => linker.func_async(1001, "answer", async |mut c: AsyncCaller<'_, u64>, n: u64| -> u64 {
            once().await;
            *c.host() ^ n
        }),
    };
    registered.expect("a free name");
    linker
}

fn load(linker: &Linker<u64>, text: &str, sleepable: bool, interruptible: bool) -> Program<Raw, u64> {
    let loader = linker.loader().sleepable(sleepable).interruptible(interruptible);
    loader.insns("bench", assemble(text).expect("BPF")).expect("a program")
}

fn calls(engine: &Engine) {
    let deadline = engine.deadline_in(Duration::from_secs(100_000)).expect("a thread");
    let limits = RunLimits::new().deadline(deadline);
    let [plain, ready, waits] = ["plain", "ready", "waits"].map(|way| linker(engine, way));
    let programs = [
        ("plain host function", load(&plain, LOOP, false, false), false),
        ("plain host function, sleepable program", load(&plain, LOOP, true, false), false),
        ("future that is ready", load(&ready, LOOP, true, false), false),
        ("suspend and resume", load(&waits, LOOP, true, false), false),
        ("suspend and resume, interruptible", load(&waits, LOOP, true, true), false),
        ("suspend and resume, with a deadline", load(&waits, LOOP, true, true), true),
    ];
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for (_, program, limited) in &programs {
        let (limits, mut host) = (&limits, 1);
        contenders.push(each(move || {
            let result = match limited {
                true => drive(program.run_async_with(&mut host, &mut [], limits)),
                false => drive(program.run_async(&mut host, &mut [])),
            };
            black_box(result.expect("a result"));
        }));
    }
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["ns a call", "", "over plain"]);
    for ((name, ..), ns) in programs.iter().zip(&times) {
        table.row([(*name).to_owned(), figure(ns / CALLS), figure((ns - times[0]) / CALLS)]);
    }
    println!("{table}");
}

fn runs(engine: &Engine) {
    let linker = linker(engine, "plain");
    let (plain, asleep) = (load(&linker, "r0 = 0\nexit", false, false), load(&linker, "r0 = 0\nexit", true, false));
    let mut hosts = [0; 3];
    let [a, b, c] = &mut hosts;
    let (plain, asleep) = (&plain, &asleep);
    let mut contenders: Vec<Contender<'_>> = vec![
        each(move || {
            black_box(plain.run(a, &mut []).expect("a result"));
        }),
        each(move || {
            black_box(drive(plain.run_async(b, &mut [])).expect("a result"));
        }),
        each(move || {
            black_box(drive(asleep.run_async(c, &mut [])).expect("a result"));
        }),
    ];
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["ns a run", ""]);
    for (name, ns) in ["run", "run_async", "run_async, sleepable program"].iter().zip(&times) {
        table.row([(*name).to_owned(), figure(*ns)]);
    }
    println!("{table}");
}

const ROUNDS: f64 = 100_000.0;
const LONG: &str = "r6 = 0\nr7 = 1\nagain: r7 *= 3\nr7 ^= r6\nr6 += 1\nif r6 < 100000 goto again\nr0 = r7\nexit";
/// Ticks between two yields.
const SLICE: u64 = 1000;

fn yields(engine: &Engine) {
    let linker = linker(engine, "plain");
    let insns = assemble(LONG).expect("BPF");
    let [plain, limited, yielding] = [
        linker.loader().sleepable(true),
        linker.loader().sleepable(true).budget(u64::MAX >> 1),
        linker.loader().yields(true),
    ]
    .map(|loader| -> Program<Raw, u64> { loader.insns("bench", insns.clone()).expect("a program") });
    let (none, never) = (RunLimits::new(), RunLimits::new().yield_every(u64::MAX >> 1));
    let often = RunLimits::new().yield_every(SLICE);
    let ways = [
        ("loaded without yields", &plain, &none),
        ("loaded with a budget", &limited, &none),
        ("loaded to yield, run without", &yielding, &none),
        ("yields after more rounds than it has", &yielding, &never),
        ("yields every 1000 rounds", &yielding, &often),
    ];
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for (_, program, limits) in &ways {
        let mut host = 1;
        contenders.push(each(move || {
            black_box(drive(program.run_async_with(&mut host, &mut [], limits)).expect("a result"));
        }));
    }
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["ns a round", ""]);
    for ((name, ..), ns) in ways.iter().zip(&times) {
        table.row([(*name).to_owned(), figure(ns / ROUNDS)]);
    }
    table.row(["a yield, in ns".to_owned(), figure((times[4] - times[3]) / (ROUNDS / SLICE as f64))]);
    println!("{table}");
}

/// Resident anonymous memory of the process, in bytes; 0 where the system does not say.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or_default() * 1024.0
}

fn parked(engine: &Engine) {
    let linker = linker(engine, "waits");
    let program = load(&linker, "r1 = 1\ncall 1001\nr0 = 7\nexit", true, false);
    let mut hosts = vec![0; PARKED];
    let mut runs: Vec<Pin<Box<_>>> = hosts.iter_mut().map(|host| Box::pin(program.run_async(host, &mut []))).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let (before, start) = (resident(), Instant::now());
    let waiting = runs.iter_mut().map(|run| run.as_mut().poll(&mut cx)).filter(Poll::is_pending).count();
    let (begun, most) = (start.elapsed(), resident());
    let start = Instant::now();
    let polled = runs.iter_mut().map(|run| run.as_mut().poll(&mut cx));
    let ended = polled.filter(|polled| matches!(polled, Poll::Ready(Ok(7)))).count();
    let resumed = start.elapsed();
    drop(runs);
    let mut table = Table::new(["runs that wait at once", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("that wait", waiting.to_string());
    row("that went on", ended.to_string());
    row("KiB resident each", figure((most - before) / PARKED as f64 / 1024.0));
    row("ns to begin each", figure(begun.as_nanos() as f64 / PARKED as f64));
    row("ns to resume and end each", figure(resumed.as_nanos() as f64 / PARKED as f64));
    row("KiB resident each after the end", figure((resident() - before) / PARKED as f64 / 1024.0));
    println!("{table}");
}

fn main() {
    let engine = Engine::new(Config::new()).expect("a supported host");
    calls(&engine);
    runs(&engine);
    yields(&engine);
    parked(&engine);
}
