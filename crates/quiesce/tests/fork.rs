//! Tests of a forked child, made by `fork` and by a raw system call: guards, waiting and callbacks are refused, and a
//! domain made in the child works.
//!
//! Alone in its file (its own process): forking a test process that runs other tests at the time is unpredictable.
#![cfg(all(target_os = "linux", not(miri), not(loom)))]

use std::sync::{Arc, OnceLock};

use bpf_quiesce::{Domain, EnterError, Options, WaitError, WhenFull};

#[test]
fn the_child_may_neither_enter_nor_wait() {
    let domain = Domain::new(Options::new().max_slots(2).when_full(WhenFull::Wait));
    drop(domain.enter().unwrap());
    domain.defer(|| unreachable!("never run in the child, and the parent exits through `Leak`"));
    // A thread that is running at the fork and does not exist in the child.
    let (entered, has_entered) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let ghost = std::thread::spawn({
        let domain = Arc::clone(&domain);
        move || {
            let _guard = domain.enter().unwrap();
            entered.send(()).unwrap();
            let _ = released.recv();
        }
    });
    has_entered.recv().unwrap();
    let period = domain.start_grace_period();

    let mut reclaimer =
        Some(Domain::new(Options::default()).spawn_reclaimer(std::time::Duration::from_secs(1000)).unwrap());
    let held = domain.enter().unwrap();
    for raw in [false, true] {
        let child = match raw {
            // SAFETY: the child calls only what this test is about, and leaves through `_exit`.
            false => unsafe { libc::fork() },
            // SAFETY: no other thread of this process is doing anything. The child leaves through `_exit`, and runs
            // no handler of `pthread_atfork`.
            true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
        };
        if child == 0 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: ends a child that waits for a thread that it does not have.
                unsafe { libc::alarm(60) };
                drop(reclaimer.take());
                in_the_child(Arc::clone(&domain), period.clone(), held)
            }));
            // SAFETY: ends the child without running destructors of the parent's threads.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "child: {status:#x}");
    }
    assert_eq!(held.check(), Ok(()));
    drop(held);

    drop((release, reclaimer));
    ghost.join().unwrap();
    assert!(!domain.is_forked());
    assert_eq!(domain.synchronize(), Ok(()));
    // The callback must not run at all. The domain is kept, not leaked, so that a leak sanitizer does not report it.
    static KEPT: OnceLock<Arc<Domain>> = OnceLock::new();
    assert!(KEPT.set(domain).is_ok());
}

fn in_the_child(domain: Arc<Domain>, period: bpf_quiesce::GracePeriod, held: bpf_quiesce::Guard<'_>) {
    assert!(domain.is_forked());
    // Refused under the guard that this thread held at the fork, and without it.
    assert_eq!(held.check(), Err(EnterError::Forked));
    assert_eq!(domain.enter().map(|guard| guard.slot()), Err(EnterError::Forked));
    drop(held);
    assert_eq!(domain.enter().map(|guard| guard.slot()), Err(EnterError::Forked));
    assert_eq!(domain.synchronize(), Err(WaitError::Forked));
    assert_eq!(period.wait(), Err(WaitError::Forked));
    assert!(!period.is_complete());
    assert_eq!(domain.drain(), Err(WaitError::Forked));
    assert_eq!(domain.reclaim(), 0);
    assert!(domain.core_barrier().is_err());
    // A thread without a registration.
    let refused = std::thread::spawn({
        let domain = Arc::clone(&domain);
        move || domain.enter().map(|guard| guard.slot())
    });
    assert_eq!(refused.join().unwrap(), Err(EnterError::Forked));

    let own = Domain::new(Options::default());
    assert!(!own.is_forked());
    drop(own.enter().unwrap());
    assert_eq!(own.synchronize(), Ok(()));
    drop(period);
    // The child's domains share the list of registrations with the parent's.
    let other = Domain::new(Options::default());
    for _ in 0..2 {
        drop((own.enter().unwrap(), other.enter().unwrap()));
        assert_eq!(domain.enter().map(|guard| guard.slot()), Err(EnterError::Forked));
    }
    drop(domain); // The callback of the parent is neither run nor dropped.
}
