//! Locks that may fail under threads: guarded lists in elements that come and go, work for later beside its program,
//! and that whatever ends a run, in whatever program it is by then, gives its locks back, once.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Account, Caller, Config, Engine, HelperError, Instance, Linker, MapSet, Object,
    maps::{Map, MapDef, MapType},
};
use bpf_runtime::{
    OptLevel, ProgArray, Program, Raw, RunError, RunLimits,
    net::{Xdp, XdpBuff},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!("../objects/lock_threads.o");
const CHECKED: &[u8] = include_bytes!("../objects/lock_checked.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn load(way: Way, configure: impl FnOnce(Config) -> Config) -> (Engine, Account, Instance<()>) {
    let engine = ways::engine(way, configure);
    let account = engine.account("objects", 1 << 30);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let instance = linker.loader::<Xdp>().account(&account).object(&object, maps);
    (engine, account, instance.unwrap_or_else(|e| panic!("{way:?}: {e}")))
}

fn try_ask(instance: &Instance<()>, name: &str, key: u64, limits: &RunLimits) -> Result<u64, RunError> {
    let mut packet = key.to_ne_bytes();
    instance.program::<Xdp>(name).unwrap().run_with(&mut (), &mut XdpBuff::new(&mut packet), limits)
}

fn ask(instance: &Instance<()>, name: &str, key: u64) -> u64 {
    let mut packet = key.to_ne_bytes();
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap()
}

/// Threads put objects into lists and take them out, while others delete the elements that those are in, and make them
/// anew in the same memory: each object is freed once.
#[test]
fn lists_in_elements_that_come_and_go() {
    for way in VERIFIED {
        let (engine, account, instance) = load(way, |config| config);
        let queues = instance.map("queues").unwrap();
        let done = AtomicBool::new(false);
        let rounds = if way.is_interpreted() { 2_000 } else { 20_000 };
        let turns: u64 = std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                let mut state = 5u64;
                while !done.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let key = (state >> 33 & 7).to_ne_bytes();
                    // There is room for half of them, and the other half is deleted.
                    let _ = queues.set(&key, &[0; 24]);
                    let _ = queues.delete(&(state >> 40 & 7).to_ne_bytes());
                }
            });
            let turns = [0u64; 3].map(|_| {
                scope.spawn(|| {
                    let mut whole = 0;
                    // On a busy machine the other thread may leave the map empty for many rounds.
                    for key in 0u64.. {
                        if key >= rounds && whole > 0 {
                            break;
                        }
                        match ask(&instance, "turn", key) {
                            0 => whole += 1,
                            answer => assert!(answer <= 4, "{answer}, {way:?}"),
                        }
                    }
                    whole
                })
            });
            let turns = turns.map(|thread| thread.join().unwrap()).into_iter().sum();
            done.store(true, Ordering::Relaxed);
            changes.join().unwrap();
            turns
        });
        assert!(turns > 0, "{way:?}");
        for key in 0..8u64 {
            let _ = queues.delete(&key.to_ne_bytes());
            // No run holds its lock.
            if queues.set(&key.to_ne_bytes(), &[0; 24]).is_ok() {
                assert_eq!(ask(&instance, "turn", key), 0, "{way:?}");
            }
        }
        drop((queues, instance));
        for _ in 0..3 {
            engine.reclaim();
            engine.domain().drain().unwrap();
        }
        assert_eq!(account.used(), 0, "{way:?}");
    }
}

/// Two threads start work for later and two do it, all under the work's lock.
#[test]
fn work_is_started_and_done_by_threads() {
    for way in VERIFIED {
        let (_engine, _account, instance) = load(way, |config| config);
        let started = AtomicBool::new(false);
        let expected: u64 = std::thread::scope(|scope| {
            let starts = [0u64, 1].map(|thread| {
                let instance = &instance;
                scope.spawn(move || {
                    let answers = (0..2000u64).map(|i| ask(instance, "starts", i + thread));
                    answers
                        .filter(|answer| {
                            assert!(*answer <= 1, "{answer}, {way:?}");
                            *answer == 0
                        })
                        .count() as u64
                })
            });
            let does = [(); 2].map(|()| {
                scope.spawn(|| {
                    let program = instance.program::<Xdp>("starts").unwrap();
                    let mut ran = 0;
                    loop {
                        let last = started.load(Ordering::Acquire);
                        let mut bytes = [0; 8];
                        let now = program.run_timers(&mut (), &mut XdpBuff::new(&mut bytes)).unwrap().ran;
                        ran += u64::from(now);
                        if last && now == 0 {
                            return ran;
                        }
                    }
                })
            });
            let starts: u64 = starts.map(|thread| thread.join().unwrap()).into_iter().sum();
            started.store(true, Ordering::Release);
            let ran: u64 = does.map(|thread| thread.join().unwrap()).into_iter().sum();
            assert!(ran > 0, "{way:?}");
            starts + ran
        });
        let works = instance.map("works").unwrap();
        let (mut calls, mut twice) = (0, 0);
        for key in 0..2u32 {
            let value = works.get(&key.to_ne_bytes()).unwrap().unwrap();
            calls += u64::from(u32::from_ne_bytes(value[20..24].try_into().unwrap()));
            twice += u64::from_ne_bytes(value[24..32].try_into().unwrap());
        }
        // A callback that was not given the lock in time has counted nothing.
        assert!(calls <= expected && 2 * calls == twice, "{calls} {twice} {expected}, {way:?}");
        assert!(calls > 0, "{way:?}");
    }
}

/// Runs that a budget, a deadline or another thread ends while they have two locks, in the program that they began with
/// or in one that they have jumped to, while other threads want the locks.
#[test]
fn whatever_ends_a_run_gives_its_locks_back() {
    for way in VERIFIED {
        let (engine, _account, instance) = load(way, |config| config.interruptible(true).budget(1 << 40));
        let next: ProgArray<Xdp, ()> = instance.prog_array("next").unwrap();
        next.set(0, &instance.program("keeps").unwrap()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let answer = ask(&instance, "both", 0);
                        assert!(answer <= 1, "{answer}, {way:?}");
                    }
                });
            }
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    instance.program::<Xdp>("keeps").unwrap().interrupt();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let mut stopped = 0;
            for round in 0..60u64 {
                let name = ["keeps", "hops"][round as usize % 2];
                let limits = match round % 3 {
                    0 => RunLimits::new().budget(20_000 + 1000 * round),
                    1 => RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(1)).unwrap()),
                    // Until the other thread ends it, or in a run that it did not see: later.
                    _ => RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(50)).unwrap()),
                };
                match try_ask(&instance, name, 0, &limits) {
                    Ok(answer) => assert_eq!(answer, 1, "{name}, {way:?}: the locks were others'"),
                    Err(RunError::Budget { .. } | RunError::Deadline { .. } | RunError::Interrupted { .. }) => {
                        stopped += 1
                    }
                    Err(error) => panic!("{name}, {way:?}: {error}"),
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(stopped > 0, "{way:?}");
        });
        assert_eq!(ask(&instance, "both", 0), 0, "{way:?}");
    }
}

/// An access that is checked as it is made, beyond the packet's end under a lock: the lock is given back.
#[test]
fn a_checked_access_that_fails_under_a_lock() {
    for way in VERIFIED {
        let engine = ways::engine(way, |config| config);
        let object = Object::parse(CHECKED).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        assert!(linker.loader::<Xdp>().object(&object, maps).is_err(), "{way:?}: needs no check");
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = linker.loader::<Xdp>().hybrid(true).object(&object, maps).unwrap();
        let stored: u64 = std::thread::scope(|scope| {
            let threads = [0u64, 1, 2].map(|thread| {
                let instance = &instance;
                scope.spawn(move || {
                    let mut stored = 0;
                    for i in 0..500u64 {
                        let at = [0, 1, 2, u64::MAX, 1 << 61, 3][(i + thread) as usize % 6];
                        let mut packet = [at, 0].map(u64::to_ne_bytes).concat();
                        let program = instance.program::<Xdp>("stores").unwrap();
                        let result = program.run(&mut (), &mut XdpBuff::new(&mut packet));
                        stored += u64::from(matches!(result, Ok(0)));
                        match (at, result) {
                            (_, Ok(1)) => {}
                            // Eight times 2^61 is nothing.
                            (0 | 1, result) | (0x2000_0000_0000_0000, result) => {
                                assert_eq!(result.unwrap(), 0, "{way:?}")
                            }
                            (_, Err(RunError::Access { .. })) => {}
                            (at, result) => panic!("{at}: {result:?}, {way:?}"),
                        }
                    }
                    stored
                })
            });
            threads.map(|thread| thread.join().unwrap()).into_iter().sum()
        });
        let mut packet = [1, 0].map(u64::to_ne_bytes).concat();
        assert_eq!(instance.program::<Xdp>("stores").unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap(), 0);
        let value = instance.map("values").unwrap().get(&[0; 4]).unwrap().unwrap();
        assert_eq!(u64::from_ne_bytes(value[..8].try_into().unwrap()), stored + 1, "{way:?}");
    }
}

/// Unverified code releases only locks that its own run has taken: not the lock of a run that it is inside of, which
/// has the same slot.
#[test]
fn no_run_gives_back_the_lock_of_another() {
    for opt_level in [OptLevel::None, OptLevel::default()] {
        let engine = ways::engine(Way::Unverified, |config| config.opt_level(opt_level));
        let mut locked = MapDef::new("locked", MapType::Array, 4, 16, 1);
        locked.spin_lock = Some(4);
        let map = Map::create(locked, engine.domain()).unwrap();
        let text = "r1 = map[fd:0][0]+4; call 94; exit";
        let linker = Linker::<()>::new(&engine);
        // SAFETY: the verifier would refuse only the release of a lock that is not held, which the runtime answers with
        // an error.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let inner = loader.maps(&[&map]).insns("inner", crate::support::program(text)).unwrap();
        assert_eq!(inner.run(&mut (), &mut [0; 4]).unwrap() as i64, -i64::from(libc::EPERM), "{opt_level:?}");

        let mut linker = Linker::<Program<Raw, ()>>::new(&engine);
        linker
            .func(1001, "inner", |c: &mut Caller<'_, Program<Raw, ()>>| -> Result<u64, HelperError> {
                Ok(c.host().run(&mut (), &mut [0; 4]).unwrap())
            })
            .unwrap();
        let text = "r1 = map[fd:0][0]+4; call 93; call 1001; r7 = r0; r1 = map[fd:0][0]+4; call 94; r8 = r0;
                    r1 = map[fd:0][0]+4; call 94; r9 = r0; r0 = 1; if r7 != -1 goto out; r0 = 2; if r8 != 0 goto out;
                    r0 = 3; if r9 != -1 goto out; r0 = 0; out: exit";
        // SAFETY: the program releases a lock that is not held, which the runtime answers with an error, and calls a
        // host function under the lock.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let outer = loader.maps(&[&map]).insns("outer", crate::support::program(text)).unwrap();
        assert_eq!(outer.run(&mut { inner }, &mut [0; 4]).unwrap(), 0, "{opt_level:?}");
    }
}
