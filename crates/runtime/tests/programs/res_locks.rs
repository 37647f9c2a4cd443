//! Locks that may fail: the same programs in the kernel, threads that want them in every order, and that a run which is
//! stopped has none left.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Engine, Instance, Linker, MapSet, Object, Raw, RunError,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;
use std::sync::Barrier;

const OBJECT: &[u8] = include_bytes!("../objects/res_locks.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

/// Errors of taking a lock, as the programs report them: 1000 plus the error number.
const EDEADLK: u64 = 1035;
const ETIMEDOUT: u64 = 1110;
/// The other run did not arrive in time.
const ALONE: u64 = 5003;

fn load(way: Way, budget: Option<u64>) -> (Engine, Instance<()>) {
    let engine = ways::engine(way, |config| config);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let loader = linker.loader::<Xdp>();
    let loader = if let Some(budget) = budget { loader.budget(budget) } else { loader };
    let instance = loader.object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"));
    (engine, instance)
}

/// Two keys and an amount. Some bytes more, so that the kernel takes it for a packet.
fn packet(ask: [u64; 3]) -> Vec<u8> {
    [ask.map(u64::to_ne_bytes).concat(), vec![0; 40]].concat()
}

fn try_ask(instance: &Instance<()>, name: &str, ask: [u64; 3]) -> Result<u64, RunError> {
    let mut packet = packet(ask);
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet))
}

fn ask(instance: &Instance<()>, name: &str, ask: [u64; 3]) -> u64 {
    try_ask(instance, name, ask).unwrap()
}

/// Returns whether a flag is set.
fn told(instance: &Instance<()>, key: u32) -> bool {
    instance.map("flags").unwrap().get(&key.to_ne_bytes()).unwrap().unwrap() != [0; 8]
}

fn tell(instance: &Instance<()>, key: u32, what: u64) {
    instance.map("flags").unwrap().set(&key.to_ne_bytes(), &what.to_ne_bytes()).unwrap();
}

/// The kernel loads the object unchanged, and answers the same, also where both locks are one.
#[test]
fn answers_are_the_kernels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/res_locks.o");
    let theirs = match kernel::available().map(|()| pinned::load(&path)) {
        Ok(Ok(theirs)) => Some(theirs),
        Ok(Err(reason @ pinned::NotLoaded::NoLoader(_))) => {
            skipped("locks against the kernel", &reason.to_string());
            None
        }
        Ok(Err(refused)) => panic!("{refused}"),
        Err(reason) => {
            skipped("locks against the kernel", &reason);
            None
        }
    };
    let asks: Vec<(&str, [u64; 3])> = (0..32u64)
        .flat_map(|i| {
            let what = [i % 4, i / 4 % 4, i];
            ["transfer", "named_transfer", "nested", "queue"].map(|name| (name, what))
        })
        .collect();
    for way in VERIFIED {
        let (_engine, instance) = load(way, None);
        for (i, (name, what)) in asks.iter().enumerate() {
            let answer = ask(&instance, name, *what);
            let one = name.ends_with("transfer") && what[0] == what[1];
            assert_eq!(answer == EDEADLK, one, "{name} {what:?}: {answer}, {way:?}");
            assert!(answer < 5000, "{name} {what:?}: {answer}, {way:?}");
            if let (Some(theirs), Way::Verified) = (&theirs, way) {
                let (expected, _) = theirs.programs[*name].test_run_output(&packet(*what)).unwrap();
                assert_eq!(answer, u64::from(expected), "{name}, {i}: {what:?}");
            }
        }
        assert_eq!(ask(&instance, "nested", [0; 3]), 45, "{way:?}");
        // A copy of the value has 0 in place of the lock.
        let value = instance.map("accounts").unwrap().get(&[0; 4]).unwrap().unwrap();
        assert_eq!(value[8..12], [0; 4], "{way:?}");
        assert_ne!(value[12..], [0; 4], "{way:?}");
    }
}

/// Threads that move amounts to and fro, in every order of locks: no update is lost, and no run waits without end.
#[test]
fn threads_take_locks_in_every_order() {
    for way in VERIFIED {
        let (_engine, instance) = load(way, None);
        let (threads, rounds) = (4u64, 1000u64);
        let moves: u64 = std::thread::scope(|scope| {
            let run = |thread: u64| {
                let instance = &instance;
                scope.spawn(move || {
                    let mut moved = 0;
                    for i in 0..rounds {
                        // Half of the threads in the one order, half in the other.
                        let (a, b) = (i % 4, (i + 1 + i / 4 % 3) % 4);
                        let (a, b) = if thread.is_multiple_of(2) { (a, b) } else { (b, a) };
                        match ask(instance, "transfer", [a, b, thread + 1]) {
                            0 => moved += 1,
                            error => assert!([EDEADLK, ETIMEDOUT].contains(&error), "{error}, {way:?}"),
                        }
                    }
                    moved
                })
            };
            let threads: Vec<_> = (0..threads).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(moves > 0, "{way:?}");
        let accounts = (0..4u32).map(|key| instance.map("accounts").unwrap().get(&key.to_ne_bytes()).unwrap().unwrap());
        let (mut balance, mut noted) = (0, 0);
        for value in accounts {
            balance += i64::from_ne_bytes(value[..8].try_into().unwrap());
            noted += u64::from(u32::from_ne_bytes(value[12..16].try_into().unwrap()));
        }
        assert_eq!((balance, noted), (0, 2 * moves), "{way:?}");
    }
}

/// Two runs that hold a lock each and want the other's: at least one of them gets `-EDEADLK`.
#[test]
fn a_circle_of_two_is_found() {
    for way in VERIFIED {
        let (_engine, instance) = load(way, None);
        // A thread that is not scheduled for long comes too late: then again.
        let found = (0..50).any(|_| {
            (0..4).for_each(|key| tell(&instance, key, 0));
            let start = Barrier::new(2);
            let answers = std::thread::scope(|scope| {
                let run = |a: u64| {
                    let (instance, start) = (&instance, &start);
                    scope.spawn(move || {
                        start.wait();
                        ask(instance, "meets", [a, 1 - a, 0])
                    })
                };
                [run(0), run(1)].map(|thread| thread.join().unwrap())
            });
            for answer in answers {
                assert!([0, EDEADLK, ETIMEDOUT, ALONE].contains(&answer), "{answers:?}, {way:?}");
            }
            // Whatever came of it, both are free.
            assert_eq!(ask(&instance, "transfer", [0, 1, 1]), 0, "{way:?}");
            answers.contains(&EDEADLK)
        });
        assert!(found, "{way:?}");
    }
}

/// A run does not wait without end for a lock that another run keeps.
#[test]
fn waiting_has_an_end() {
    for way in VERIFIED {
        let (_engine, instance) = load(way, None);
        let (answer, kept) = std::thread::scope(|scope| {
            let holder = scope.spawn(|| ask(&instance, "holds", [2, 3, 0]));
            while !told(&instance, 2) && !holder.is_finished() {
                std::thread::yield_now();
            }
            let answer = ask(&instance, "transfer", [2, 1, 1]);
            tell(&instance, 3, 1);
            (answer, holder.join().unwrap())
        });
        // A holder that found no time to be told in has released it before.
        assert!((answer, kept) == (ETIMEDOUT, 0) || kept == ALONE, "{answer}, {kept}, {way:?}");
        assert_eq!(ask(&instance, "transfer", [2, 1, 1]), 0, "{way:?}: it is free");
    }
}

/// A run that is stopped with locks has none any more.
#[test]
fn stopped_runs_release_their_locks() {
    for way in VERIFIED {
        let (_engine, instance) = load(way, Some(1000));
        for _ in 0..20 {
            let error = try_ask(&instance, "holds", [1, 3, 0]).unwrap_err();
            assert!(matches!(error, RunError::Budget { .. }), "{way:?}: {error}");
            assert_eq!(ask(&instance, "transfer", [1, 0, 1]), 0, "{way:?}");
        }
    }
}

/// Unverified programs are held to the same rules when they run.
#[test]
fn the_interpreter_checks_the_order_of_locks() {
    let object = Object::parse(include_bytes!("../objects/res_locks_loose.o")).unwrap();
    let (_engine, instance) = ways::loaded(Way::Interpreted, &object);
    let run = |name: &str| instance.program::<Raw>(name).unwrap().run(&mut (), &mut [0; 4]);
    for (name, what) in [
        ("out_of_order", "the lock that was taken last is another one"),
        ("kept", "the program ended with"),
        ("calls", "bpf_map_lookup_elem is not allowed while a lock is held"),
        ("not_taken", "no lock is held"),
        ("writes", ""),
    ] {
        let error = run(name).unwrap_err().to_string();
        assert!(error.contains(what), "{name}: {error}");
        // The stopped run left no lock held.
        assert_eq!(run("in_order").unwrap() as u32 as i32, -libc::EDEADLK, "{name}");
    }
}
