//! Freezing a map: from then on the host cannot write to it (`BPF_MAP_FREEZE`).
//!
//! Problem: constants (`.rodata`) are set by the host before the programs are loaded; after that the verifier and the
//! compiler want to rely on them. So when a freeze has succeeded, no host write may come later, not even one that began
//! before.
//!
//! Approach, for arrays and rings: the kernel's. One word counts the host writes in progress; freezing exchanges a
//! count of zero for the mark and otherwise fails with `EBUSY`. It never waits, so that a program can be loaded while
//! others run. A memory file that was handed out may be mapped for writing by anybody, so such a map cannot be frozen;
//! freezing seals that of any other against writes (but for the mapping that programs use), and where the kernel cannot
//! (before Linux 5.1) it is never handed out. The host's end of a ring writes as long as it exists, as the kernel's
//! mapping of a ring does.
//!
//! For the other types, whose host writes come from many threads, a count would be a cache line they all fight for.
//! Each looks for the mark inside its run guard instead; freezing sets the mark and waits for a grace period.

use std::sync::atomic::{AtomicU32, Ordering};

use bpf_quiesce::{Domain, WaitError};

use crate::def::{MapType, flags};
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::map::Map;
use crate::sys;

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

impl WriteGate {
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        // Acquire pairs with the exchange in `freeze`: who sees the mark sees the final contents.
        self.0.load(Ordering::Acquire) & FROZEN != 0
    }

    fn begin(&self) -> OpResult<Writing<'_>> {
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
    fn freeze_uncounted(&self, domain: &Domain) -> OpResult {
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

    fn freeze(&self) -> OpResult {
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

impl Map {
    /// Freezes the map: every later write by the host (update, delete, batch, restore, a mapping for writing) fails
    /// with `EPERM`. Programs may still write, unless the map was created with [`flags::RDONLY_PROG`]; see
    /// [`Map::is_constant`]. Like the kernel's `BPF_MAP_FREEZE`, there is no way back.
    ///
    /// Arrays and rings never make it wait; for other types it waits for the runs that are in progress.
    ///
    /// ```
    /// use bpf_maps::{Map, MapDef, MapType, flags};
    /// use bpf_quiesce::{Domain, Options};
    ///
    /// let domain = Domain::new(Options::default());
    /// let map = Map::create(MapDef::new(".rodata", MapType::Array, 4, 8, 1).with_flags(flags::RDONLY_PROG), &domain)?;
    /// map.set(&[0; 4], &7u64.to_ne_bytes())?;
    /// map.freeze()?;
    /// assert!(map.is_constant());
    /// assert!(map.set(&[0; 4], &[0; 8]).is_err());
    /// # Ok::<(), bpf_maps::MapError>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTSUPP` for values with a spin lock; `EPERM` for a map the host may not write to, so also for a frozen one;
    /// `EBUSY` while the host writes to an array or has an end of a ring, if [`Map::mmap_fd`] was handed out, while
    /// another thread freezes the map, and, for types that make it wait, inside a run of the calling thread.
    pub fn freeze(&self) -> Result<(), MapError> {
        const OP: &str = "freeze";
        if self.def().spin_lock.is_some() {
            return Err(self.error(OP, Errno::ENOTSUPP));
        }
        self.writable(OP)?;
        // The memory file, which is sealed below, is the parent's too.
        self.check_process()?;
        let gate = self.gate();
        let frozen = if self.counts_writes() { gate.freeze() } else { gate.freeze_uncounted(self.domain()) };
        frozen.map_err(|errno| self.error(OP, errno))?;
        if let Some(file) = self.memory_file() {
            // Not to be had before Linux 5.1: then `mmap_fd` fails on the same call, and nobody gets the file.
            let _ = sys::seal_future_writes(file);
        }
        Ok(())
    }

    /// Whether the host may no longer write because of [`Map::freeze`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.gate().is_frozen()
    }

    /// Whether nobody can write to this map any more: it is frozen, and [`flags::RDONLY_PROG`] keeps programs from it.
    /// What is read from it now is what every later run will read.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.is_frozen() && self.def().flags & flags::RDONLY_PROG != 0
    }

    /// Whether host writes are counted, or look for the mark in their run guard.
    fn counts_writes(&self) -> bool {
        self.is_array() || matches!(self.map_type(), MapType::RingBuf | MapType::UserRingBuf)
    }

    /// Counts a host write for as long as the result lives, if they are counted.
    #[inline]
    pub(crate) fn begin_write(&self, op: &'static str) -> Result<Writing<'_>, MapError> {
        if !self.counts_writes() {
            return Ok(Writing(None));
        }
        self.gate().begin().map_err(|errno| self.error(op, errno))
    }
}
