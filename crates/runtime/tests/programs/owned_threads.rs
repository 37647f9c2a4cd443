//! Objects with locks, lists and trees of their own under threads: several own one at a time, while others take it out
//! of its stash, link it elsewhere, drop it, delete or hand over the map that it is in, or end the run that has its
//! lock. Each lock is given back, and each object freed, once.

use crate::support::ways::{self, Way};
use bpf_runtime::maps::RingBuf;
use bpf_runtime::{
    Account, Config, Engine, Instance, Linker, MapSet, Object, OptLevel, ProgArray, RunError, RunLimits,
    code::Arch,
    net::{Xdp, XdpBuff},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!("../objects/owned_threads.o");
/// The ways that are verified, and whether programs become fast while they run.
const VERIFIED: [(Way, bool); 4] =
    [(Way::Verified, false), (Way::Verified, true), (Way::Unoptimised, false), (Way::VerifiedInterpreted, false)];
/// Results without an effect: the object is missing, was just dropped, or is linked elsewhere; a lock was not taken.
const MISSED: [u64; 4] = [1, 2, 3, 4];

fn engine((way, tiered): (Way, bool), configure: impl FnOnce(Config) -> Config) -> Engine {
    ways::engine(way, |mut config| {
        if tiered && Arch::HOST.is_some() {
            config = config.opt_level(OptLevel::Tiered);
        }
        configure(config)
    })
}

fn load(engine: &Engine, maps: impl FnOnce(MapSet) -> MapSet) -> (Account, Instance<()>) {
    let account = engine.account("objects", 1 << 30);
    let object = Object::parse(OBJECT).unwrap();
    let maps = maps(MapSet::for_object(engine, &object).unwrap());
    let instance = Linker::<()>::new(engine).loader::<Xdp>().account(&account).object(&object, maps);
    (account, instance.unwrap_or_else(|e| panic!("{e}")))
}

fn try_ask(instance: &Instance<()>, name: &str, ask: [u64; 3], limits: &RunLimits) -> Result<u64, RunError> {
    let mut packet = ask.map(u64::to_ne_bytes).concat();
    instance.program::<Xdp>(name).unwrap().run_with(&mut (), &mut XdpBuff::new(&mut packet), limits)
}

/// Returns whether the program did it: `false` if the object was absent.
fn ask(instance: &Instance<()>, name: &str, what: [u64; 3]) -> bool {
    match try_ask(instance, name, what, &RunLimits::new()).unwrap() {
        0 => true,
        answer if MISSED.contains(&answer) => false,
        answer => panic!("{name} {what:?}: {answer}"),
    }
}

/// A thread's generator of pseudorandom requests.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    /// Uses a bin or a crate.
    fn uses(&mut self, instance: &Instance<()>) -> bool {
        ask(instance, "uses", [self.below(2), self.below(4), self.below(100)])
    }

    /// Replaces or moves stashed objects.
    fn changes(&mut self, instance: &Instance<()>) -> bool {
        ask(instance, "changes", [1 + self.below(4), self.below(4), self.below(2)])
    }
}

/// All places have a bin and a crate, and no run holds their locks.
fn is_usable(instance: &Instance<()>) {
    for key in 0..4 {
        // The first use after other threads' may miss, so its result is ignored.
        (0..2).for_each(|what| _ = ask(instance, "uses", [what, key, 1]));
        assert!(ask(instance, "changes", [4, key, 0]), "{key}");
        assert!(ask(instance, "uses", [0, key, 1]) && ask(instance, "uses", [1, key, 1]), "{key}");
    }
}

/// The accounts are empty once no object waits for a run any more, and the recompiling thread has dropped its last
/// program.
fn are_used_up<'a>(engine: &Engine, accounts: impl IntoIterator<Item = &'a Account>) {
    for account in accounts {
        let mut looks = 0;
        while account.used() != 0 && looks < 3000 {
            engine.reclaim();
            engine.domain().drain().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
            looks += 1;
        }
        assert_eq!(account.used(), 0);
    }
}

fn rounds(way: Way) -> u64 {
    if way.is_interpreted() { 3_000 } else { 30_000 }
}

/// Two threads put into the lists and trees of the same objects and take out of them, under the objects' own locks,
/// while two others replace these, link them elsewhere, and delete the elements that they are stashed in.
#[test]
fn objects_are_used_while_others_give_them_up() {
    for way in VERIFIED {
        let engine = engine(way, |config| config);
        let (account, instance) = load(&engine, |maps| maps);
        (0..4).for_each(|key| assert!(ask(&instance, "changes", [4, key, 0])));
        let done: [u64; 4] = std::thread::scope(|scope| {
            [0u64, 1, 2, 3]
                .map(|thread| {
                    let instance = &instance;
                    scope.spawn(move || {
                        let mut chance = Chance(thread);
                        let turn = |_: &u64| if thread < 2 { chance.uses(instance) } else { chance.changes(instance) };
                        (0..rounds(way.0)).filter(turn).count() as u64
                    })
                })
                .map(|thread| thread.join().unwrap())
        });
        assert!(done.iter().all(|done| *done > 0), "{way:?}: {done:?}");
        is_usable(&instance);
        drop(instance);
        are_used_up(&engine, [&account]);
    }
}

/// Runs that a budget, a deadline or another thread ends while they own a bin and a crate and have the locks in both,
/// in the program that they began with or one that they have jumped to, while others own and want the same.
#[test]
fn whatever_ends_a_run_gives_back_the_locks_in_objects() {
    for way in VERIFIED {
        let engine = engine(way, |config| config.interruptible(true).budget(1 << 40));
        let (account, instance) = load(&engine, |maps| maps);
        let next: ProgArray<Xdp, ()> = instance.prog_array("next").unwrap();
        next.set(0, &instance.program("keeps").unwrap()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (instance, done) = (&instance, &done);
                scope.spawn(move || {
                    let mut chance = Chance(thread);
                    while !done.load(Ordering::Relaxed) {
                        if thread < 2 {
                            chance.uses(instance)
                        } else {
                            chance.changes(instance)
                        };
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
            for round in 0..200u64 {
                let name = ["keeps", "hops"][round as usize % 2];
                let limits = match round % 3 {
                    0 => RunLimits::new().budget(2_000 + 100 * round),
                    1 => RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(1)).unwrap()),
                    // Until the other thread ends it, or in a run that it did not see: later.
                    _ => RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(50)).unwrap()),
                };
                let key = round / 4 % 4;
                ask(&instance, "changes", [1, key, 0]);
                match try_ask(&instance, name, [round / 2 % 2, key, 0], &limits) {
                    Ok(answer) => assert!(MISSED.contains(&answer), "{name}, {way:?}: {answer}"),
                    Err(RunError::Budget { .. } | RunError::Deadline { .. } | RunError::Interrupted { .. }) => {
                        stopped += 1
                    }
                    Err(error) => panic!("{name}, {way:?}: {error}"),
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(stopped > 0, "{way:?}");
        });
        is_usable(&instance);
        drop((next, instance));
        are_used_up(&engine, [&account]);
    }
}

/// A run that holds as much as it can takes the lock in an object that may not fail, and not the one that may; stopped
/// then, it gives back all of it.
#[test]
fn a_run_that_holds_all_it_can_takes_locks_in_objects() {
    for way in VERIFIED {
        let engine = engine(way, |config| config.budget(1 << 40));
        let (account, instance) = load(&engine, |maps| maps);
        let full = |what, limits: &RunLimits| try_ask(&instance, "full", [what, 0, 0], limits);
        let mut records = RingBuf::new(&instance.map("records").unwrap()).unwrap();
        // The ring has room for a few of these rounds; a record that is not given back would be in the consumer's way.
        for _ in 0..20 {
            assert_eq!(full(0, &RunLimits::new()).unwrap(), 7, "{way:?}: no room for another");
            let error = full(1, &RunLimits::new().budget(5_000)).unwrap_err();
            assert!(matches!(error, RunError::Budget { .. }), "{way:?}: {error}");
            assert_eq!(records.consume(|_| true), 0, "{way:?}: all are discarded");
        }
        assert_eq!(full(0, &RunLimits::new()).unwrap(), 7, "{way:?}");
        drop((records, instance));
        are_used_up(&engine, [&account]);
    }
}

/// Work for later that takes a bin out of its stash, beside programs that own it, and threads that ask for more of it
/// than is done.
#[test]
fn work_on_objects_is_done_beside_their_owners() {
    for way in VERIFIED {
        let engine = engine(way, |config| config);
        let (account, instance) = load(&engine, |maps| maps);
        let done = AtomicBool::new(false);
        let ran: u64 = std::thread::scope(|scope| {
            let does = [(); 2].map(|()| {
                scope.spawn(|| {
                    let program = instance.program::<Xdp>("starts").unwrap();
                    let mut ran = 0;
                    while !done.load(Ordering::Relaxed) {
                        let mut bytes = [0; 8];
                        ran += u64::from(program.run_timers(&mut (), &mut XdpBuff::new(&mut bytes)).unwrap().ran);
                    }
                    ran
                })
            });
            let starts = [0u64, 1].map(|thread| {
                let instance = &instance;
                scope.spawn(move || {
                    let mut chance = Chance(thread);
                    for i in 0..rounds(way.0) / 10 {
                        assert!(ask(instance, "starts", [0, i, 0]));
                        chance.uses(instance);
                        chance.changes(instance);
                    }
                })
            });
            starts.into_iter().for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Relaxed);
            does.map(|thread| thread.join().unwrap()).into_iter().sum()
        });
        assert!(ran > 0, "{way:?}");
        // Objects of pending callbacks are freed when the program is dropped.
        ask(&instance, "starts", [0, 0, 0]);
        drop(instance);
        are_used_up(&engine, [&account]);
    }
}

/// Versions of the programs that take over each other's maps, with the objects that runs of others own and lock at the
/// moment; every other version begins with new maps, and the old ones go while runs have what was in them.
#[test]
fn maps_are_handed_over_and_dropped_under_their_users() {
    for way in VERIFIED {
        let engine = engine(way, |config| config);
        let (account, instance) = load(&engine, |maps| maps);
        let (mut accounts, current) = (vec![account], RwLock::new(Arc::new(instance)));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let users = [0u64, 1].map(|thread| {
                let (current, done) = (&current, &done);
                scope.spawn(move || {
                    let (mut chance, mut used) = (Chance(thread), 0);
                    while !done.load(Ordering::Relaxed) {
                        let instance = Arc::clone(&current.read().unwrap());
                        for _ in 0..20 {
                            used += u64::from(chance.uses(&instance));
                            chance.changes(&instance);
                        }
                    }
                    used
                })
            });
            for version in 0..40 {
                let old = Arc::clone(&current.read().unwrap());
                let (account, new) = load(&engine, |maps| {
                    if version % 2 == 0 {
                        return maps;
                    }
                    let names = ["places", "named", ".data.A"];
                    let reuse = |maps: MapSet, name| maps.reuse(name, &old.map(name).unwrap()).unwrap();
                    names.into_iter().fold(maps, reuse)
                });
                accounts.push(account);
                *current.write().unwrap() = Arc::new(new);
                drop(old);
                engine.reclaim();
                std::thread::sleep(Duration::from_millis(2));
            }
            done.store(true, Ordering::Relaxed);
            for used in users {
                assert!(used.join().unwrap() > 0, "{way:?}");
            }
        });
        is_usable(&current.read().unwrap());
        drop(current);
        are_used_up(&engine, &accounts);
    }
}

/// A program that knows only the name of an object's type, or of a type in it, takes the pointers in it for plain
/// bytes, and may write them. It can neither reuse a map of a program that knows the pointers, nor pass its own map to
/// one.
#[test]
fn maps_are_not_shared_with_who_knows_less_of_the_objects() {
    let engine = ways::engine(Way::Verified, |config| config);
    let load = |bytes: &[u8], maps: Option<MapSet>| {
        let object = Object::parse(bytes).unwrap();
        let maps = maps.unwrap_or_else(|| MapSet::for_object(&engine, &object).unwrap());
        Linker::<()>::new(&engine).loader::<Xdp>().object(&object, maps).unwrap()
    };
    let set = |bytes: &[u8]| MapSet::for_object(&engine, &Object::parse(bytes).unwrap()).unwrap();
    let all: [&[u8]; 3] = [
        include_bytes!("../objects/owned.o"),
        include_bytes!("../objects/owned_forward.o"),
        include_bytes!("../objects/owned_half.o"),
    ];
    for (i, old) in all.into_iter().enumerate() {
        let map = load(old, None).map("stashes").unwrap();
        for (j, new) in all.into_iter().enumerate() {
            match set(new).reuse("stashes", &map) {
                Ok(maps) => {
                    assert_eq!(i, j, "they are the same");
                    load(new, Some(maps));
                }
                Err(bpf_runtime::LoadError::Map { map, source }) => {
                    assert_ne!(i, j, "{source}");
                    let incompatible = matches!(
                        &source,
                        bpf_runtime::maps::MapError::Incompatible { field, .. } if field.contains("own objects")
                    );
                    assert!(map == "stashes" && incompatible, "{source}");
                }
                Err(error) => panic!("{i} {j}: {error}"),
            }
        }
    }
}
