//! Maps under the same load: the operations, the keys, and the measurement.
//!
//! All contenders of a row run in one process in short interleaved rounds; figures are medians. A cell is CPU time of
//! the working threads in nanoseconds an operation, so other processes on the machine do not count, but spinning and
//! system calls do. Keys come in random order from a generator that costs all contenders the same (about a
//! nanosecond); a BPF program with that generator drives the kernel's map.

pub mod kernel;
pub mod keyless;
pub mod ladder;
pub mod ours;

use crate::measure::{median, thread_time};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds of each contender.
const ROUNDS: usize = 11;
/// Operations of all threads in a round.
const OPERATIONS: usize = 1 << 15;

/// Spreads a number over a key, so that no map gains from equal low bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Multiplier of the generator of random numbers (Knuth).
const RANDOM: u64 = 6_364_136_223_846_793_005;

/// Keys and values as programs know them: words.
pub type Key<const N: usize> = [u64; N];

/// The form of the keys of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Any bytes.
    Words,
    /// A `u32` index (in the lower half of a word).
    Index,
    /// A prefix length of 32 and four bytes.
    Prefix,
}

impl Shape {
    /// Returns the key with this number.
    #[inline(always)]
    pub fn key<const K: usize>(self, n: u64) -> Key<K> {
        match self {
            Shape::Words => std::array::from_fn(|i| (n + i as u64).wrapping_mul(SPREAD)),
            Shape::Index => [n; K],
            Shape::Prefix => [n.wrapping_mul(SPREAD) << 32 | 32; K],
        }
    }
}

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Looks up present keys and reads the first word of the value.
    Lookup,
    /// Sets present keys.
    Update,
    /// Inserts absent keys and deletes them.
    InsertDelete,
    /// Inserts absent keys.
    Insert,
}

impl Operation {
    /// Returns its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Lookup => "lookup hit",
            Operation::Update => "update existing",
            Operation::InsertDelete => "insert + delete",
            Operation::Insert => "insert, evicting",
        }
    }
}

/// One thread's share of a round.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The operation to do.
    pub operation: Operation,
    /// The form of the keys.
    pub shape: Shape,
    /// Keys below this are present.
    pub elements: u64,
    /// Number of operations.
    pub count: usize,
    /// The seed of the random numbers. The low byte is the thread's number.
    pub seed: u64,
}

impl Job {
    /// Calls `work` with the number and the key of each operation. Inserted keys are beyond the present ones, and no
    /// two threads' overlap.
    ///
    /// The operation and the form of keys are decided outside of the loop, as in the kernel's program. Where `work`
    /// depends on the operation, the caller decides outside of the loop, too.
    #[inline(always)]
    pub fn each<const K: usize>(self, work: impl FnMut(usize, Key<K>)) {
        let mut work = work;
        self.each_in_runs(self.count, &mut (), |(), i, key| work(i, key), |()| ());
    }

    /// Does as [`Job::each`], in runs of `operations` operations, with a call of `end` after each run; both functions
    /// may change `state`.
    #[inline(always)]
    pub fn each_in_runs<const K: usize, S>(
        self,
        operations: usize,
        state: &mut S,
        work: impl FnMut(&mut S, usize, Key<K>),
        end: impl FnMut(&mut S),
    ) {
        let adds = matches!(self.operation, Operation::Insert | Operation::InsertDelete);
        let (elements, first) = (self.elements, self.elements + ((self.seed & 0xff) << 32));
        let present = move |random: u64| ((random >> 32) * elements) >> 32;
        let absent = move |random: u64| first + (random >> 36);
        match (adds, self.shape) {
            (false, Shape::Words) => self.walk(operations, state, |r| Shape::Words.key(present(r)), work, end),
            (false, Shape::Index) => self.walk(operations, state, |r| Shape::Index.key(present(r)), work, end),
            (false, Shape::Prefix) => self.walk(operations, state, |r| Shape::Prefix.key(present(r)), work, end),
            (true, Shape::Words) => self.walk(operations, state, |r| Shape::Words.key(absent(r)), work, end),
            (true, Shape::Index) => self.walk(operations, state, |r| Shape::Index.key(absent(r)), work, end),
            (true, Shape::Prefix) => self.walk(operations, state, |r| Shape::Prefix.key(absent(r)), work, end),
        }
    }

    #[inline(always)]
    fn walk<const K: usize, S>(
        self,
        operations: usize,
        state: &mut S,
        key: impl Fn(u64) -> Key<K>,
        mut work: impl FnMut(&mut S, usize, Key<K>),
        mut end: impl FnMut(&mut S),
    ) {
        let mut random = self.seed;
        for begin in (0..self.count).step_by(operations.max(1)) {
            for i in begin..self.count.min(begin + operations) {
                random = random.wrapping_mul(RANDOM).wrapping_add(1);
                work(state, i, key(random));
            }
            end(state);
        }
    }
}

/// A map under test.
pub trait Contender<const K: usize, const V: usize>: Sync {
    /// Does a job, inside the guard or other scope that a user would hold meanwhile.
    fn run(&self, job: Job);
    /// Puts a key in before the measurement.
    fn insert(&self, key: Key<K>, value: [u64; V]);
}

/// Returns CPU nanoseconds an operation for each contender: the median over the rounds.
pub fn measure<const K: usize, const V: usize>(
    contenders: &[Box<dyn Contender<K, V> + '_>],
    operation: Operation,
    shape: Shape,
    elements: usize,
    threads: usize,
) -> Vec<f64> {
    let count = OPERATIONS / threads;
    let barrier = Barrier::new(threads);
    let times: Vec<Vec<AtomicU64>> =
        contenders.iter().map(|_| (0..=ROUNDS).map(|_| AtomicU64::new(0)).collect()).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (barrier, times) = (&barrier, &times);
            scope.spawn(move || {
                for round in 0..=ROUNDS {
                    for (contender, times) in contenders.iter().zip(times) {
                        let seed = ((round as u64) << 16).wrapping_mul(SPREAD) << 8 | thread;
                        barrier.wait();
                        let start = thread_time();
                        contender.run(Job { operation, shape, elements: elements as u64, count, seed });
                        let time = (thread_time() - start).as_nanos() as u64;
                        times[round].fetch_add(time, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let total = (count * threads) as f64;
    let nanoseconds = |time: AtomicU64| time.into_inner() as f64 / total;
    // The first round warms the caches and is not counted.
    times.into_iter().map(|rounds| median(rounds.into_iter().skip(1).map(nanoseconds).collect())).collect()
}

/// Fills every contender with the keys below `elements`.
pub fn fill<const K: usize, const V: usize>(
    contenders: &[Box<dyn Contender<K, V> + '_>],
    shape: Shape,
    elements: usize,
) {
    for contender in contenders {
        (0..elements as u64).for_each(|n| contender.insert(shape.key(n), [n; V]));
    }
}

/// Returns words as bytes.
pub fn bytes(words: &[u64]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(words)
}
