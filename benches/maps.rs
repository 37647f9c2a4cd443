//! `cargo bench -p bpf-benches --bench maps`: our hash map beside the best concurrent maps of the Rust world and the kernel's.
//!
//! All contenders of a row are measured in one run, in short interleaved rounds, and medians count. A cell is wall time
//! in nanoseconds an operation and core: with as many threads as cores or more, the time is multiplied by the cores
//! that share the work. Keys come in random order from a generator that costs all contenders the same (about a nanosecond). All
//! peers hash with foldhash (hashbrown's default, faster than ours and less guarded). Ours appears twice: called as a
//! program calls it (many operations in one run guard), and through the host handle (a guard and two size checks each
//! time). The kernel's map is driven by a BPF program (`-` where bpf(2) is not permitted). Arguments select rows by substring:
//! `-- 10k/8+8/1`.

mod kernel_map;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bpf_benches::measure::median;
use bpf_benches::table::{Table, figure};
use bpf_maps::{Map, MapDef, MapType, program};
use bpf_quiesce::{Domain, Options};
use hashbrown::DefaultHashBuilder;
use kernel_map::Kernel;

/// Rounds of each contender.
const ROUNDS: usize = 15;
/// Operations of all threads in a round.
const OPERATIONS: usize = 1 << 17;

/// Keys and values as programs know them: words.
type Key<const N: usize> = [u64; N];

/// Spreads a number over a key, so that equal low bits do not help anybody.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Multiplier of the generator of random numbers (Knuth).
const RANDOM: u64 = 6_364_136_223_846_793_005;

fn key<const K: usize>(n: u64) -> Key<K> {
    std::array::from_fn(|i| (n + i as u64).wrapping_mul(SPREAD))
}

/// One thread's share of a round.
#[derive(Clone, Copy)]
struct Job {
    operation: Operation,
    /// Keys below this are present.
    elements: u64,
    count: usize,
    seed: u64,
}

impl Job {
    /// The keys of the operations. Inserted keys are beyond the present ones, and no two threads' overlap.
    fn keys<const K: usize>(self) -> impl Iterator<Item = Key<K>> {
        let mut random = self.seed;
        (0..self.count).map(move |_| {
            random = random.wrapping_mul(RANDOM).wrapping_add(1);
            match self.operation {
                Operation::InsertDelete => key(self.elements + ((self.seed & 0xff) << 32) + (random >> 36)),
                _ => key(((random >> 32) * self.elements) >> 32),
            }
        })
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Lookup,
    Update,
    InsertDelete,
}

impl Operation {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Lookup, "lookup hit"), (Self::Update, "update existing"), (Self::InsertDelete, "insert + delete")];
}

/// A map under test. `run` does a job inside whatever a user would hold meanwhile.
trait Contender<const K: usize, const V: usize>: Sync {
    fn run(&self, job: Job);
    fn insert(&self, key: Key<K>, value: [u64; V]);
}

struct Ours(Map);

impl Ours {
    fn new<const K: usize, const V: usize>(elements: usize, threads: usize) -> Self {
        let domain = Domain::new(Options { max_slots: 64, ..Options::default() });
        let entries = (elements + threads) as u32;
        let def = MapDef::new("bench", MapType::Hash, K as u32 * 8, V as u32 * 8, entries);
        Self(Map::create(def, &domain).unwrap())
    }
}

impl<const K: usize, const V: usize> Contender<K, V> for Ours {
    fn run(&self, job: Job) {
        let guard = self.0.domain().enter().unwrap();
        let (map, slot, lookup) = (self.0.as_ptr(), guard.slot(), self.0.lookup_fn());
        for (i, key) in job.keys::<K>().enumerate() {
            let (key, value) = (key.as_ptr().cast(), [i as u64; V]);
            match job.operation {
                Operation::Lookup => {
                    // SAFETY: a live map under a guard with this slot; the key has the map's size.
                    let value = unsafe { lookup(map, key, slot) };
                    // SAFETY: present keys only; values are aligned words.
                    std::hint::black_box(unsafe { value.cast::<u64>().read_volatile() });
                }
                Operation::Update => {
                    // SAFETY: as above, and the value has the map's size.
                    assert_eq!(unsafe { program::update(map, key, value.as_ptr().cast(), 0, slot) }, 0);
                }
                Operation::InsertDelete => {
                    // SAFETY: as above.
                    assert_eq!(unsafe { program::update(map, key, value.as_ptr().cast(), 0, slot) }, 0);
                    // SAFETY: as above.
                    assert_eq!(unsafe { program::delete(map, key, slot) }, 0);
                }
            }
        }
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        self.0.set(bytes(&key), bytes(&value)).unwrap();
    }
}

fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: words are bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

struct OursFromHost(Ours);

impl<const K: usize, const V: usize> Contender<K, V> for OursFromHost {
    fn run(&self, job: Job) {
        let map = &self.0.0;
        let mut out = [0u64; V];
        for (i, key) in job.keys::<K>().enumerate() {
            match job.operation {
                Operation::Lookup => {
                    // SAFETY: words are bytes.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), V * 8) };
                    map.lookup(bytes(&key), out, 0).unwrap();
                    std::hint::black_box(out);
                }
                Operation::Update => map.set(bytes(&key), bytes(&[i as u64; V])).unwrap(),
                Operation::InsertDelete => {
                    map.set(bytes(&key), bytes(&[i as u64; V])).unwrap();
                    map.delete(bytes(&key)).unwrap();
                }
            }
        }
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        self.0.insert(key, value);
    }
}

/// A peer: how it looks up (and copies the value), inserts or replaces, and removes.
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
                for (i, $key) in job.keys::<K>().enumerate() {
                    let $value = [i as u64; V];
                    match job.operation {
                        Operation::Lookup => assert!(std::hint::black_box($lookup).is_some()),
                        Operation::Update => _ = std::hint::black_box($update),
                        Operation::InsertDelete => {
                            _ = std::hint::black_box($update);
                            _ = std::hint::black_box($remove);
                        }
                    }
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

/// Wall nanoseconds an operation and core: the median over the rounds, for each contender.
fn measure<const K: usize, const V: usize>(
    contenders: &[Box<dyn Contender<K, V>>],
    operation: Operation,
    elements: usize,
    threads: usize,
) -> Vec<f64> {
    let each = OPERATIONS / threads;
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(threads);
    let (start, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let round = AtomicU64::new(0);
    let mut times = vec![Vec::new(); contenders.len()];
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (start, end, round) = (&start, &end, &round);
            scope.spawn(move || {
                for _ in 0..=ROUNDS {
                    for contender in contenders {
                        start.wait();
                        // The low byte is the thread, for keys of its own.
                        let seed = (round.load(Ordering::Relaxed) << 16).wrapping_mul(SPREAD) << 8 | thread;
                        contender.run(Job { operation, elements: elements as u64, count: each, seed });
                        end.wait();
                    }
                }
            });
        }
        for number in 0..=ROUNDS {
            for times in &mut times {
                round.store(number as u64, Ordering::Relaxed);
                start.wait();
                let began = Instant::now();
                end.wait();
                let nanos = began.elapsed().as_nanos() as f64;
                // The first round warms up.
                if number > 0 {
                    times.push(nanos * cores as f64 / (each * threads) as f64);
                }
            }
        }
    });
    times.into_iter().map(median).collect()
}

impl<const K: usize, const V: usize> Contender<K, V> for Kernel {
    fn run(&self, job: Job) {
        let program = match job.operation {
            Operation::Lookup => &self.lookup,
            Operation::Update => &self.update,
            Operation::InsertDelete => &self.insert_delete,
        };
        program.run(job.count);
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        self.set(&key, &value);
    }
}

fn rows<const K: usize, const V: usize>(table: &mut Table, wanted: &[String], elements: usize, size: &str) {
    for threads in [1, 2, 32] {
        let name = format!("{size}/{}+{}/{threads}", K * 8, V * 8);
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let mut contenders: Vec<Box<dyn Contender<K, V>>> = vec![
            Box::new(Ours::new::<K, V>(elements, threads)),
            Box::new(OursFromHost(Ours::new::<K, V>(elements, threads))),
            Box::new(Dash::new(elements)),
            Box::new(Scc::new(elements)),
            Box::new(Papaya::new(elements)),
            Box::new(Locked::new(elements)),
        ];
        contenders.extend(Kernel::new(elements, threads, K, V).map(|kernel| Box::new(kernel) as Box<_>));
        for contender in &contenders {
            (0..elements as u64).for_each(|n| contender.insert(key(n), [n; V]));
        }
        for (operation, what) in Operation::ALL {
            let times = measure(&contenders, operation, elements, threads);
            let cells = times.into_iter().map(figure).chain(std::iter::repeat("-".to_owned()));
            table.row([format!("{name} {what}")].into_iter().chain(cells).take(1 + NAMES.len()));
        }
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut table = Table::new(["elements/key+value/threads".to_owned()].into_iter().chain(NAMES.map(str::to_owned)));
    for (elements, size) in [(10_000, "10k"), (1_000_000, "1M")] {
        rows::<1, 1>(&mut table, &wanted, elements, size);
        rows::<2, 8>(&mut table, &wanted, elements, size);
    }
    println!("{table}");
    let map = Ours::new::<1, 1>(1_000_000, 0).0;
    let overhead = map.memory_usage() as f64 / 1e6 - 16.0;
    println!("bytes of overhead an element (1M, 8+8): {overhead:.1}");
}
