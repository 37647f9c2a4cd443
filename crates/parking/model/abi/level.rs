//! The level of a run, without the state that only the run uses.

use super::sync::AtomicU64;
use super::watch::Watch;
use crossbeam_utils::CachePadded;

pub(crate) struct Level {
    word: AtomicU64,
    watch: Watch,
}

impl Level {
    pub(super) fn new(_: u32) -> CachePadded<Level> {
        CachePadded::new(Level { word: AtomicU64::new(0), watch: Watch::new() })
    }

    /// No run is inside of it.
    pub(super) fn inner(&self) -> Option<&CachePadded<Level>> {
        None
    }

    pub(super) fn word(&self) -> &AtomicU64 {
        &self.word
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }
}
