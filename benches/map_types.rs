//! `cargo bench -p bpf-benches --bench map_types`: every map type except the plain hash (which `maps` compares with
//! its peers).
//!
//! 1. Types with keys: ours as programs call them and as the host calls them, beside the kernel's, which a BPF
//!    program drives. `benches/src/maps/mod.rs` defines the figures. Arguments select rows by substring: `-- lru`.
//! 2. Queue, stack, Bloom filter and ring buffer, by their entry points, on one thread, beside the kernel's, which a
//!    BPF program drives: CPU time an operation.
//! 3. Look-ups in loops of compiled programs (`benches/programs/lookups.c`): the time of a loop less the time of that
//!    loop without the look-up.

use bpf_benches::maps::kernel::Kernel;
use bpf_benches::maps::keyless::{self, Keyless, Round};
use bpf_benches::maps::ours::{Ours, OursFromHost};
use bpf_benches::maps::{Contender, Operation, Shape, fill, measure};
use bpf_benches::measure::{self, nanoseconds};
use bpf_benches::table::{Table, figure};
use bpf_maps::{Map, MapDef, MapType, RingBuf, flags, program};
use bpf_quiesce::{Domain, Options};
use bpf_runtime::{Config, Engine, Linker, MapSet, Object, Raw};
use std::hint::black_box;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut table = Table::new(["type/elements/key+value/threads", "ours (program)", "ours (host)", "kernel"]);
    for (elements, size) in [(10_000, "10k"), (1_000_000, "1M")] {
        // One and two threads share maps filled once: filling many elements takes longer than the measurement.
        let groups: &[&[usize]] = if elements > 100_000 { &[&[1, 2]] } else { &[&[1, 2], &[32]] };
        for &threads in groups {
            let most = threads.iter().copied().max().unwrap_or(1);
            let mut row = |def: MapDef, shape, operations: &[Operation], is_wide: bool| {
                let sizes = format!("{}+{}", def.key_size, def.value_size);
                let common = def.flags & flags::NO_COMMON_LRU == 0;
                let name = format!("{}{}/{size}/{sizes}", def.name, if common { "" } else { " (own lists)" });
                let wanted: Vec<usize> =
                    threads.iter().copied().filter(|threads| is_wanted(&format!("{name}/{threads}"))).collect();
                if !wanted.is_empty() {
                    match is_wide {
                        false => rows::<1, 1>(&mut table, &name, &def, shape, operations, elements, &wanted),
                        true => rows::<2, 8>(&mut table, &name, &def, shape, operations, elements, &wanted),
                    }
                }
            };
            let entries = elements as u32;
            let def =
                |map_type: MapType, key, value, entries| MapDef::new(map_type.name(), map_type, key, value, entries);
            const IN_PLACE: &[Operation] = &[Operation::Lookup, Operation::Update];
            row(def(MapType::Array, 4, 8, entries), Shape::Index, IN_PLACE, false);
            row(def(MapType::PerCpuArray, 4, 8, entries), Shape::Index, IN_PLACE, false);
            let trie = def(MapType::LpmTrie, 8, 8, entries + most as u32).flags(flags::NO_PREALLOC);
            row(trie, Shape::Prefix, &[Operation::Lookup, Operation::Update], false);
            for (key, value, is_wide) in [(8, 8, false), (16, 64, true)] {
                let entries = entries + most as u32;
                let all = &[Operation::Lookup, Operation::Update, Operation::InsertDelete];
                row(def(MapType::PerCpuHash, key, value, entries), Shape::Words, all, is_wide);
                let on_demand = MapDef::new("hash, no_prealloc", MapType::Hash, key, value, entries);
                row(on_demand.flags(flags::NO_PREALLOC), Shape::Words, all, is_wide);
                // These maps have room for more elements than are inserted, so that the kernel's LRU lists evict
                // none; then maps that evict.
                let lru = [Operation::Lookup, Operation::Update, Operation::Insert];
                let roomy = entries + entries / 2;
                row(def(MapType::LruHash, key, value, roomy), Shape::Words, &lru, is_wide);
                let own = def(MapType::LruHash, key, value, roomy).flags(flags::NO_COMMON_LRU);
                row(own, Shape::Words, &lru, is_wide);
            }
        }
    }
    println!("{table}");
    if is_wanted("queue stack bloom ring") {
        println!("{}", without_keys());
    }
    if is_wanted("compiled") {
        println!("{}", compiled());
    }
}

fn domain(slots: usize) -> std::sync::Arc<Domain> {
    Domain::new(Options::new().max_slots(slots as u32))
}

fn rows<const K: usize, const V: usize>(
    table: &mut Table,
    name: &str,
    def: &MapDef,
    shape: Shape,
    operations: &[Operation],
    elements: usize,
    threads: &[usize],
) {
    // Each thread needs a slot and the host one, as the kernel has a CPU for each.
    let slots = threads.iter().copied().max().unwrap_or(1) + 1;
    let create = || Map::create(def.clone(), &domain(slots)).expect("memory");
    let (ours, host) = (create(), create());
    let mut contenders: Vec<Box<dyn Contender<K, V>>> =
        vec![Box::new(Ours(ours.clone())), Box::new(OursFromHost(host.clone()))];
    let kernel = Kernel::new(def, shape, elements, operations);
    contenders.extend(kernel.map(|kernel| Box::new(kernel) as Box<_>));
    fill(&contenders, shape, elements);
    // All numbers of threads measure an operation before the next operation; operations that evict come last.
    for &operation in operations {
        for &threads in threads {
            let times = measure(&contenders, operation, shape, elements, threads);
            let cells = times.into_iter().map(figure).chain(std::iter::repeat("-".to_owned()));
            table.row([format!("{name}/{threads} {}", operation.name())].into_iter().chain(cells).take(4));
        }
    }
}

/// Measures the types without keys.
fn without_keys() -> Table {
    let domain = domain(4);
    let create = |map_type, value, entries| {
        Map::create(MapDef::new("bench", map_type, 0, value, entries), &domain).expect("memory")
    };
    let guard = domain.enter().expect("a slot");
    let slot = guard.slot();
    let (queue, stack) = (create(MapType::Queue, 8, 1024), create(MapType::Stack, 8, 1024));
    let push_pop = |map: &Map, repeat: u32| {
        let mut out = 0u64;
        for n in 0..u64::from(repeat) {
            // SAFETY: a live map under a guard with this slot; values of its size.
            unsafe { program::push(map.as_ptr(), (&raw const n).cast(), 0, slot) };
            // SAFETY: a live map under a guard with this slot; `out` has a value's size.
            unsafe { program::pop(map.as_ptr(), (&raw mut out).cast(), slot) };
        }
        black_box(out);
    };
    let bloom = create(MapType::BloomFilter, 8, 10_000);
    (0..10_000u64).for_each(|n| bloom.push(&n.to_ne_bytes(), 0).expect("room"));
    let peek = |present: bool, repeat: u32| {
        let mut found = 0;
        for n in 0..u64::from(repeat) {
            let mut value = if present { n % 10_000 } else { n + 10_000 };
            // SAFETY: a live map under a guard with this slot; `value` has a value's size.
            found += unsafe { program::peek(bloom.as_ptr(), (&raw mut value).cast(), slot) };
        }
        black_box(found);
    };
    let ring = create(MapType::RingBuf, 0, 1 << 20);
    let mut consumer = RingBuf::new(&ring).expect("one consumer");
    let record = [7u8; 64];
    let mut produce_consume = |repeat: u32| {
        for _ in 0..repeat {
            for _ in 0..ROUNDS {
                // SAFETY: a live map under a guard with this slot; the record is readable.
                unsafe { program::ringbuf_output(ring.as_ptr(), record.as_ptr(), 64, 0, slot) };
            }
            while let Some(record) = consumer.next_record() {
                black_box(&*record);
            }
        }
    };
    let mut ours: Vec<measure::Contender<'_>> = vec![
        Box::new(|repeat| nanoseconds(repeat, |repeat| push_pop(&queue, repeat))),
        Box::new(|repeat| nanoseconds(repeat, |repeat| push_pop(&stack, repeat))),
        Box::new(|repeat| nanoseconds(repeat, |repeat| peek(true, repeat))),
        Box::new(|repeat| nanoseconds(repeat, |repeat| peek(false, repeat))),
        Box::new(move |repeat| nanoseconds(repeat, &mut produce_consume)),
    ];
    let rows = [
        ("queue, push + pop of 8 bytes", MapType::Queue, 1024, Round::PushPop),
        ("stack, push + pop of 8 bytes", MapType::Stack, 1024, Round::PushPop),
        ("bloom filter, present (5 hashes)", MapType::BloomFilter, 10_000, Round::Peek(10_000, true)),
        ("bloom filter, absent", MapType::BloomFilter, 10_000, Round::Peek(10_000, false)),
        ("ring buffer, output and consume 64 bytes", MapType::RingBuf, 1 << 20, Round::Output),
    ];
    let kernels = rows.map(|(_, map_type, entries, round)| {
        Keyless::new(map_type, if map_type == MapType::RingBuf { 0 } else { 8 }, entries, round)
    });
    let mut table = Table::new(["one thread", "ours", "kernel"]);
    for (((name, ..), ours), kernel) in rows.into_iter().zip(ours.drain(..)).zip(&kernels) {
        let mut contenders = vec![ours];
        if let Some(kernel) = kernel {
            let ring = (name.starts_with("ring")).then(|| kernel.ring(1 << 20)).flatten();
            contenders.push(Box::new(move |repeat| kernel_rounds(kernel, ring.as_ref(), repeat)));
        }
        // One run of the kernel's program is many rounds; one of ours is one round, except for the ring.
        let rounds = [if name.starts_with("ring") { ROUNDS } else { 1 }, ROUNDS].map(f64::from);
        let times = measure::interleaved(&mut contenders).into_iter().zip(rounds).map(|(time, n)| figure(time / n));
        table.row(std::iter::once(name.to_owned()).chain(times).chain(["-".to_owned()]).take(3));
    }
    table
}

/// Rounds in one run of the kernel's program, and records in the ring before it is emptied.
const ROUNDS: u32 = 512;

/// Returns nanoseconds of one of `repeat` runs of the kernel's program; the ring is emptied after each.
fn kernel_rounds(kernel: &Keyless, ring: Option<&keyless::Ring>, repeat: u32) -> f64 {
    nanoseconds(repeat, |repeat| {
        for _ in 0..repeat {
            let rounds = kernel.run(ROUNDS);
            if let Some(ring) = ring {
                assert_eq!(black_box(ring.consume()).0, rounds);
            }
        }
    })
}

/// Iterations of each loop in `lookups.c`.
const LOOP: f64 = 256.0;

/// Measures look-ups in compiled programs.
fn compiled() -> Table {
    let engine = Engine::new(Config::new()).expect("a supported host");
    let linker = Linker::<()>::new(&engine);
    let object = Object::parse(include_bytes!("programs/lookups.o")).expect("an object");
    let maps = MapSet::for_object(&engine, &object).expect("maps");
    let instance = linker.load::<Raw>(&object, maps).expect("it loads");
    for (map, entries) in [("counts", 1024u32), ("hash", 1024), ("per_cpu", 1024)] {
        let map = instance.map(map).expect("a map");
        for n in 0..entries {
            map.set(&n.to_ne_bytes(), &vec![1; map.host_value_size()]).expect("room");
        }
    }
    let names = ["nothing", "array_lookup", "percpu_lookup", "hash_lookup", "hash_update"];
    let mut programs = names.map(|name| instance.program::<Raw>(name).expect("a program"));
    let mut contenders: Vec<measure::Contender<'_>> = programs
        .iter_mut()
        .map(|program| {
            Box::new(move |repeat| {
                nanoseconds(repeat, |repeat| {
                    for _ in 0..repeat {
                        black_box(program.run(&mut (), &mut [0; 8]).expect("a run"));
                    }
                })
            }) as measure::Contender<'_>
        })
        .collect();
    let times = measure::interleaved(&mut contenders);
    let mut table = Table::new(["in a compiled program, 1024 elements", "ns"]);
    for (name, time) in names.into_iter().zip(&times).skip(1) {
        table.row([name.replace('_', " "), figure((time - times[0]) / LOOP)]);
    }
    table
}
