//! Timers in values of maps: the answers of their functions, what callbacks are given, what ends a timer.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Engine, Instance, Linker, LoadError, MapSet, Object, OptLevel, Program, Raw, RunError,
    maps::Map,
    net::{Redirect, Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!("../objects/timers.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn load_into(engine: &Engine, maps: MapSet) -> Result<Instance<()>, LoadError> {
    Linker::<()>::new(engine).loader::<Xdp>().object(&Object::parse(OBJECT).unwrap(), maps)
}

fn load(way: Way) -> Instance<()> {
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &Object::parse(OBJECT).unwrap()).unwrap();
    load_into(&engine, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn program(instance: &Instance<()>, name: &str) -> Program<Xdp, ()> {
    instance.program::<Xdp>(name).unwrap()
}

fn run(instance: &Instance<()>, name: &str, packet: u64) -> u64 {
    let mut packet = [packet.to_ne_bytes(), [0; 8]].concat();
    program(instance, name).run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap()
}

/// How many callbacks of this program ran.
fn call_back(instance: &Instance<()>, name: &str) -> u32 {
    program(instance, name).run_timers(&mut (), &mut XdpBuff::new(&mut [0; 16])).unwrap().ran
}

fn elements(map: &Map) -> BTreeMap<Vec<u8>, Vec<u8>> {
    map.iter().map(|element| element.unwrap()).collect()
}

/// An entry of the array of answers.
fn answer(instance: &Instance<()>, at: u32) -> i64 {
    let answers = instance.map("answers").unwrap();
    i64::from_ne_bytes(answers.get(&at.to_ne_bytes()).unwrap().unwrap().try_into().unwrap())
}

const MAPS: [&str; 5] = ["array", "hash", "lru", "locked", "answers"];

const EBUSY: i64 = -16;
const EINVAL: i64 = -22;
const EDEADLK: i64 = -35;

/// The kernel loads the object unchanged, and all maps are the same there in the end.
#[test]
fn answers_and_calls_are_the_kernels() {
    let mut ours = Vec::new();
    for way in VERIFIED {
        let instance = load(way);
        assert_eq!((run(&instance, "ask", 0), run(&instance, "due", 0)), (2, 2), "{way:?}");
        let asked: Vec<i64> = (0..20).map(|at| answer(&instance, at)).collect();
        let first = [EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, 0, EBUSY, EINVAL, 0, EINVAL];
        let then = [0, 0, 1, 0, EINVAL, 0, 0, 0, EINVAL, 0];
        assert_eq!(asked, [first, then].concat(), "{way:?}");
        // One of them sets itself twice again.
        assert_eq!([(); 4].map(|()| call_back(&instance, "due")), [6, 1, 1, 0], "{way:?}");
        assert_eq!([20, 21, 22].map(|at| answer(&instance, at)), [EDEADLK, 0, 0], "{way:?}");
        let keys: Vec<_> = elements(&instance.map("hash").unwrap()).into_keys().collect();
        assert_eq!(keys, [5u64.to_ne_bytes()], "a callback has deleted its element, {way:?}");
        ours.push(MAPS.map(|map| elements(&instance.map(map).unwrap())));
    }
    assert!(ours.iter().all(|maps| *maps == ours[0]));

    if let Err(reason) = kernel::available() {
        return skipped("timers against the kernel", &reason);
    }
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/timers.o");
    let theirs = match pinned::load(&object) {
        Ok(theirs) => theirs,
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => {
            return skipped("timers against the kernel", &reason.to_string());
        }
        Err(refused) => panic!("{refused}"),
    };
    for name in ["ask", "due"] {
        assert_eq!(theirs.programs[name].test_run_output(&[0; 64]).unwrap().0, 2);
    }
    let theirs = || MAPS.map(|map| theirs.maps[map].elements().unwrap());
    // Its callbacks run when they run.
    for _ in 0..1000 {
        if theirs() == ours[0] {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(theirs(), ours[0]);
}

#[test]
fn a_timer_that_is_not_due_says_when() {
    for way in VERIFIED {
        let instance = load(way);
        let timers = |name| program(&instance, name).run_timers(&mut (), &mut XdpBuff::new(&mut [0; 16])).unwrap();
        assert_eq!((timers("one").ran, timers("one").next), (0, None), "{way:?}");
        assert_eq!(run(&instance, "one", 5), 2);
        assert_eq!(timers("ask").ran, 0, "another program's, {way:?}");
        assert_eq!((timers("one").ran, timers("one").next), (1, None), "{way:?}");
    }
}

/// Whatever becomes of the element: its timer is none any more.
#[test]
fn what_changes_the_value_ends_its_timer() {
    for way in VERIFIED {
        let instance = load(way);
        let hash = instance.map("hash").unwrap();
        let value = |key: u64| hash.get(&key.to_ne_bytes()).unwrap().unwrap();
        for key in [1, 2, 3] {
            assert_eq!(run(&instance, "one", key), 2, "{way:?}");
        }
        let set = |key: u64, value: &[u8]| hash.set(&key.to_ne_bytes(), value).unwrap();
        hash.delete(&1u64.to_ne_bytes()).unwrap();
        set(2, &[0xff; 32]);
        assert_eq!(value(2)[8..24], [0; 16], "nobody writes a timer, or reads it, {way:?}");
        // The element of one that is gone, with another key.
        set(4, &[0; 32]);
        assert_eq!(call_back(&instance, "one"), 1, "{way:?}");
        assert_eq!(value(3), [[1u64, 0, 0, 3].map(u64::to_ne_bytes).concat()].concat(), "{way:?}");
        assert_eq!([2, 4].map(|key| value(key)[24]), [0xff, 0], "{way:?}");
        // The element is deleted and created again under the same key.
        assert_eq!(run(&instance, "one", 3), 2);
        hash.delete(&3u64.to_ne_bytes()).unwrap();
        set(3, &[0; 32]);
        assert_eq!(call_back(&instance, "one"), 0, "{way:?}");
    }
}

#[test]
fn what_is_dropped_is_not_called() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let maps = || MapSet::for_object(&engine, &Object::parse(OBJECT).unwrap()).unwrap();
        let first = load_into(&engine, maps()).unwrap();
        assert_eq!((run(&first, "one", 5), run(&first, "one", 6)), (2, 2));
        let hash = first.map("hash").unwrap();
        drop(first);
        engine.reclaim();
        let second = load_into(&engine, maps().reuse("hash", &hash).unwrap()).unwrap();
        assert_eq!(call_back(&second, "one"), 0, "another version's, {way:?}");
        assert_eq!(run(&second, "one", 5), 2);
        assert_eq!(call_back(&second, "one"), 1, "{way:?}");
        // With its program the map goes as well, and another is where it was.
        assert_eq!(run(&second, "one", 5), 2);
        drop((second, hash));
        engine.reclaim();
        let third = load_into(&engine, maps()).unwrap();
        assert_eq!(run(&third, "one", 5), 2);
        assert_eq!(call_back(&third, "one"), 1, "{way:?}");
    }
}

#[test]
fn a_callback_has_the_programs_budget() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let object = Object::parse(OBJECT).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        let instance = linker.loader::<Xdp>().budget(100).object(&object, maps).unwrap();
        assert_eq!((run(&instance, "slow", 0), run(&instance, "one", 5)), (2, 2));
        let slow = program(&instance, "slow");
        let error = slow.run_timers(&mut (), &mut XdpBuff::new(&mut [0; 16])).unwrap_err();
        assert!(matches!(error, RunError::Budget { .. }), "{way:?}: {error}");
        assert_eq!(call_back(&instance, "slow"), 0, "it is not due again, {way:?}");
        assert_eq!(call_back(&instance, "one"), 1, "{way:?}");
    }
}

/// Helpers in callbacks change the context that the host passes to `run_timers`.
#[test]
fn helpers_in_callbacks_have_the_hosts_context() {
    for way in VERIFIED {
        let instance = load(way);
        assert_eq!(run(&instance, "send", 0), 2);
        let mut packet = [0; 16];
        let mut buff = XdpBuff::new(&mut packet);
        assert_eq!(program(&instance, "send").run_timers(&mut (), &mut buff).unwrap().ran, 1, "{way:?}");
        assert!(matches!(buff.redirect, Some(Redirect::Device { ifindex: 7, .. })), "{way:?}: {:?}", buff.redirect);
    }
}

/// The code that a callback's address is in stays.
#[test]
fn programs_with_callbacks_are_compiled_once() {
    let engine = ways::engine(Way::Verified, |config| config);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let instance = linker.loader::<Xdp>().opt_level(OptLevel::Tiered).object(&object, maps).unwrap();
    assert!(!program(&instance, "one").is_slow());
    assert_eq!(run(&instance, "one", 5), 2);
    assert_eq!(call_back(&instance, "one"), 1);
}

#[test]
fn unverified_programs_have_no_timers() {
    let engine = ways::engine(Way::VerifiedInterpreted, |config| config);
    let linker = Linker::<()>::new(&engine);
    for (id, name) in [(169, "init"), (170, "set_callback"), (171, "start"), (172, "cancel")] {
        let text = format!("r2 = subprog[f]; r3 = 0; call {id}; exit; f: r0 = 0; exit");
        let program = linker.loader::<Raw>().interpreted(true).insns("p", crate::support::program(&text)).unwrap();
        let error = program.run(&mut (), &mut [0; 16]).unwrap_err();
        assert!(error.to_string().contains(&format!("bpf_timer_{name} needs a verified program")), "{error}");
    }
}

/// Timers are set, run, and taken away with their elements by several threads.
#[test]
fn timers_are_set_and_called_by_many_threads() {
    let rounds: u64 = if cfg!(target_arch = "aarch64") { 300 } else { 3000 };
    for way in VERIFIED {
        let instance = load(way);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|worker| {
                    let (instance, hash) = (&instance, instance.map("hash").unwrap());
                    scope.spawn(move || {
                        for i in 0..rounds {
                            let key = (i * 5 + worker) % 6;
                            // The other one may have been in between: then it has a timer, or is gone.
                            run(instance, "one", key);
                            if i % 3 == 0 {
                                let _ = hash.delete(&key.to_ne_bytes());
                            }
                        }
                    })
                })
                .collect();
            let (instance, done) = (&instance, &done);
            let callers = [(); 2].map(|()| {
                scope.spawn(move || {
                    let mut ran = 0;
                    while !done.load(Ordering::Relaxed) {
                        ran += call_back(instance, "one");
                    }
                    ran
                })
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Relaxed);
            for caller in callers {
                let _ran: u32 = caller.join().unwrap();
            }
        });
        call_back(&instance, "one");
        assert_eq!(run(&instance, "one", 1), 2, "{way:?}");
        assert_eq!(call_back(&instance, "one"), 1, "{way:?}");
    }
}

/// Work for later is a timer that is due at once: the kernel loads the object unchanged, and all maps are the same in
/// the end.
#[test]
fn work_for_later_is_done_as_the_kernel_does_it() {
    const WORKS: &[u8] = include_bytes!("../objects/works.o");
    const MAPS: [&str; 3] = ["array", "hash", "answers"];
    let object = Object::parse(WORKS).unwrap();
    let mut ours = Vec::new();
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = Linker::<()>::new(&engine).loader::<Xdp>().object(&object, maps).unwrap();
        assert_eq!(run(&instance, "ask", 0), 2, "{way:?}");
        let asked: Vec<i64> = (0..10).map(|at| answer(&instance, at)).collect();
        assert_eq!(asked, [EINVAL, EINVAL, 0, EBUSY, EINVAL, EINVAL, 0, EINVAL, 0, 0], "{way:?}");
        // Two, and the timer when its nanosecond is over; then one again, and once more.
        while call_back(&instance, "ask") > 0 {}
        let array = elements(&instance.map("array").unwrap());
        let calls = u64::from_ne_bytes(array[&1u32.to_ne_bytes()[..]][..8].try_into().unwrap());
        assert_eq!(calls, 1001, "{way:?}");
        ours.push(MAPS.map(|map| elements(&instance.map(map).unwrap())));
    }
    assert!(ours.iter().all(|maps| *maps == ours[0]));

    if let Err(reason) = kernel::available() {
        return skipped("work for later against the kernel", &reason);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/works.o");
    let theirs = match pinned::load(&path) {
        Ok(theirs) => theirs,
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => {
            return skipped("work for later against the kernel", &reason.to_string());
        }
        Err(refused) => panic!("{refused}"),
    };
    assert_eq!(theirs.programs["ask"].test_run_output(&[0; 64]).unwrap().0, 2);
    let theirs = || MAPS.map(|map| theirs.maps[map].elements().unwrap());
    for _ in 0..1000 {
        if theirs() == ours[0] {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(theirs(), ours[0]);
}
