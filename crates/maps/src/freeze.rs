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

use bpf_os::file::{Seals, seal};

use crate::def::flags;
use crate::errno::Errno;
use crate::error::MapError;
use crate::map::Map;

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
    /// `ENOTSUPP` for values with a spin lock, a timer or objects; `EPERM` for a map the host may not write to, so also
    /// for a frozen one; `EBUSY` while the host writes to an array or has an end of a ring, if [`Map::mmap_fd`] was
    /// handed out, while another thread freezes the map, and, for types that make it wait, inside a run of the calling
    /// thread.
    pub fn freeze(&self) -> Result<(), MapError> {
        const OP: &str = "freeze";
        if self.def().spin_lock.is_some() || self.def().deferred().next().is_some() || self.def().owned.is_some() {
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
            let _ = seal(file, Seals::FutureWrites);
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
}
