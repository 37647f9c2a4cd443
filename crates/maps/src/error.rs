//! Errors of the host API: the kernel's number, and a message that says what was expected.

use crate::errno::Errno;
use bpf_quiesce::OtherDomain;
use bpf_uapi::MapType;

/// The reason why a map could not be created, or why an operation on a map failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// This crate does not implement the map type, whether the kernel does or not.
    #[error("map type {number} ({name}) is not supported")]
    Unsupported {
        /// The kernel's number.
        number: u32,
        /// The kernel's name.
        name: &'static str,
    },
    /// The type does not allow this definition.
    #[error("map {map:?} ({}): expected {expected}", map_type.name())]
    InvalidDef {
        /// The map's name.
        map: String,
        /// Its type.
        map_type: MapType,
        /// The kernel's error number.
        errno: i32,
        /// The definition that would be accepted, and the values given.
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
    /// The map needs more memory than its domain or account has left; nothing was allocated.
    #[error("map {map:?}: {full}")]
    MemoryFull {
        /// The map's name.
        map: String,
        /// The bytes asked for, and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The given account belongs to another domain's memory.
    #[error("map {map:?}: its account is of another domain's memory")]
    OtherAccount {
        /// The map's name.
        map: String,
    },
    /// The operating system refused memory or a file.
    #[error("map {map:?}: {what} failed: {errno}")]
    System {
        /// The map's name.
        map: String,
        /// The resource that was asked for.
        what: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// A key or value has another size than the map's.
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
    /// The Rust type of a typed handle's key or value is of another kind than BTF says.
    #[error("map {map:?}: the {what} is {expected}, got {got}")]
    Kind {
        /// The map's name.
        map: String,
        /// "key" or "value".
        what: &'static str,
        /// The kind according to the object's BTF.
        expected: &'static str,
        /// The kind of the Rust type.
        got: &'static str,
    },
    /// The handle or operation is for another type of map.
    #[error("map {map:?} is of type {}; expected {expected}", got.name())]
    WrongType {
        /// The map's name.
        map: String,
        /// The types that are accepted.
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
        /// The value expected where the map is to be used.
        expected: u64,
        /// The value in the map or the dump.
        got: u64,
    },
    /// The map belongs to another domain than the program or the outer map.
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
