//! `cargo bench -p bpf-benches --bench prealloc`: the gain of pre-allocated hash elements, by the allocator of the
//! elements.
//!
//! The benchmark repeats the comparison with which pre-allocation was introduced into the kernel in 2016 ("bpf: map
//! pre-alloc", patches to 4.6), with its patterns: each thread has one key and repeats update and delete, or update,
//! look-up and delete. One table of locked bucket lists takes its elements from one of these allocators: malloc; one
//! locked list; a bitmap, its words side by side or on a cache line each; an id allocator (a cache of ids for each
//! thread, refilled and emptied in batches from a locked pool, as the kernel's percpu_ida); a list for each CPU (each
//! with a lock, as the kernel's pcpu_freelist). The last column is our hash map.
//!
//! Figures are million patterns a second of CPU time: time spent spinning on a lock counts, and other processes do
//! not. `-- --plot "$PWD/docs"` also draws `prealloc.svg`, and beside it the published figures as
//! `prealloc-2016.svg`.

use bpf_benches::measure::{median, thread_time};
use bpf_benches::plot::{Series, svg};
use bpf_benches::table::{Table, figure};
use bpf_maps::{Map, MapDef, MapType};
use bpf_quiesce::{Domain, Options};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Numbers of threads: those of the published figures, and some between.
const THREADS: [usize; 5] = [1, 2, 4, 8, 32];
/// Entries of the map, as in the kernel's sample of 2016.
const ENTRIES: usize = 1000;
const ROUNDS: usize = 9;
/// Patterns of all threads in a round.
const PATTERNS: usize = 1 << 17;

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let plot = arguments.iter().position(|argument| argument == "--plot");
    let mut series: Vec<Series> = Vec::new();
    for with_lookup in [false, true] {
        let title = if with_lookup { "update, look-up, delete" } else { "update + delete" };
        let mut table: Option<Table> = None;
        for threads in THREADS {
            let contenders = contenders();
            let rates = measure(&contenders, threads, with_lookup);
            let names = contenders.iter().map(|(name, _)| (*name).to_owned());
            let table = table.get_or_insert_with(|| {
                Table::new(std::iter::once(format!("{title}: million/s, threads")).chain(names))
            });
            table.row(std::iter::once(threads.to_string()).chain(rates.iter().copied().map(figure)));
            if !with_lookup {
                series.resize(contenders.len(), Series { name: String::new(), points: Vec::new() });
                for ((series, (name, _)), rate) in series.iter_mut().zip(&contenders).zip(rates) {
                    (*name).clone_into(&mut series.name);
                    series.points.push((threads as f64, rate));
                }
            }
        }
        println!("{}", table.unwrap_or_default());
    }
    if let Some(folder) = plot.map(|at| arguments.get(at + 1).expect("--plot FOLDER")) {
        let write = |name: &str, title: &str, series: &[Series]| {
            let drawn = svg(title, "threads", "million update + delete a CPU second", series);
            std::fs::write(format!("{folder}/{name}"), drawn).expect("the file can be written");
        };
        write("prealloc.svg", "Where hash elements come from: here", &series);
        write("prealloc-2016.svg", "Where hash elements come from: the kernel, 2016 (32 CPUs)", &published());
    }
}

/// Returns the kernel's figures of 2016: by CPU.
fn published() -> Vec<Series> {
    let line = |name: &str, points: &[(f64, f64)]| Series { name: name.to_owned(), points: points.to_vec() };
    vec![
        line("kmalloc", &[(1.0, 1.8), (8.0, 0.4), (32.0, 0.13)]),
        line("hlist + spinlock", &[(1.0, 2.3)]),
        line("pcpu_freelist", &[(1.0, 2.6), (8.0, 1.5), (32.0, 0.49)]),
    ]
}

/// A table under test.
trait Contender: Sync {
    /// Repeats the pattern `count` times with the key of this thread.
    fn run(&self, thread: usize, count: usize, with_lookup: bool);
}

fn contenders() -> Vec<(&'static str, Box<dyn Contender>)> {
    vec![
        ("malloc", Box::new(Hash::new(Malloc))),
        ("locked list", Box::new(Hash::new(LockedList::new()))),
        ("bitmap", Box::new(Hash::new(Bitmap::<AtomicU64>::new()))),
        ("bitmap, a line a word", Box::new(Hash::new(Bitmap::<CachePadded<AtomicU64>>::new()))),
        ("id allocator", Box::new(Hash::new(Ids::new()))),
        ("per-CPU lists", Box::new(Hash::new(PerCpuLists::new()))),
        ("our hash", Box::new(Ours::new())),
    ]
}

/// Returns million patterns a CPU second of each contender: medians of interleaved rounds.
fn measure(contenders: &[(&str, Box<dyn Contender>)], threads: usize, with_lookup: bool) -> Vec<f64> {
    let each = PATTERNS / threads;
    let barrier = Barrier::new(threads);
    let times: Vec<[AtomicU64; ROUNDS + 1]> = contenders.iter().map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (barrier, times) = (&barrier, &times);
            scope.spawn(move || {
                for round in 0..=ROUNDS {
                    for ((_, contender), times) in contenders.iter().zip(times) {
                        barrier.wait();
                        let start = thread_time();
                        contender.run(thread, each, with_lookup);
                        times[round].fetch_add((thread_time() - start).as_nanos() as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let rate = |time: &AtomicU64| (each * threads) as f64 * 1e3 / time.load(Ordering::Relaxed) as f64;
    // The first round warms the caches and is not counted.
    times.iter().map(|rounds| median(rounds[1..].iter().map(rate).collect())).collect()
}

/// An element of the table. The thread that took it from the allocator, or the lock of the list that it is in, guards
/// it; the fields are atomic so that shared references suffice.
#[derive(Default)]
struct Element {
    next: AtomicPtr<Element>,
    key: AtomicU64,
    value: AtomicU64,
}

/// An allocator of elements. An element that [`Allocator::take`] returns is valid until it is given back.
trait Allocator: Sync {
    fn take(&self, thread: usize) -> *mut Element;
    /// # Safety
    /// `element` must come from `take`, and not be used any more.
    unsafe fn give(&self, thread: usize, element: *mut Element);
}

/// A hash table of locked bucket lists, as the kernel's.
struct Hash<A> {
    buckets: Box<[CachePadded<Mutex<List>>]>,
    allocator: A,
}

/// A list linked through the elements' `next`.
#[derive(Default)]
struct List(AtomicPtr<Element>);

impl List {
    /// # Safety
    /// `element` must be valid until it is taken out.
    unsafe fn push(&mut self, element: *mut Element) {
        // SAFETY: the caller keeps `element` valid until it is taken out; only this list has it now.
        let linked = unsafe { &*element };
        linked.next.store(*self.0.get_mut(), Ordering::Relaxed);
        *self.0.get_mut() = element;
    }

    fn pop(&mut self) -> Option<*mut Element> {
        let first = *self.0.get_mut();
        // SAFETY: null, or an element in the list, hence valid.
        let linked = unsafe { first.as_ref() }?;
        *self.0.get_mut() = linked.next.load(Ordering::Relaxed);
        Some(first)
    }

    /// Returns the pointer to the element with this key: the list's head or a `next`.
    fn find(&self, key: u64) -> Option<&AtomicPtr<Element>> {
        let mut place = &self.0;
        loop {
            // SAFETY: null, or an element in the list, hence valid.
            let element = unsafe { place.load(Ordering::Relaxed).as_ref() }?;
            if element.key.load(Ordering::Relaxed) == key {
                return Some(place);
            }
            place = &element.next;
        }
    }
}

impl<A: Allocator> Hash<A> {
    fn new(allocator: A) -> Self {
        let buckets = (0..ENTRIES.next_power_of_two()).map(|_| CachePadded::default()).collect();
        Self { buckets, allocator }
    }

    fn bucket(&self, key: u64) -> &Mutex<List> {
        &self.buckets[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.buckets.len()]
    }

    fn update(&self, thread: usize, key: u64, value: u64) {
        let mut list = self.bucket(key).lock();
        let element = self.allocator.take(thread);
        // SAFETY: just taken, hence valid.
        let new = unsafe { &*element };
        new.key.store(key, Ordering::Relaxed);
        new.value.store(value, Ordering::Relaxed);
        let old = list.find(key).map(take_out);
        // SAFETY: valid until it is taken out and given back.
        unsafe { list.push(element) };
        drop(list);
        if let Some(old) = old {
            // SAFETY: it was taken from the allocator, and nothing refers to it now.
            unsafe { self.allocator.give(thread, old) };
        }
    }

    fn look_up(&self, key: u64) -> Option<u64> {
        let list = self.bucket(key).lock();
        let element = list.find(key)?.load(Ordering::Relaxed);
        // SAFETY: an element in the list, hence valid.
        Some(unsafe { &*element }.value.load(Ordering::Relaxed))
    }

    fn delete(&self, thread: usize, key: u64) {
        let list = self.bucket(key).lock();
        let old = list.find(key).map(take_out);
        drop(list);
        // SAFETY: it was taken from the allocator, and nothing refers to it now.
        unsafe { self.allocator.give(thread, old.expect("present")) };
    }
}

/// Takes the element that `place` points to out of its list.
fn take_out(place: &AtomicPtr<Element>) -> *mut Element {
    let element = place.load(Ordering::Relaxed);
    // SAFETY: `find` found it in the list, hence it is valid.
    place.store(unsafe { &*element }.next.load(Ordering::Relaxed), Ordering::Relaxed);
    element
}

impl<A: Allocator> Contender for Hash<A> {
    fn run(&self, thread: usize, count: usize, with_lookup: bool) {
        let key = thread as u64;
        for n in 0..count as u64 {
            self.update(thread, key, n);
            if with_lookup {
                assert_eq!(black_box(self.look_up(key)), Some(n));
            }
            self.delete(thread, key);
        }
    }
}

/// An allocator that calls malloc for each element.
struct Malloc;

impl Allocator for Malloc {
    fn take(&self, _: usize) -> *mut Element {
        Box::into_raw(Box::default())
    }

    unsafe fn give(&self, _: usize, element: *mut Element) {
        // SAFETY: `take` made it by `Box::into_raw`, and the caller gives it back once and uses it no longer.
        drop(unsafe { Box::from_raw(element) });
    }
}

/// Elements allocated beforehand.
struct Slab(Box<[Element]>);

impl Slab {
    fn new() -> Self {
        Self((0..ENTRIES).map(|_| Element::default()).collect())
    }

    fn at(&self, number: usize) -> *mut Element {
        std::ptr::from_ref(&self.0[number]).cast_mut()
    }

    fn number(&self, element: *mut Element) -> usize {
        (element as usize - self.0.as_ptr() as usize) / size_of::<Element>()
    }

    /// Makes a list of the elements with these numbers.
    fn list(&self, numbers: std::ops::Range<usize>) -> List {
        let mut list = List::default();
        for number in numbers {
            // SAFETY: the slab outlives its lists.
            unsafe { list.push(self.at(number)) };
        }
        list
    }
}

/// An allocator of one list with a lock.
struct LockedList {
    free: CachePadded<Mutex<List>>,
    _slab: Slab,
}

impl LockedList {
    fn new() -> Self {
        let slab = Slab::new();
        Self { free: CachePadded::new(Mutex::new(slab.list(0..ENTRIES))), _slab: slab }
    }
}

impl Allocator for LockedList {
    fn take(&self, _: usize) -> *mut Element {
        self.free.lock().pop().expect("more elements than keys")
    }

    unsafe fn give(&self, _: usize, element: *mut Element) {
        // SAFETY: of the slab, which lives as long as the list.
        unsafe { self.free.lock().push(element) };
    }
}

/// An allocator with a bit for each element, set while it is taken; a thread searches from the word in which it found
/// the last one.
struct Bitmap<W> {
    words: Box<[W]>,
    hints: Box<[CachePadded<AtomicUsize>]>,
    slab: Slab,
}

/// A word of a bitmap, with or without a cache line of its own.
trait Word: Sync {
    fn new(taken: u64) -> Self;
    fn bits(&self) -> &AtomicU64;
}

impl Word for AtomicU64 {
    fn new(taken: u64) -> Self {
        AtomicU64::new(taken)
    }

    fn bits(&self) -> &AtomicU64 {
        self
    }
}

impl Word for CachePadded<AtomicU64> {
    fn new(taken: u64) -> Self {
        CachePadded::new(AtomicU64::new(taken))
    }

    fn bits(&self) -> &AtomicU64 {
        self
    }
}

impl<W: Word> Bitmap<W> {
    fn new() -> Self {
        // The bits beyond the last element are always set.
        let words = ENTRIES.div_ceil(64);
        let last = if ENTRIES.is_multiple_of(64) { 0 } else { u64::MAX << (ENTRIES % 64) };
        Self {
            words: (0..words).map(|i| W::new(if i + 1 == words { last } else { 0 })).collect(),
            hints: (0..32).map(|i| CachePadded::new(AtomicUsize::new(i % words))).collect(),
            slab: Slab::new(),
        }
    }
}

impl<W: Word> Allocator for Bitmap<W> {
    fn take(&self, thread: usize) -> *mut Element {
        let hint = &self.hints[thread % self.hints.len()];
        let mut word = hint.load(Ordering::Relaxed);
        loop {
            let bits = self.words[word].bits();
            let mut taken = bits.load(Ordering::Relaxed);
            while taken != u64::MAX {
                let free = taken.trailing_ones();
                // Acquire pairs with the release in `give`: the last owner no longer uses the element.
                taken = bits.fetch_or(1 << free, Ordering::Acquire);
                if taken >> free & 1 == 0 {
                    hint.store(word, Ordering::Relaxed);
                    return self.slab.at(word * 64 + free as usize);
                }
            }
            word = (word + 1) % self.words.len();
        }
    }

    unsafe fn give(&self, _: usize, element: *mut Element) {
        let number = self.slab.number(element);
        // Release pairs with the acquire in `take`.
        self.words[number / 64].bits().fetch_and(!(1 << (number % 64)), Ordering::Release);
    }
}

/// An allocator of ids: each thread caches ids, and a locked pool refills and empties the caches in batches.
struct Ids {
    caches: Box<[CachePadded<Mutex<Vec<u32>>>]>,
    pool: CachePadded<Mutex<Vec<u32>>>,
    slab: Slab,
}

/// Ids moved at once and ids cached, as `IDA_PCPU_BATCH_MOVE` and `IDA_PCPU_SIZE` of the kernel's percpu_ida, smaller
/// because there are fewer ids.
const BATCH: usize = 8;

impl Ids {
    fn new() -> Self {
        Self {
            caches: (0..32).map(|_| CachePadded::new(Mutex::new(Vec::with_capacity(4 * BATCH)))).collect(),
            pool: CachePadded::new(Mutex::new((0..ENTRIES as u32).collect())),
            slab: Slab::new(),
        }
    }
}

impl Allocator for Ids {
    fn take(&self, thread: usize) -> *mut Element {
        let mut cache = self.caches[thread % self.caches.len()].lock();
        if cache.is_empty() {
            let mut pool = self.pool.lock();
            let keep = pool.len().saturating_sub(BATCH);
            cache.extend(pool.drain(keep..));
        }
        self.slab.at(cache.pop().expect("more ids than keys") as usize)
    }

    unsafe fn give(&self, thread: usize, element: *mut Element) {
        let mut cache = self.caches[thread % self.caches.len()].lock();
        cache.push(self.slab.number(element) as u32);
        if cache.len() > 2 * BATCH {
            let keep = cache.len() - BATCH;
            self.pool.lock().extend(cache.drain(keep..));
        }
    }
}

/// Number of lists: the largest number of threads.
const LISTS: usize = THREADS[THREADS.len() - 1];

/// An allocator with a locked list for each CPU (here: thread); a thread whose list is empty takes from the others.
struct PerCpuLists {
    lists: Box<[CachePadded<Mutex<List>>]>,
    _slab: Slab,
}

impl PerCpuLists {
    fn new() -> Self {
        let slab = Slab::new();
        // Elements next to each other go into one list, as in the kernel's `pcpu_freelist_populate`: elements of two
        // lists in one cache line would cause false sharing.
        let share = |i: usize| ENTRIES * i / LISTS..ENTRIES * (i + 1) / LISTS;
        let lists = (0..LISTS).map(|i| CachePadded::new(Mutex::new(slab.list(share(i))))).collect();
        Self { lists, _slab: slab }
    }
}

impl Allocator for PerCpuLists {
    fn take(&self, thread: usize) -> *mut Element {
        let lists = self.lists.len();
        (0..lists).find_map(|i| self.lists[(thread + i) % lists].lock().pop()).expect("more elements than keys")
    }

    unsafe fn give(&self, thread: usize, element: *mut Element) {
        // SAFETY: of the slab, which lives as long as the lists.
        unsafe { self.lists[thread % self.lists.len()].lock().push(element) };
    }
}

/// Our hash map, called by its entry points, in one guard for all patterns of a round.
struct Ours(Map);

impl Ours {
    fn new() -> Self {
        let domain = Domain::new(Options::default());
        Self(Map::create(MapDef::new("bench", MapType::Hash, 8, 8, ENTRIES as u32), &domain).expect("memory"))
    }
}

impl Contender for Ours {
    fn run(&self, thread: usize, count: usize, with_lookup: bool) {
        let guard = self.0.domain().enter().expect("a slot");
        let (map, header, slot) = (self.0.as_ptr(), self.0.header(), guard.slot());
        let key = thread as u64;
        let key = (&raw const key).cast();
        for n in 0..count as u64 {
            // SAFETY: a live map under a guard with this slot; key and value have the map's sizes.
            assert_eq!(unsafe { (header.update)(map, key, (&raw const n).cast(), 0, slot) }, 0);
            if with_lookup {
                // SAFETY: a live map under a guard with this slot; a key of eight bytes.
                let value = unsafe { (header.lookup)(map, key, slot) };
                // SAFETY: present, and an aligned word.
                assert_eq!(black_box(unsafe { value.cast::<u64>().read_volatile() }), n);
            }
            // SAFETY: a live map under a guard with this slot; a key of eight bytes.
            assert_eq!(unsafe { (header.delete)(map, key, slot) }, 0);
        }
    }
}
