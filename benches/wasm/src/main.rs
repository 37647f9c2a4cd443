//! `cargo xtask bench-wasm`: one plug-in's job here, in wasmtime, and in Rust by a trait object.
//!
//! The job is what plug-ins do: look at a record, ask the host, count in a map, tell the host. Each contender does it
//! with the same host functions, and must answer as the others do before anything is timed. `job.c` and `job.wat` are
//! the programs; docs/book/explanation/comparison.md has what came of it, and what it does not show.
//!
//! wasmtime is set up as its documentation advises for many short runs of strangers' code: Cranelift, the pooling
//! allocator, epochs. Times are by the wall clock (wasmtime compiles on several threads), medians of rounds in which
//! the contenders take turns. Memory is what a process of its own has more of after it has loaded a thousand plug-ins
//! (or ten thousand) and run each once.

mod waits;

use bpf_runtime::maps::typed::TypedArray;
use bpf_runtime::{
    BpfContext, Config, Engine, HelperError, Instance, Linker, MapSet, Module as OurModule, Object, OptLevel, Program,
    RunLimits,
};
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};
use wasmtime::error::Context as _;
use wasmtime::{InstanceAllocationStrategy, InstancePre, Module, PoolingAllocationConfig, Store, TypedFunc};
use wasmtime::{Result, bail, ensure};

/// Input of all contenders: `struct record` of job.h.
#[derive(BpfContext, Clone, Copy)]
#[bpf(name = "record")]
#[repr(C)]
struct Record {
    kind: u32,
    length: u32,
    source: u32,
    port: u32,
}

impl Record {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (place, field) in bytes.chunks_exact_mut(4).zip([self.kind, self.length, self.source, self.port]) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// Plug-ins at once.
const MANY: [usize; 2] = [1000, 10_000];
/// Bytes of the state that each request finds fresh.
const STATES: [usize; 2] = [1 << 16, 1 << 20];
/// Bytes of a page of WebAssembly.
const PAGE: usize = 1 << 16;
/// Longer than any run takes.
const LONG: Duration = Duration::from_secs(1000);
const WASM: &str = include_str!("../job.wat");
const OBJECT: &[u8] = include_bytes!("../job.o");

/// State of the host, and its functions for plug-ins. They are not inlined: the plug-in in Rust would have none of a
/// call's cost.
#[derive(Default, PartialEq, Debug)]
struct Host {
    asked: u64,
    noted: u64,
}

impl Host {
    #[inline(never)]
    fn allowed(&mut self, source: u64) -> u64 {
        self.asked += 1;
        u64::from(source % 16 != 0)
    }

    #[inline(never)]
    fn note(&mut self, port: u64, length: u64) {
        self.noted = self.noted.wrapping_add(port ^ length);
    }
}

/// Three of four are of the kind that is not dropped at once.
fn records() -> Vec<Record> {
    let record = |i: u32| {
        let random = i.wrapping_mul(2_654_435_761);
        Record {
            kind: if i % 4 == 3 { 17 } else { 6 },
            length: 64 + random % 1400,
            source: random >> 8,
            port: random >> 16,
        }
    };
    (0..1024).map(record).collect()
}

/// In Rust, compiled with the host.
trait Plugin {
    fn filter(&mut self, host: &mut Host, record: &Record) -> bool;
}

struct InRust {
    counts: Box<[u64; 256]>,
}

impl InRust {
    fn load() -> Box<dyn Plugin> {
        black_box(Box::new(InRust { counts: Box::new([0; 256]) }))
    }
}

impl Plugin for InRust {
    fn filter(&mut self, host: &mut Host, record: &Record) -> bool {
        if record.kind != 6 || host.allowed(u64::from(record.source)) == 0 {
            return false;
        }
        self.counts[record.source as usize & 255] += 1;
        host.note(u64::from(record.port), u64::from(record.length));
        true
    }
}

/// Shared state of all plug-ins here.
struct Ours {
    engine: Engine,
    linker: Linker<Host>,
}

/// A plug-in of this project.
struct OurPlugin {
    engine: Engine,
    program: Program<Record, Host>,
    counts: TypedArray<u64>,
}

impl Ours {
    fn new() -> Result<Ours> {
        // Runs can be ended, as by epochs.
        let config = Config::new().interruptible(true);
        let engine = Engine::new(config)?;
        let mut linker = Linker::new(&engine);
        linker.func(
            1001,
            "allowed",
            |c: &mut bpf_runtime::Caller<'_, Host>, source: u64| -> Result<u64, HelperError> {
                Ok(c.host().allowed(source))
            },
        )?;
        linker.func(
            1002,
            "note",
            |c: &mut bpf_runtime::Caller<'_, Host>, port: u64, length: u64| -> Result<(), HelperError> {
                c.host().note(port, length);
                Ok(())
            },
        )?;
        Ok(Ours { engine, linker })
    }

    /// From the object's bytes: read, linked, verified, compiled, with a map of its own.
    fn load(&self, level: OptLevel) -> Result<OurPlugin> {
        let object = Object::parse(OBJECT)?;
        let maps = MapSet::for_object(&self.engine, &object)?;
        self.plugin(&self.linker.loader::<Record>().opt_level(level).object(&object, maps)?)
    }

    fn plugin(&self, instance: &Instance<Host>) -> Result<OurPlugin> {
        let (program, counts) = (instance.program("filter")?, instance.map("counts")?.typed()?);
        Ok(OurPlugin { engine: self.engine.clone(), program, counts })
    }

    /// Compiles a module from the object's bytes, which are read, linked and verified, for any number of instances.
    fn compile(&self) -> Result<OurModule<Record, Host>> {
        Ok(self.linker.compile(&Object::parse(OBJECT)?)?)
    }

    /// Compiles a module with a map of so many bytes.
    fn compile_with(&self, state: usize) -> Result<OurModule<Record, Host>> {
        let mut object = Object::parse(OBJECT)?;
        object.set_max_entries("counts", u32::try_from(state / size_of::<u64>())?)?;
        Ok(self.linker.compile(&object)?)
    }

    fn instantiate(&self, module: &OurModule<Record, Host>) -> Result<OurPlugin> {
        self.plugin(&module.instance().make()?)
    }

    /// Reads a module that was compiled before.
    fn deserialize(&self, artefact: &[u8]) -> Result<OurModule<Record, Host>> {
        // SAFETY: made by `Module::serialize` in this process (`main`).
        Ok(unsafe { OurModule::deserialize(&self.linker, artefact) }?)
    }
}

impl OurPlugin {
    fn filter(&self, host: &mut Host, record: &mut Record) -> Result<bool> {
        Ok(self.program.run(host, record)? == 1)
    }

    /// A run that would be ended when the time of these limits is over.
    fn filter_in_time(&self, host: &mut Host, record: &mut Record, limits: &RunLimits) -> Result<bool> {
        Ok(self.program.run_with(host, record, limits)? == 1)
    }

    /// A time that begins now: the clock is read.
    fn limits(&self) -> Result<RunLimits> {
        Ok(RunLimits::new().deadline(self.engine.deadline_in(LONG)?))
    }
}

/// Shared state of all plug-ins in wasmtime.
struct Wasm {
    engine: wasmtime::Engine,
    linker: wasmtime::Linker<Host>,
    binary: Vec<u8>,
}

/// A plug-in in wasmtime: a store, an instance, its memory.
struct WasmPlugin {
    store: Store<Host>,
    memory: wasmtime::Memory,
    filter: TypedFunc<i32, i32>,
}

impl Wasm {
    fn new(instances: usize) -> Result<Wasm> {
        Wasm::with(instances, PAGE)
    }

    /// For instances with so many bytes of memory.
    fn with(instances: usize, memory: usize) -> Result<Wasm> {
        // The binary is what is shipped: making it is nobody's load.
        let pages = memory / PAGE;
        let binary = wat::parse_str(WASM.replace("\"memory\") 1 1)", &format!("\"memory\") {pages} {pages})")))?;
        let mut pool = PoolingAllocationConfig::default();
        // 4 GiB of addresses for each, so that no access needs a check; so many of them may ever be used.
        let places = u32::try_from(instances)? + 100;
        pool.total_core_instances(places).total_memories(places).total_tables(places).max_memory_size(memory);
        let mut config = wasmtime::Config::new();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool)).epoch_interruption(true);
        let engine = wasmtime::Engine::new(&config)?;
        let mut linker = wasmtime::Linker::new(&engine);
        linker.func_wrap("host", "allowed", |mut c: wasmtime::Caller<'_, Host>, source: i64| {
            c.data_mut().allowed(source.cast_unsigned()).cast_signed()
        })?;
        linker.func_wrap("host", "note", |mut c: wasmtime::Caller<'_, Host>, port: i64, length: i64| {
            c.data_mut().note(port.cast_unsigned(), length.cast_unsigned());
        })?;
        Ok(Wasm { engine, linker, binary })
    }

    /// From the module's bytes: validated and compiled.
    fn compile(&self) -> Result<InstancePre<Host>> {
        Ok(self.linker.instantiate_pre(&Module::new(&self.engine, &self.binary)?)?)
    }

    /// Reads a module that was compiled before.
    fn deserialize(&self, artefact: &[u8]) -> Result<InstancePre<Host>> {
        // SAFETY: made by `Module::serialize` of an engine with the same configuration, in this process (`main`).
        let module = unsafe { Module::deserialize(&self.engine, artefact) }?;
        Ok(self.linker.instantiate_pre(&module)?)
    }

    fn instantiate(&self, module: &InstancePre<Host>) -> Result<WasmPlugin> {
        let mut store = Store::new(&self.engine, Host::default());
        store.set_epoch_deadline(1);
        let instance = module.instantiate(&mut store)?;
        let memory = instance.get_memory(&mut store, "memory").context("the module exports its memory")?;
        let filter = instance.get_typed_func(&mut store, "filter")?;
        Ok(WasmPlugin { store, memory, filter })
    }

    fn load(&self) -> Result<WasmPlugin> {
        self.instantiate(&self.compile()?)
    }
}

impl WasmPlugin {
    /// A run that would be ended at the next epoch, for a record that is not in the instance's memory yet.
    fn filter(&mut self, record: &Record) -> Result<bool> {
        self.store.set_epoch_deadline(1);
        self.memory.write(&mut self.store, 0, &record.to_bytes())?;
        Ok(self.filter.call(&mut self.store, 0)? == 1)
    }

    fn count(&self, slot: usize) -> Result<u64> {
        let mut count = [0; 8];
        self.memory.read(&self.store, 1024 + 8 * slot, &mut count)?;
        Ok(u64::from_le_bytes(count))
    }
}

/// Checks that all contenders compute the same.
fn check(ours: &Ours, wasm: &Wasm) -> Result<()> {
    ensure!(Record::c_struct() == include_str!("../job.h"), "job.h is not what the host has");
    let (mut rust, mut host_of_rust) = (InRust { counts: Box::new([0; 256]) }, Host::default());
    let (our, mut host_of_ours) = (ours.load(OptLevel::Speed)?, Host::default());
    let mut in_wasm = wasm.load()?;
    for mut record in records() {
        let expected = rust.filter(&mut host_of_rust, &record);
        ensure!(our.filter(&mut host_of_ours, &mut record)? == expected, "ours differs");
        ensure!(in_wasm.filter(&record)? == expected, "wasmtime differs");
    }
    ensure!(host_of_ours == host_of_rust && *in_wasm.store.data() == host_of_rust, "the hosts were told differently");
    for slot in 0..256 {
        let expected = rust.counts[slot];
        ensure!(our.counts.get(u32::try_from(slot)?)? == Some(expected), "ours has other counts");
        ensure!(in_wasm.count(slot)? == expected, "wasmtime has other counts");
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A name, and what it takes time for.
type Contender<'a> = (&'a str, Box<dyn FnMut() -> Result<()> + 'a>);

/// Median nanoseconds of each, which does `each` things at a time, in rounds in which they take turns.
fn time(title: &str, rounds: usize, each: f64, contenders: &mut [Contender<'_>]) -> Result<()> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..rounds + 3 {
        for ((_, work), times) in contenders.iter_mut().zip(&mut times) {
            let begin = Instant::now();
            work()?;
            // The first rounds warm up.
            if round >= 3 {
                times.push(begin.elapsed().as_secs_f64() * 1e9 / each);
            }
        }
    }
    println!("\n{title}");
    for ((name, _), times) in contenders.iter().zip(times) {
        let (time, unit) = match median(times) {
            time if time >= 10_000.0 => (time / 1000.0, "µs"),
            time => (time, "ns"),
        };
        println!("  {name:<44} {time:>9.1} {unit}");
    }
    Ok(())
}

/// Bytes of this process that are in memory, and those of its addresses that are taken.
fn memory() -> Result<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a field of /proc/self/status")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    };
    Ok((field("VmRSS:")?, field("VmSize:")?))
}

/// Measures, in a process of its own, the memory that so many plug-ins take, each loaded by itself and run once, and a
/// run of each in turn.
fn many(of: &str, count: usize) -> Result<()> {
    let (records, mut host) = (records(), Host::default());
    let ours = Ours::new()?;
    let wasm = Wasm::new(count)?;
    // Pages that the first plug-in brings into memory belong to no plug-in.
    check(&ours, &wasm)?;
    let mut round: Box<dyn FnMut() -> Result<()>>;
    let (before, begin) = (memory()?, Instant::now());
    match of {
        "ours" => {
            let plugins = (0..count).map(|_| ours.load(OptLevel::Speed)).collect::<Result<Vec<_>>>()?;
            round = Box::new(move || {
                for (plugin, record) in plugins.iter().zip(records.iter().cycle()) {
                    black_box(plugin.filter(&mut host, &mut { *record })?);
                }
                Ok(())
            });
        }
        "our instances" => {
            let module = ours.compile()?;
            let plugins = (0..count).map(|_| ours.instantiate(&module)).collect::<Result<Vec<_>>>()?;
            round = Box::new(move || {
                for (plugin, record) in plugins.iter().zip(records.iter().cycle()) {
                    black_box(plugin.filter(&mut host, &mut { *record })?);
                }
                Ok(())
            });
        }
        "modules" | "instances" => {
            let shared = wasm.compile()?;
            let load = |_| if of == "modules" { wasm.load() } else { wasm.instantiate(&shared) };
            let mut plugins = (0..count).map(load).collect::<Result<Vec<_>>>()?;
            round = Box::new(move || {
                for (plugin, record) in plugins.iter_mut().zip(records.iter().cycle()) {
                    black_box(plugin.filter(record)?);
                }
                Ok(())
            });
        }
        "rust" => {
            let mut plugins: Vec<Box<dyn Plugin>> = (0..count).map(|_| InRust::load()).collect();
            round = Box::new(move || {
                for (plugin, record) in plugins.iter_mut().zip(records.iter().cycle()) {
                    black_box(plugin.filter(&mut host, record));
                }
                Ok(())
            });
        }
        _ => bail!("there is no `{of}`"),
    }
    let loaded = begin.elapsed();
    round()?;
    let after = memory()?;
    let mut times = Vec::new();
    for _ in 0..51 {
        let begin = Instant::now();
        round()?;
        times.push(begin.elapsed().as_secs_f64() * 1e9 / count as f64);
    }
    let kib = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1024.0 / count as f64;
    println!(
        "  {of:<14} {:>8.1} KiB each  {:>10.1} KiB of addresses  {:>8.1} ms to load all  {:>6.1} ns a run in turn",
        kib(before.0, after.0),
        kib(before.1, after.1),
        loaded.as_secs_f64() * 1e3,
        median(times)
    );
    Ok(())
}

fn main() -> Result<()> {
    let arguments = std::env::args().collect::<Vec<_>>();
    if let [_, command, of] = &arguments[..] {
        ensure!(command == "parked", "there is no command `{command}`");
        return waits::parked(of);
    }
    if let [_, command, of, count] = &arguments[..] {
        ensure!(command == "many", "there is no command `{command}`");
        return many(of, count.parse()?);
    }
    let (ours, wasm) = (Ours::new()?, Wasm::new(MANY[0])?);
    check(&ours, &wasm)?;
    let artefact = Module::new(&wasm.engine, &wasm.binary)?.serialize()?;
    let shared = wasm.compile()?;
    let our_module = ours.compile()?;
    let our_artefact = our_module.serialize()?;
    let records = records();
    let sizes = (OBJECT.len(), wasm.binary.len(), artefact.len());
    println!("bytes: object {}, module {}, compiled module {}", sizes.0, sizes.1, sizes.2);
    println!("bytes of our compiled module: {}", our_artefact.len());

    time(
        "load: from bytes to a plug-in that can be called",
        101,
        1.0,
        &mut [
            ("ours", Box::new(|| ours.load(OptLevel::Speed).map(|plugin| drop(black_box(plugin))))),
            ("ours, OptLevel::None", Box::new(|| ours.load(OptLevel::None).map(|plugin| drop(black_box(plugin))))),
            ("wasmtime", Box::new(|| wasm.load().map(|plugin| drop(black_box(plugin))))),
            (
                "ours, compiled before",
                Box::new(|| ours.instantiate(&ours.deserialize(&our_artefact)?).map(|plugin| drop(black_box(plugin)))),
            ),
            (
                "ours, one more instance of a module",
                Box::new(|| ours.instantiate(&our_module).map(|plugin| drop(black_box(plugin)))),
            ),
            (
                "wasmtime, compiled before",
                Box::new(|| wasm.instantiate(&wasm.deserialize(&artefact)?).map(|plugin| drop(black_box(plugin)))),
            ),
            (
                "wasmtime, one more instance of a module",
                Box::new(|| wasm.instantiate(&shared).map(|plugin| drop(black_box(plugin)))),
            ),
            (
                "Rust (a box; its code is the host's)",
                Box::new(|| {
                    drop(InRust::load());
                    Ok(())
                }),
            ),
        ],
    )?;

    time(
        "a module, from bytes to one that instances can be made of",
        101,
        1.0,
        &mut [
            ("ours", Box::new(|| ours.compile().map(|module| drop(black_box(module))))),
            ("wasmtime", Box::new(|| wasm.compile().map(|module| drop(black_box(module))))),
            (
                "ours, compiled before",
                Box::new(|| ours.deserialize(&our_artefact).map(|module| drop(black_box(module)))),
            ),
            (
                "wasmtime, compiled before",
                Box::new(|| wasm.deserialize(&artefact).map(|module| drop(black_box(module)))),
            ),
        ],
    )?;

    for state in STATES {
        let (our_pool, in_wasm) = (ours.compile_with(state)?.pool(1)?, Wasm::with(1, state)?);
        let shared = in_wasm.compile()?;
        let (mut host, record) = (Host::default(), records[1]);
        time(
            &format!("a run that finds {} KiB of state fresh, and they are made fresh for the next", state >> 10),
            1001,
            1.0,
            &mut [
                (
                    "ours: an instance of a pool",
                    Box::new(|| {
                        let instance = our_pool.take()?;
                        black_box(instance.program::<Record>("filter")?.run(&mut host, &mut { record })?);
                        Ok(())
                    }),
                ),
                (
                    "wasmtime: an instance of the pooling allocator",
                    Box::new(|| black_box(in_wasm.instantiate(&shared)?.filter(&record)).map(drop)),
                ),
            ],
        )?;
    }

    time(
        "first result: a new engine, a load, a run, and all of it dropped",
        31,
        1.0,
        &mut [
            (
                "ours",
                Box::new(|| {
                    black_box(Ours::new()?.load(OptLevel::Speed)?.filter(&mut Host::default(), &mut { records[0] })?);
                    Ok(())
                }),
            ),
            (
                "wasmtime",
                Box::new(|| {
                    black_box(Wasm::new(MANY[0])?.load()?.filter(&records[0])?);
                    Ok(())
                }),
            ),
        ],
    )?;

    let (our, mut in_wasm, mut in_rust) = (ours.load(OptLevel::Speed)?, wasm.load()?, InRust::load());
    let [mut first, mut second, mut third, mut fourth] = [const { Host { asked: 0, noted: 0 } }; 4];
    const TIMES: usize = 100;
    time(
        "a run",
        101,
        (TIMES * records.len()) as f64,
        &mut [
            (
                "ours",
                Box::new(|| {
                    for record in std::iter::repeat_n(&records, TIMES).flatten() {
                        black_box(our.filter(&mut first, &mut { *record })?);
                    }
                    Ok(())
                }),
            ),
            (
                "ours, with a deadline for a batch",
                Box::new(|| {
                    let limits = our.limits()?;
                    for record in std::iter::repeat_n(&records, TIMES).flatten() {
                        black_box(our.filter_in_time(&mut second, &mut { *record }, &limits)?);
                    }
                    Ok(())
                }),
            ),
            (
                "ours, with a deadline of its own",
                Box::new(|| {
                    for record in std::iter::repeat_n(&records, TIMES).flatten() {
                        black_box(our.filter_in_time(&mut third, &mut { *record }, &our.limits()?)?);
                    }
                    Ok(())
                }),
            ),
            (
                "wasmtime, with an epoch of its own",
                Box::new(|| {
                    for record in std::iter::repeat_n(&records, TIMES).flatten() {
                        black_box(in_wasm.filter(record)?);
                    }
                    Ok(())
                }),
            ),
            (
                "Rust",
                Box::new(|| {
                    for record in std::iter::repeat_n(&records, TIMES).flatten() {
                        black_box(in_rust.filter(&mut fourth, record));
                    }
                    Ok(())
                }),
            ),
        ],
    )?;

    waits::run()?;
    println!("\n{} runs that wait at once", waits::PARKED);
    for of in ["ours waiting", "wasmtime waiting"] {
        let status = Command::new(std::env::current_exe()?).args(["parked", of]).status()?;
        ensure!(status.success(), "`parked {of}` failed");
    }

    for count in MANY {
        println!("\n{count} plug-ins at once");
        for of in ["ours", "our instances", "modules", "instances", "rust"] {
            let mut process = Command::new(std::env::current_exe()?);
            let status = process.args(["many", of, &count.to_string()]).status()?;
            ensure!(status.success(), "`many {of} {count}` failed");
        }
    }
    Ok(())
}
