//! The kernel's map types: numbers and names.
//!
//! One table generates the enum, the names and the conversions. A type in the table need not be implemented; each
//! crate that handles types does so in an exhaustive match. Source: `enum bpf_map_type` in
//! `include/uapi/linux/bpf.h`.

macro_rules! map_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// A map type of the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum MapType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl MapType {
            /// Every type, ascending by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The kernel's name, as `bpftool` prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

map_types! {
    /// No type: the number 0 of an empty definition.
    Unspec = 0, "unspec";
    /// Keys of any bytes; pre-allocated by default.
    Hash = 1, "hash";
    /// `u32` index; all elements exist from the start.
    Array = 2, "array";
    /// Programs for tail calls.
    ProgArray = 3, "prog_array";
    /// Events for a consumer, one buffer per execution slot.
    PerfEventArray = 4, "perf_event_array";
    /// A hash with one value per execution slot.
    PerCpuHash = 5, "percpu_hash";
    /// An array with one value per execution slot.
    PerCpuArray = 6, "percpu_array";
    /// Stack traces by id.
    StackTrace = 7, "stack_trace";
    /// Control groups.
    CgroupArray = 8, "cgroup_array";
    /// A hash that evicts unreferenced elements when full.
    LruHash = 9, "lru_hash";
    /// An LRU hash with one value per execution slot.
    LruPerCpuHash = 10, "lru_percpu_hash";
    /// Longest-prefix match.
    LpmTrie = 11, "lpm_trie";
    /// An array whose values are maps.
    ArrayOfMaps = 12, "array_of_maps";
    /// A hash whose values are maps.
    HashOfMaps = 13, "hash_of_maps";
    /// Network devices by index.
    DevMap = 14, "devmap";
    /// Sockets by index.
    SockMap = 15, "sockmap";
    /// CPUs to redirect packets to.
    CpuMap = 16, "cpumap";
    /// AF_XDP sockets.
    XskMap = 17, "xskmap";
    /// Sockets by key.
    SockHash = 18, "sockhash";
    /// Storage of a control group (deprecated).
    CgroupStorage = 19, "cgroup_storage";
    /// Sockets that share a port.
    ReuseportSockArray = 20, "reuseport_sockarray";
    /// Storage of a control group, one value per execution slot (deprecated).
    PerCpuCgroupStorage = 21, "percpu_cgroup_storage";
    /// First in, first out.
    Queue = 22, "queue";
    /// Last in, first out.
    Stack = 23, "stack";
    /// Storage of a socket.
    SkStorage = 24, "sk_storage";
    /// Network devices by key.
    DevMapHash = 25, "devmap_hash";
    /// A table of callbacks.
    StructOps = 26, "struct_ops";
    /// Variable-size records from programs to the host.
    RingBuf = 27, "ringbuf";
    /// Storage of an inode.
    InodeStorage = 28, "inode_storage";
    /// Storage of a task.
    TaskStorage = 29, "task_storage";
    /// Approximate membership without false negatives.
    BloomFilter = 30, "bloom_filter";
    /// Variable-size records from the host to programs.
    UserRingBuf = 31, "user_ringbuf";
    /// Storage of a control group.
    CgrpStorage = 32, "cgrp_storage";
    /// Memory shared by pointers.
    Arena = 33, "arena";
    /// Targets of indirect jumps.
    InsnArray = 34, "insn_array";
    /// A hash without a fixed size.
    Rhash = 35, "rhash";
}

impl MapType {
    /// The number in `enum bpf_map_type`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The type with the kernel's number `number`.
    ///
    /// ```
    /// use bpf_uapi::MapType;
    /// assert_eq!(MapType::from_number(11), Some(MapType::LpmTrie));
    /// assert_eq!(MapType::from_number(1000), None);
    /// ```
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        // Numbers are 0, 1, 2, ... (checked by a test).
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether each execution slot has a value of its own.
    #[must_use]
    pub const fn is_per_cpu(self) -> bool {
        MapTypes::PER_CPU.contains(self)
    }

    /// Whether the type evicts instead of filling up.
    #[must_use]
    pub const fn is_lru(self) -> bool {
        MapTypes::LRU.contains(self)
    }

    /// Whether the values are maps.
    #[must_use]
    pub const fn is_map_of_maps(self) -> bool {
        MapTypes::OF_MAPS.contains(self)
    }

    /// Whether values are found by a `u32` index and always exist.
    #[must_use]
    pub const fn is_array(self) -> bool {
        MapTypes::ARRAYS.contains(self)
    }
}

impl core::fmt::Display for MapType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of map types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MapTypes(u64);

impl MapTypes {
    /// Types with a value for each execution slot.
    pub const PER_CPU: MapTypes = MapTypes::of(&[
        MapType::PerCpuArray,
        MapType::PerCpuHash,
        MapType::LruPerCpuHash,
        MapType::PerCpuCgroupStorage,
    ]);
    /// Types that evict.
    pub const LRU: MapTypes = MapTypes::of(&[MapType::LruHash, MapType::LruPerCpuHash]);
    /// Types whose values are maps.
    pub const OF_MAPS: MapTypes = MapTypes::of(&[MapType::ArrayOfMaps, MapType::HashOfMaps]);
    /// Arrays of values.
    pub const ARRAYS: MapTypes = MapTypes::of(&[MapType::Array, MapType::PerCpuArray]);

    /// Types that `bpf_redirect_map` takes its targets from.
    pub const REDIRECT: MapTypes =
        MapTypes::of(&[MapType::DevMap, MapType::DevMapHash, MapType::CpuMap, MapType::XskMap]);

    /// Types whose entries are sockets, which programs look up and release.
    pub const SOCKETS: MapTypes = MapTypes::of(&[MapType::SockMap, MapType::SockHash]);

    /// Types with a value for each object of the host: a socket or a thread.
    pub const STORAGE: MapTypes = MapTypes::of(&[MapType::SkStorage, MapType::TaskStorage]);

    /// Types whose values programs look up by a key of any size.
    pub const KEYED: MapTypes = MapTypes::of(&[
        MapType::Hash,
        MapType::Array,
        MapType::PerCpuHash,
        MapType::PerCpuArray,
        MapType::LruHash,
        MapType::LruPerCpuHash,
        MapType::LpmTrie,
        MapType::ArrayOfMaps,
        MapType::HashOfMaps,
        MapType::DevMap,
        MapType::DevMapHash,
        MapType::XskMap,
    ]);

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: MapTypes) -> MapTypes {
        MapTypes(self.0 | other.0)
    }

    /// The set with these elements.
    #[must_use]
    pub const fn of(types: &[MapType]) -> MapTypes {
        let mut set = 0;
        let mut i = 0;
        while i < types.len() {
            set |= 1 << types[i] as u32;
            i += 1;
        }
        MapTypes(set)
    }

    /// Whether the set contains `map_type`.
    #[must_use]
    pub const fn contains(self, map_type: MapType) -> bool {
        self.0 >> map_type as u32 & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gaps() {
        for (i, map_type) in MapType::ALL.iter().enumerate() {
            assert_eq!(map_type.number() as usize, i, "{map_type}");
            assert_eq!(MapType::from_number(map_type.number()), Some(*map_type));
        }
        assert!(MapType::ALL.len() <= 64, "a set is a word");
        assert_eq!(MapType::from_number(u32::MAX), None);
    }

    #[test]
    fn a_set_holds_what_it_was_made_of() {
        for map_type in MapType::ALL {
            assert_eq!(map_type.is_per_cpu(), map_type.name().contains("percpu"), "{map_type}");
            assert_eq!(map_type.is_lru(), map_type.name().starts_with("lru"), "{map_type}");
            assert_eq!(map_type.is_map_of_maps(), map_type.name().ends_with("_of_maps"), "{map_type}");
        }
    }
}
