//! `membarrier` failing at each of its calls: typed errors, nothing lost, and going on where it works again.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc;

use crate::sys::{self, Command, Sys};
use crate::{CoreBarrierError, Domain, EnterError, Options, WaitError, WhenFull};

thread_local!(static FAILING: Cell<Option<Command>> = const { Cell::new(None) });

/// The real call, unless the calling thread made it fail.
fn membarrier(command: Command) -> Result<(), i32> {
    if FAILING.get() == Some(command) { Err(libc::EPERM) } else { sys::membarrier(command) }
}

fn failing<R>(command: Command, f: impl FnOnce() -> R) -> R {
    FAILING.set(Some(command));
    let result = f();
    FAILING.set(None);
    result
}

fn domain(when_full: WhenFull) -> Arc<Domain> {
    Domain::with_sys(Options { max_slots: 1, when_full, ..Options::default() }, Sys::probe(membarrier))
}

/// False, loudly, where the kernel grants none of it (Miri, gVisor).
fn granted() -> bool {
    let granted = Sys::probe(sys::membarrier).expedited() && Sys::probe(sys::membarrier).sync_core();
    if !granted {
        println!("SKIPPED: membarrier is denied here");
    }
    granted
}

#[test]
fn a_denied_registration_means_fences_or_code_epochs() {
    if !granted() {
        return;
    }
    for (denied, asymmetric, core) in
        [(Command::RegisterExpedited, false, true), (Command::RegisterSyncCore, true, false)]
    {
        let domain = failing(denied, || domain(WhenFull::Error));
        assert_eq!((domain.has_asymmetric_barrier(), domain.has_core_barrier()), (asymmetric, core));
        assert_eq!(domain.core_barrier().is_ok(), core);
        domain.advance_code_epoch();
        drop(domain.enter().unwrap());
        assert_eq!(domain.synchronize(), Ok(()));
        domain.defer(|| {});
        assert_eq!(domain.reclaim(), 1);
    }
}

#[test]
fn a_failing_barrier_is_reported_and_callbacks_stay_queued() {
    if !granted() {
        return;
    }
    let domain = domain(WhenFull::Error);
    let period = domain.start_grace_period();
    domain.defer(|| {});
    failing(Command::Expedited, || {
        assert_eq!(domain.synchronize(), Err(WaitError::Barrier(libc::EPERM)));
        assert_eq!(period.wait(), Err(WaitError::Barrier(libc::EPERM)));
        assert!(!period.is_complete());
        assert_eq!(domain.drain(), Err(WaitError::Barrier(libc::EPERM)));
        assert_eq!((domain.reclaim(), domain.deferred()), (0, 1));
    });
    failing(Command::SyncCore, || {
        assert_eq!(domain.core_barrier().unwrap_err(), CoreBarrierError::Failed(libc::EPERM));
    });
    assert!(domain.core_barrier().is_ok() && period.is_complete());
    assert_eq!(domain.drain(), Ok(1));
}

#[test]
fn a_slot_cannot_be_taken_without_a_barrier_and_is_given_back() {
    if !granted() {
        return;
    }
    for when_full in [WhenFull::Error, WhenFull::Wait] {
        let domain = domain(when_full);
        let (ask, asked) = mpsc::channel::<()>();
        let (answer, answered) = mpsc::channel();
        let owner = std::thread::spawn({
            let domain = Arc::clone(&domain);
            move || {
                loop {
                    answer.send(domain.enter().map(|guard| guard.slot())).unwrap();
                    if asked.recv().is_err() {
                        return;
                    }
                }
            }
        });
        assert_eq!(answered.recv().unwrap(), Ok(0));
        // The owner is idle now, or will be; with `Wait` it is waited for first if it still runs.
        let refused = failing(Command::Expedited, || {
            loop {
                match domain.enter() {
                    Err(EnterError::Full { .. }) => std::thread::yield_now(),
                    other => break other.map(|guard| guard.slot()),
                }
            }
        });
        assert_eq!(refused, Err(EnterError::Barrier(libc::EPERM)));
        ask.send(()).unwrap();
        assert_eq!(answered.recv().unwrap(), Ok(0), "the owner still has it");
        let slot = loop {
            match domain.enter() {
                Err(EnterError::Full { .. }) => std::thread::yield_now(),
                other => break other.map(|guard| guard.slot()),
            }
        };
        assert_eq!(slot, Ok(0));
        drop(ask);
        owner.join().unwrap();
    }
}
