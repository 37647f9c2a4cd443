//! Hash maps under threads: no false miss, no mixed value, exact fullness, linearizable keys, no deadlock on re-entry.
//!
//! Everything observed is counted, so that a test that observed nothing fails. A few seconds in all; the long form is
//! `cargo run --release -p bpf-maps --example soak`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::domain;
use bpf_maps::{Cursor, Errno, Map, MapDef, MapHeader, MapType, flags, program, update};

const WORDS: usize = 6;

/// A value whose every word names its key and the write that made it.
fn value(key: u64, stamp: u64) -> [u64; WORDS] {
    std::array::from_fn(|i| key.rotate_left(i as u32 * 7) ^ stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15 + i as u64 * 2))
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// The stamp of a value of `key`, if all of it comes from one write to that key.
fn stamp_of(key: u64, bytes: &[u8]) -> Option<u64> {
    let words: Vec<u64> = bytes.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
    // Stamps are small: the inverse of the odd multiplier recovers the stamp from the first word.
    let inverse = 0xf1de_83e1_9937_733du64;
    let stamp = (words[0] ^ key).wrapping_mul(inverse);
    (words == value(key, stamp)).then_some(stamp)
}

#[test]
fn stamps_tell_values_apart() {
    for stamp in [0, 1, 77, 1 << 40] {
        assert_eq!(stamp_of(5, &bytes(&value(5, stamp))), Some(stamp));
        assert_eq!(stamp_of(6, &bytes(&value(5, stamp))).filter(|s| *s < 1 << 50), None);
        let mut mixed = value(5, stamp);
        mixed[3] = value(5, stamp + 1)[3];
        assert_eq!(stamp_of(5, &bytes(&mixed)), None);
    }
}

/// The counts of a stress run.
#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    replaced: AtomicU64,
    churned: AtomicU64,
    mixed: AtomicU64,
    iterated: AtomicU64,
}

/// `permanent` keys are always present and are constantly replaced, other keys are added and removed; readers check
/// both.
fn stress(def: MapDef, permanent: u64, threads: u64, time: Duration) {
    let map = Map::create(def, &domain(64)).unwrap();
    for key in 0..permanent {
        map.set(&key.to_ne_bytes(), &bytes(&value(key, 0))).unwrap();
    }
    let (counts, stop) = (Counts::default(), AtomicBool::new(false));
    let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let met = || {
        [
            ("hits", get(&counts.hits)),
            ("replaced", get(&counts.replaced)),
            ("churned", get(&counts.churned)),
            ("iterated", get(&counts.iterated)),
        ]
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (map, counts, stop) = (&map, &counts, &stop);
            scope.spawn(move || {
                let mut n = thread << 32;
                let mut out = [0; WORDS * 8];
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                    let key = key % permanent;
                    match (thread + n) % 4 {
                        0 => {
                            map.update(&key.to_ne_bytes(), &bytes(&value(key, n)), update::EXIST).unwrap();
                            add(&counts.replaced);
                        }
                        1 => {
                            // A key of this thread's own, absent before and after.
                            let own = permanent + (thread << 20) + n % 64;
                            match map.update(&own.to_ne_bytes(), &bytes(&value(own, n)), update::NOEXIST) {
                                Ok(()) => {
                                    map.lookup_and_delete(&own.to_ne_bytes(), &mut out, 0).unwrap();
                                    assert_eq!(stamp_of(own, &out), Some(n), "nobody else writes this key");
                                    add(&counts.churned);
                                }
                                Err(error) => assert_eq!(error.errno(), Errno::E2BIG.0, "{error}"),
                            }
                        }
                        2 => match map.lookup(&key.to_ne_bytes(), &mut out, 0) {
                            Ok(()) => {
                                add(&counts.hits);
                                if stamp_of(key, &out).is_none() {
                                    add(&counts.mixed);
                                }
                            }
                            Err(_) => _ = add(&counts.misses),
                        },
                        _ => {
                            let guard = map.domain().enter().unwrap();
                            // SAFETY: a live map under a guard with this slot.
                            let found = unsafe { program::lookup(map.as_ptr(), (&raw const key).cast(), guard.slot()) };
                            add(if found.is_null() { &counts.misses } else { &counts.hits });
                        }
                    }
                    if n % 4096 == 0 {
                        let mut seen = HashSet::new();
                        let (mut cursor, mut key) = (Cursor::default(), [0; 8]);
                        while map.next(&mut cursor, &mut key, &mut out).unwrap() {
                            let key = u64::from_ne_bytes(key);
                            if stamp_of(key, &out).is_none() {
                                add(&counts.mixed);
                            }
                            assert!(seen.insert(key) || key >= permanent, "met {key} twice");
                        }
                        assert!((0..permanent).all(|key| seen.contains(&key)), "an iteration missed a key");
                        add(&counts.iterated);
                    }
                }
            });
        }
        std::thread::sleep(time);
        // On a busy machine some operation may not have happened yet in that time.
        let start = Instant::now();
        while met().iter().any(|(_, count)| *count == 0) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(time);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(get(&counts.misses), 0, "false misses among {} hits", get(&counts.hits));
    assert_eq!(get(&counts.mixed), 0, "mixed values among {} hits", get(&counts.hits));
    for (what, count) in met() {
        assert!(count > 0, "nothing {what}");
    }
    assert_eq!(map.len(), permanent);
}

const VALUE: u32 = WORDS as u32 * 8;

#[test]
fn a_crowded_hash_neither_misses_nor_mixes() {
    // Full except for two entries: elements are reused as fast as possible, chunks overflow.
    stress(MapDef::new("m", MapType::Hash, 8, VALUE, 26), 24, 4, Duration::from_millis(700));
}

#[test]
fn an_oversubscribed_hash_neither_misses_nor_mixes() {
    stress(MapDef::new("m", MapType::Hash, 8, VALUE, 1000), 500, 32, Duration::from_millis(700));
}

#[test]
fn a_hash_without_preallocation_neither_misses_nor_mixes() {
    let def = MapDef::new("m", MapType::Hash, 8, VALUE, 4000).flags(flags::NO_PREALLOC);
    stress(def, 500, 4, Duration::from_millis(700));
}

#[test]
fn full_is_exact_under_threads() {
    // Each thread has keys of its own, and together they are exactly as many as fit: no insert may ever fail.
    let (threads, each) = (8u64, 3u64);
    for map_flags in [0, flags::NO_PREALLOC] {
        let def = MapDef::new("m", MapType::Hash, 8, 8, (threads * each) as u32).flags(map_flags);
        let map = Map::create(def, &domain(16)).unwrap();
        let full = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (map, full) = (&map, &full);
                scope.spawn(move || {
                    let keys: Vec<_> = (0..each).map(|i| (thread * each + i).to_ne_bytes()).collect();
                    for round in 0..4000u64 {
                        for key in &keys {
                            map.update(key, &round.to_ne_bytes(), update::NOEXIST).unwrap();
                        }
                        full.fetch_add(u64::from(map.len() == threads * each), Ordering::Relaxed);
                        // An insertion beyond `max_entries` must fail while all other keys are present; it may succeed
                        // otherwise.
                        for key in &keys {
                            map.delete(key).unwrap();
                        }
                    }
                });
            }
        });
        assert!(map.is_empty());
        for key in 0..threads * each {
            map.set(&key.to_ne_bytes(), &[0; 8]).unwrap();
        }
        let error = map.set(&u64::MAX.to_ne_bytes(), &[0; 8]).unwrap_err();
        assert_eq!(error.errno(), Errno::E2BIG.0);
    }
}

/// The benchmark `cargo bench -p bpf-benches --bench maps` (32 threads) measures the speed. This test checks that no
/// thread waits for one that is preempted during a change, and that each thread finds its keys.
#[test]
fn nothing_stops_when_threads_outnumber_cores_16_to_1() {
    let threads = 16 * std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let (shared, rounds) = (24, 3000);
    let map = Map::create(MapDef::new("m", MapType::Hash, 8, 8, (shared + threads) as u32), &domain(256)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let map = &map;
            scope.spawn(move || {
                let own = (shared + thread).to_ne_bytes();
                for count in 0..rounds {
                    // All threads insert into the same few chunks.
                    let key = ((thread * 7 + count) % shared).to_ne_bytes();
                    map.set(&key, &count.to_ne_bytes()).unwrap();
                    _ = map.delete(&key);
                    map.set(&own, &count.to_ne_bytes()).unwrap();
                    assert_eq!(map.get(&own).unwrap().as_deref(), Some(&count.to_ne_bytes()[..]));
                }
                map.delete(&own).unwrap();
            });
        }
    });
    assert!(map.is_empty(), "every key was deleted after its last insertion");
}

/// One operation on the key, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Lookup(Option<u64>),
    Insert(u64, bool),
    Replace(u64, bool),
    Delete(bool),
    Take(Option<u64>),
}

impl Event {
    /// The state after the event, if it may happen in `state`.
    fn apply(self, state: Option<u64>) -> Option<Option<u64>> {
        match self {
            Self::Lookup(seen) => (seen == state).then_some(state),
            Self::Insert(new, done) => (done == state.is_none()).then_some(if done { Some(new) } else { state }),
            Self::Replace(new, done) => (done == state.is_some()).then_some(if done { Some(new) } else { state }),
            Self::Delete(done) => (done == state.is_some()).then_some(None),
            Self::Take(taken) => (taken == state).then_some(None),
        }
    }
}

/// Whether some order of the events respects both real time and a single register (Wing and Gong, with memory).
fn linearizable(history: &[(u64, u64, Event)]) -> bool {
    fn search(
        history: &[(u64, u64, Event)],
        done: u64,
        state: Option<u64>,
        seen: &mut HashSet<(u64, Option<u64>)>,
    ) -> bool {
        if done == (1 << history.len()) - 1 {
            return true;
        }
        if !seen.insert((done, state)) {
            return false;
        }
        let open = |i: &usize| done >> i & 1 == 0;
        // An event can be next only if no other open one ended before it began.
        let first_end = (0..history.len()).filter(open).map(|i| history[i].1).min().unwrap_or(0);
        (0..history.len())
            .filter(open)
            .filter(|&i| history[i].0 <= first_end)
            .any(|i| history[i].2.apply(state).is_some_and(|state| search(history, done | 1 << i, state, seen)))
    }
    search(history, 0, None, &mut HashSet::new())
}

#[test]
fn the_checker_rejects_what_is_not_linearizable() {
    let ok = [(0, 1, Event::Insert(1, true)), (2, 3, Event::Lookup(Some(1)))];
    assert!(linearizable(&ok));
    let lost = [(0, 1, Event::Insert(1, true)), (2, 3, Event::Lookup(None))];
    assert!(!linearizable(&lost));
    let overlap = [(0, 3, Event::Insert(1, true)), (1, 2, Event::Lookup(None))];
    assert!(linearizable(&overlap));
    let twice = [(0, 3, Event::Take(Some(1))), (1, 4, Event::Take(Some(1))), (0, 0, Event::Insert(1, true))];
    assert!(!linearizable(&twice));
}

#[test]
fn histories_of_one_key_are_linearizable() {
    const EACH: u64 = 5;
    let mut overlapping = 0;
    for map_flags in [0, flags::NO_PREALLOC] {
        for round in 0..1000u64 {
            // One entry and other keys' traffic, so that elements are recycled at once.
            let def = MapDef::new("m", MapType::Hash, 8, 8, 2).flags(map_flags);
            let map = Map::create(def, &domain(8)).unwrap();
            let clock = AtomicU64::new(1);
            let barrier = std::sync::Barrier::new(4);
            let mut history: Vec<(u64, u64, Event)> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4u64)
                    .map(|thread| {
                        let (map, clock, barrier) = (&map, &clock, &barrier);
                        scope.spawn(move || {
                            let key = 7u64.to_ne_bytes();
                            barrier.wait();
                            (0..EACH)
                                .map(|i| {
                                    let new = thread * 100 + i + 1;
                                    let mut out = [0; 8];
                                    let start = clock.fetch_add(1, Ordering::SeqCst);
                                    let event = match (round * 31 + thread * 7 + i * 3) % 5 {
                                        0 => Event::Lookup(
                                            map.lookup(&key, &mut out, 0).ok().map(|()| u64::from_ne_bytes(out)),
                                        ),
                                        1 => Event::Insert(
                                            new,
                                            map.update(&key, &new.to_ne_bytes(), update::NOEXIST).is_ok(),
                                        ),
                                        2 => Event::Replace(
                                            new,
                                            map.update(&key, &new.to_ne_bytes(), update::EXIST).is_ok(),
                                        ),
                                        3 => Event::Delete(map.delete(&key).is_ok()),
                                        _ => Event::Take(
                                            map.lookup_and_delete(&key, &mut out, 0)
                                                .ok()
                                                .map(|()| u64::from_ne_bytes(out)),
                                        ),
                                    };
                                    let end = clock.fetch_add(1, Ordering::SeqCst);
                                    // Traffic of another key, through the same two elements.
                                    let other = (1000 + thread % 2).to_ne_bytes();
                                    if map.update(&other, &[0xff; 8], update::NOEXIST).is_ok() {
                                        _ = map.delete(&other);
                                    }
                                    (start, end, event)
                                })
                                .collect::<Vec<_>>()
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
            });
            history.sort_unstable_by_key(|e| e.0);
            // Insert may also fail because the map is full of the other keys, which is no statement about this one.
            history.retain(|e| !matches!(e.2, Event::Insert(_, false)));
            overlapping += history.windows(2).filter(|w| w[1].0 < w[0].1).count();
            assert!(linearizable(&history), "round {round}: {history:?}");
        }
    }
    assert!(overlapping > 10, "only {overlapping} operations overlapped");
}

/// The map and slot that the signal handler uses.
static TARGET: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static HANDLED: AtomicI64 = AtomicI64::new(0);
static BUSY: AtomicI64 = AtomicI64::new(0);

extern "C" fn handler(_signal: libc::c_int) {
    let map: *const MapHeader = std::ptr::with_exposed_provenance(TARGET[0].load(Ordering::Relaxed) as usize);
    let slot = TARGET[1].load(Ordering::Relaxed) as u32;
    let (key, value) = (3u64, 5u64);
    // SAFETY: the test sets the target before it sends signals; the interrupted thread is inside its guard.
    let result = unsafe { program::update(map, (&raw const key).cast(), (&raw const value).cast(), 0, slot) };
    // SAFETY: the map that the test set, in the guard of the thread that was interrupted; the key is eight bytes.
    let found = unsafe { program::lookup(map, (&raw const key).cast(), slot) };
    assert!(result != 0 || !found.is_null());
    HANDLED.fetch_add(1, Ordering::Relaxed);
    if result == Errno::EBUSY.as_ret() {
        BUSY.fetch_add(1, Ordering::Relaxed);
    } else {
        assert_eq!(result, 0);
    }
}

#[test]
fn a_signal_handler_that_re_enters_gets_ebusy_and_no_deadlock() {
    let map = Map::create(MapDef::new("m", MapType::Hash, 8, 8, 16), &domain(4)).unwrap();
    let guard = map.domain().enter().unwrap();
    TARGET[0].store(map.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
    TARGET[1].store(guard.slot().into(), Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int) = handler;
    // SAFETY: the handler only does what programs may do in a signal handler (and counts).
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the thread outlives the scope.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let start = Instant::now();
        let mut n = 0u64;
        let enough = || HANDLED.load(Ordering::Relaxed) > 2000 && BUSY.load(Ordering::Relaxed) > 20;
        while !enough() && start.elapsed() < Duration::from_secs(60) {
            n += 1;
            let key = n % 8;
            // SAFETY: a live map under a guard with this slot.
            let result = unsafe {
                program::update(map.as_ptr(), (&raw const key).cast(), (&raw const n).cast(), 0, guard.slot())
            };
            assert_eq!(result, 0, "the interrupted operation is not disturbed");
            if n.is_multiple_of(3) {
                // SAFETY: a live map under a guard with this slot; the key is eight bytes.
                unsafe { program::delete(map.as_ptr(), (&raw const key).cast(), guard.slot()) };
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (handled, busy) = (HANDLED.load(Ordering::Relaxed), BUSY.load(Ordering::Relaxed));
    assert!(handled > 100 && busy > 0, "{handled} signals, {busy} of them inside an operation");
}

/// Threads set the same keys in a map with room for exactly these: a second writer replaces the value, and never gets
/// an error that the map is full.
#[test]
fn a_key_that_filled_the_map_up_is_present() {
    const KEYS: u64 = 2;
    const THREADS: usize = 4;
    for (map_type, map_flags) in [(MapType::Hash, 0), (MapType::Hash, flags::NO_PREALLOC), (MapType::PerCpuHash, 0)] {
        let def = MapDef::new("map", map_type, 8, 8, KEYS as u32).flags(map_flags);
        let map = Map::create(def, &domain(8)).unwrap();
        let value = vec![7; map.host_value_size()];
        let rounds = std::sync::Barrier::new(THREADS);
        // Counted, because a thread that panics would leave the others at the barrier.
        let (refused, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (map, value, rounds, refused, lost) = (&map, &value, &rounds, &refused, &lost);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        rounds.wait();
                        for key in 0..KEYS {
                            let done = map.update(&key.to_ne_bytes(), value, update::ANY);
                            refused.fetch_add(done.is_err().into(), Ordering::Relaxed);
                        }
                        if rounds.wait().is_leader() {
                            let gone = (0..KEYS).filter(|key| map.delete(&key.to_ne_bytes()).is_err()).count();
                            lost.fetch_add(gone as u64, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let counts = (refused.into_inner(), lost.into_inner());
        assert_eq!(counts, (0, 0), "{map_type:?}, flags {map_flags}: updates refused, keys lost");
    }
}
