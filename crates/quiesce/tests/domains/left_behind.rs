//! Tests that every deferred callback runs, also when no thread calls the domain again, and when callbacks panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use bpf_quiesce::{Barriers, Domain, Options};

const MODES: [Barriers; 2] = [Barriers::Auto, Barriers::Fenced];

fn domain(barriers: Barriers) -> Arc<Domain> {
    Domain::new(Options::new().barriers(barriers))
}

/// Owns the domain, which owns the callback that drops this; the next one is deferred by that drop.
struct Cycle(Arc<Domain>, usize);

impl Drop for Cycle {
    fn drop(&mut self) {
        if let Some(left) = self.1.checked_sub(1) {
            let next = Cycle(Arc::clone(&self.0), left);
            self.0.enqueue(move || drop(next));
        }
    }
}

#[test]
fn the_last_guard_runs_what_was_left_to_it() {
    for mode in MODES {
        for nested in [false, true] {
            let domain = domain(mode);
            let weak = Arc::downgrade(&domain);
            let guard = domain.enter().unwrap();
            let inner = nested.then(|| domain.enter().unwrap());
            let cycle = Cycle(Arc::clone(&domain), 3);
            domain.enqueue(move || drop(cycle));
            domain.settle();
            assert_eq!(domain.deferred(), 1, "this thread's own guard is in the way");
            drop(guard);
            assert_eq!(domain.deferred(), usize::from(nested));
            drop(inner);
            assert_eq!(domain.deferred(), 0);
            drop(domain);
            assert_eq!(weak.strong_count(), 0);
        }
    }
}

#[test]
fn a_run_guard_runs_nothing_when_it_ends() {
    let domain = domain(Barriers::Auto);
    let guard = domain.enter_run().unwrap();
    domain.enqueue(|| ());
    domain.settle();
    drop(guard);
    assert_eq!(domain.deferred(), 1);
    domain.settle();
    assert_eq!(domain.deferred(), 0);
}

#[test]
fn no_domain_outlives_its_threads() {
    const ROUNDS: usize = if cfg!(miri) { 10 } else { 1000 };
    for mode in MODES {
        for round in 0..ROUNDS {
            let domain = domain(mode);
            let weak = Arc::downgrade(&domain);
            let start = Arc::new(Barrier::new(3));
            let readers = [(); 2].map(|()| {
                let (domain, start) = (Arc::clone(&domain), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    for _ in 0..round % 20 {
                        drop(domain.enter().unwrap());
                    }
                })
            });
            start.wait();
            for _ in 0..round % 3 + 1 {
                let cycle = Cycle(Arc::clone(&domain), 2);
                domain.enqueue(move || drop(cycle));
            }
            domain.settle();
            drop(domain);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            assert_eq!(weak.strong_count(), 0, "{mode:?}, round {round}");
        }
    }
}

#[test]
fn every_callback_runs_whichever_of_them_panic() {
    // More than one batch, and callbacks that are queued meanwhile.
    const CALLBACKS: usize = 200;
    let ran = Arc::new(AtomicUsize::new(0));
    let fill = |domain: &Arc<Domain>| {
        for i in 0..CALLBACKS {
            let (ran, weak) = (Arc::clone(&ran), Arc::downgrade(domain));
            let callback = move || {
                let more = Arc::clone(&ran);
                if let Some(domain) = weak.upgrade().filter(|_| i % 50 == 0) {
                    domain.enqueue(move || {
                        more.fetch_add(1, Ordering::Relaxed);
                    });
                }
                ran.fetch_add(1, Ordering::Relaxed);
                assert!(i % 3 != 0, "callback {i}");
            };
            domain.enqueue(callback);
        }
    };
    let domain = domain(Barriers::Auto);
    fill(&domain);
    let error = catch_unwind(AssertUnwindSafe(|| domain.settle())).unwrap_err();
    assert_eq!(error.downcast_ref::<String>().map(String::as_str), Some("callback 0"));
    assert_eq!((ran.swap(0, Ordering::Relaxed), domain.deferred()), (CALLBACKS + 4, 0));
    // Also while the thread unwinds already, and when the domain is dropped.
    fill(&domain);
    let unwinding = || {
        struct Settles<'d>(&'d Domain);
        impl Drop for Settles<'_> {
            fn drop(&mut self) {
                self.0.settle();
            }
        }
        let _settles = Settles(&domain);
        panic!("the first");
    };
    let error = catch_unwind(AssertUnwindSafe(unwinding)).unwrap_err();
    assert_eq!(error.downcast_ref::<&str>(), Some(&"the first"));
    assert_eq!((ran.swap(0, Ordering::Relaxed), domain.deferred()), (CALLBACKS + 4, 0));
    fill(&domain);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(domain))).is_err());
    assert_eq!(ran.load(Ordering::Relaxed), CALLBACKS);
}

#[test]
fn a_reclaimer_outlives_the_panics_of_callbacks() {
    let domain = domain(Barriers::Auto);
    let _reclaimer = domain.spawn_reclaimer(Duration::from_millis(1)).unwrap();
    for round in 0..3 {
        let (sender, receiver) = mpsc::channel();
        domain.enqueue(move || {
            sender.send(()).unwrap();
            panic!("round {round}");
        });
        receiver.recv_timeout(Duration::from_secs(60)).expect("the thread is there");
    }
}
