//! User ring buffers: the host produces, programs drain.
//!
//! Positions and headers are those of a ring buffer with the roles exchanged. There is one host producer, and at most
//! one program drains at a time; a second gets `EBUSY`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{BUSY, DISCARD, Deadline, MAX_RECORD, Ring, RingMap, stride, wakeup};
use crate::def::MapType;
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::map::Map;

/// The kernel's `BPF_MAX_USER_RINGBUF_SAMPLES`: records in one drain.
pub(crate) const MAX_SAMPLES: u64 = 128 * 1024;

/// Clears the flag of a drain, on unwinding too.
struct Draining<'a>(&'a AtomicBool);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        // Release pairs with the acquire in `drain`: the next drain sees the position.
        self.0.store(false, Ordering::Release);
    }
}

impl Ring {
    /// Passes records to `visit` until it returns false or there are none. Returns the number of records that were
    /// not discarded.
    pub(crate) fn drain(&self, flags: u64, visit: &mut dyn FnMut(*mut u8, u32) -> bool) -> OpResult<u64> {
        if flags & !(wakeup::NO_WAKEUP | wakeup::FORCE_WAKEUP) != 0 {
            return Err(Errno::EINVAL);
        }
        // Acquire pairs with the release of the previous drain.
        if self.draining.swap(true, Ordering::Acquire) {
            return Err(Errno::EBUSY);
        }
        let draining = Draining(&self.draining);
        let (mut taken, mut visited, mut go_on) = (0, 0, true);
        while taken < MAX_SAMPLES && go_on {
            let Some((data, len, next)) = self.peek()? else { break };
            taken += 1;
            if let Some(data) = data {
                visited += 1;
                go_on = visit(data, len);
            }
            // Release pairs with the producer's acquire: the program has finished with the record.
            self.memory.consumer().store(next, Ordering::Release);
        }
        drop(draining);
        if flags & wakeup::FORCE_WAKEUP != 0 || (taken > 0 && flags & wakeup::NO_WAKEUP == 0) {
            self.notify();
        }
        Ok(visited)
    }

    /// The next committed record (`None` inside: discarded) and the position after it.
    fn peek(&self) -> OpResult<Option<(Option<*mut u8>, u32, u64)>> {
        // Relaxed: only the draining thread moves it, and drains are ordered by their flag.
        let position = self.memory.consumer().load(Ordering::Relaxed);
        // Acquire pairs with the release in `UserRingBuf::reserve`.
        let producer = self.memory.producer().load(Ordering::Acquire);
        if !producer.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        if position >= producer {
            return Ok(None);
        }
        let header = self.memory.header(position);
        // Acquire pairs with the release in `Sample::commit`: the data is complete.
        let word = header.len().load(Ordering::Acquire);
        let len = word & !(BUSY | DISCARD);
        let stride = stride(len.into());
        if stride > producer - position {
            return Err(Errno::EINVAL);
        }
        if stride > self.memory.size() as u64 {
            return Err(Errno::E2BIG);
        }
        if word & BUSY != 0 {
            return Ok(None);
        }
        Ok(Some(((word & DISCARD == 0).then(|| header.data()), len, position + stride)))
    }
}

/// The host producer of a user ring buffer. There is one at a time.
#[derive(Debug)]
pub struct UserRingBuf {
    ring: Arc<Ring>,
    map: Map,
}

impl UserRingBuf {
    /// Becomes the producer of `map`.
    ///
    /// # Errors
    /// [`MapError::WrongType`]; `EBUSY` if there is a producer already; `EPERM` if the map is frozen.
    pub fn new(map: &Map) -> Result<Self, MapError> {
        let (MapType::UserRingBuf, Some(user)) = (map.map_type(), map.ops().as_any().downcast_ref::<RingMap>()) else {
            let (map_name, got) = (map.name().to_owned(), map.map_type());
            return Err(MapError::WrongType { map: map_name, expected: "user_ringbuf", got });
        };
        map.check_process()?;
        let writing = map.begin_write("becoming the producer")?;
        // Acquire pairs with the release in `drop`.
        if user.ring.attached.swap(true, Ordering::Acquire) {
            return Err(map.error("becoming the producer", Errno::EBUSY));
        }
        // `drop` ends the counted write.
        std::mem::forget(writing);
        Ok(Self { ring: Arc::clone(&user.ring), map: map.clone() })
    }

    /// Reserves a record of `size` bytes, or `None` if there is no room now (or ever: larger than the ring).
    ///
    /// Returns `None` in a forked child, because the ring belongs to the parent. A record reserved before the fork is
    /// unusable in the child: dropping it does nothing, and writing to it faults.
    pub fn reserve(&mut self, size: u32) -> Option<Sample<'_>> {
        let memory = &self.ring.memory;
        if !memory.is_ours() || u64::from(size) > MAX_RECORD || stride(size.into()) > memory.size() as u64 {
            return None;
        }
        // Acquire pairs with the release in `drain`: the program has finished with the bytes that are reused here.
        let consumer = memory.consumer().load(Ordering::Acquire);
        // Relaxed: only this producer moves it.
        let producer = memory.producer().load(Ordering::Relaxed);
        let end = producer + stride(size.into());
        if end - consumer > memory.size() as u64 {
            return None;
        }
        let header = memory.header(producer);
        // Relaxed: published by the producer position.
        header.len().store(size | BUSY, Ordering::Relaxed);
        // Release pairs with the acquire in `peek`.
        memory.producer().store(end, Ordering::Release);
        Some(Sample { ring: &self.ring, position: producer, len: size as usize, committed: false })
    }

    /// Waits until there is room for a record of `size` bytes; `None` if the timeout ends first, or if the ring is
    /// too small.
    ///
    /// # Errors
    /// Returns the errors of `poll(2)`, and fails in a forked child.
    pub fn reserve_blocking(&mut self, size: u32, timeout: Option<Duration>) -> std::io::Result<Option<Sample<'_>>> {
        self.ring.check_process()?;
        let deadline = Deadline::after(timeout);
        if stride(size.into()) > self.ring.memory.size() as u64 {
            return Ok(None);
        }
        loop {
            self.ring.clear_event();
            if self.has_room(size) || !self.ring.wait(deadline)? {
                return Ok(self.reserve(size));
            }
        }
    }

    fn has_room(&self, size: u32) -> bool {
        let memory = &self.ring.memory;
        // Acquire and relaxed as in `reserve`.
        let consumer = memory.consumer().load(Ordering::Acquire);
        let producer = memory.producer().load(Ordering::Relaxed);
        producer + stride(size.into()) - consumer <= memory.size() as u64
    }
}

impl Drop for UserRingBuf {
    fn drop(&mut self) {
        if !self.ring.memory.is_ours() {
            return;
        }
        // Release pairs with the acquire in `new`.
        self.ring.attached.store(false, Ordering::Release);
        self.map.gate().detach();
    }
}

/// A reserved record: write to it, then [`Sample::submit`]. Dropping it discards it.
#[derive(Debug)]
pub struct Sample<'a> {
    ring: &'a Ring,
    position: u64,
    /// Bytes of the record, at most `MAX_RECORD`.
    len: usize,
    committed: bool,
}

impl Sample<'_> {
    /// Gives the record to the programs.
    pub fn submit(mut self) {
        self.commit(crate::num::small(self.len));
    }

    fn commit(&mut self, word: u32) {
        self.committed = true;
        if self.ring.memory.is_ours() {
            // Release pairs with the acquire in `peek`.
            self.ring.memory.header(self.position).len().store(word, Ordering::Release);
        }
    }
}

impl std::ops::Deref for Sample<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let data = self.ring.memory.header(self.position).data();
        // SAFETY: the record is BUSY: `len` bytes inside the mapping that only this sample accesses.
        unsafe { std::slice::from_raw_parts(data, self.len) }
    }
}

impl std::ops::DerefMut for Sample<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let data = self.ring.memory.header(self.position).data();
        // SAFETY: the record is BUSY: `len` bytes inside the mapping that only this sample accesses, and it is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(data, self.len) }
    }
}

impl Drop for Sample<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.commit(crate::num::small(self.len) | DISCARD);
        }
    }
}
