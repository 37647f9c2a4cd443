//! A map as programs refer to it: of data, or of programs.

use crate::program::table::ProgTable;
use bpf_maps::Map;
use bpf_quiesce::{Domain, Owned};
use std::sync::Arc;

/// A map that programs refer to.
#[derive(Clone, Debug)]
pub(crate) enum MapRef {
    /// A map of data.
    Data(Map),
    /// A table of programs.
    Progs(Arc<ProgTable>),
}

impl Owned for MapRef {
    fn domain(&self) -> &Arc<Domain> {
        match self {
            MapRef::Data(map) => map.domain(),
            MapRef::Progs(table) => table.domain(),
        }
    }

    fn named(&self) -> (&'static str, &str) {
        match self {
            MapRef::Data(map) => map.named(),
            MapRef::Progs(table) => table.named(),
        }
    }
}

impl MapRef {
    /// Returns the address that programs use as the map's pointer.
    pub(crate) fn address(&self) -> u64 {
        match self {
            MapRef::Data(map) => map.as_ptr() as u64,
            MapRef::Progs(table) => table.address(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            MapRef::Data(map) => map.name(),
            MapRef::Progs(table) => table.name(),
        }
    }
}
