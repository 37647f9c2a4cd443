//! The models: two or three threads, every interleaving up to three preemptions. Each fails with a planted [`Mistake`].
//!
//! [`Engine`] repeats the steps of `fiber` and `asleep` around the protocol, in the order in which they do them.

use super::around::{Around, Marked, Nests, Place};
use super::parked::{Deadlines, Due, Parked, wake};
use super::sync::{Mutex, Ordering};
use super::watch::{INTERRUPTED, LATE, NEVER, Watched};
use loom::sync::Condvar;
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// A mistake that is planted in one model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// The poller looks at the word before it stores its waker.
    LooksFirst,
    /// A thread that ends the run takes the waker before it marks the word.
    TakesFirst,
    /// The word of a run is stored before its name.
    NamesLast,
    /// The word of a run is 0 before the run is removed from the deadlines.
    EndsFirst,
    /// Wakers are called under the lock of the deadlines.
    WakesLocked,
    /// The runs that are listed under a run are looked for before the run is marked.
    PassesOnFirst,
    /// The run keeps its last waker when it is over.
    KeepsWaker,
}

/// Explores a model without a mistake.
fn holds(model: impl Fn(Mistake) + Sync + Send + Copy + 'static) {
    explore(move || model(Mistake::None));
}

/// Explores a model until the mistake shows.
fn finds(mistake: Mistake, model: impl Fn(Mistake) + Sync + Send + Copy + 'static) {
    let found = catch_unwind(AssertUnwindSafe(|| explore(move || model(mistake))));
    assert!(found.is_err(), "{mistake:?} is not found");
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Keeps a poller asleep until it is rung. Its waker may also use the run, as one that polls at once does.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
    uses: Mutex<Option<Arc<Engine>>>,
}

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell { rung: Mutex::new(false), changed: Condvar::new(), uses: Mutex::new(None) })
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let engine = self.uses.lock().unwrap().take();
        if let Some(engine) = engine {
            drop(engine.run.take_waker());
            engine.deadlines.end(&Due::new(1, true), &engine.run);
        }
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// A run on a stack of its own, and those parts of its engine that end it.
struct Engine {
    run: Arc<Parked>,
    deadlines: Deadlines,
    nests: Nests,
    mistake: Mistake,
}

impl Engine {
    fn new(mistake: Mistake) -> Arc<Engine> {
        let run = Arc::new(Parked::new());
        Arc::new(Engine { run, deadlines: Deadlines::default(), nests: Nests::default(), mistake })
    }

    /// As `Fiber::announce`.
    fn begin(&self, named: u64, deadline: u64) -> Due {
        let level = &self.run.level;
        let names_last = self.mistake == Mistake::NamesLast;
        if !names_last {
            self.run.set_named(named);
        }
        level.watch().begin_apart(level.word(), Watched { of: named, deadline, interrupter: 0 });
        if names_last {
            self.run.set_named(named);
        }
        let due = Due::new(deadline, true);
        self.deadlines.begin(&due, &self.run);
        due
    }

    /// As `Fiber::finish`.
    fn end(&self, due: &Due) {
        let ends_first = self.mistake == Mistake::EndsFirst;
        if !ends_first {
            self.deadlines.end(due, &self.run);
        }
        self.run.level.word().store(0, Ordering::Relaxed);
        if ends_first {
            self.deadlines.end(due, &self.run);
        }
        if self.mistake != Mistake::KeepsWaker {
            drop(self.run.take_waker());
        }
    }

    /// As `Asleep::poll` and `Asleep::park` of a run whose future is never ready, until the run was ended.
    fn poll(&self, bell: &Arc<Bell>) {
        let waker = Waker::from(Arc::clone(bell));
        while !self.run.is_asked() {
            let asked = if self.mistake == Mistake::LooksFirst {
                let asked = self.run.is_asked();
                self.run.park(&waker, false, || false);
                asked
            } else {
                self.run.park(&waker, false, || false)
            };
            if asked {
                return;
            }
            bell.wait();
        }
    }

    /// As `Fibers::interrupt` and `Fibers::pass_on`.
    fn interrupt(&self, named: u64) {
        let mut wakers = Vec::new();
        let mut marked = Marked::of(&self.nests);
        if self.mistake == Mistake::TakesFirst {
            wakers.extend(self.run.take_waker());
        }
        if self.mistake == Mistake::PassesOnFirst {
            marked.add(Place::of(&self.run), self.run.word(), INTERRUPTED);
            std::mem::replace(&mut marked, Marked::of(&self.nests)).pass_on();
        }
        if let Some(word) = self.run.interrupt_of(named)
            && self.mistake != Mistake::PassesOnFirst
        {
            marked.add(Place::of(&self.run), word, INTERRUPTED);
        }
        if self.run.is_asked() && self.mistake != Mistake::TakesFirst {
            wakers.extend(self.run.take_waker());
        }
        wake(wakers);
        marked.pass_on();
    }

    /// As `Fibers::end_late`.
    fn tick(&self, now: u64) {
        let locked = self.mistake == Mistake::WakesLocked;
        let each = |run: &Parked, _| {
            if locked {
                wake(run.take_waker().into_iter().collect());
            }
        };
        wake(self.deadlines.end_late(now, each));
    }

    fn word(&self) -> u64 {
        self.run.level.word().load(Ordering::Relaxed)
    }
}

/// A run that waits sees an interruption, or is woken by it.
fn poll_against_interrupt(mistake: Mistake) {
    let engine = Engine::new(mistake);
    let due = engine.begin(1, NEVER);
    let other = thread::spawn({
        let engine = Arc::clone(&engine);
        move || engine.interrupt(1)
    });
    engine.poll(&Bell::new());
    engine.end(&due);
    other.join().unwrap();
    assert_eq!(engine.word(), 0);
}

#[test]
fn an_interruption_is_seen_or_wakes() {
    holds(poll_against_interrupt);
    finds(Mistake::LooksFirst, poll_against_interrupt);
    finds(Mistake::TakesFirst, poll_against_interrupt);
}

/// A run is given up, and its place is another run's, while a thread interrupts the first.
fn drop_against_interrupt(mistake: Mistake) {
    let engine = Engine::new(mistake);
    let due = engine.begin(1, NEVER);
    let bell = Bell::new();
    let other = thread::spawn({
        let engine = Arc::clone(&engine);
        move || engine.interrupt(1)
    });
    engine.run.park(&Waker::from(Arc::clone(&bell)), true, || false);
    engine.end(&due);
    let next = engine.begin(2, NEVER);
    other.join().unwrap();
    assert!(!engine.run.is_asked(), "the next run was ended");
    engine.end(&next);
    assert_eq!(Arc::strong_count(&bell), 1, "a waker was kept");
}

#[test]
fn an_interruption_ends_no_later_run_and_wakers_are_freed() {
    holds(drop_against_interrupt);
    finds(Mistake::NamesLast, drop_against_interrupt);
    finds(Mistake::KeepsWaker, drop_against_interrupt);
}

/// A run ends while its deadline passes, and its place is another run's, which has none.
fn end_against_tick(mistake: Mistake) {
    let engine = Engine::new(mistake);
    let due = engine.begin(1, 1);
    let other = thread::spawn({
        let engine = Arc::clone(&engine);
        move || engine.tick(1)
    });
    engine.end(&due);
    assert_eq!(engine.word(), 0, "a run that is over was marked");
    let next = engine.begin(2, NEVER);
    other.join().unwrap();
    assert!(!engine.run.is_asked(), "the next run was ended");
    engine.end(&next);
}

#[test]
fn a_deadline_ends_no_run_that_is_over() {
    holds(end_against_tick);
    finds(Mistake::EndsFirst, end_against_tick);
}

/// A run waits while its deadline passes; its waker uses the run at once, and may be called when the run is over.
fn poll_against_tick(mistake: Mistake) {
    let engine = Engine::new(mistake);
    let due = engine.begin(1, 1);
    let bell = Bell::new();
    *bell.uses.lock().unwrap() = Some(Arc::clone(&engine));
    let other = thread::spawn({
        let engine = Arc::clone(&engine);
        move || engine.tick(1)
    });
    engine.poll(&bell);
    assert_eq!(engine.word() & LATE, LATE);
    engine.end(&due);
    other.join().unwrap();
    assert_eq!(engine.word(), 0);
    *bell.uses.lock().unwrap() = None;
    assert_eq!(Arc::strong_count(&bell), 1, "a waker was kept");
}

#[test]
fn a_deadline_wakes_without_a_lock_and_after_the_end() {
    holds(poll_against_tick);
    finds(Mistake::LooksFirst, poll_against_tick);
    finds(Mistake::WakesLocked, poll_against_tick);
}

/// A run is polled inside another, which a thread interrupts.
fn nested_poll_against_interrupt(mistake: Mistake) {
    let outer = Engine::new(mistake);
    let around = outer.begin(1, NEVER);
    let inner = Engine::new(mistake);
    let due = inner.begin(2, NEVER);
    let other = thread::spawn({
        let outer = Arc::clone(&outer);
        move || outer.interrupt(1)
    });
    let mut known = None;
    let around_it = Around::new(None, Some((Arc::clone(&outer.run), outer.run.word())), &[]);
    outer.nests.set(&mut known, &inner.run, around_it, &[]);
    inner.poll(&Bell::new());
    outer.nests.end(&mut known, &inner.run);
    inner.end(&due);
    outer.end(&around);
    other.join().unwrap();
    assert_eq!((inner.word(), outer.word()), (0, 0));
}

#[test]
fn the_end_of_a_run_reaches_the_runs_inside() {
    holds(nested_poll_against_interrupt);
    finds(Mistake::PassesOnFirst, nested_poll_against_interrupt);
}
