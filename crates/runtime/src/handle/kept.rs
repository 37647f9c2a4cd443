//! State that handles of one instance share: its programs and maps. While a handle lives, the instance's prog arrays
//! keep their entries.

use crate::engine::Engine;
use crate::error::LoadError;
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::table::{ProgTable, UserHold};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Restores the initial contents of an instance's maps.
pub(crate) trait Renew: Send + Sync {
    /// Restores these maps, of an instance with these programs.
    fn renew(&self, programs: &[Arc<Loaded>], maps: &[MapRef]) -> Result<(), LoadError>;
}

/// Cheap to clone; clones keep the same.
#[derive(Clone)]
pub(crate) struct Kept(Arc<Inner>);

struct Inner {
    engine: Engine,
    /// The instance's name.
    name: Option<Arc<str>>,
    programs: Vec<Arc<Loaded>>,
    maps: Vec<MapRef>,
    /// `None` for programs and maps that no object defines.
    renew: Option<Arc<dyn Renew>>,
    /// Whether some thread is restoring the maps.
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

    /// Whether this is the only handle and nothing else holds a program, so that no run can be in one: a run begins
    /// from a handle, a hook or a prog array, each of which holds the program. Only programs of the instance jump
    /// through a prog array that nothing else holds, so its entries are no holders.
    pub(crate) fn is_alone(&self) -> bool {
        let Inner { programs, .. } = &*self.0;
        let tables = || self.tables();
        // The count of holders is read before the known holders are counted: a holder that is dropped in between makes
        // the count too large, never too small. No holder can be added, since only a holder can make another.
        let is_own = |table: &&Arc<ProgTable>| {
            let holders = Arc::strong_count(table);
            // The list of maps and the hold on the table.
            holders == 2 + programs.iter().map(|program| program.holds_of(table)).sum::<usize>()
        };
        let is_held_by_own = |program: &Arc<Loaded>| {
            let holders = Arc::strong_count(program);
            let held = tables().map(|table| table.holds_of(Arc::as_ptr(program).cast()));
            held.sum::<Option<usize>>().is_some_and(|held| holders == 1 + held)
        };
        let alone = Arc::strong_count(&self.0) == 1
            && tables().all(|table| is_own(&table))
            && programs.iter().all(is_held_by_own);
        // Acquire pairs with the release by which other holders dropped their references: the effects of their runs are
        // visible.
        fence(Ordering::Acquire);
        alone
    }

    /// Restores the maps; `None` if another thread is doing so.
    pub(crate) fn renew(&self) -> Option<Result<(), LoadError>> {
        let Inner { programs, maps, renew, renewing, .. } = &*self.0;
        // Acquire pairs with the release below: the previous restore is complete and visible.
        if renewing.swap(true, Ordering::Acquire) {
            return None;
        }
        // Dropped on unwinding as well: a renewal may resume a panic of a deferred callback.
        struct Renewing<'a>(&'a AtomicBool);
        impl Drop for Renewing<'_> {
            fn drop(&mut self) {
                // Release pairs with the acquire above.
                self.0.store(false, Ordering::Release);
            }
        }
        let _renewing = Renewing(renewing);
        Some(renew.as_ref().map_or(Ok(()), |renew| renew.renew(programs, maps)))
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Its prog arrays.
    fn tables(&self) -> impl Iterator<Item = &Arc<ProgTable>> {
        self.0.maps.iter().filter_map(|map| match map {
            MapRef::Progs(table) => Some(table),
            MapRef::Data(_) => None,
        })
    }

    pub(crate) fn programs(&self) -> &[Arc<Loaded>] {
        &self.0.programs
    }

    pub(crate) fn maps(&self) -> &[MapRef] {
        &self.0.maps
    }
}
