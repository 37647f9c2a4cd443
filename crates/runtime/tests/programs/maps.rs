//! The helpers over queues, stacks, Bloom filters, spin locks, per-CPU maps and maps of maps, on both engines, verified
//! and not. The source is `objects/maps.c`.

use crate::support::ways::{self, E2BIG, EINVAL, ENOENT, WAYS, Way, notes, run};
use bpf_runtime::{
    Engine, Instance, Linker, LoadError, MapSet, Object, Raw, RunError,
    maps::{Map, MapDef, MapError, MapType},
};
use std::sync::atomic::{AtomicBool, Ordering};

fn object() -> Object {
    Object::parse(include_bytes!("../objects/maps.o")).unwrap()
}

fn load(way: Way) -> (Engine, Instance<()>) {
    ways::loaded(way, &object())
}

#[test]
fn queues_stacks_and_bloom_filters() {
    for way in WAYS {
        let (_engine, instance) = load(way);
        let queue = [ENOENT, 0, 0, E2BIG, 0, 2, 3, 3];
        assert_eq!(run(&instance, "queues", &[]), notes(&queue), "{way:?}");
        assert_eq!(run(&instance, "queues", &[]), notes(&queue), "{way:?}: it is empty again");
        assert_eq!(run(&instance, "stacks", &[]), notes(&[0, 0, EINVAL, 2, 2, 1, ENOENT]), "{way:?}");
        assert_eq!(run(&instance, "blooms", &[]), notes(&[ENOENT, 0, 0, EINVAL]), "{way:?}");
    }
}

#[test]
fn a_spin_lock_keeps_values_whole() {
    for way in WAYS {
        let (_engine, instance) = load(way);
        assert_eq!(run(&instance, "no_lock", &[]), -i64::from(libc::EINVAL) as u64, "{way:?}");
        let (threads, runs) = (4u64, 500u64);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let instance = &instance;
                scope.spawn(move || {
                    for i in 0..runs {
                        assert_eq!(run(instance, "transfer", &[]), 1, "{way:?}: half a transfer was seen");
                        let len = (thread * 7 + i) as usize % 100;
                        assert_eq!(run(instance, "locked_update", &vec![0; len]), notes(&[0, 1]), "{way:?}");
                    }
                });
            }
        });
        let account = instance.map("accounts").unwrap().get(&[0; 4]).unwrap().unwrap();
        // The lock itself reads as zero.
        assert_eq!(account[..4], [0; 4], "{way:?}");
        let moved = threads * runs;
        assert_eq!(account[8..16], moved.to_ne_bytes(), "{way:?}");
        assert_eq!(account[16..24], moved.to_ne_bytes(), "{way:?}");
    }
}

#[test]
fn per_cpu_values_agree_with_the_slot() {
    for way in WAYS {
        let (engine, instance) = load(way);
        let runs = 300u64;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for i in 0..runs {
                        let key = (i % 5) as u32;
                        let sum = run(&instance, "slots", &key.to_ne_bytes());
                        assert!((1..0x1000).contains(&sum), "{way:?}: {sum:#x}");
                    }
                });
            }
        });
        assert_eq!(run(&instance, "slots", &5u32.to_ne_bytes()), 0x1000, "{way:?}: out of range");
        assert_eq!(run(&instance, "slots", &u32::MAX.to_ne_bytes()), 0x1000, "{way:?}: out of range");
        let map = instance.map("per_cpu").unwrap();
        for key in 0..5u32 {
            let values = map.get(&key.to_ne_bytes()).unwrap().unwrap();
            assert_eq!(values.len(), 24 * engine.domain().max_slots() as usize);
            let word = |value: &[u8], i: usize| u64::from_ne_bytes(value[i * 8..][..8].try_into().unwrap());
            let sum: u64 = values.chunks(24).map(|value| word(value, 1)).sum();
            assert_eq!(sum, 3 * runs / 5, "{way:?}, key {key}");
            assert!(values.chunks(24).all(|value| word(value, 0) == 0 && word(value, 2) == 0), "{way:?}: a neighbour");
        }
    }
}

fn keys(which: u32, name: u32, key: u32) -> Vec<u8> {
    [which, name, key].map(u32::to_ne_bytes).concat()
}

fn inner(engine: &Engine, name: &str, values: [u64; 3]) -> Map {
    let map = Map::create(MapDef::new(name, MapType::Array, 4, 8, 3), engine.domain()).unwrap();
    for (key, value) in (0u32..).zip(values) {
        map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), 0).unwrap();
    }
    map
}

#[test]
fn maps_of_maps() {
    for way in WAYS {
        let (engine, instance) = load(way);
        let (outer, by_name) = (instance.map("outer").unwrap(), instance.map("by_name").unwrap());
        let (first, second) = (instance.map("first").unwrap(), instance.map("second").unwrap());
        let named = inner(&engine, "named", [0; 3]);
        by_name.set_inner(&77u32.to_ne_bytes(), &named, 0).unwrap();
        let at =
            |map: &Map, key: u32| u64::from_ne_bytes(map.get(&key.to_ne_bytes()).unwrap().unwrap().try_into().unwrap());

        assert_eq!(run(&instance, "nested", &keys(0, 77, 1)), 0, "{way:?}");
        assert_eq!(run(&instance, "nested", &keys(0, 77, 1)), 1, "{way:?}");
        assert_eq!(run(&instance, "nested", &keys(2, 77, 2)), 0, "{way:?}");
        assert_eq!((at(&first, 1), at(&second, 2), at(&named, 1), at(&named, 2)), (2, 1, 1, 0), "{way:?}");
        for (which, name, key, missing) in
            [(1, 77, 0, 0x101), (3, 77, 0, 0x101), (u32::MAX, 77, 0, 0x101), (0, 77, 3, 0x102), (0, 78, 0, 0x103)]
        {
            assert_eq!(run(&instance, "nested", &keys(which, name, key)), missing, "{way:?}, {which} {name} {key}");
        }
        second.update(&0u32.to_ne_bytes(), &55u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(run(&instance, "constant", &[]), 55, "{way:?}");

        // The host replaces and removes; programs see it with their next run.
        let other = inner(&engine, "other", [100, 200, 300]);
        outer.set_inner(&0u32.to_ne_bytes(), &other, 0).unwrap();
        assert_eq!(run(&instance, "nested", &keys(0, 77, 2)), 300, "{way:?}");
        outer.delete(&2u32.to_ne_bytes()).unwrap();
        assert_eq!(run(&instance, "constant", &[]), 0x101, "{way:?}");

        // An inner map of another shape is refused, and the error names the difference.
        let def = |value, entries| MapDef::new("wrong", MapType::Array, 4, value, entries);
        for wrong in [def(4, 3), def(8, 4), MapDef::new("wrong", MapType::Hash, 4, 8, 3)] {
            let wrong = Map::create(wrong, engine.domain()).unwrap();
            let error = outer.set_inner(&0u32.to_ne_bytes(), &wrong, 0).unwrap_err();
            assert!(matches!(error, MapError::Incompatible { .. }), "{error}");
        }
        assert_eq!(run(&instance, "nested", &keys(0, 77, 2)), 301, "{way:?}: what was there stays");
    }
}

/// A reset puts the object's inner maps back into their slots, and takes others out.
#[test]
fn a_reset_restores_inner_maps() {
    for way in WAYS {
        let (engine, instance) = load(way);
        let (outer, by_name) = (instance.map("outer").unwrap(), instance.map("by_name").unwrap());
        let other = inner(&engine, "other", [100, 200, 300]);
        for _ in 0..2 {
            assert_eq!(run(&instance, "nested", &keys(0, 77, 1)), 0x103, "{way:?}: nothing has the name");
            [0u32, 1, 2].iter().for_each(|slot| outer.set_inner(&slot.to_ne_bytes(), &other, 0).unwrap());
            by_name.set_inner(&77u32.to_ne_bytes(), &other, 0).unwrap();
            assert_eq!(run(&instance, "nested", &keys(1, 77, 2)), 300, "{way:?}");
            assert_eq!(run(&instance, "constant", &[]), 0x103, "{way:?}: slot 1 is filled");
            instance.reset().unwrap();
            assert_eq!(outer.iter().count(), 2, "{way:?}: slots that are filled");
            assert_eq!(by_name.len(), 0, "{way:?}");
            assert_eq!(run(&instance, "constant", &[]), 0, "{way:?}: slot 2 has the object's map, reset");
            assert_eq!(run(&instance, "nested", &keys(1, 77, 2)), 0x101, "{way:?}");
        }
        // A reset leaves the values of maps that are not the instance's.
        let value = other.get(&2u32.to_ne_bytes()).unwrap().unwrap();
        assert!(u64::from_ne_bytes(value.try_into().unwrap()) >= 300, "{way:?}");
    }
}

/// The host replaces an inner map over and over: a program that has found one uses it, whole, to the end of its run.
#[test]
fn inner_maps_are_replaced_under_running_programs() {
    for way in WAYS {
        let (engine, instance) = load(way);
        let (outer, by_name) = (instance.map("outer").unwrap(), instance.map("by_name").unwrap());
        by_name.set_inner(&1u32.to_ne_bytes(), &inner(&engine, "named", [0; 3]), 0).unwrap();
        outer.set_inner(&0u32.to_ne_bytes(), &inner(&engine, "start", [1000; 3]), 0).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runners: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut runs = 0u64;
                        while !stop.load(Ordering::Relaxed) || runs == 0 {
                            let seen = run(&instance, "nested", &keys(0, 1, 2));
                            // Each map starts at a multiple of 1000 and is soon gone.
                            assert!(seen >= 1000 || seen == 0x101, "{way:?}: {seen}");
                            runs += 1;
                        }
                    })
                })
                .collect();
            for round in 1..400u64 {
                if round % 10 == 0 {
                    outer.delete(&0u32.to_ne_bytes()).unwrap();
                }
                outer.set_inner(&0u32.to_ne_bytes(), &inner(&engine, "next", [round * 1_000_000; 3]), 0).unwrap();
                by_name.set_inner(&1u32.to_ne_bytes(), &inner(&engine, "named", [0; 3]), 0).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            runners.into_iter().for_each(|runner| runner.join().unwrap());
        });
    }
}

// ---- Unverified programs ---------------------------------------------------------------------------------

/// Runs text on the checking interpreter with these maps.
fn interpret(maps: &[MapDef], text: &str) -> Result<u64, RunError> {
    let engine = ways::engine(Way::Interpreted, |config| config);
    let linker = Linker::<()>::new(&engine);
    let maps: Vec<Map> = maps.iter().map(|def| Map::create(def.clone(), engine.domain()).unwrap()).collect();
    if maps.len() == 2 && maps[0].map_type() == MapType::ArrayOfMaps {
        maps[0].set_inner(&[0; 4], &maps[1], 0).unwrap();
    }
    let loader = linker.loader::<Raw>().interpreted(true).maps(&maps.iter().collect::<Vec<_>>());
    let program = loader.insns("test", crate::support::program(text)).unwrap();
    program.run(&mut (), &mut [0; 16])
}

#[test]
fn the_interpreter_checks_rights_and_places() {
    use bpf_runtime::maps::flags;
    let array = MapDef::new("array", MapType::Array, 4, 16, 2);
    let read_only = array.clone().flags(flags::RDONLY_PROG);
    let write_only = array.clone().flags(flags::WRONLY_PROG);
    let mut locked = array.clone();
    locked.spin_lock = Some(4);
    let outer = MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 1).inner(array.clone());
    let find = "*(u32 *)(r10 - 4) = 0; r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; r6 = r0;";
    let update =
        "*(u32 *)(r10 - 4) = 0; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 24) = 0; r1 = map[fd:0]; r2 = r10; r2 += -4;
                  r3 = r10; r3 += -24; r4 = 0; call 2; exit";
    let each = "r1 = map[fd:0]; r2 = subprog[f]; r3 = r10; r3 += -8; r4 = 0; call 164;";

    let values = "r6 = map[fd:0][0]+0;";

    let allowed = |def: &MapDef, text: &str| interpret(std::slice::from_ref(def), text).unwrap();
    assert_eq!(allowed(&array, &format!("{find} *(u64 *)(r6 + 8) = 3; r0 = *(u64 *)(r6 + 8); exit")), 3);
    assert_eq!(allowed(&read_only, &format!("{find} r0 = *(u64 *)(r6 + 8); exit")), 0);
    assert_eq!(
        allowed(
            &locked,
            &format!("{find} r1 = r6; r1 += 4; call 93; *(u64 *)(r6 + 8) = 3; r1 = r6; r1 += 4; call 94; exit")
        ),
        0
    );
    let later = format!(
        "{values} r1 = r6; r1 += 20; call 93; *(u64 *)(r6 + 24) = 3; r1 = r6; r1 += 20; call 94; r0 = *(u64 *)(r6 + 24); exit"
    );
    assert_eq!(allowed(&locked, &later), 3);
    assert_eq!(allowed(&array, &format!("{each} r0 = 0; exit; f: r0 = *(u32 *)(r2 + 0); r0 = 0; exit")), 0);
    let inner = format!(
        "{find} *(u32 *)(r10 - 4) = 1; r1 = r6; r2 = r10; r2 += -4; call 1; *(u64 *)(r0 + 8) = 9; r0 = *(u64 *)(r0 + 8); exit"
    );
    assert_eq!(interpret(&[outer.clone(), array.clone()], &inner).unwrap(), 9);

    for (what, def, text) in [
        ("a store to a read-only value", &read_only, format!("{find} *(u8 *)(r6 + 0) = 1; r0 = 0; exit")),
        ("an update of a read-only map", &read_only, update.to_owned()),
        ("a load from a write-only value", &write_only, format!("{find} r0 = *(u8 *)(r6 + 0); exit")),
        ("a store to a lock", &locked, format!("{find} *(u32 *)(r6 + 4) = 1; r0 = 0; exit")),
        ("a lock that is none", &locked, format!("{find} r1 = r6; call 93; r0 = 0; exit")),
        ("a lock on the stack", &locked, "*(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; call 93; r0 = 0; exit".to_owned()),
        ("a lock taken and kept", &locked, format!("{find} r1 = r6; r1 += 4; call 93; r0 = 0; exit")),
        (
            "a lock taken twice",
            &locked,
            format!("{find} r1 = r6; r1 += 4; call 93; r1 = r6; r1 += 4; call 93; r0 = 0; exit"),
        ),
        // Whatever is called with a lock might wait for another one.
        ("an update with a lock", &locked, format!("{find} r1 = r6; r1 += 4; call 93; {update}")),
        (
            "a helper with a lock",
            &locked,
            format!("{find} r1 = r6; r1 += 4; call 93; call 5; r1 = r6; r1 += 4; call 94; exit"),
        ),
        (
            "a lock given back that is not held",
            &locked,
            format!(
                "{values} r6 += 4; r1 = r6; call 93; r1 = r6; r1 += 16; call 94; r1 = r6; r1 += 16; call 93; r0 = 0; exit"
            ),
        ),
        ("a store to the lock of a later element", &locked, format!("{values} *(u32 *)(r6 + 20) = 1; r0 = 0; exit")),
        ("a store over it", &locked, format!("{values} *(u64 *)(r6 + 16) = 1; r0 = 0; exit")),
        ("an atomic operation on it", &locked, format!("{values} r1 = 1; lock *(u32 *)(r6 + 20) += r1; r0 = 0; exit")),
        (
            "a store to it after a look-up of another element",
            &locked,
            format!("{find} {values} *(u32 *)(r6 + 20) = 1; r0 = 0; exit"),
        ),
        ("a write to a callback's key", &array, format!("{each} r0 = 0; exit; f: *(u32 *)(r2 + 0) = 9; r0 = 0; exit")),
        (
            "a callback's key after it returned",
            &array,
            format!(
                "{each} r1 = *(u64 *)(r10 - 8); r0 = *(u32 *)(r1 + 0); exit; f: *(u64 *)(r4 + 0) = r2; r0 = 1; exit"
            ),
        ),
    ] {
        let result = interpret(std::slice::from_ref(def), &text);
        assert!(result.is_err(), "{what}: {result:?}");
    }
    for text in ["r0 = *(u32 *)(r6 + 0); exit", "*(u32 *)(r6 + 0) = 1; r0 = 0; exit"] {
        let result = interpret(&[outer.clone(), array.clone()], &format!("{find} {text}"));
        assert!(result.is_err(), "the header of an inner map: {result:?}");
    }
}

/// Two programs that take a lock each and then update the other's element under its lock would wait for each other for
/// ever: no budget and no interruption ends a wait.
#[test]
fn interpreted_programs_do_not_wait_for_each_other() {
    let mut locked = MapDef::new("locked", MapType::Array, 4, 16, 2);
    locked.spin_lock = Some(0);
    let engine = ways::engine(Way::Interpreted, |config| config.budget(1 << 20));
    let linker = Linker::<()>::new(&engine);
    let map = Map::create(locked, engine.domain()).unwrap();
    let finished = std::sync::atomic::AtomicU32::new(0);
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for mine in 0..2 {
            // Takes the lock of `mine`, lingers, updates the other one with BPF_F_LOCK.
            let text = format!(
                "*(u32 *)(r10 - 4) = {mine}; r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; if r0 == 0 goto out; r6 = r0; r1 = r6; call 93;
                 r8 = 0; a: r8 += 1; if r8 < 20000 goto a;
                 *(u32 *)(r10 - 4) = {}; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 24) = 0;
                 r1 = map[fd:0]; r2 = r10; r2 += -4; r3 = r10; r3 += -24; r4 = 4; call 2;
                 r1 = r6; call 94; out: r0 = 0; exit",
                1 - mine
            );
            let loader = linker.loader::<Raw>().interpreted(true).maps(&[&map]);
            let program = loader.insns("test", crate::support::program(&text)).unwrap();
            let (finished, barrier) = (&finished, &barrier);
            scope.spawn(move || {
                for _ in 0..20 {
                    barrier.wait();
                    let error = program.run(&mut (), &mut [0; 4]).unwrap_err().to_string();
                    assert!(error.contains("bpf_map_update_elem is not allowed while a lock is held"), "{error}");
                }
                finished.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    assert_eq!(finished.into_inner(), 2);
}

/// A run that is stopped with a lock gives it back.
#[test]
fn a_stopped_run_releases_its_lock() {
    let mut locked = MapDef::new("locked", MapType::Array, 4, 16, 1);
    locked.spin_lock = Some(0);
    let text = "*(u32 *)(r10 - 4) = 0; r7 = r2; r1 = map[fd:0]; r2 = r10; r2 += -4; call 1; if r0 == 0 goto out; r6 = r0; r1 = r6; call 93;
                r8 = 0; a: r8 += 1; if r8 < r7 goto a; r1 = r6; call 94; out: r0 = 0; exit";
    for way in WAYS {
        let engine = ways::engine(way, |config| config.budget(1000));
        let linker = Linker::<()>::new(&engine);
        let map = Map::create(locked.clone(), engine.domain()).unwrap();
        let loader = match way {
            Way::Interpreted => linker.loader::<Raw>().interpreted(true),
            // SAFETY: the program uses a map value, its lock, and its stack.
            _ => unsafe { linker.loader::<Raw>().unverified(true) },
        };
        let program = loader.maps(&[&map]).insns("test", crate::support::program(text)).unwrap();
        for _ in 0..3 {
            let result = program.run(&mut (), &mut vec![0; 100_000]);
            assert!(matches!(result, Err(RunError::Budget { .. })), "{way:?}: {result:?}");
            assert_eq!(program.run(&mut (), &mut [0; 4]).unwrap(), 0, "{way:?}");
        }
    }
}

#[test]
fn taken_over_maps_of_maps_are_compared() {
    let (engine, instance) = load(Way::Verified);
    let object = object();
    let set = || MapSet::for_object(&engine, &object).unwrap();
    // A taken-over map keeps its contents, also if the object has initial entries, and may be frozen.
    let outer = instance.map("outer").unwrap();
    let key = 0u32.to_ne_bytes();
    let before = outer.get_inner(&key).unwrap().map(|map| map.id());
    let mine = inner(&engine, "mine", [1; 3]);
    outer.set_inner(&key, &mine, 0).unwrap();
    assert_ne!(before, Some(mine.id()));
    for round in 0..2 {
        let maps = set().reuse("outer", &outer).unwrap();
        let instance = Linker::<()>::new(&engine).load::<Raw>(&object, maps).unwrap();
        assert!(instance.map("outer").unwrap().same_as(&outer));
        assert!(outer.get_inner(&key).unwrap().unwrap().same_as(&mine), "round {round}");
        if round == 0 {
            outer.freeze().unwrap();
        }
    }
    let template = MapDef::new("inner", MapType::Array, 4, 8, 4);
    let other = MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 3).inner(template);
    let other = Map::create(other, engine.domain()).unwrap();
    let error = set().reuse("outer", &other).unwrap_err();
    assert!(matches!(error, LoadError::Map { source: MapError::Incompatible { .. }, .. }), "{error}");
}

/// Every value that a callback is given stays the program's to the end of its run, and each access is looked up among
/// them.
#[test]
fn an_interpreted_run_may_be_given_every_value_of_a_large_map() {
    const ELEMENTS: u64 = 80_000;
    let text = "*(u64 *)(r10 - 8) = 0; r1 = map[fd:0]; r2 = subprog[f]; r3 = r10; r3 += -8; r4 = 0; call 164; r0 = *(u64 *)(r10 - 8); exit;
                f: r5 = *(u32 *)(r2 + 0); r0 = *(u64 *)(r4 + 0); r0 += r5; *(u64 *)(r4 + 0) = r0;
                r0 = *(u64 *)(r3 + 0); r0 += 1; *(u64 *)(r3 + 0) = r0; r0 = 0; exit";
    let insns = bpf_runtime::isa::assemble(&text.replace(';', "\n")).unwrap();
    let engine = Engine::new(bpf_runtime::Config::new()).unwrap();
    for map_type in [MapType::Hash, MapType::LruHash, MapType::Array] {
        let map = Map::create(MapDef::new("large", map_type, 4, 8, ELEMENTS as u32), engine.domain()).unwrap();
        for key in 0..ELEMENTS as u32 {
            map.update(&key.to_ne_bytes(), &5u64.to_ne_bytes(), 0).unwrap();
        }
        let linker = Linker::<()>::new(&engine);
        let program = linker.loader::<Raw>().interpreted(true).maps(&[&map]).insns("each", insns.clone()).unwrap();
        let (elements, sum) = (map.len(), program.run(&mut (), &mut []).unwrap());
        let keys = (0..ELEMENTS as u32)
            .filter(|key| map.get(&key.to_ne_bytes()).unwrap() == Some(6u64.to_ne_bytes().to_vec()));
        let (count, expected) = keys.fold((0, 0), |(count, sum), key| (count + 1, sum + u64::from(key)));
        assert_eq!((sum, elements), (expected, count), "{map_type:?}");
        assert!(count > ELEMENTS / 2, "{map_type:?}: {count}");
    }
}
