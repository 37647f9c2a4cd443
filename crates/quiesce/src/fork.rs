//! Detects that the process is a forked child, for the price of one load.
//!
//! Problem: after `fork` the child shares code pages with its parent through shared mappings, and the threads whose
//! guards it sees do not exist. Waiting and writing must be refused there. `getpid` is a system call, and
//! `pthread_atfork` misses raw `clone`.
//!
//! Approach: one page per process marked `MADV_WIPEONFORK` holds the process's *generation*; the kernel zeroes it in a
//! child, and the first object made there takes a new number. An object remembers the generation it was made in.
//!
//! Words that a run reads anyway can lie on such a page too (`Line`): the check whether this is a child then costs
//! nothing more, and a raw `clone` cannot evade it. A child that shares its parent's memory (`vfork`, `CLONE_VM`) is
//! not distinguished and need not be: until it executes another program it replaces the thread that made it, in that
//! thread's memory.
//!
//! Invariant: the number drawn in a child was never current in any of its ancestors before the fork, because the
//! counter it is drawn from is inherited and only grows. Where the page cannot be had, the process id serves instead (a
//! system call a check).

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crossbeam_utils::CachePadded;

/// The process generation in which an object was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// The generation of the calling process.
    pub fn current() -> Self {
        Self::current_in(page())
    }

    /// Returns the number of the generation, which is not 0.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    fn current_in(page: Option<&AtomicU64>) -> Self {
        // Relaxed throughout: the word is compared with itself only, and no other data is published through it.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Some(word) = page else { return Self(u64::from(std::process::id())) };
        let seen = word.load(Ordering::Relaxed);
        if seen != 0 {
            return Self(seen);
        }
        let drawn = NEXT.fetch_add(1, Ordering::Relaxed);
        match word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Self(drawn),
            Err(other_thread) => Self(other_thread),
        }
    }

    /// Whether the calling process is the one this generation was taken in (and not a forked child of it).
    #[inline]
    pub fn is_current(self) -> bool {
        self.is_current_in(page())
    }

    #[inline]
    fn is_current_in(self, page: Option<&AtomicU64>) -> bool {
        match page {
            Some(word) => word.load(Ordering::Relaxed) == self.0,
            None => u64::from(std::process::id()) == self.0,
        }
    }
}

/// The generation word, or `None` where the host cannot wipe a page on fork.
#[inline]
fn page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *PAGE.get_or_init(wiped_page)
}

/// Maps a page that the system zeroes in every forked child, and returns its first word. Never unmapped. `None` where
/// the host cannot do so.
fn wiped_page() -> Option<&'static AtomicU64> {
    let page = bpf_os::memory::zeroed_in_children(PAGE).ok()?;
    // SAFETY: page-aligned, zeroed, mapped read-write for the rest of the process, and only ever used as atomics.
    Some(unsafe { AtomicU64::from_ptr(page.as_ptr().cast()) })
}

/// A type for which all zero bytes are a valid value, and which may become all zero at any time.
///
/// # Safety
/// The type consists of atomics only, and has nothing to drop.
pub(crate) unsafe trait Wipeable {}

/// A value on cache lines of its own that is all zero in a forked child, where the host can do so ([`Line::is_wiped`]).
#[derive(Debug)]
pub(crate) struct Line<T: Wipeable> {
    place: NonNull<CachePadded<T>>,
    /// The process generation whose wiped page holds the value; `None` if the value is on the heap.
    made_in: Option<Generation>,
}

// SAFETY: owns its value, and `T: Send`; the place is the line's alone.
unsafe impl<T: Wipeable + Send + Sync> Send for Line<T> {}
// SAFETY: a reference to a line gives references to its value only, and `T: Sync`.
unsafe impl<T: Wipeable + Send + Sync> Sync for Line<T> {}

/// Addresses of lines that are not in use, all of one size. A page is never given back.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Large enough for every type stored in a line, and a multiple of the cache line size of every host.
const LINE: usize = 128;

impl<T: Wipeable> Line<T> {
    pub(crate) fn new(value: T) -> Line<T> {
        const { assert!(size_of::<CachePadded<T>>() <= LINE && align_of::<CachePadded<T>>() <= LINE) };
        let value = CachePadded::new(value);
        let line = take_line().map(std::ptr::with_exposed_provenance_mut::<CachePadded<T>>);
        let Some(place) = line.and_then(NonNull::new) else {
            return Line { place: NonNull::from(Box::leak(Box::new(value))), made_in: None };
        };
        // SAFETY: no other owner has this line; it is as large and aligned as the type (asserted above).
        unsafe { place.write(value) };
        Line { place, made_in: Some(Generation::current()) }
    }

    /// Whether the value is zeroed in a forked child.
    pub(crate) fn is_wiped(&self) -> bool {
        self.made_in.is_some()
    }
}

impl<T: Wipeable> Deref for Line<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and taken back by `drop` only. All zero bytes, which a child finds, are a value
        // (`Wipeable`).
        unsafe { self.place.as_ref() }
    }
}

impl<T: Wipeable> Drop for Line<T> {
    fn drop(&mut self) {
        match self.made_in {
            // SAFETY: made by `Box::leak`.
            None => drop(unsafe { Box::from_raw(self.place.as_ptr()) }),
            // In a child the lock may be held by a thread that does not exist there. Only a line is lost then.
            Some(generation) if generation.is_current() => {
                if let Ok(mut free) = FREE.try_lock() {
                    free.push(self.place.as_ptr().expose_provenance());
                }
            }
            Some(_) => {}
        }
    }
}

/// Returns an unused line on a wiped page.
fn take_line() -> Option<usize> {
    // If the lock is taken (in a forked child, by a thread that does not exist there) the caller gets a page of its
    // own.
    let free = FREE.try_lock().ok();
    let Some(mut free) = free else { return wiped_page().map(|page| page.as_ptr().addr()) };
    if free.is_empty() {
        let page = wiped_page()?.as_ptr().addr();
        free.extend((page..page + PAGE).step_by(LINE));
    }
    free.pop()
}

const PAGE: usize = 4096;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wiped_word_ends_a_generation() {
        let word = AtomicU64::new(0);
        let before = Generation::current_in(Some(&word));
        assert!(before.is_current_in(Some(&word)) && before == Generation::current_in(Some(&word)));
        // The kernel zeroes the word in a forked child.
        word.store(0, Ordering::Relaxed);
        assert!(!before.is_current_in(Some(&word)));
        let after = Generation::current_in(Some(&word));
        assert!(after != before && after.is_current_in(Some(&word)) && !before.is_current_in(Some(&word)));
    }

    #[test]
    fn without_a_page_the_process_number_serves() {
        let mine = Generation::current_in(None);
        assert_eq!(mine, Generation(u64::from(std::process::id())));
        assert!(mine.is_current_in(None));
        assert!(!Generation(u64::from(std::process::id()) + 1).is_current_in(None));
    }

    #[cfg(not(miri))]
    #[test]
    fn without_a_wiped_page_words_lie_on_the_heap() {
        struct Word(AtomicU64);
        // SAFETY: an atomic.
        unsafe impl Wipeable for Word {}
        let ((page, line), reached) = bpf_os::inject::failing_from(bpf_os::Call::WipeOnFork, 0, || {
            // As in a child whose parent's other thread held the lock: each line needs a page of its own.
            let _lines = FREE.lock();
            (wiped_page(), Line::new(Word(AtomicU64::new(7))))
        });
        assert!(reached && page.is_none() && !line.is_wiped());
        assert_eq!(line.0.load(Ordering::Relaxed), 7);
        assert!(wiped_page().is_some_and(|word| word.load(Ordering::Relaxed) == 0));
        assert!(Line::new(Word(AtomicU64::new(8))).is_wiped());
    }
}
