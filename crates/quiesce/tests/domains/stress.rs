//! Threads that start, end, run, take slots and free objects, with every outcome counted.
//!
//! About a second; `BPF_SOAK=1 cargo test --release --test domains stress` runs a hundred times as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use bpf_quiesce::{Barriers, Domain, EnterError, Options, WhenFull};

fn rounds() -> u64 {
    if cfg!(miri) {
        20
    } else if std::env::var_os("BPF_SOAK").is_some() {
        1_000_000
    } else {
        10_000
    }
}

/// Each running thread has a slot of its own, however many threads there are and however short they live.
#[test]
fn a_slot_has_one_owner_at_a_time() {
    for barriers in [Barriers::Auto, Barriers::Fenced] {
        for (slots, when_full) in [(2, WhenFull::Wait), (3, WhenFull::Error), (64, WhenFull::Error)] {
            let domain = Domain::new(Options::new().max_slots(slots).when_full(when_full).barriers(barriers));
            let users: Vec<_> = (0..slots).map(|_| AtomicU32::new(0)).collect();
            let (ran, full) = (AtomicU64::new(0), AtomicU64::new(0));
            for _generation in 0..4 {
                std::thread::scope(|scope| {
                    for _ in 0..6 {
                        scope.spawn(|| {
                            for i in 0..rounds() / 4 {
                                match domain.enter() {
                                    Ok(guard) => {
                                        // Relaxed: the slot itself must order all accesses to its data.
                                        let user = &users[guard.slot() as usize];
                                        assert_eq!(user.load(Ordering::Relaxed), 0);
                                        user.store(1, Ordering::Relaxed);
                                        if i % 64 == 0 {
                                            std::thread::yield_now();
                                        }
                                        let nested = domain.enter().unwrap();
                                        assert_eq!(nested.slot(), guard.slot());
                                        user.store(0, Ordering::Relaxed);
                                        ran.fetch_add(1, Ordering::Relaxed);
                                    }
                                    Err(error) => {
                                        assert_eq!(error, EnterError::Full { max_slots: slots });
                                        full.fetch_add(1, Ordering::Relaxed);
                                        std::thread::yield_now();
                                    }
                                }
                                // Other threads take the slots of idle ones.
                                if i % 16 == 0 {
                                    std::thread::yield_now();
                                }
                            }
                        });
                    }
                });
            }
            let (ran, full) = (ran.into_inner(), full.into_inner());
            println!("{barriers:?}, {slots} slots, {when_full:?}: {ran} ran, {full} found it full");
            assert_eq!(ran + full, 4 * 6 * (rounds() / 4));
            assert!(ran > 0 && (when_full == WhenFull::Error || full == 0));
            assert!(slots != 64 || full == 0);
        }
    }
}

/// An object that a reader sees is not freed under it, and every replaced object is freed in the end.
#[test]
fn nothing_is_freed_under_a_reader() {
    const ALIVE: u32 = 0xa11fe;
    const FREED: u32 = 0xdead;
    struct Object(AtomicU32);
    for barriers in [Barriers::Auto, Barriers::Fenced] {
        let domain = Domain::new(Options::new().max_slots(8).when_full(WhenFull::Wait).barriers(barriers));
        let current = AtomicPtr::new(Box::into_raw(Box::new(Object(AtomicU32::new(ALIVE)))));
        let freed = Arc::new(AtomicU64::new(0));
        let (reads, waits, polls) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        /// Frees an object, after storing a mark that a reader must never see.
        fn free(object: usize, freed: &AtomicU64) {
            let object: *mut Object = std::ptr::with_exposed_provenance_mut(object);
            // SAFETY: allocated by `Box`, unlinked, and no reader is left: freed here once.
            let object = unsafe { Box::from_raw(object) };
            assert_eq!(object.0.swap(FREED, Ordering::Relaxed), ALIVE);
            freed.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds() * 4 {
                        let _guard = domain.enter().unwrap();
                        let object = current.load(Ordering::Acquire);
                        // SAFETY: the object was linked inside this guard, which keeps it alive.
                        let seen = unsafe { &*object }.0.load(Ordering::Relaxed);
                        assert_eq!(seen, ALIVE);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for way in 0..3 {
                let (domain, current, freed, waits, polls) = (&domain, &current, &freed, &waits, &polls);
                scope.spawn(move || {
                    let mut tokens = std::collections::VecDeque::new();
                    for _ in 0..rounds() / 4 {
                        let new = Box::into_raw(Box::new(Object(AtomicU32::new(ALIVE))));
                        let old = current.swap(new, Ordering::AcqRel).expose_provenance();
                        match way {
                            0 => {
                                domain.synchronize().unwrap();
                                free(old, freed);
                                waits.fetch_add(1, Ordering::Relaxed);
                            }
                            1 => {
                                let freed = Arc::clone(freed);
                                domain.defer(move || free(old, &freed));
                            }
                            _ => {
                                tokens.push_back((domain.start_grace_period(), old));
                                while tokens.front().is_some_and(|(period, _)| period.is_complete()) {
                                    free(tokens.pop_front().unwrap().1, freed);
                                    polls.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                    }
                    for (period, old) in tokens {
                        period.wait().unwrap();
                        free(old, freed);
                    }
                });
            }
        });
        domain.drain().unwrap();
        println!("{barriers:?}: {reads:?} reads, {waits:?} waits, {polls:?} tokens over when polled, {freed:?} freed");
        assert_eq!(freed.load(Ordering::Relaxed), 3 * (rounds() / 4));
        free(current.into_inner().expose_provenance(), &freed);
    }
}
