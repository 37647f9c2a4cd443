//! `cargo bench -p bpf-benches --bench tailcall`: the cost of a tail call, taken and not taken, and of patching one.
//!
//! 1. A chain of 32 hops, direct and indirect, from main programs and from subprograms; beside it bpf2bpf calls, a
//!    table of Rust functions, and the kernel. Figures are ns a hop: a run of the chain, less a run without hops,
//!    divided by 32. The last row is the cost of a subprogram that ends in a tail call instead of returning: 32 calls
//!    of it, less 32 calls of one that returns.
//! 2. A program that contains tail calls and takes none, beside the program without them.
//! 3. Updates of a slot with 1, 100 and 10,000 sites: alone, and beside a thread that runs programs all the time.
//! 4. The chain and a flow dissector, 10^6 runs each, with the tail calls in main programs and in subprograms; and
//!    the verified dissector of examples/flow_dissector.c on `__sk_buff`, beside the kernel running that object.

use bpf_benches::dissector;
use bpf_benches::measure::{Contender, interleaved, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_runtime::{
    Config, Engine, Linker, MapSet, Object, ProgArray, Program, Raw,
    isa::assemble,
    net::{SkBuff, Skb},
};
use bpf_testkit::kernel::{self, MapType, ProgramType};
use bpf_testkit::kernel_object::KernelObject;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOPS: u32 = 32;
const FLOW_DISSECTOR: &[u8] = include_bytes!("../examples/flow_dissector.o");

type Prog = Program<Raw, ()>;
type Array = ProgArray<Raw, ()>;

/// An engine with one way of making tail calls.
struct Ours {
    engine: Engine,
    linker: Linker<()>,
}

impl Ours {
    fn new(direct: bool, retpolines: bool) -> Ours {
        let config = Config::new().direct_tail_calls(direct).hardening(|hardening| hardening.retpolines(retpolines));
        let engine = Engine::new(config).expect("a supported host");
        let linker = Linker::new(&engine);
        Ours { engine, linker }
    }

    fn array(&self, entries: u32) -> Array {
        ProgArray::create(&self.engine, "array", entries).expect("memory")
    }

    fn load(&self, text: &str, array: &Array) -> Prog {
        let insns = assemble(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        // SAFETY: the programs here check what they read, and end.
        let loader = unsafe { self.linker.loader().unverified(true) };
        loader.prog_arrays(&[array]).insns("bench", insns).expect("a valid program")
    }

    /// Makes a chain of `HOPS` hops; returns its array and its first program.
    fn chain(&self, link: impl Fn(u32) -> String) -> (Array, Prog) {
        let array = self.array(HOPS + 1);
        for i in (1..HOPS).rev() {
            array.set(i, &self.load(&link(i), &array)).expect("a fitting program");
        }
        array.set(HOPS, &self.load("r0 = 7\nexit", &array)).expect("a fitting program");
        let first = self.load(&link(0), &array);
        assert_eq!(first.run(&mut (), &mut [0; 8]).expect("a run"), 7);
        (array, first)
    }
}

impl Ours {
    /// Makes a program that calls a subprogram `HOPS` times; the subprogram tail-calls a program that returns 7.
    fn leaving(&self) -> (Array, Prog) {
        let array = self.array(1);
        array.set(0, &self.load("r0 = 7\nexit", &array)).expect("a fitting program");
        let body = "r1 = r6\ncall sub\n".repeat(HOPS as usize);
        let site = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit";
        let program = self.load(&format!("r6 = r1\n{body}exit\nsub:\n{site}"), &array);
        assert_eq!(program.run(&mut (), &mut [0; 8]).expect("a run"), 7);
        (array, program)
    }
}

/// Returns link `i` of a chain, which calls the next by a constant key.
fn constant(i: u32) -> String {
    format!("r2 = map[fd:0]\nr3 = {}\ncall 12\nr0 = 1\nexit", i + 1)
}

/// Returns link `i` of a chain, whose key is known only when it runs.
fn dynamic(i: u32) -> String {
    format!("r3 = *(u64 *)(r1 + 0)\nr3 += {}\nr2 = map[fd:0]\ncall 12\nr0 = 1\nexit", i + 1)
}

/// Returns link `i` of a chain, which calls the next from a subprogram.
fn in_subprogram(i: u32) -> String {
    format!("call sub\nexit\nsub:\n{}", constant(i))
}

fn runs<'a>(program: &'a Prog) -> Contender<'a> {
    let mut buffer = [0u8; 8];
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                black_box(program.run(&mut (), black_box(&mut buffer)).expect("a run"));
            }
        })
    })
}

fn main() {
    println!("{}", hops());
    println!("{}", not_taken());
    println!("{}", updates());
    println!("{}", series());
}

fn hops() -> Table {
    let (direct, indirect, retpolines) = (Ours::new(true, false), Ours::new(false, false), Ours::new(false, true));
    let none = direct.array(1);
    let empty = direct.load("r0 = 7\nexit", &none);
    let chains = [
        ("direct, main", direct.chain(constant).1),
        ("direct, subprogram", direct.chain(in_subprogram).1),
        ("indirect, main", indirect.chain(constant).1),
        ("indirect, unknown key", direct.chain(dynamic).1),
        ("indirect, subprogram", indirect.chain(in_subprogram).1),
        ("retpoline, main", retpolines.chain(constant).1),
        ("retpoline, unknown key", retpolines.chain(dynamic).1),
    ];
    let calls = "r1 = r6\ncall sub\n".repeat(HOPS as usize);
    let calls = format!("r6 = r1\n{calls}exit\nsub:\nr0 = 7\nexit");
    let calls = direct.load(&calls, &none);
    let leaving = [("direct, for a return", direct.leaving()), ("indirect, for a return", indirect.leaving())];

    let mut contenders: Vec<Contender<'_>> = vec![runs(&empty), runs(&calls), functions()];
    contenders.extend(chains.iter().map(|(_, first)| runs(first)));
    contenders.extend(leaving.iter().map(|(_, (_, program))| runs(program)));
    let times = interleaved(&mut contenders);
    let per_hop = |time: f64| figure((time - times[0]) / f64::from(HOPS));
    let mut table = Table::new(["ns a hop", ""]);
    for ((name, _), time) in chains.iter().zip(&times[3..]) {
        table.row([*name, &per_hop(*time)]);
    }
    for ((name, _), time) in leaving.iter().zip(&times[3 + chains.len()..]) {
        table.row([*name, &figure((time - times[1]) / f64::from(HOPS))]);
    }
    table.row(["bpf2bpf call and return", &per_hop(times[1])]);
    table.row(["Rust: match, function pointer", &figure(times[2] / f64::from(HOPS))]);
    match in_the_kernel() {
        Ok(figures) => {
            for (name, time) in figures {
                table.row([name, &figure(time)]);
            }
        }
        Err(why) => println!("no figures of the kernel: {why}"),
    }
    table
}

/// Makes a contender of Rust functions: each looks the next up by a key in a table, and the loop calls it.
fn functions() -> Contender<'static> {
    type Stage = fn(&mut [u8; 8]) -> Option<usize>;
    fn stage(context: &mut [u8; 8]) -> Option<usize> {
        Some(usize::from(black_box(context)[0]))
    }
    let table: Vec<Option<Stage>> = vec![Some(stage); HOPS as usize];
    Box::new(move |repeat| {
        let mut context = [0u8; 8];
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                let mut key = Some(0);
                for _ in 0..HOPS {
                    key = match key.and_then(|key| black_box(&table).get(key).copied().flatten()) {
                        Some(stage) => stage(&mut context),
                        None => None,
                    };
                }
                black_box(key);
            }
        })
    })
}

/// Returns ns a hop of these chains in the kernel.
fn in_the_kernel() -> Result<Vec<(&'static str, f64)>, String> {
    kernel::available().map_err(|why| why.to_string())?;
    let load = |text: &str| {
        let bytes =
            bpf_isa::Program::new(assemble(text).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?.to_bytes();
        kernel::Program::load(ProgramType::Xdp, &bytes).map_err(|e| e.to_string())
    };
    let time = |program: &kernel::Program| {
        let run = program.test_run(&[0; 64], 0, 100_000).map_err(|e| e.to_string())?;
        Ok::<f64, String>(f64::from(run.nanoseconds))
    };
    let empty = load("r0 = 2\nexit")?;
    let mut figures = Vec::new();
    let key = |text: &str, i: u32, fd: i32| {
        text.replace("NEXT", &(i + 1).to_string()).replace("MAP", &format!("map[fd:{fd}]"))
    };
    let direct = "r2 = MAP\nr3 = NEXT\ncall 12\nr0 = 1\nexit";
    // The key is rx_queue_index, which is 0 in a test run and unknown to the verifier.
    let unknown = "r3 = *(u32 *)(r1 + 16)\nr3 += NEXT\nr2 = MAP\ncall 12\nr0 = 1\nexit";
    for (name, link) in [("kernel, direct, main", direct), ("kernel, unknown key", unknown)] {
        let map = kernel::Map::create(MapType::ProgArray, 4, 4, HOPS + 1).map_err(|e| e.to_string())?;
        let mut programs = vec![load("r0 = 2\nexit")?];
        map.update(&HOPS.to_ne_bytes(), &programs[0].fd().to_ne_bytes()).map_err(|e| e.to_string())?;
        for i in (0..HOPS).rev() {
            let program = load(&key(link, i, map.fd()))?;
            map.update(&i.to_ne_bytes(), &program.fd().to_ne_bytes()).map_err(|e| e.to_string())?;
            programs.push(program);
        }
        let first = programs.last().ok_or("no program")?;
        let mut differences = Vec::new();
        for _ in 0..9 {
            differences.push(time(first)? - time(&empty)?);
        }
        figures.push((name, bpf_benches::measure::median(differences) / f64::from(HOPS)));
    }
    Ok(figures)
}

/// Measures a small program that does some work, with and without tail calls into empty slots.
fn not_taken() -> Table {
    let (direct, indirect) = (Ours::new(true, false), Ours::new(false, false));
    let work = "r6 = r1\nr0 = *(u8 *)(r6 + 0)\nr0 *= 3\nr0 += 1\nexit";
    let site = "r2 = map[fd:0]\nr3 = 0\ncall 12\n";
    let with = work.replace("r0 = *", &format!("{site}r0 = *"));
    let arrays = [direct.array(1), direct.array(1), indirect.array(1)];
    let programs = [direct.load(work, &arrays[0]), direct.load(&with, &arrays[1]), indirect.load(&with, &arrays[2])];
    let mut contenders: Vec<_> = programs.iter().map(runs).collect();
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["a tail call that is not taken", "ns a run", "more"]);
    for (name, time) in ["none", "direct, slot empty", "indirect, slot empty"].iter().zip(&times) {
        table.row([(*name).to_owned(), figure(*time), format!("{:+.2}", time - times[0])]);
    }
    table
}

/// Returns the wall time of one update, in ns.
fn update_time(array: &Array, programs: &[Prog; 2], engine: &Engine) -> f64 {
    let (mut done, start) = (0u32, Instant::now());
    while start.elapsed() < Duration::from_millis(300) {
        for program in programs {
            array.set(0, program).expect("a fitting program");
        }
        engine.reclaim();
        done += 2;
    }
    start.elapsed().as_nanos() as f64 / f64::from(done)
}

fn updates() -> Table {
    let ours = Ours::new(true, false);
    let mut table =
        Table::new(["sites", "slots set a second", "ns a site", "beside a runner: set a second", "ns a site"]);
    for sites in [1u32, 100, 10_000] {
        let array = ours.array(1);
        // A program has at most 100 sites.
        let in_one = sites.min(100);
        let text =
            format!("r6 = r1\n{}r0 = 1\nexit", "r1 = r6\nr2 = map[fd:0]\nr3 = 0\ncall 12\n".repeat(in_one as usize));
        let callers: Vec<Prog> = (0..sites / in_one).map(|_| ours.load(&text, &array)).collect();
        assert_eq!(array.tracked_sites(0), sites as usize);
        let targets = [ours.load("r0 = 2\nexit", &array), ours.load("r0 = 3\nexit", &array)];
        let alone = update_time(&array, &targets, &ours.engine);
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(callers[0].run(&mut (), &mut [0; 8]).expect("a run"));
                }
            });
            let time = update_time(&array, &targets, &ours.engine);
            stop.store(true, Ordering::Relaxed);
            time
        });
        let per_site = |time: f64| figure(time / f64::from(sites));
        let rate = |time: f64| format!("{:.0}", 1e9 / time);
        table.row([sites.to_string(), rate(alone), per_site(alone), rate(beside), per_site(beside)]);
    }
    table
}

/// Measures the two long runs: 10^6 chains and 10^6 packets.
fn series() -> Table {
    const RUNS: u32 = 1_000_000;
    let mut table = Table::new(["ns a run, 10^6 runs", "direct", "indirect"]);
    let engines = [Ours::new(true, false), Ours::new(false, false)];
    let chain = |ours: &Ours, link: fn(u32) -> String| {
        let (_array, first) = ours.chain(link);
        figure(runs(&first)(RUNS))
    };
    for (name, link) in
        [("chain of 32, main", constant as fn(u32) -> String), ("chain of 32, subprograms", in_subprogram)]
    {
        table.row([name.to_owned(), chain(&engines[0], link), chain(&engines[1], link)]);
    }
    for (name, in_subprograms) in [("dissector, main", false), ("dissector, subprograms", true)] {
        let cells: Vec<String> = engines.iter().map(|ours| figure(dissect(ours, in_subprograms, RUNS))).collect();
        table.row([name.to_owned(), cells[0].clone(), cells[1].clone()]);
    }
    let cells: Vec<String> = engines.iter().map(|ours| figure(dissect_skb(&ours.engine, RUNS))).collect();
    table.row(["dissector, __sk_buff".to_owned(), cells[0].clone(), cells[1].clone()]);
    match dissect_in_the_kernel(RUNS / 10) {
        Ok(time) => table.row(["the same, kernel".to_owned(), figure(time), String::new()]),
        Err(why) => println!("no dissector of the kernel: {why}"),
    }
    table
}

/// Returns the Ethernet frames of the dissector's packets.
fn frames() -> Vec<Vec<u8>> {
    dissector::packets().into_iter().map(|(buffer, _)| buffer[dissector::START..].to_vec()).collect()
}

/// Returns ns a packet of the verified dissector.
fn dissect_skb(engine: &Engine, packets: u32) -> f64 {
    let object = Object::parse(FLOW_DISSECTOR).expect("a valid object");
    let linker = Linker::<()>::new(engine);
    let maps = MapSet::for_object(engine, &object).expect("memory");
    let instance = linker.load::<Skb>(&object, maps).expect("accepted");
    let program = instance.program::<Skb>("dissect").expect("in the object");
    let mut frames = frames();
    let mut inputs: Vec<_> = frames.iter_mut().map(|frame| SkBuff::new(frame)).collect();
    let fresh: Vec<_> = inputs.iter().map(|input| input.flow_keys).collect();
    nanoseconds(packets, |packets| {
        for i in 0..packets as usize {
            let at = i % fresh.len();
            inputs[at].flow_keys = fresh[at];
            assert_eq!(program.run(&mut (), &mut inputs[at]).expect("a run"), 0);
        }
    })
}

/// Returns ns a packet of the verified dissector in the kernel, by the kernel's clock.
fn dissect_in_the_kernel(repeat: u32) -> Result<f64, String> {
    kernel::available().map_err(|why| why.to_string())?;
    let object = KernelObject::load(FLOW_DISSECTOR, ProgramType::FlowDissector)?;
    let frames = frames();
    let mut sum = 0.0;
    for frame in &frames {
        let run = object.program("dissect")?.test_run(frame, 0, repeat).map_err(|e| e.to_string())?;
        if run.result != 0 {
            return Err(format!("a packet was not dissected: {}", run.result));
        }
        sum += f64::from(run.nanoseconds);
    }
    Ok(sum / frames.len() as f64)
}

/// Returns ns a packet of the unverified dissector.
fn dissect(ours: &Ours, in_subprograms: bool, packets: u32) -> f64 {
    let array = ours.array(dissector::SLOTS);
    let parsers: Vec<Prog> = dissector::parsers(in_subprograms).iter().map(|text| ours.load(text, &array)).collect();
    for (slot, parser) in (0..).zip(&parsers) {
        array.set(slot, parser).expect("a fitting program");
    }
    let mut inputs = dissector::packets();
    for (buffer, parsed) in &mut inputs {
        let start = *buffer.first().expect("a buffer is not empty");
        assert_eq!(parsers[0].run(&mut (), buffer).expect("a run"), *parsed);
        buffer[..4].copy_from_slice(&u32::from(start).to_le_bytes());
    }
    nanoseconds(packets, |packets| {
        for i in 0..packets as usize {
            let count = inputs.len();
            let buffer = &mut inputs[i % count].0;
            buffer[..4].copy_from_slice(&(dissector::START as u32).to_le_bytes());
            black_box(parsers[0].run(&mut (), buffer).expect("a run"));
        }
    })
}
