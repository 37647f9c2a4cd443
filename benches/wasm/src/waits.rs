//! Runs that wait for the host, here and in wasmtime: a host function that is a future, one run at a time and ten
//! thousand at once.
//!
//! Both programs call the host once and return its answer. Each future is ready when it is polled for the first time
//! or for the second. wasmtime runs on stacks of the pooling allocator, with epochs; runs here can be ended. A store
//! of wasmtime has one run at a time, so its runs that wait at once need an instance each, which is measured apart.

use crate::{Contender, memory, time};
use bpf_runtime::{AsyncCaller, Config, Engine, Linker, Program, Raw, isa::assemble};
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use wasmtime::{InstanceAllocationStrategy, InstancePre, PoolingAllocationConfig, Result, Store, TypedFunc, ensure};

/// Runs that wait at once.
pub(crate) const PARKED: usize = 10_000;
/// Runs that are timed together.
const RUNS: usize = 1000;
const WASM: &str = r#"(module
  (import "host" "fetch" (func $fetch (param i64) (result i64)))
  (func (export "ask") (param i64) (result i64) (call $fetch (local.get 0))))"#;
const BPF: &str = "r1 = 1\ncall 1001\nexit";
/// Result of every run.
const ANSWER: u64 = 2;

/// Ready when it is polled for the second time, or at once.
async fn wait(waits: bool) {
    let mut asked = !waits;
    poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls until the result is there.
fn drive<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
    }
}

/// A program here, whose host is the number that is added to its argument.
fn ours(waits: bool) -> Result<Program<Raw, u64>> {
    let config = Config::new().interruptible(true);
    let engine = Engine::new(config)?;
    let mut linker = Linker::<u64>::new(&engine);
    match waits {
        true => linker.func_async(1001, "fetch", async |mut c: AsyncCaller<'_, u64>, key: u64| -> u64 {
            wait(true).await;
            *c.host() + key
        })?,
        false => linker.func_async(1001, "fetch", async |mut c: AsyncCaller<'_, u64>, key: u64| -> u64 {
            wait(false).await;
            *c.host() + key
        })?,
    };
    Ok(linker.loader::<Raw>().sleepable(true).insns("ask", assemble(BPF)?)?)
}

/// A module in wasmtime, of which so many instances may be there at a time.
fn in_wasm(waits: bool, instances: usize) -> Result<InstancePre<u64>> {
    let mut pool = PoolingAllocationConfig::default();
    let places = u32::try_from(instances)? + 100;
    pool.total_core_instances(places).total_stacks(places);
    let mut config = wasmtime::Config::new();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool)).epoch_interruption(true);
    let engine = wasmtime::Engine::new(&config)?;
    let mut linker = wasmtime::Linker::<u64>::new(&engine);
    linker.func_wrap_async("host", "fetch", move |c: wasmtime::Caller<'_, u64>, (key,): (i64,)| {
        Box::new(async move {
            wait(waits).await;
            c.data().cast_signed() + key
        })
    })?;
    linker.instantiate_pre(&wasmtime::Module::new(&engine, wat::parse_str(WASM)?)?)
}

type WasmRun = (Store<u64>, TypedFunc<i64, i64>);

fn instantiate(module: &InstancePre<u64>) -> Result<WasmRun> {
    let mut store = Store::new(module.module().engine(), 1);
    store.set_epoch_deadline(1);
    let instance = drive(module.instantiate_async(&mut store))?;
    let ask = instance.get_typed_func(&mut store, "ask")?;
    Ok((store, ask))
}

fn contenders(waits: bool) -> Result<Vec<Contender<'static>>> {
    let (our, mut host) = (ours(waits)?, 1);
    let (mut store, ask) = instantiate(&in_wasm(waits, 1)?)?;
    Ok(vec![
        (
            "ours",
            Box::new(move || {
                for _ in 0..RUNS {
                    ensure!(black_box(drive(our.run_async(&mut host, &mut []))?) == ANSWER, "ours differs");
                }
                Ok(())
            }),
        ),
        (
            "wasmtime, in an instance that is there",
            Box::new(move || {
                for _ in 0..RUNS {
                    store.set_epoch_deadline(1);
                    let answer = drive(ask.call_async(&mut store, 1))?;
                    ensure!(black_box(answer.cast_unsigned()) == ANSWER, "wasmtime differs");
                }
                Ok(())
            }),
        ),
    ])
}

/// Times runs that wait, and runs that could.
pub(crate) fn run() -> Result<()> {
    let titles = [("a run whose host function is a future that is ready", false), ("a run that waits once", true)];
    for (title, waits) in titles {
        time(title, 101, RUNS as f64, &mut contenders(waits)?)?;
    }
    Ok(())
}

/// Measures, in a process of its own, runs that wait at once.
pub(crate) fn parked(of: &str) -> Result<()> {
    match of {
        "ours waiting" => {
            let program = ours(true)?;
            ensure!(drive(program.run_async(&mut 1, &mut []))? == ANSWER, "ours differs");
            let before = memory()?;
            let mut hosts = vec![1; PARKED];
            let mut runs: Vec<_> = hosts.iter_mut().map(|host| Box::pin(program.run_async(host, &mut []))).collect();
            park(of, before, &mut runs, |answer| answer.is_ok_and(|answer| answer == ANSWER))
        }
        _ => {
            let module = in_wasm(true, PARKED)?;
            let (mut store, ask) = instantiate(&module)?;
            ensure!(drive(ask.call_async(&mut store, 1))?.cast_unsigned() == ANSWER, "wasmtime differs");
            let before = memory()?;
            let mut instances = (0..PARKED).map(|_| instantiate(&module)).collect::<Result<Vec<_>>>()?;
            let mut runs: Vec<_> =
                instances.iter_mut().map(|(store, ask)| Box::pin(ask.call_async(store, 1))).collect();
            park(of, before, &mut runs, |answer| answer.is_ok_and(|answer| answer.cast_unsigned() == ANSWER))
        }
    }
}

/// Begins all runs, which wait, and then ends them all.
fn park<F: Future>(
    of: &str,
    before: (u64, u64),
    runs: &mut [Pin<Box<F>>],
    right: impl Fn(F::Output) -> bool,
) -> Result<()> {
    let made = memory()?;
    let begin = Instant::now();
    let waiting = runs.iter_mut().filter_map(|run| poll(run.as_mut()).is_pending().then_some(())).count();
    let (begun, waits) = (begin.elapsed(), memory()?);
    let begin = Instant::now();
    let ended = runs
        .iter_mut()
        .map(|run| match poll(run.as_mut()) {
            Poll::Ready(answer) => right(answer),
            Poll::Pending => false,
        })
        .filter(|right| *right)
        .count();
    let resumed = begin.elapsed();
    ensure!(waiting == PARKED && ended == PARKED, "{waiting} runs of {of} waited, {ended} went on");
    let kib = |before: (u64, u64), after: (u64, u64)| after.0.saturating_sub(before.0) as f64 / 1024.0 / PARKED as f64;
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / PARKED as f64;
    println!(
        "  {of:<17} {:>6.1} KiB each, and {:>5.1} KiB before it began  {:>6.2} µs to begin and park  {:>6.2} µs to resume and end",
        kib(made, waits),
        kib(before, made),
        micros(begun),
        micros(resumed)
    );
    Ok(())
}
