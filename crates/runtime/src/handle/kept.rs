//! What handles keep: an object's programs and maps, and its prog arrays filled.

use crate::engine::Engine;
use crate::error::LoadError;
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::table::UserHold;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// What makes the maps of an instance as they were when it was made.
pub(crate) trait Renew: Send + Sync {
    /// Of an instance with these programs and maps.
    fn renew(&self, programs: &[Arc<Loaded>], maps: &[MapRef]) -> Result<(), LoadError>;
}

/// Cheap to clone; clones keep the same.
#[derive(Clone)]
pub(crate) struct Kept(Arc<Inner>);

struct Inner {
    engine: Engine,
    /// The instance's.
    name: Option<Arc<str>>,
    programs: Vec<Arc<Loaded>>,
    maps: Vec<MapRef>,
    /// `None` of what no object defines.
    renew: Option<Arc<dyn Renew>>,
    /// Whether somebody is renewing it.
    renewing: AtomicBool,
    /// As long as a handle lives, the prog arrays keep their programs.
    _holds: Vec<UserHold>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("programs", &self.0.programs).field("maps", &self.0.maps).finish()
    }
}

impl Kept {
    pub(crate) fn new(
        engine: &Engine,
        name: Option<Arc<str>>,
        programs: Vec<Arc<Loaded>>,
        maps: Vec<MapRef>,
        renew: Option<Arc<dyn Renew>>,
    ) -> Kept {
        let holds = maps
            .iter()
            .filter_map(|map| match map {
                MapRef::Progs(table) => Some(UserHold::new(table)),
                MapRef::Data(_) => None,
            })
            .collect();
        Kept(Arc::new(Inner {
            engine: engine.clone(),
            name,
            programs,
            maps,
            renew,
            renewing: AtomicBool::new(false),
            _holds: holds,
        }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Whether nobody else has it or a program of it, so that no run can be in one: a run is begun by whoever has it,
    /// in a hook or a prog array too. Programs that are in a prog array of their own are not told apart from such.
    pub(crate) fn is_alone(&self) -> bool {
        let alone = Arc::strong_count(&self.0) == 1 && self.0.programs.iter().all(|one| Arc::strong_count(one) == 1);
        // Acquire pairs with the release of those who have dropped theirs: what their runs did is done.
        fence(Ordering::Acquire);
        alone
    }

    /// Makes the maps as they were, if nobody does at the moment; `None` if somebody does.
    pub(crate) fn renew(&self) -> Option<Result<(), LoadError>> {
        let Inner { programs, maps, renew, renewing, .. } = &*self.0;
        // Acquire pairs with the release below: the one before is done.
        if renewing.swap(true, Ordering::Acquire) {
            return None;
        }
        let result = renew.as_ref().map_or(Ok(()), |renew| renew.renew(programs, maps));
        // Release: as above.
        renewing.store(false, Ordering::Release);
        Some(result)
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    pub(crate) fn programs(&self) -> &[Arc<Loaded>] {
        &self.0.programs
    }

    pub(crate) fn maps(&self) -> &[MapRef] {
        &self.0.maps
    }
}
