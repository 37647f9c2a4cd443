//! Freezing an array: from then on the host cannot write to it (`BPF_MAP_FREEZE`).
//!
//! Problem: constants (`.rodata`) are set by the host before the programs are loaded; after that the verifier and the compiler want
//! to rely on them. So when a freeze has succeeded, no host write may come later, not even one that began before.
//!
//! Approach: the kernel's. One word counts the host writes in progress; freezing exchanges a count of zero for the mark and
//! otherwise fails with `EBUSY`. It never waits, so that a program can be loaded while others run. A memory file that
//! was handed out may be mapped for writing by anybody, so such a map cannot be frozen; that of a frozen map is
//! sealed before it is handed out.
//!
//! Only arrays can be frozen: their writes pay for the count, and hashes have nothing to rely on.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::def::flags;
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::map::Map;

const FROZEN: u32 = 1 << 31;
/// The memory file was handed out.
const LENT: u32 = 1 << 30;

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
        // Relaxed: the exchange in `freeze` is on the same word, so either it sees this write or this write sees the mark.
        if self.0.fetch_add(1, Ordering::Relaxed) & FROZEN != 0 {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EPERM);
        }
        Ok(Writing(Some(self)))
    }

    /// Notes that the memory file is handed out. True if it may be mapped for writing: then the map can no longer be frozen.
    pub(crate) fn lend(&self) -> bool {
        // Relaxed: a mark that stays, on the word that `freeze` exchanges.
        self.0.fetch_or(LENT, Ordering::Relaxed) & FROZEN == 0
    }

    fn freeze(&self) -> OpResult {
        // Acquire pairs with the release in `Writing::drop`: the contents are what the last writes left. Release pairs with
        // `is_frozen`.
        let frozen = self.0.compare_exchange(0, FROZEN, Ordering::AcqRel, Ordering::Relaxed);
        if frozen.is_ok() { Ok(()) } else { Err(Errno::EBUSY) }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            // Release pairs with the acquire in `freeze`.
            gate.0.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Map {
    /// Freezes an array: every later write by the host (update, batch, restore, a mapping for writing) fails with `EPERM`. Programs may
    /// still write, unless the map was created with [`flags::RDONLY_PROG`]; see [`Map::is_constant`]. Like the kernel's
    /// `BPF_MAP_FREEZE`, there is no way back.
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
    /// `ENOTSUPP` for other types and for values with a spin lock; `EPERM` for a map the host may not write to, so also for a frozen
    /// one; `EBUSY` while the host writes, or if [`Map::mmap_fd`] was handed out.
    pub fn freeze(&self) -> Result<(), MapError> {
        const OP: &str = "freeze";
        if !self.is_array() || self.def().spin_lock.is_some() {
            return Err(self.error(OP, Errno::ENOTSUPP));
        }
        self.writable(OP)?;
        self.gate().freeze().map_err(|errno| self.error(OP, errno))
    }

    /// Whether the host may no longer write because of [`Map::freeze`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.gate().is_frozen()
    }

    /// Whether nobody can write to this map any more: it is frozen, and [`flags::RDONLY_PROG`] keeps programs from it. What is read
    /// from it now is what every later run will read.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.is_frozen() && self.def().flags & flags::RDONLY_PROG != 0
    }

    /// Counts a host write for as long as the result lives.
    #[inline]
    pub(crate) fn begin_write(&self, op: &'static str) -> Result<Writing<'_>, MapError> {
        if !self.is_array() {
            return Ok(Writing(None));
        }
        self.gate().begin().map_err(|errno| self.error(op, errno))
    }
}
