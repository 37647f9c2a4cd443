//! The protocol under loom: every interleaving and every allowed memory order of two or three threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p bpf-quiesce --lib`. Both halves of the asymmetric barrier are fences
//! here; `tests/domains/asymmetric_model.rs` has the weaker reader.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};

use crate::core::Core;
use crate::granted::Granted;
use crate::record::Record;
use crate::users::Users;
use crate::{EnterError, WhenFull};

/// Explores `f` for both kinds of domain.
fn explore(slots: u32, when_full: WhenFull, f: impl Fn(Arc<Core>) + Sync + Send + Copy + 'static) {
    for granted in [Granted::nothing(), Granted::ask()] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || f(Arc::new(Core::new(1, slots, when_full, granted))));
    }
}

/// An object that a guard protects, reachable while `linked`; loom reports a race if it is freed under a reader.
struct Object {
    linked: AtomicBool,
    content: UnsafeCell<u32>,
}

fn object() -> Arc<Object> {
    Arc::new(Object { linked: AtomicBool::new(true), content: UnsafeCell::new(7) })
}

fn read(core: &Core, record: &Record, object: &Object) {
    core.enter(record).unwrap();
    if object.linked.load(Ordering::Relaxed) {
        // SAFETY: loom checks that nobody writes meanwhile.
        assert_eq!(object.content.with(|content| unsafe { *content }), 7);
    }
    core.leave(record);
}

fn free(object: &Object) {
    // SAFETY: loom checks that nobody reads meanwhile.
    object.content.with_mut(|content| unsafe { *content = 0 });
}

#[test]
fn a_thread_that_ends_inside_a_guard_holds_nobody_up() {
    explore(1, WhenFull::Wait, |core| {
        let gone = loom::thread::spawn({
            let core = Arc::clone(&core);
            let record = core.register().unwrap();
            move || {
                core.enter(&record).unwrap();
                core.desk().abandon(&record);
            }
        });
        core.wait(core.start()).unwrap();
        // The domain has one slot.
        let record = core.register().unwrap();
        core.enter(&record).unwrap();
        core.leave(&record);
        gone.join().unwrap();
    });
}

#[test]
fn the_last_reader_frees_what_was_left_to_it() {
    explore(3, WhenFull::Error, |core| {
        let (object, freed) = (object(), Arc::new(AtomicBool::new(false)));
        let look = |core: &Core, object: &Object, freed: &AtomicBool| {
            // The first period of the domain. Acquire and release order the two threads that may come here.
            if core.poll(crate::core::FIRST_PERIOD) == Ok(true) && !freed.swap(true, Ordering::AcqRel) {
                free(object);
            }
        };
        let readers = [(); 2].map(|()| {
            let (core, object, freed) = (Arc::clone(&core), Arc::clone(&object), Arc::clone(&freed));
            let record = core.register().unwrap();
            loom::thread::spawn(move || {
                core.enter(&record).unwrap();
                if object.linked.load(Ordering::Relaxed) {
                    // SAFETY: loom checks that nobody writes meanwhile.
                    assert_eq!(object.content.with(|content| unsafe { *content }), 7);
                }
                let since = Core::in_the_way_since(&record);
                core.leave(&record);
                if core.is_asked(since) {
                    look(&core, &object, &freed);
                }
            })
        });
        object.linked.store(false, Ordering::Relaxed);
        assert_eq!(core.start(), crate::core::FIRST_PERIOD);
        core.ask(crate::core::FIRST_PERIOD).unwrap();
        look(&core, &object, &freed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(freed.load(Ordering::Relaxed), "nobody looked after the last reader had left");
    });
}

#[test]
fn waiting_for_a_grace_period_waits_for_the_reader() {
    explore(2, WhenFull::Error, |core| {
        let object = object();
        let reader = loom::thread::spawn({
            let (core, object) = (Arc::clone(&core), Arc::clone(&object));
            let record = core.register().unwrap();
            move || read(&core, &record, &object)
        });
        object.linked.store(false, Ordering::Relaxed);
        core.wait(core.start()).unwrap();
        free(&object);
        reader.join().unwrap();
    });
}

#[test]
fn a_grace_period_seen_to_be_over_is_over() {
    explore(2, WhenFull::Error, |core| {
        let object = object();
        let reader = loom::thread::spawn({
            let (core, object) = (Arc::clone(&core), Arc::clone(&object));
            let record = core.register().unwrap();
            move || {
                read(&core, &record, &object);
                read(&core, &record, &object);
            }
        });
        object.linked.store(false, Ordering::Relaxed);
        if core.poll(core.start()).unwrap() {
            free(&object);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_has_one_running_thread() {
    explore(1, WhenFull::Error, |core| {
        let data = Arc::new(UnsafeCell::new(0));
        let run = |core: Arc<Core>, data: Arc<UnsafeCell<u32>>| {
            let record = core.register().unwrap();
            for _ in 0..2 {
                match core.enter(&record) {
                    Ok(()) => {
                        assert_eq!(record.running_slot(), 0);
                        // SAFETY: loom checks that the slot's data have one user at a time.
                        data.with_mut(|data| unsafe { *data += 1 });
                        core.leave(&record);
                    }
                    Err(error) => assert_eq!(error, EnterError::Full { max_slots: 1 }),
                }
            }
        };
        let other = loom::thread::spawn({
            let (core, data) = (Arc::clone(&core), Arc::clone(&data));
            move || run(core, data)
        });
        run(core, data);
        other.join().unwrap();
    });
}

#[test]
fn a_thread_that_waits_for_a_slot_is_woken() {
    explore(1, WhenFull::Wait, |core| {
        let data = Arc::new(UnsafeCell::new(0));
        let run = |core: Arc<Core>, data: Arc<UnsafeCell<u32>>| {
            let record = core.register().unwrap();
            core.enter(&record).unwrap();
            // SAFETY: the domain has one slot, which this thread has now: the other waits.
            data.with_mut(|data| unsafe { *data += 1 });
            core.leave(&record);
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (core, data) = (Arc::clone(&core), Arc::clone(&data));
                loom::thread::spawn(move || run(core, data))
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        // SAFETY: the others are gone.
        assert_eq!(data.with(|data| unsafe { *data }), 2);
    });
}

#[test]
fn a_core_barrier_serves_the_periods_begun_before_it() {
    explore(2, WhenFull::Error, |core| {
        let object = object();
        let reader = loom::thread::spawn({
            let (core, object) = (Arc::clone(&core), Arc::clone(&object));
            let record = core.register().unwrap();
            move || {
                read(&core, &record, &object);
                read(&core, &record, &object);
            }
        });
        object.linked.store(false, Ordering::Relaxed);
        let period = core.start();
        // Denied in fenced domains, where `poll` executes its own barrier.
        let _ = core.core_barrier();
        if core.poll(period).unwrap() {
            free(&object);
        }
        reader.join().unwrap();
    });
}

#[test]
fn an_object_is_freed_once_and_after_everybody() {
    // The shards from which the two users leave; the owner closes.
    for shards in [[0, 0], [0, 1], [1, 1]] {
        loom::model(move || {
            let object = Arc::new((Users::default(), UnsafeCell::new(7)));
            for shard in [0, 1] {
                object.0.enter_on(shard);
            }
            let free = |object: &(Users, UnsafeCell<u32>)| {
                // SAFETY: loom checks that nobody reads meanwhile or writes too.
                object.1.with_mut(|content| unsafe {
                    assert_eq!(*content, 7);
                    *content = 0;
                });
            };
            let users = shards.map(|shard| {
                let object = Arc::clone(&object);
                loom::thread::spawn(move || {
                    // SAFETY: loom checks that nobody writes meanwhile.
                    assert_eq!(object.1.with(|content| unsafe { *content }), 7);
                    let last = object.0.leave_on(shard);
                    if last {
                        free(&object);
                    }
                    last
                })
            });
            let mut lasts = usize::from(object.0.close());
            if lasts == 1 {
                free(&object);
            }
            for user in users {
                lasts += usize::from(user.join().unwrap());
            }
            assert_eq!(lasts, 1);
            // SAFETY: the others are gone.
            assert_eq!(object.1.with(|content| unsafe { *content }), 0);
        });
    }
}
