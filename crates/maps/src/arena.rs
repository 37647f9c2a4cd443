//! Arenas: memory that programs address with their own pointers.
//!
//! Problem: a program may turn any number into an address of its arena and read or write there. It may do anything
//! inside the arena and nothing outside. The kernel reserves 4 GiB of addresses for each arena, maps the allocated
//! pages, and lets an access to any other page fault; a table of the faulting instructions says where to continue. In
//! user space that takes a signal handler, which a library should not install. If all 4 GiB were mapped instead, a
//! program could use memory that is not accounted.
//!
//! Approach: a *window* whose size is a power of two, as small as the arena fits into. Emitted code uses as many bits
//! of an address as the window has (the kernel's code uses 32). The whole window is ordinary memory, and so are
//! [`ARENA_GUARD`] bytes before and after it, because an access adds an offset of 16 bits. So no access can fault or
//! needs a comparison, and all memory that a program can ever use is counted when the arena is made. Allocating a
//! page only marks it as in use. A page is cleared when it is allocated and when it is freed.
//!
//! Difference from the kernel: a page that is not allocated is memory all the same. In the kernel it reads as zeros
//! and ignores writes. Here it keeps what is written until it is allocated, and addresses beyond the arena wrap to
//! pages before. A program that uses unallocated pages harms only itself.
//!
//! Programs and the host name bytes by their *user* address, as in the kernel: the address in the definition, or
//! [`crate::arena_shape::USER_BASE`]. No memory lies at user addresses, so they do not disclose where the arena's
//! memory is.
//!
//! Invariants: the window and its guards are mapped, readable and writable as long as the map; they are only accessed
//! atomically, as all map memory. Under the lock, a page is in use if and only if its bit is set.
//! Source: `kernel/bpf/arena.c` (Linux 6.18).

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bpf_os::memory::{self, Advice};
use bpf_uapi::{ARENA_GUARD, ARENA_PAGE};

use crate::arena_shape::ArenaShape;
use crate::def::{MapDef, MapType};
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::header::LookupFn;
use crate::map::Map;
use crate::mem::{self, Table, WORD};
use crate::num::index;
use crate::ops::{Addressable, MapOps};
use crate::queue::no_lookup;

const PAGE: u64 = ARENA_PAGE as u64;
/// Runs of at least this many bytes are returned to the system instead of being overwritten with zeros.
const MANY: u64 = 16 * PAGE;

fn shape(def: &MapDef) -> ArenaShape {
    ArenaShape::of(def.max_entries, def.map_extra)
}

/// The pages in use.
#[derive(Debug)]
struct Pages {
    /// One bit per page.
    used: Vec<u64>,
    /// Number of pages.
    count: u32,
    /// Number of pages in use.
    in_use: u32,
    /// All pages before this one are in use.
    free_from: u32,
}

impl Pages {
    fn is_used(&self, page: u32) -> bool {
        self.used[page as usize / 64] >> (page % 64) & 1 != 0
    }

    /// Returns the first page of the first run of `pages` free pages.
    fn find(&self, pages: u32) -> Option<u32> {
        let (mut page, mut free) = (self.free_from, 0);
        while page < self.count {
            if page.is_multiple_of(64) && self.used[page as usize / 64] == u64::MAX {
                (page, free) = (page.saturating_add(64), 0);
                continue;
            }
            free = if self.is_used(page) { 0 } else { free + 1 };
            page += 1;
            if free == pages {
                return Some(page - pages);
            }
        }
        None
    }

    /// Whether all `pages` pages from `first` on are free.
    fn are_free(&self, first: u32, pages: u32) -> bool {
        (first..first + pages).all(|page| !self.is_used(page))
    }

    fn take(&mut self, first: u32, pages: u32) {
        for page in first..first + pages {
            self.used[page as usize / 64] |= 1 << (page % 64);
        }
        self.in_use += pages;
        if self.free_from == first {
            self.free_from = first + pages;
        }
    }

    /// Frees a page and returns whether it was in use.
    fn free(&mut self, page: u32) -> bool {
        let (word, bit) = (&mut self.used[page as usize / 64], 1 << (page % 64));
        let was = *word & bit != 0;
        *word &= !bit;
        self.in_use -= u32::from(was);
        self.free_from = self.free_from.min(page);
        was
    }
}

/// The implementation of an arena.
#[derive(Debug)]
pub(crate) struct ArenaMap {
    shape: ArenaShape,
    pages: Mutex<Pages>,
    words: Table<AtomicU64>,
}

impl ArenaMap {
    /// Bytes an arena of this definition maps: all memory that programs can reach.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        shape(def).window + 2 * ARENA_GUARD + u64::from(def.max_entries).div_ceil(64) * WORD as u64
    }

    pub(crate) fn new(def: &MapDef) -> OpResult<Self> {
        let shape = shape(def);
        let bytes = usize::try_from(shape.window + 2 * ARENA_GUARD).map_err(|_| Errno::ENOMEM)?;
        let bits = (def.max_entries as usize).div_ceil(64);
        let mut used = Vec::new();
        used.try_reserve_exact(bits).map_err(|_| Errno::ENOMEM)?;
        used.resize(bits, 0);
        let pages = Pages { used, count: def.max_entries, in_use: 0, free_from: 0 };
        Ok(Self { shape, pages: Mutex::new(pages), words: Table::zeroed(bytes / WORD)? })
    }

    fn pages(&self) -> std::sync::MutexGuard<'_, Pages> {
        // Code under this lock does not panic, and memory safety does not depend on the bits.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the first word of the pages.
    fn first_word(&self) -> usize {
        index((ARENA_GUARD + self.shape.first()) / WORD as u64)
    }

    /// Clears `bytes` bytes, starting `at` bytes into the pages.
    fn clear(&self, at: u64, bytes: u64) {
        let first = self.first_word() + index(at / WORD as u64);
        let words = &self.words[first..first + index(bytes / WORD as u64)];
        let (start, page) = (words.as_ptr().cast::<u8>().cast_mut(), memory::page_size());
        if bytes >= MANY && start.addr().is_multiple_of(page) && index(bytes).is_multiple_of(page) {
            // SAFETY: part of the table's own mapping, all of whose words may become 0 at any time: it holds no
            // lengths or pointers of this crate.
            if unsafe { memory::advise(start, index(bytes), Advice::Discard) }.is_ok() {
                return;
            }
        }
        mem::zero(words);
    }

    /// Allocates pages at this user address, or anywhere if it is 0. Returns their user address, or 0 if they are not
    /// free.
    fn alloc(&self, address: u64, pages: u32) -> u64 {
        let first = {
            let mut state = self.pages();
            if pages == 0 || pages > state.count {
                return 0;
            }
            let first = match address {
                0 => state.find(pages),
                _ if !address.is_multiple_of(PAGE) => None,
                _ => Some(self.shape.page_of(address))
                    .filter(|first| *first <= state.count - pages && state.are_free(*first, pages)),
            };
            let Some(first) = first else { return 0 };
            state.take(first, pages);
            first
        };
        let at = u64::from(first) * PAGE;
        self.clear(at, u64::from(pages) * PAGE);
        self.shape.user + at
    }

    /// Frees the pages of this range that are in use.
    fn free(&self, address: u64, pages: u32) {
        let mut state = self.pages();
        // Addresses before the first page wrap to page numbers beyond the last one in 32 bits.
        let first = self.shape.page_of(address);
        let end = u64::from(first).saturating_add(pages.into()).min(state.count.into());
        let end = u32::try_from(end).unwrap_or(state.count);
        // Runs of pages that were in use are cleared before they can be allocated again.
        let mut from = None;
        for page in first..end {
            if state.is_used(page) {
                from.get_or_insert(page);
            } else if let Some(from) = from.take() {
                self.clear_pages(from..page);
            }
        }
        if let Some(from) = from {
            self.clear_pages(from..end);
        }
        (first..end).for_each(|page| _ = state.free(page));
    }

    fn clear_pages(&self, pages: std::ops::Range<u32>) {
        self.clear(u64::from(pages.start) * PAGE, u64::from(pages.end - pages.start) * PAGE);
    }

    /// Marks pages at this address as in use, so that they are never allocated.
    fn reserve(&self, address: u64, pages: u32) -> OpResult {
        let mut state = self.pages();
        if pages == 0 {
            return Ok(());
        }
        let first = self.shape.page_of(address);
        if pages > state.count || first > state.count - pages || !address.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if !state.are_free(first, pages) {
            return Err(Errno::EBUSY);
        }
        state.take(first, pages);
        Ok(())
    }

    /// The bytes at this user address.
    fn bytes(&self, address: u64, len: usize) -> OpResult<&[AtomicU8]> {
        let at = address.checked_sub(self.shape.user).ok_or(Errno::ERANGE)?;
        let end = at.checked_add(len as u64).filter(|end| *end <= self.shape.bytes).ok_or(Errno::ERANGE)?;
        let start = self.words[self.first_word()..].as_ptr().cast::<AtomicU8>();
        // SAFETY: the pages are this many bytes from there on (`ArenaShape::bytes`, which the table has room for behind
        // their first word), mapped as long as `self`, only accessed atomically; every byte is an `AtomicU8`.
        let pages = unsafe { std::slice::from_raw_parts(start, index(self.shape.bytes)) };
        Ok(&pages[index(at)..index(end)])
    }
}

impl MapOps for ArenaMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    /// The window.
    fn addressable(&self) -> Addressable {
        let base = self.words.base().cast::<u8>().wrapping_add(index(ARENA_GUARD));
        base.expose_provenance();
        Addressable { base, stride: 0, slot_stride: 0 }
    }

    fn host_value_size(&self) -> usize {
        0
    }

    fn lookup(&self, _key: &[u8], _out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    /// Pages in use.
    fn len(&self) -> u64 {
        self.pages().in_use.into()
    }

    fn may_recover(&self) -> bool {
        false
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.words) as u64 + u64::from(self.pages().count).div_ceil(64) * WORD as u64
    }
}

/// The entry points of programs. See [`crate::program`].
pub(crate) mod calls {
    use super::ArenaMap;
    use crate::errno::Errno;
    use crate::map::Inner;

    fn arena(map: &Inner) -> Option<&ArenaMap> {
        map.ops.as_any().downcast_ref()
    }

    pub(crate) fn alloc(map: &Inner, address: u64, pages: u32, node: i32, flags: u64) -> u64 {
        // The only NUMA node is 0; -1 asks for any node.
        let fits = flags == 0 && (-1..=0).contains(&node);
        arena(map).filter(|_| fits).map_or(0, |arena| arena.alloc(address, pages))
    }

    pub(crate) fn free(map: &Inner, address: u64, pages: u32) {
        if let Some(arena) = arena(map).filter(|_| address != 0) {
            arena.free(address, pages);
        }
    }

    pub(crate) fn reserve(map: &Inner, address: u64, pages: u32) -> i64 {
        let result = arena(map).map_or(Err(Errno::EINVAL), |arena| arena.reserve(address, pages));
        crate::errno::ret(result)
    }
}

/// Access to the memory of an arena for the host.
///
/// Bytes are named by their user address, as in programs: a pointer (`__arena *`) that a program stores can be passed
/// to these functions.
///
/// ```
/// use bpf_maps::{Arena, Map, MapDef, MapType, flags};
/// let domain = bpf_quiesce::Domain::new(bpf_quiesce::Options::new());
/// let def = MapDef::new("arena", MapType::Arena, 0, 0, 4).flags(flags::MMAPABLE);
/// let arena = Arena::new(&Map::create(def, &domain)?)?;
/// let page = arena.alloc(1)?.expect("four are free");
/// arena.write(page + 8, &7u64.to_ne_bytes())?;
/// assert_eq!(arena.atomic_u64(page + 8)?.load(std::sync::atomic::Ordering::Relaxed), 7);
/// # Ok::<(), bpf_maps::MapError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arena {
    map: Map,
}

impl Arena {
    /// Opens the memory of `map`.
    ///
    /// # Errors
    /// [`MapError::WrongType`] if `map` is not an arena.
    pub fn new(map: &Map) -> Result<Self, MapError> {
        if !map.ops().as_any().is::<ArenaMap>() {
            let (name, got) = (map.name().to_owned(), map.map_type());
            return Err(MapError::WrongType { map: name, expected: MapType::Arena.name(), got });
        }
        Ok(Self { map: map.clone() })
    }

    fn imp(&self, op: &'static str) -> Result<&ArenaMap, MapError> {
        self.map.check_process()?;
        self.map.ops().as_any().downcast_ref().ok_or_else(|| self.map.error(op, Errno::EINVAL))
    }

    fn bytes(&self, op: &'static str, address: u64, len: usize) -> Result<&[AtomicU8], MapError> {
        self.imp(op)?.bytes(address, len).map_err(|errno| self.map.error(op, errno))
    }

    /// The user address of the first page.
    #[must_use]
    pub fn start(&self) -> u64 {
        shape(self.map.def()).user
    }

    /// Number of pages, of [`Arena::PAGE`] bytes each.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.map.def().max_entries
    }

    /// Bytes in a page, on every machine.
    pub const PAGE: u32 = ARENA_PAGE;

    /// Number of pages in use.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.map.len()
    }

    /// Copies bytes from this address to `out`. Each byte is read on its own, because a program may write them
    /// meanwhile.
    ///
    /// # Errors
    /// `ERANGE` if some bytes are outside the arena's pages.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MapError> {
        let from = self.bytes("reading an arena", address, out.len())?;
        // Relaxed here and in `write`: the accesses order nothing, but must not be data races.
        out.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        Ok(())
    }

    /// Copies bytes to this address, each on its own. The page need not be in use.
    ///
    /// # Errors
    /// `ERANGE` if some bytes are outside the arena's pages; `EPERM` if the map is frozen.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MapError> {
        const OP: &str = "writing an arena";
        let to = self.bytes(OP, address, bytes.len())?;
        self.writing(OP)?;
        to.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
        Ok(())
    }

    /// The eight bytes at this address, which programs may use atomically at the same time.
    ///
    /// # Errors
    /// `ERANGE` if they are outside the arena's pages, `EINVAL` if the address is no multiple of 8; `EPERM` if the
    /// map is frozen.
    pub fn atomic_u64(&self, address: u64) -> Result<&AtomicU64, MapError> {
        let word = self.aligned(address, 8)?.as_ptr().cast_mut().cast::<u64>();
        // SAFETY: eight mapped bytes at a multiple of 8, for as long as the map, which this handle keeps; they are only
        // accessed atomically.
        Ok(unsafe { AtomicU64::from_ptr(word) })
    }

    /// The four bytes at this address, which programs may use atomically at the same time.
    ///
    /// # Errors
    /// As [`Arena::atomic_u64`], for a multiple of 4.
    pub fn atomic_u32(&self, address: u64) -> Result<&AtomicU32, MapError> {
        let word = self.aligned(address, 4)?.as_ptr().cast_mut().cast::<u32>();
        // SAFETY: four bytes of the pages at a multiple of 4, mapped as long as the map, which lives as long as `self`;
        // they are only accessed atomically.
        Ok(unsafe { AtomicU32::from_ptr(word) })
    }

    fn aligned(&self, address: u64, size: usize) -> Result<&[AtomicU8], MapError> {
        const OP: &str = "an atomic of an arena";
        self.writing(OP)?;
        // Pages begin at larger multiples than `size`, both in user addresses and in memory.
        match address.is_multiple_of(size as u64) {
            true => self.bytes(OP, address, size),
            false => Err(self.map.error(OP, Errno::EINVAL)),
        }
    }

    fn writing(&self, op: &'static str) -> Result<(), MapError> {
        if self.map.gate().is_open() { Ok(()) } else { Err(self.map.error(op, Errno::EPERM)) }
    }

    /// Allocates `pages` consecutive pages, which are zero, as `bpf_arena_alloc_pages` does for programs. `None` if
    /// there is no room, or if `pages` is 0.
    ///
    /// # Errors
    /// [`MapError::NoSlot`] in a forked child.
    pub fn alloc(&self, pages: u32) -> Result<Option<u64>, MapError> {
        let address = self.imp("allocating pages of an arena")?.alloc(0, pages);
        Ok(Some(address).filter(|address| *address != 0))
    }

    /// Frees those of these pages that are in use, as `bpf_arena_free_pages` does for programs.
    ///
    /// # Errors
    /// [`MapError::NoSlot`] in a forked child; `ERANGE` if some pages are outside the arena.
    pub fn free(&self, address: u64, pages: u32) -> Result<(), MapError> {
        const OP: &str = "freeing pages of an arena";
        let len = u64::from(pages) * PAGE;
        self.bytes(OP, address, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.imp(OP)?.free(address, pages);
        Ok(())
    }

    /// Marks the first `bytes.len()` bytes as in use and writes `bytes` there. A loader places global variables with
    /// this.
    ///
    /// # Errors
    /// `ERANGE` if there is no room; `EBUSY` if one of these pages is in use already.
    pub fn initialise(&self, bytes: &[u8]) -> Result<(), MapError> {
        const OP: &str = "initialising an arena";
        self.bytes(OP, self.start(), bytes.len())?;
        let pages = u32::try_from(bytes.len().div_ceil(ARENA_PAGE as usize)).unwrap_or(u32::MAX);
        let taken = self.imp(OP)?.reserve(self.start(), pages);
        taken.map_err(|errno| self.map.error(OP, errno))?;
        self.write(self.start(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::def::flags;

    fn def(pages: u32, user: u64) -> MapDef {
        let mut def = MapDef::new("a", MapType::Arena, 0, 0, pages).flags(flags::MMAPABLE);
        def.map_extra = user;
        def
    }

    #[test]
    fn windows_hold_their_pages_in_one_piece() {
        for pages in [1, 2, 3, 7, 8, 100, 1 << 19, (1 << 19) + 1, 1 << 20] {
            for user in [0, 1 << 44, 1 << 32, (1 << 44) + PAGE, (1 << 44) + 5 * PAGE, (7 << 32) + (1 << 31)] {
                let def = def(pages, user);
                if def.validate().is_err() {
                    assert!((user & 0xffff_ffff) + u64::from(pages) * PAGE > 1 << 32, "{pages} {user:#x}");
                    continue;
                }
                let shape = shape(&def);
                assert!(shape.window.is_power_of_two() && shape.window <= 1 << 32, "{shape:?}");
                assert!(shape.first() + shape.bytes <= shape.window, "{shape:?}");
                assert_eq!(shape.user >> 32, (shape.user + shape.bytes - 1) >> 32, "{shape:?}");
                if user == 0 && pages <= 1 << 19 {
                    assert_ne!(shape.user & 0xffff_ffff, 0, "no page is null: {shape:?}");
                    assert_eq!(shape.window, shape.bytes.next_power_of_two());
                }
            }
        }
    }

    /// Compares allocations, chosen by a small generator, with a list of the pages in use.
    #[test]
    fn pages_are_those_of_a_plain_list() {
        let (count, user) = (130, (3 << 32) + 64 * PAGE);
        let arena = ArenaMap::new(&def(count, user)).unwrap();
        let mut used = vec![false; count as usize];
        let mut seed = 1u64;
        let mut below = |n: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32 % n
        };
        let run = |used: &[bool], first: u32, pages: u32| {
            used.get(first as usize..first.saturating_add(pages) as usize).is_some_and(|run| run.iter().all(|u| !u))
        };
        let (mut given, mut refused) = (0, 0);
        for _ in 0..4000 {
            let pages = below(9);
            let first = below(count + 4);
            let address = user + u64::from(first) * PAGE;
            match below(4) {
                0 => {
                    let expected = (0..count).find(|first| pages > 0 && run(&used, *first, pages));
                    let got = arena.alloc(0, pages);
                    assert_eq!(got, expected.map_or(0, |first| user + u64::from(first) * PAGE));
                    expected.iter().for_each(|f| used[*f as usize..(f + pages) as usize].fill(true));
                    given += u32::from(expected.is_some());
                    refused += u32::from(expected.is_none() && pages > 0);
                    // New pages are clear; they are then written, so that clearing them again is tested.
                    if got != 0 {
                        let bytes = arena.bytes(got, index(u64::from(pages) * PAGE)).unwrap();
                        assert!(bytes.iter().step_by(512).all(|byte| byte.load(Ordering::Relaxed) == 0));
                        bytes.iter().step_by(512).for_each(|byte| byte.store(1, Ordering::Relaxed));
                    }
                }
                1 => {
                    let fits = pages > 0 && run(&used, first, pages);
                    assert_eq!(arena.alloc(address, pages), if fits { address } else { 0 });
                    if fits {
                        used[first as usize..(first + pages) as usize].fill(true);
                    }
                    assert_eq!(arena.alloc(address + 1, 1), 0);
                }
                2 => {
                    arena.free(address + 7, pages);
                    let end = (first + pages).min(count);
                    (first..end).for_each(|page| used[page as usize] = false);
                }
                _ => {
                    let expected = match run(&used, first, pages) {
                        _ if pages == 0 => Ok(()),
                        true => Ok(()),
                        false if first + pages > count => Err(Errno::EINVAL),
                        false => Err(Errno::EBUSY),
                    };
                    assert_eq!(arena.reserve(address, pages), expected);
                    if expected.is_ok() {
                        used[first as usize..(first + pages) as usize].fill(true);
                    }
                }
            }
            assert_eq!(arena.len(), used.iter().filter(|u| **u).count() as u64);
        }
        assert!(given > 100 && refused > 100, "{given} {refused}");
        // Addresses before the first page, and beyond the last.
        arena.free(user - PAGE, 1);
        arena.free(u64::MAX, u32::MAX);
        assert_eq!((arena.alloc(user - PAGE, 1), arena.reserve(user - PAGE, 1)), (0, Err(Errno::EINVAL)));
        assert_eq!((arena.alloc(0, u32::MAX), arena.reserve(user, u32::MAX)), (0, Err(Errno::EINVAL)));
    }

    /// Large runs are cleared by the system, and by stores where that fails.
    #[test]
    fn many_pages_are_clear_when_they_are_allocated_again() {
        let again = || {
            let arena = ArenaMap::new(&def(64, 0)).unwrap();
            let first = arena.alloc(0, 64);
            let bytes = arena.bytes(first, 64 << 12).unwrap();
            bytes.iter().for_each(|byte| byte.store(7, Ordering::Relaxed));
            arena.free(first, 64);
            assert!(bytes.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
            bytes[5].store(1, Ordering::Relaxed);
            assert_eq!(arena.alloc(0, 64), first);
            assert!(bytes.iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        };
        again();
        let ((), failed) = bpf_os::inject::failing_from(bpf_os::Call::Madvise, 0, again);
        assert!(failed);
    }
}
