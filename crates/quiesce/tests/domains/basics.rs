//! Tests of a domain with one thread, or two in turn. Every test runs with and without `membarrier`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bpf_quiesce::{Barriers, Domain, EnterError, Options, WaitError, WhenFull};

const MODES: [Barriers; 2] = [Barriers::Auto, Barriers::Fenced];

fn domain(barriers: Barriers, max_slots: u32, when_full: WhenFull) -> Arc<Domain> {
    Domain::new(Options::new().max_slots(max_slots).when_full(when_full).barriers(barriers))
}

#[test]
fn nested_guards_share_a_slot_and_an_epoch() {
    for mode in MODES {
        let domain = domain(mode, 4, WhenFull::Error);
        assert_eq!(domain.slot(), None);
        let outer = domain.enter().unwrap();
        let inner = domain.enter().unwrap();
        assert_eq!(outer.slot(), inner.slot());
        let period = domain.start_grace_period();
        drop(outer); // Out of order on purpose.
        assert!(domain.in_guard());
        assert_eq!(domain.slot(), Some(inner.slot()));
        let late = domain.enter().unwrap();
        assert!(!period.is_complete(), "the run has not ended");
        drop(inner);
        drop(late);
        assert!(!domain.in_guard());
        assert!(period.is_complete());
    }
}

#[cfg(not(miri))] // 65,535 guards take Miri minutes; a few of them are nested elsewhere.
#[test]
fn nesting_has_a_typed_end() {
    let domain = domain(Barriers::Auto, 1, WhenFull::Error);
    let mut guards = Vec::new();
    let error = loop {
        match domain.enter() {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    assert_eq!((guards.len(), error), (65_535, EnterError::TooDeep));
    guards.clear();
    assert_eq!(domain.synchronize(), Ok(()));
}

#[test]
fn other_threads_are_those_that_ran() {
    let domain = domain(Barriers::Auto, 4, WhenFull::Error);
    assert!(!domain.has_other_threads());
    drop(domain.enter().unwrap());
    assert!(!domain.has_other_threads());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(domain.has_other_threads(), "one that has not run itself");
            drop(domain.enter().unwrap());
            assert!(domain.has_other_threads());
        });
    });
    assert!(domain.has_other_threads());
}

#[test]
fn waiting_under_ones_own_guard_is_an_error() {
    for mode in MODES {
        let domain = domain(mode, 4, WhenFull::Error);
        let period = domain.start_grace_period();
        let guard = domain.enter().unwrap();
        assert_eq!(domain.synchronize(), Err(WaitError::UnderOwnGuard));
        assert_eq!(period.wait(), Err(WaitError::UnderOwnGuard));
        assert_eq!(domain.drain(), Err(WaitError::UnderOwnGuard));
        drop(guard);
        assert_eq!(domain.synchronize(), Ok(()));
        assert_eq!(period.wait(), Ok(()));
    }
}

#[test]
fn domains_are_independent() {
    let (a, b) = (domain(Barriers::Auto, 1, WhenFull::Error), domain(Barriers::Auto, 1, WhenFull::Error));
    for _ in 0..3 {
        let guard = a.enter().unwrap();
        assert!(a.in_guard() && !b.in_guard());
        assert_eq!(b.synchronize(), Ok(()));
        assert_eq!(b.enter().unwrap().slot(), 0);
        assert_eq!(a.synchronize(), Err(WaitError::UnderOwnGuard));
        drop(guard);
    }
}

#[test]
fn a_stalled_reader_delays_callbacks_and_nothing_else() {
    for mode in MODES {
        let domain = domain(mode, 4, WhenFull::Error);
        let (stalled, release) = stalled_reader(&domain);
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            domain.defer(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            drop(domain.enter().unwrap());
        }
        assert_eq!((domain.reclaim(), ran.load(Ordering::Relaxed), domain.deferred()), (0, 0, 1000));
        let later = domain.start_grace_period();
        release.send(()).unwrap();
        later.wait().unwrap();
        assert_eq!(domain.reclaim(), 1000);
        assert_eq!((ran.load(Ordering::Relaxed), domain.deferred()), (1000, 0));
        stalled.join().unwrap();
    }
}

/// Starts a thread that stays inside a guard until the sender sends.
fn stalled_reader(domain: &Arc<Domain>) -> (std::thread::JoinHandle<()>, mpsc::Sender<()>) {
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let domain = Arc::clone(domain);
    let thread = std::thread::spawn(move || {
        let _guard = domain.enter().unwrap();
        entered.send(()).unwrap();
        released.recv().unwrap();
    });
    has_entered.recv().unwrap();
    (thread, release)
}

#[test]
fn callbacks_run_outside_guards_only_and_at_the_latest_on_drop() {
    for mode in MODES {
        let domain = domain(mode, 1, WhenFull::Error);
        let ran = Arc::new(AtomicUsize::new(0));
        let defer = || {
            let ran = Arc::clone(&ran);
            domain.defer(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        };
        let guard = domain.enter().unwrap();
        (0..200).for_each(|_| defer());
        assert_eq!((domain.reclaim(), ran.load(Ordering::Relaxed)), (0, 0));
        drop(guard);
        (0..200).for_each(|_| defer());
        assert!(ran.load(Ordering::Relaxed) >= 200, "a later defer runs what is due");
        let left = domain.deferred();
        assert_eq!(domain.drain(), Ok(left));
        assert_eq!(ran.load(Ordering::Relaxed), 400);
        defer();
        let before = ran.load(Ordering::Relaxed);
        drop(domain);
        assert_eq!(ran.load(Ordering::Relaxed), before + 1);
    }
}

#[test]
fn a_panicking_callback_does_not_keep_others_from_running() {
    let domain = domain(Barriers::Auto, 1, WhenFull::Error);
    let ran = Arc::new(AtomicUsize::new(0));
    domain.defer(|| std::panic::panic_any("callback"));
    let counter = Arc::clone(&ran);
    domain.defer(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| domain.reclaim()));
    assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"callback"));
    assert_eq!((ran.load(Ordering::Relaxed), domain.deferred()), (1, 0));
}

#[test]
fn a_reclaimer_runs_callbacks_while_nobody_comes_by() {
    let domain = domain(Barriers::Auto, 1, WhenFull::Error);
    let reclaimer = domain.spawn_reclaimer(Duration::from_millis(1)).unwrap();
    let (sender, receiver) = mpsc::channel();
    domain.defer(move || sender.send(std::thread::current().id()).unwrap());
    let ran_by = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_ne!(ran_by, std::thread::current().id());
    drop(reclaimer);
    assert_eq!(Arc::strong_count(&domain), 1, "the thread is gone");
}

#[test]
fn a_reclaimer_may_be_dropped_by_a_callback_that_it_runs() {
    let domain = domain(Barriers::Auto, 1, WhenFull::Error);
    let reclaimer = domain.spawn_reclaimer(Duration::from_millis(1)).unwrap();
    let (sender, receiver) = mpsc::channel();
    domain.defer(move || {
        drop(reclaimer);
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(Duration::from_secs(10)).expect("the drop neither panics nor waits for its own thread");
}

#[test]
fn slots_of_idle_and_ended_threads_are_taken_those_of_running_threads_are_not() {
    for mode in MODES {
        let domain = domain(mode, 2, WhenFull::Error);
        // More ended threads than there are slots.
        for _ in 0..20 {
            let domain = Arc::clone(&domain);
            std::thread::spawn(move || assert!(domain.enter().unwrap().slot() < 2)).join().unwrap();
        }
        // An idle thread (this one) and a running one.
        let mine = domain.enter().unwrap().slot();
        let (first, release_first) = stalled_reader(&domain);
        let (second, release_second) = stalled_reader(&domain);
        assert_eq!(domain.enter().unwrap_err(), EnterError::Full { max_slots: 2 });
        assert_eq!(domain.slot(), None);
        release_second.send(()).unwrap();
        second.join().unwrap();
        assert!([0, 1].contains(&mine) && domain.enter().unwrap().slot() < 2);
        release_first.send(()).unwrap();
        first.join().unwrap();
    }
}

#[test]
fn a_thread_waits_for_a_slot_and_does_not_hold_up_grace_periods_meanwhile() {
    for mode in MODES {
        let domain = domain(mode, 1, WhenFull::Wait);
        let (running, release) = stalled_reader(&domain);
        let waiter = std::thread::spawn({
            let domain = Arc::clone(&domain);
            move || domain.enter().unwrap().slot()
        });
        // The waiter does not count as a reader: only the stalled one delays the period.
        let period = domain.start_grace_period();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished() && !period.is_complete());
        release.send(()).unwrap();
        assert_eq!(waiter.join().unwrap(), 0);
        period.wait().unwrap();
        running.join().unwrap();
    }
}

#[test]
fn a_guard_kept_in_a_thread_local_outlives_the_registration() {
    use std::cell::RefCell;
    use std::sync::OnceLock;

    static DOMAIN: OnceLock<Arc<Domain>> = OnceLock::new();
    struct Kept(RefCell<Option<bpf_quiesce::Guard<'static>>>);
    impl Drop for Kept {
        fn drop(&mut self) {
            assert!(self.0.take().is_some());
            // Whether our registration is gone by now depends on the order of destructors; both answers are sound.
            let entered = DOMAIN.get().unwrap().enter();
            assert!(matches!(entered, Ok(_) | Err(EnterError::ThreadExiting)), "{entered:?}");
        }
    }
    thread_local!(static KEPT: Kept = const { Kept(RefCell::new(None)) });

    let domain = DOMAIN.get_or_init(|| domain(Barriers::Auto, 2, WhenFull::Error));
    for _ in 0..4 {
        std::thread::spawn(|| KEPT.with(|kept| *kept.0.borrow_mut() = Some(DOMAIN.get().unwrap().enter().unwrap())))
            .join()
            .unwrap();
    }
    assert_eq!(domain.synchronize(), Ok(()));
    assert!(domain.enter().unwrap().slot() < 2);
}

#[test]
fn core_barriers_are_had_or_refused_by_type() {
    let fenced = domain(Barriers::Fenced, 1, WhenFull::Error);
    assert!(!fenced.has_core_barrier() && fenced.core_barrier().is_err());
    fenced.advance_code_epoch();
    drop(fenced.enter().unwrap());
    let auto = domain(Barriers::Auto, 1, WhenFull::Error);
    assert_eq!(auto.core_barrier().is_ok(), auto.has_core_barrier());
    assert_eq!(auto.synchronize(), Ok(()));
}
