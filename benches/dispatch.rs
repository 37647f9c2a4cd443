//! `cargo bench -p bpf-benches --bench dispatch`: the cost of calling one of many programs, and of replacing one.
//!
//! 1. A call of one of 1, 2, 8, 16 and 48 functions: always the first, always the last, a random one, or one that the
//!    dispatcher does not list. Beside it: an indirect call, a call through a retpoline, Rust's `dyn` and `match`.
//!    Figures are ns a call, including the loop around the call (the loop alone is a row).
//! 2. 48 entries with and without hit counts.
//! 3. Aligned and unaligned jump targets, hardening on and off, the callee's address below and above the others'.
//! 4. Packets a second over examples/packets.pcap, with and without a dispatcher.
//! 5. An update of a dispatcher and of a hook, by the number of entries.
//! 6. A whole run: a program, a dispatcher, hooks.
//!
//! `-- calls hits rows packets updates runs` selects among them. In 1 to 3 assembly calls the generated code alone;
//! in 4 to 6 the figures include the runtime.

use bpf_benches::measure::{Contender, interleaved, median, nanoseconds, thread_time};
use bpf_benches::table::{Table, figure};
use bpf_benches::{call, layout};
use bpf_dispatcher::{Dispatcher, Options};
use bpf_prog_pack::{Packs, Text};
use bpf_quiesce::Domain;
use bpf_runtime::{
    Config, Engine, Hook, HookPolicy, Linker, MapSet, Object, Program, Raw,
    code::Hardening,
    hook::{Attachment, DispatcherOptions},
    isa::assemble,
    net::{Xdp, XdpBuff},
};
use pcap_file::pcap::PcapReader;
use std::hint::black_box;

/// Number of calls before a sequence repeats itself: more than a branch predictor can learn.
const SEQUENCE: usize = 1 << 14;
const ENTRIES: usize = 48;

/// A function that measures one group of tables.
type Make = fn() -> Vec<Table>;
type Packet = Program<Xdp, ()>;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let tables: [(&str, Make); 6] =
        [("calls", calls), ("hits", hits), ("rows", rows), ("packets", packets), ("updates", updates), ("runs", runs)];
    for (name, make) in tables {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            make().iter().for_each(|table| println!("{table}"));
        }
    }
}

fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize
}

/// Functions that return 0, 1, 2, and so on: one for each entry, and one that no dispatcher lists.
struct Stubs {
    packs: Packs,
    texts: Vec<Text>,
}

impl Stubs {
    fn new() -> Stubs {
        let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), bpf_prog_pack::Options::default());
        let packs = packs.expect("a supported host");
        let load = |i| packs.stage(&layout::stub(i), |_| None).and_then(|staged| staged.finalize()).expect("room");
        let mut texts: Vec<Text> = (0..=ENTRIES as u16).map(load).collect();
        texts.sort_by_key(|text| text.base() as usize);
        Stubs { packs, texts }
    }

    /// Returns the address of function `i`; the functions are sorted by address.
    fn address(&self, i: usize) -> usize {
        self.texts[i].base() as usize
    }

    fn tree(&self, entries: std::ops::Range<usize>, align: bool, retpolines: bool) -> Dispatcher {
        let hardening = Hardening::new().retpolines(retpolines);
        let options = Options { limit: ENTRIES, align, hardening };
        let dispatcher = Dispatcher::new(&self.packs, options).expect("room");
        entries.for_each(|i| dispatcher.attach(self.address(i)).expect("room"));
        dispatcher
    }
}

/// Makes a contender that calls `call` with the elements of the sequence in turn.
fn over<'a, T: Copy + 'a>(sequence: &'a [T], mut call: impl FnMut(T) -> u64 + 'a) -> Contender<'a> {
    assert_eq!(sequence.len(), SEQUENCE);
    let mut at = 0;
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                black_box(call(sequence[at % SEQUENCE]));
                at += 1;
            }
        })
    })
}

/// Rust's dynamic dispatch: each callee has a type of its own behind one trait, and an arm of a `match`.
trait Callee {
    fn call(&self) -> u64;
}

struct Number<const N: u64>;

impl<const N: u64> Callee for Number<N> {
    #[inline(never)]
    fn call(&self) -> u64 {
        black_box(N)
    }
}

macro_rules! callees {
    ($($n:literal)*) => { vec![$(Box::new(Number::<$n>) as Box<dyn Callee>),*] };
}

macro_rules! match_fn {
    ($name:ident $($n:literal)*) => {
        #[inline(always)]
        fn $name(callee: usize) -> u64 {
            match callee { $($n => Number::<$n>.call(),)* _ => Number::<48>.call() }
        }
    };
}

match_fn!(match_1 0);
match_fn!(match_2 0 1);
match_fn!(match_8 0 1 2 3 4 5 6 7);
match_fn!(match_16 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
match_fn!(match_48 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43
    44 45 46 47);

const CALLS: [&str; 7] = [
    "the loop alone",
    "indirect call",
    "retpolined call",
    "dispatcher",
    "dispatcher, retpolines",
    "Rust: dyn",
    "Rust: match",
];

/// Measures each of [`CALLS`] with the callees in the given order; returns ns a call.
fn times(stubs: &Stubs, entries: usize, order: &[usize], hits: Option<&[u64]>) -> Vec<f64> {
    let addresses: Vec<usize> = order.iter().map(|i| stubs.address(*i)).collect();
    let trees = [false, true].map(|retpolines| stubs.tree(0..entries, true, retpolines));
    for tree in &trees {
        let hits = hits.unwrap_or_default().iter().enumerate().map(|(i, hits)| (stubs.address(i), *hits));
        tree.set_hits(&hits.collect::<Vec<_>>()).expect("room");
    }
    let [plain, hard] = trees.each_ref().map(Dispatcher::entry);
    let objects: Vec<Box<dyn Callee>> = callees!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
        35 36 37 38 39 40 41 42 43 44 45 46 47 48);
    let objects: Vec<&dyn Callee> = order.iter().map(|i| &*objects[*i]).collect();
    let matched = match entries {
        1 => over(order, match_1),
        2 => over(order, match_2),
        8 => over(order, match_8),
        16 => over(order, match_16),
        _ => over(order, match_48),
    };
    for (address, object) in addresses.iter().zip(&objects) {
        // SAFETY: a stub that `stubs` keeps.
        let direct = unsafe { call::indirect(*address) };
        for tree in [plain, hard] {
            // SAFETY: a stub that `stubs` keeps, and a tree that `trees` keeps.
            assert_eq!(unsafe { call::through(tree, *address) }, direct);
        }
        assert!(object.call() <= ENTRIES as u64);
    }
    interleaved(&mut [
        over(&addresses, |address| address as u64),
        // SAFETY: the addresses are those of stubs that `stubs` keeps.
        over(&addresses, |address| unsafe { call::indirect(address) }),
        // SAFETY: the addresses are those of stubs that `stubs` keeps.
        over(&addresses, |address| unsafe { call::retpolined(address) }),
        // SAFETY: stubs that `stubs` keeps, by a tree that `trees` keeps.
        over(&addresses, move |address| unsafe { call::through(plain, address) }),
        // SAFETY: stubs that `stubs` keeps, by a tree that `trees` keeps.
        over(&addresses, move |address| unsafe { call::through(hard, address) }),
        over(&objects, |object| object.call()),
        matched,
    ])
}

/// Adds a row for each of [`CALLS`], and below them the comparisons of the dispatcher with an indirect call.
fn add_rows(table: &mut Table, columns: &[Vec<f64>]) {
    for (i, name) in CALLS.iter().enumerate() {
        if call::HAS_RETPOLINES || !name.starts_with("retpolined") {
            table.row(std::iter::once((*name).to_owned()).chain(columns.iter().map(|times| figure(times[i]))));
        }
    }
    let mut row = |name: &str, cell: fn(&[f64]) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(columns.iter().map(|times| cell(times))));
    };
    row("dispatcher - indirect", |times| format!("{:+.2}", times[3] - times[1]));
    if call::HAS_RETPOLINES {
        row("dispatcher / retpolined", |times| figure(times[4] / times[2]));
    }
}

/// Returns the sequences of callees of the four columns: first, last, random, not listed.
fn orders(entries: usize) -> [Vec<usize>; 4] {
    let mut seed = 1;
    let any = (0..SEQUENCE).map(|_| random(&mut seed) % entries).collect();
    [vec![0; SEQUENCE], vec![entries - 1; SEQUENCE], any, vec![ENTRIES; SEQUENCE]]
}

fn calls() -> Vec<Table> {
    let stubs = Stubs::new();
    let tables = [1, 2, 8, 16, ENTRIES].map(|entries| {
        let mut table = Table::new([&format!("{entries} entries, ns a call"), "first", "last", "random", "not listed"]);
        add_rows(&mut table, &orders(entries).map(|order| times(&stubs, entries, &order, None)));
        table
    });
    tables.into()
}

/// Measures two sequences, each with and without hit counts: all calls go to one entry in the middle, or nine of ten
/// do and the rest go to random entries.
fn hits() -> Vec<Table> {
    const HOT: usize = 29;
    let stubs = Stubs::new();
    let mut seed = 2;
    let mostly: Vec<usize> = (0..SEQUENCE)
        .map(|_| if random(&mut seed).is_multiple_of(10) { random(&mut seed) % ENTRIES } else { HOT })
        .collect();
    let always = vec![HOT; SEQUENCE];
    let count = |order: &[usize]| -> Vec<u64> {
        (0..ENTRIES).map(|i| order.iter().filter(|callee| **callee == i).count() as u64).collect()
    };
    let mut columns = Vec::new();
    for order in [&always, &mostly] {
        columns.push(times(&stubs, ENTRIES, order, None));
        columns.push(times(&stubs, ENTRIES, order, Some(&count(order))));
    }
    let heading = ["48 entries, ns a call", "one", "one, hits", "9 of 10", "9 of 10, hits"];
    let mut table = Table::new(heading);
    add_rows(&mut table, &columns);
    vec![table]
}

fn rows() -> Vec<Table> {
    let stubs = Stubs::new();
    let mut table =
        Table::new(["targets", "retpolines", "the callee's address", "ns a call, 16", "48 entries", "bytes", "bytes"]);
    for align in [true, false] {
        for retpolines in [false, true] {
            // The first or the last entry is called, in trees of 16 and of 48 entries.
            let trees = [16, ENTRIES].map(|entries| (entries, stubs.tree(0..entries, align, retpolines)));
            for below in [true, false] {
                let sequences = trees
                    .each_ref()
                    .map(|(entries, _)| vec![stubs.address(if below { 0 } else { entries - 1 }); SEQUENCE]);
                let mut contenders: Vec<Contender<'_>> = Vec::new();
                for ((_, tree), sequence) in trees.iter().zip(&sequences) {
                    let entry = tree.entry();
                    // SAFETY: a tree that `trees` keeps, and a stub that `stubs` keeps.
                    contenders.push(over(sequence, move |address| unsafe { call::through(entry, address) }));
                }
                let times = interleaved(&mut contenders);
                let cells = [
                    if align { "aligned" } else { "not aligned" }.to_owned(),
                    if retpolines { "on" } else { "off" }.to_owned(),
                    if below { "below the others" } else { "above the others" }.to_owned(),
                    figure(times[0]),
                    figure(times[1]),
                    trees[0].1.stats().footprint.to_string(),
                    trees[1].1.stats().footprint.to_string(),
                ];
                table.row(cells);
            }
        }
    }
    vec![table]
}

fn engine(retpolines: bool) -> Engine {
    let config = Config::new().hardening(|hardening| hardening.retpolines(retpolines));
    Engine::new(config).expect("a supported host")
}

fn capture() -> Vec<Vec<u8>> {
    const CAPTURE: &[u8] = include_bytes!("../examples/packets.pcap");
    let mut reader = PcapReader::new(CAPTURE).expect("a capture");
    let mut next = || reader.next_packet().map(|packet| packet.expect("a packet").data.into_owned());
    std::iter::from_fn(&mut next).collect()
}

/// Makes a contender that runs every packet of the capture in turn; its figure is ns a packet.
fn over_packets<'a>(mut packets: Vec<Vec<u8>>, mut run: impl FnMut(&mut XdpBuff<'_>) -> u64 + 'a) -> Contender<'a> {
    let mut at = 0;
    Box::new(move |repeat| {
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                let count = packets.len();
                let mut buff = XdpBuff::new(&mut packets[at % count]);
                black_box(run(&mut buff));
                at += 1;
            }
        })
    })
}

/// Measures runs of a packet filter with and without a dispatcher.
///
/// With retpolines on, "without" is a dispatcher that lists no program: the run is then entered through a retpoline,
/// as in a kernel built with retpolines.
fn packets() -> Vec<Table> {
    const FILTER: &[u8] = include_bytes!("../examples/xdp_filter.o");
    let mut table = Table::new([
        "packets a second, in millions",
        "retpolines",
        "indirect",
        "dispatcher",
        "gain",
        "48 entries, random",
    ]);
    for retpolines in [true, false] {
        let engine = engine(retpolines);
        let linker = Linker::<()>::new(&engine);
        let object = Object::parse(FILTER).expect("an object");
        let load_filter = || -> Packet {
            let maps = MapSet::for_object(&engine, &object).expect("maps");
            let instance = linker.load::<Xdp>(&object, maps).expect("it loads");
            let name = instance.programs().next().expect("a program").to_owned();
            instance.program(&name).expect("it is there")
        };
        let load_drop =
            || linker.loader::<Xdp>().insns("drop", assemble("r0 = 1\nexit").expect("text")).expect("it loads");
        let kinds: [(&str, &dyn Fn() -> Packet); 2] = [("XDP_DROP", &load_drop), ("xdp_filter.o", &load_filter)];
        for (name, load) in kinds {
            let programs: Vec<Packet> = (0..ENTRIES).map(|_| load()).collect();
            let dispatcher = |limit: usize, attached: usize| {
                let options = DispatcherOptions::new().limit(limit);
                let dispatcher = bpf_runtime::Dispatcher::<Xdp, ()>::with_options(&engine, options).expect("room");
                programs.iter().take(attached).for_each(|program| dispatcher.attach(program).expect("room"));
                dispatcher
            };
            let (none, one, many) = (dispatcher(0, 0), dispatcher(ENTRIES, 1), dispatcher(ENTRIES, ENTRIES));
            let mut seed = 3;
            let any: Vec<usize> = (0..SEQUENCE).map(|_| random(&mut seed) % ENTRIES).collect();
            let mut at = 0;
            let first = &programs[0];
            let mut contenders: Vec<Contender<'_>> = vec![
                match retpolines {
                    false => over_packets(capture(), |buff| first.run(&mut (), buff).expect("a run")),
                    true => over_packets(capture(), |buff| none.call(first, &mut (), buff).expect("a run")),
                },
                over_packets(capture(), |buff| one.call(first, &mut (), buff).expect("a run")),
                over_packets(capture(), |buff| {
                    at += 1;
                    many.call(&programs[any[at % SEQUENCE]], &mut (), buff).expect("a run")
                }),
            ];
            let times = interleaved(&mut contenders);
            let rate = |time: f64| figure(1000.0 / time);
            let on = if retpolines { "on" } else { "off" };
            let gain = format!("{:+.0} %", (times[0] / times[1] - 1.0) * 100.0);
            table.row([name, on, &rate(times[0]), &rate(times[1]), &gain, &rate(times[2])]);
        }
    }
    vec![table]
}

/// Measures pairs of an attach and a detach; returns half the CPU time of a pair: microseconds an update. The time
/// includes freeing the old images.
fn update_time(engine: &Engine, mut pair: impl FnMut()) -> f64 {
    const PAIRS: u32 = 50;
    let rounds = (0..15).map(|_| {
        let start = thread_time();
        for _ in 0..PAIRS {
            pair();
        }
        engine.reclaim();
        (thread_time() - start).as_nanos() as f64 / f64::from(2 * PAIRS) / 1000.0
    });
    median(rounds.collect())
}

fn updates() -> Vec<Table> {
    let engine = engine(false);
    let linker = Linker::<()>::new(&engine);
    let load = || linker.loader::<Raw>().insns("one", assemble("r0 = 1\nexit").expect("text")).expect("it loads");
    let mut table =
        Table::new(["other entries", "µs an update: dispatcher", "with hit counts", "bytes", "hook", "hook, replace"]);
    for others in [0, 1, 2, 8, 16, 32, 47, 100, 255] {
        let programs: Vec<Program<Raw, ()>> = (0..=others).map(|_| load()).collect();
        let (guest, rest) = programs.split_last().expect("one at least");
        let options = DispatcherOptions::new().limit(256);
        let dispatcher = bpf_runtime::Dispatcher::<Raw, ()>::with_options(&engine, options).expect("room");
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::RunAll { result: 0 }).expect("room");
        for program in rest {
            dispatcher.attach(program).expect("room");
            hook.attach(program).expect("room");
        }
        let change = || {
            dispatcher.attach(guest).expect("room");
            dispatcher.detach(guest).expect("attached");
        };
        let even = update_time(&engine, change);
        let hits: Vec<(&Program<Raw, ()>, u64)> = rest.iter().zip((1..).map(|i| i * i)).collect();
        dispatcher.set_hits(&hits).expect("room");
        let weighted = update_time(&engine, change);
        let listed = update_time(&engine, || {
            hook.attach_with(guest, Attachment::default().priority(0)).expect("room");
            hook.detach(guest).expect("attached");
        });
        let spare = load();
        hook.attach(guest).expect("room");
        let replaced = update_time(&engine, || {
            hook.replace(guest, &spare).expect("room");
            hook.replace(&spare, guest).expect("room");
        });
        let bytes = dispatcher.stats().footprint.to_string();
        table.row([others.to_string(), figure(even), figure(weighted), bytes, figure(listed), figure(replaced)]);
    }
    vec![table]
}

fn runs() -> Vec<Table> {
    let engine = engine(false);
    let linker = Linker::<()>::new(&engine);
    let load = || linker.loader::<Raw>().insns("empty", assemble("r0 = 2\nexit").expect("text")).expect("it loads");
    let programs: Vec<Program<Raw, ()>> = (0..ENTRIES).map(|_| load()).collect();
    let hook = |count: usize, statistics: bool| {
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::FirstVerdict { pass: 2 }).expect("room");
        programs.iter().take(count).for_each(|program| hook.attach(program).expect("room"));
        hook.set_statistics(statistics).expect("room");
        hook
    };
    let dispatcher = |count: usize| {
        let dispatcher = bpf_runtime::Dispatcher::<Raw, ()>::new(&engine).expect("room");
        programs.iter().take(count).for_each(|program| dispatcher.attach(program).expect("room"));
        dispatcher
    };
    let hooks = [0, 1, 2, 8, 16, ENTRIES].map(|count| (format!("hook.run, {count} programs"), hook(count, false)));
    let counted = hook(1, true);
    let dispatchers = [1, 16, ENTRIES].map(|count| (format!("dispatcher.call, 1 of {count}"), dispatcher(count)));
    let mut names = vec!["program.run".to_owned()];
    let first = &programs[0];
    let mut contenders: Vec<Contender<'_>> = vec![many(|data| first.run(&mut (), data).expect("a run"))];
    for (name, dispatcher) in &dispatchers {
        names.push(name.clone());
        contenders.push(many(|data| dispatcher.call(first, &mut (), data).expect("a run")));
    }
    for (name, hook) in &hooks {
        names.push(name.clone());
        contenders.push(many(|data| hook.run(&mut (), data).expect("a run")));
    }
    names.push("hook.run, 1 program, statistics on".into());
    contenders.push(many(|data| counted.run(&mut (), data).expect("a run")));
    let times = interleaved(&mut contenders);
    let mut table = Table::new(["empty programs", "ns a run"]);
    for (name, time) in names.into_iter().zip(times) {
        table.row([name, figure(time)]);
    }
    vec![table]
}

fn many<'a>(mut run: impl FnMut(&mut [u8]) -> u64 + 'a) -> Contender<'a> {
    Box::new(move |repeat| {
        let mut data = [0u8; 8];
        nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                black_box(run(black_box(&mut data)));
            }
        })
    })
}
