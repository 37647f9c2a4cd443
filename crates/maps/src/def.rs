//! What a map is: type, shape and flags, with the kernel's numbers, and the kernel's checks of them.
//!
//! [`MapDef::validate`] does for each type what the kernel's `map_alloc_check` does, in the same order, so that the
//! same bad definition yields the same error number, with a message that says what was expected. It also computes
//! the memory the map needs, which is refused beyond a limit before any of it is touched.

use crate::error::MapError;
use crate::mem::round_up8;

macro_rules! map_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The kernel's map types that this crate implements, with the kernel's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum MapType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl MapType {
            /// Every implemented type.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The kernel's name, as `bpftool` prints it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

map_types! {
    /// Keys of any bytes; pre-allocated by default.
    Hash = 1, "hash";
    /// `u32` index; all elements exist from the start.
    Array = 2, "array";
    /// Events for a consumer, one buffer per execution slot.
    PerfEventArray = 4, "perf_event_array";
    /// A hash with one value per execution slot.
    PerCpuHash = 5, "percpu_hash";
    /// An array with one value per execution slot.
    PerCpuArray = 6, "percpu_array";
    /// A hash that evicts unreferenced elements when full.
    LruHash = 9, "lru_hash";
    /// The same with one value per execution slot.
    LruPerCpuHash = 10, "lru_percpu_hash";
    /// Longest-prefix match.
    LpmTrie = 11, "lpm_trie";
    /// An array whose values are maps.
    ArrayOfMaps = 12, "array_of_maps";
    /// A hash whose values are maps.
    HashOfMaps = 13, "hash_of_maps";
    /// First in, first out.
    Queue = 22, "queue";
    /// Last in, first out.
    Stack = 23, "stack";
    /// Variable-size records from programs to the host.
    RingBuf = 27, "ringbuf";
    /// Approximate membership without false negatives.
    BloomFilter = 30, "bloom_filter";
    /// Variable-size records from the host to programs.
    UserRingBuf = 31, "user_ringbuf";
}

/// The kernel's types that this crate does not implement: kept by name, so that the refusal can say which.
const UNSUPPORTED: &[(u32, &str)] = &[
    (0, "unspec"),
    (3, "prog_array"),
    (7, "stack_trace"),
    (8, "cgroup_array"),
    (14, "devmap"),
    (15, "sockmap"),
    (16, "cpumap"),
    (17, "xskmap"),
    (18, "sockhash"),
    (19, "cgroup_storage"),
    (20, "reuseport_sockarray"),
    (21, "percpu_cgroup_storage"),
    (24, "sk_storage"),
    (25, "devmap_hash"),
    (26, "struct_ops"),
    (28, "inode_storage"),
    (29, "task_storage"),
    (32, "cgrp_storage"),
    (33, "arena"),
];

impl MapType {
    /// The type with the kernel's number `number`.
    ///
    /// # Errors
    /// [`MapError::Unsupported`], with the type's name where it has one.
    pub fn from_number(number: u32) -> Result<Self, MapError> {
        Self::ALL.iter().copied().find(|t| *t as u32 == number).ok_or_else(|| {
            let name = UNSUPPORTED.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| *name);
            MapError::Unsupported { number, name }
        })
    }

    /// Whether each execution slot has a value of its own.
    #[must_use]
    pub fn is_per_cpu(self) -> bool {
        matches!(self, Self::PerCpuArray | Self::PerCpuHash | Self::LruPerCpuHash)
    }

    /// Whether the type evicts instead of filling up.
    #[must_use]
    pub fn is_lru(self) -> bool {
        matches!(self, Self::LruHash | Self::LruPerCpuHash)
    }

    /// Whether the values are maps.
    #[must_use]
    pub fn is_map_in_map(self) -> bool {
        matches!(self, Self::ArrayOfMaps | Self::HashOfMaps)
    }
}

/// Creation flags (`BPF_F_*` of `BPF_MAP_CREATE`).
pub mod flags {
    /// Allocate elements when they are inserted, free them after a grace period.
    pub const NO_PREALLOC: u32 = 1 << 0;
    /// Evictions by slots of their own instead of common ones. Unlike the kernel, no slot is limited to its part of the elements.
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
    /// The values of an array can be mapped.
    pub const MMAPABLE: u32 = 1 << 10;
    /// Perf event array: keep the entries when the file descriptor is closed.
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    /// An array that may become an inner map with another `max_entries`.
    pub const INNER_MAP: u32 = 1 << 12;
}

/// Update flags (`BPF_ANY` and so on).
pub mod update {
    /// Create or replace.
    pub const ANY: u64 = 0;
    /// Only create.
    pub const NOEXIST: u64 = 1;
    /// Only replace.
    pub const EXIST: u64 = 2;
    /// Under the value's spin lock.
    pub const F_LOCK: u64 = 4;
}

/// What a key or value is, as far as its BTF type says: what a typed handle is compared with, beside the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A signed integer or enum.
    Signed,
    /// An unsigned integer or enum, or a bool.
    Unsigned,
    /// A floating-point number.
    Float,
    /// An array.
    Array,
    /// A structure or union.
    Struct,
}

impl Kind {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Signed => "a signed integer",
            Self::Unsigned => "an unsigned integer",
            Self::Float => "a floating-point number",
            Self::Array => "an array",
            Self::Struct => "a structure",
        }
    }
}

/// The definition of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// A name for messages and dumps; not an identity.
    pub name: String,
    /// The type.
    pub map_type: MapType,
    /// Bytes of a key; 0 where the type has none.
    pub key_size: u32,
    /// Bytes of a value; 0 for ring buffers.
    pub value_size: u32,
    /// Elements, or bytes for ring buffers.
    pub max_entries: u32,
    /// Creation [`flags`].
    pub flags: u32,
    /// Bloom filter: the number of hash functions.
    pub map_extra: u64,
    /// Accepted and ignored; needs [`flags::NUMA_NODE`].
    pub numa_node: Option<u32>,
    /// Byte offset of a `struct bpf_spin_lock` in the value (from BTF).
    pub spin_lock: Option<u32>,
    /// What a key is, where BTF says. No part of the schema.
    pub key_kind: Option<Kind>,
    /// What a value is, where BTF says. No part of the schema.
    pub value_kind: Option<Kind>,
    /// The shape of the inner maps of a map of maps.
    pub inner: Option<Box<MapDef>>,
}

impl MapDef {
    /// A definition without flags.
    #[must_use]
    pub fn new(name: &str, map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        Self {
            name: name.to_owned(),
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            map_extra: 0,
            numa_node: None,
            spin_lock: None,
            key_kind: None,
            value_kind: None,
            inner: None,
        }
    }

    /// The same with creation flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// The same with the shape of its inner maps.
    #[must_use]
    pub fn with_inner(mut self, inner: MapDef) -> Self {
        self.inner = Some(Box::new(inner));
        self
    }

    /// Checks the definition as the kernel does.
    ///
    /// # Errors
    /// [`MapError::InvalidDef`] with the kernel's error number and what was expected.
    pub fn validate(&self) -> Result<(), MapError> {
        let bad = |errno, expected: String| {
            Err(MapError::InvalidDef { map: self.name.clone(), map_type: self.map_type, errno, expected })
        };
        let has = |flag: u32| self.flags & flag != 0;
        if has(flags::RDONLY) && has(flags::WRONLY) {
            return bad(libc::EINVAL, "at most one of RDONLY and WRONLY".into());
        }
        if has(flags::RDONLY_PROG) && has(flags::WRONLY_PROG) {
            return bad(libc::EINVAL, "at most one of RDONLY_PROG and WRONLY_PROG".into());
        }
        if self.numa_node.is_some() && !has(flags::NUMA_NODE) {
            return bad(libc::EINVAL, "the NUMA_NODE flag with a numa_node".into());
        }
        if self.map_extra != 0 && self.map_type != MapType::BloomFilter {
            return bad(libc::EINVAL, "map_extra 0 (only a bloom filter has one)".into());
        }
        if self.inner.is_some() != self.map_type.is_map_in_map() {
            return bad(libc::EINVAL, "an inner map exactly for array_of_maps and hash_of_maps".into());
        }
        if let Some(inner) = &self.inner {
            inner.validate()?;
            if inner.inner.is_some() {
                return bad(libc::EINVAL, "inner maps that are not maps of maps themselves".into());
            }
        }
        if let Some(offset) = self.spin_lock {
            let fits = offset.is_multiple_of(4) && u64::from(offset) + 4 <= u64::from(self.value_size);
            if !fits {
                return bad(libc::EINVAL, format!("a 4-byte aligned spin lock inside the value, not offset {offset}"));
            }
            if !matches!(self.map_type, MapType::Hash | MapType::Array | MapType::LruHash) {
                return bad(libc::EOPNOTSUPP, "a spin lock only in values of hash, lru_hash and array".into());
            }
        }
        if self.map_type == MapType::BloomFilter && u64::from(self.value_size) > KMALLOC_MAX {
            return bad(libc::E2BIG, self.shape("a value_size of at most 4 MiB"));
        }
        let unknown = self.flags & !self.allowed_flags();
        if unknown != 0 {
            return bad(
                libc::EINVAL,
                format!("no flags but {:#x}; {unknown:#x} is not for this type", self.allowed_flags()),
            );
        }
        match self.map_type {
            MapType::Array | MapType::PerCpuArray | MapType::ArrayOfMaps | MapType::PerfEventArray => {
                self.validate_array(bad)
            }
            MapType::Hash | MapType::PerCpuHash | MapType::LruHash | MapType::LruPerCpuHash | MapType::HashOfMaps => {
                self.validate_hash(bad)
            }
            MapType::LpmTrie => self.validate_trie(bad),
            MapType::Queue | MapType::Stack => self.validate_queue(bad),
            MapType::BloomFilter => self.validate_bloom(bad),
            MapType::RingBuf | MapType::UserRingBuf => self.validate_ring(bad),
        }
    }

    fn allowed_flags(&self) -> u32 {
        const ACCESS: u32 = flags::RDONLY | flags::WRONLY | flags::RDONLY_PROG | flags::WRONLY_PROG;
        const HASH: u32 = flags::NO_PREALLOC | flags::NUMA_NODE | flags::ZERO_SEED | ACCESS;
        const ARRAY: u32 = flags::NUMA_NODE | ACCESS;
        match self.map_type {
            MapType::Array => ARRAY | flags::MMAPABLE | flags::INNER_MAP,
            MapType::PerCpuArray => ARRAY,
            MapType::ArrayOfMaps => flags::NUMA_NODE | flags::RDONLY | flags::WRONLY,
            MapType::PerfEventArray => flags::NUMA_NODE | flags::RDONLY | flags::WRONLY | flags::PRESERVE_ELEMS,
            MapType::Hash | MapType::PerCpuHash => HASH,
            MapType::LruHash | MapType::LruPerCpuHash => HASH | flags::NO_COMMON_LRU,
            MapType::HashOfMaps => HASH,
            MapType::LpmTrie => flags::NO_PREALLOC | flags::NUMA_NODE | ACCESS,
            MapType::Queue | MapType::Stack => flags::NUMA_NODE | ACCESS,
            MapType::BloomFilter => flags::NUMA_NODE | flags::ZERO_SEED | ACCESS,
            MapType::RingBuf | MapType::UserRingBuf => flags::NUMA_NODE,
        }
    }

    /// Per-CPU values have no node: each lies where its CPU is.
    fn numa_fits(&self) -> bool {
        !(self.flags & flags::NUMA_NODE != 0 && (self.map_type.is_per_cpu() || self.flags & flags::NO_COMMON_LRU != 0))
    }

    fn validate_array(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.max_entries == 0 || self.key_size != 4 || self.value_size == 0 {
            return bad(libc::EINVAL, self.shape("key_size 4, value_size and max_entries above 0"));
        }
        if matches!(self.map_type, MapType::ArrayOfMaps | MapType::PerfEventArray) && self.value_size != 4 {
            return bad(libc::EINVAL, self.shape("value_size 4"));
        }
        if !self.numa_fits() {
            return bad(libc::EINVAL, "no NUMA_NODE on a per-CPU map".into());
        }
        if self.value_size > i32::MAX as u32 {
            return bad(libc::E2BIG, self.shape("value_size at most 2147483647"));
        }
        self.validate_per_cpu_value(bad)
    }

    fn validate_hash(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.map_type.is_lru() && self.flags & flags::NO_PREALLOC != 0 {
            return bad(524, "no NO_PREALLOC on an LRU map".into());
        }
        if !self.numa_fits() {
            return bad(libc::EINVAL, "no NUMA_NODE on a per-CPU map or with NO_COMMON_LRU".into());
        }
        if self.max_entries == 0 || self.key_size == 0 || self.value_size == 0 {
            return bad(libc::EINVAL, self.shape("key_size, value_size and max_entries above 0"));
        }
        if self.map_type == MapType::HashOfMaps && self.value_size != 4 {
            return bad(libc::EINVAL, self.shape("value_size 4"));
        }
        if u64::from(self.key_size) + u64::from(self.value_size) >= MAX_ELEMENT {
            return bad(libc::E2BIG, self.shape(&format!("key_size + value_size below {MAX_ELEMENT}")));
        }
        if self.max_entries > MAX_HASH_ENTRIES {
            return bad(libc::E2BIG, self.shape(&format!("max_entries at most {MAX_HASH_ENTRIES}")));
        }
        self.validate_per_cpu_value(bad)
    }

    fn validate_per_cpu_value(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.map_type.is_per_cpu() && round_up8(self.value_size as usize) > MAX_PER_CPU_VALUE {
            return bad(libc::E2BIG, self.shape(&format!("a per-CPU value_size of at most {MAX_PER_CPU_VALUE}")));
        }
        Ok(())
    }

    fn validate_trie(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        // Prefix length and 1 to 256 bytes of data.
        let key_fits = (5..=260).contains(&self.key_size);
        if self.max_entries == 0 || self.flags & flags::NO_PREALLOC == 0 || !key_fits || self.value_size == 0 {
            return bad(libc::EINVAL, self.shape("NO_PREALLOC, key_size 5 to 260, value_size and max_entries above 0"));
        }
        if u64::from(self.value_size) > MAX_ELEMENT - 256 - 64 {
            return bad(libc::EINVAL, self.shape("a value_size below 4 MiB"));
        }
        Ok(())
    }

    fn validate_queue(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.max_entries == 0 || self.key_size != 0 || self.value_size == 0 {
            return bad(libc::EINVAL, self.shape("key_size 0, value_size and max_entries above 0"));
        }
        if u64::from(self.value_size) > KMALLOC_MAX {
            return bad(libc::E2BIG, self.shape("a value_size of at most 4 MiB"));
        }
        Ok(())
    }

    fn validate_bloom(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.key_size != 0 || self.value_size == 0 || self.max_entries == 0 || self.map_extra & !0xf != 0 {
            let expected = "key_size 0, value_size and max_entries above 0, map_extra at most 15";
            return bad(libc::EINVAL, self.shape(expected));
        }
        Ok(())
    }

    fn validate_ring(&self, bad: impl Fn(i32, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let size = self.max_entries as usize;
        let size_fits = size.is_power_of_two() && size.is_multiple_of(crate::sys::page_size());
        if self.key_size != 0 || self.value_size != 0 || !size_fits {
            let expected = "key_size 0, value_size 0, max_entries a power of two and a multiple of the page";
            return bad(libc::EINVAL, self.shape(expected));
        }
        Ok(())
    }

    fn shape(&self, expected: &str) -> String {
        format!(
            "{expected}; got key_size {}, value_size {}, max_entries {}",
            self.key_size, self.value_size, self.max_entries
        )
    }

    /// Whether a map of this definition can be used where `expected` is declared: the same type, shape and flags.
    ///
    /// # Errors
    /// [`MapError::Incompatible`], which names the first field that differs.
    pub fn compatible_with(&self, expected: &MapDef) -> Result<(), MapError> {
        self.same_shape(expected)?;
        self.same("max_entries", expected.max_entries.into(), self.max_entries.into())?;
        self.same("map_extra", expected.map_extra, self.map_extra)?;
        match (&self.inner, &expected.inner) {
            (Some(inner), Some(expected)) => inner.compatible_with(expected),
            _ => Ok(()),
        }
    }

    /// Whether a map of this definition can be an entry of a map of maps with this template. As in the kernel, `max_entries` only
    /// matters where programs have it compiled in: in arrays (unless INNER_MAP says otherwise) and bloom filters.
    pub(crate) fn fits_template(&self, template: &MapDef) -> Result<(), MapError> {
        self.same_shape(template)?;
        let sized = match self.map_type {
            MapType::Array | MapType::PerCpuArray => template.flags & flags::INNER_MAP == 0,
            MapType::BloomFilter => true,
            _ => false,
        };
        if sized {
            self.same("max_entries", template.max_entries.into(), self.max_entries.into())?;
            self.same("map_extra", template.map_extra, self.map_extra)?;
        }
        Ok(())
    }

    fn same_shape(&self, expected: &MapDef) -> Result<(), MapError> {
        let offset = |lock: Option<u32>| lock.map_or(u64::MAX, u64::from);
        self.same("map_type", expected.map_type as u64, self.map_type as u64)?;
        self.same("key_size", expected.key_size.into(), self.key_size.into())?;
        self.same("value_size", expected.value_size.into(), self.value_size.into())?;
        self.same("flags", expected.flags.into(), self.flags.into())?;
        self.same("spin_lock", offset(expected.spin_lock), offset(self.spin_lock))
    }

    fn same(&self, field: &'static str, expected: u64, got: u64) -> Result<(), MapError> {
        if expected == got {
            return Ok(());
        }
        Err(MapError::Incompatible { map: self.name.clone(), field, expected, got })
    }
}

/// The kernel's `KMALLOC_MAX_SIZE`.
const KMALLOC_MAX: u64 = 4 << 20;

/// Key and value of a hash together must stay below this: `KMALLOC_MAX_SIZE` less the kernel's element header.
const MAX_ELEMENT: u64 = KMALLOC_MAX - 48;

/// The kernel's `PCPU_MIN_UNIT_SIZE`: the largest per-CPU value.
const MAX_PER_CPU_VALUE: usize = 32 << 10;

/// The kernel rounds the bucket count up to a power of two in 32 bits.
const MAX_HASH_ENTRIES: u32 = 1 << 31;
