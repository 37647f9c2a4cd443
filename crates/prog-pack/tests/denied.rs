//! `membarrier` denied by a seccomp filter: from the start, or after the kernel had granted it.
//!
//! The filter is per thread, so each test installs it on a thread of its own.
#![cfg(target_os = "linux")]

mod common;

use std::sync::Arc;

use bpf_prog_pack::{Error, Options, Packs};
use bpf_quiesce::{CoreBarrierError, Domain, EnterError, WaitError, WhenFull};
use common::{constant, run};

/// Makes `membarrier` fail with EPERM on the calling thread; false where filters are not available (emulators).
fn deny_membarrier() -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0), // seccomp_data.nr
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes integers.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: `program` describes `filter`, and both outlive the call.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    // SAFETY: takes integers.
    let query = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    let denied = quiet == 0 && set == 0 && query == -1;
    if !denied {
        println!("SKIPPED: this host has no seccomp filters");
    }
    denied
}

fn load(packs: &Packs, value: u32) -> Result<bpf_prog_pack::Text, Error> {
    packs.stage(&constant(value, 100), |_| None)?.finalize()
}

fn on_a_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

#[test]
fn denied_from_the_start_everything_but_dependent_pokes_works() {
    on_a_thread(|| {
        if !deny_membarrier() {
            return;
        }
        let domain = Domain::new(bpf_quiesce::Options::new());
        assert!(!domain.has_core_barrier() && !domain.has_asymmetric_barrier());
        let packs = Packs::new(Arc::clone(&domain), Options::default()).unwrap();
        assert_eq!(domain.core_barrier().unwrap_err(), CoreBarrierError::Denied);
        for round in 0..2000 {
            let text = load(&packs, round).unwrap();
            let _guard = domain.enter().unwrap();
            // SAFETY: made by `constant`, and loaded.
            assert_eq!(unsafe { run(text.entry(0).unwrap()) }, round);
        }
        packs.drain().unwrap();
        assert_eq!(packs.stats().bytes_free, packs.stats().bytes);
        assert!(packs.stats().bytes <= 64 << 10, "memory was reused");
    });
}

#[test]
fn a_barrier_that_fails_later_delays_and_is_reported() {
    let options = bpf_quiesce::Options::new().max_slots(1).when_full(WhenFull::Error);
    let domain = Domain::new(options);
    if !domain.has_core_barrier() {
        println!("SKIPPED: membarrier is denied here from the start");
        return;
    }
    let packs = Packs::new(Arc::clone(&domain), Options::default()).unwrap();
    let keep = load(&packs, 1).unwrap();
    let text = load(&packs, 2).unwrap();
    drop(domain.enter().unwrap()); // This thread has the only slot from here on, idle.
    on_a_thread(|| {
        if !deny_membarrier() {
            return;
        }
        assert_eq!(domain.synchronize(), Err(WaitError::Barrier(libc::EPERM)));
        assert!(!domain.start_grace_period().is_complete());
        assert_eq!(domain.core_barrier().unwrap_err(), CoreBarrierError::Failed(libc::EPERM));
        assert_eq!(domain.enter().unwrap_err(), EnterError::Barrier(libc::EPERM));
        drop(text);
        assert_eq!(packs.reclaim(), 0);
        assert_eq!(packs.drain(), Err(Error::Wait(WaitError::Barrier(libc::EPERM))));
        assert!(packs.stats().bytes_retired > 0);
    });
    // Where barriers work, all delayed operations go on.
    assert_eq!(domain.synchronize(), Ok(()));
    assert!(domain.enter().is_ok());
    packs.drain().unwrap();
    assert_eq!(packs.stats().programs, 1);
    assert_eq!(packs.stats().bytes_used, keep.footprint());
}

/// Full batches, also batches that wait for each other's barrier, while barriers fail: loads and drops go on, and
/// nothing is reused.
#[test]
fn loads_and_drops_go_on_without_barriers_and_nothing_is_freed() {
    let domain = Domain::new(bpf_quiesce::Options::new());
    if !domain.has_core_barrier() {
        println!("SKIPPED: membarrier is denied here from the start");
        return;
    }
    for others in [false, true] {
        let packs = Packs::new(Arc::clone(&domain), Options::default()).unwrap();
        if others {
            (0..2000).for_each(|value| drop(load(&packs, value).unwrap()));
        }
        on_a_thread(|| {
            if !deny_membarrier() {
                return;
            }
            let before = packs.stats().bytes_retired;
            let mut bytes = 0;
            let mut seen = std::collections::HashSet::new();
            for value in 0..5000 {
                let text = load(&packs, value).unwrap();
                assert!(seen.insert(text.base()), "code was put where other code may still be fetched");
                bytes += text.footprint();
            }
            assert_eq!(packs.stats().bytes_retired, before + bytes);
        });
        packs.drain().unwrap();
        let stats = packs.stats();
        assert_eq!((stats.programs, stats.bytes_retired, stats.bytes_free), (0, 0, stats.bytes));
    }
}
