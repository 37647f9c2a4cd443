//! Perf event arrays as sinks for events.
//!
//! In the kernel an entry is a perf event whose ring the host maps. Here an entry is a ring of its own, opened by the
//! host for one execution slot; `bpf_perf_event_output` writes to the entry of the slot it runs in.
//!
//! Invariant: an entry owns one reference to its ring, which is dropped a grace period after the entry was cleared.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use bpf_quiesce::Domain;

use super::Ring;
use crate::def::MapDef;
use crate::errno::{Errno, OpResult};
use crate::header::LookupFn;
use crate::map::Map;
use crate::mem::Table;
use crate::ops::MapOps;
use crate::queue::no_lookup;

/// The bits of the flags that hold an index.
const INDEX_MASK: u64 = 0xffff_ffff;
/// The index that stands for the slot the program runs in.
const CURRENT_CPU: u64 = 0xffff_ffff;
/// The bits of the flags that hold a number of context bytes.
const CONTEXT_LEN_MASK: u64 = 0xf_ffff << 32;

#[derive(Debug)]
pub(crate) struct PerfMap {
    /// Set by [`super::consumer::open`].
    pub(super) entries: Table<AtomicPtr<Ring>>,
    domain: Arc<Domain>,
}

impl PerfMap {
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        u64::from(def.max_entries) * size_of::<AtomicPtr<Ring>>() as u64
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>) -> OpResult<Self> {
        Ok(Self { entries: Table::zeroed(def.max_entries as usize)?, domain: Arc::clone(domain) })
    }

    /// `bpf_perf_event_output`: `data`, and as many bytes of `context` as the flags ask for.
    ///
    /// # Safety
    /// `data` must be readable for `size` bytes, and each piece that `context` returns for its length; the caller
    /// must be inside a guard of the map's domain.
    pub(crate) unsafe fn output<C: Iterator<Item = (*mut u8, usize)>>(
        &self,
        flags: u64,
        (data, size): (*const u8, usize),
        context: impl FnOnce(usize) -> C,
        context_size: usize,
        slot: u32,
    ) -> OpResult {
        let with_context = ((flags & CONTEXT_LEN_MASK) >> 32) as usize;
        if flags & !(INDEX_MASK | CONTEXT_LEN_MASK) != 0 || with_context > context_size {
            return Err(if with_context > context_size { Errno::EFAULT } else { Errno::EINVAL });
        }
        let index = match flags & INDEX_MASK {
            CURRENT_CPU => slot as usize,
            index => crate::num::index(index),
        };
        // Acquire pairs with the release in `open`.
        let ring = self.entries.get(index).ok_or(Errno::E2BIG)?.load(Ordering::Acquire);
        // SAFETY: an entry's ring lives until a grace period after it was cleared, and we are inside a guard
        // (contract).
        let ring = unsafe { ring.as_ref() }.ok_or(Errno::ENOENT)?;
        if index != slot as usize {
            return Err(Errno::EOPNOTSUPP);
        }
        let context = context(with_context).map(|(at, len)| (at.cast_const(), len));
        let parts = core::iter::once((data, size)).chain(context);
        let all = size.checked_add(with_context).ok_or(Errno::E2BIG)?;
        // SAFETY: `data` and the pieces are readable for their sizes, and the caller is inside a guard (contract).
        let done = unsafe { ring.output(all, parts, 0, slot) };
        // Perf rings call a full buffer ENOSPC.
        done.map_err(|errno| if errno == Errno::EAGAIN { Errno::ENOSPC } else { errno })
    }

    /// Clears an entry if it holds `only` (`None`: any ring); drops its reference after a grace period.
    fn clear(&self, index: u32, only: Option<*const Ring>) -> OpResult {
        let entry = self.entries.get(index as usize).ok_or(Errno::E2BIG)?;
        // Acquire, twice: dropping the ring reads it.
        let old = match only {
            Some(only) => entry
                .compare_exchange(only.cast_mut(), std::ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed)
                .unwrap_or(std::ptr::null_mut()),
            None => entry.swap(std::ptr::null_mut(), Ordering::Acquire),
        };
        if old.is_null() {
            return Err(Errno::ENOENT);
        }
        // SAFETY: `open` put the reference there, and we have taken it out.
        let ring = unsafe { Arc::from_raw(old.cast_const()) };
        self.domain.enqueue(move || drop(ring));
        Ok(())
    }
}

/// Clears the entry of a consumer that is dropped.
pub(super) fn detach(map: &Map, index: u32, ring: &Arc<Ring>) {
    if let Some(perf) = map.ops().as_any().downcast_ref::<PerfMap>() {
        // ENOENT: the host has deleted the entry before.
        let _ = perf.clear(index, Some(Arc::as_ptr(ring)));
    }
}

impl MapOps for PerfMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    fn host_value_size(&self) -> usize {
        4
    }

    fn lookup(&self, _key: &[u8], _out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::ENOTSUPP)
    }

    /// In the kernel the value is the descriptor of a perf event; here entries are opened with
    /// [`super::consumer::open`].
    fn update(&self, _key: &[u8], _value: &[u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn delete(&self, key: &[u8], _slot: u32) -> OpResult {
        let key = key.try_into().map_err(|_| Errno::EINVAL)?;
        self.clear(u32::from_ne_bytes(key), None)
    }

    fn len(&self) -> u64 {
        // Relaxed: a statistic.
        self.entries.iter().filter(|entry| !entry.load(Ordering::Relaxed).is_null()).count() as u64
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.entries) as u64
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        for entry in self.entries.iter() {
            // Relaxed: no other thread has the map.
            let old = entry.load(Ordering::Relaxed);
            if !old.is_null() {
                // SAFETY: the entry's own reference; no program uses a map that is being dropped.
                drop(unsafe { Arc::from_raw(old.cast_const()) });
            }
        }
    }
}
