//! One pack: memory mapped twice, writable far away and executable in the arena.
//!
//! Problem: code must be written while its neighbours run, without a page that is ever writable and executable, and it
//! should lie in a huge page, which sub-range `mprotect` would split.
//!
//! Approach: a memfd mapped shared, read-write at an address of the kernel's choice and read-execute in the arena,
//! both 2 MiB aligned, then sealed and closed. All of it is filled with traps before the executable mapping exists.
//! When enough of it is in use, `MADV_COLLAPSE` turns both views into a huge page; the result is read back from
//! smaps.
//!
//! A debugger's breakpoints are written by the kernel, which refuses shared memory without a writable mapping at that
//! address. Code that is to be debugged lies in one private mapping, which is writable and executable ([`Views::One`]).
//!
//! With guards, inaccessible memory lies before and behind each view, so that a write or a jump that leaves a pack does
//! not come to another one.
//!
//! Invariants: bytes of free chunks are traps, always. Neither view exists in a forked child (`MADV_DONTFORK`): a
//! child can neither write to the parent's code by mistake nor execute later versions of it. Guards refuse runs in a
//! child before that matters; a child that was forked from inside a run and returns into it faults.

use bpf_os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bpf_jit_code::Arch;
use bpf_os::file::{self, Content, Seals};
use bpf_os::memory::{self, Advice, Protection};
use bpf_os::{Call, SysError, process};
use bpf_quiesce::{Memory, MemoryFull, Reservation};

use crate::arch;
use crate::arena::{Arena, GRANULE, HUGE};

/// The kind of pages that a pack's code lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Pages of the base size (4 KiB on most hosts).
    BasePages,
    /// 2 MiB pages made by `MADV_COLLAPSE`, verified in smaps.
    Collapsed,
    /// 2 MiB pages from the hugetlb pool.
    Hugetlb,
}

/// How a pack is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) views: Views,
    /// Whether to try the hugetlb pool first.
    pub(crate) hugetlb: bool,
    /// Whether inaccessible memory lies before and behind each view.
    pub(crate) guards: bool,
}

/// The memory of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Views {
    /// A memory file, mapped twice.
    File,
    /// Shared anonymous memory, mapped twice.
    Anonymous,
    /// Private memory, mapped once: writable and executable.
    One,
}

/// The reason why no new pack could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackError {
    ArenaFull,
    Memory(MemoryFull),
    Sys(SysError),
}

impl From<SysError> for PackError {
    fn from(error: SysError) -> Self {
        Self::Sys(error)
    }
}

#[derive(Debug)]
pub(crate) struct Pack {
    arena: &'static Arena,
    rx: usize,
    rw: usize,
    len: usize,
    guards: bool,
    state: AtomicU8,
    /// The pack's bytes of the memory that the domain's objects may reserve together.
    _reservation: Reservation,
}

// Values of `Pack::state`.
const SMALL_PAGES: u8 = 0;
const COLLAPSE_FAILED: u8 = 1;
const COLLAPSED: u8 = 2;
const HUGETLB: u8 = 3;

impl Pack {
    /// Maps a pack of `len` bytes (a multiple of the arena's granule), all traps. Reserves the bytes in `memory`.
    pub(crate) fn new(
        arena: &'static Arena,
        host: Arch,
        len: usize,
        Mapped { views, hugetlb, guards }: Mapped,
        memory: &Arc<Memory>,
    ) -> Result<Self, PackError> {
        let reservation = memory.reserve(len as u64).map_err(PackError::Memory)?;
        let rx = arena.take(len, guards).ok_or(PackError::ArenaFull)?;
        // From the hugetlb pool if asked for and available; any failure there means that it is not available.
        let huge = hugetlb && views != Views::One && len.is_multiple_of(HUGE);
        let made = if huge { Self::map(rx, len, host, guards, true).map(|rw| (rw, HUGETLB)).ok() } else { None };
        let made = match made {
            Some(made) => Ok(made),
            None => match views {
                Views::One => Self::map_once(rx, len, host),
                Views::File => Self::map(rx, len, host, guards, false),
                Views::Anonymous => match Self::map_anonymous(rx, len, host, guards) {
                    // qemu-user cannot map such memory twice. Then perf finds no names, and everything else works.
                    Err(SysError { call: Call::Mremap, .. }) => Self::map(rx, len, host, guards, false),
                    made => made,
                },
            }
            .map(|rw| (rw, SMALL_PAGES)),
        };
        match made {
            Ok((rw, state)) => {
                Ok(Self { arena, rx, rw, len, guards, state: AtomicU8::new(state), _reservation: reservation })
            }
            Err(error) => {
                arena.give_back(rx, len, guards);
                Err(error.into())
            }
        }
    }

    /// Maps both views and returns the writable one; on failure neither exists.
    fn map(rx: usize, len: usize, host: Arch, guards: bool, huge: bool) -> Result<usize, SysError> {
        let content = if huge { Content::HugeCode } else { Content::Code };
        let file = file::memory_file(c"prog-pack", len, content)?;
        let rw = map_aligned(len, guards, |at| {
            // SAFETY: reserved by `map_aligned` for this mapping.
            unsafe { memory::map_file_over(at, len, Protection::ReadWrite, file.as_fd(), 0) }
        })?;
        let finish = || {
            // SAFETY: mapped above; a child never accesses a pack (`Pack::drop`, `Arena::is_current`).
            unsafe { memory::advise(ptr(rw), len, Advice::DontFork) }?;
            // SAFETY: `rw..rw + len` was mapped read-write above, and no other code knows the address.
            unsafe { fill_traps(host, rw, len) };
            file::seal(&file, Seals::LengthFinally)?;
            // SAFETY: the caller took this range of the arena.
            unsafe { memory::map_file_over(ptr(rx), len, Protection::ReadExecute, file.as_fd(), 0) }?;
            Self::keep_from_children(rx, len)
        };
        finish().inspect_err(|_| {
            // If this fails too, address space is lost and nothing else.
            // SAFETY: mapped above with its guards, and its address was not given out.
            let _ = unsafe { memory::unmap(ptr(rw - guard(guards)), len + 2 * guard(guards)) };
        })?;
        Ok(rw)
    }

    /// Maps one view that is writable and executable, and returns it; on failure there is none.
    fn map_once(rx: usize, len: usize, host: Arch) -> Result<usize, SysError> {
        // SAFETY: the caller took this range of the arena.
        unsafe { memory::map_debuggable_over(ptr(rx), len) }?;
        Self::keep_from_children(rx, len)?;
        // SAFETY: mapped above, and no other code knows the address.
        unsafe { fill_traps(host, rx, len) };
        Ok(rx)
    }

    /// Excludes the executable view from forked children. On failure it is reserved address space again.
    fn keep_from_children(rx: usize, len: usize) -> Result<(), SysError> {
        // SAFETY: mapped by the caller; a child never accesses a pack.
        unsafe { memory::advise(ptr(rx), len, Advice::DontFork) }.inspect_err(|_| {
            // SAFETY: mapped by the caller, and its address was not given out.
            let _ = unsafe { memory::unmap_to_reserved(ptr(rx), len) };
        })
    }

    /// Maps both views of memory without a file, and returns the writable one.
    fn map_anonymous(rx: usize, len: usize, host: Arch, guards: bool) -> Result<usize, SysError> {
        let rw = map_aligned(len, guards, |at| {
            // SAFETY: reserved by `map_aligned` for this mapping.
            unsafe { memory::map_shared_over(at, len) }
        })?;
        // SAFETY: `rw..rw + len` was mapped read-write above, and no other code knows the address.
        unsafe { fill_traps(host, rw, len) };
        // SAFETY: the caller took `rx..rx + len` of the arena.
        let finish = unsafe { memory::map_again(ptr(rw), ptr(rx), len) };
        let finish = finish.and_then(|()| {
            Self::keep_from_children(rx, len)?;
            // SAFETY: mapped above; a child never accesses a pack.
            unsafe { memory::advise(ptr(rw), len, Advice::DontFork) }.inspect_err(|_| {
                // SAFETY: mapped above, and its address was not given out.
                let _ = unsafe { memory::unmap_to_reserved(ptr(rx), len) };
            })
        });
        finish.inspect_err(|_| {
            // If this fails too, address space is lost and nothing else.
            // SAFETY: mapped above with its guards, and its address was not given out.
            let _ = unsafe { memory::unmap(ptr(rw - guard(guards)), len + 2 * guard(guards)) };
        })?;
        Ok(rw)
    }

    /// Address of the executable view.
    pub(crate) fn rx(&self) -> usize {
        self.rx
    }

    /// Address of the writable view.
    pub(crate) fn rw(&self) -> usize {
        self.rw
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn backing(&self) -> Backing {
        // Relaxed here and below: a statistic that guards no data.
        match self.state.load(Ordering::Relaxed) {
            COLLAPSED => Backing::Collapsed,
            HUGETLB => Backing::Hugetlb,
            _ => Backing::BasePages,
        }
    }

    /// Whether [`Pack::collapse`] has not been tried and may succeed.
    pub(crate) fn may_collapse(&self) -> bool {
        self.len >= HUGE && self.state.load(Ordering::Relaxed) == SMALL_PAGES
    }

    /// Collapses the pack into huge pages, once; its code may run and be written meanwhile.
    pub(crate) fn collapse(&self) {
        if self.state.compare_exchange(SMALL_PAGES, COLLAPSE_FAILED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let collapse = |view| {
            // SAFETY: a view of this pack.
            unsafe { memory::advise(ptr(view), self.len, Advice::Collapse) }
        };
        let done =
            if self.rw == self.rx { collapse(self.rx) } else { collapse(self.rw).and_then(|()| collapse(self.rx)) };
        let expected = self.len - self.len % HUGE;
        if done.is_ok() && process::huge_bytes(self.rx, self.len) >= expected {
            self.state.store(COLLAPSED, Ordering::Relaxed);
        }
    }
}

impl Drop for Pack {
    fn drop(&mut self) {
        if !self.arena.is_current() {
            return; // A forked child has neither view; other mappings may lie at these addresses.
        }
        // A failure loses address space (the arena's range stays taken), nothing else.
        if self.rw != self.rx {
            let guard = guard(self.guards);
            // SAFETY: the view and its guards are this pack's, and no code in a pack is written when the pack is
            // dropped.
            let _ = unsafe { memory::unmap(ptr(self.rw - guard), self.len + 2 * guard) };
        }
        // SAFETY: the range is this pack's, and no code in a pack runs when the pack is dropped.
        if unsafe { memory::unmap_to_reserved(ptr(self.rx), self.len) }.is_ok() {
            self.arena.give_back(self.rx, self.len, self.guards);
        }
    }
}

/// An address of a view, which its mapping exposed.
fn ptr(at: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at)
}

/// Bytes of inaccessible memory on either side of a writable view.
fn guard(guards: bool) -> usize {
    if guards { GRANULE } else { 0 }
}

/// Maps memory by `map`, which gets reserved address space, 2 MiB aligned if it has that size. With `guards`, address
/// space on either side stays reserved.
fn map_aligned(len: usize, guards: bool, map: impl FnOnce(*mut u8) -> Result<(), SysError>) -> Result<usize, SysError> {
    let (align, guard) = (if len >= HUGE { HUGE } else { 0 }, guard(guards));
    let size = len + align + 2 * guard;
    let reserved = memory::reserve(None, size)?.addr();
    let rw = if align == 0 { reserved + guard } else { (reserved + guard).next_multiple_of(align) };
    if let Err(error) = map(ptr(rw)) {
        // A mapping over others that fails may have left a hole, in which another thread may have mapped memory since.
        // So only the parts that are still reserved are given back.
        for (at, len) in [(reserved, rw - reserved), (rw + len, reserved + size - rw - len)] {
            if len > 0 {
                // SAFETY: reserved above, outside of the range that was to be mapped, and not given out.
                let _ = unsafe { memory::unmap(ptr(at), len) };
            }
        }
        return Err(error);
    }
    // The rest of the reservation, before and after; keeping it would only cost address space.
    let (first, end) = (rw - guard, rw + len + guard);
    if first > reserved {
        // SAFETY: reserved above, and outside of the range that the caller gets and its guards.
        let _ = unsafe { memory::unmap(ptr(reserved), first - reserved) };
    }
    if reserved + size > end {
        // SAFETY: reserved above, and outside of the range that the caller gets and its guards.
        let _ = unsafe { memory::unmap(ptr(end), reserved + size - end) };
    }
    Ok(rw)
}

/// Fills chunks with traps.
///
/// # Safety
/// `rw..rw + len` is mapped read-write and used by the caller only, and both are multiples of 8.
pub(crate) unsafe fn fill_traps(host: Arch, rw: usize, len: usize) {
    let words = std::ptr::with_exposed_provenance_mut::<u64>(rw);
    // SAFETY: `len / 8` aligned words from `rw`, mapped and writable, which only the caller uses (contract).
    unsafe { std::slice::from_raw_parts_mut(words, len / 8) }.fill(arch::trap_word(host));
}
