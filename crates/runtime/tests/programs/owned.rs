//! Objects that programs own: the same programs in the kernel, and that nothing is left of an object whose owner goes.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Account, Caller, Engine, HelperError, Instance, Linker, LoadError, MapSet, Object, Program, RunError,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/owned.o");
const LOADS: &[u8] = include_bytes!("../objects/owned_loads.o");
const NESTED: &[u8] = include_bytes!("../objects/owned_nested.o");
const STOPPED: &[u8] = include_bytes!("../objects/owned_stopped.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const PROGRAMS: [&str; 4] = ["stash", "queue", "order", "share"];

/// An engine, an account that all of its objects are counted in, and the object.
fn load(way: Way) -> (Engine, Account, Instance<()>) {
    load_object(way, OBJECT)
}

fn load_object(way: Way, object: &[u8]) -> (Engine, Account, Instance<()>) {
    let engine = ways::engine(way, |config| config);
    let account = engine.account("objects", 1 << 30);
    let object = Object::parse(object).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let instance = linker.loader::<Xdp>().account(&account).object(&object, maps);
    let instance = instance.unwrap_or_else(|e| panic!("{way:?}: {e}"));
    (engine, account, instance)
}

/// Returns a packet with a request: operation, key, value. Padded to the least length of a packet in the kernel.
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

/// Returns pseudorandom requests for a program.
fn asks(name: &str, count: u64) -> Vec<[u64; 3]> {
    let mut state = 11u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    (0..count)
        .map(|i| match name {
            // More puts than deletions; of the LRU map no more keys than fit surely.
            "stash" => [[1, 1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23][below(12) as usize], below(2), i % 300],
            "queue" => [[1, 2, 1, 2, 3, 4, 5, 6][below(8) as usize], below(3), i % 300],
            "order" => [[1, 1, 2, 3, 3, 4][below(6) as usize], below(60), i % 300],
            "indexed" => [[1, 2, 3, 3, 4][below(5) as usize], below(4), i % 300],
            "keyed" => [[1, 1, 2, 3, 3, 4, 4, 5][below(8) as usize], below(4), i % 300],
            "variable" => [[1, 2][below(2) as usize], 0, i % 300],
            "bin" => [[1, 1, 1, 1, 2, 3, 4][below(7) as usize], below(4), i % 300],
            "crate" => [[1, 1, 1, 2, 2, 3][below(6) as usize], below(2), (7 * i) % 300],
            _share => [[1, 1, 2, 3, 5, 6][below(6) as usize], below(60), i % 300],
        })
        .collect()
}

/// The kernel loads the object unchanged, and answers the same.
#[test]
fn answers_are_the_kernels() {
    compare("owned.o", OBJECT, &PROGRAMS, 200);
}

/// A stashed object can be read, written and shared in place, as in the kernel.
#[test]
fn loads_are_the_kernels() {
    compare("owned_loads.o", LOADS, &["indexed", "keyed", "variable"], 100);
}

/// Objects hold lists and trees of others, which their own locks guard, and drop them as they are dropped.
#[test]
fn objects_in_objects_are_the_kernels() {
    compare("owned_nested.o", NESTED, &["bin", "crate"], 100);
}

/// Objects are taken out, dropped and replaced while other threads look at them and become owners of them.
#[test]
fn what_is_loaded_stays_while_others_drop_it() {
    for way in VERIFIED {
        let (engine, account, instance) = load_object(way, LOADS);
        let rounds = if way.is_interpreted() { 3_000 } else { 30_000u64 };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let instance = &instance;
                scope.spawn(move || {
                    for i in 0..rounds {
                        let what = if thread < 2 { [1, 2, 1, 5][i as usize % 4] } else { 3 + i % 2 };
                        let name = ["indexed", "keyed"][(i / 4) as usize % 2];
                        // An array's elements are not deleted.
                        let what = if what == 5 && name == "indexed" { 1 } else { what };
                        let answer = ask(instance, name, [what, i % 3, i]);
                        assert!(answer < 1000, "{name} {what}: {answer}, {way:?}");
                    }
                });
            }
        });
        drop(instance);
        is_used_up(&engine, &account);
    }
}

/// The kernel loads the object unchanged, and answers the same; at least so many answers are different ones.
fn compare(file: &str, object: &[u8], programs: &[&str], different: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects").join(file);
    let theirs = match kernel::available().map(|()| pinned::load(&path)) {
        Ok(Ok(theirs)) => Some(theirs),
        Ok(Err(reason @ pinned::NotLoaded::NoLoader(_))) => {
            skipped("objects against the kernel", &reason.to_string());
            None
        }
        Ok(Err(refused)) => panic!("{refused}"),
        Err(reason) => {
            skipped("objects against the kernel", &reason);
            None
        }
    };
    let mut first: Option<Vec<u64>> = None;
    for way in VERIFIED {
        let (engine, account, instance) = load_object(way, object);
        let mut answers = Vec::new();
        for &name in programs {
            for what in asks(name, 600) {
                let answer = ask(&instance, name, what);
                assert!(answer < 1000, "{name} {what:?}: {answer}, {way:?}");
                answers.push(answer);
            }
        }
        let mut kinds = answers.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() > different, "they say something: {}", kinds.len());
        assert_eq!(*first.get_or_insert_with(|| answers.clone()), answers, "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
    let (Some(theirs), Some(ours)) = (theirs, first) else { return };
    let mut ours = ours.into_iter();
    for &name in programs {
        for (i, what) in asks(name, 600).into_iter().enumerate() {
            let (answer, _) = theirs.programs[name].test_run_output(&packet(what)).unwrap();
            assert_eq!(ours.next(), Some(answer.into()), "{name}, {i}: {what:?}");
        }
    }
}

/// Timers come in the order in which they expire, whatever the order they were set in.
#[test]
fn trees_are_in_order() {
    for way in VERIFIED {
        let (_engine, _account, instance) = load(way);
        for expires in [50, 20, 90, 70, 10, 40, 30, 80, 60] {
            assert_eq!(ask(&instance, "order", [1, expires, expires + 1]), 0, "{way:?}");
        }
        assert_eq!(ask(&instance, "order", [3, 70, 0]), 71, "{way:?}");
        assert_eq!(ask(&instance, "order", [3, 75, 0]), 0, "{way:?}");
        let expired = || ask(&instance, "order", [2, 55, 0]);
        assert_eq!([(); 6].map(|()| expired()), [11, 21, 31, 41, 51, 0], "{way:?}");
        assert_eq!(ask(&instance, "order", [3, 20, 0]), 0, "{way:?}");
    }
}

/// Objects in a map are freed with the element that holds them (deleted, overwritten or evicted) and with the map.
#[test]
fn nothing_is_left_of_what_maps_held() {
    for way in VERIFIED {
        let (engine, account, instance) = load(way);
        let used = |what: &str, ask_for: &dyn Fn()| {
            let before = account.used();
            ask_for();
            let after = account.used();
            assert!(after > before, "{what}: objects are counted, {way:?}");
        };
        let map = |name| instance.map(name).unwrap();
        let put = |what: u64, key: u64| assert_eq!(ask(&instance, "stash", [what, key, 7]), 0, "{way:?}");
        used("a hash", &|| (0..4).for_each(|key| (put(3, key), put(1, key)).1));
        // The value is the host's to see and to write, but for the pointer.
        let value = map("stashes").get(&1u64.to_ne_bytes()).unwrap().unwrap();
        assert_eq!(value, [1u64.to_ne_bytes(), [0; 8]].concat(), "{way:?}");
        map("stashes").set(&1u64.to_ne_bytes(), &[0xff; 16]).unwrap();
        assert_eq!(ask(&instance, "stash", [2, 1, 0]), 0, "written anew: nothing is there, {way:?}");
        map("stashes").delete(&2u64.to_ne_bytes()).unwrap();
        put(3, 2);
        assert_eq!(ask(&instance, "stash", [2, 2, 0]), 0, "another element, {way:?}");
        assert_eq!(ask(&instance, "stash", [2, 3, 0]), 7 + 14, "this one is there, {way:?}");
        used("an LRU hash", &|| (0..40).for_each(|key| (put(13, key), put(11, key)).1));
        used("an array", &|| put(21, 1));
        let slot = 1u32.to_ne_bytes();
        map("slots").set(&slot, &[0; 16]).unwrap();
        assert_eq!(ask(&instance, "stash", [22, 1, 0]), 0, "written anew, {way:?}");
        used("lists", &|| (0..30).for_each(|i| _ = ask(&instance, "queue", [1 + i % 2, i % 3, i])));
        map("queues").set(&0u32.to_ne_bytes(), &[0; 32]).unwrap();
        assert_eq!(ask(&instance, "queue", [3, 0, 0]), 0, "written anew, {way:?}");
        assert_ne!(ask(&instance, "queue", [3, 1, 0]), 0, "the other list, {way:?}");
        used("a tree", &|| (0..30).for_each(|i| _ = ask(&instance, "order", [1, i, i])));
        used("both", &|| (0..30).for_each(|i| _ = ask(&instance, "share", [1, i, i])));
        assert!(map("stashes").dump().is_err(), "a dump would not have the objects");
        drop(instance);
        is_used_up(&engine, &account);
    }
}

/// Without memory there is no object, and no run fails.
#[test]
fn memory_has_an_end() {
    for way in VERIFIED {
        let (engine, account, instance) = load(way);
        account.set_limit(account.used() + 4000).unwrap();
        let pushed = (0..100).take_while(|i| ask(&instance, "queue", [1, 0, *i]) == 0).count();
        assert!((10..100).contains(&pushed), "{pushed}, {way:?}");
        assert_eq!(ask(&instance, "queue", [1, 0, 0]), 1001, "{way:?}");
        // Removed elements make room for others after a grace period.
        for _ in 0..1000 {
            if ask(&instance, "queue", [3, 0, 0]) == 0 {
                break;
            }
        }
        let again = (0..100).any(|i| ask(&instance, "queue", [1, 0, i]) == 0);
        assert!(again, "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
}

fn load_stopped(way: Way, budget: u64) -> (Engine, Account, Instance<u32>) {
    let engine = ways::engine(way, |config| config);
    let account = engine.account("objects", 1 << 30);
    let object = Object::parse(STOPPED).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let mut linker = Linker::<u32>::new(&engine);
    linker
        .func(1001, "host", |c: &mut Caller<'_, u32>, value: u64| -> Result<u64, HelperError> {
            match *c.host() {
                0 => Ok(value),
                1 => Err(HelperError::new("the host's own reasons")),
                _other => panic!("the host has lost its head"),
            }
        })
        .unwrap();
    let loader = linker.loader::<Xdp>().account(&account).budget(budget);
    let instance = loader.object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    (engine, account, instance)
}

/// A run that is stopped gives up what it owns, and the lock.
#[test]
fn stopped_runs_give_up_what_they_own() {
    for way in VERIFIED {
        let (engine, account, instance) = load_stopped(way, 200);
        let program = |name| -> Program<Xdp, u32> { instance.program::<Xdp>(name).unwrap() };
        let run = |name, mut host: u32, value: u32| {
            let mut packet = [0; 64];
            let mut buff = XdpBuff::new(&mut packet);
            buff.ingress_ifindex = value;
            program(name).run(&mut host, &mut buff)
        };
        assert_eq!(run("calls", 0, 5).unwrap(), 5, "{way:?}");
        let after_one = account.used();
        for round in 0..300 {
            let error = run("calls", 1 + round % 2, 5).unwrap_err();
            assert!(matches!(error, RunError::Host { .. }), "{way:?}: {error}");
        }
        assert!(account.used() < after_one + 300 * 64, "they are not left, {way:?}");
        // Alone in the tree it is compared with nothing; the next comparison takes more than there is.
        assert_eq!(run("adds", 0, 5).unwrap(), 0, "{way:?}");
        for _ in 0..300 {
            let error = run("adds", 0, 6).unwrap_err();
            assert!(matches!(error, RunError::Budget { .. }), "{way:?}: {error}");
            // The lock is free.
            assert_eq!(run("looks", 0, 0).unwrap(), 1, "{way:?}");
        }
        assert!(account.used() < after_one + 300 * 64, "they are not left, {way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
}

/// Only the verifier can tell what is done to objects.
#[test]
fn unverified_programs_have_no_objects() {
    let engine = ways::engine(Way::Interpreted, |config| config);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let error = linker.loader::<bpf_runtime::Raw>().interpreted(true).object(&object, maps).unwrap_err();
    let needs = matches!(&error, LoadError::NeedsVerifier { context, .. } if context.contains("hold objects"));
    assert!(needs, "{error}");
}

/// Another version of the programs takes over the map and what is in it, if the types are the same.
#[test]
fn maps_are_taken_over_with_what_they_hold() {
    let (engine, _account, old) = load(Way::Verified);
    assert_eq!(ask(&old, "stash", [3, 1, 0]), 0);
    assert_eq!(ask(&old, "stash", [1, 1, 7]), 0);
    assert_eq!(ask(&old, "queue", [2, 0, 8]), 0);
    let object = Object::parse(OBJECT).unwrap();
    let maps =
        ["stashes", "queues"].into_iter().try_fold(MapSet::for_object(&engine, &object).unwrap(), |maps, name| {
            maps.reuse(name, &old.map(name).unwrap())
        });
    let new = Linker::<()>::new(&engine).loader::<Xdp>().object(&object, maps.unwrap()).unwrap();
    drop(old);
    engine.reclaim();
    assert_eq!(ask(&new, "stash", [2, 1, 0]), 7 + 14);
    assert_eq!(ask(&new, "queue", [3, 0, 0]), 9);
    let other = bpf_runtime::maps::MapDef::new("stashes", bpf_runtime::maps::MapType::Hash, 8, 16, 4);
    let plain = bpf_runtime::maps::Map::create(other, engine.domain()).unwrap();
    let error = MapSet::for_object(&engine, &object).unwrap().reuse("stashes", &plain).unwrap_err();
    assert!(error.to_string().contains("own objects"), "{error}");
}

/// Several threads at one list and one tree: each object that was put in comes out once.
#[test]
fn threads_share_lists_and_trees() {
    const EACH: u64 = 2000;
    for way in [Way::Verified, Way::VerifiedInterpreted] {
        let (engine, account, instance) = load(way);
        let sums: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2u64)
                .map(|thread| {
                    let instance = &instance;
                    scope.spawn(move || {
                        let mut sum = 0;
                        for i in 0..EACH {
                            assert_eq!(ask(instance, "share", [1, (i * 7 + thread) % 50, 1]), 0);
                            sum += ask(instance, "share", [2 + i % 2, 0, 0]) << (32 * (i % 2));
                            assert_eq!(ask(instance, "queue", [1 + i % 2, 2, 0]), 0);
                            assert_eq!(ask(instance, "queue", [3 + i % 2, 2, 0]), 1);
                        }
                        sum
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let mut rest = [0, 0];
        for (what, rest) in [2, 3].into_iter().zip(&mut rest) {
            while ask(&instance, "share", [what, 0, 0]) == 1 {
                *rest += 1;
            }
        }
        assert_eq!([(sums & 0xffff_ffff) + rest[0], (sums >> 32) + rest[1]], [2 * EACH; 2], "{way:?}");
        drop(instance);
        is_used_up(&engine, &account);
    }
}
