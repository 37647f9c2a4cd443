//! Tests of loading, dropping and freeing under randomly chosen schedules: every byte has one owner, and no run loses
//! the program that it is inside of.
//!
//! Problem: the bookkeeping must be correct in every order in which threads reach their critical sections; a stress
//! test sees few of the orders and cannot repeat them. Approach: threads pass a baton. The thread that has it runs to
//! its next [`point`] (before each critical section, and between steps outside of them), where a generator, seeded per
//! schedule, selects the next thread. The threads are real, not a model checker's coroutines, because guards belong to
//! threads; so the real allocator, queue and domain run. Points are never inside a critical section, so no thread waits
//! for one without the baton.
//!
//! After each step of a thread the test checks: free extents, queued extents and live programs are disjoint, and all
//! other chunks are held by threads; free chunks are traps; code seen under a guard does not change until the guard
//! ends; statistics add up; no more empty packs are kept than configured. Memory orderings are not explored here: see
//! [`crate::packs`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bpf_jit_code::{Arch, Code};
use bpf_os::{Call, inject};
use bpf_quiesce::{Barriers, Domain};

use crate::arena::{Arena, GRANULE};
use crate::chunks::Extent;
use crate::packs::Owners;
use crate::place::CHUNK;
use crate::retire::BatchLimits;
use crate::{Error, Options, Packs, Staged, Text, arch};

/// The object that decides which thread may run.
struct Baton {
    turn: Mutex<Turn>,
    passed: Condvar,
}

struct Turn {
    holder: usize,
    /// The threads that have not finished.
    left: Vec<usize>,
    random: Random,
    /// A thread has panicked: the other threads run on without order, and the test has failed.
    failed: bool,
}

thread_local!(static PLAYER: RefCell<Option<Player>> = const { RefCell::new(None) });

/// The current thread's part in a schedule, until it is dropped.
struct Player {
    baton: Arc<Baton>,
    number: usize,
}

/// May let another thread of the schedule run first. Does nothing in threads of other tests.
pub(crate) fn point() {
    PLAYER.with_borrow(|player| {
        if let Some(Player { baton, number }) = player {
            let mut turn = baton.lock();
            turn.holder = turn.choose();
            baton.wait(turn, *number);
        }
    });
}

/// Whether the current thread is part of a schedule.
pub(crate) fn is_scheduled() -> bool {
    PLAYER.with_borrow(|player| player.as_ref().is_some_and(|player| !player.baton.lock().failed))
}

impl Baton {
    fn new(players: usize, seed: u64) -> Arc<Baton> {
        let turn = Turn { holder: 0, left: (0..players).collect(), random: Random(seed), failed: false };
        Arc::new(Baton { turn: Mutex::new(turn), passed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, mut turn: MutexGuard<'_, Turn>, number: usize) {
        if turn.holder != number {
            self.passed.notify_all();
        }
        while turn.holder != number && !turn.failed {
            turn = self.passed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs `f` as one player.
    fn play(self: &Arc<Self>, number: usize, f: impl FnOnce()) {
        self.wait(self.lock(), number);
        PLAYER.set(Some(Player { baton: Arc::clone(self), number }));
        let _done = Done;
        f();
    }
}

impl Turn {
    fn choose(&mut self) -> usize {
        match self.left.len() {
            0 => 0,
            n => self.left[self.random.below(n as u64) as usize],
        }
    }
}

struct Done;

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(Player { baton, number }) = PLAYER.take() {
            let mut turn = baton.lock();
            turn.failed |= std::thread::panicking();
            turn.left.retain(|left| *left != number);
            turn.holder = turn.choose();
            drop(turn);
            baton.passed.notify_all();
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A program that other threads may run: its number, its length, and its address.
#[derive(Clone, Copy)]
struct Loaded {
    number: u32,
    len: usize,
    base: usize,
}

/// The state that all threads of a schedule share.
struct World {
    packs: Packs,
    slots: [Mutex<Option<(Loaded, Text)>>; 4],
    /// Programs and staged ones whose drop has not begun: their lengths by pack and first chunk.
    live: Mutex<BTreeMap<(u32, u32), u32>>,
    /// Number of drops that have begun and not ended.
    dropping: AtomicU64,
    numbers: AtomicU64,
    seen: AtomicU64,
}

fn key(extent: Extent) -> (u32, u32) {
    (extent.pack, extent.start)
}

fn bytes(number: u32, len: usize) -> Vec<u8> {
    // Never a trap, because the bytes of traps have the top bit set.
    number.to_le_bytes().map(|byte| byte & 0x7f).into_iter().cycle().take(len).collect()
}

fn code(number: u32, len: usize) -> Code {
    let mut code = Code::new(Arch::HOST.unwrap());
    code.bytes = bytes(number, len);
    code.entries = vec![0];
    code
}

impl World {
    fn stage(&self, len: usize) -> Result<(u32, Staged), Error> {
        // Relaxed: only the numbers matter.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) as u32;
        let staged = self.packs.stage(&code(number, len), |_| None)?;
        let extent = staged.extent();
        assert_eq!(self.live.lock().unwrap().insert(key(extent), extent.len), None, "two programs in one place");
        Ok((number, staged))
    }

    /// Drops a program or a staged one.
    fn drop<T>(&self, extent: Extent, what: T) {
        // From this point on the extent may be held by any thread, in the queue, free, or another program's.
        assert!(self.live.lock().unwrap().remove(&key(extent)).is_some());
        // Relaxed, here and below: the baton orders everything.
        self.dropping.fetch_add(1, Ordering::Relaxed);
        drop(what);
        self.dropping.fetch_sub(1, Ordering::Relaxed);
    }

    fn load(&self, random: &mut Random) -> Result<(), Error> {
        // Two or three long programs fill a pack, so that packs are added and given back.
        let longest = if random.below(2) == 0 { 40_000 } else { 3000 };
        let len = 1 + random.below(longest) as usize;
        let (number, staged) = self.stage(len)?;
        let extent = staged.extent();
        if random.below(3) == 0 {
            self.drop(extent, staged);
            return Ok(());
        }
        let text = staged.finalize()?;
        let shared = Loaded { number, len, base: text.base() as usize };
        let slot = &self.slots[random.below(self.slots.len() as u64) as usize];
        let old = slot.lock().unwrap().replace((shared, text));
        self.unload(old);
        Ok(())
    }

    fn unload(&self, old: Option<(Loaded, Text)>) {
        if let Some((_, text)) = old {
            self.drop(text.extent(), text);
        }
    }

    /// Enters a program as a run does, and reads its bytes repeatedly.
    fn visit(&self, random: &mut Random) {
        let _guard = self.packs.domain().enter().unwrap();
        let slot = &self.slots[random.below(self.slots.len() as u64) as usize];
        // The lock stands for an atomic load: it is not held while the program runs.
        let Some(Loaded { number, len, base }) = slot.lock().unwrap().as_ref().map(|(shared, _)| *shared) else {
            return;
        };
        for _ in 0..1 + random.below(12) {
            let code = std::ptr::with_exposed_provenance::<u8>(base);
            // SAFETY: published, and dropped after the guard began if at all, so it is mapped and not written.
            let found = unsafe { std::slice::from_raw_parts(code, len) };
            assert!(found == bytes(number, len), "program {number} has changed under a guard");
            self.seen.fetch_add(1, Ordering::Relaxed);
            point();
        }
    }

    /// Checks that every chunk has one owner.
    fn check(&self) {
        let Owners { packs, free, queued, empty } = self.packs.shared.owners();
        // If a pack was added because room was scarce, it is the only empty one.
        let most = self.packs.shared.options.keep_empty.max(GRANULE);
        assert!(empty <= most, "{empty} bytes are kept for nothing");
        let mut owners: BTreeMap<u32, Vec<bool>> =
            packs.iter().map(|(id, _, chunks)| (*id, vec![false; *chunks as usize])).collect();
        let mut own = |pack: u32, start: u32, len: u32, what: &str| {
            let pack = owners.get_mut(&pack).unwrap_or_else(|| panic!("{what} in a pack that is gone"));
            for chunk in &mut pack[start as usize..(start + len) as usize] {
                assert!(!*chunk, "{what}: a chunk has two owners");
                *chunk = true;
            }
        };
        for extent in &free {
            own(extent.pack, extent.start, extent.len, "free");
        }
        for extent in &queued {
            own(extent.pack, extent.start, extent.len, "queued");
        }
        for ((pack, start), len) in &*self.live.lock().unwrap() {
            own(*pack, *start, *len, "a program");
        }
        let trap = arch::trap_word(Arch::HOST.unwrap());
        for extent in free {
            let (_, rw, _) = packs.iter().find(|(id, ..)| *id == extent.pack).unwrap();
            let words = std::ptr::with_exposed_provenance::<u64>(rw + extent.start as usize * CHUNK);
            // SAFETY: free chunks of a mapped pack: this thread has the baton, so no other thread unmaps it.
            let words = unsafe { std::slice::from_raw_parts(words, extent.len as usize * CHUNK / 8) };
            assert!(words.iter().all(|word| *word == trap), "free chunks are not all traps");
        }
        let stats = self.packs.shared.stats();
        assert_eq!(stats.bytes, stats.bytes_used + stats.bytes_retired + stats.bytes_free);
        assert_eq!(stats.packs, packs.len());
        let live = self.live.lock().unwrap();
        let dropping = self.dropping.load(Ordering::Relaxed) as usize;
        assert!((live.len()..=live.len() + dropping).contains(&stats.programs), "{stats:?}");
    }
}

fn schedule(seed: u64, arena: &'static Arena, barriers: Barriers) -> u64 {
    const PLAYERS: usize = 3;
    let domain = Domain::new(bpf_quiesce::Options::new().barriers(barriers));
    let keep_empty = (seed % 3) as usize * GRANULE;
    let options =
        Options { pack_size: GRANULE, keep_empty, random_offset: false, collapse_percent: 101, ..Options::default() };
    // Batches so short that they are often freed into shards, sometimes concurrently.
    let limits = BatchLimits { alone: 1, beside_others: 1 + (seed % 4) as usize, chunks: 1000 };
    let packs = Packs::with_limits(domain, options, Arch::HOST.unwrap(), arena, limits);
    let world = World {
        packs,
        slots: Default::default(),
        live: Mutex::default(),
        dropping: AtomicU64::new(0),
        numbers: AtomicU64::new(1),
        seen: AtomicU64::new(0),
    };
    let baton = Baton::new(PLAYERS, seed);
    std::thread::scope(|scope| {
        for number in 0..PLAYERS {
            let (baton, world) = (&baton, &world);
            scope.spawn(move || {
                baton.play(number, || {
                    let mut random = Random(seed ^ (number as u64 + 1) << 40);
                    for _ in 0..32 {
                        match random.below(10) {
                            0..=3 => world.load(&mut random).unwrap(),
                            4 | 5 => world.visit(&mut random),
                            6 => {
                                // A pack that cannot be made changes nothing.
                                let call = [Call::Memfd, Call::Ftruncate, Call::Seal][random.below(3) as usize];
                                let (result, reached) = inject::failing(call, 0, || world.load(&mut random));
                                assert!(result.is_ok() || reached, "{result:?}");
                            }
                            7 => {
                                let slot = &world.slots[random.below(world.slots.len() as u64) as usize];
                                let old = slot.lock().unwrap().take();
                                world.unload(old);
                            }
                            _ => {
                                world.packs.reclaim();
                            }
                        }
                        world.check();
                        point();
                    }
                });
            });
        }
    });
    for slot in &world.slots {
        let old = slot.lock().unwrap().take();
        world.unload(old);
    }
    world.packs.drain().unwrap();
    world.check();
    let stats = world.packs.stats();
    assert_eq!((stats.programs, stats.bytes_used, stats.bytes_retired), (0, 0, 0), "{stats:?}");
    assert_eq!(stats.holes, stats.packs, "every pack is one free extent again");
    assert!(stats.bytes <= keep_empty, "{stats:?}: more than {keep_empty} bytes are kept for nothing");
    world.seen.into_inner()
}

/// 100 schedules with each kind of barrier; `BPF_SOAK=N`: N times as many.
#[test]
fn every_byte_has_one_owner_in_every_order() {
    let times = std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let schedules: u64 = times * if cfg!(target_arch = "aarch64") { 10 } else { 100 };
    let arena = Arena::reserve(16 << 20, 0).unwrap().for_ever();
    let mut seen = 0;
    // Publishing on arm64 without core barriers waits for a grace period, that is, for a thread in a guard, which
    // would need the baton to leave it.
    let kinds: &[Barriers] =
        if cfg!(target_arch = "aarch64") { &[Barriers::Auto] } else { &[Barriers::Auto, Barriers::Fenced] };
    for seed in 0..schedules {
        for barriers in kinds {
            seen += schedule(seed, arena, *barriers);
        }
    }
    assert_eq!(arena.taken(), 0);
    assert!(seen > schedules, "programs were looked into {seen} times");
    println!("{schedules} schedules, {seen} looks into programs under guards");
}

/// One fixed order: a thread finds no room, and while it makes a pack another thread frees all chunks.
#[test]
fn no_more_is_kept_for_nothing_than_was_asked_for() {
    for keep_empty in [0, GRANULE, 2 * GRANULE] {
        let options = Options { pack_size: GRANULE, keep_empty, ..Options::default() };
        let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), options).unwrap();
        let full: Vec<_> =
            (0..3).map(|_| packs.stage(&code(1, GRANULE), |_| None).unwrap().finalize().unwrap()).collect();
        let some = packs.stage(&code(1, GRANULE / 2), |_| None).unwrap().finalize().unwrap();
        let (needed, scarce) = (packs.shared.make_pack(8).unwrap(), packs.shared.make_pack(8).unwrap());
        drop(full);
        packs.drain().unwrap();
        assert_eq!(packs.stats().empty_packs, keep_empty / GRANULE);

        let place = packs.shared.allocate_or_add(8, Some(needed)).unwrap();
        assert!(packs.shared.center().empty() <= keep_empty.max(GRANULE), "{:?}", packs.stats());
        let given_back = packs.shared.center().reserve(scarce);
        assert!(given_back.is_some(), "an empty pack is there");
        drop(given_back);
        packs.shared.abandon(place);
        drop(some);
        packs.drain().unwrap();
        let stats = packs.stats();
        assert!(stats.programs == 0 && stats.bytes <= keep_empty, "{stats:?}");
    }
}
