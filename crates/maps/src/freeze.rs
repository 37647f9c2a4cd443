//! Freezing a map: afterwards the host cannot write to it (`BPF_MAP_FREEZE`).
//!
//! Problem: the host sets constants (`.rodata`) before the programs are loaded; the verifier and the compiler then
//! rely on them. So after a successful freeze no host write may take effect, not even one that began before.
//!
//! Approach for arrays and rings, as in the kernel: one word counts the host writes in progress. Freezing exchanges a
//! count of zero for the frozen mark and otherwise fails with `EBUSY`. It never waits, so a program can be loaded
//! while others run. A memory file that was given out may be mapped for writing by any process, so such a map cannot
//! be frozen. Freezing seals the file of any other map against writes, except for the mapping that programs use;
//! where the kernel cannot seal (before Linux 5.1) the file is not given out. The host's end of a ring counts as a
//! write for as long as it exists, like the kernel's mapping of a ring.
//!
//! Other types take host writes from many threads, which would contend for the cache line of a count. There each
//! write checks the mark inside its run guard; freezing sets the mark and waits for a grace period.

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
    /// Freezing arrays and rings never waits; for other types it waits for the runs in progress.
    ///
    /// ```
    /// use bpf_maps::{Map, MapDef, MapType, flags};
    /// use bpf_quiesce::{Domain, Options};
    ///
    /// let domain = Domain::new(Options::default());
    /// let map = Map::create(MapDef::new(".rodata", MapType::Array, 4, 8, 1).flags(flags::RDONLY_PROG), &domain)?;
    /// map.set(&[0; 4], &7u64.to_ne_bytes())?;
    /// map.freeze()?;
    /// assert!(map.is_constant());
    /// assert!(map.set(&[0; 4], &[0; 8]).is_err());
    /// # Ok::<(), bpf_maps::MapError>(())
    /// ```
    ///
    /// # Errors
    /// `ENOTSUPP` for values with a spin lock, a timer or objects. `EPERM` for a map that the host may not write to,
    /// such as a frozen one. `EBUSY` while the host writes to an array or has an end of a ring, if [`Map::mmap_fd`]
    /// was given out, while another thread freezes the map, and, for types whose freezing waits, inside a run of the
    /// calling thread.
    pub fn freeze(&self) -> Result<(), MapError> {
        const OP: &str = "freeze";
        if self.def().spin_lock.is_some() || self.def().deferred().next().is_some() || self.def().owned.is_some() {
            return Err(self.error(OP, Errno::ENOTSUPP));
        }
        self.writable(OP)?;
        // The memory file, which is sealed below, belongs to the parent process too.
        self.check_process()?;
        let gate = self.gate();
        let frozen = if self.counts_writes() { gate.freeze() } else { gate.freeze_uncounted(self.domain()) };
        frozen.map_err(|errno| self.error(OP, errno))?;
        if let Some(file) = self.memory_file() {
            // Fails before Linux 5.1. Then `mmap_fd` fails with this call too, and the file is not given out.
            let _ = seal(file, Seals::FutureWrites);
        }
        Ok(())
    }

    /// Whether [`Map::freeze`] has succeeded: the host cannot write.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.gate().is_frozen()
    }

    /// Whether no write to this map is possible: it is frozen, and [`flags::RDONLY_PROG`] forbids writes by programs.
    /// A value read from it is the value that every later run will read.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.is_frozen() && self.def().flags & flags::RDONLY_PROG != 0
    }
}
