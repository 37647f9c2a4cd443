//! Eight threads load, run, swap and drop programs at random, while ownership is checked; alone in its process.
//!
//! - Every byte of a pack belongs to one owner: a program's range never overlaps another that is loaded or still
//!   waiting to be freed (a shadow map knows them all), and at the end every byte outside loaded programs is a trap.
//! - A reachable program runs: a call returns the program's own number, or the process dies of a trap.
//! - No page is writable and executable at any moment at which a checking thread looks.
//!
//! The number of steps is fixed; `BPF_SOAK=1 cargo test --release --test churn` runs a hundred times as many.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bpf_prog_pack::{Options, Packs, Text};
use bpf_quiesce::{Barriers, Domain, WhenFull};
use common::{constant, run};

const THREADS: u64 = 8;
const SLOTS: usize = 64;

struct Slot {
    /// The current entry point, or null. Written under `owner`'s lock.
    entry: AtomicPtr<u8>,
    owner: Mutex<Option<Text>>,
}

/// The address ranges of programs: start to end.
#[derive(Default)]
struct Shadow(Mutex<BTreeMap<usize, usize>>);

impl Shadow {
    fn add(&self, text: &Text) {
        let start = text.base() as usize & !63;
        let end = start + text.footprint();
        let mut owners = self.0.lock().unwrap();
        let before = owners.range(..end).next_back();
        assert!(before.is_none_or(|(_, before_end)| *before_end <= start), "two owners of {start:#x}");
        owners.insert(start, end);
    }

    fn remove(&self, text: &Text) {
        assert!(self.0.lock().unwrap().remove(&(text.base() as usize & !63)).is_some());
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % n
    }
}

#[test]
fn programs_come_and_go_under_traffic() {
    let steps = match (std::env::var_os("BPF_SOAK"), cfg!(target_arch = "aarch64")) {
        (Some(_), _) => 2_000_000,
        (None, false) => 20_000,
        (None, true) => 500,
    };
    for (barriers, max_slots) in [(Barriers::Auto, 64), (Barriers::Auto, 3), (Barriers::Fenced, 8)] {
        let domain =
            Domain::new(bpf_quiesce::Options::new().barriers(barriers).max_slots(max_slots).when_full(WhenFull::Wait));
        churn(domain, steps / 2);
    }
}

fn churn(domain: Arc<Domain>, steps: u64) {
    let mut options = Options::default();
    (options.pack_size, options.keep_empty, options.random_offset) = (256 << 10, 512 << 10, true);
    let packs = Packs::new(Arc::clone(&domain), options).unwrap();
    let slots: Vec<_> = (0..SLOTS).map(|_| Slot { entry: AtomicPtr::default(), owner: Mutex::new(None) }).collect();
    let (shadow, stop) = (Shadow::default(), AtomicBool::new(false));
    let (runs, swaps) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag orders nothing else.
            while !stop.load(Ordering::Relaxed) {
                common::assert_no_writable_code();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let workers: Vec<_> = (1..=THREADS)
            .map(|seed| {
                let (packs, domain, slots, shadow) = (&packs, &domain, &slots, &shadow);
                let (runs, swaps) = (&runs, &swaps);
                scope.spawn(move || {
                    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    for _ in 0..steps {
                        let at = random.below(SLOTS as u64) as usize;
                        match random.below(10) {
                            0..=5 => {
                                let _guard = domain.enter().unwrap();
                                runs.fetch_add(call(&slots[at], at), Ordering::Relaxed);
                            }
                            6..=8 => {
                                swap(packs, shadow, &slots[at], at, &mut random);
                                swaps.fetch_add(1, Ordering::Relaxed);
                            }
                            _ => unload(shadow, &slots[at]),
                        }
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0);
    });
    let loaded = slots.iter().filter(|slot| slot.owner.lock().unwrap().is_some()).count();
    println!("{runs:?} runs, {swaps:?} swaps, {loaded} loaded at the end: {:?}", packs.stats());
    assert!(runs.into_inner() > steps && swaps.into_inner() > steps);
    packs.drain().unwrap();
    domain.drain().unwrap();
    assert_eq!(packs.stats().programs, loaded);
    check_bytes(&shadow);

    for slot in &slots {
        unload(&shadow, slot);
    }
    packs.drain().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.bytes_used, stats.bytes_retired), (0, 0, 0));
    assert_eq!(stats.holes, stats.packs, "every pack is one free extent again");
    assert!(stats.bytes <= 512 << 10);
    check_bytes(&shadow);
}

/// Calls the program in the slot, under the caller's guard; returns the number of programs called.
fn call(slot: &Slot, at: usize) -> u64 {
    // Acquire, pairs with the Release in `swap`: the program was finalized before.
    let entry = slot.entry.load(Ordering::Acquire);
    if entry.is_null() {
        return 0;
    }
    // SAFETY: made by `constant`; reachable inside this guard, which therefore keeps it alive.
    let value = unsafe { run(entry) };
    assert_eq!(value as usize % SLOTS, at, "another slot's program ran");
    1
}

fn swap(packs: &Packs, shadow: &Shadow, slot: &Slot, at: usize, random: &mut Random) {
    let value = random.below(1 << 20) as u32 * SLOTS as u32 + at as u32;
    let code = constant(value, random.below(700) as usize + if random.below(200) == 0 { 40_000 } else { 0 });
    let staged = packs.stage(&code, |_| None).unwrap();
    if random.below(16) == 0 {
        return; // Abandoned.
    }
    let text = staged.finalize().unwrap();
    shadow.add(&text);
    let mut owner = slot.owner.lock().unwrap();
    // Release: see `call`.
    slot.entry.store(text.entry(0).unwrap().cast_mut(), Ordering::Release);
    let old = owner.replace(text);
    drop(owner);
    if let Some(old) = old {
        shadow.remove(&old);
        drop(old);
    }
}

fn unload(shadow: &Shadow, slot: &Slot) {
    let mut owner = slot.owner.lock().unwrap();
    slot.entry.store(std::ptr::null_mut(), Ordering::Release);
    if let Some(old) = owner.take() {
        shadow.remove(&old);
    }
}

/// Every byte of every pack outside the loaded programs is a trap.
fn check_bytes(shadow: &Shadow) {
    let owners = shadow.0.lock().unwrap();
    let trap = common::trap();
    for view in common::executable_views() {
        let mut at = view.start;
        let inside = owners.range(view.clone()).map(|(start, end)| (*start, *end)).chain([(view.end, view.end)]);
        for (start, end) in inside {
            for byte in at..start {
                let pointer: *const u8 = std::ptr::with_exposed_provenance(byte);
                // SAFETY: mapped readable, and no thread loads or frees at the moment.
                assert_eq!(unsafe { pointer.read_volatile() }, trap[byte % 4], "{byte:#x} is nobody's");
            }
            at = end;
        }
    }
}
