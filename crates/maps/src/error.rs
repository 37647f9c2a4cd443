//! Errors of the host API: the kernel's number, and a message that says what was expected.

use crate::errno::Errno;
use bpf_quiesce::OtherDomain;
use bpf_uapi::MapType;

/// Why a map could not be created or an operation on one failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The map type exists in the kernel (or nowhere) but not here.
    #[error("map type {number} ({name}) is not supported")]
    Unsupported {
        /// The kernel's number.
        number: u32,
        /// The kernel's name.
        name: &'static str,
    },
    /// The definition is not one the type allows.
    #[error("map {map:?} ({}): expected {expected}", map_type.name())]
    InvalidDef {
        /// The map's name.
        map: String,
        /// Its type.
        map_type: MapType,
        /// The kernel's error number.
        errno: i32,
        /// What would have been accepted, and what was given.
        expected: String,
    },
    /// The map would need more memory than the limit; nothing was allocated.
    #[error("map {map:?} needs {needed} bytes; the limit is {limit}")]
    MemoryLimit {
        /// The map's name.
        map: String,
        /// Bytes needed.
        needed: u64,
        /// The configured limit.
        limit: u64,
    },
    /// The map would need more memory than is left to the maps and tables of its domain; nothing was allocated.
    #[error("map {map:?}: {full}")]
    MemoryFull {
        /// The map's name.
        map: String,
        /// How much was asked for, and how much is left.
        full: bpf_quiesce::MemoryFull,
    },
    /// It is to be counted in an account of another domain's memory.
    #[error("map {map:?}: its account is of another domain's memory")]
    OtherAccount {
        /// The map's name.
        map: String,
    },
    /// The operating system gave no memory or no file.
    #[error("map {map:?}: {what} failed: {errno}")]
    System {
        /// The map's name.
        map: String,
        /// What was asked for.
        what: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// A key or value of another size than the map's.
    #[error("map {map:?}: expected a {what} of {expected} bytes, got {got}")]
    Size {
        /// The map's name.
        map: String,
        /// "key" or "value".
        what: &'static str,
        /// The map's size.
        expected: usize,
        /// The size given.
        got: usize,
    },
    /// A typed handle with a key or value of another kind than BTF says.
    #[error("map {map:?}: the {what} is {expected}, got {got}")]
    Kind {
        /// The map's name.
        map: String,
        /// "key" or "value".
        what: &'static str,
        /// What it is by the object's BTF.
        expected: &'static str,
        /// What the Rust type is.
        got: &'static str,
    },
    /// A handle or operation for another type of map.
    #[error("map {map:?} is of type {}; expected {expected}", got.name())]
    WrongType {
        /// The map's name.
        map: String,
        /// The types that would do.
        expected: &'static str,
        /// The map's type.
        got: MapType,
    },
    /// The operation failed with the kernel's error number.
    #[error("map {map:?}: {op}: {}", meaning(*errno))]
    Op {
        /// The map's name.
        map: String,
        /// The operation.
        op: &'static str,
        /// The kernel's error number.
        errno: Errno,
    },
    /// A map to be reused, or a dump to be restored, has another schema.
    #[error("map {map:?}: schema differs in {field}: expected {expected}, got {got}")]
    Incompatible {
        /// The map's name.
        map: String,
        /// The field.
        field: &'static str,
        /// Its value where the map is to be used.
        expected: u64,
        /// Its value in the map or the dump.
        got: u64,
    },
    /// A map of another domain than that of the program or the outer map.
    #[error(transparent)]
    OtherDomain(#[from] OtherDomain),
    /// No execution slot was free and the domain is set not to wait.
    #[error("map {map:?}: no execution slot: {reason}")]
    NoSlot {
        /// The map's name.
        map: String,
        /// The domain's reason.
        reason: String,
    },
    /// A file to restore from is damaged or not a dump.
    #[error("not a valid map dump: {0}")]
    BadDump(String),
    /// Reading or writing a dump failed.
    #[error("map dump: {0}")]
    Io(String),
    /// An invariant of this crate does not hold: a bug here, not in the caller.
    #[error("internal error in maps: {0}")]
    Internal(&'static str),
}

impl MapError {
    /// The kernel's error number for this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Unsupported { .. }
            | Self::Size { .. }
            | Self::Kind { .. }
            | Self::WrongType { .. }
            | Self::Incompatible { .. }
            | Self::OtherDomain(_)
            | Self::OtherAccount { .. }
            | Self::BadDump(_) => Errno::EINVAL.0,
            Self::InvalidDef { errno, .. } => *errno,
            Self::MemoryLimit { .. } | Self::MemoryFull { .. } => Errno::ENOMEM.0,
            Self::System { errno, .. } | Self::Op { errno, .. } => errno.0,
            Self::NoSlot { .. } => Errno::EBUSY.0,
            Self::Io(_) => Errno::EIO.0,
            Self::Internal(_) => Errno::EFAULT.0,
        }
    }
}

fn meaning(errno: Errno) -> String {
    let text = match errno {
        Errno::EPERM => "not permitted: the map is read-only or write-only here",
        Errno::ENOENT => "no such key, or the map is empty",
        Errno::E2BIG => "full, or the index is out of range",
        Errno::EBUSY => "in use further up this thread's stack, or by another consumer",
        Errno::EEXIST => "the key exists already",
        Errno::EINVAL => "an argument or flag this map does not take",
        Errno::ENOSPC => "no room left",
        Errno::ENOMEM => "no memory",
        Errno::EDEADLK => "the lock is held further up this thread's stack",
        Errno::EOPNOTSUPP | Errno::ENOTSUPP => "this map type has no such operation",
        _ => return errno.to_string(),
    };
    format!("{text} ({errno})")
}
