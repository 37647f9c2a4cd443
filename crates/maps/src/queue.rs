//! Queues and stacks: values without keys, in a ring under one lock.
//!
//! The kernel uses a raw spin lock. The lock here yields and sleeps when its holder is preempted, and detects
//! re-entry on one execution slot (`EBUSY`). Positions change only under the lock. Values are nevertheless copied as
//! atomic words, because programs access map memory without it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::def::{MapDef, MapType, update};
use crate::errno::{Errno, OpResult};
use crate::header::{LookupFn, MapHeader};
use crate::lock::SlotLock;
use crate::mem::{self, Table, round_up8};
use crate::ops::{Cursor, MapOps};
use crate::value::{Shape, Source};

#[derive(Debug)]
pub(crate) struct QueueMap {
    shape: Shape,
    max_entries: u32,
    /// Whether the next value is the newest.
    newest_first: bool,
    lock: SlotLock,
    /// Index of the oldest value. Only the lock's holder accesses it, so all accesses are relaxed.
    oldest: AtomicU32,
    /// Number of values. Changed under the lock, as `oldest`.
    count: AtomicU32,
    words: Table<AtomicU64>,
}

impl QueueMap {
    /// Bytes a queue of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        round_up8(def.value_size as usize) as u64 * u64::from(def.max_entries)
    }

    pub(crate) fn new(def: &MapDef) -> OpResult<Self> {
        let shape = Shape::of(def);
        let words = shape.words().checked_mul(def.max_entries as usize).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            shape,
            max_entries: def.max_entries,
            newest_first: def.map_type == MapType::Stack,
            lock: SlotLock::default(),
            oldest: AtomicU32::new(0),
            count: AtomicU32::new(0),
            words: Table::zeroed(words)?,
        })
    }

    /// The `n`th value, counted from the oldest.
    fn value(&self, oldest: u32, n: u32) -> &[AtomicU64] {
        // Both are below `max_entries`, so one subtraction replaces the remainder.
        let (index, max) = (u64::from(oldest) + u64::from(n), u64::from(self.max_entries));
        let start = crate::num::index(if index < max { index } else { index - max }) * self.shape.words();
        &self.words[start..start + self.shape.words()]
    }

    /// Passes the next value, if there is one, to `copy`, and removes it if `remove` is set.
    fn next<T>(&self, remove: bool, slot: u32, copy: impl FnOnce(Option<&[AtomicU64]>) -> T) -> OpResult<T> {
        let _lock = self.lock.lock(slot)?;
        let (oldest, count) = (self.oldest.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        let Some(rest) = count.checked_sub(1) else { return Ok(copy(None)) };
        let result = copy(Some(self.value(oldest, if self.newest_first { rest } else { 0 })));
        if remove {
            if !self.newest_first {
                self.oldest.store(self.after(oldest), Ordering::Relaxed);
            }
            self.count.store(rest, Ordering::Relaxed);
        }
        Ok(result)
    }

    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.max_entries { 0 } else { index + 1 }
    }

    fn next_to_host(&self, out: &mut [u8], remove: bool, slot: u32) -> OpResult {
        self.next(remove, slot, |value| value.map(|words| mem::load_bytes(words, out)).ok_or(Errno::ENOENT))?
    }
}

/// The lookup function of types that programs cannot look up: returns null.
///
/// # Safety
/// None needed.
pub(crate) unsafe extern "C" fn no_lookup(_map: *const MapHeader, _key: *const u8, _slot: u32) -> *mut u8 {
    std::ptr::null_mut()
}

impl MapOps for QueueMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    fn host_value_size(&self) -> usize {
        self.shape.size
    }

    unsafe fn program_update(&self, _key: *const u8, _value: *const u8, _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    unsafe fn program_delete(&self, _key: *const u8, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    unsafe fn push(&self, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        if flags & update::NOEXIST != 0 || flags > update::EXIST {
            return Err(Errno::EINVAL);
        }
        let _lock = self.lock.lock(slot)?;
        let (mut oldest, mut count) = (self.oldest.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        if count == self.max_entries {
            if flags & update::EXIST == 0 {
                return Err(Errno::E2BIG);
            }
            // EXIST: make room by dropping the oldest value.
            oldest = self.after(oldest);
            count -= 1;
        }
        // SAFETY: the caller promises that a program's source is readable for the value size.
        unsafe { self.shape.write(self.value(oldest, count), value) };
        self.oldest.store(oldest, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn next_value(&self, out: *mut u8, remove: bool, slot: u32) -> OpResult {
        let copied = self.next(remove, slot, |value| {
            // SAFETY: writable for the value size (contract).
            value.map(|words| unsafe { mem::load_to_program(words, out, self.shape.size) }).ok_or(Errno::ENOENT)
        });
        let result = copied.and_then(|copied| copied);
        if result.is_err() {
            // The kernel clears the program's buffer when there is nothing to copy. Here it is cleared too where an
            // interrupted run holds the queue, because the verifier treats the buffer as written.
            // SAFETY: the caller's buffer is writable for a value.
            unsafe { mem::zero_program(out, self.shape.size) };
        }
        result
    }

    fn lookup(&self, _key: &[u8], out: &mut [u8], _flags: u64, slot: u32) -> OpResult {
        self.next_to_host(out, false, slot)
    }

    fn update(&self, _key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
        unsafe { self.push(Source::Host(value), flags, slot) }
    }

    fn delete(&self, _key: &[u8], _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn lookup_and_delete(&self, _key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        self.next_to_host(out, true, slot)
    }

    fn next_key(&self, _key: Option<&[u8]>, _out: &mut [u8]) -> OpResult {
        Err(Errno::EINVAL)
    }

    /// Values in the order in which they would be taken, without taking them.
    fn next_at(&self, cursor: &mut Cursor, _key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        let _lock = self.lock.lock(slot)?;
        let (oldest, count) = (self.oldest.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        let n = u32::try_from(cursor.position).ok().filter(|&n| n < count).ok_or(Errno::ENOENT)?;
        mem::load_bytes(self.value(oldest, if self.newest_first { count - 1 - n } else { n }), value);
        cursor.position += 1;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed).into()
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }
}
