//! One thread runs and one patches: both results occur, and no other.
//!
//! 10^5 flips (10^4 on arm64, which usually means emulation); with `BPF_SOAK=1 cargo test --release --test packs
//! flip` 10^7. The example `flip` also breaks the rules, as controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{FELL_THROUGH, HOST, constant, flip, run, site};
use bpf_prog_pack::{Options, Packs, Patch, PokeError};
use bpf_quiesce::Domain;

fn flips() -> u64 {
    match (std::env::var_os("BPF_SOAK"), cfg!(target_arch = "aarch64")) {
        (Some(_), _) => 10_000_000,
        (None, false) => 100_000,
        (None, true) => 10_000,
    }
}

fn packs() -> Packs {
    Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).unwrap()
}

/// Runs `entry` in a thread of its own while `patch` patches it, `times` times and until 1 and 2 were both returned.
/// Returns how often another value was returned.
fn patched_under_a_runner(packs: &Packs, entry: usize, times: u64, mut patch: impl FnMut()) -> u64 {
    let stop = AtomicBool::new(false);
    let seen: [AtomicU64; 3] = Default::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag and the counts order nothing else.
            while !stop.load(Ordering::Relaxed) {
                let _guard = packs.domain().enter().unwrap();
                // SAFETY: hand-assembled, and kept loaded by the caller.
                let value = unsafe { run(std::ptr::with_exposed_provenance(entry)) };
                let which = if matches!(value, 1 | 2) { value } else { 0 };
                seen[which as usize].fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut done, seen) = (0, |i: usize| seen[i].load(Ordering::Relaxed));
        // The bound is for a runner that never returns one of them: then the assertion below fails.
        while done < times || ((seen(1) == 0 || seen(2) == 0) && done < 1000 * times) {
            patch();
            done += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [other, one, two] = seen.map(AtomicU64::into_inner);
    println!("{one} + {two} runs saw the two behaviours, {other} something else");
    assert!(one > 0 && two > 0);
    other
}

#[test]
fn a_flipped_slot_is_seen_old_or_new() {
    let packs = packs();
    let (code, slot, other) = flip();
    let text = packs.stage(&code, |_| None).unwrap().finalize().unwrap();
    let entry = text.base() as usize;
    let jump = Patch::Jump(entry + other);
    let wrong = patched_under_a_runner(&packs, entry, flips() / 2, || {
        text.poke(slot, Patch::Nop, jump).unwrap();
        text.poke(slot, jump, Patch::Nop).unwrap();
    });
    assert_eq!(wrong, 0);
    assert_eq!(text.to_vec(), code.bytes);
}

#[test]
fn a_slot_is_retargeted_between_programs_under_a_runner() {
    let packs = packs();
    let (code, slot, _) = flip();
    let load = |code| packs.stage(code, |_| None).unwrap().finalize().unwrap();
    let (text, one, two) = (load(&code), load(&constant(1, 0)), load(&constant(2, 3000)));
    let (one, two) = (Patch::Jump(one.base() as usize), Patch::Jump(two.base() as usize));
    text.poke(slot, Patch::Nop, one).unwrap();
    let wrong = patched_under_a_runner(&packs, text.base() as usize, flips() / 2, || {
        text.poke(slot, one, two).unwrap();
        text.poke(slot, two, one).unwrap();
    });
    assert_eq!(wrong, 0);
}

#[test]
fn dependent_slots_with_barriers_never_fall_through() {
    let packs = packs();
    if !packs.domain().has_core_barrier() {
        println!("SKIPPED: no core barrier on this host, so dependent pokes are refused");
        assert!(packs.domain().core_barrier().is_err());
        return;
    }
    let site = site();
    let text = packs.stage(&site.code, |_| None).unwrap().finalize().unwrap();
    let base = text.base() as usize;
    let (out, program) = (Patch::Jump(base + site.out), Patch::Jump(base + site.program));
    let (bypass, target) = (text.patch_site(site.bypass).unwrap(), text.patch_site(site.target).unwrap());
    let wrong = patched_under_a_runner(&packs, base, flips() / 20, || {
        target.poke(Patch::Nop, program).unwrap();
        packs.domain().core_barrier().unwrap();
        bypass.poke(out, Patch::Nop).unwrap();

        bypass.poke(Patch::Nop, out).unwrap();
        packs.domain().core_barrier().unwrap();
        packs.domain().synchronize().unwrap();
        target.poke(program, Patch::Nop).unwrap();
    });
    assert_eq!(wrong, 0, "{FELL_THROUGH} is what falling through returns");
}

#[test]
fn a_mismatch_changes_nothing_and_says_what_is_there() {
    let packs = packs();
    let (code, slot, other) = flip();
    let text = packs.stage(&code, |_| None).unwrap().finalize().unwrap();
    let base = text.base() as usize;
    let mut found = [0; 8];
    found[..slot.len() as usize].copy_from_slice(&code.bytes[..slot.len() as usize]);
    let wrong = text.poke(slot, Patch::Jump(base + other), Patch::Nop);
    assert_eq!(wrong, Err(PokeError::Mismatch { at: 0, found }));
    let far = Patch::Jump(base.wrapping_sub(1 << 40));
    assert!(matches!(text.poke(slot, Patch::Nop, far), Err(PokeError::OutOfReach { from, .. }) if from == base));
    let beyond = bpf_jit_code::PatchSlot::new(HOST, 4096).unwrap();
    assert_eq!(text.poke(beyond, Patch::Nop, far), Err(PokeError::Outside { at: 4096 }));
    assert_eq!(text.to_vec(), code.bytes);
}

#[test]
fn slots_that_share_a_word_do_not_disturb_each_other() {
    // Two threads each flip a byte pattern next to the other's. On x86-64 a word has room for one five-byte slot, so
    // the neighbouring bytes are ordinary code there and must not change.
    let packs = packs();
    let mut code = constant(7, 64);
    let nop = crate::common::nop();
    let first = bpf_jit_code::PatchSlot::new(HOST, 32).unwrap();
    let second_at = if nop.len() == 4 { 36 } else { 40 };
    code.bytes[second_at..second_at + nop.len()].copy_from_slice(&nop);
    code.bytes[32..32 + nop.len()].copy_from_slice(&nop);
    let second = bpf_jit_code::PatchSlot::new(HOST, second_at as u32).unwrap();
    let text = Arc::new(packs.stage(&code, |_| None).unwrap().finalize().unwrap());
    let jump = Patch::Jump(text.base() as usize);
    std::thread::scope(|scope| {
        for slot in [first, second] {
            let text = &text;
            scope.spawn(move || {
                for _ in 0..10_000 {
                    text.poke(slot, Patch::Nop, jump).unwrap();
                    text.poke(slot, jump, Patch::Nop).unwrap();
                }
            });
        }
    });
    assert_eq!(text.to_vec(), code.bytes);
}
