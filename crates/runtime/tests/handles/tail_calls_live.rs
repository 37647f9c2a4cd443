//! Direct tail-call sites while they are patched under running threads.
//!
//! Small here; `BPF_SOAK=1 cargo test --release -p bpf-runtime --test handles tail_calls_live` makes it 10^7 flips and
//! 10^6 updates. The example `flip` of the prog-pack crate shows failures when the rules of patching are broken.

use crate::common::{Fixture, Prog, fixture};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Direct sites, and what the same programs do without them. `None` where this host has no direct sites.
fn direct() -> Option<Fixture> {
    let f = fixture(if bpf_runtime::code::Arch::HOST.is_some() { "jit" } else { "interpreter" });
    if !f.is_jit() || !f.engine.domain().has_core_barrier() {
        bpf_testkit::skipped("direct tail calls", &"no backend or no core barrier on this host");
        return None;
    }
    Some(f)
}

fn soak() -> bool {
    std::env::var_os("BPF_SOAK").is_some()
}

/// Tail-calls slot `slot` with a constant key; returns `or` if that falls through.
fn site(slot: u32, or: u32) -> String {
    format!("r6 = r1\nr2 = map[fd:0]\nr3 = {slot}\ncall 12\nr0 = {or}\nexit")
}

/// The site in a subprogram, whose caller adds 100 to its result.
fn site_in_subprogram(slot: u32, or: u32) -> String {
    format!("r6 = r1\nr7 = 100\ncall sub\nr0 += r7\nexit\nsub:\n{}", site(slot, or))
}

fn constant(f: &Fixture, value: u32) -> Prog {
    f.load("constant", &format!("r0 = {value}\nexit"), &[])
}

/// Finishes everything that waits for runs that are over.
fn settle(f: &Fixture) {
    // The first lets programs go, whose own memory the second frees.
    for _ in 0..2 {
        f.engine.domain().drain().unwrap();
    }
}

#[test]
fn sites_are_tracked_linked_and_put_back_as_they_were() {
    let Some(f) = direct() else { return };
    let array = f.array(4);
    array.set(2, &constant(&f, 7)).unwrap();
    // Slots 1 and 2 in main, slot 1 in a subprogram; the dynamic one and the one out of range are no direct sites.
    let text = "r6 = r1\nr2 = map[fd:0]\nr3 = 1\ncall 12\nr1 = r6\ncall sub\nr1 = r6\nr2 = map[fd:0]\nr3 = 4\ncall 12\n\
                r1 = r6\nr2 = map[fd:0]\nr3 = *(u64 *)(r6 + 0)\ncall 12\nr1 = r6\nr2 = map[fd:0]\nr3 = 2\ncall 12\nr0 = 1\nexit\n\
                sub:\nr2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 0\nexit";
    let program = f.load("main", text, &[&array]);
    assert_eq!([0, 1, 2, 3].map(|i| array.tracked_sites(i)), [0, 2, 1, 0]);
    assert_eq!(f.run(&program, [3, 0, 0, 0]).0, 7, "slot 2 was set before it was loaded");
    array.clear(2).unwrap();
    settle(&f);
    let unlinked = program.machine_code().unwrap();
    assert_eq!(f.run(&program, [3, 0, 0, 0]).0, 1);

    array.update([(1, Some(&constant(&f, 8))), (2, Some(&constant(&f, 9))), (3, None)]).unwrap();
    assert_ne!(program.machine_code().unwrap(), unlinked);
    assert_eq!(f.run(&program, [3, 0, 0, 0]).0, 8);
    array.update([(1, None), (2, Some(&constant(&f, 10)))]).unwrap();
    assert_eq!(f.run(&program, [3, 0, 0, 0]).0, 10);
    array.update([(2, None)]).unwrap();
    settle(&f);
    assert_eq!(program.machine_code().unwrap(), unlinked, "no jump is left behind");

    let before = f.engine.code_stats().programs;
    drop(program);
    assert_eq!([0, 1, 2, 3].map(|i| array.tracked_sites(i)), [0; 4]);
    settle(&f);
    assert_eq!(f.engine.code_stats().programs, before - 1, "the programs that were in the slots had gone before");
}

#[test]
fn no_thread_falls_through_while_a_site_is_flipped() {
    let Some(f) = direct() else { return };
    let flips: u64 = match (soak(), cfg!(target_arch = "aarch64")) {
        (true, _) => 10_000_000,
        (false, false) => 100_000,
        (false, true) => 10_000,
    };
    for text in [site(0, 1), site_in_subprogram(0, 1)] {
        let array = f.array(1);
        let program = f.load("main", &text, &[&array]);
        let (two, three) = (constant(&f, 2), constant(&f, 3));
        let base = if text.contains("sub:") { 100 } else { 0 };
        let stop = AtomicBool::new(false);
        let seen: [AtomicU64; 3] = Default::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed, here and below: the flag and the counts order nothing else.
                while !stop.load(Ordering::Relaxed) {
                    let (r0, words) = f.run(&program, [5, 6, 7, 8]);
                    assert_eq!(words, [5, 6, 7, 8]);
                    assert!((base + 1..=base + 3).contains(&r0), "{r0} is no consistent result");
                    seen[(r0 - base - 1) as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
            let all_seen = || seen.iter().all(|count| count.load(Ordering::Relaxed) > 0);
            let mut done = 0;
            // The bound is for a runner that never sees one of the states: then the assertion below fails.
            while done < flips / 2 || (!all_seen() && done < 100 * flips) {
                // Install, update, remove; and either wait until the jump is gone, or install again while it drains.
                array.set(0, &two).unwrap();
                array.set(0, &three).unwrap();
                array.clear(0).unwrap();
                if done % 8 < 4 {
                    f.engine.domain().drain().unwrap();
                }
                done += 4;
            }
            stop.store(true, Ordering::Relaxed);
            println!("{done} steps; runs that saw the slot empty, 2, 3: {seen:?}");
            assert!(all_seen());
        });
    }
}

/// Returns whether a run of [`runners_and_updaters`] may have this result: slot 0 is empty, holds a leaf (1000 and up),
/// or a program that goes on to slot 1, which is empty (2000 and up) or holds a leaf.
fn is_allowed(r0: u64) -> bool {
    r0 == 1 || (1000..1100).contains(&r0) || (2000..2100).contains(&r0)
}

#[test]
fn runners_and_updaters() {
    let Some(f) = direct() else { return };
    let updates = match (soak(), cfg!(target_arch = "aarch64")) {
        (true, _) => 1_000_000,
        (false, false) => 10_000,
        (false, true) => 1_000,
    };
    let array = f.array(2);
    let mains = [f.load("main", &site(0, 1), &[&array]), f.load("main", &site_in_subprogram(0, 1), &[&array])];
    let stop = AtomicBool::new(false);
    let (runs, linked) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for runner in 0..2 {
            let (f, mains, stop, runs, linked, array) = (&f, &mains, &stop, &runs, &linked, &array);
            scope.spawn(move || {
                let mut number = runner;
                // Relaxed: counts and a flag.
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    // Now and then a program that is loaded while its slots change, and dropped.
                    let fresh;
                    let main = if number % 64 == 0 {
                        fresh = f.load("fresh", &site(0, 1), &[array]);
                        &fresh
                    } else {
                        &mains[number % 2]
                    };
                    let base = if core::ptr::eq(main, &mains[1]) { 100 } else { 0 };
                    let (r0, words) = f.run(main, [1, 2, 3, 4]);
                    assert_eq!(words, [1, 2, 3, 4]);
                    assert!(r0 >= base && is_allowed(r0 - base), "{r0} is no consistent result");
                    runs.fetch_add(1, Ordering::Relaxed);
                    linked.fetch_add(u64::from(r0 - base != 1), Ordering::Relaxed);
                }
            });
        }
        let updaters: Vec<_> = (0..2u64)
            .map(|updater| {
                let (f, array) = (&f, &array);
                scope.spawn(move || {
                    let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(updater + 1);
                    for _ in 0..updates / 2 {
                        // xorshift64 (Marsaglia 2003).
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let value = (random >> 32) % 100;
                        // Fresh programs, so that those before them are freed, and their memory becomes traps.
                        match random % 5 {
                            0 => array.set(0, &constant(f, 1000 + value as u32)).unwrap(),
                            1 => array.set(0, &f.load("on", &site(1, 2000 + value as u32), &[array])).unwrap(),
                            2 => array.set(1, &constant(f, 1000 + value as u32)).unwrap(),
                            3 => array.update([(0, None), (1, None)]).unwrap(),
                            // Another thread may have emptied the slot.
                            _ => drop(array.clear(value as u32 % 2)),
                        }
                    }
                })
            })
            .collect();
        for updater in updaters {
            updater.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{updates} updates, {runs:?} runs, {linked:?} of them through a site");
    assert!(linked.into_inner() > 0);
    array.update([(0, None), (1, None)]).unwrap();
    settle(&f);
    assert_eq!(f.engine.code_stats().programs, 2, "nothing but the two mains is left");
}
