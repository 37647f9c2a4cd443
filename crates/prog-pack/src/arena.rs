//! The process's reservation for code, near its own text.
//!
//! Problem: direct calls and jumps reach 2 GiB (x86-64) or 128 MiB (arm64). Programs call into the host's text and
//! jump to each other. If `mmap` chose the addresses of packs, every such branch might need a veneer.
//!
//! Approach: one inaccessible reservation per process, near this library's text where `/proc/self/maps` shows room,
//! at a random place within reach. Packs take ranges of it. If there is no room near the text, the size is halved a
//! few times; then the reservation is put anywhere, and branches out of it go through veneers.
//!
//! Invariants: any two places in the arena reach each other. A range belongs to one pack, or is free and
//! inaccessible. A pack with guards also has the granule on either side, which stays inaccessible. An arena is never
//! unmapped (it costs address space only), and a forked child makes its own.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bpf_jit_code::Arch;
use bpf_os::process::{self, Mapping};
use bpf_os::{SysError, memory};
use bpf_quiesce::fork::Generation;

use crate::arch;

/// Ranges are multiples of this: at least a page on every host.
pub(crate) const GRANULE: usize = 64 << 10;
/// The size of a huge page; larger ranges are aligned to it.
pub(crate) const HUGE: usize = 2 << 20;
/// Number of random places tried in each gap.
const TRIES: usize = 4;
/// Smallest reservation near the text.
const LEAST: usize = 8 << 20;

/// A reservation and which of its granules are taken.
#[derive(Debug)]
pub(crate) struct Arena {
    base: usize,
    taken: Mutex<Vec<bool>>,
    len: usize,
    generation: Generation,
}

impl Arena {
    /// The calling process's arena.
    pub(crate) fn of_process(host: Arch) -> Result<&'static Self, SysError> {
        // A lock could be held by a thread that does not exist in a forked child; a pointer cannot.
        static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());
        // Acquire, pairs with the compare_exchange below: the arena is initialised.
        let seen = ARENA.load(Ordering::Acquire);
        // SAFETY: null, or an arena leaked below.
        match unsafe { seen.as_ref() } {
            Some(arena) if arena.generation.is_current() => return Ok(arena),
            _ => {}
        }
        let fresh = Box::into_raw(Box::new(Self::reserve(arch::arena_limit(host), arch::reach(host))?));
        // Release: see above. The thread that loses the race leaves its reservation unused, which costs address
        // space.
        match ARENA.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and never freed.
            Ok(_) => Ok(unsafe { &*fresh }),
            Err(winner) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: not null (another thread has replaced `seen`), and that thread never frees it.
                Ok(unsafe { &*winner })
            }
        }
    }

    /// Reserves at most `limit` bytes, all of it within `reach` of this library's text if possible.
    pub(crate) fn reserve(limit: usize, reach: usize) -> Result<Self, SysError> {
        let mappings = process::mappings();
        let here = Self::reserve as *const () as usize;
        let mut len = limit;
        while len >= LEAST {
            // The list may be incomplete: other threads may have mapped memory since, and under an emulator the
            // emulator's own mappings are missing. So several places are tried in each gap.
            let tried = (0..TRIES).flat_map(|_| places(&mappings, here, len, reach));
            for at in tried {
                if let Ok(base) = memory::reserve(Some(at), len) {
                    return Ok(Self::at(base.addr(), len));
                }
            }
            len /= 2;
            len -= len % HUGE;
        }
        // No room near the text: anywhere, aligned here.
        let base = memory::reserve(None, limit + HUGE)?.addr();
        Ok(Self::at(base.next_multiple_of(HUGE), limit - limit % HUGE))
    }

    /// Keeps the arena for the life of the process, reachable, so that a leak sanitizer does not report it.
    #[cfg(test)]
    pub(crate) fn for_ever(self) -> &'static Self {
        static ALL: Mutex<Vec<&'static Arena>> = Mutex::new(Vec::new());
        let arena: &'static Self = Box::leak(Box::new(self));
        ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(arena);
        arena
    }

    fn at(base: usize, len: usize) -> Self {
        Self { base, len, taken: Mutex::new(vec![false; len / GRANULE]), generation: Generation::current() }
    }

    /// Whether the calling process made this arena.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.generation.is_current()
    }

    /// Whether a direct branch reaches `target` from every place in the arena.
    pub(crate) fn reaches(&self, target: usize, reach: usize) -> bool {
        target >= (self.base + self.len).saturating_sub(reach) && target <= self.base.saturating_add(reach)
    }

    /// Takes `len` bytes, a multiple of [`GRANULE`], and with `guards` also a granule before them and one behind them.
    /// The cost grows with the size of the arena, but packs are rarely made.
    pub(crate) fn take(&self, len: usize, guards: bool) -> Option<usize> {
        let align = if len >= HUGE { HUGE / GRANULE } else { 1 };
        let (count, guard) = (len / GRANULE, usize::from(guards));
        let mut taken = self.lock();
        let last = taken.len().checked_sub(count + guard)?;
        let at = (0..=last).step_by(align).find(|at| {
            // The first granule has none before it.
            at.checked_sub(guard).is_some_and(|first| !taken[first..at + count + guard].contains(&true))
        })?;
        taken[at - guard..at + count + guard].fill(true);
        Some(self.base + at * GRANULE)
    }

    /// Returns a range, which the caller has made inaccessible, with the guards that it was taken with.
    pub(crate) fn give_back(&self, at: usize, len: usize, guards: bool) {
        let (first, guard) = ((at - self.base) / GRANULE, usize::from(guards));
        self.lock()[first - guard..first + len / GRANULE + guard].fill(false);
    }

    /// Bytes taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.lock().iter().filter(|taken| **taken).count() * GRANULE
    }

    /// Code under this lock does not panic, so a poisoned lock is used as it is.
    fn lock(&self) -> MutexGuard<'_, Vec<bool>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number that cannot be predicted.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number below `limit`, which is not 0.
#[expect(clippy::cast_possible_truncation, reason = "a remainder is below the divisor")]
pub(crate) fn random_below(limit: usize) -> usize {
    (random() % limit as u64) as usize
}

/// Returns places for `len` bytes within `reach` of the mapping that contains `here`: a random one in each gap that
/// has room, gaps below the text first (the heap grows above it).
fn places(mappings: &[Mapping], here: usize, len: usize, reach: usize) -> Vec<usize> {
    /// Bytes left free for the heap, which grows up, and for the stack, which grows down.
    const GROWTH: usize = 64 << 20;
    /// Lowest address used: more than the usual vm.mmap_min_addr.
    const FIRST: usize = 1 << 20;

    let Some(own) = mappings.iter().find(|m| (m.start..m.end).contains(&here)) else { return Vec::new() };
    // The object's text may consist of several mappings of one file.
    let of_object = || mappings.iter().filter(|m| m.name == own.name);
    let text_start = of_object().map(|m| m.start).min().unwrap_or(own.start);
    let text_end = of_object().map(|m| m.end).max().unwrap_or(own.end);
    let (low, high) = (text_end.saturating_sub(reach).max(FIRST), text_start.saturating_add(reach));

    let mut places = Vec::new();
    let mut gap_start = FIRST;
    let ends = mappings.iter().map(|m| (m.start, m.end, m.name.as_str())).chain([(usize::MAX, usize::MAX, "")]);
    for (start, end, name) in ends {
        let gap_end = if name == "[stack]" { start.saturating_sub(GROWTH) } else { start };
        let first = gap_start.max(low).next_multiple_of(HUGE);
        let last = gap_end.min(high).saturating_sub(len) & !(HUGE - 1);
        if first <= last && first + len <= gap_end {
            places.push(first + random_below((last - first) / HUGE + 1) * HUGE);
        }
        gap_start = if name == "[heap]" { end.saturating_add(GROWTH) } else { end };
    }
    places.sort_by_key(|at| (*at > text_start, at.abs_diff(text_start)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: usize, end: usize, name: &str) -> Mapping {
        Mapping { start, end, permissions: "r-xp".into(), name: name.into() }
    }

    #[test]
    fn places_are_free_near_and_aligned() {
        const G: usize = 1 << 30;
        const M: usize = 1 << 20;
        let text = 100 * G;
        let mappings = [
            mapping(text - 3 * M, text - 2 * M, "other"),
            mapping(text, text + 4 * M, "/bin/host"),
            mapping(text + 4 * M, text + 8 * M, "[heap]"),
            mapping(text + G, text + G + M, "/lib/x"),
        ];
        for _ in 0..100 {
            for len in [8 * M, 100 * M, G] {
                let found = places(&mappings, text + 5, len, 2 * G - M);
                assert!(!found.is_empty());
                assert!(found[0] < text, "below the text first");
                for at in found {
                    assert!(at % HUGE == 0);
                    assert!(at + len <= text + 2 * G && at + 2 * G >= text + 4 * M, "within reach");
                    assert!(mappings.iter().all(|m| at + len <= m.start || at >= m.end), "free");
                    assert!(at + len <= text || at >= text + 72 * M, "the heap can grow");
                }
            }
        }
        assert!(places(&mappings, 1, 8 * M, G).is_empty(), "not our text");
    }

    #[test]
    fn this_process_has_room_near_its_text() {
        let host = Arch::HOST.unwrap();
        let arena = Arena::of_process(host).unwrap();
        assert!(arena.reaches(Arena::reserve as *const () as usize, arch::reach(host)));
        assert!(std::ptr::eq(arena, Arena::of_process(host).unwrap()));
    }

    #[test]
    fn ranges_are_disjoint_aligned_and_come_back() {
        let arena = Arena::reserve(16 << 20, 1 << 30).unwrap().for_ever();
        let small = arena.take(GRANULE, false).unwrap();
        let large: Vec<_> = std::iter::from_fn(|| arena.take(HUGE, false)).collect();
        assert_eq!(large.len(), 7);
        assert!(large.iter().all(|at| at % HUGE == 0 && *at != small));
        assert_eq!(arena.take(HUGE, false), None);
        arena.give_back(large[3], HUGE, false);
        assert_eq!(arena.take(HUGE, false), Some(large[3]));
    }

    #[test]
    fn ranges_with_guards_touch_no_others() {
        let arena = Arena::reserve(16 << 20, 1 << 30).unwrap().for_ever();
        let mut ranges: Vec<_> = std::iter::from_fn(|| arena.take(HUGE, true)).map(|at| (at, HUGE)).collect();
        assert!(ranges.len() >= 3, "{ranges:?}");
        ranges.extend(std::iter::from_fn(|| arena.take(GRANULE, true)).map(|at| (at, GRANULE)));
        let others: Vec<_> = std::iter::from_fn(|| arena.take(GRANULE, false)).map(|at| (at, GRANULE)).collect();
        for (i, (at, len)) in ranges.iter().enumerate() {
            assert!(at - GRANULE >= arena.base && at + len + GRANULE <= arena.base + arena.len);
            for (other, its) in ranges[..i].iter().chain(&others) {
                assert!(other + its + GRANULE <= *at || at + len + GRANULE <= *other, "{at:x} {other:x}");
            }
        }
        for (at, len) in ranges {
            arena.give_back(at, len, true);
        }
        for (at, len) in others {
            arena.give_back(at, len, false);
        }
        assert_eq!(arena.taken(), 0);
    }
}
