//! Creates maps: the one file that knows every type.

use std::sync::Arc;

use bpf_quiesce::{Domain, Label, Memory};

use crate::arena::ArenaMap;
use crate::array::ArrayMap;
use crate::bloom::BloomMap;
use crate::def::{Family, MapDef};
use crate::error::MapError;
use crate::hash::HashMap;
use crate::header::MapHeader;
use crate::insn_array::InsnArray;
use crate::map::{Map, reserve};
use crate::nested::{ArrayOfMaps, HashOfMaps};
use crate::ops::MapOps;
use crate::program;
use crate::queue::QueueMap;
use crate::redirect::{DeviceHash, IndexMap};
use crate::ring::RingMap;
use crate::ring::perf::PerfMap;
use crate::socket::SocketHash;
use crate::trie::TrieMap;

/// How a map is created, apart from its definition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Bytes that one map may grow to. A map that needs more is refused before any memory is touched. All maps of a
    /// domain together are limited by its [`memory_limit`](bpf_quiesce::Options::memory_limit).
    pub memory_limit: u64,
    /// The seed of the hash function instead of a random one: for tests that must repeat.
    pub hash_seed: Option<u64>,
    /// The account that the map's memory is counted in ([`bpf_quiesce::Memory::account`]); `None`: the domain's
    /// memory.
    pub account: Option<Arc<Memory>>,
    /// The name of the instance that the map belongs to, for [`Map::instance`] and lists of the users of memory.
    pub instance: Option<Arc<str>>,
}

impl Default for CreateOptions {
    /// 4 GiB and a random seed.
    fn default() -> Self {
        Self { memory_limit: 4 << 30, hash_seed: None, account: None, instance: None }
    }
}

impl CreateOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        CreateOptions::default()
    }

    /// Sets [`CreateOptions::memory_limit`].
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: u64) -> Self {
        self.memory_limit = memory_limit;
        self
    }

    /// Sets [`CreateOptions::hash_seed`].
    #[must_use]
    pub fn hash_seed(mut self, hash_seed: impl Into<Option<u64>>) -> Self {
        self.hash_seed = hash_seed.into();
        self
    }

    /// Sets [`CreateOptions::account`].
    #[must_use]
    pub fn account(mut self, account: impl Into<Option<Arc<Memory>>>) -> Self {
        self.account = account.into();
        self
    }

    /// Sets [`CreateOptions::instance`].
    #[must_use]
    pub fn instance(mut self, instance: impl Into<Option<Arc<str>>>) -> Self {
        self.instance = instance.into();
        self
    }
}

/// The largest number of bytes that a map of this definition can use.
fn memory_needed(family: Family, def: &MapDef, slots: u32) -> u64 {
    match family {
        Family::Array => ArrayMap::memory_needed(def, slots),
        Family::Hash => HashMap::memory_needed(def, slots),
        Family::Queue => QueueMap::memory_needed(def),
        Family::Trie => TrieMap::memory_needed(def),
        Family::Bloom => BloomMap::memory_needed(def),
        Family::Ring => RingMap::memory_needed(def),
        Family::Perf => PerfMap::memory_needed(def),
        Family::ArrayOfMaps => ArrayOfMaps::memory_needed(def),
        Family::HashOfMaps => HashOfMaps::memory_needed(def, slots),
        Family::Redirect => IndexMap::memory_needed(def),
        Family::RedirectHash => DeviceHash::memory_needed(def, slots),
        Family::SocketHash => SocketHash::memory_needed(def, slots),
        Family::Arena => ArenaMap::memory_needed(def),
        Family::InsnArray => InsnArray::memory_needed(def),
    }
}

/// Bytes that a map of this definition reserves when it is created. Memory allocated on demand is counted later.
fn memory_at_first(family: Family, def: &MapDef, slots: u32) -> u64 {
    match family {
        Family::Hash => HashMap::memory_at_first(def, slots),
        Family::Trie => TrieMap::memory_at_first(def),
        Family::Array
        | Family::Queue
        | Family::Bloom
        | Family::Ring
        | Family::Perf
        | Family::ArrayOfMaps
        | Family::HashOfMaps
        | Family::Redirect
        | Family::RedirectHash
        | Family::SocketHash
        | Family::Arena
        | Family::InsnArray => memory_needed(family, def, slots),
    }
}

impl Map {
    /// Creates a map in `domain` with the default options.
    ///
    /// # Errors
    /// [`MapError`], with the kernel's error number for the same mistake.
    pub fn create(def: MapDef, domain: &Arc<Domain>) -> Result<Self, MapError> {
        Self::create_with(def, domain, &CreateOptions::default())
    }

    /// Creates a map in `domain`.
    ///
    /// # Errors
    /// [`MapError`], with the kernel's error number for the same mistake.
    pub fn create_with(def: MapDef, domain: &Arc<Domain>, options: &CreateOptions) -> Result<Self, MapError> {
        def.validate()?;
        let slots = domain.max_slots();
        let system = |errno| MapError::System { map: def.name.clone(), what: "allocating the map", errno };
        let family = Family::of(def.map_type)?;
        let needed = memory_needed(family, &def, slots);
        if needed > options.memory_limit {
            return Err(MapError::MemoryLimit { map: def.name.clone(), needed, limit: options.memory_limit });
        }
        let account = options.account.as_ref().unwrap_or(domain.memory());
        if !account.is_of(domain.memory()) {
            return Err(MapError::OtherAccount { map: def.name });
        }
        let label = Label { instance: options.instance.as_ref(), name: &def.name };
        let memory = reserve(label, domain, account, memory_at_first(family, &def, slots))?;
        let ops: Box<dyn MapOps> = match family {
            Family::Array => Box::new(ArrayMap::new(&def, slots).map_err(system)?),
            Family::Hash => Box::new(HashMap::new(&def, domain, options.hash_seed, Some(&memory)).map_err(system)?),
            Family::Queue => Box::new(QueueMap::new(&def).map_err(system)?),
            Family::Trie => Box::new(TrieMap::new(&def, domain, Some(&memory)).map_err(system)?),
            Family::Bloom => Box::new(BloomMap::new(&def, options.hash_seed).map_err(system)?),
            Family::Ring => Box::new(RingMap::new(&def).map_err(system)?),
            Family::Perf => Box::new(PerfMap::new(&def, domain).map_err(system)?),
            Family::ArrayOfMaps => Box::new(ArrayOfMaps::new(&def, domain).map_err(system)?),
            Family::HashOfMaps => Box::new(HashOfMaps::new(&def, domain, options.hash_seed).map_err(system)?),
            Family::Redirect => Box::new(IndexMap::new(&def).map_err(system)?),
            Family::RedirectHash => Box::new(DeviceHash::new(&def, domain, options.hash_seed).map_err(system)?),
            Family::Arena => Box::new(ArenaMap::new(&def).map_err(system)?),
            Family::InsnArray => Box::new(InsnArray::new(&def).map_err(system)?),
            Family::SocketHash => Box::new(SocketHash::new(&def, domain, options.hash_seed).map_err(system)?),
        };
        let addressable = ops.addressable();
        let header = MapHeader {
            map_type: def.map_type as u32,
            key_size: def.key_size,
            value_size: def.value_size,
            max_entries: def.max_entries,
            flags: def.flags,
            stride: u32::try_from(addressable.stride).map_err(|_| MapError::Internal("array stride"))?,
            base: addressable.base,
            slot_stride: addressable.slot_stride as u64,
            lookup: ops.lookup_fn(),
            update: ops.update_fn().unwrap_or(program::update_any),
            delete: ops.delete_fn().unwrap_or(program::delete_any),
            imp: ops.address(),
        };
        Ok(Self::of_parts(header, def, domain, ops, memory))
    }
}
