//! Forks a process while other threads load and drop programs, so that any lock may be held in the child by a thread
//! that does not exist there. Every operation of the child fails with a typed error and does not wait. Alone in its
//! process.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bpf_prog_pack::{Error, Options, Packs, Patch, PokeError, Stats};
use bpf_quiesce::{Domain, EnterError};
use common::{constant, flip};

#[test]
fn a_child_waits_for_no_lock_of_its_parent() {
    let children = if cfg!(target_arch = "aarch64") { 10 } else { 50 };
    let packs = Packs::new(Domain::new(bpf_quiesce::Options::default()), Options::default()).unwrap();
    let (code, slot, other) = flip();
    let text = packs.stage(&code, |_| None).unwrap().finalize().unwrap();
    drop(packs.domain().enter().unwrap());
    let (stop, loads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (packs, stop, loads) = (&packs, &stop, &loads);
            scope.spawn(move || {
                // Relaxed, here and below: a flag and a count that order nothing else.
                while !stop.load(Ordering::Relaxed) {
                    let texts: Vec<_> = (0..50 * thread)
                        .map(|value| packs.stage(&constant(value, 300), |_| None).unwrap().finalize().unwrap())
                        .collect();
                    loads.fetch_add(1 + texts.len() as u64, Ordering::Relaxed);
                    drop(texts);
                    packs.reclaim();
                }
            });
        }
        for _ in 0..children {
            let before = loads.load(Ordering::Relaxed);
            while loads.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let dropped = packs.stage(&constant(3, 0), |_| None).unwrap().finalize().unwrap();
            let staged = packs.stage(&constant(4, 0), |_| None).unwrap();
            // SAFETY: the child uses only these packs and the allocator, which the C library makes usable after a
            // fork; it leaves through `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // A child that waits for ever is killed, and the test fails.
                // SAFETY: takes an integer.
                unsafe { libc::alarm(60) };
                let mut good = packs.domain().enter().is_err_and(|error| error == EnterError::Forked);
                good &= packs.reserve(64).is_err_and(|error| error == Error::Forked);
                good &=
                    text.poke(slot, Patch::Nop, Patch::Jump(text.base() as usize + other)) == Err(PokeError::Forked);
                good &= staged.finalize().is_err_and(|error| error == Error::Forked);
                drop(dropped);
                good &= packs.reclaim() == 0 && packs.drain() == Err(Error::Forked);
                good &= packs.stats() == Stats::default();
                // SAFETY: ends the child without running the parent's destructors twice.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: `status` is a valid place for the result.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "child: {status:#x}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    packs.drain().unwrap();
    assert_eq!(packs.stats().programs, 1);
}
