//! Flags of maps: of their creation and of updates.
//!
//! Source: `include/uapi/linux/bpf.h`. The comments describe the effect in this family.

/// Creation flags (`BPF_F_*` of `BPF_MAP_CREATE`).
pub mod create {
    /// Allocate elements when they are inserted, free them after a grace period.
    pub const NO_PREALLOC: u32 = 1 << 0;
    /// Each execution slot evicts with a clock hand of its own. Unlike in the kernel, a slot may evict any element.
    pub const NO_COMMON_LRU: u32 = 1 << 1;
    /// `numa_node` is given (and ignored).
    pub const NUMA_NODE: u32 = 1 << 2;
    /// The host may only read.
    pub const RDONLY: u32 = 1 << 3;
    /// The host may only write.
    pub const WRONLY: u32 = 1 << 4;
    /// Hash with seed 0.
    pub const ZERO_SEED: u32 = 1 << 6;
    /// Programs may only read.
    pub const RDONLY_PROG: u32 = 1 << 7;
    /// Programs may only write.
    pub const WRONLY_PROG: u32 = 1 << 8;
    /// The host copies the storage of a listening socket to the sockets that it accepts.
    pub const CLONE: u32 = 1 << 9;
    /// The values of an array can be mapped.
    pub const MMAPABLE: u32 = 1 << 10;
    /// Perf event array: keep the entries when the file descriptor is closed.
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    /// An array that may become an inner map with another `max_entries`.
    pub const INNER_MAP: u32 = 1 << 12;
    /// A table of programs that is attached by links.
    pub const LINK: u32 = 1 << 13;
}

/// Flags of `bpf_redirect_map`.
pub mod redirect {
    /// Sends a copy to each device in the map.
    pub const BROADCAST: u64 = 1 << 3;
    /// Excludes the device that the packet came from.
    pub const EXCLUDE_INGRESS: u64 = 1 << 4;
}

/// Flags of `bpf_sk_storage_get`.
pub mod local_storage {
    /// Creates the value if it does not exist.
    pub const GET_F_CREATE: u64 = 1 << 0;
}

/// Update flags (`BPF_ANY` and so on).
pub mod update {
    /// Create or replace.
    pub const ANY: u64 = 0;
    /// Only create.
    pub const NOEXIST: u64 = 1;
    /// Only replace.
    pub const EXIST: u64 = 2;
    /// Copies under the value's spin lock.
    pub const F_LOCK: u64 = 4;
    /// Reads or writes the value of one CPU of a per-CPU map: the one whose number is in the upper 32 bits.
    pub const F_CPU: u64 = 8;
    /// Writes one value to every CPU of a per-CPU map.
    pub const F_ALL_CPUS: u64 = 16;
}
