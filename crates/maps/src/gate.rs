//! Who may write to a map, and whether that is over: the word behind [`crate::Map::freeze`], which says how it is used.

use std::sync::atomic::{AtomicU32, Ordering};

use bpf_quiesce::{Domain, WaitError};

use crate::errno::{Errno, OpResult};

const FROZEN: u32 = 1 << 31;
/// The memory file was handed out.
const LENT: u32 = 1 << 30;
/// A freeze waits for the writes that began before it.
const FREEZING: u32 = 1 << 29;

/// Writes in progress, or the mark of a frozen map.
#[derive(Debug, Default)]
pub(crate) struct WriteGate(AtomicU32);

/// A host write in progress.
pub(crate) struct Writing<'a>(Option<&'a WriteGate>);

impl Writing<'_> {
    /// Of a map whose writes are not counted.
    pub(crate) const UNCOUNTED: Writing<'static> = Writing(None);
}

impl WriteGate {
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        // Acquire pairs with the exchange in `freeze`: who sees the mark sees the final contents.
        self.0.load(Ordering::Acquire) & FROZEN != 0
    }

    /// Counts a write for as long as the result lives.
    pub(crate) fn begin(&self) -> OpResult<Writing<'_>> {
        self.attach()?;
        Ok(Writing(Some(self)))
    }

    /// Counts a write that lasts until [`WriteGate::detach`].
    pub(crate) fn attach(&self) -> OpResult {
        // Relaxed: the exchange in `freeze` is on the same word, so either it sees this write or this write sees the
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

    /// Whether a write under a run guard may go on, in a map whose writes are not counted.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: a guard that began before the grace period of `freeze_uncounted` is waited for, a later one sees the
        // mark.
        self.0.load(Ordering::Relaxed) & (FROZEN | FREEZING) == 0
    }

    /// Freezes a map whose writes are not counted.
    pub(crate) fn freeze_uncounted(&self, domain: &Domain) -> OpResult {
        // Asked before the mark is set, which others see: a freeze that cannot be must not fail their writes. Its own
        // run may be writing.
        if domain.in_guard() || domain.is_forked() {
            return Err(Errno::EBUSY);
        }
        // Relaxed: `synchronize` orders the mark before the writes that it does not wait for.
        self.0.compare_exchange(0, FREEZING, Ordering::Relaxed, Ordering::Relaxed).map_err(|_| Errno::EBUSY)?;
        let waited = domain.synchronize();
        // Release pairs with `is_frozen`.
        self.0.store(if waited.is_ok() { FROZEN } else { 0 }, Ordering::Release);
        waited.map_err(|error| match error {
            WaitError::Barrier(errno) => Errno(errno),
            _ => Errno::EBUSY,
        })
    }

    /// Notes that the memory file is handed out. True if it may be mapped for writing: then the map can no longer be
    /// frozen.
    pub(crate) fn lend(&self) -> bool {
        // Relaxed: a mark that stays, on the word that `freeze` exchanges.
        self.0.fetch_or(LENT, Ordering::Relaxed) & FROZEN == 0
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
