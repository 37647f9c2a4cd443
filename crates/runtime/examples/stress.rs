//! Uses everything that threads share at once, for the sanitizers of `cargo xtask sanitize`.
//!
//! Threads run a hook, a dispatcher, tail calls and programs on maps, some of which fail or panic in host functions;
//! others meanwhile change all of these, load and drop programs, read and write the maps, freeze and iterate,
//! interrupt, and reclaim. Rounds begin with a new engine and end with its drop. Results are checked as far as they do
//! not depend on the order.
//!
//! `cargo run -p bpf-runtime --example stress -- [seconds]`

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, Mode, ProgArray, Program, Raw,
    code::Arch,
    isa::assemble,
    maps::{Map, MapDef, MapType, RingBuf},
};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Prog = Program<Raw, u64>;

/// The objects that the threads of a round share.
struct Shared {
    engine: Engine,
    linker: Linker<u64>,
    hook: Hook<Raw, u64>,
    dispatcher: Dispatcher<Raw, u64>,
    array: ProgArray<Raw, u64>,
    maps: Vec<Map>,
    programs: Vec<Prog>,
    stop: AtomicBool,
    runs: AtomicU64,
    changes: AtomicU64,
}

/// Adds one to an array's counter and to a hash's element, which it creates and sometimes deletes.
const COUNT: &str = "r6 = r1\nr7 = r2\n*(u32 *)(r10 - 4) = 0\n*(u64 *)(r10 - 16) = r7\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\n\
    call 1\nif r0 == 0 goto hash\nr1 = 1\nlock *(u64 *)(r0 + 0) += r1\n\
    hash:\nr1 = map[fd:1]\nr2 = r10\nr2 += -16\ncall 1\nif r0 == 0 goto absent\n\
    r1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\ngoto taken\n\
    absent:\nr1 = map[fd:1]\nr2 = r10\nr2 += -16\nr3 = r10\nr3 += -16\nr4 = 0\ncall 2\n\
    taken:\nif r7 s< 5 goto out\nr1 = map[fd:1]\nr2 = r10\nr2 += -16\ncall 3\nout:\nr0 = 0\nexit";

/// Puts a record into the ring buffer.
const RECORD: &str = "r1 = map[fd:2]\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto +6\n*(u64 *)(r0 + 0) = 7\n*(u64 *)(r0 + 8) = 8\n\
    r1 = r0\nr2 = 0\ncall 132\ngoto +0\nr0 = 0\nexit";

fn round(mode: Mode, deadline: Instant) -> Result<(u64, u64), Box<dyn Error>> {
    let config = Config::new().mode(mode).interruptible(true).budget(100_000);
    let engine = Engine::new(config)?;
    let mut linker = Linker::new(&engine);
    linker.func(1001, "work", |c: &mut Caller<'_, u64>, what: u64| -> Result<u64, HelperError> {
        *c.host() += 1;
        match what % 64 {
            62 => Err(HelperError::new("refused")),
            63 => std::panic::resume_unwind(Box::new("a panic of the host")),
            n => Ok(n),
        }
    })?;
    let map = |def| Map::create(def, engine.domain());
    let maps = vec![
        map(MapDef::new("array", MapType::Array, 4, 8, 1))?,
        map(MapDef::new("hash", MapType::Hash, 8, 8, 64))?,
        map(MapDef::new("ring", MapType::RingBuf, 0, 0, 4096))?,
        map(MapDef::new("lru", MapType::LruHash, 8, 8, 64))?,
        map(MapDef::new("percpu", MapType::PerCpuArray, 4, 8, 1))?,
    ];
    let array = ProgArray::create(&engine, "programs", 8)?;
    let mut programs = Vec::new();
    for i in 0..6 {
        let text = format!("r6 = r2\nr1 = r2\ncall 1001\nr0 = {i}\nexit");
        programs.push(linker.loader::<Raw>().insns("calls_out", assemble(&text)?)?);
    }
    for text in [COUNT, RECORD] {
        let refs: Vec<&Map> = maps.iter().collect();
        programs.push(linker.loader::<Raw>().maps(&refs).insns("uses_maps", assemble(text)?)?);
    }
    for i in 0..4 {
        let text = format!("r2 = map[fd:0]\nr3 = {i}\ncall 12\nr0 = 100\nexit");
        programs.push(linker.loader::<Raw>().prog_arrays(&[&array]).insns("tail_calls", assemble(&text)?)?);
    }
    let (hook, dispatcher) = (Hook::new(&engine, HookPolicy::RunAll { result: 0 })?, Dispatcher::new(&engine)?);
    let shared = Shared {
        engine,
        linker,
        hook,
        dispatcher,
        array,
        maps,
        programs,
        stop: AtomicBool::new(false),
        runs: AtomicU64::new(0),
        changes: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let shared = &shared;
            scope.spawn(move || runs(shared, seed));
        }
        for seed in 10..12 {
            let shared = &shared;
            scope.spawn(move || changes(shared, seed));
        }
        let shared = &shared;
        scope.spawn(move || host_side(shared));
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            shared.engine.interrupt();
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    Ok((shared.runs.into_inner(), shared.changes.into_inner()))
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

/// Runs programs in all ways. Errors come from the programs and the interruptions; panics of host functions are resumed
/// here.
fn runs(shared: &Shared, mut seed: u64) {
    while !shared.stop.load(Ordering::Relaxed) {
        let program = &shared.programs[random(&mut seed) % shared.programs.len()];
        let mut packet = vec![0; random(&mut seed) % 80];
        let how = random(&mut seed) % 4;
        let mut host = 0u64;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match how {
            0 => shared.hook.run(&mut host, &mut packet),
            1 => shared.dispatcher.call(program, &mut host, &mut packet),
            2 => program.run(&mut host, &mut packet),
            _ => program.runner(&mut host).and_then(|mut runner| {
                runner.run(&mut packet)?;
                runner.run(&mut packet)
            }),
        }));
        if let Ok(Ok(r0)) = result {
            assert!(r0 <= 100, "{r0}");
        }
        shared.runs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes hook, dispatcher and array; loads and drops programs. Refusals (attached already, not attached) are
/// expected.
fn changes(shared: &Shared, mut seed: u64) {
    while !shared.stop.load(Ordering::Relaxed) {
        let program = &shared.programs[random(&mut seed) % shared.programs.len()];
        let index = (random(&mut seed) % 8) as u32;
        match random(&mut seed) % 10 {
            0 => drop(shared.hook.attach(program)),
            1 => drop(shared.hook.detach(program)),
            2 => drop(shared.dispatcher.attach(program)),
            3 => drop(shared.dispatcher.detach(program)),
            4 => drop(shared.array.set(index, program)),
            5 => drop(shared.array.clear(index)),
            6 => drop(shared.dispatcher.optimize()),
            7 => drop(shared.hook.set_statistics(index < 4)),
            8 => shared.engine.reclaim(),
            _ => {
                // A program that is loaded, put into the array and the hook, and dropped at once.
                let text = format!("r0 = {}\nexit", index + 1);
                let insns = assemble(&text).expect("it assembles");
                if let Ok(one) = shared.linker.loader::<Raw>().insns("moment", insns) {
                    drop(shared.array.set(index, &one));
                    drop(shared.hook.attach(&one));
                    drop(one.run(&mut 0, &mut []));
                    drop(shared.hook.detach(&one));
                }
            }
        }
        shared.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads and writes the maps from the host's side.
fn host_side(shared: &Shared) {
    let [array, hash, ring, lru, percpu] = shared.maps.as_slice() else { return };
    let mut ring = RingBuf::new(ring).expect("a consumer");
    let mut n = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        n += 1;
        let key = (n % 100).to_ne_bytes();
        drop(array.get(&[0; 4]));
        drop(array.update(&[0; 4], &key, 0));
        drop(hash.update(&key, &key, 0));
        drop(hash.get(&key));
        if n.is_multiple_of(3) {
            drop(hash.delete(&key));
        }
        drop(lru.update(&key, &key, 0));
        drop(lru.get(&key));
        drop(percpu.get(&[0; 4]));
        while let Some(record) = ring.next_record() {
            assert_eq!(record.len(), 16);
        }
        if n.is_multiple_of(64) {
            assert!(hash.iter().count() <= 64);
            shared.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |a| a.parse())?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let modes: &[Mode] = if Arch::HOST.is_some() { &[Mode::Jit, Mode::Interpreter] } else { &[Mode::Interpreter] };
    let (mut rounds, mut runs, mut changes) = (0, 0, 0);
    while rounds < modes.len() || Instant::now() < end {
        let until = Instant::now() + Duration::from_millis(500);
        let (r, c) = round(modes[rounds % modes.len()], until)?;
        (rounds, runs, changes) = (rounds + 1, runs + r, changes + c);
    }
    println!("{rounds} rounds: {runs} runs, {changes} changes");
    Ok(())
}
