//! The kernel as oracle: a kernel map and ours, with equal definitions and sequences of operations, must give equal
//! bytes and error numbers.
//!
//! Orders that the kernel leaves open (keys of a hash) are compared as sets. Needs bpf(2), that is, root; otherwise
//! every test prints SKIPPED. More cases: `PROPTEST_CASES=10000 cargo test -p bpf-maps --release --test types
//! kernel`.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use crate::common::{KernelMap, Outcome, domain, possible_cpus};
use bpf_maps::{Cursor, Map, MapDef, MapError, MapType, flags, implemented_types};
use bpf_uapi::MapTypes;
use proptest::prelude::*;

/// An operation, with keys and values as small numbers.
#[derive(Clone, Debug)]
enum Op {
    Lookup { key: u8, flags: u64 },
    Update { key: u8, value: u8, flags: u64 },
    Delete { key: u8 },
    Take { key: u8, flags: u64 },
    NextKey { key: Option<u8> },
    UpdateBatch { keys: Vec<u8>, value: u8, flags: u64 },
    DeleteBatch { keys: Vec<u8> },
    LookupAll { delete: bool },
    Freeze,
}

fn any_op() -> impl Strategy<Value = Op> {
    let key = || 0u8..8;
    // No kernel knows 32. `BPF_F_CPU` and `BPF_F_ALL_CPUS` ask for slices of another size, and few kernels have them.
    let update_flags =
        prop_oneof![8 => Just(0u64), 3 => Just(1), 3 => Just(2), 1 => Just(3), 1 => Just(4), 1 => Just(32)];
    let lookup_flags = || prop_oneof![12 => Just(0u64), 1 => Just(1), 1 => Just(4), 1 => Just(32)];
    let keys = || prop::collection::vec(0u8..8, 1..5);
    prop_oneof![
        4 => (key(), lookup_flags()).prop_map(|(key, flags)| Op::Lookup { key, flags }),
        8 => (key(), any::<u8>(), update_flags).prop_map(|(key, value, flags)| Op::Update { key, value, flags }),
        4 => key().prop_map(|key| Op::Delete { key }),
        2 => (key(), lookup_flags()).prop_map(|(key, flags)| Op::Take { key, flags }),
        2 => prop::option::of(key()).prop_map(|key| Op::NextKey { key }),
        1 => (keys(), any::<u8>(), 0u64..3).prop_map(|(keys, value, flags)| Op::UpdateBatch { keys, value, flags }),
        1 => keys().prop_map(|keys| Op::DeleteBatch { keys }),
        1 => any::<bool>().prop_map(|delete| Op::LookupAll { delete }),
    ]
}

/// The key with a small number, in the shape its map type wants.
fn key_bytes(def: &MapDef, n: u8) -> Vec<u8> {
    let size = def.key_size as usize;
    match def.map_type {
        MapType::LpmTrie => {
            // A few nested and disjoint prefixes, one too long.
            let lens = [0u32, 1, 7, 8, 9, 16, def.key_size * 8 - 32, def.key_size * 8];
            let mut key = lens[n as usize % 8].to_ne_bytes().to_vec();
            key.resize(size, if n.is_multiple_of(2) { 0xa5 } else { 0xa4 });
            key
        }
        _ => {
            let mut key = vec![n];
            key.resize(size, 0);
            key
        }
    }
}

fn outcome<T>(result: Result<T, MapError>, bytes: impl FnOnce(T) -> Vec<u8>) -> Outcome {
    result.map(bytes).map_err(|error| error.errno())
}

/// The observed result of an operation: an outcome, a count and error, or a set of elements.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Outcome(Outcome),
    Counted(u32, Result<(), i32>),
    All(BTreeMap<Vec<u8>, Vec<u8>>, u32, bool),
}

const ROOM: u32 = 32;

fn on_kernel(map: &KernelMap, def: &MapDef, value_size: usize, op: &Op) -> Seen {
    let key = |n| key_bytes(def, n);
    match *op {
        Op::Lookup { key: n, .. } if def.map_type == MapType::BloomFilter => {
            Seen::Outcome(map.contains(&vec![n; value_size]))
        }
        Op::Lookup { key: n, flags } => Seen::Outcome(map.lookup(&key(n), flags)),
        Op::Update { key: n, value, flags } => {
            Seen::Outcome(map.update(&key(n), &host_value(def, value, value_size), flags))
        }
        Op::Delete { key: n } => Seen::Outcome(map.delete(&key(n))),
        Op::Take { key: n, flags } => Seen::Outcome(map.take(&key(n), flags)),
        Op::NextKey { key: n } => Seen::Outcome(map.next_key(n.map(key).as_deref())),
        Op::UpdateBatch { ref keys, value, flags } => {
            let values = host_value(def, value, value_size).repeat(keys.len());
            let (count, result) =
                map.update_batch(&keys.iter().flat_map(|&n| key(n)).collect::<Vec<_>>(), &values, flags);
            counted(count, result, flags)
        }
        Op::DeleteBatch { ref keys } => {
            let (count, result) = map.delete_batch(&keys.iter().flat_map(|&n| key(n)).collect::<Vec<_>>());
            counted(count, result, 0)
        }
        Op::LookupAll { delete } => {
            let (keys, values, count, result) = map.lookup_batch(ROOM, delete);
            match result {
                Ok(()) | Err(libc::ENOENT) => all(def, value_size, &keys, &values, count, result.is_err()),
                Err(errno) => Seen::Outcome(Err(errno)),
            }
        }
        Op::Freeze => Seen::Outcome(map.freeze().map(|()| Vec::new())),
    }
}

/// Where the kernel refuses a batch before it reads the first key, it leaves the count unchanged: none were done.
fn counted(count: u32, result: Result<(), i32>, flags: u64) -> Seen {
    let refused = match result {
        Err(libc::EPERM | 524) => true,
        Err(libc::EINVAL) => flags != 0,
        _ => false,
    };
    Seen::Counted(if refused { 0 } else { count }, result)
}

fn on_ours(map: &Map, op: &Op) -> Seen {
    let def = map.def();
    let key = |n| key_bytes(def, n);
    let size = map.host_value_size();
    match *op {
        Op::Lookup { key: n, .. } if def.map_type == MapType::BloomFilter => {
            Seen::Outcome(outcome(map.lookup(&[], &mut vec![n; size], 0), |()| Vec::new()))
        }
        Op::Lookup { key: n, flags } => {
            let mut value = vec![0; size];
            Seen::Outcome(outcome(map.lookup(&key(n), &mut value, flags), |()| value))
        }
        Op::Update { key: n, value, flags } => {
            Seen::Outcome(outcome(map.update(&key(n), &host_value(def, value, size), flags), |()| Vec::new()))
        }
        Op::Delete { key: n } => Seen::Outcome(outcome(map.delete(&key(n)), |()| Vec::new())),
        Op::Take { key: n, flags } => {
            let mut value = vec![0; size];
            Seen::Outcome(outcome(map.lookup_and_delete(&key(n), &mut value, flags), |()| value))
        }
        Op::NextKey { key: n } => {
            let mut next = vec![0; def.key_size as usize];
            Seen::Outcome(outcome(map.next_key(n.map(key).as_deref(), &mut next), |()| next))
        }
        Op::UpdateBatch { ref keys, value, flags } => {
            let values = host_value(def, value, size).repeat(keys.len());
            let (count, result) =
                map.update_batch(&keys.iter().flat_map(|&n| key(n)).collect::<Vec<_>>(), &values, flags);
            Seen::Counted(count as u32, result.map_err(|error| error.errno()))
        }
        Op::DeleteBatch { ref keys } => {
            let (count, result) = map.delete_batch(&keys.iter().flat_map(|&n| key(n)).collect::<Vec<_>>());
            Seen::Counted(count as u32, result.map_err(|error| error.errno()))
        }
        Op::LookupAll { delete } => {
            let mut keys = vec![0; ROOM as usize * def.key_size as usize];
            let mut values = vec![0; ROOM as usize * size];
            let mut cursor = Cursor::default();
            let result = if delete {
                map.lookup_and_delete_batch(&mut cursor, &mut keys, &mut values)
            } else {
                map.lookup_batch(&mut cursor, &mut keys, &mut values)
            };
            match result {
                Ok(batch) => all(def, size, &keys, &values, batch.count as u32, batch.end),
                Err(error) => Seen::Outcome(Err(error.errno())),
            }
        }
        Op::Freeze => Seen::Outcome(outcome(map.freeze(), |()| Vec::new())),
    }
}

fn all(def: &MapDef, value_size: usize, keys: &[u8], values: &[u8], count: u32, end: bool) -> Seen {
    let keys = keys.chunks(def.key_size as usize).map(<[u8]>::to_vec);
    let values = values.chunks(value_size).map(<[u8]>::to_vec);
    Seen::All(keys.zip(values).take(count as usize).collect(), count, end)
}

/// A host value; for per-CPU maps the padding between the slots is zero, because the kernel may or may not keep it.
fn host_value(def: &MapDef, byte: u8, size: usize) -> Vec<u8> {
    let stride = if def.map_type.is_per_cpu() { (def.value_size as usize).next_multiple_of(8) } else { size };
    (0..size)
        .map(|i| if i % stride < def.value_size as usize { byte.wrapping_add((i / stride) as u8) } else { 0 })
        .collect()
}

/// Hashes list their keys in any order: a walk over all keys checks `next_key`.
fn has_order(def: &MapDef) -> bool {
    !matches!(
        def.map_type,
        MapType::Hash
            | MapType::PerCpuHash
            | MapType::LruHash
            | MapType::LruPerCpuHash
            | MapType::HashOfMaps
            | MapType::DevMapHash
            | MapType::SockHash
    )
}

fn keys_of(mut next: impl FnMut(Option<&[u8]>) -> Outcome) -> (Vec<Vec<u8>>, i32) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        match next(keys.last().map(Vec::as_slice)) {
            Ok(key) => keys.push(key),
            Err(errno) => {
                keys.sort();
                return (keys, errno);
            }
        }
    }
}

fn compare(def: &MapDef, ops: &[Op]) -> Result<(), TestCaseError> {
    let kernel = KernelMap::create(def).map_err(|errno| TestCaseError::fail(format!("kernel: errno {errno}")))?;
    let ours = Map::create(def.clone(), &domain(possible_cpus())).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let batch = |op: &Op| matches!(op, Op::UpdateBatch { .. } | Op::DeleteBatch { .. } | Op::LookupAll { .. });
    for (i, op) in ops.iter().enumerate() {
        if batch(op) && def.key_size == 0 {
            continue;
        }
        if matches!(op, Op::NextKey { .. }) && !has_order(def) {
            let kernel = keys_of(|key| kernel.next_key(key));
            let ours = keys_of(|key| {
                let mut next = vec![0; def.key_size as usize];
                outcome(ours.next_key(key, &mut next), |()| next)
            });
            prop_assert_eq!(ours, kernel, "keys before operation {} of {:?}", i, def);
            continue;
        }
        let expected = on_kernel(&kernel, def, ours.host_value_size(), op);
        let got = on_ours(&ours, op);
        prop_assert_eq!(got, expected, "operation {} ({:?}) on {:?}", i, op, def);
    }
    Ok(())
}

fn check(test: &str, def: MapDef) {
    if !KernelMap::available(test) {
        return;
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(48),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    // Some maps are frozen after a while, and a second time.
    let thawed = prop::collection::vec(any_op(), 1..60);
    let frozen =
        prop::option::weighted(0.3, prop::collection::vec(prop_oneof![20 => any_op(), 1 => Just(Op::Freeze)], 1..30));
    let ops = (thawed, frozen).prop_map(|(mut ops, frozen)| {
        ops.extend(frozen.map(|more| std::iter::once(Op::Freeze).chain(more)).into_iter().flatten());
        ops
    });
    runner.run(&ops, |ops| compare(&def, &ops)).unwrap();
}

macro_rules! agree {
    ($($name:ident: $def:expr;)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name), $def);
        })*
    };
}

agree! {
    array: MapDef::new("m", MapType::Array, 4, 8, 5);
    array_of_odd_values: MapDef::new("m", MapType::Array, 4, 13, 3);
    per_cpu_array: MapDef::new("m", MapType::PerCpuArray, 4, 6, 5);
    hash: MapDef::new("m", MapType::Hash, 4, 8, 4);
    hash_with_odd_sizes: MapDef::new("m", MapType::Hash, 7, 13, 3);
    hash_with_16_byte_keys: MapDef::new("m", MapType::Hash, 16, 64, 4);
    hash_without_preallocation: MapDef::new("m", MapType::Hash, 8, 8, 4).flags(flags::NO_PREALLOC);
    per_cpu_hash: MapDef::new("m", MapType::PerCpuHash, 4, 12, 4);
    per_cpu_hash_without_preallocation: MapDef::new("m", MapType::PerCpuHash, 4, 8, 4).flags(flags::NO_PREALLOC);
    // Large enough that neither side evicts.
    lru_hash: MapDef::new("m", MapType::LruHash, 4, 8, 1024);
    lru_hash_with_own_lists: MapDef::new("m", MapType::LruHash, 4, 8, 4096).flags(flags::NO_COMMON_LRU);
    lru_per_cpu_hash: MapDef::new("m", MapType::LruPerCpuHash, 4, 8, 1024);
    trie_of_4_bytes: MapDef::new("m", MapType::LpmTrie, 8, 8, 5).flags(flags::NO_PREALLOC);
    trie_of_16_bytes: MapDef::new("m", MapType::LpmTrie, 20, 3, 100).flags(flags::NO_PREALLOC);
    queue: MapDef::new("m", MapType::Queue, 0, 5, 3);
    stack: MapDef::new("m", MapType::Stack, 0, 8, 3);
    read_only: MapDef::new("m", MapType::Hash, 4, 8, 4).flags(flags::RDONLY);
    write_only: MapDef::new("m", MapType::Hash, 4, 8, 4).flags(flags::WRONLY);
}

/// Redirect maps, with entries that every kernel has: the loopback device and the first CPU.
#[test]
fn redirect_maps_follow_the_kernel() {
    if !KernelMap::available("redirect_maps_follow_the_kernel") {
        return;
    }
    let domain = domain(possible_cpus());
    let device = |program: i32| [1u32.to_ne_bytes(), program.to_ne_bytes()].concat();
    let no_device = |program: i32| [0u32.to_ne_bytes(), program.to_ne_bytes()].concat();
    let devices = [device(0), device(-1), no_device(0), no_device(-1), no_device(7)];
    let queues: Vec<_> = [0u32, 1, 192, 16384, 16385].iter().map(|n| [n.to_ne_bytes(), [0; 4]].concat()).collect();
    // A CPU map has only one key that is there on every machine, and one beyond its end.
    let cases =
        [(MapType::DevMap, &devices[..], 4u32), (MapType::DevMapHash, &devices, 4), (MapType::CpuMap, &queues, 1)];
    for ((map_type, values, entries), value_size) in cases.into_iter().flat_map(|case| [(case, 4), (case, 8)]) {
        let def = MapDef::new("m", map_type, 4, value_size, entries);
        let (kernel, ours) = (KernelMap::create(&def).unwrap(), Map::create(def.clone(), &domain).unwrap());
        let mut random = 0x9e37_79b9u32;
        for step in 0..400 {
            random = random.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let pick = |shift: u32, n: usize| (random >> shift) as usize % n;
            let key = (pick(8, entries as usize + 1) as u32).to_ne_bytes();
            let value = &values[pick(16, values.len())][..value_size as usize];
            let flags = [0, 0, 0, 1, 2, 3][pick(20, 6)];
            let (expected, got) = match pick(24, 5) {
                0 => (kernel.delete(&key), outcome(ours.delete(&key), |()| Vec::new())),
                1 => {
                    let mut next = vec![0; 4];
                    let got = ours.next_key(Some(&key), &mut next);
                    (kernel.next_key(Some(&key)), outcome(got, |()| next))
                }
                _update => {
                    (kernel.update(&key, value, flags), outcome(ours.update(&key, value, flags), |()| Vec::new()))
                }
            };
            // The kernel defines no order of a hash's keys.
            if !has_order(&def) && pick(24, 5) == 1 {
                continue;
            }
            assert_eq!(got, expected, "step {step}: key {key:?}, value {value:?}, flags {flags}, {def:?}");
            for key in 0..=entries {
                let mut out = vec![0; value_size as usize];
                let got = ours.lookup(&key.to_ne_bytes(), &mut out, 0);
                // The program's number is not compared: the kernel returns an id that it assigned.
                let number = |bytes: Vec<u8>| bytes[..4].to_vec();
                let got = outcome(got, |()| number(out));
                assert_eq!(got, kernel.lookup(&key.to_ne_bytes(), 0).map(number), "step {step}: {key} of {def:?}");
            }
        }
    }
}

/// Maps of sockets: entries are sockets of this process; our map stores the numbers of their descriptors.
#[test]
fn maps_of_sockets_follow_the_kernel() {
    if !KernelMap::available("maps_of_sockets_follow_the_kernel") {
        return;
    }
    let domain = domain(possible_cpus());
    let sockets: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let numbers: Vec<u64> = sockets.iter().map(|socket| socket.as_raw_fd() as u64).collect();
    const ENTRIES: u32 = 4;
    for (map_type, value_size) in
        [MapType::SockMap, MapType::SockHash].into_iter().flat_map(|map_type| [(map_type, 4), (map_type, 8)])
    {
        let def = MapDef::new("m", map_type, 4, value_size, ENTRIES);
        let (kernel, ours) = (KernelMap::create(&def).unwrap(), Map::create(def.clone(), &domain).unwrap());
        let mut random = 0x9e37_79b9u32;
        for step in 0..400 {
            random = random.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let pick = |shift: u32, n: usize| (random >> shift) as usize % n;
            // One more key than there is room for.
            let key = (pick(8, ENTRIES as usize + 1) as u32).to_ne_bytes();
            let value = &numbers[pick(16, numbers.len())].to_ne_bytes()[..value_size as usize];
            let flags = [0, 0, 0, 1, 2, 3, 4][pick(20, 7)];
            let (expected, got) = match pick(24, 5) {
                0 | 1 => (kernel.delete(&key), outcome(ours.delete(&key), |()| Vec::new())),
                2 if map_type == MapType::SockMap => {
                    let mut next = vec![0; 4];
                    let got = ours.next_key(Some(&key), &mut next);
                    (kernel.next_key(Some(&key)), outcome(got, |()| next))
                }
                _update => {
                    (kernel.update(&key, value, flags), outcome(ours.update(&key, value, flags), |()| Vec::new()))
                }
            };
            assert_eq!(got, expected, "step {step}: key {key:?}, flags {flags}, {def:?}");
            for key in 0..=ENTRIES {
                // The kernel returns a socket's cookie in eight bytes; our map returns the number that was written.
                let there = |found: Outcome| found.map(|_| ());
                let mut out = vec![0; value_size as usize];
                let got = there(outcome(ours.lookup(&key.to_ne_bytes(), &mut out, 0), |()| Vec::new()));
                if value_size == 8 {
                    assert_eq!(got, there(kernel.lookup(&key.to_ne_bytes(), 0)), "step {step}: {key} of {def:?}");
                }
                assert!(got.is_err() || numbers.iter().any(|number| number.to_ne_bytes().starts_with(&out)));
            }
        }
    }
}

#[test]
fn bloom_filters_never_forget() {
    if !KernelMap::available("bloom_filters_never_forget") {
        return;
    }
    let def = MapDef::new("m", MapType::BloomFilter, 0, 8, 100);
    let kernel = KernelMap::create(&def).unwrap();
    let ours = Map::create(def, &domain(1)).unwrap();
    for n in 0..100u64 {
        assert_eq!(kernel.update(&[], &n.to_ne_bytes(), 0), Ok(Vec::new()));
        ours.push(&n.to_ne_bytes(), 0).unwrap();
    }
    for n in 0..100u64 {
        assert_eq!(kernel.contains(&n.to_ne_bytes()), Ok(Vec::new()));
        assert!(ours.peek(&mut n.to_ne_bytes()).unwrap());
    }
    for flags in 1..5 {
        let ours = outcome(ours.update(&[], &[0; 8], flags), |()| Vec::new());
        assert_eq!(ours, kernel.update(&[], &[0; 8], flags), "flags {flags}");
    }
    assert_eq!(outcome(ours.delete(&[]), |()| Vec::new()), kernel.delete(&[]));
    assert_eq!(
        outcome(ours.lookup_and_delete(&[], &mut [0; 8], 0), |()| Vec::new()),
        kernel.take(&[], 0).map(|_| Vec::new())
    );
    assert_eq!(outcome(ours.next_key(None, &mut []), |()| Vec::new()), kernel.next_key(None));
    let rate = |contains: &dyn Fn(u64) -> bool| (1000..11_000u64).filter(|&n| contains(n)).count();
    let theirs = rate(&|n| kernel.contains(&n.to_ne_bytes()).is_ok());
    let mine = rate(&|n| ours.peek(&mut n.to_ne_bytes()).unwrap());
    assert!(mine < 2 * theirs + 300, "false positives in 10,000: {mine}, the kernel's {theirs}");
}

#[test]
fn bad_definitions_get_the_kernels_error() {
    if !KernelMap::available("bad_definitions_get_the_kernels_error") {
        return;
    }
    let page = 4096;
    let keys = [0, 1, 4, 5, 8, 260, 261, 513, 1 << 20, 1 << 22];
    let values = [0, 1, 4, 8, (32 << 10) - 8, (32 << 10) + 1, 1 << 22, u32::MAX - 8, u32::MAX];
    let entries = [0, 1, 3, page];
    let all_flags = (0..15).map(|bit| 1 << bit).chain([0, (1 << 3) | (1 << 4), (1 << 7) | (1 << 8), 0x8000_0000]);
    let all_flags: Vec<u32> = all_flags.collect();
    let domain = domain(possible_cpus());
    let mut compared = 0;
    for map_type in implemented_types() {
        // Maps of maps need an inner descriptor: tested below. Storage maps have other keys and entries than the
        // kernel's.
        if map_type.is_map_of_maps() || MapTypes::STORAGE.contains(map_type) {
            continue;
        }
        for &key_size in &keys {
            for &value_size in &values {
                for &max_entries in &entries {
                    // The kernel really allocates, so large valid definitions are left out.
                    let bytes = (u64::from(key_size) + u64::from(value_size)) * u64::from(max_entries);
                    if bytes > 32 << 20 && value_size < u32::MAX - 8 {
                        continue;
                    }
                    for &flag in &all_flags {
                        // Everything with every flag would take minutes: flags go with well-formed shapes.
                        let shaped = matches!(key_size, 0 | 4 | 8) && matches!(value_size, 0 | 4 | 8);
                        if flag != 0 && !(shaped && max_entries != 0) {
                            continue;
                        }
                        for flags in [flag, flag | flags::NO_PREALLOC] {
                            let def = MapDef::new("m", map_type, key_size, value_size, max_entries).flags(flags);
                            let kernel = KernelMap::create(&def).map(|_| ());
                            let ours = Map::create(def.clone(), &domain);
                            if let (Err(libc::ENOMEM), Ok(_)) | (Ok(()), Err(MapError::MemoryLimit { .. })) =
                                (&kernel, &ours)
                            {
                                continue; // The amount of memory differs, and may.
                            }
                            if map_type == MapType::CpuMap && kernel == Err(libc::E2BIG) && ours.is_ok() {
                                continue; // The number of CPUs that a kernel is built for differs, too.
                            }
                            if let Err(MapError::MemoryLimit { .. }) = ours {
                                assert!(matches!(kernel, Err(libc::ENOMEM | libc::E2BIG)), "{def:?}: {kernel:?}");
                                continue;
                            }
                            let message = ours.as_ref().map_or_else(ToString::to_string, |_| String::new());
                            let ours = ours.map(|_| ()).map_err(|error| error.errno());
                            assert_eq!(ours, kernel, "{def:?}\n{message}");
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 5000, "{compared}");
    // Only bloom filters use `map_extra`.
    for (map_type, key_size) in
        [(MapType::BloomFilter, 0), (MapType::Hash, 4), (MapType::Array, 4), (MapType::Queue, 0)]
    {
        for map_extra in (0..20).chain([1 << 32, u64::MAX]) {
            let mut def = MapDef::new("m", map_type, key_size, 8, 3);
            def.map_extra = map_extra;
            let kernel = KernelMap::create(&def).map(|_| ());
            let ours = Map::create(def.clone(), &domain).map(|_| ()).map_err(|error| error.errno());
            assert_eq!(ours, kernel, "{def:?}");
        }
    }
}

/// Each operation on a frozen map of each type that has elements, with each access flag (the random sequences above
/// rarely reach all combinations).
#[test]
fn frozen_maps_refuse_what_the_kernels_refuse() {
    if !KernelMap::available("frozen_maps_refuse_what_the_kernels_refuse") {
        return;
    }
    let shapes = [
        (MapType::Array, 4),
        (MapType::PerCpuArray, 4),
        (MapType::Hash, 4),
        (MapType::PerCpuHash, 4),
        (MapType::LruHash, 4),
        (MapType::LruPerCpuHash, 4),
        (MapType::LpmTrie, 8),
        (MapType::Queue, 0),
        (MapType::Stack, 0),
    ];
    for (map_type, key_size) in shapes {
        for flags in [0, flags::RDONLY, flags::WRONLY, flags::RDONLY_PROG, flags::WRONLY_PROG] {
            let on_demand = if map_type == MapType::LpmTrie { flags::NO_PREALLOC } else { 0 };
            let def = MapDef::new("m", map_type, key_size, 8, 64).flags(flags | on_demand);
            let Ok(kernel) = KernelMap::create(&def) else {
                assert!(Map::create(def.clone(), &domain(1)).is_err(), "{def:?}");
                continue;
            };
            let ours = Map::create(def.clone(), &domain(possible_cpus())).unwrap();
            let key = 1u8;
            let mut ops = vec![
                Op::Update { key, value: 7, flags: 0 },
                Op::Update { key, value: 8, flags: 4 },
                Op::Lookup { key, flags: 0 },
                Op::Take { key, flags: 0 },
                Op::Delete { key },
                Op::Update { key, value: 9, flags: 0 },
            ];
            if key_size > 0 {
                ops.extend([
                    Op::NextKey { key: None },
                    Op::UpdateBatch { keys: vec![1, 2], value: 5, flags: 0 },
                    Op::LookupAll { delete: false },
                    Op::DeleteBatch { keys: vec![2] },
                    Op::LookupAll { delete: true },
                    Op::Update { key, value: 3, flags: 0 },
                ]);
            }
            ops.push(Op::Freeze);
            for round in 0..3 {
                for op in &ops {
                    let expected = on_kernel(&kernel, &def, ours.host_value_size(), op);
                    assert_eq!(on_ours(&ours, op), expected, "round {round}, {op:?} on {def:?}");
                }
            }
        }
    }
}

#[test]
fn bad_definitions_of_maps_of_maps_get_the_kernels_error() {
    if !KernelMap::available("bad_definitions_of_maps_of_maps_get_the_kernels_error") {
        return;
    }
    let inner = [
        MapDef::new("i", MapType::Array, 4, 8, 2),
        MapDef::new("i", MapType::Array, 4, 8, 2).flags(flags::INNER_MAP),
        MapDef::new("i", MapType::Array, 4, 8, 2).flags(flags::MMAPABLE),
        MapDef::new("i", MapType::PerCpuArray, 4, 8, 2),
        MapDef::new("i", MapType::Hash, 4, 8, 2),
        MapDef::new("i", MapType::Queue, 0, 8, 2),
        MapDef::new("i", MapType::RingBuf, 0, 0, 1 << 16),
        MapDef::new("i", MapType::ArrayOfMaps, 4, 4, 2).inner(MapDef::new("j", MapType::Array, 4, 8, 2)),
    ];
    let domain = domain(possible_cpus());
    for map_type in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        for key_size in [0, 1, 4, 8] {
            for value_size in [0, 4, 8] {
                for max_entries in [0, 3] {
                    for flag in (0..15).map(|bit| 1u32 << bit).chain([0, 3 << 3, 3 << 7, 0x8000_0000]) {
                        for inner in &inner {
                            let def = MapDef::new("m", map_type, key_size, value_size, max_entries);
                            let def = def.flags(flag).inner(inner.clone());
                            let kernel = KernelMap::create(&def).map(|_| ());
                            let ours = Map::create(def.clone(), &domain).map(|_| ()).map_err(|error| error.errno());
                            assert_eq!(ours, kernel, "{def:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Entries set, replaced, read and removed, with each access flag, before and after a freeze.
#[test]
fn entries_of_maps_of_maps_follow_the_kernel() {
    if !KernelMap::available("entries_of_maps_of_maps_follow_the_kernel") {
        return;
    }
    let inner =
        [(8, 2), (8, 2), (16, 2), (8, 3)].map(|(value, entries)| MapDef::new("i", MapType::Array, 4, value, entries));
    for map_type in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        for flag in [0, flags::RDONLY, flags::WRONLY] {
            let def = MapDef::new("m", map_type, 4, 4, 2).flags(flag).inner(inner[0].clone());
            let domain = domain(possible_cpus());
            let (kernel, ours) = (KernelMap::create(&def).unwrap(), Map::create(def.clone(), &domain).unwrap());
            let theirs = inner.each_ref().map(|def| KernelMap::create(def).unwrap());
            let own = inner.each_ref().map(|def| Map::create(def.clone(), &domain).unwrap());
            let errno = |result: Result<(), MapError>| result.map_err(|error| error.errno());
            for round in 0..3 {
                for key in [0u32, 1, 2, 5].map(u32::to_ne_bytes) {
                    for which in 0..inner.len() {
                        for update_flags in 0..5 {
                            let says = format!("{def:?}: {key:?} to {which}, flags {update_flags}, round {round}");
                            let expected = kernel.update(&key, &theirs[which].as_value(), update_flags).map(|_| ());
                            assert_eq!(errno(ours.set_inner(&key, &own[which], update_flags)), expected, "{says}");
                            let expected = kernel.lookup(&key, 0).map(|_| ());
                            let mut value = [0; 4];
                            assert_eq!(errno(ours.lookup(&key, &mut value, 0)), expected, "{says}");
                            if expected.is_ok() {
                                let entry = ours.get_inner(&key).unwrap().unwrap();
                                assert_eq!(u32::from_ne_bytes(value), entry.id(), "{says}");
                            }
                        }
                    }
                    let (expected, got) = (kernel.delete(&key).map(|_| ()), errno(ours.delete(&key)));
                    assert_eq!(got, expected, "{def:?}: delete {key:?}, round {round}");
                }
                assert_eq!(errno(ours.freeze()), kernel.freeze(), "{def:?}, round {round}");
            }
        }
    }
}
