//! The host's end of a ring buffer, or of an entry of a perf event array.

use bpf_os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::memory::RingMemory;
use super::perf::{PerfMap, detach};
use super::{BUSY, DISCARD, Deadline, Header, Ring, RingMap, stride};
use crate::def::{MapDef, MapType};
use crate::errno::Errno;
use crate::error::MapError;
use crate::map::{Map, reserve};

/// The consumer of a ring buffer (or of one slot of a perf event array). There is one at a time.
///
/// Its [`AsFd`] is an eventfd that becomes readable when a record is committed at the consumer's position. Register
/// it with epoll or an async runtime (for tokio, the feature `tokio` adds `RingBuf::stream`). When it fires, call
/// [`RingBuf::clear_event`] and take records until there are none.
#[derive(Debug)]
pub struct RingBuf {
    ring: Arc<Ring>,
    /// Keeps the map alive, and with it the programs' access to the ring.
    map: Map,
    /// The index in a perf event array.
    perf_index: Option<u32>,
}

impl RingBuf {
    /// Becomes the consumer of `map`.
    ///
    /// # Errors
    /// [`MapError::WrongType`]; `EBUSY` if there is a consumer already; `EPERM` if the map is frozen.
    pub fn new(map: &Map) -> Result<Self, MapError> {
        const OP: &str = "becoming the consumer";
        match (map.map_type(), map.ops().as_any().downcast_ref::<RingMap>()) {
            (MapType::RingBuf, Some(ring)) => {
                map.check_process()?;
                let writing = map.begin_write(OP)?;
                let consumer = Self::attach(map, &ring.ring, None)?;
                // `drop` ends the counted write.
                std::mem::forget(writing);
                Ok(consumer)
            }
            (got, _) => Err(MapError::WrongType { map: map.name().to_owned(), expected: "ringbuf", got }),
        }
    }

    fn attach(map: &Map, ring: &Arc<Ring>, perf_index: Option<u32>) -> Result<Self, MapError> {
        // Acquire pairs with the release in `drop`: the consumer before has finished.
        if ring.attached.swap(true, Ordering::Acquire) {
            return Err(map.error("becoming the consumer", Errno::EBUSY));
        }
        Ok(Self { ring: Arc::clone(ring), map: map.clone(), perf_index })
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The next record, in place. It is consumed when the result is dropped.
    /// Returns `None` in a forked child, because the ring belongs to the parent. A record taken before the fork is
    /// unusable in the child: dropping it does nothing, and reading it faults.
    pub fn next_record(&mut self) -> Option<Record<'_>> {
        if !self.ring.memory.is_ours() {
            return None;
        }
        loop {
            // Relaxed: only the consumer moves it.
            let position = self.ring.memory.consumer().load(Ordering::Relaxed);
            let (header, len) = self.ring.committed(position).or_else(|| self.ring.committed_at_last(position))?;
            let size = len & !DISCARD;
            let next = position + stride(u64::from(size));
            if len & DISCARD != 0 {
                self.ring.advance(next);
                continue;
            }
            let data = header.data();
            return Some(Record { ring: &self.ring, data, len: size as usize, next });
        }
    }

    /// Passes each available record to `f`, until it returns false. Returns the number of records.
    pub fn consume(&mut self, mut f: impl FnMut(&[u8]) -> bool) -> usize {
        let mut count = 0;
        while let Some(record) = self.next_record() {
            count += 1;
            if !f(&record) {
                break;
            }
        }
        count
    }

    /// Consumes the records that are there when it begins, whatever is produced meanwhile.
    pub(crate) fn skip(&mut self) {
        // Acquire as in `next_record`.
        let end = self.ring.memory.producer().load(Ordering::Acquire);
        // Relaxed: only the consumer moves it.
        while self.ring.memory.consumer().load(Ordering::Relaxed) < end && self.next_record().is_some() {}
    }

    /// Waits until a record is available; false if the timeout ends first.
    ///
    /// # Errors
    /// Returns the errors of `poll(2)`, and fails in a forked child.
    pub fn poll(&mut self, timeout: Option<Duration>) -> std::io::Result<bool> {
        self.check_process()?;
        let deadline = Deadline::after(timeout);
        loop {
            self.ring.clear_event();
            // Discarded records hold no data: skip them before sleeping.
            if self.has_record() {
                return Ok(true);
            }
            if !self.ring.wait(deadline)? {
                return Ok(self.has_record());
            }
        }
    }

    pub(super) fn check_process(&self) -> std::io::Result<()> {
        self.ring.check_process()
    }

    /// Whether [`RingBuf::next_record`] has one. Discarded records are skipped.
    pub(super) fn has_record(&mut self) -> bool {
        // The record is only inspected, not consumed.
        self.next_record().map(std::mem::forget).is_some()
    }

    /// Resets the eventfd. To be called before records are taken, not after: a record committed in between sets it
    /// again.
    pub fn clear_event(&mut self) {
        // A forked child shares the descriptor with its parent, which must keep its events.
        if self.ring.memory.is_ours() {
            self.ring.clear_event();
        }
    }

    /// Records that programs could not write because the ring was full (or their reservation was refused).
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.ring.lost()
    }
}

/// Opens the entry of slot `index` with a ring of `bytes` bytes and returns its consumer.
///
/// # Errors
/// [`MapError::WrongType`], [`MapError::MemoryFull`]; `E2BIG` beyond `max_entries`, `EEXIST` if the entry is open,
/// `EPERM` if the map is frozen, `EINVAL` unless `bytes` is a power of two and a multiple of the page.
pub fn open(map: &Map, index: u32, bytes: u32) -> Result<RingBuf, MapError> {
    const OP: &str = "opening an entry";
    let Some(perf) = map.ops().as_any().downcast_ref::<PerfMap>() else {
        let (name, got) = (map.name().to_owned(), map.map_type());
        return Err(MapError::WrongType { map: name, expected: "perf_event_array", got });
    };
    MapDef::new(map.name(), MapType::RingBuf, 0, 0, bytes).validate()?;
    let fail = |errno| map.error(OP, errno);
    let entry = perf.entries.get(index as usize).ok_or(Errno::E2BIG).map_err(fail)?;
    map.writable(OP)?;
    let reservation = reserve(map.label(), map.domain(), map.account(), RingMemory::needed(bytes))?;
    let ring = Ring::new(bytes, Some(reservation)).map_err(fail)?;
    let consumer = RingBuf::attach(map, &ring, Some(index))?;
    let raw = Arc::into_raw(ring).cast_mut();
    let opened = map.write(OP, |_, _| {
        // Release pairs with the acquire in `output`: the ring is complete.
        let set = entry.compare_exchange(std::ptr::null_mut(), raw, Ordering::Release, Ordering::Relaxed);
        set.map(|_| ()).map_err(|_| Errno::EEXIST)
    });
    opened.inspect_err(|_| {
        // SAFETY: the reference made above, which was not stored.
        drop(unsafe { Arc::from_raw(raw.cast_const()) });
    })?;
    Ok(consumer)
}

impl AsFd for RingBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.event()
    }
}

impl Drop for RingBuf {
    fn drop(&mut self) {
        if !self.ring.memory.is_ours() {
            return;
        }
        if let Some(index) = self.perf_index {
            detach(&self.map, index, &self.ring);
        }
        // Release pairs with the acquire in `attach`.
        self.ring.attached.store(false, Ordering::Release);
        if self.perf_index.is_none() {
            self.map.gate().detach();
        }
        self.map.domain().tend();
    }
}

impl Ring {
    /// The record at `position`, if it is committed, and its length and flags.
    #[inline]
    fn committed(&self, position: u64) -> Option<(Header<'_>, u32)> {
        // Acquire pairs with the release in `reserve`: headers below are BUSY or committed.
        if position >= self.memory.producer().load(Ordering::Acquire) {
            return None;
        }
        let header = self.memory.header(position);
        // Acquire pairs with the exchange in `commit`: the data is complete.
        let len = header.len().load(Ordering::Acquire);
        (len & BUSY == 0).then_some((header, len))
    }

    /// The committed record at `position`, for a consumer that is about to sleep there.
    #[cold]
    fn committed_at_last(&self, position: u64) -> Option<(Header<'_>, u32)> {
        // Orders the store of our position before another look at the header. Pairs with the exchange in `commit`,
        // which orders the header before the producer's look at our position. So a producer that commits after this
        // look wakes us. The look at the producer position is covered as well: `reserve` stored it before, and on
        // x86-64 the exchange is a full barrier; on arm64 a release store stays before a SeqCst load.
        fence(Ordering::SeqCst);
        self.committed(position)
    }

    /// Gives everything before `position` back to the producers.
    #[inline]
    pub(super) fn advance(&self, position: u64) {
        // Release pairs with the acquire in `reserve`: this consumer has read the bytes that producers are going to
        // overwrite.
        self.memory.consumer().store(position, Ordering::Release);
    }
}

/// A record in place; dropping it consumes it.
#[derive(Debug)]
pub struct Record<'a> {
    ring: &'a Ring,
    data: *const u8,
    len: usize,
    next: u64,
}

// SAFETY: the bytes at `data` are read only, as `deref` says, and dropping the record is one atomic store to the ring,
// which is shared between threads anyhow. The consumer is borrowed, so the record is the only one.
unsafe impl Send for Record<'_> {}
// SAFETY: a shared record only gives out the bytes at `data` to be read, and nobody writes them before it is dropped.
unsafe impl Sync for Record<'_> {}

impl std::ops::Deref for Record<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a committed record: `len` bytes inside the mapping. No program writes them any more (the verifier
        // invalidates the pointer at submit), and no producer reuses them before `advance`, which happens on drop.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if self.ring.memory.is_ours() {
            self.ring.advance(self.next);
        }
    }
}
