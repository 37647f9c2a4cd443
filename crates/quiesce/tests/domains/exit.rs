//! Threads that end inside a guard: forgotten, or kept in a thread-local that is dropped after the guard's
//! registration.

use bpf_quiesce::{Barriers, Domain, EnterError, Guard, Options, WhenFull};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

fn domains() -> impl Iterator<Item = Arc<Domain>> {
    // With one slot, a second thread that runs has taken the slot over.
    [Barriers::Auto, Barriers::Fenced]
        .into_iter()
        .map(|barriers| Domain::new(Options::new().max_slots(1).when_full(WhenFull::Error).barriers(barriers)))
}

#[test]
fn a_forgotten_guard_ends_with_its_thread() {
    for domain in domains() {
        for _ in 0..3 {
            std::thread::scope(|scope| {
                // Joined, not only finished: a scope waits for the closure, not for the thread-local destructors
                // after it.
                let thread = scope.spawn(|| {
                    std::mem::forget(domain.enter().unwrap());
                    std::mem::forget(domain.enter().unwrap());
                });
                thread.join().unwrap();
            });
            domain.synchronize().unwrap();
            let guard = domain.enter().unwrap();
            assert_eq!(guard.slot(), 0);
        }
    }
}

#[test]
fn a_thread_that_waits_is_woken() {
    for domain in domains() {
        let (entered, is_entered) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let domain = Arc::clone(&domain);
            move || {
                std::mem::forget(domain.enter().unwrap());
                entered.send(()).unwrap();
                // Long enough for the other thread to go to sleep. If it has not, it waits for less.
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        is_entered.recv().unwrap();
        domain.synchronize().unwrap();
        thread.join().unwrap();
    }
}

/// Domains leaked on purpose, kept reachable so that a leak sanitizer does not report them.
static KEPT_DOMAINS: Mutex<Vec<&'static Arc<Domain>>> = Mutex::new(Vec::new());

thread_local! {
    static DOMAIN: Cell<Option<&'static Domain>> = const { Cell::new(None) };
    static KEPT: Kept = const { Kept(RefCell::new(None)) };
}

struct Kept(RefCell<Option<Guard<'static>>>);

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(guard) = self.0.take() else { return };
        let domain = DOMAIN.get().unwrap();
        // The thread is still inside the guard, and the domain says so.
        assert!(domain.in_guard() && domain.slot() == Some(guard.slot()));
        drop(domain.enter().unwrap());
        assert!(domain.synchronize().is_err(), "it would wait for itself");
        drop(guard);
        assert!(!domain.in_guard());
        SEEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

static SEEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[test]
fn a_guard_in_a_thread_local_lasts_until_it_is_dropped() {
    for domain in domains() {
        // Guards in a thread-local borrow the domain for `'static`.
        let domain: &'static Arc<Domain> = Box::leak(Box::new(domain));
        KEPT_DOMAINS.lock().unwrap().push(domain);
        let before = SEEN.load(std::sync::atomic::Ordering::Relaxed);
        for _ in 0..2 {
            let thread = std::thread::spawn(move || {
                // First used, so last dropped: its destructor runs after that of the registrations.
                KEPT.with(|kept| {
                    DOMAIN.set(Some(domain));
                    *kept.0.borrow_mut() = Some(domain.enter().unwrap());
                });
            });
            thread.join().unwrap();
            domain.synchronize().unwrap();
            drop(domain.enter().unwrap());
        }
        assert_eq!(SEEN.load(std::sync::atomic::Ordering::Relaxed), before + 2);
    }
}

/// A slot is not taken from a thread that is ending while it is still inside a guard.
#[test]
fn nothing_is_taken_from_a_thread_that_runs() {
    for domain in domains() {
        let guard = domain.enter().unwrap();
        let other = std::thread::scope(|scope| scope.spawn(|| domain.enter().map(drop)).join().unwrap());
        assert_eq!(other, Err(EnterError::Full { max_slots: 1 }));
        drop(guard);
    }
}
