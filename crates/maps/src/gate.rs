//! The word behind [`crate::Map::freeze`]: counts host writes in progress, or marks the map as frozen.

use std::sync::atomic::{AtomicU32, Ordering};

use bpf_quiesce::{Domain, WaitError};

use crate::errno::{Errno, OpResult};

const FROZEN: u32 = 1 << 31;
/// The memory file was given out.
const LENT: u32 = 1 << 30;
/// A freeze is waiting for the writes that began before it.
const FREEZING: u32 = 1 << 29;

/// Writes in progress, or the mark of a frozen map.
#[derive(Debug, Default)]
pub(crate) struct WriteGate(AtomicU32);

/// A host write in progress.
pub(crate) struct Writing<'a>(Option<&'a WriteGate>);

impl Writing<'_> {
    /// A write in a map whose writes are not counted.
    pub(crate) const UNCOUNTED: Writing<'static> = Writing(None);
}

impl WriteGate {
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        // Acquire pairs with the exchange in `freeze`: a thread that sees the mark sees the final contents.
        self.0.load(Ordering::Acquire) & FROZEN != 0
    }

    /// Counts a write until the result is dropped.
    pub(crate) fn begin(&self) -> OpResult<Writing<'_>> {
        self.attach()?;
        Ok(Writing(Some(self)))
    }

    /// Counts a write that lasts until [`WriteGate::detach`].
    pub(crate) fn attach(&self) -> OpResult {
        // Relaxed: the exchange in `freeze` is on this word too, so either it sees this write or this write sees the
        // mark.
        if self.0.fetch_add(1, Ordering::Relaxed) & FROZEN != 0 {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Ends a write that [`WriteGate::attach`] has counted.
    pub(crate) fn detach(&self) {
        // Release pairs with the acquire in `freeze`.
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether a write under a run guard may proceed, in a map whose writes are not counted.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: `freeze_uncounted` waits for a guard that began before its grace period; a later guard sees the
        // mark.
        self.0.load(Ordering::Relaxed) & (FROZEN | FREEZING) == 0
    }

    /// Freezes a map whose writes are not counted.
    pub(crate) fn freeze_uncounted(&self, domain: &Domain) -> OpResult {
        // Checked before other threads can see the mark, because a freeze that cannot succeed must not fail their
        // writes. A run of the calling thread may itself be writing.
        if domain.in_guard() || domain.is_forked() {
            return Err(Errno::EBUSY);
        }
        // Relaxed: `synchronize` orders the mark before all writes that it does not wait for.
        self.0.compare_exchange(0, FREEZING, Ordering::Relaxed, Ordering::Relaxed).map_err(|_| Errno::EBUSY)?;
        let waited = domain.synchronize();
        // Release pairs with `is_frozen`.
        self.0.store(if waited.is_ok() { FROZEN } else { 0 }, Ordering::Release);
        waited.map_err(|error| match error {
            WaitError::Barrier(errno) => Errno(errno),
            _ => Errno::EBUSY,
        })
    }

    /// Marks the memory file as given out. True if the file may be mapped for writing: then the map cannot be frozen
    /// any more.
    pub(crate) fn lend(&self) -> bool {
        // Relaxed: a permanent mark, on the word that `freeze` exchanges.
        self.0.fetch_or(LENT, Ordering::Relaxed) & FROZEN == 0
    }

    /// Whether the memory file was given out.
    pub(crate) fn is_lent(&self) -> bool {
        // Relaxed: a permanent mark; a thread that asks about another thread's call is synchronised with that thread.
        self.0.load(Ordering::Relaxed) & LENT != 0
    }

    /// Freezes a map whose writes are counted.
    pub(crate) fn freeze(&self) -> OpResult {
        // Acquire pairs with the release in `detach`: the contents are what the last writes left. Release pairs with
        // `is_frozen`.
        let frozen = self.0.compare_exchange(0, FROZEN, Ordering::AcqRel, Ordering::Relaxed);
        if frozen.is_ok() { Ok(()) } else { Err(Errno::EBUSY) }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.detach();
        }
    }
}
