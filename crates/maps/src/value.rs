//! Values in shared memory: their shape, and copies that respect a spin lock and a timer inside them.
//!
//! A `struct bpf_spin_lock` in a value belongs to the map: copies in leave it alone and copies out show it as zero, as
//! in the kernel. With `BPF_F_LOCK` the copy happens under that lock. In maps with a lock even the first write into a
//! recycled element takes it, so that a locked writer that was overtaken by a delete never writes into the next
//! key's value ([`crate::hash`] relies on it).
//!
//! A `struct bpf_timer` or `struct bpf_wq` is written by the runtime; 0 in its first word means that there is none. A
//! copy in writes that 0 and so ends the timer: an element that is reused or overwritten does not keep the timer of
//! the previous value. A copy out shows it as zero.
//!
//! Pointers to objects, lists and trees ([`crate::owned`]) are changed by programs only. A copy in leaves them alone,
//! a copy out shows them as zero. Code that overwrites a value, removes it from its map, or is about to reuse its
//! memory calls [`Shape::let_go`], which releases the objects that the value owns. A program that still has a removed
//! value may store an object in it; that object is released with the next value, or with the map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::def::{MapDef, update};
use crate::errno::{Errno, OpResult};
use crate::lock::ValueLock;
use crate::mem::{self, WORD, words_for};
use crate::owned::Leaving;
use crate::slots::Slots;
use bpf_uapi::{OwnedField, TIMER_BYTES};

/// The source of a value's bytes.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A host slice of the value size.
    Host(&'a [u8]),
    /// A host slice for these slots of a per-CPU map.
    Slots(&'a [u8], Slots),
    /// Memory of a program, readable for the value size.
    Program(*const u8),
}

impl Source<'_> {
    /// The address of the first byte. A host slice is readable for its length, which the handle has compared with the
    /// value size.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> *const u8 {
        match *self {
            Source::Host(bytes) | Source::Slots(bytes, _) => bytes.as_ptr(),
            Source::Program(bytes) => bytes,
        }
    }
}

/// The shape of a map's values.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Bytes of a value.
    pub(crate) size: usize,
    /// Byte offset of the lock.
    lock: Option<usize>,
    /// Whether the lock is a resilient one, which an update cannot be asked to take.
    resilient: bool,
    /// Byte offsets of the timer and of the work queue.
    deferred: [Option<usize>; 2],
    /// The fields that own objects.
    owned: Option<Arc<[OwnedField]>>,
}

/// Bytes of a timer, and of a work queue.
const TIMER: usize = TIMER_BYTES as usize;

impl Shape {
    pub(crate) fn of(def: &MapDef) -> Self {
        let at = |offset: Option<u32>| offset.map(|offset| offset as usize);
        let owned = (!def.owned_fields().is_empty()).then(|| def.owned_fields().into());
        Self {
            size: def.value_size as usize,
            lock: at(def.spin_lock),
            resilient: def.resilient_lock,
            deferred: [at(def.timer), at(def.work)],
            owned,
        }
    }

    /// Words of a value.
    pub(crate) fn words(&self) -> usize {
        words_for(self.size)
    }

    pub(crate) fn has_lock(&self) -> bool {
        self.lock.is_some()
    }

    /// Whether some bytes of a value are not copied as they are.
    pub(crate) fn has_fields(&self) -> bool {
        self.lock.is_some() || self.deferred != [None; 2] || self.owned.is_some()
    }

    fn owned(&self) -> &[OwnedField] {
        self.owned.as_deref().unwrap_or(&[])
    }

    /// Releases the objects that a value owns. Lists and trees are emptied under their lock: where an interrupted run
    /// of this slot holds it, they stay until the next call.
    #[inline]
    pub(crate) fn let_go(&self, words: &[AtomicU64], slot: u32) {
        if self.owned.is_some() {
            self.let_go_slowly(words, Some(slot));
        }
    }

    /// Releases the objects of a value that no other thread has any more.
    #[inline]
    pub(crate) fn let_go_alone(&self, words: &[AtomicU64]) {
        if self.owned.is_some() {
            self.let_go_slowly(words, None);
        }
    }

    /// Whether values can own objects.
    pub(crate) fn owns(&self) -> bool {
        self.owned.is_some()
    }

    #[cold]
    fn let_go_slowly(&self, words: &[AtomicU64], slot: Option<u32>) {
        let value = words.as_ptr().expose_provenance() as u64;
        let mut leaving = Leaving::nothing();
        let mut take = |roots: bool| {
            for field in self.owned().iter().filter(|field| field.kind.is_root() == roots) {
                // SAFETY: a field of a map's value, inside it as its definition was checked; roots are emptied under
                // the lock below, or where no other thread has the value.
                unsafe { leaving.take(value + u64::from(field.offset), field.kind) };
            }
        };
        take(false);
        // The lock is taken only if needed, because taking it is a store that other threads see.
        let holds = |field: &&OwnedField| words[field.offset as usize / WORD].load(Ordering::Relaxed) != 0;
        if self.owned().iter().filter(|field| field.kind.is_root()).any(|field| holds(&field)) {
            match slot {
                Some(slot) => {
                    let _ = self.locked(words, slot, || take(true));
                }
                None => take(true),
            }
        }
        leaving.give_up();
    }

    /// Checks the update flags every map has: at most `EXIST`, and `F_LOCK` only with a lock.
    pub(crate) fn check_flags(&self, flags: u64) -> OpResult {
        let lock_fits = flags & update::F_LOCK == 0 || (self.has_lock() && !self.resilient);
        if flags & !update::F_LOCK > update::EXIST || !lock_fits { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Copies a value in.
    ///
    /// # Safety
    /// A program's source must be readable for the value size.
    #[inline]
    pub(crate) unsafe fn write(&self, words: &[AtomicU64], source: Source<'_>) {
        if self.has_fields() {
            // SAFETY: readable for the value size (contract).
            unsafe { self.write_around(words, source.bytes()) }
        } else {
            // SAFETY: the caller promises that a program's source is readable for the value size.
            unsafe { self.write_unlocked(words, source) }
        }
    }

    /// Copies a value without a lock or a timer in.
    ///
    /// # Safety
    /// As [`Shape::write`].
    #[inline(always)]
    pub(crate) unsafe fn write_unlocked(&self, words: &[AtomicU64], source: Source<'_>) {
        // SAFETY: readable for the value size (contract).
        unsafe { mem::store_from_program(words, source.bytes(), self.size) }
    }

    /// # Safety
    /// `bytes` must be readable for the value size.
    #[cold]
    unsafe fn write_around(&self, words: &[AtomicU64], bytes: *const u8) {
        let deferred = self.deferred.map(|at| at.map_or(0..0, |at| at / WORD..(at + TIMER) / WORD));
        let mut owned = self.owned().iter().peekable();
        for (i, word) in words.iter().enumerate().take(self.words()) {
            // SAFETY: readable for the value size (contract), and `i` is below its words.
            let new = unsafe { mem::load_program_word(bytes, i, self.size) };
            // All owning fields are whole words.
            while owned.next_if(|field| field.end() as usize <= i * WORD).is_some() {}
            if owned.peek().is_some_and(|field| field.offset as usize <= i * WORD) {
                continue;
            }
            match self.lock {
                _ if deferred.iter().any(|words| words.contains(&i)) => word.store(0, Ordering::Relaxed),
                Some(lock) if lock / WORD == i => store_around(word, new, lock_mask(lock)),
                _ => word.store(new, Ordering::Relaxed),
            }
        }
    }

    /// Copies a value out to the host, its lock and its timer as zero.
    #[inline]
    pub(crate) fn read(&self, words: &[AtomicU64], out: &mut [u8]) {
        mem::load_bytes(words, out);
        if let Some(lock) = self.lock {
            out[lock..lock + 4].fill(0);
        }
        for at in self.deferred.into_iter().flatten() {
            out[at..at + TIMER].fill(0);
        }
        for field in self.owned() {
            out[field.offset as usize..field.end() as usize].fill(0);
        }
    }

    /// Runs `copy` under the value's lock, if it has one; `EBUSY` where this slot holds the lock already.
    #[inline]
    pub(crate) fn locked<T>(&self, words: &[AtomicU64], slot: u32, copy: impl FnOnce() -> T) -> OpResult<T> {
        let Some(offset) = self.lock else { return Ok(copy()) };
        let half = words[offset / WORD].as_ptr().cast::<u32>();
        // SAFETY: the offset is a multiple of 4 inside the value (checked at creation), so within this word.
        let half = unsafe { half.add(offset % WORD / 4) };
        // SAFETY: aligned, and as long-lived as the words. The word is also accessed whole; both accesses are atomic,
        // which suffices for the hardware (machine code accesses the memory in this way too).
        let lock = ValueLock::new(unsafe { AtomicU32::from_ptr(half) });
        if !lock.lock(slot) {
            return Err(Errno::EBUSY);
        }
        let result = copy();
        lock.unlock(slot);
        Ok(result)
    }
}

/// The bits of the lock in its word.
fn lock_mask(offset: usize) -> u64 {
    let mut bytes = [0u8; WORD];
    bytes[offset % WORD..offset % WORD + 4].fill(0xff);
    u64::from_ne_bytes(bytes)
}

/// Stores the bits outside `keep`.
fn store_around(word: &AtomicU64, new: u64, keep: u64) {
    // Relaxed: the caller's protocol publishes values; this only must not lose a concurrent change of the lock.
    let merged = |old| Some(old & keep | new & !keep);
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
}
