//! Knowing that we are a forked child, for the price of one load.
//!
//! Problem: after `fork` the child shares code pages with its parent through shared mappings, and the threads whose guards it sees
//! do not exist. Waiting and writing must be refused there. `getpid` is a system call, and `pthread_atfork` misses raw `clone`.
//!
//! Approach: one page per process marked `MADV_WIPEONFORK` holds the process's *generation*; the kernel zeroes it in a child, and
//! the first object made there takes a new number. An object remembers the generation it was made in.
//!
//! Invariant: the number drawn in a child was never current in any of its ancestors before the fork, because the counter it is
//! drawn from is inherited and only grows. Where the page cannot be had, the process id serves instead (a system call a check).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process generation in which an object was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// The generation of the calling process.
    pub fn current() -> Self {
        Self::current_in(page())
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
    *PAGE.get_or_init(imp::wiped_on_fork)
}

#[cfg(all(target_os = "linux", not(miri)))]
mod imp {
    use super::AtomicU64;

    /// Maps a zeroed page that the kernel zeroes again in every forked child; it is never unmapped.
    pub(super) fn wiped_on_fork() -> Option<&'static AtomicU64> {
        page_with(libc::MADV_WIPEONFORK)
    }

    /// A page with this advice, or nothing.
    pub(super) fn page_with(advice: libc::c_int) -> Option<&'static AtomicU64> {
        const LEN: usize = 4096;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page was mapped above with this length.
        if unsafe { libc::madvise(page, LEN, advice) } != 0 {
            // SAFETY: the page was mapped above and nothing refers to it.
            unsafe { libc::munmap(page, LEN) };
            return None;
        }
        // SAFETY: page-aligned, zeroed, mapped read-write for the rest of the process, and only ever used as this atomic.
        Some(unsafe { AtomicU64::from_ptr(page.cast()) })
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod imp {
    use super::AtomicU64;

    /// Not offered by this host.
    pub(super) fn wiped_on_fork() -> Option<&'static AtomicU64> {
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wiped_word_ends_a_generation() {
        let word = AtomicU64::new(0);
        let before = Generation::current_in(Some(&word));
        assert!(before.is_current_in(Some(&word)) && before == Generation::current_in(Some(&word)));
        // What the kernel does in a forked child.
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

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_page_whose_advice_is_refused_is_none() {
        // User-mode QEMU refuses nothing.
        // SAFETY: nothing is advised about.
        if unsafe { libc::madvise(std::ptr::null_mut(), 0, -1) } == 0 {
            use std::io::Write;
            // Past the test harness, which swallows what passing tests print.
            let skipped = b"SKIPPED a_page_whose_advice_is_refused_is_none: this kernel takes any advice\n";
            return std::io::stderr().write_all(skipped).unwrap();
        }
        assert!(imp::page_with(-1).is_none());
        assert!(imp::page_with(libc::MADV_WIPEONFORK).is_some_and(|word| word.load(Ordering::Relaxed) == 0));
    }
}
