//! Ring buffers: records of any size from programs to the host ([`consumer`]), and back ([`user`]).
//!
//! Layout and rules are the kernel's. A record is {length | BUSY | DISCARD, page offset} and its data, rounded up to 8.
//! Producers reserve under a lock (which yields and sleeps when its holder is preempted, and refuses re-entry), write
//! without it, and commit with one exchange. The consumer stops at the first BUSY record and skips discarded ones.
//!
//! Wake-up: a commit wakes the consumer only if the consumer's position is this record, so a busy consumer costs
//! producers nothing. The consumer publishes its position and then loads the next header; the producer changes the
//! header and then loads the position. Between the two steps the producer has its exchange, and a consumer that finds
//! no record has a fence, so at least one of the two sees the other. A consumer that finds records executes no fence.

pub(crate) mod consumer;
mod memory;
pub(crate) mod perf;
#[cfg(all(feature = "tokio", target_os = "linux"))]
pub(crate) mod stream;
pub(crate) mod user;

use bpf_os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf_os::event::Event;
use bpf_quiesce::{EnterError, Reservation};

use crate::def::MapDef;
use crate::errno::{Errno, OpResult};
use crate::header::LookupFn;
use crate::lock::SlotLock;
use crate::mem;
use crate::num::low;
use crate::ops::MapOps;
use crate::queue::no_lookup;
pub(crate) use memory::{Header, RingMemory};

/// The record is reserved and not committed.
const BUSY: u32 = 1 << 31;
/// The consumer must skip the record.
const DISCARD: u32 = 1 << 30;

/// Flags of submit, discard and output.
pub mod wakeup {
    /// Do not wake the consumer.
    pub const NO_WAKEUP: u64 = 1 << 0;
    /// Wake the consumer whatever its position.
    pub const FORCE_WAKEUP: u64 = 1 << 1;
}

/// The queries of `bpf_ringbuf_query`.
pub mod query {
    /// Bytes not consumed yet.
    pub const AVAIL_DATA: u64 = 0;
    /// Bytes of the ring.
    pub const RING_SIZE: u64 = 1;
    /// The consumer's position.
    pub const CONS_POS: u64 = 2;
    /// The producers' position.
    pub const PROD_POS: u64 = 3;
}

/// The kernel's `RINGBUF_MAX_RECORD_SZ`.
const MAX_RECORD: u64 = (u32::MAX / 4) as u64;

/// Bytes from one record to the next.
fn stride(len: u64) -> u64 {
    (len + Header::SIZE as u64).next_multiple_of(8)
}

/// The end of a wait; `None` for a timeout that no clock will reach.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// The remaining time; `None` for ever.
    fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// A ring with its wake-up and its counters.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: RingMemory,
    /// Held by producers while they reserve.
    reserving: SlotLock,
    /// The position of the oldest record that was BUSY when last checked: a reservation must not lap it. Only the
    /// holder of `reserving` accesses it.
    pending: AtomicU64,
    event: Event,
    lost: AtomicU64,
    /// Whether there is a consumer (for a user ring: a host producer).
    attached: AtomicBool,
    /// Whether a program is draining (user ring).
    draining: AtomicBool,
    /// For an entry of a perf event array, whose memory no map's reservation includes.
    _reservation: Option<Reservation>,
}

impl Ring {
    pub(crate) fn new(size: u32, reservation: Option<Reservation>) -> OpResult<Arc<Self>> {
        let ring = Arc::new(Self {
            memory: RingMemory::new(size)?,
            reserving: SlotLock::default(),
            pending: AtomicU64::new(0),
            event: Event::new()?,
            lost: AtomicU64::new(0),
            attached: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            _reservation: reservation,
        });
        // The ring does not move in its `Arc`, and its memory is dropped with it. Relaxed: no other thread has the
        // ring yet.
        ring.memory.owner().store(Arc::as_ptr(&ring).cast_mut(), Ordering::Relaxed);
        Ok(ring)
    }

    /// Refuses to wait in a forked child, where no record will ever arrive.
    fn check_process(&self) -> std::io::Result<()> {
        if self.memory.is_ours() { Ok(()) } else { Err(std::io::Error::other(EnterError::Forked)) }
    }

    fn mask(&self) -> u64 {
        self.memory.size() as u64 - 1
    }

    /// Reserves a record of `size` bytes; `None` (and one more lost record) if there is no room.
    #[inline]
    pub(crate) fn reserve(&self, size: u64, slot: u32) -> Option<Header<'_>> {
        let header = self.try_reserve(size, slot);
        if header.is_none() {
            // Relaxed: a statistic.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        header
    }

    #[inline(always)]
    fn try_reserve(&self, size: u64, slot: u32) -> Option<Header<'_>> {
        if size > MAX_RECORD || stride(size) > self.memory.size() as u64 {
            return None;
        }
        // Acquire pairs with the release of the consumer's advance: it has finished with the bytes that are reused
        // here.
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        let _lock = self.reserving.lock(slot).ok()?;
        // Relaxed, both: changed under this lock only.
        let producer = self.memory.producer().load(Ordering::Relaxed);
        let mut pending = self.pending.load(Ordering::Relaxed);
        while pending < producer {
            // Relaxed: a record that just got committed may count as pending a little longer.
            let len = self.memory.header(pending).len().load(Ordering::Relaxed);
            if len & BUSY != 0 {
                break;
            }
            pending += stride(u64::from(len & !DISCARD));
        }
        self.pending.store(pending, Ordering::Relaxed);
        let end = producer + stride(size);
        if end - consumer > self.mask() || end - pending > self.mask() {
            return None;
        }
        let header = self.memory.header(producer);
        // Relaxed, both: published by the producer position.
        header.len().store(low(size) | BUSY, Ordering::Relaxed);
        // SAFETY: a header of this ring.
        unsafe { header.page_offset() }.store(self.memory.page_offset(header), Ordering::Relaxed);
        // Release pairs with the consumer's acquire: below this position every header is BUSY or committed.
        self.memory.producer().store(end, Ordering::Release);
        Some(header)
    }

    /// Commits the record whose data begins at `sample`.
    ///
    /// # Safety
    /// `sample` must come from [`Ring::reserve`] of a live ring, and must not have been committed yet.
    pub(crate) unsafe fn commit(sample: *mut u8, flags: u64, discard: bool) {
        // SAFETY: a record's data in a live ring (contract); `Ring::new` has set the owner.
        let (ring, header) = unsafe { RingMemory::owner_of::<Self>(sample) };
        // SAFETY: the ring is live (contract).
        let ring = unsafe { &*ring };
        ring.finish(header, flags, discard);
    }

    /// Commits a reserved record.
    #[inline]
    fn finish(&self, header: Header<'_>, flags: u64, discard: bool) {
        // Relaxed: only its producer changes a BUSY header.
        let len = header.len().load(Ordering::Relaxed) & !BUSY;
        // SeqCst: releases the data to the consumer's acquire, and comes before the look at its position below; pairs
        // with the fence in `committed_at_last`.
        header.len().swap(if discard { len | DISCARD } else { len }, Ordering::SeqCst);
        let waiting = self.memory.consumer().load(Ordering::SeqCst);
        let here = std::ptr::eq(self.memory.header(waiting).data(), header.data());
        if flags & wakeup::FORCE_WAKEUP != 0 || (here && flags & wakeup::NO_WAKEUP == 0) {
            self.notify();
        }
    }

    /// Reserves `size` bytes, copies the parts, which together have `size` bytes, and commits.
    ///
    /// # Safety
    /// Each part must be readable for its length.
    #[inline]
    pub(crate) unsafe fn output(
        &self,
        size: usize,
        parts: impl Iterator<Item = (*const u8, usize)>,
        flags: u64,
        slot: u32,
    ) -> OpResult {
        if flags & !(wakeup::NO_WAKEUP | wakeup::FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        let header = self.reserve(size as u64, slot).ok_or(Errno::EAGAIN)?;
        let (mut at, mut left) = (header.data(), size);
        for (part, len) in parts {
            let len = len.min(left);
            left -= len;
            // SAFETY: the caller promises that each part is readable for its length, and the record has room for that
            // many bytes.
            unsafe { mem::copy_program(at, part, len) };
            at = at.wrapping_add(len);
        }
        debug_assert_eq!(left, 0, "the parts are as long as the caller says");
        self.finish(header, flags, false);
        Ok(())
    }

    /// Answers a [`query`]; 0 for any other number, as in the kernel.
    pub(crate) fn query(&self, what: u64) -> u64 {
        // Acquire: a caller that acts on a position sees the data before it.
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        let producer = self.memory.producer().load(Ordering::Acquire);
        match what {
            query::AVAIL_DATA => producer.saturating_sub(consumer),
            query::RING_SIZE => self.memory.size() as u64,
            query::CONS_POS => consumer,
            query::PROD_POS => producer,
            _ => 0,
        }
    }

    /// Wakes the threads that wait on the event.
    fn notify(&self) {
        self.event.set();
    }

    /// Resets the event.
    fn clear_event(&self) {
        self.event.clear();
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Waits for the event; false if the deadline passes first.
    fn wait(&self, deadline: Deadline) -> std::io::Result<bool> {
        loop {
            if self.event.wait(deadline.left())? {
                return Ok(true);
            }
            // A signal ends a wait too, and so does the longest timeout of a single call: then wait on.
            if deadline.left().is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// Number of records that found no room.
    pub(crate) fn lost(&self) -> u64 {
        // Relaxed: a statistic.
        self.lost.load(Ordering::Relaxed)
    }
}

/// A ring buffer map, of either direction.
#[derive(Debug)]
pub(crate) struct RingMap {
    pub(crate) ring: Arc<Ring>,
}

impl RingMap {
    /// Bytes a ring of this definition takes up.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        RingMemory::needed(def.max_entries)
    }

    pub(crate) fn new(def: &MapDef) -> OpResult<Self> {
        Ok(Self { ring: Ring::new(def.max_entries, None)? })
    }
}

/// The element operations do not exist for rings: `ENOTSUPP` from the system calls, as in the kernel.
impl MapOps for RingMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    fn host_value_size(&self) -> usize {
        0
    }

    fn lookup(&self, _key: &[u8], _out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::ENOTSUPP)
    }

    fn update(&self, _key: &[u8], _value: &[u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::ENOTSUPP)
    }

    fn delete(&self, _key: &[u8], _slot: u32) -> OpResult {
        Err(Errno::ENOTSUPP)
    }

    fn next_key(&self, _key: Option<&[u8]>, _out: &mut [u8]) -> OpResult {
        Err(Errno::ENOTSUPP)
    }

    fn len(&self) -> u64 {
        0
    }

    fn memory_usage(&self) -> u64 {
        RingMemory::needed(crate::num::small(self.ring.memory.size()))
    }
}
