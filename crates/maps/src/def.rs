//! Definitions of maps: type, shape and flags, with the kernel's numbers and the kernel's checks.
//!
//! [`MapDef::validate`] does for each type what the kernel's `map_alloc_check` does, in the same order, so that the
//! same bad definition yields the same error number, with a message that says what was expected. It also computes
//! the memory the map needs, which is refused beyond a limit before any of it is touched.

use crate::arena_shape::{ArenaShape, MAX_BYTES as MAX_ARENA};
use crate::errno::Errno;
use crate::error::MapError;
use crate::mem::round_up8;

use std::sync::Arc;

use bpf_uapi::{ARENA_PAGE, MapTypes, OwnedField, OwnedKind, OwnedType, TIMER_BYTES};

pub use bpf_uapi::MapType;
pub use bpf_uapi::flags::{create as flags, update};

/// The implementations of map types. Several types may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Array and per-CPU array.
    Array,
    /// Hash, LRU hash, and both with a value per slot; storage of sockets.
    Hash,
    /// LPM trie.
    Trie,
    /// Queue and stack.
    Queue,
    /// Bloom filter.
    Bloom,
    /// Ring buffers in both directions.
    Ring,
    /// Perf event array.
    Perf,
    /// Array of maps.
    ArrayOfMaps,
    /// Hash of maps.
    HashOfMaps,
    /// Devices, CPUs and sockets by index.
    Redirect,
    /// Devices by key.
    RedirectHash,
    /// Sockets by key.
    SocketHash,
    /// Arena.
    Arena,
    /// Instructions by index.
    InsnArray,
}

impl Family {
    /// The implementation of a type.
    ///
    /// # Errors
    /// [`MapError::Unsupported`] where there is none.
    pub(crate) fn of(map_type: MapType) -> Result<Self, MapError> {
        match map_type {
            MapType::Array | MapType::PerCpuArray => Ok(Self::Array),
            MapType::Hash
            | MapType::PerCpuHash
            | MapType::LruHash
            | MapType::LruPerCpuHash
            | MapType::SkStorage
            | MapType::TaskStorage => Ok(Self::Hash),
            MapType::LpmTrie => Ok(Self::Trie),
            MapType::Queue | MapType::Stack => Ok(Self::Queue),
            MapType::BloomFilter => Ok(Self::Bloom),
            MapType::RingBuf | MapType::UserRingBuf => Ok(Self::Ring),
            MapType::PerfEventArray => Ok(Self::Perf),
            MapType::ArrayOfMaps => Ok(Self::ArrayOfMaps),
            MapType::HashOfMaps => Ok(Self::HashOfMaps),
            MapType::DevMap | MapType::CpuMap | MapType::XskMap | MapType::SockMap => Ok(Self::Redirect),
            MapType::DevMapHash => Ok(Self::RedirectHash),
            MapType::SockHash => Ok(Self::SocketHash),
            MapType::Arena => Ok(Self::Arena),
            MapType::InsnArray => Ok(Self::InsnArray),
            MapType::Unspec
            | MapType::ProgArray
            | MapType::StackTrace
            | MapType::CgroupArray
            | MapType::CgroupStorage
            | MapType::ReuseportSockArray
            | MapType::PerCpuCgroupStorage
            | MapType::StructOps
            | MapType::InodeStorage
            | MapType::CgrpStorage
            | MapType::Rhash => Err(MapError::Unsupported { number: map_type.number(), name: map_type.name() }),
        }
    }
}

/// The kernel's name of a creation flag that no map here has, in parentheses.
fn refused_flag(unknown: u32) -> &'static str {
    const NAMED: [(u32, &str); 5] = [
        (1 << 15, " (BPF_F_VTYPE_BTF_OBJ_FD)"),
        (1 << 16, " (BPF_F_TOKEN_FD)"),
        (1 << 17, " (BPF_F_SEGV_ON_FAULT)"),
        (1 << 18, " (BPF_F_NO_USER_CONV)"),
        (1 << 19, " (BPF_F_RB_OVERWRITE: no record is overwritten here)"),
    ];
    NAMED.iter().find(|(flag, _)| unknown == *flag).map_or("", |(_, name)| name)
}

/// The types that this crate implements, ascending by number.
pub fn implemented_types() -> impl Iterator<Item = MapType> {
    MapType::ALL.iter().copied().filter(|map_type| Family::of(*map_type).is_ok())
}

/// The type with the kernel's number `number`, if this crate implements it.
///
/// # Errors
/// [`MapError::Unsupported`], with the type's name where it has one.
pub fn implemented_type(number: u32) -> Result<MapType, MapError> {
    let map_type = MapType::from_number(number).ok_or(MapError::Unsupported { number, name: "unknown" })?;
    Family::of(map_type).map(|_| map_type)
}

/// The kind of a key or value according to its BTF type. A typed handle compares it with the Rust type, beside the
/// size.
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
    /// The kind in words, for messages.
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
#[non_exhaustive]
pub struct MapDef {
    /// A name for messages and dumps; not an identity.
    pub name: String,
    /// The type.
    pub map_type: MapType,
    /// Bytes of a key; 0 where the type has none.
    pub key_size: u32,
    /// Bytes of a value; 0 for ring buffers.
    pub value_size: u32,
    /// Elements; bytes for ring buffers; pages for arenas.
    pub max_entries: u32,
    /// Creation [`flags`].
    pub flags: u32,
    /// Bloom filter: the number of hash functions. Arena: the address of its first page for programs, or 0 for any.
    pub map_extra: u64,
    /// Accepted and ignored; needs [`flags::NUMA_NODE`].
    pub numa_node: Option<u32>,
    /// Byte offset of the lock in the value (from BTF), a `struct bpf_spin_lock` or a `struct bpf_res_spin_lock`.
    pub spin_lock: Option<u32>,
    /// Whether that lock is a `struct bpf_res_spin_lock`.
    pub resilient_lock: bool,
    /// Byte offset of a `struct bpf_timer` in the value (from BTF): 16 bytes that are left out of copies of values.
    pub timer: Option<u32>,
    /// Byte offset of a `struct bpf_wq` in the value (from BTF): 16 bytes that are left out of copies of values.
    pub work: Option<u32>,
    /// The types of objects that a value owns (from BTF): first the value's own type, then the types its fields lead
    /// to, as [`OwnedType::closure`] numbers them. Copies of values leave these fields out.
    pub owned: Option<Arc<[OwnedType]>>,
    /// The kind of a key, if BTF says so. Not part of the schema.
    pub key_kind: Option<Kind>,
    /// The kind of a value, if BTF says so. Not part of the schema.
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
            resilient_lock: false,
            timer: None,
            work: None,
            owned: None,
            key_kind: None,
            value_kind: None,
            inner: None,
        }
    }

    /// Sets the creation flags.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// Puts a `struct bpf_spin_lock` at this byte of the value.
    #[must_use]
    pub fn spin_lock(mut self, offset: u32) -> Self {
        self.spin_lock = Some(offset);
        self
    }

    /// Puts a `struct bpf_res_spin_lock` at this byte of the value.
    #[must_use]
    pub fn res_spin_lock(mut self, offset: u32) -> Self {
        (self.spin_lock, self.resilient_lock) = (Some(offset), true);
        self
    }

    /// Puts a `struct bpf_wq` at this byte of the value.
    #[must_use]
    pub fn work(mut self, offset: u32) -> Self {
        self.work = Some(offset);
        self
    }

    /// Byte offsets of the timer and of the work queue in a value: fields of 16 bytes that lead to callbacks.
    pub fn deferred(&self) -> impl Iterator<Item = u32> {
        self.timer.into_iter().chain(self.work)
    }

    /// Puts a `struct bpf_timer` at this byte of the value.
    #[must_use]
    pub fn timer(mut self, offset: u32) -> Self {
        self.timer = Some(offset);
        self
    }

    /// Sets the types of objects that a value owns: see [`MapDef::owned`].
    #[must_use]
    pub fn owned(mut self, types: Vec<OwnedType>) -> Self {
        self.owned = Some(types.into());
        self
    }

    /// The fields of a value that own objects.
    pub fn owned_fields(&self) -> &[OwnedField] {
        self.owned.as_deref().and_then(<[OwnedType]>::first).map_or(&[], |value| &value.fields)
    }

    /// Sets the shape of the inner maps.
    #[must_use]
    pub fn inner(mut self, inner: MapDef) -> Self {
        self.inner = Some(Box::new(inner));
        self
    }

    /// Whether programs may read values, and whether they may write them, as the flags say. Programs never write
    /// values of redirect maps and instruction arrays.
    #[must_use]
    pub fn program_rights(&self) -> (bool, bool) {
        let constant = MapTypes::REDIRECT.contains(self.map_type) || self.map_type == MapType::InsnArray;
        (self.flags & flags::WRONLY_PROG == 0, self.flags & flags::RDONLY_PROG == 0 && !constant)
    }

    /// Checks the definition as the kernel does.
    ///
    /// # Errors
    /// [`MapError::InvalidDef`] with the kernel's error number and what was expected.
    pub fn validate(&self) -> Result<(), MapError> {
        let bad = |errno: Errno, expected: String| {
            Err(MapError::InvalidDef { map: self.name.clone(), map_type: self.map_type, errno: errno.0, expected })
        };
        let family = Family::of(self.map_type)?;
        let has = |flag: u32| self.flags & flag != 0;
        if has(flags::RDONLY) && has(flags::WRONLY) {
            return bad(Errno::EINVAL, "at most one of RDONLY and WRONLY".into());
        }
        if has(flags::RDONLY_PROG) && has(flags::WRONLY_PROG) {
            return bad(Errno::EINVAL, "at most one of RDONLY_PROG and WRONLY_PROG".into());
        }
        if self.numa_node.is_some() && !has(flags::NUMA_NODE) {
            return bad(Errno::EINVAL, "the NUMA_NODE flag with a numa_node".into());
        }
        if self.map_extra != 0 && !matches!(self.map_type, MapType::BloomFilter | MapType::Arena) {
            return bad(Errno::EINVAL, "map_extra 0 (only bloom filters and arenas have one)".into());
        }
        if self.inner.is_some() != self.map_type.is_map_of_maps() {
            return bad(Errno::EINVAL, "an inner map exactly for array_of_maps and hash_of_maps".into());
        }
        if let Some(inner) = &self.inner {
            inner.validate()?;
            if inner.inner.is_some() {
                return bad(Errno::EINVAL, "inner maps that are not maps of maps themselves".into());
            }
            if inner.map_type == MapType::Arena {
                return bad(Errno::ENOTSUPP, "inner maps that are not arenas".into());
            }
        }
        if let Some(offset) = self.spin_lock {
            let fits = offset.is_multiple_of(4) && u64::from(offset) + 4 <= u64::from(self.value_size);
            if !fits {
                return bad(Errno::EINVAL, format!("a 4-byte aligned spin lock inside the value, not offset {offset}"));
            }
            let lockable = MapTypes::of(&[MapType::Hash, MapType::Array, MapType::LruHash]).union(MapTypes::STORAGE);
            if !lockable.contains(self.map_type) {
                let expected = "a spin lock only in values of hash, lru_hash, array and storage";
                return bad(Errno::EOPNOTSUPP, expected.into());
            }
        }
        if self.resilient_lock && self.spin_lock.is_none() {
            return bad(Errno::EINVAL, "a resilient lock only where there is a lock".into());
        }
        for (what, offset) in [("timer", self.timer), ("bpf_wq", self.work)] {
            let Some(offset) = offset else { continue };
            let end = u64::from(offset) + u64::from(TIMER_BYTES);
            let apart = self.spin_lock.is_none_or(|lock| lock + 4 <= offset || u64::from(lock) >= end)
                && self.deferred().filter(|at| at.abs_diff(offset) < TIMER_BYTES).count() == 1;
            if !offset.is_multiple_of(8) || end > self.value_size.into() || !apart {
                let expected = format!("an 8-byte aligned {what} of 16 bytes inside the value, not at offset {offset}");
                return bad(Errno::EINVAL, expected);
            }
            if ![MapType::Hash, MapType::Array, MapType::LruHash].contains(&self.map_type) {
                return bad(Errno::EOPNOTSUPP, format!("a {what} only in values of hash, lru_hash and array"));
            }
            if self.program_rights() != (true, true) {
                return bad(Errno::EACCES, format!("a {what} only in values that programs may read and write"));
            }
        }
        if self.owned.is_some() {
            self.validate_owned(bad)?;
        }
        if self.map_type == MapType::BloomFilter && u64::from(self.value_size) > KMALLOC_MAX {
            return bad(Errno::E2BIG, self.shape("a value_size of at most 4 MiB"));
        }
        let unknown = self.flags & !self.allowed_flags(family);
        if unknown != 0 {
            return bad(
                Errno::EINVAL,
                format!(
                    "no flags but {:#x}; {unknown:#x}{} is not for this type",
                    self.allowed_flags(family),
                    refused_flag(unknown)
                ),
            );
        }
        match family {
            Family::Array | Family::ArrayOfMaps | Family::Perf => self.validate_array(bad),
            Family::Hash if MapTypes::STORAGE.contains(self.map_type) => self.validate_storage(bad),
            Family::Hash | Family::HashOfMaps => self.validate_hash(bad),
            Family::Trie => self.validate_trie(bad),
            Family::Queue => self.validate_queue(bad),
            Family::Bloom => self.validate_bloom(bad),
            Family::Ring => self.validate_ring(bad),
            Family::Redirect if self.map_type == MapType::SockMap => self.validate_sockets(bad),
            Family::SocketHash => self.validate_sockets(bad),
            Family::Arena => self.validate_arena(bad),
            Family::InsnArray => self.validate_insn_array(bad),
            Family::Redirect | Family::RedirectHash => self.validate_redirect(bad),
        }
    }

    /// Checks that owning fields lie inside the value and overlap neither each other, nor the lock, nor the timer.
    fn validate_owned(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let types = self.owned.as_deref().unwrap_or(&[]);
        let sound = types.first().is_some_and(|value| value.size <= self.value_size && !value.fields.is_empty());
        if !sound || !types.iter().all(|ty| ty.is_sound(types)) {
            return bad(Errno::EINVAL, "fields that own objects inside the value, aligned and apart".into());
        }
        let overlaps = |start: u32, end: u32| self.owned_fields().iter().any(|f| f.offset < end && start < f.end());
        let apart = self.spin_lock.is_none_or(|at| !overlaps(at, at + 4))
            && self.deferred().all(|at| !overlaps(at, at + TIMER_BYTES));
        if !apart {
            return bad(Errno::EINVAL, "fields that own objects apart from the lock and the timer".into());
        }
        let fits = |field: &OwnedField| match field.kind {
            OwnedKind::Kptr { .. } => true,
            OwnedKind::ListHead { .. } | OwnedKind::TreeRoot { .. } => self.spin_lock.is_some(),
            OwnedKind::ListNode | OwnedKind::TreeNode | OwnedKind::Refcount | OwnedKind::Lock { .. } => false,
        };
        if let Some(field) = self.owned_fields().iter().find(|field| !fits(field)) {
            let what = field.kind.name();
            let expected = match field.kind.is_root() {
                true => format!("a bpf_spin_lock beside the {what} at offset {}", field.offset),
                false => format!("no {what} in a map's value, as at offset {}", field.offset),
            };
            return bad(Errno::EINVAL, expected);
        }
        if ![MapType::Hash, MapType::Array, MapType::LruHash].contains(&self.map_type) {
            return bad(Errno::EOPNOTSUPP, "objects only in values of hash, lru_hash and array".into());
        }
        if self.program_rights() != (true, true) || self.flags & flags::MMAPABLE != 0 {
            return bad(Errno::EACCES, "objects only in values that programs read and write, and nobody maps".into());
        }
        Ok(())
    }

    fn allowed_flags(&self, family: Family) -> u32 {
        const ACCESS: u32 = flags::RDONLY | flags::WRONLY | flags::RDONLY_PROG | flags::WRONLY_PROG;
        const HASH: u32 = flags::NO_PREALLOC | flags::NUMA_NODE | flags::ZERO_SEED | ACCESS;
        const ARRAY: u32 = flags::NUMA_NODE | ACCESS;
        match family {
            Family::Array if self.map_type.is_per_cpu() => ARRAY,
            Family::Array => ARRAY | flags::MMAPABLE | flags::INNER_MAP,
            Family::ArrayOfMaps => flags::NUMA_NODE | flags::RDONLY | flags::WRONLY,
            Family::Perf => flags::NUMA_NODE | flags::RDONLY | flags::WRONLY | flags::PRESERVE_ELEMS,
            Family::Hash if MapTypes::STORAGE.contains(self.map_type) => flags::NO_PREALLOC | flags::CLONE,
            Family::Hash if self.map_type.is_lru() => HASH | flags::NO_COMMON_LRU,
            Family::Hash | Family::HashOfMaps => HASH,
            Family::Trie => flags::NO_PREALLOC | flags::NUMA_NODE | ACCESS,
            Family::Queue => flags::NUMA_NODE | ACCESS,
            Family::Bloom => flags::NUMA_NODE | flags::ZERO_SEED | ACCESS,
            Family::Ring => flags::NUMA_NODE,
            Family::Arena => flags::MMAPABLE,
            Family::InsnArray => 0,
            Family::Redirect if self.map_type == MapType::CpuMap => flags::NUMA_NODE,
            Family::Redirect | Family::RedirectHash | Family::SocketHash => {
                flags::NUMA_NODE | flags::RDONLY | flags::WRONLY
            }
        }
    }

    /// Whether a NUMA node may be given: per-CPU values lie on the node of their CPU.
    fn numa_fits(&self) -> bool {
        !(self.flags & flags::NUMA_NODE != 0 && (self.map_type.is_per_cpu() || self.flags & flags::NO_COMMON_LRU != 0))
    }

    fn validate_array(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.max_entries == 0 || self.key_size != 4 || self.value_size == 0 {
            return bad(Errno::EINVAL, self.shape("key_size 4, value_size and max_entries above 0"));
        }
        if matches!(self.map_type, MapType::ArrayOfMaps | MapType::PerfEventArray) && self.value_size != 4 {
            return bad(Errno::EINVAL, self.shape("value_size 4"));
        }
        if !self.numa_fits() {
            return bad(Errno::EINVAL, "no NUMA_NODE on a per-CPU map".into());
        }
        if self.value_size > i32::MAX as u32 {
            return bad(Errno::E2BIG, self.shape("value_size at most 2147483647"));
        }
        self.validate_per_cpu_value(bad)
    }

    fn validate_insn_array(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.max_entries == 0 || self.key_size != 4 || self.value_size != INSN_VALUE_SIZE {
            return bad(Errno::EINVAL, self.shape("key_size 4, value_size 16, max_entries above 0"));
        }
        Ok(())
    }

    fn validate_hash(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.map_type.is_lru() && self.flags & flags::NO_PREALLOC != 0 {
            return bad(Errno::ENOTSUPP, "no NO_PREALLOC on an LRU map".into());
        }
        if !self.numa_fits() {
            return bad(Errno::EINVAL, "no NUMA_NODE on a per-CPU map or with NO_COMMON_LRU".into());
        }
        if self.max_entries == 0 || self.key_size == 0 || self.value_size == 0 {
            return bad(Errno::EINVAL, self.shape("key_size, value_size and max_entries above 0"));
        }
        if self.map_type == MapType::HashOfMaps && self.value_size != 4 {
            return bad(Errno::EINVAL, self.shape("value_size 4"));
        }
        if u64::from(self.key_size) + u64::from(self.value_size) >= MAX_ELEMENT {
            return bad(Errno::E2BIG, self.shape(&format!("key_size + value_size below {MAX_ELEMENT}")));
        }
        if self.max_entries > MAX_HASH_ENTRIES {
            return bad(Errno::E2BIG, self.shape(&format!("max_entries at most {MAX_HASH_ENTRIES}")));
        }
        self.validate_per_cpu_value(bad)
    }

    /// Keys here are socket cookies. The kernel's keys are descriptors of four bytes, and its maps have no
    /// `max_entries`.
    fn validate_storage(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let sized = self.key_size == 8 && self.value_size != 0 && self.max_entries != 0;
        if !sized || self.flags & flags::NO_PREALLOC == 0 {
            let expected = "NO_PREALLOC, key_size 8, value_size and max_entries above 0";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        if self.value_size > MAX_STORAGE_VALUE {
            return bad(Errno::E2BIG, self.shape(&format!("value_size at most {MAX_STORAGE_VALUE}")));
        }
        if self.max_entries > MAX_HASH_ENTRIES {
            return bad(Errno::E2BIG, self.shape(&format!("max_entries at most {MAX_HASH_ENTRIES}")));
        }
        Ok(())
    }

    fn validate_per_cpu_value(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.map_type.is_per_cpu() && round_up8(self.value_size as usize) > MAX_PER_CPU_VALUE {
            return bad(Errno::E2BIG, self.shape(&format!("a per-CPU value_size of at most {MAX_PER_CPU_VALUE}")));
        }
        Ok(())
    }

    fn validate_trie(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        // A prefix length of 4 bytes, and 1 to 256 bytes of data.
        let key_fits = (5..=260).contains(&self.key_size);
        if self.max_entries == 0 || self.flags & flags::NO_PREALLOC == 0 || !key_fits || self.value_size == 0 {
            return bad(
                Errno::EINVAL,
                self.shape("NO_PREALLOC, key_size 5 to 260, value_size and max_entries above 0"),
            );
        }
        if u64::from(self.value_size) > MAX_ELEMENT - 256 - 64 {
            return bad(Errno::EINVAL, self.shape("a value_size below 4 MiB"));
        }
        Ok(())
    }

    fn validate_queue(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.max_entries == 0 || self.key_size != 0 || self.value_size == 0 {
            return bad(Errno::EINVAL, self.shape("key_size 0, value_size and max_entries above 0"));
        }
        if u64::from(self.value_size) > KMALLOC_MAX {
            return bad(Errno::E2BIG, self.shape("a value_size of at most 4 MiB"));
        }
        Ok(())
    }

    fn validate_bloom(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        if self.key_size != 0 || self.value_size == 0 || self.max_entries == 0 || self.map_extra & !0xf != 0 {
            let expected = "key_size 0, value_size and max_entries above 0, map_extra at most 15";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        Ok(())
    }

    fn validate_ring(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let size = self.max_entries as usize;
        let size_fits = size.is_power_of_two() && size.is_multiple_of(bpf_os::memory::page_size());
        if self.key_size != 0 || self.value_size != 0 || !size_fits {
            let expected = "key_size 0, value_size 0, max_entries a power of two and a multiple of the page";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        Ok(())
    }

    /// Checks that the lower half of an address tells all bytes of an arena apart.
    fn validate_arena(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let (page, bytes) = (u64::from(ARENA_PAGE), u64::from(self.max_entries) * u64::from(ARENA_PAGE));
        let shaped = self.key_size == 0 && self.value_size == 0 && self.max_entries != 0;
        if !shaped || self.flags & flags::MMAPABLE == 0 || !self.map_extra.is_multiple_of(page) {
            let expected = "MMAPABLE, key_size 0, value_size 0, max_entries above 0, map_extra a multiple of 4096";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        if bytes > MAX_ARENA {
            return bad(Errno::E2BIG, self.shape("max_entries at most 1048576, which is 4 GiB"));
        }
        if self.map_extra.checked_add(bytes - 1).is_none_or(|last| last >> 32 != self.map_extra >> 32) {
            let expected = "map_extra and max_entries such that all addresses have one upper half";
            return bad(Errno::ERANGE, self.shape(expected));
        }
        Ok(())
    }

    /// The arena's addresses as programs see them; `None` for other types.
    #[must_use]
    pub fn arena(&self) -> Option<ArenaShape> {
        (self.map_type == MapType::Arena).then(|| ArenaShape::of(self.max_entries, self.map_extra))
    }

    /// Checks that a value is a number of four bytes, for devices and CPUs optionally followed by one of a program.
    fn validate_redirect(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let sized = self.value_size == 4 || self.value_size == 8 && self.map_type != MapType::XskMap;
        if self.max_entries == 0 || self.key_size != 4 || !sized {
            let expected = "key_size 4, value_size 4 (or 8 but for xskmap), max_entries above 0";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        if self.map_type == MapType::CpuMap && self.max_entries > MAX_CPUS {
            return bad(Errno::E2BIG, self.shape(&format!("max_entries at most {MAX_CPUS}")));
        }
        if self.map_type == MapType::DevMapHash && self.max_entries > MAX_HASH_ENTRIES {
            return bad(Errno::EINVAL, self.shape(&format!("max_entries at most {MAX_HASH_ENTRIES}")));
        }
        Ok(())
    }

    /// Checks that a value is the number of a socket, of four or eight bytes.
    fn validate_sockets(&self, bad: impl Fn(Errno, String) -> Result<(), MapError>) -> Result<(), MapError> {
        let by_index = self.map_type == MapType::SockMap;
        let keyed = if by_index { self.key_size == 4 } else { self.key_size != 0 };
        if self.max_entries == 0 || !keyed || !matches!(self.value_size, 4 | 8) {
            let expected = "key_size 4 (sockhash: above 0), value_size 4 or 8, max_entries above 0";
            return bad(Errno::EINVAL, self.shape(expected));
        }
        if !by_index && self.key_size > MAX_SOCKET_KEY {
            return bad(Errno::E2BIG, self.shape(&format!("key_size at most {MAX_SOCKET_KEY}")));
        }
        if !by_index && self.max_entries > MAX_HASH_ENTRIES {
            return bad(Errno::E2BIG, self.shape(&format!("max_entries at most {MAX_HASH_ENTRIES}")));
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

    /// Checks that a map of this definition can be an entry of a map of maps with this template. As in the kernel,
    /// `max_entries` matters only where it is compiled into programs: in arrays (unless INNER_MAP is set) and bloom
    /// filters.
    pub(crate) fn fits_template(&self, template: &MapDef) -> Result<(), MapError> {
        self.same_shape(template)?;
        let sized = match Family::of(self.map_type)? {
            Family::Array => template.flags & flags::INNER_MAP == 0,
            Family::Bloom => true,
            Family::Hash
            | Family::Trie
            | Family::Queue
            | Family::Ring
            | Family::Perf
            | Family::ArrayOfMaps
            | Family::HashOfMaps
            | Family::Redirect
            | Family::RedirectHash
            | Family::SocketHash
            | Family::Arena
            | Family::InsnArray => false,
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
        self.same("spin_lock", offset(expected.spin_lock), offset(self.spin_lock))?;
        self.same("bpf_res_spin_lock", expected.resilient_lock.into(), self.resilient_lock.into())?;
        self.same("timer", offset(expected.timer), offset(self.timer))?;
        self.same("bpf_wq", offset(expected.work), offset(self.work))?;
        if self.owned == expected.owned {
            return Ok(());
        }
        let fields = |def: &MapDef| def.owned_fields().len() as u64;
        let (field, expected, got) = ("fields that own objects, or their types", fields(expected), fields(self));
        Err(MapError::Incompatible { map: self.name.clone(), field, expected, got })
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

/// The kernel's `NR_CPUS`, as distributions set it: the most entries of a CPU map.
const MAX_CPUS: u32 = 8192;

/// Bytes of a value of an instruction array (`struct bpf_insn_array_value`).
pub(crate) const INSN_VALUE_SIZE: u32 = 16;

/// The kernel's `BPF_LOCAL_STORAGE_MAX_VALUE_SIZE`: 16 bits, less its element's header.
pub(crate) const MAX_STORAGE_VALUE: u32 = 65535 - 128;

/// The longest key of a hash of sockets in bytes: programs keep the key on their stack.
pub(crate) const MAX_SOCKET_KEY: u32 = 512;

/// The kernel rounds the bucket count up to a power of two in 32 bits.
const MAX_HASH_ENTRIES: u32 = 1 << 31;
