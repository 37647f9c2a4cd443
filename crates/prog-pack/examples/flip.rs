//! Tests the rules of text poking, both kept and broken, and counts the results: `cargo run --release -p
//! bpf-prog-pack --example flip [FLIPS]`.
//!
//! Kept: one slot flipped, and two dependent slots with their barriers (10^7 and 10^6 flips unless given); any result
//! but the two valid ones fails the run. Broken, as controls: the two slots without barriers, and (on x86-64) a slot
//! that crosses a cache line, written in two stores, in a child process that usually dies of it. A control that finds
//! nothing proves nothing: it prints "inconclusive". An emulator never shows these effects.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bpf_prog_pack::{Options, Packs, Patch};
use bpf_quiesce::Domain;
use common::{flip, run, site};

fn main() {
    let flips = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000_000);
    let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).expect("a supported host");
    let mut failed = one_slot(&packs, flips) > 0;
    if packs.domain().has_core_barrier() {
        failed |= two_slots(&packs, flips / 10, true) > 0;
    }
    let wrong = two_slots(&packs, flips, false);
    println!("control, no barriers: fell through {wrong} times{}", verdict(wrong));
    control::crossing_slot(flips);
    assert!(!failed, "a rule that was kept was not enough");
}

fn verdict(count: u64) -> &'static str {
    if count == 0 { " (inconclusive)" } else { "" }
}

/// Counts of the results that a runner returned: other, 1, 2.
#[derive(Default)]
struct Seen([AtomicU64; 3]);

impl Seen {
    /// Number of runs so far. Relaxed, like all counts here, since no other access depends on their order.
    fn runs(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Waits for two more runs to end.
    fn await_runs(&self) {
        let now = self.runs();
        while self.runs() < now + 2 {
            std::hint::spin_loop();
        }
    }
}

/// Calls `patch` `times` times while a thread runs `entry`, and counts that thread's results.
fn watch(domain: Option<&Domain>, entry: usize, times: u64, mut patch: impl FnMut(&Seen)) -> [u64; 3] {
    let (stop, seen) = (AtomicBool::new(false), Seen::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _guard = domain.map(|domain| domain.enter().expect("a slot"));
                // SAFETY: hand-assembled, and kept loaded by the caller.
                let value = unsafe { run(std::ptr::with_exposed_provenance(entry)) };
                let which = if matches!(value, 1 | 2) { value } else { 0 };
                // This thread is the only writer: a locked addition would keep the CPU from fetching ahead.
                let count = &seen.0[which as usize];
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        });
        seen.await_runs();
        (0..times).for_each(|_| patch(&seen));
        stop.store(true, Ordering::Relaxed);
    });
    seen.0.map(AtomicU64::into_inner)
}

fn one_slot(packs: &Packs, flips: u64) -> u64 {
    let (code, slot, other) = flip();
    let text = packs.stage(&code, |_| None).and_then(|s| s.finalize()).expect("loads");
    let jump = Patch::Jump(text.base() as usize + other);
    let [wrong, old, new] = watch(None, text.base() as usize, flips / 2, |_| {
        text.poke(slot, Patch::Nop, jump).expect("holds a nop");
        text.poke(slot, jump, Patch::Nop).expect("holds a jump");
    });
    println!("one slot, {flips} flips: {old} runs saw the nop, {new} the jump, {wrong} something else");
    wrong
}

fn two_slots(packs: &Packs, flips: u64, barriers: bool) -> u64 {
    let site = site();
    let text = packs.stage(&site.code, |_| None).and_then(|s| s.finalize()).expect("loads");
    let base = text.base() as usize;
    let (out, program) = (Patch::Jump(base + site.out), Patch::Jump(base + site.program));
    let (bypass, target) = (text.patch_site(site.bypass).expect("fits"), text.patch_site(site.target).expect("fits"));
    let open_for_a_while = || (0..100).for_each(|_| std::hint::spin_loop());
    let kept = |_: &Seen| {
        target.poke(Patch::Nop, program).expect("holds a nop");
        packs.domain().core_barrier().expect("granted before");
        bypass.poke(out, Patch::Nop).expect("closed");
        open_for_a_while();
        bypass.poke(Patch::Nop, out).expect("open");
        packs.domain().core_barrier().expect("granted before");
        packs.domain().synchronize().expect("outside guards");
        target.poke(program, Patch::Nop).expect("linked");
    };
    // The runs in flight are awaited here as well, by their own counts: no barrier interrupts the runner.
    let broken = |seen: &Seen| {
        target.poke(Patch::Nop, program).expect("holds a nop");
        bypass.poke(out, Patch::Nop).expect("closed");
        open_for_a_while();
        bypass.poke(Patch::Nop, out).expect("open");
        seen.await_runs();
        target.poke(program, Patch::Nop).expect("linked");
    };
    let [wrong, closed, linked] = if barriers {
        watch(Some(packs.domain()), base, flips / 4, kept)
    } else {
        watch(None, base, flips / 4, broken)
    };
    println!(
        "two slots, {flips} flips, barriers {barriers}: {closed} runs saw it closed, {linked} linked, {wrong} fell through"
    );
    wrong
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

    /// A five-byte slot at the end of a cache line, rewritten in two stores under a runner, in a child process.
    pub(crate) fn crossing_slot(flips: u64) {
        // SAFETY: all other threads of this process have ended; the child leaves through `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let wrong = flip(flips).min(100);
            // SAFETY: ends the child.
            unsafe { libc::_exit(wrong as i32) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        if libc::WIFSIGNALED(status) {
            println!("control, slot across a cache line: the child died of signal {}", libc::WTERMSIG(status));
        } else {
            let count = libc::WEXITSTATUS(status) as u64;
            println!("control, slot across a cache line: {count} wrong results{}", super::verdict(count));
        }
    }

    fn flip(flips: u64) -> u64 {
        /// The slot's offset: two bytes in one cache line, three in the next.
        const SLOT: usize = 62;
        let (rw, rx) = two_views();
        let mut code = [0x90; 256];
        code[SLOT..SLOT + 5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0x00, 0x00]); // nop5
        code[SLOT + 5..SLOT + 11].copy_from_slice(&[0xb8, 1, 0, 0, 0, 0xc3]); // mov eax, 1; ret
        code[192..198].copy_from_slice(&[0xb8, 2, 0, 0, 0, 0xc3]); // mov eax, 2; ret
        let jump = [0xe9, (192 - SLOT - 5) as u8, 0, 0, 0];
        // SAFETY: both views are a page long.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), rw, code.len()) };
        let (stop, started, wrong) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let entry = rx as usize + SLOT;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: unsound on purpose: this demonstrates the effect, in a process that may die of it.
                    let value = unsafe { super::run(std::ptr::with_exposed_provenance(entry)) };
                    wrong.fetch_add(u64::from(!matches!(value, 1 | 2)), Ordering::Relaxed);
                    started.store(true, Ordering::Relaxed);
                }
            });
            while !started.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            for i in 0..flips {
                let bytes = if i % 2 == 0 { jump } else { [0x0f, 0x1f, 0x44, 0x00, 0x00] };
                for half in [0, 2] {
                    let place = rw.wrapping_add(SLOT + half).cast();
                    // SAFETY: inside the page; 62 and 64 are aligned for two bytes. The last byte is 0 in both
                    // instructions.
                    let place = unsafe { AtomicU16::from_ptr(place) };
                    place.store(u16::from_le_bytes([bytes[half], bytes[half + 1]]), Ordering::Release);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        wrong.into_inner()
    }

    /// A page, writable and executable through different mappings.
    fn two_views() -> (*mut u8, *mut u8) {
        // SAFETY: the name is a NUL-terminated constant.
        let file = unsafe { libc::memfd_create(c"control".as_ptr(), 0) };
        // SAFETY: takes integers only.
        assert_eq!(unsafe { libc::ftruncate(file, 4096) }, 0);
        let map = |protection| {
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at.expose_provenance();
            at.cast()
        };
        (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ | libc::PROT_EXEC))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod control {
    /// Does nothing: arm64 instructions never cross a word.
    pub(crate) fn crossing_slot(_: u64) {}
}
