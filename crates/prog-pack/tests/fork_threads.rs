//! Forks a process while other threads load and drop programs, so that any lock may be held in the child by a thread
//! that does not exist there. Every operation of the child fails with a typed error and does not wait. Alone in its
//! process.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bpf_prog_pack::{Error, Options, Packs, Patch, PokeError, Stats};
use bpf_quiesce::{Domain, EnterError};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use common::{constant, flip};

#[test]
fn a_child_waits_for_no_lock_of_its_parent() {
    let children = if cfg!(target_arch = "aarch64") { 10 } else { 50 };
    let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).unwrap();
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
        let mut ended = Vec::new();
        for _ in 0..children {
            let before = loads.load(Ordering::Relaxed);
            while loads.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let mut dropped = Some(packs.stage(&constant(3, 0), |_| None).unwrap().finalize().unwrap());
            let mut staged = Some(packs.stage(&constant(4, 0), |_| None).unwrap());
            let child = || {
                assert_eq!(packs.domain().enter().map(|guard| guard.slot()), Err(EnterError::Forked));
                assert_eq!(packs.reserve(64).unwrap_err(), Error::Forked);
                let jump = Patch::Jump(text.base() as usize + other);
                assert_eq!(text.poke(slot, Patch::Nop, jump), Err(PokeError::Forked));
                assert_eq!(staged.take().unwrap().finalize().unwrap_err(), Error::Forked);
                drop(dropped.take());
                assert_eq!((packs.reclaim(), packs.drain()), (0, Err(Error::Forked)));
                assert_eq!(packs.stats(), Stats::default());
            };
            // SAFETY: the child uses only these packs and the allocator, which the C library makes usable after a
            // fork; the parent keeps what the child takes.
            ended.push(unsafe { forked(60, child) });
            if ended.ends_with(&[Ended::Waited]) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_ended_well("packs in a forked child", &ended);
    });
    packs.drain().unwrap();
    assert_eq!(packs.stats().programs, 1);
}
