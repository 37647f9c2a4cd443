//! A long stress test of the hash with many threads: counts false misses and mixed values, of which there must be
//! none.
//!
//! `cargo run --release -p bpf-maps --example soak -- [operations] [threads]` (10^8 and 32 by default, some minutes).
//! The short form is `tests/types/hash_concurrent.rs`. Every key below `PERMANENT` is present throughout and is
//! constantly replaced. Other keys are added and removed with the few remaining elements, so that elements are reused
//! as fast as possible.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bpf_maps::{Map, MapDef, MapType, flags, program, update};
use bpf_quiesce::{Domain, Options};

const PERMANENT: u64 = 2000;
const WORDS: usize = 8;
type Value = [u64; WORDS];

/// A value that names its key and its writer's count in every word.
fn value(key: u64, stamp: u64) -> Value {
    std::array::from_fn(|i| if i % 2 == 0 { key << 32 | i as u64 } else { stamp << 8 | i as u64 })
}

/// Whether all words come from one write to `key`.
fn is_whole(key: u64, value: &Value) -> bool {
    let stamp = value[1] >> 8;
    *value == self::value(key, stamp)
}

fn bytes(value: &Value) -> &[u8] {
    // SAFETY: words are bytes.
    unsafe { std::slice::from_raw_parts(value.as_ptr().cast(), size_of::<Value>()) }
}

fn bytes_mut(value: &mut Value) -> &mut [u8] {
    // SAFETY: words are bytes, and any bytes are words.
    unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<Value>()) }
}

#[derive(Default)]
struct Counts {
    lookups: AtomicU64,
    copies: AtomicU64,
    replaced: AtomicU64,
    inserted: AtomicU64,
    full: AtomicU64,
    missed: AtomicU64,
    mixed: AtomicU64,
}

fn work(map: &Map, counts: &Counts, thread: u64, operations: u64) {
    let [mut lookups, mut copies, mut replaced, mut inserted, mut full, mut missed, mut mixed] = [0u64; 7];
    let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for n in 0..operations {
        random = (random ^ random >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(n);
        let key = (random >> 20) % PERMANENT;
        match random % 8 {
            0..=2 => {
                let guard = map.domain().enter().expect("a slot");
                // SAFETY: a live map under a guard with this slot; a key of its size.
                let found = unsafe { program::lookup(map.as_ptr(), (&raw const key).cast(), guard.slot()) };
                lookups += 1;
                missed += u64::from(found.is_null());
            }
            3..=4 => {
                let mut out = [0; WORDS];
                copies += 1;
                match map.lookup(&key.to_ne_bytes(), bytes_mut(&mut out), 0) {
                    Ok(()) => mixed += u64::from(!is_whole(key, &out)),
                    Err(_) => missed += 1,
                }
            }
            5..=6 => {
                let stamp = thread << 40 | n;
                let done = map.update(&key.to_ne_bytes(), bytes(&value(key, stamp)), update::EXIST);
                replaced += 1;
                missed += u64::from(done.is_err());
            }
            _ => {
                let own = PERMANENT + (thread << 16) + n % 1024;
                match map.update(&own.to_ne_bytes(), bytes(&value(own, n)), update::NOEXIST) {
                    Ok(()) => {
                        let mut out = [0; WORDS];
                        inserted += 1;
                        match map.lookup_and_delete(&own.to_ne_bytes(), bytes_mut(&mut out), 0) {
                            Ok(()) => mixed += u64::from(out != value(own, n)),
                            Err(_) => missed += 1,
                        }
                    }
                    Err(_) => full += 1,
                }
            }
        }
    }
    for (counter, n) in [
        (&counts.lookups, lookups),
        (&counts.copies, copies),
        (&counts.replaced, replaced),
        (&counts.inserted, inserted),
        (&counts.full, full),
        (&counts.missed, missed),
        (&counts.mixed, mixed),
    ] {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (operations, threads) = (arguments.next().unwrap_or(100_000_000), arguments.next().unwrap_or(32));
    let mut bad = 0;
    for (name, entries, map_flags) in
        [("crowded", PERMANENT + 4, 0), ("roomy", 2 * PERMANENT, 0), ("no_prealloc", 2 * PERMANENT, flags::NO_PREALLOC)]
    {
        let domain = Domain::new(Options::new().max_slots(128));
        let def = MapDef::new(name, MapType::Hash, 8, size_of::<Value>() as u32, entries as u32).flags(map_flags);
        let map = Map::create(def, &domain).expect("a map");
        for key in 0..PERMANENT {
            map.set(&key.to_ne_bytes(), bytes(&value(key, 0))).expect("room");
        }
        let (counts, start) = (Counts::default(), Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (map, counts) = (&map, &counts);
                scope.spawn(move || work(map, counts, thread + 1, operations / 3 / threads));
            }
        });
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "{name}: {} lookups, {} copies, {} replaced, {} inserted and deleted, {} full, {:.1} s: {} false misses, {} mixed values",
            get(&counts.lookups),
            get(&counts.copies),
            get(&counts.replaced),
            get(&counts.inserted),
            get(&counts.full),
            start.elapsed().as_secs_f64(),
            get(&counts.missed),
            get(&counts.mixed),
        );
        bad += get(&counts.missed) + get(&counts.mixed);
        assert_eq!(map.len(), PERMANENT);
    }
    std::process::exit(i32::from(bad > 0));
}
