//! The memory of a run. All unsafe code of this crate is here.
//!
//! Problem: programs compute addresses. A safe engine must know for each access that the memory exists, belongs to
//! the program and stays valid, and must not race with other threads on map values. Approach: a run is given regions,
//! and each access is looked up in them ([`Memory::find`]). Only a lookup makes a [`Place`], a place knows its size,
//! and only a place can be read or written. So every raw access in this file rests on one statement: *the bytes of a
//! place lie inside memory that was given, and stay there while the place is borrowed.*
//!
//! Invariants:
//! - Memory given as `&[u8]` is *frozen*: read by plain loads and never written, because no other code may write it
//!   either.
//! - All other memory (the stack, memory given as `&mut [u8]`, memory that the host grants) is accessed only
//!   atomically, relaxed unless the instruction requires more, because other threads may use map values at the same
//!   time. An unaligned access is one atomic access per byte, so it can tear, as on hardware.
//! - Programs return pointers as integers, so the provenance of every region is exposed when it is given.
//! - The address of a region in the program need not be the address of its bytes ([`Memory::add_writable_at`]): a
//!   lookup compares the program's addresses, and a place has the address of the bytes.

use crate::alu::low;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use bpf_isa::{AtomicOp, Size};

/// The default size of a frame's stack in bytes; see [`Options::stack_bytes`](crate::Options::stack_bytes).
pub const DEFAULT_STACK_BYTES: usize = 512;

/// A region of memory given to a run.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// The address of its first byte in the program.
    start: u64,
    len: u64,
    /// Whether it was given as `&[u8]`.
    frozen: bool,
    /// Whether the program may write it.
    writable: bool,
    /// The distance from an address in the program to that of the byte; it wraps round.
    shift: u64,
}

impl Region {
    /// The region of `len` bytes at `real`, which the program knows at `start`.
    fn at(start: u64, real: u64, len: u64, frozen: bool) -> Region {
        Region { start, len, frozen, writable: !frozen, shift: real.wrapping_sub(start) }
    }

    fn contains(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.start);
        offset <= self.len && len <= self.len - offset
    }
}

/// The address of the first frame that [`Memory::place_frames`] gives no other, and the distance to the next. No
/// machine has memory at these addresses.
const PLACED_FRAMES: u64 = 0x7ff0_0000_0000_0000;
const PLACED_FRAME: u64 = 1 << 32;

/// The memory of one run, except memory that the host grants through [`crate::Env::region`].
///
/// The lifetime is that of the borrowed memory: no other code accesses it while the run has it.
#[derive(Debug)]
pub struct Memory<'a> {
    regions: Vec<Region>,
    /// Stack frames; the first `live` are in use.
    frames: Vec<Frame>,
    live: usize,
    frame_bytes: usize,
    /// The value of every byte of a stack when it is entered.
    fill: u8,
    packet: (u64, u64),
    /// The addresses of the frames in the program, if they are not those of their bytes.
    frame_places: Option<Vec<u64>>,
    given: PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    /// Creates an empty memory.
    pub fn new() -> Memory<'a> {
        Memory {
            regions: Vec::new(),
            frames: Vec::new(),
            live: 0,
            frame_bytes: DEFAULT_STACK_BYTES,
            fill: 0,
            packet: (0, 0),
            frame_places: None,
            given: PhantomData,
        }
    }

    /// Lets the program read these bytes. Returns their address.
    pub fn add_read_only(&mut self, bytes: &'a [u8]) -> u64 {
        let start = bytes.as_ptr().expose_provenance() as u64;
        self.add_read_only_at(bytes, start);
        start
    }

    /// Lets the program read and write these bytes. Returns their address.
    pub fn add_writable(&mut self, bytes: &'a mut [u8]) -> u64 {
        let start = bytes.as_mut_ptr().expose_provenance() as u64;
        self.add_writable_at(bytes, start);
        start
    }

    /// Lets the program read these bytes at the address `start`: for runs that are repeated, whose memory lay
    /// elsewhere. Regions of one memory must not overlap in the program; the first one found is accessed.
    pub fn add_read_only_at(&mut self, bytes: &'a [u8], start: u64) {
        let real = bytes.as_ptr().expose_provenance() as u64;
        self.regions.push(Region::at(start, real, bytes.len() as u64, true));
    }

    /// Lets the program read and write these bytes at the address `start`, as [`Memory::add_read_only_at`].
    pub fn add_writable_at(&mut self, bytes: &'a mut [u8], start: u64) {
        let real = bytes.as_mut_ptr().expose_provenance() as u64;
        self.regions.push(Region::at(start, real, bytes.len() as u64, false));
    }

    /// Lets the program read these bytes, and functions of the host write them. Returns their address.
    pub fn add_guarded(&mut self, bytes: &'a mut [u8]) -> u64 {
        let start = bytes.as_mut_ptr().expose_provenance() as u64;
        self.add_guarded_at(bytes, start);
        start
    }

    /// Lets the program read these bytes at the address `start`, as [`Memory::add_read_only_at`], and functions of the
    /// host write them.
    pub fn add_guarded_at(&mut self, bytes: &'a mut [u8], start: u64) {
        let real = bytes.as_mut_ptr().expose_provenance() as u64;
        self.regions.push(Region { writable: false, ..Region::at(start, real, bytes.len() as u64, false) });
    }

    /// Sets the addresses of the stacks of frames in the program, the outermost first. Further frames lie where no
    /// machine has memory. For frames that are not entered yet.
    pub fn place_frames(&mut self, starts: Vec<u64>) {
        self.frame_places = Some(starts);
    }

    /// Sets the packet that LD_ABS and LD_IND read. Its bytes must be added as well: this alone does not make them
    /// readable.
    pub fn set_packet(&mut self, addr: u64, len: u64) {
        self.packet = (addr, len);
    }

    /// The address of `size` bytes at this position, which may lie before the packet; `None` if they end after it.
    pub(crate) fn packet_address(&self, position: i64, size: Size) -> Option<u64> {
        let (start, len) = self.packet;
        let end = position.checked_add(size.bytes().into())?;
        (end <= len.cast_signed()).then(|| start.wrapping_add_signed(position))
    }

    /// Sets the stack size of frames entered from this call on, rounded up to a multiple of 8.
    pub(crate) fn set_frame_bytes(&mut self, bytes: usize) {
        let bytes = bytes.next_multiple_of(8);
        if bytes != self.frame_bytes {
            self.frame_bytes = bytes;
            self.frames.truncate(self.live);
        }
    }

    /// Sets the value of the bytes of a stack when it is entered.
    pub(crate) fn set_fill(&mut self, fill: u8) {
        self.fill = fill;
    }

    /// Whether the bytes of a stack are not zero when it is entered.
    pub(crate) fn is_filled(&self) -> bool {
        self.fill != 0
    }

    /// Zeroes `bytes` bytes of the innermost frame, from `depth` below its end; rounded up to multiples of 8.
    pub(crate) fn zero(&mut self, depth: usize, bytes: usize) {
        if let Some(frame) = self.frames[..self.live].last() {
            frame.zero(depth.div_ceil(8), bytes.div_ceil(8));
        }
    }

    /// Enters a frame, whose stack is zero or has the value of [`Memory::set_fill`]. Returns its end: r10.
    pub(crate) fn push_frame(&mut self) -> u64 {
        match self.frames.get(self.live) {
            Some(frame) => frame.clear(self.fill),
            None => {
                let mut frame = Frame::new(self.frame_bytes);
                if let Some(places) = &self.frame_places {
                    let free = PLACED_FRAMES + PLACED_FRAME * self.live as u64;
                    frame.start = places.get(self.live).copied().unwrap_or(free);
                }
                if self.fill != 0 {
                    frame.clear(self.fill);
                }
                self.frames.push(frame);
            }
        }
        let region = self.frames[self.live].region();
        self.live += 1;
        region.start + region.len
    }

    /// Leaves all frames but the first `live`.
    pub(crate) fn pop_frames_to(&mut self, live: usize) {
        self.live = live.min(self.live);
    }

    /// Number of frames in use.
    pub(crate) fn frames(&self) -> usize {
        self.live
    }

    /// The address and length of the stack of frame `index`; `None` if that frame is not in use.
    pub(crate) fn stack(&self, index: usize) -> Option<(u64, usize)> {
        let region = self.frames[..self.live].get(index)?.region();
        Some((region.start, native(region.len)))
    }

    /// The address of the stack of each frame that the run has entered so far, the outermost first.
    pub(crate) fn frame_starts(&self) -> impl Iterator<Item = u64> {
        self.frames.iter().map(|frame| frame.start)
    }

    /// The place of bytes of the run's own memory that a function of the host may write.
    pub(crate) fn find_unfrozen(&self, addr: u64, len: usize) -> Option<Place<'_, usize>> {
        self.find(addr, len, false).filter(|place| !place.frozen)
    }

    /// The place of an access, if its memory was given to the run: in a stack frame in use, innermost first, or in a
    /// region.
    #[inline]
    pub(crate) fn find<L: Extent>(&self, addr: u64, len: L, write: bool) -> Option<Place<'_, L>> {
        let frames = self.frames[..self.live].iter().rev().map(Frame::region);
        let mut regions = frames.chain(self.regions.iter().copied());
        let Region { frozen, writable, shift, .. } = regions.find(|region| region.contains(addr, len.count()))?;
        (writable || !write).then_some(Place { addr: addr.wrapping_add(shift), len, frozen, memory: PhantomData })
    }
}

impl Default for Memory<'_> {
    fn default() -> Self {
        Memory::new()
    }
}

/// The stack of one frame. Programs reach it by address, so it is kept as a raw pointer: moving a `Box` would assert
/// that no such address is in use.
#[derive(Debug)]
struct Frame {
    words: *mut [u64],
    /// Its address in the program.
    start: u64,
}

impl Frame {
    fn new(bytes: usize) -> Frame {
        let words = Box::into_raw(vec![0u64; bytes / 8].into_boxed_slice());
        let start = words.cast::<u64>().expose_provenance() as u64;
        Frame { words, start }
    }

    fn region(&self) -> Region {
        Region::at(self.start, self.words.cast::<u64>().addr() as u64, self.words.len() as u64 * 8, false)
    }

    /// Zeroes `words` words, from `depth` words before the end.
    fn zero(&self, depth: usize, words: usize) {
        let from = self.words.len().saturating_sub(depth);
        let words = words.min(self.words.len() - from);
        // SAFETY: `from` is at most the number of words, all of one allocation.
        let first = unsafe { self.words.cast::<u64>().add(from) };
        // SAFETY: as for `clear`; at least `words` words follow.
        unsafe { first.write_bytes(0, words) }
    }

    fn clear(&self, fill: u8) {
        // SAFETY: `words` came from a box of that many words that only `drop` frees, and any bytes are u64s. No
        // reference to them exists: this file makes none that outlives one access, and a frame is entered by
        // one thread.
        unsafe { self.words.cast::<u64>().write_bytes(fill, self.words.len()) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: `words` came from `Box::into_raw` in `new`, and is given back once, here.
        drop(unsafe { Box::from_raw(self.words) });
    }
}

/// Memory that the host grants for one access: the result of [`crate::Env::region`].
///
/// Making one asserts that the access asked about is valid, for the lifetime.
#[derive(Debug)]
pub struct HostMemory<'m> {
    /// Other bytes that the access is redirected to: address and length.
    instead: Option<(u64, u64)>,
    memory: PhantomData<&'m [AtomicU8]>,
}

impl<'m> HostMemory<'m> {
    /// Grants access to the bytes that [`crate::Env::region`] was asked about.
    ///
    /// # Safety
    /// For the lifetime `'m`, the bytes must be allocated, initialised, of exposed provenance, writable by this
    /// process (even where the program may only read them), and accessed by others only atomically. No Rust reference
    /// to them may exist other than to atomics or cells.
    pub unsafe fn vouch() -> HostMemory<'m> {
        HostMemory { instead: None, memory: PhantomData }
    }

    /// Redirects the access to these bytes: a host that must know the loaded value loads it first, and shows that
    /// value to the program. An access of more bytes fails.
    pub fn instead(bytes: &'m [AtomicU8]) -> HostMemory<'m> {
        let instead = Some((bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64));
        HostMemory { instead, memory: PhantomData }
    }

    /// Grants access to bytes that lie within shared atomic memory. `None` if they do not.
    ///
    /// ```
    /// # use std::sync::atomic::AtomicU8;
    /// # use bpf_interp::HostMemory;
    /// let value = [const { AtomicU8::new(0) }; 8];
    /// let start = value.as_ptr().addr() as u64;
    /// assert!(HostMemory::within(&value, start + 4, 4).is_some());
    /// assert!(HostMemory::within(&value, start + 4, 5).is_none());
    /// ```
    pub fn within(memory: &'m [AtomicU8], addr: u64, len: u64) -> Option<HostMemory<'m>> {
        let start = memory.as_ptr().expose_provenance() as u64;
        let region = Region::at(start, start, memory.len() as u64, false);
        region.contains(addr, len).then_some(HostMemory { instead: None, memory: PhantomData })
    }
}

/// The extent of an access: one of the instruction set's sizes, or a number of bytes.
pub(crate) trait Extent: Copy {
    fn count(self) -> u64;
}

impl Extent for Size {
    fn count(self) -> u64 {
        self.bytes().into()
    }
}

impl Extent for usize {
    fn count(self) -> u64 {
        self as u64
    }
}

/// The place of a permitted access: `len` bytes inside memory that the run was given.
#[derive(Debug)]
pub(crate) struct Place<'m, L> {
    /// The address of the bytes.
    addr: u64,
    len: L,
    /// Whether only plain reads are allowed.
    frozen: bool,
    memory: PhantomData<&'m [AtomicU8]>,
}

/// An address or a length of existing memory, as a `usize`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "asserted: no host has narrower addresses than BPF")]
fn native(number: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    number as usize
}

impl<'m, L: Extent> Place<'m, L> {
    /// The place of an access that the host granted; `None` if it is redirected to bytes that are too few.
    pub(crate) fn of_host(addr: u64, len: L, HostMemory { instead, memory }: HostMemory<'m>) -> Option<Place<'m, L>> {
        let (addr, bytes) = instead.unwrap_or((addr, u64::MAX));
        (len.count() <= bytes).then_some(Place { addr, len, frozen: false, memory })
    }

    fn ptr(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(native(self.addr))
    }

    /// The bytes of a frozen place.
    fn frozen_bytes(&self) -> &'m [u8] {
        debug_assert!(self.frozen);
        // SAFETY: the bytes of a place lie inside memory that the run was given; these were given as `&[u8]`, so they
        // are not written.
        unsafe { core::slice::from_raw_parts(self.ptr(), native(self.len.count())) }
    }

    /// The bytes of a place that is not frozen.
    fn atomic_bytes(&self) -> &'m [AtomicU8] {
        // SAFETY: the bytes of a place lie inside memory that the run was given. Not being frozen, it may be written
        // and all accesses are atomic. An AtomicU8 has the layout of a u8.
        unsafe { core::slice::from_raw_parts(self.ptr().cast(), native(self.len.count())) }
    }

    /// Reads bytes, aligned words of them at once, up to the length of the place or of the buffer.
    pub(crate) fn copy_out(&self, bytes: &mut [u8]) {
        if self.frozen {
            for (to, from) in bytes.iter_mut().zip(self.frozen_bytes()) {
                *to = *from;
            }
        } else {
            let from = self.atomic_bytes();
            let len = bytes.len().min(from.len());
            // SAFETY: any bytes are a valid `AtomicU64`, and memory that is accessed atomically is so in any size, as
            // by `load`.
            let (head, words, tail) = unsafe { from[..len].align_to::<AtomicU64>() };
            let (to_head, rest) = bytes[..len].split_at_mut(head.len());
            let (to_words, to_tail) = rest.split_at_mut(8 * words.len());
            // Relaxed, as in `load`.
            let copy = |(to, from): (&mut u8, &AtomicU8)| *to = from.load(Ordering::Relaxed);
            to_head.iter_mut().zip(head).for_each(copy);
            for (to, from) in to_words.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
            }
            to_tail.iter_mut().zip(tail).for_each(copy);
        }
    }

    /// Writes bytes, each on its own, up to the length of the place or of the buffer.
    pub(crate) fn copy_in(&self, bytes: &[u8]) {
        for (to, &from) in self.atomic_bytes().iter().zip(bytes) {
            to.store(from, Ordering::Relaxed);
        }
    }
}

/// Accesses of a place as a whole. Each checks the size and the alignment.
impl<'m> Place<'m, Size> {
    /// Whether the address is a multiple of the size.
    pub(crate) fn is_aligned(&self) -> bool {
        self.addr.is_multiple_of(self.len.count())
    }

    fn whole(&self, size: Size) -> bool {
        self.len == size && self.is_aligned() && !self.frozen
    }

    fn atomic8(&self) -> Option<&'m AtomicU8> {
        // SAFETY: in memory that the run was given, which may be written; all accesses are atomic.
        self.whole(Size::B).then(|| unsafe { AtomicU8::from_ptr(self.ptr()) })
    }

    fn atomic16(&self) -> Option<&'m AtomicU16> {
        // SAFETY: as in `atomic8`, for both bytes; `whole` has checked the alignment.
        self.whole(Size::H).then(|| unsafe { AtomicU16::from_ptr(self.ptr().cast()) })
    }

    fn atomic32(&self) -> Option<&'m AtomicU32> {
        // SAFETY: as in `atomic8`, for all four bytes; `whole` has checked the alignment.
        self.whole(Size::W).then(|| unsafe { AtomicU32::from_ptr(self.ptr().cast()) })
    }

    fn atomic64(&self) -> Option<&'m AtomicU64> {
        // SAFETY: as in `atomic8`, for all eight bytes; `whole` has checked the alignment.
        self.whole(Size::DW).then(|| unsafe { AtomicU64::from_ptr(self.ptr().cast()) })
    }

    /// Reads, zero-extended.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        // Relaxed here and in `store`: plain accesses order nothing, they only must not be data races.
        self.load_ordered(Ordering::Relaxed).unwrap_or_else(|| {
            let mut bytes = [0; 8];
            self.copy_out(&mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// Writes the low bytes of the value.
    #[inline]
    pub(crate) fn store(&self, value: u64) {
        if self.store_ordered(value, Ordering::Relaxed).is_none() {
            self.copy_in(&value.to_le_bytes());
        }
    }

    /// The load of LOAD_ACQ, whose acquire pairs with the release of [`Place::store_release`] or of a store by
    /// another engine or host thread. Frozen bytes are never written, so there is no release to pair with.
    pub(crate) fn load_acquire(&self) -> u64 {
        self.load_ordered(Ordering::Acquire).unwrap_or_else(|| self.load())
    }

    /// The store of STORE_REL, whose release pairs with the acquire of [`Place::load_acquire`]. `None`: not aligned.
    pub(crate) fn store_release(&self, value: u64) -> Option<()> {
        self.store_ordered(value, Ordering::Release)
    }

    #[inline]
    fn load_ordered(&self, order: Ordering) -> Option<u64> {
        Some(match self.len {
            Size::B => self.atomic8()?.load(order).into(),
            Size::H => self.atomic16()?.load(order).into(),
            Size::W => self.atomic32()?.load(order).into(),
            Size::DW => self.atomic64()?.load(order),
        })
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a store of so many bytes is one of the low ones")]
    fn store_ordered(&self, value: u64, order: Ordering) -> Option<()> {
        match self.len {
            Size::B => self.atomic8()?.store(value as u8, order),
            Size::H => self.atomic16()?.store(value as u16, order),
            Size::W => self.atomic32()?.store(value as u32, order),
            Size::DW => self.atomic64()?.store(value, order),
        }
        Some(())
    }

    /// Read-modify-write of a place of 4 or 8 bytes; returns the old value, zero-extended. `None`: not aligned.
    pub(crate) fn modify(&self, op: AtomicOp, src: u64, expected: u64) -> Option<u64> {
        let order = order_of(op);
        if self.len == Size::DW {
            let place = self.atomic64()?;
            return Some(match op {
                AtomicOp::Add { .. } => place.fetch_add(src, order),
                AtomicOp::Or { .. } => place.fetch_or(src, order),
                AtomicOp::And { .. } => place.fetch_and(src, order),
                AtomicOp::Xor { .. } => place.fetch_xor(src, order),
                AtomicOp::Xchg => place.swap(src, order),
                AtomicOp::CmpXchg => match place.compare_exchange(expected, src, order, order) {
                    Ok(old) | Err(old) => old,
                },
            });
        }
        let (place, src, expected) = (self.atomic32()?, low(src), low(expected));
        let old = match op {
            AtomicOp::Add { .. } => place.fetch_add(src, order),
            AtomicOp::Or { .. } => place.fetch_or(src, order),
            AtomicOp::And { .. } => place.fetch_and(src, order),
            AtomicOp::Xor { .. } => place.fetch_xor(src, order),
            AtomicOp::Xchg => place.swap(src, order),
            AtomicOp::CmpXchg => match place.compare_exchange(expected, src, order, order) {
                Ok(old) | Err(old) => old,
            },
        };
        Some(old.into())
    }
}

/// The kernel orders a read-modify-write fully if it returns the old value, and not at all otherwise.
fn order_of(op: AtomicOp) -> Ordering {
    match op {
        AtomicOp::Add { fetch } | AtomicOp::Or { fetch } | AtomicOp::And { fetch } | AtomicOp::Xor { fetch } => {
            if fetch { Ordering::SeqCst } else { Ordering::Relaxed }
        }
        AtomicOp::Xchg | AtomicOp::CmpXchg => Ordering::SeqCst,
    }
}
