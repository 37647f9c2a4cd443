//! `cargo bench -p bpf-benches --bench maps`: our hash map beside concurrent maps of Rust crates and the kernel's.
//!
//! `benches/src/maps/mod.rs` defines the figures. All peers hash with foldhash (hashbrown's default, which is faster
//! than our hash function and protects less against chosen keys). Our map has two columns: as programs call it and as
//! the host calls it. A BPF program drives the kernel's map (`-` where bpf(2) is not permitted). Arguments select
//! rows by substring: `-- 10k/8+8/1`. `-- ladder` measures instead how many reads of memory the processor overlaps.

use bpf_benches::maps::kernel::Kernel;
use bpf_benches::maps::ours::{Ours, OursFromHost};
use bpf_benches::maps::{Contender, Job, Key, Operation, Shape, fill, measure};
use bpf_benches::table::{Table, figure};
use bpf_maps::{Map, MapDef, MapType};
use bpf_quiesce::{Domain, Options};
use hashbrown::DefaultHashBuilder;
use std::hint::black_box;

const OPERATIONS: [Operation; 3] = [Operation::Lookup, Operation::Update, Operation::InsertDelete];

/// Defines the map of a row; it has room for its elements and one more for each thread.
fn definition(key: usize, value: usize, elements: usize, threads: usize) -> MapDef {
    MapDef::new("bench", MapType::Hash, key as u32 * 8, value as u32 * 8, (elements + threads) as u32)
}

fn create(def: &MapDef) -> Map {
    Map::create(def.clone(), &Domain::new(Options::new().max_slots(64))).expect("memory")
}

/// Implements a peer: how it looks a key up (and copies the value), inserts or replaces, and removes.
macro_rules! peer {
    ($name:ident, $type:ty, $make:expr, $map:ident, $key:ident, $value:ident, $lookup:expr, $update:expr, $remove:expr) => {
        struct $name<const K: usize, const V: usize>($type);

        impl<const K: usize, const V: usize> $name<K, V> {
            fn new(elements: usize) -> Self {
                let make: fn(usize) -> $type = $make;
                Self(make(elements))
            }
        }

        impl<const K: usize, const V: usize> Contender<K, V> for $name<K, V> {
            fn run(&self, job: Job) {
                let $map = &self.0;
                match job.operation {
                    Operation::Lookup => job.each(|_, $key: Key<K>| assert!(black_box($lookup).is_some())),
                    Operation::Update | Operation::Insert => job.each(|i, $key: Key<K>| {
                        let $value = [i as u64; V];
                        _ = black_box($update);
                    }),
                    Operation::InsertDelete => job.each(|i, $key: Key<K>| {
                        let $value = [i as u64; V];
                        _ = black_box($update);
                        _ = black_box($remove);
                    }),
                }
            }

            fn insert(&self, $key: Key<K>, $value: [u64; V]) {
                let $map = &self.0;
                _ = $update;
            }
        }
    };
}

peer!(
    Dash,
    dashmap::DashMap<Key<K>, [u64; V], DefaultHashBuilder>,
    |n| dashmap::DashMap::with_capacity_and_hasher(n, DefaultHashBuilder::default()),
    map,
    key,
    value,
    map.get(&key).map(|v| *v),
    map.insert(key, value),
    map.remove(&key)
);
peer!(
    Scc,
    scc::HashMap<Key<K>, [u64; V], DefaultHashBuilder>,
    |n| scc::HashMap::with_capacity_and_hasher(n, DefaultHashBuilder::default()),
    map,
    key,
    value,
    map.read_sync(&key, |_, v| *v),
    map.upsert_sync(key, value),
    map.remove_sync(&key)
);
peer!(
    Papaya,
    papaya::HashMap<Key<K>, [u64; V], DefaultHashBuilder>,
    |n| papaya::HashMap::with_capacity_and_hasher(n, DefaultHashBuilder::default()),
    map,
    key,
    value,
    map.pin().get(&key).copied(),
    {
        map.pin().insert(key, value);
    },
    {
        map.pin().remove(&key);
    }
);
peer!(
    Locked,
    parking_lot::RwLock<hashbrown::HashMap<Key<K>, [u64; V]>>,
    |n| parking_lot::RwLock::new(hashbrown::HashMap::with_capacity(n)),
    map,
    key,
    value,
    map.read().get(&key).copied(),
    map.write().insert(key, value),
    map.write().remove(&key)
);

const NAMES: [&str; 7] = ["ours (program)", "ours (host)", "dashmap", "scc", "papaya", "RwLock<hashbrown>", "kernel"];

fn rows<const K: usize, const V: usize>(table: &mut Table, wanted: &[String], elements: usize, size: &str) {
    for threads in [1, 2, 32] {
        let name = format!("{size}/{}+{}/{threads}", K * 8, V * 8);
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let def = definition(K, V, elements, threads);
        let mut contenders: Vec<Box<dyn Contender<K, V>>> = vec![
            Box::new(Ours(create(&def))),
            Box::new(OursFromHost(create(&def))),
            Box::new(Dash::new(elements)),
            Box::new(Scc::new(elements)),
            Box::new(Papaya::new(elements)),
            Box::new(Locked::new(elements)),
        ];
        let kernel = Kernel::new(&def, Shape::Words, elements, &OPERATIONS);
        contenders.extend(kernel.map(|kernel| Box::new(kernel) as Box<_>));
        fill(&contenders, Shape::Words, elements);
        for operation in OPERATIONS {
            let times = measure(&contenders, operation, Shape::Words, elements, threads);
            let cells = times.into_iter().map(figure).chain(std::iter::repeat("-".to_owned()));
            table.row([format!("{name} {}", operation.name())].into_iter().chain(cells).take(1 + NAMES.len()));
        }
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if wanted == ["ladder"] {
        println!("{}", bpf_benches::maps::ladder::ladder());
        return;
    }
    let mut table = Table::new(["elements/key+value/threads".to_owned()].into_iter().chain(NAMES.map(str::to_owned)));
    for (elements, size) in [(10_000, "10k"), (1_000_000, "1M")] {
        rows::<1, 1>(&mut table, &wanted, elements, size);
        rows::<2, 8>(&mut table, &wanted, elements, size);
    }
    println!("{table}");
    let map = create(&definition(1, 1, 1_000_000, 0));
    let overhead = map.memory_usage() as f64 / 1e6 - 16.0;
    println!("bytes of overhead an element (1M, 8+8): {overhead:.1}");
}
