//! Objects with an instance for each CPU: the same programs in the kernel, the same ones refused, and that nothing is
//! left of an object whose owner goes.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Account, Engine, Instance, Linker, LoadError, MapSet, Object,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/owned_percpu.o");
const APART: &[u8] = include_bytes!("../objects/owned_percpu_apart.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const PROGRAMS: [&str; 4] = ["each_indexed", "each_keyed", "each_variable", "each_boxed"];

/// Each program of the other object, and what becomes of it here and in the kernel: `None` is accepted, else what the
/// message says.
const VERDICTS: &[(&str, Option<&str>, bool)] = &[
    ("is_left", Some("neither dropped nor given"), false),
    ("drops_as_plain", Some("an object that the program owns"), false),
    ("drops_plain", Some("an object with an instance for each CPU that the program owns"), false),
    ("makes_pointers", Some("a structure of numbers"), false),
    ("makes_locks", Some("a structure of numbers"), false),
    ("makes_large", Some("of 512 bytes at most"), false),
    ("reads_it_directly", Some("may not be accessed"), false),
    ("writes_its_own_directly", Some("may not be accessed"), false),
    ("asks_its_own", Some("stashed in a map value"), false),
    ("drops_what_is_stashed", Some("that the program owns"), false),
    ("stashes_another", Some("an object of the kptr's type"), false),
    ("drops_it_twice", Some("took the object"), false),
    ("reads_behind", Some("memory of 16 bytes"), false),
    ("stashes_as_plain", Some("an object of the kptr's type"), false),
    ("trusts_the_first", None, true),
    ("looks_later", None, true),
    ("asks_beyond", None, true),
    // The kernel takes an instance for granted, whatever the number, and an object of the type for one with instances.
    ("trusts_every_cpu", Some("may be null"), true),
    ("stashes_plain", Some("an object of the kptr's type"), true),
];

/// An engine with so many slots, an account that all of its objects are counted in, and programs of the object.
#[expect(clippy::result_large_err, reason = "a test reads both parts")]
fn load(
    way: Way,
    slots: u32,
    bytes: &[u8],
    only: &[&str],
) -> Result<(Engine, Account, Instance<()>), (Engine, LoadError)> {
    let engine = ways::engine(way, |config| config.max_slots(slots));
    let account = engine.account("objects", 1 << 30);
    let object = Object::parse(bytes).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    match linker.loader::<Xdp>().account(&account).only(only).object(&object, maps) {
        Ok(instance) => Ok((engine, account, instance)),
        Err(error) => Err((engine, error)),
    }
}

fn loaded(way: Way, slots: u32, bytes: &[u8], only: &[&str]) -> (Engine, Account, Instance<()>) {
    load(way, slots, bytes, only).unwrap_or_else(|(_, e)| panic!("{way:?}: {e}"))
}

/// Returns a packet with a request: operation, key and number of CPUs, value. Padded to the least length of a packet in
/// the kernel.
fn packet(ask: [u64; 3]) -> Vec<u8> {
    [ask.map(u64::to_ne_bytes).concat(), vec![0; 40]].concat()
}

fn ask(instance: &Instance<()>, name: &str, ask: [u64; 3]) -> u64 {
    let mut packet = packet(ask);
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap()
}

/// Nothing is counted any more once all that waits for runs is over.
fn is_used_up(engine: &Engine, account: &Account) {
    for _ in 0..3 {
        engine.reclaim();
        engine.domain().drain().unwrap();
    }
    assert_eq!(account.used(), 0);
}

/// Number of CPUs that every engine here has.
fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(16) as u64)
}

/// Returns pseudorandom requests for a program.
fn asks(name: &str, count: u64) -> Vec<[u64; 3]> {
    let mut state = 11u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let cpus = cpus() << 32;
    (0..count)
        .map(|i| match name {
            "each_indexed" => [[1, 2, 3, 3, 3, 4, 4][below(7) as usize], below(4) | cpus, i % 300],
            "each_keyed" => [[1, 1, 2, 3, 3, 3, 4, 4, 6][below(9) as usize], below(4) | cpus, i % 300],
            "each_variable" => [[1, 3, 3, 4][below(4) as usize], cpus, i % 300],
            _each_boxed => [[1, 1, 2, 3][below(4) as usize], below(4) | cpus, i % 300],
        })
        .collect()
}

/// The kernel loads the object unchanged, and answers the same.
#[test]
fn instances_are_the_kernels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/owned_percpu.o");
    let theirs = match kernel::available().map(|()| pinned::load(&path)) {
        Ok(Ok(theirs)) => Some(theirs),
        Ok(Err(reason @ pinned::NotLoaded::NoLoader(_))) => {
            skipped("instances against the kernel", &reason.to_string());
            None
        }
        Ok(Err(refused)) => panic!("{refused}"),
        Err(reason) => {
            skipped("instances against the kernel", &reason);
            None
        }
    };
    let mut first: Option<Vec<u64>> = None;
    for way in VERIFIED {
        let (engine, account, instance) = loaded(way, 64, OBJECT, &PROGRAMS);
        let mut answers = Vec::new();
        for name in PROGRAMS {
            for what in asks(name, 600) {
                let answer = ask(&instance, name, what);
                assert!(answer < 1000, "{name} {what:?}: {answer}, {way:?}");
                answers.push(answer);
            }
        }
        let mut kinds = answers.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() > 100, "they say something: {}", kinds.len());
        assert_eq!(*first.get_or_insert_with(|| answers.clone()), answers, "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
    let (Some(theirs), Some(ours)) = (theirs, first) else { return };
    let mut ours = ours.into_iter();
    for name in PROGRAMS {
        for (i, what) in asks(name, 600).into_iter().enumerate() {
            // The kernel takes instances from a small store that it fills by and by.
            let answers = (0..1000).map(|_| {
                let (answer, _) = theirs.programs[name].test_run_output(&packet(what)).unwrap();
                if answer > 1000 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                answer
            });
            let answer = answers.into_iter().find(|answer| *answer < 1000).unwrap_or(1001);
            assert_eq!(ours.next(), Some(answer.into()), "{name}, {i}: {what:?}");
        }
    }
}

/// The object with one of its programs in the section that loaders load.
fn alone(name: &str) -> Vec<u8> {
    let (section, mut bytes) = (format!("?kprobe/{name}\0"), APART.to_vec());
    let mut found = 0;
    while let Some(at) = bytes.windows(section.len()).position(|window| window == section.as_bytes()) {
        bytes[at..at + 4].copy_from_slice(b"xdp\0");
        found += 1;
    }
    assert_eq!(found, 2, "{name}: in the names of sections, and of BTF");
    bytes
}

#[test]
fn verdicts_are_the_kernels() {
    let theirs = |name: &str| -> Option<bool> {
        let path = std::env::temp_dir().join(format!("bpf-owned-percpu-{}-{name}.o", std::process::id()));
        std::fs::write(&path, alone(name)).unwrap();
        let loaded = kernel::available().map(|()| pinned::load(&path));
        std::fs::remove_file(&path).unwrap();
        match loaded {
            Ok(Ok(_)) => Some(true),
            // A program that is not loaded by default cannot be pinned; a refusal by the verifier is reported before
            // that.
            Ok(Err(pinned::NotLoaded::Refused(text))) if text.contains("failed to load: -") => Some(false),
            Ok(Err(pinned::NotLoaded::Refused(text))) if text.contains("wasn't loaded") => Some(true),
            Ok(Err(pinned::NotLoaded::NoLoader(_))) | Err(_) => None,
            Ok(Err(other)) => panic!("{name}: {other}"),
        }
    };
    let mut asked = 0;
    for &(name, message, accepted) in VERDICTS {
        for way in VERIFIED {
            match (load(way, 64, APART, &[name]), message) {
                (Ok(_), None) => {}
                (Err((_, error)), Some(message)) => {
                    assert!(error.to_string().contains(message), "{name}, {way:?}: {error}");
                }
                (Ok(_), Some(message)) => panic!("{name} is accepted, {way:?}: not {message}"),
                (Err((_, error)), None) => panic!("{name}, {way:?}: {error}"),
            }
        }
        if let Some(theirs) = theirs(name) {
            assert_eq!(theirs, accepted, "{name}: the kernel's verdict");
            asked += 1;
        }
    }
    if asked == 0 {
        skipped("verdicts on instances against the kernel", &"no kernel to ask");
    }
}

/// There are as many instances as slots, and none beyond, near 2^32 either.
#[test]
fn there_is_an_instance_for_each_slot() {
    for (way, slots) in VERIFIED.into_iter().flat_map(|way| [1, 2, 3, 64].map(|slots| (way, slots))) {
        let (engine, account, instance) = loaded(way, slots, APART, &["asks_beyond"]);
        let asks = |cpu: u32| {
            let mut packet = [cpu.to_ne_bytes().to_vec(), vec![0; 60]].concat();
            let program = instance.program::<Xdp>("asks_beyond").unwrap();
            program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap()
        };
        for cpu in (0..70).chain([127, 128, 1 << 16, 1 << 20, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX]) {
            assert_eq!(asks(cpu), u64::from(cpu < slots), "{cpu} of {slots}, {way:?}");
        }
        drop(instance);
        is_used_up(&engine, &account);
    }
}

/// Threads count in instances of their own, while others replace, take out and drop the objects, and delete elements.
#[test]
fn threads_count_apart() {
    for way in VERIFIED {
        let (engine, account, instance) = loaded(way, 8, OBJECT, &PROGRAMS);
        assert_eq!(ask(&instance, "each_variable", [1, 8 << 32, 0]), 0);
        let rounds = if way.is_interpreted() { 2_000 } else { 20_000u64 };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let instance = &instance;
                scope.spawn(move || {
                    for i in 0..rounds {
                        let cpus = 8u64 << 32;
                        // The object is not replaced, so no addition is lost; concurrent additions tear no sum.
                        assert_eq!(ask(instance, "each_variable", [3, cpus, 1]), 0);
                        let what = if thread < 2 { [1, 2, 1, 6][i as usize % 4] } else { 3 };
                        let name = ["each_indexed", "each_keyed"][(i / 4) as usize % 2];
                        // An array's elements are not deleted.
                        let what = if what == 6 && name == "each_indexed" { 1 } else { what };
                        let answer = ask(instance, name, [what, (i % 3) | cpus, i]);
                        assert!(answer < 1000, "{name} {what}: {answer}, {way:?}");
                    }
                });
            }
        });
        // The first addition was of 5.
        let adds = 1 + 4 * rounds;
        assert_eq!(ask(&instance, "each_variable", [4, 8 << 32, 0]), (5 + 4 * rounds + 1000 * adds) % 251, "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
}

/// Each counts what its instances take, and without memory there is none.
#[test]
fn instances_are_counted() {
    for way in VERIFIED {
        let (engine, account, instance) = loaded(way, 64, OBJECT, &PROGRAMS);
        let before = account.used();
        assert_eq!(ask(&instance, "each_indexed", [1, 1 << 32, 0]), 0);
        // 24 and 512 bytes for each of 64 slots.
        assert!(account.used() - before >= 64 * (24 + 512), "{}", account.used() - before);
        account.set_limit(account.used() + 1000).unwrap();
        assert_eq!(ask(&instance, "each_keyed", [1, 1 << 32, 0]), 1001, "{way:?}");
        assert_eq!(ask(&instance, "each_boxed", [1, 1 << 32, 0]), 1002, "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
}
