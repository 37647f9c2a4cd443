//! Memory shared between Rust threads and BPF machine code, and the copies in and out of it.
//!
//! Problem: a value is written by programs (plain stores of any width), by other programs' updates and by host
//! threads, all at once. A Rust reference to its bytes, or a plain copy of them, would be a data race.
//!
//! Approach: map memory is only ever typed as `[AtomicU64]`. Copies move whole 8-byte words with relaxed atomic
//! accesses; strides are rounded up to 8, so the last word always exists and its padding belongs to the element.
//! Consistency of more than one word is the business of the caller's protocol (re-checking an index slot, a lock).
//! Machine code is outside Rust's memory model; for it, the hardware access must be a single aligned one, which an
//! atomic guarantees.
//!
//! Invariant: a [`Table`] is zeroed, aligned to [`ALIGN`] (to pages from [`PAGES_FROM`] bytes on, and if it is a
//! file's), and stays at one address until it is dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
use bpf_os::file::{self, Content, Seals};
use bpf_os::memory::{self, Advice, Pages};

use crate::errno::Errno;

/// Bytes in a word.
pub(crate) const WORD: usize = 8;

/// Words that hold `bytes` bytes.
pub(crate) const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(WORD)
}

/// `bytes` rounded up to whole words: the stride of keys, values and per-CPU values.
pub(crate) const fn round_up8(bytes: usize) -> usize {
    words_for(bytes) * WORD
}

/// Types for which all-zero memory is a valid, initial value.
///
/// # Safety
/// The all-zero bit pattern must be valid for the type, and it must not need `Drop`.
pub(crate) unsafe trait ZeroInit: Sized {}

// SAFETY: an integer atomic is valid for every bit pattern and has no drop glue.
unsafe impl ZeroInit for AtomicU8 {}
// SAFETY: an integer atomic is valid for every bit pattern and has no drop glue.
unsafe impl ZeroInit for AtomicU16 {}
// SAFETY: an integer atomic is valid for every bit pattern and has no drop glue.
unsafe impl ZeroInit for AtomicU32 {}
// SAFETY: an integer atomic is valid for every bit pattern and has no drop glue.
unsafe impl ZeroInit for AtomicU64 {}
// SAFETY: zero is the null pointer, and the pointer is not followed when it is dropped.
unsafe impl<T> ZeroInit for AtomicPtr<T> {}

/// Tables of fewer bytes come from the allocator, since a page and two system calls would be most of a small map's
/// cost.
const PAGES_FROM: usize = 4096;

/// Alignment of tables in bytes: two cache lines, which cores fetch together.
const ALIGN: usize = 128;

/// The layout of a table of `bytes` bytes; `None` unless the table is small enough to come from the allocator.
fn small_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN).ok().filter(|layout| layout.size() != 0 && layout.size() < PAGES_FROM)
}

/// A zeroed array, allocated once: in its own pages, which are only touched when used, unless it is small.
#[derive(Debug)]
pub(crate) struct Table<T> {
    base: NonNull<T>,
    len: usize,
    mapped: usize,
    /// Whether the table comes from the allocator, with [`small_layout`].
    small: bool,
    /// The table owns its `T`s: it has the variance, `Send` and `Sync` of a `Box<[T]>`.
    _owns: PhantomData<T>,
}

// SAFETY: the table owns its pages and hands out only shared references, so it is as thread-safe as `&T` is.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: `&Table<T>` gives `&T` only, which may be shared between threads where `T` is `Sync`.
unsafe impl<T: Sync> Sync for Table<T> {}

/// Tables of at least this size ask for huge pages: below it they would only waste memory.
const HUGE_FROM: usize = 4 << 20;

impl<T: ZeroInit> Table<T> {
    /// `len` zeroed elements in private memory.
    pub(crate) fn zeroed(len: usize) -> Result<Self, Errno> {
        Self::on(len, Pages::Anonymous)
    }

    /// `len` elements on the given pages (those of a new file read as zeroes).
    pub(crate) fn on(len: usize, pages: Pages<'_>) -> Result<Self, Errno> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Errno::ENOMEM)?.max(1);
        if let (Pages::Anonymous, Some(layout)) = (pages, small_layout(bytes)) {
            const { assert!(align_of::<T>() <= ALIGN) };
            // SAFETY: the layout is not empty.
            let address = unsafe { alloc_zeroed(layout) };
            let base = NonNull::new(address.cast::<T>()).ok_or(Errno::ENOMEM)?;
            return Ok(Self { base, len, mapped: bytes, small: true, _owns: PhantomData });
        }
        let address = memory::map(bytes, pages)?;
        if bytes >= HUGE_FROM && matches!(pages, Pages::Anonymous) {
            // The advice may be refused: then the pages stay small, which is correct too.
            // SAFETY: mapped above; huge pages change nothing for a child.
            let _ = unsafe { memory::advise(address, bytes, Advice::Huge) };
        }
        let base = NonNull::new(address.cast::<T>()).ok_or(Errno::ENOMEM)?;
        Ok(Self { base, len, mapped: bytes, small: false, _owns: PhantomData })
    }
}

impl<T> Table<T> {
    /// The first element, for machine code. Valid until the table is dropped.
    pub(crate) fn base(&self) -> *mut T {
        self.base.as_ptr()
    }
}

impl<T> std::ops::Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `base` points to `len` elements, zeroed, which `ZeroInit` makes valid, mapped as long as `self`;
        // only shared references are ever made to them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        if let Some(layout) = small_layout(self.mapped).filter(|_| self.small) {
            // SAFETY: allocated by `on` with this layout, and no reference to it is left.
            unsafe { dealloc(self.base.as_ptr().cast(), layout) };
            return;
        }
        // SAFETY: the mapping was made by `on` with this length and nothing refers to it any more.
        let _ = unsafe { memory::unmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// A file in memory of `bytes` zeroes, which keeps that length.
#[cfg(not(loom))]
pub(crate) fn memory_file(bytes: usize) -> Result<bpf_os::fd::OwnedFd, Errno> {
    let file = file::memory_file(c"bpf-map", bytes, Content::Data)?;
    file::seal(&file, Seals::Length)?;
    Ok(file)
}

/// Allocates one part for each of `len` slots, hands or shards. Fails if there is no memory.
pub(crate) fn boxed<T>(len: u32, part: impl FnMut(u32) -> T) -> Result<Box<[T]>, Errno> {
    let mut parts = Vec::new();
    parts.try_reserve_exact(len as usize).map_err(|_| Errno::ENOMEM)?;
    parts.extend((0..len).map(part));
    Ok(parts.into_boxed_slice())
}

/// Returns `len` zero bytes for a key or value. Fails if there is no memory.
pub(crate) fn zeroes(len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Prefetches the cache line of a word that will be written soon. A hint: it changes nothing and cannot fault.
#[inline(always)]
pub(crate) fn prefetch_write<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads and writes nothing; where the instruction is unknown it is a no-op by encoding (x86-64
    // requires that).
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch reads and writes nothing, and does not fault wherever it points.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}

/// Copies `dst.len()` bytes out of shared words; the words are read whole, each once.
#[inline]
pub(crate) fn load_bytes(words: &[AtomicU64], dst: &mut [u8]) {
    let (whole, rest) = dst.as_chunks_mut::<WORD>();
    let mut words = words.iter();
    for (bytes, word) in whole.iter_mut().zip(&mut words) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !rest.is_empty()
        && let Some(word) = words.next()
    {
        rest.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

/// Sets shared words to zero.
pub(crate) fn zero(words: &[AtomicU64]) {
    for word in words {
        word.store(0, Ordering::Relaxed);
    }
}

/// Word `index` of `len` bytes that a program passed: zero-padded, of any alignment, possibly shared with others.
///
/// # Safety
/// `src` must be readable for `len` bytes, and `index * 8 < len`.
#[inline]
pub(crate) unsafe fn load_program_word(src: *const u8, index: usize, len: usize) -> u64 {
    let offset = index * WORD;
    // SAFETY: the offset is below `len` (contract).
    let at = unsafe { src.add(offset) };
    match len - offset {
        // SAFETY: eight readable bytes (contract).
        8.. if ANY_ALIGNMENT => unsafe { load_anywhere(at) },
        8.. if at.cast::<u64>().is_aligned() => {
            // SAFETY: eight readable bytes (contract), aligned; a shared atomic access may race with anything atomic.
            let word = unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) };
            word.load(Ordering::Relaxed)
        }
        4 if at.cast::<u32>().is_aligned() => {
            // SAFETY: four readable bytes (contract), aligned.
            let half = unsafe { AtomicU32::from_ptr(at.cast_mut().cast()) };
            let mut value = [0; WORD];
            value[..4].copy_from_slice(&half.load(Ordering::Relaxed).to_ne_bytes());
            u64::from_ne_bytes(value)
        }
        // SAFETY: `left` bytes are readable at `at` (contract).
        left => unsafe { load_unaligned(at, left.min(WORD)) },
    }
}

/// Whether one instruction can load a word from any address without being a data race to the compiler.
pub(crate) const ANY_ALIGNMENT: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Loads a word from any address.
///
/// # Safety
/// `at` must be readable for eight bytes.
#[inline(always)]
unsafe fn load_anywhere(at: *const u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word: u64;
        // SAFETY: reads eight readable bytes (contract) into a register. By assembly, because another program may
        // write these bytes meanwhile.
        unsafe {
            std::arch::asm!("mov {word}, qword ptr [{at}]", at = in(reg) at, word = lateout(reg) word,
                options(nostack, preserves_flags, readonly));
        }
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller promises that `at` is readable for eight bytes.
    unsafe {
        load_unaligned(at, WORD)
    }
}

/// The cold half of [`load_program_word`]: an unaligned or short word, byte by byte.
///
/// # Safety
/// `at` must be readable for `len` bytes; `len` is at most 8.
#[cold]
#[inline(never)]
unsafe fn load_unaligned(at: *const u8, len: usize) -> u64 {
    let mut value = [0; WORD];
    for (i, byte) in value.iter_mut().enumerate().take(len) {
        // SAFETY: `i < len`, all readable (contract).
        let at = unsafe { at.add(i) };
        // SAFETY: one readable byte; a byte is always aligned.
        let shared = unsafe { AtomicU8::from_ptr(at.cast_mut()) };
        *byte = shared.load(Ordering::Relaxed);
    }
    u64::from_ne_bytes(value)
}

/// Copies `len` bytes that a program passed into shared words.
///
/// # Safety
/// `src` must be readable for `len` bytes.
#[inline(always)]
pub(crate) unsafe fn store_from_program(words: &[AtomicU64], src: *const u8, len: usize) {
    let whole = len.is_multiple_of(WORD) && (ANY_ALIGNMENT || src.cast::<u64>().is_aligned());
    if whole && let Some(words) = words.get(..len / WORD) {
        // SAFETY: readable for as many words (contract), and aligned where that matters.
        unsafe { store_words_from_program(words, src) }
    } else {
        // SAFETY: the caller promises that `src` is readable for `len` bytes.
        unsafe { store_odd_from_program(words, src, len) }
    }
}

/// Copies as many whole words as `words` has, in a few instructions.
///
/// # Safety
/// `src` must be readable for as many words as `words` has, and aligned to words unless [`ANY_ALIGNMENT`].
#[inline(always)]
pub(crate) unsafe fn store_words_from_program(words: &[AtomicU64], src: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: reads and writes `size_of_val(words)` bytes, which are readable (contract) and, being atomics,
    // writable; changes the registers named and the flags. By assembly, because other threads may access both places
    // meanwhile. The halves of the vectors, aligned in `words`, are each written at once (see `hash::tags`).
    unsafe {
        std::arch::asm!(
            "add {at}, 16",
            "jg 3f",
            "2:",
            "movups {pair}, xmmword ptr [{src} + {at} - 16]",
            "movups xmmword ptr [{dst} + {at} - 16], {pair}",
            "add {at}, 16",
            "jle 2b",
            "3:",
            "cmp {at:e}, 16",
            "je 4f",
            "movq {pair}, qword ptr [{src} - 8]",
            "movq qword ptr [{dst} - 8], {pair}",
            "4:",
            // Pointers to the ends, and a negative index that rises to zero.
            src = in(reg) src.wrapping_add(size_of_val(words)),
            dst = in(reg) words.as_ptr_range().end,
            at = inout(reg) size_of_val(words).wrapping_neg() => _,
            pair = out(xmm_reg) _,
            options(nostack),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (i, word) in words.iter().enumerate() {
        // SAFETY: eight readable bytes (contract), aligned.
        let shared = unsafe { AtomicU64::from_ptr(src.cast_mut().cast::<u64>().wrapping_add(i)) };
        word.store(shared.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Copies bytes that are not aligned, or that are not whole words.
///
/// # Safety
/// `src` must be readable for `len` bytes.
#[inline(never)]
unsafe fn store_odd_from_program(words: &[AtomicU64], src: *const u8, len: usize) {
    for (i, word) in words.iter().enumerate().take(words_for(len)) {
        // SAFETY: `i * 8 < len`, and the caller has `len` readable bytes at `src`.
        word.store(unsafe { load_program_word(src, i, len) }, Ordering::Relaxed);
    }
}

/// Copies `len` bytes of shared words to memory that a program passed.
///
/// # Safety
/// `dst` must be writable for `len` bytes.
pub(crate) unsafe fn load_to_program(words: &[AtomicU64], dst: *mut u8, len: usize) {
    for (i, word) in words.iter().enumerate().take(words_for(len)) {
        // SAFETY: `i * 8 < len` by the `take`, and the caller has `len` writable bytes at `dst`.
        unsafe { store_program_word(dst, i, len, word.load(Ordering::Relaxed)) };
    }
}

/// Clears memory that a program passed.
///
/// # Safety
/// `dst` must be writable for `len` bytes.
pub(crate) unsafe fn zero_program(dst: *mut u8, len: usize) {
    for i in 0..words_for(len) {
        // SAFETY: `i * 8 < len`, and the caller has `len` writable bytes at `dst`.
        unsafe { store_program_word(dst, i, len, 0) };
    }
}

/// Copies bytes from one place that a program passed to another.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes.
#[inline]
pub(crate) unsafe fn copy_program(dst: *mut u8, src: *const u8, len: usize) {
    if dst.cast::<u64>().is_aligned() && src.cast::<u64>().is_aligned() && len.is_multiple_of(WORD) {
        for i in 0..len / WORD {
            // SAFETY: eight readable bytes (contract), aligned.
            let from = unsafe { AtomicU64::from_ptr(src.cast_mut().cast::<u64>().wrapping_add(i)) };
            // SAFETY: eight writable bytes (contract), aligned.
            let to = unsafe { AtomicU64::from_ptr(dst.cast::<u64>().wrapping_add(i)) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        return;
    }
    for i in 0..words_for(len) {
        // SAFETY: `i * 8 < len`, and the caller has `len` readable bytes at `src`.
        let word = unsafe { load_program_word(src, i, len) };
        // SAFETY: `i * 8 < len`, and the caller has `len` writable bytes at `dst`.
        unsafe { store_program_word(dst, i, len, word) };
    }
}

/// Stores word `index` of `len` bytes to memory that a program passed, of any alignment.
///
/// # Safety
/// `dst` must be writable for `len` bytes, and `index * 8 < len`.
unsafe fn store_program_word(dst: *mut u8, index: usize, len: usize, word: u64) {
    let offset = index * WORD;
    // SAFETY: the offset is below `len` (contract).
    let at = unsafe { dst.add(offset) };
    if len - offset >= WORD && at.cast::<u64>().is_aligned() {
        // SAFETY: eight writable bytes (contract), aligned.
        let shared = unsafe { AtomicU64::from_ptr(at.cast()) };
        shared.store(word, Ordering::Relaxed);
        return;
    }
    for (i, byte) in word.to_ne_bytes().into_iter().enumerate().take(len - offset) {
        // SAFETY: `offset + i < len`, of the `len` writable bytes that the caller has at `dst`.
        let at = unsafe { at.add(i) };
        // SAFETY: one writable byte; a byte is always aligned.
        let shared = unsafe { AtomicU8::from_ptr(at) };
        shared.store(byte, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_round_trip_at_every_length_and_alignment() {
        let table = Table::<AtomicU64>::zeroed(8).unwrap();
        let bytes: Vec<u8> = (1..=64).collect();
        for start in 0..8 {
            for len in 1..=40 {
                let src = &bytes[start..start + len];
                // SAFETY: `src` is readable for its length.
                unsafe { store_from_program(&table, src.as_ptr(), len) };
                let mut host = vec![0; len];
                load_bytes(&table, &mut host);
                assert_eq!(host, src);
                let mut program = vec![0xee; len + start + 1];
                // SAFETY: `len` bytes from `start` on are inside the vector.
                unsafe { load_to_program(&table, program[start..].as_mut_ptr(), len) };
                assert_eq!(&program[start..start + len], src);
                assert_eq!(program[start + len], 0xee, "nothing beyond the value is written");
                if !len.is_multiple_of(WORD) {
                    let last = table[len / WORD].load(Ordering::Relaxed).to_ne_bytes();
                    assert!(last[len % WORD..].iter().all(|&b| b == 0), "padding is zero");
                }
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(Table::<AtomicU64>::zeroed(usize::MAX / 4).err(), Some(Errno::ENOMEM));
    }
}
