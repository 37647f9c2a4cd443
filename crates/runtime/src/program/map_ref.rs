//! A map as programs refer to it: of data, or of programs.

use crate::program::table::ProgTable;
use bpf_maps::{Map, MapDef, MapType};
use bpf_quiesce::{Domain, Owned};
use std::sync::Arc;

/// A map that programs refer to.
#[derive(Clone, Debug)]
pub(crate) enum MapRef {
    /// A map of data.
    Data(Map),
    /// A table of programs.
    Progs(Arc<ProgTable>),
    /// What a verification that loads nothing knows of a map of either kind, and no memory for it.
    Declared(Arc<Declared>),
}

/// A map that is not made.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) def: MapDef,
    /// What an array of one value holds for good.
    pub(crate) constants: Option<Vec<u8>>,
    pub(crate) domain: Arc<Domain>,
}

impl Declared {
    /// Whether programs may refer to a byte of the first value, or of the arena, by its offset.
    pub(crate) fn holds(&self, off: u32) -> bool {
        match self.def.arena() {
            Some(shape) => u64::from(off) < shape.bytes,
            None => self.def.map_type == MapType::Array && off < self.def.value_size,
        }
    }
}

impl Owned for MapRef {
    fn domain(&self) -> &Arc<Domain> {
        match self {
            MapRef::Data(map) => map.domain(),
            MapRef::Progs(table) => table.domain(),
            MapRef::Declared(map) => &map.domain,
        }
    }

    fn named(&self) -> (&'static str, &str) {
        match self {
            MapRef::Data(map) => map.named(),
            MapRef::Progs(table) => table.named(),
            MapRef::Declared(map) => ("declared map", &map.def.name),
        }
    }
}

impl MapRef {
    /// What programs hold as the map's pointer; 0 where there is no map.
    pub(crate) fn address(&self) -> u64 {
        match self {
            MapRef::Data(map) => map.as_ptr() as u64,
            MapRef::Progs(table) => table.address(),
            MapRef::Declared(_) => 0,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            MapRef::Data(map) => map.name(),
            MapRef::Progs(table) => table.name(),
            MapRef::Declared(map) => &map.def.name,
        }
    }
}
