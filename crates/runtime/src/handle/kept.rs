//! What handles keep: an object's programs and maps, and its prog arrays filled.

use crate::engine::Engine;
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::table::UserHold;
use std::fmt;
use std::sync::Arc;

/// Cheap to clone; clones keep the same.
#[derive(Clone)]
pub(crate) struct Kept(Arc<Inner>);

struct Inner {
    engine: Engine,
    programs: Vec<Arc<Loaded>>,
    maps: Vec<MapRef>,
    /// As long as a handle lives, the prog arrays keep their programs.
    _holds: Vec<UserHold>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("programs", &self.0.programs).field("maps", &self.0.maps).finish()
    }
}

impl Kept {
    pub(crate) fn new(engine: &Engine, programs: Vec<Arc<Loaded>>, maps: Vec<MapRef>) -> Kept {
        let holds = maps
            .iter()
            .filter_map(|map| match map {
                MapRef::Progs(table) => Some(UserHold::new(table)),
                MapRef::Data(_) | MapRef::Declared(_) => None,
            })
            .collect();
        Kept(Arc::new(Inner { engine: engine.clone(), programs, maps, _holds: holds }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn programs(&self) -> &[Arc<Loaded>] {
        &self.0.programs
    }

    pub(crate) fn maps(&self) -> &[MapRef] {
        &self.0.maps
    }
}
