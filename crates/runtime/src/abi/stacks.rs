//! Stacks for runs that wait: a stack each, for as long as the run lasts.
//!
//! Problem: a hundred thousand runs may wait at once. A mapping for each, with a guard page, is more than a process may
//! have (`vm.max_map_count`). Approach: stacks are made by the [`SLAB`], one mapping. Each begins with a guard page,
//! which splits the mapping only on kernels before 6.13. Pages cost memory when they are first written to, and give it
//! back when the stack is.
//!
//! Invariants: a stack is its owner's alone until it is dropped. A stack that is never dropped (its run was forgotten)
//! keeps its slab.

use crate::abi::critical::{Lock, Locked};
use bpf_os::SysError;
use bpf_os::memory::{self, Advice, Pages};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Stacks in a mapping.
const SLAB: usize = 32;

/// All stacks of an engine.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// Bytes from one stack to the next: the guard page, and what may be used.
    stride: usize,
    slabs: Lock<Slabs>,
}

#[derive(Debug, Default)]
struct Slabs {
    /// The slabs by address: a bit for each stack that is free.
    free: BTreeMap<usize, u32>,
    /// The addresses of the slabs that have a free stack.
    open: BTreeSet<usize>,
}

impl Slabs {
    fn remove(&mut self, base: usize) {
        self.free.remove(&base);
        self.open.remove(&base);
    }
}

const ALL_FREE: u32 = u32::MAX;
const _: () = assert!(ALL_FREE.count_ones() as usize == SLAB);

/// A stack.
#[derive(Debug)]
pub(crate) struct RunStack {
    stacks: Arc<Stacks>,
    /// Its guard page; 0 if it was given back.
    at: usize,
}

impl Stacks {
    /// Stacks of at least so many bytes.
    pub(crate) fn new(bytes: u64) -> Arc<Stacks> {
        let page = memory::page_size();
        // The system refuses a mapping that it has no room for.
        let usable = usize::try_from(bytes).unwrap_or(usize::MAX / (4 * SLAB)).min(usize::MAX / (4 * SLAB));
        let stride = usable.next_multiple_of(page) + page;
        Arc::new(Stacks { stride, slabs: Lock::default() })
    }

    fn lock(&self) -> Locked<'_, Slabs> {
        self.slabs.lock()
    }

    /// Does this with the lock held.
    #[cfg(test)]
    pub(super) fn locked(&self, work: impl FnOnce()) {
        let _slabs = self.lock();
        work();
    }

    /// Takes a free stack, or makes one.
    pub(crate) fn take(self: &Arc<Self>) -> Result<RunStack, SysError> {
        let mut slabs = self.lock();
        let base = match slabs.open.first() {
            Some(base) => *base,
            None => {
                let base = self.map()?;
                slabs.free.insert(base, ALL_FREE);
                slabs.open.insert(base);
                base
            }
        };
        let free = slabs.free.entry(base).or_default();
        let index = free.trailing_zeros() as usize;
        *free &= *free - 1;
        if *free == 0 {
            slabs.open.remove(&base);
        }
        drop(slabs);
        Ok(RunStack { stacks: Arc::clone(self), at: base + index * self.stride })
    }

    /// Maps a slab: its address.
    fn map(&self) -> Result<usize, SysError> {
        let len = self.stride * SLAB;
        let at = memory::map(len, Pages::Anonymous)?;
        for i in 0..SLAB {
            // SAFETY: a page of the mapping, to which no other pointer exists yet.
            let guarded = unsafe { memory::guard(at.wrapping_add(i * self.stride), memory::page_size()) };
            if let Err(error) = guarded {
                // SAFETY: mapped above, and no other pointer to it exists yet. A failed unmap loses address space.
                let _ = unsafe { memory::unmap(at, len) };
                return Err(error);
            }
        }
        Ok(at.expose_provenance())
    }

    /// Gives stacks back together. A slab whose stacks are all free is unmapped with their pages; else the pages of
    /// neighbours are discarded by one system call.
    pub(crate) fn give_back(&self, stacks: Vec<RunStack>) {
        self.free(stacks.into_iter().map(|mut stack| core::mem::take(&mut stack.at)).collect());
    }

    /// Frees the stacks with these guard pages.
    fn free(&self, mut over: Vec<usize>) {
        over.sort_unstable();
        let (mut used, mut over) = (Vec::new(), &*over);
        let mut slabs = self.lock();
        while let Some((base, others)) = over.first().and_then(|at| slabs.free.range(..=*at).next_back()) {
            let (base, others) = (*base, *others);
            let (own, rest) = over.split_at(over.partition_point(|at| *at < base + SLAB * self.stride));
            let bits = own.iter().fold(0, |bits, at| bits | 1 << ((at - base) / self.stride));
            if others | bits != ALL_FREE {
                used.push((base, bits));
            } else {
                slabs.remove(base);
                self.unmap(base);
            }
            over = rest;
        }
        drop(slabs);
        // Nobody takes these before they are noted as free.
        for &(base, bits) in &used {
            self.discard(base, bits);
        }
        let mut slabs = self.lock();
        for (base, bits) in used {
            let Some(free) = slabs.free.get_mut(&base) else { continue };
            *free |= bits;
            if *free != ALL_FREE {
                slabs.open.insert(base);
            } else {
                slabs.remove(base);
                self.unmap(base);
            }
        }
    }

    /// Discards the pages of these stacks of a slab, which stay guarded.
    fn discard(&self, base: usize, mut bits: u32) {
        while bits != 0 {
            let first = bits.trailing_zeros();
            let count = (bits >> first).trailing_ones();
            let guard = memory::page_size();
            let (low, len) = (base + first as usize * self.stride + guard, count as usize * self.stride - guard);
            // SAFETY: private and anonymous, and nobody's. Pages of a failed call stay for the next run.
            let _ = unsafe { memory::advise(core::ptr::with_exposed_provenance_mut(low), len, Advice::Discard) };
            bits &= !(u32::MAX >> (32 - count) << first);
        }
    }

    fn unmap(&self, base: usize) {
        // SAFETY: a slab of `map`, all of whose stacks are free. A failed unmap loses address space.
        let _ = unsafe { memory::unmap(core::ptr::with_exposed_provenance_mut(base), self.stride * SLAB) };
    }
}

impl RunStack {
    /// The address of its guard page.
    #[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn guard(&self) -> usize {
        self.at
    }

    /// The lowest address that may be used, and how many bytes there are from there.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let page = memory::page_size();
        (self.at + page, self.stacks.stride - page)
    }

    /// Gives the pages of a stack that is not in use back, but for so many bytes at its top, where the next run begins.
    pub(crate) fn trim(&mut self, kept: usize) {
        let (low, len) = self.bounds();
        let beyond = len.saturating_sub(kept.next_multiple_of(memory::page_size()));
        // SAFETY: private and anonymous, and this stack's, which is not in use. Pages of a failed call stay.
        let _ = unsafe { memory::advise(core::ptr::with_exposed_provenance_mut(low), beyond, Advice::Discard) };
    }
}

impl Drop for RunStack {
    fn drop(&mut self) {
        if self.at != 0 {
            self.stacks.free(vec![self.at]);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;
    use bpf_os::{Call, inject};

    #[test]
    fn stacks_are_apart_and_their_memory_is_given_back() {
        let before = inject::mapped_bytes();
        let stacks = Stacks::new(10_000);
        let mut taken: Vec<RunStack> = (0..3 * SLAB).map(|_| stacks.take().expect("a stack")).collect();
        let mut bounds: Vec<_> = taken.iter().map(RunStack::bounds).collect();
        bounds.sort_unstable();
        for pair in bounds.windows(2) {
            assert!(pair[0].0 + pair[0].1 < pair[1].0, "a guard between {pair:?}");
        }
        for (low, len) in bounds {
            assert!(len >= 10_000);
            let last = core::ptr::with_exposed_provenance_mut::<u8>(low + len - 1);
            // SAFETY: a byte of a stack that is taken.
            unsafe { last.write_volatile(1) };
        }
        assert!(inject::mapped_bytes() > before);
        taken.swap(0, 40);
        drop(taken);
        assert_eq!(inject::mapped_bytes(), before);
    }

    /// Whether the kernel can read a byte there.
    fn is_readable(at: usize) -> bool {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the kernel answers EFAULT where nothing can be read.
        let wrote = unsafe { libc::write(ends[1], core::ptr::with_exposed_provenance(at), 1) };
        for end in ends {
            // SAFETY: of the pipe above.
            unsafe { libc::close(end) };
        }
        wrote == 1
    }

    #[test]
    fn guard_pages_stay_when_stacks_are_used_again() {
        let stacks = Stacks::new(10_000);
        let kept = stacks.take().expect("a stack");
        for round in 0..3 {
            let stack = stacks.take().expect("a stack");
            let (low, len) = stack.bounds();
            assert!(is_readable(low) && is_readable(low + len - 1));
            assert!(!is_readable(low - 1) && !is_readable(low - memory::page_size()), "round {round}");
            assert!(!is_readable(low + len), "the next one's guard");
            let lowest = core::ptr::with_exposed_provenance_mut::<u8>(low);
            // SAFETY: a byte of a stack that is taken.
            assert_eq!(unsafe { lowest.read_volatile() }, 0, "of the stack before, nothing is left");
            // SAFETY: a byte of a stack that is taken.
            unsafe { lowest.write_volatile(1) };
        }
        drop(kept);
    }

    #[test]
    fn stacks_that_are_given_back_together_are_clean_and_guarded() {
        let before = inject::mapped_bytes();
        let stacks = Stacks::new(10_000);
        let mut taken: Vec<RunStack> = (0..2 * SLAB).map(|_| stacks.take().expect("a stack")).collect();
        taken.sort_unstable_by_key(|stack| stack.at);
        let bottom = |stack: &RunStack| core::ptr::with_exposed_provenance_mut::<u8>(stack.bounds().0);
        // SAFETY: bytes of stacks that are taken.
        taken.iter().for_each(|stack| unsafe { bottom(stack).write_volatile(1) });
        // All of the first mapping, in any order, and of the second the ends and the rows between three that stay.
        let kept = [taken.remove(SLAB + 20), taken.remove(SLAB + 10), taken.remove(SLAB + 9)];
        taken.swap(3, SLAB + 4);
        stacks.give_back(taken);
        assert_eq!(inject::mapped_bytes(), before + SLAB * stacks.stride, "one mapping is left");
        // SAFETY: bytes of stacks that are taken.
        assert!(kept.iter().all(|stack| unsafe { bottom(stack).read_volatile() } == 1));
        let again: Vec<RunStack> = (3..SLAB).map(|_| stacks.take().expect("a stack")).collect();
        assert_eq!(inject::mapped_bytes(), before + SLAB * stacks.stride, "no other mapping");
        for stack in &again {
            // SAFETY: a byte of a stack that is taken.
            assert_eq!(unsafe { bottom(stack).read_volatile() }, 0);
            assert!(!is_readable(stack.at));
        }
        drop(again);
        stacks.give_back(kept.into());
        assert_eq!(inject::mapped_bytes(), before);
    }

    #[test]
    fn a_trimmed_stack_keeps_the_pages_at_its_top() {
        let stacks = Stacks::new(200_000);
        let mut stack = stacks.take().expect("a stack");
        let (low, len) = stack.bounds();
        let page = memory::page_size();
        let pages: Vec<*mut u8> =
            (0..len / page).map(|i| core::ptr::with_exposed_provenance_mut(low + i * page)).collect();
        // SAFETY: bytes of a stack that is taken.
        pages.iter().for_each(|byte| unsafe { byte.write_volatile(1) });
        stack.trim(64 * 1024);
        // SAFETY: bytes of a stack that is taken.
        let kept = pages.iter().filter(|byte| unsafe { byte.read_volatile() } == 1).count();
        assert_eq!(kept * page, (64 * 1024usize).next_multiple_of(page));
        // SAFETY: the last page's first byte.
        assert_eq!(unsafe { pages[pages.len() - 1].read_volatile() }, 1);
        stack.trim(usize::MAX / 2);
        drop(stack);
    }

    #[test]
    fn stacks_are_taken_from_the_lowest_mapping_that_has_one() {
        let stacks = Stacks::new(10_000);
        let mut taken: Vec<RunStack> = (0..2 * SLAB).map(|_| stacks.take().expect("a stack")).collect();
        taken.sort_unstable_by_key(|stack| stack.at);
        // One of each mapping, of the higher one first.
        let high = taken.pop().expect("a stack");
        let low = taken.remove(0);
        let (at_low, at_high) = (low.at, high.at);
        drop(high);
        drop(low);
        let again = [stacks.take().expect("a stack"), stacks.take().expect("a stack")];
        assert_eq!(again.each_ref().map(|stack| stack.at), [at_low, at_high]);
        let before = inject::mapped_bytes();
        let more = stacks.take().expect("a stack");
        assert_eq!(inject::mapped_bytes(), before + SLAB * stacks.stride, "a third mapping");
        drop(more);
        assert_eq!(inject::mapped_bytes(), before);
    }

    #[test]
    fn calls_that_fail_leave_nothing_behind() {
        let stacks = Stacks::new(10_000);
        let before = inject::mapped_bytes();
        for (call, nth) in [(Call::Mmap, 0), (Call::Mprotect, 0), (Call::Mprotect, 7)] {
            let (taken, reached) = inject::failing(call, nth, || stacks.take());
            assert!(reached && taken.is_err_and(|error| error.call == call), "{call:?} {nth}");
            assert_eq!(inject::mapped_bytes(), before, "{call:?} {nth}");
        }
        let kept = stacks.take();
        let (_, reached) = inject::failing(Call::Madvise, 0, || stacks.take().map(drop));
        assert!(reached && kept.is_ok());
        drop(kept);
        assert_eq!(inject::mapped_bytes(), before);
        assert!(stacks.take().is_ok());
    }
}
