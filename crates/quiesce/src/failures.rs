//! Tests with `membarrier` failing at each of its calls: errors are typed, nothing is lost, and the operation
//! succeeds when it is repeated.

use std::sync::Arc;
use std::sync::mpsc;

use bpf_os::{Call, Membarrier, inject};

use crate::granted::Granted;
use crate::{CoreBarrierError, Domain, EnterError, Options, WaitError, WhenFull};

fn failing<R>(command: Membarrier, f: impl FnOnce() -> R) -> R {
    let (result, reached) = inject::failing_from(Call::Membarrier(command), 0, f);
    assert!(reached, "{command:?} is part of it");
    result
}

fn domain(when_full: WhenFull) -> Arc<Domain> {
    Domain::new(Options::new().max_slots(1).when_full(when_full))
}

/// Whether membarrier is granted; prints that the test is skipped where it is not (Miri, gVisor).
fn granted() -> bool {
    let granted = Granted::ask().expedited() && Granted::ask().sync_core();
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
        [(Membarrier::RegisterExpedited, false, true), (Membarrier::RegisterSyncCore, true, false)]
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
    failing(Membarrier::Expedited, || {
        assert_eq!(domain.synchronize(), Err(WaitError::Barrier(inject::ERRNO)));
        assert_eq!(period.wait(), Err(WaitError::Barrier(inject::ERRNO)));
        assert!(!period.is_complete());
        assert_eq!(domain.drain(), Err(WaitError::Barrier(inject::ERRNO)));
        assert_eq!((domain.reclaim(), domain.deferred()), (0, 1));
    });
    failing(Membarrier::SyncCore, || {
        assert_eq!(domain.core_barrier().unwrap_err(), CoreBarrierError::Failed(inject::ERRNO));
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
        // The owner is idle by this time, or soon will be; with `Wait` it is waited for first if it still runs.
        let refused = failing(Membarrier::Expedited, || {
            loop {
                match domain.enter() {
                    Err(EnterError::Full { .. }) => std::thread::yield_now(),
                    other => break other.map(|guard| guard.slot()),
                }
            }
        });
        assert_eq!(refused, Err(EnterError::Barrier(inject::ERRNO)));
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
