//! The pages of a ring, mapped so that no record ever wraps.
//!
//! The file behind a ring has the layout of the kernel's mapping of a ring buffer: the consumer position in the first
//! page, the producer position in the second, then the data. In memory one private page precedes it (which leads from
//! a record back to its ring). The data is mapped a second time after itself, so that a record that begins near the
//! end continues in the copy.
//!
//! The pages are shared, so a forked child would move the positions that its parent uses, and the parent would read
//! the middle of a record as a header. Therefore the child does not get the pages (`MADV_DONTFORK`), and every host
//! operation on an end of a ring first calls [`RingMemory::is_ours`].

use bpf_os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use bpf_os::memory::{self, Advice, Protection};
use bpf_quiesce::fork::Generation;

use crate::errno::{Errno, OpResult};
use crate::mem::memory_file;

/// Pages before the data: private, consumer, producer.
const BEFORE: usize = 3;

/// The pages of one ring. `Owner` is what the private page leads to.
#[derive(Debug)]
pub(crate) struct RingMemory {
    base: NonNull<u8>,
    page: usize,
    /// Bytes of data: a power of two, at least a page.
    data: usize,
    file: OwnedFd,
    made_in: Generation,
}

// SAFETY: the mapping is owned and only accessed through shared atomics (or by programs, under the ring's protocol).
unsafe impl Send for RingMemory {}
// SAFETY: a shared `RingMemory` gives out atomics and addresses; a record at such an address belongs to one producer
// or consumer at a time (the ring's protocol).
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Bytes of memory for `data` bytes of ring.
    pub(crate) fn needed(data: u32) -> u64 {
        u64::from(data) + (BEFORE * memory::page_size()) as u64
    }

    fn reserved(&self) -> usize {
        BEFORE * self.page + 2 * self.data
    }

    /// Maps a ring of `data` bytes, a power of two and a multiple of the page.
    pub(crate) fn new(data: u32) -> OpResult<Self> {
        let page = memory::page_size();
        let data = data as usize;
        let file = memory_file(2 * page + data)?;
        let reserved = (BEFORE * page).checked_add(2 * data).ok_or(Errno::ENOMEM)?;
        let base = memory::reserve(None, reserved)?;
        let base = NonNull::new(base).ok_or(Errno::ENOMEM)?;
        // From this point on `drop` unmaps the pages.
        let this = Self { base, page, data, file, made_in: Generation::current() };
        // SAFETY: the first page of our own reservation.
        unsafe { memory::protect(this.base.as_ptr(), page, Protection::ReadWrite) }?;
        this.map_file(page, 2 * page + data, 0)?;
        this.map_file(BEFORE * page + data, data, 2 * page)?;
        // If the advice is refused, a child shares the pages, which it must not use anyway.
        // SAFETY: our own reservation; a child's uses of it are guarded by `is_ours`.
        let _ = unsafe { memory::advise(this.base.as_ptr(), reserved, Advice::DontFork) };
        Ok(this)
    }

    /// Whether this is the process that made the ring. A forked child has neither its pages nor a part in its protocol.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.made_in.is_current()
    }

    /// Maps `len` bytes of the file from `offset` on at `at` in the reservation.
    fn map_file(&self, at: usize, len: usize, offset: usize) -> OpResult {
        let address = self.base.as_ptr().wrapping_add(at);
        // SAFETY: part of our own reservation (`new` computes `at` and `len` inside it), which is not in use yet.
        let mapped =
            unsafe { memory::map_file_over(address, len, Protection::ReadWrite, self.file.as_fd(), offset as u64) };
        Ok(mapped?)
    }

    /// Bytes of data.
    pub(crate) fn size(&self) -> usize {
        self.data
    }

    fn word(&self, page: usize) -> &AtomicU64 {
        let at = self.base.as_ptr().wrapping_add(page * self.page).cast();
        // SAFETY: the first word of a mapped page, aligned, as long-lived as `self`, only accessed atomically.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// The consumer position.
    pub(crate) fn consumer(&self) -> &AtomicU64 {
        self.word(1)
    }

    /// The producer position.
    pub(crate) fn producer(&self) -> &AtomicU64 {
        self.word(2)
    }

    /// The record header at a position.
    pub(crate) fn header(&self, position: u64) -> Header<'_> {
        let offset = BEFORE * self.page + (crate::num::index(position) & (self.data - 1));
        // SAFETY: inside the mapping: data offsets are below `data`, and the data is mapped twice.
        let at = unsafe { self.base.add(offset) };
        Header { at, _memory: std::marker::PhantomData }
    }

    /// How many pages lie between the private page and a header.
    pub(crate) fn page_offset(&self, header: Header<'_>) -> u32 {
        // Fits: the data has a 32-bit size.
        crate::num::small((header.at.as_ptr() as usize - self.base.as_ptr() as usize) / self.page)
    }

    /// The cell in the private page.
    pub(crate) fn owner<T>(&self) -> &AtomicPtr<T> {
        // SAFETY: the private page is mapped, aligned and zeroed (null); only this cell is in it.
        unsafe { AtomicPtr::from_ptr(self.base.as_ptr().cast()) }
    }

    /// The owner of the ring that a sample lies in.
    ///
    /// # Safety
    /// `sample` must be the start of a record's data in a live ring whose owner cell holds a `T`.
    pub(crate) unsafe fn owner_of<T>(sample: *mut u8) -> (*mut T, Header<'static>) {
        // SAFETY: the header lies right before the data (contract).
        let header = unsafe { Header::before(sample) };
        let page = memory::page_size();
        // SAFETY: the header is live.
        let offset = unsafe { header.page_offset() }.load(std::sync::atomic::Ordering::Relaxed) as usize;
        let at = header.at.as_ptr();
        let base = at.wrapping_sub(at as usize % page + offset * page);
        // SAFETY: `reserve` stored the number of pages from the private page, so this is its cell.
        let owner = unsafe { AtomicPtr::<T>::from_ptr(base.cast()) };
        (owner.load(std::sync::atomic::Ordering::Relaxed), header)
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // In a forked child another mapping may lie at this address.
        if self.is_ours() {
            // SAFETY: our own reservation, to which no reference is left.
            let _ = unsafe { memory::unmap(self.base.as_ptr(), self.reserved()) };
        }
    }
}

/// A record's header: length and flags, then the page offset; the data follows.
#[derive(Clone, Copy)]
pub(crate) struct Header<'a> {
    at: NonNull<u8>,
    _memory: std::marker::PhantomData<&'a RingMemory>,
}

impl<'a> Header<'a> {
    /// Bytes of a header.
    pub(crate) const SIZE: usize = 8;

    /// The header of a sample.
    ///
    /// # Safety
    /// `sample` must be the start of a record's data, and its ring must outlive `'a`.
    unsafe fn before(sample: *mut u8) -> Self {
        // SAFETY: a record's data is preceded by its header (contract).
        let at = unsafe { sample.sub(Self::SIZE) };
        // SAFETY: inside a mapping, so not null.
        Self { at: unsafe { NonNull::new_unchecked(at) }, _memory: std::marker::PhantomData }
    }

    /// Length and flags.
    pub(crate) fn len(self) -> &'a AtomicU32 {
        // SAFETY: headers lie at multiples of 8 inside the mapping, which outlives `'a`; only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().cast()) }
    }

    /// The page offset.
    ///
    /// # Safety
    /// The header must be one of [`RingMemory::header`] or of a live record.
    pub(crate) unsafe fn page_offset(self) -> &'a AtomicU32 {
        let at = self.at.as_ptr().wrapping_add(4);
        // SAFETY: the second half of the header.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The data behind the header.
    pub(crate) fn data(self) -> *mut u8 {
        self.at.as_ptr().wrapping_add(Self::SIZE)
    }
}
