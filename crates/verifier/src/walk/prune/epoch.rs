//! Bounded edges: what makes rounds end that the walk does not count.
//!
//! Problem: a path that comes back to an open state may end there only if it cannot come back so for ever. Each time it
//! goes into a round of something bounded, that has one round less; but of something that was made since the state was
//! kept (an iterator, the counter of a frame that was entered, a helper that calls back) there is another one next
//! time. Approach: each bounded edge makes an *epoch*, which knows the one before it; so from the path's epoch, all
//! edges on its way are found, with what bounds them. Times are those of kept states: how many there were.
//!
//! Invariant: along the way back, edges are older and older.

use crate::faults::planted;
use crate::state::{Owed, State};
use crate::walk::memory::{List, Memory, Short};

#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The epoch that it leads out of.
    before: u32,
    at: u32,
    /// When that began which bounds it.
    since: u32,
    /// The iterator that bounds it; 0: a helper, or a frame's counter, which lasts as long as the walk is in its epoch.
    iterator: u32,
}

/// The epochs of a walk.
#[derive(Debug, Default)]
pub(in crate::walk) struct Epochs(Vec<Edge>);

impl Epochs {
    pub(in crate::walk) fn clear(&mut self) {
        self.0.clear();
    }

    /// Makes room for the epochs that are entered until the walk is weighed again.
    pub(in crate::walk) fn weigh(&mut self, memory: &mut Memory) -> Result<(), Short> {
        // Most programs enter none, and the first few are small.
        let spare = if self.0.is_empty() { 0 } else { 128 };
        memory.list(List::Epochs, &mut self.0, spare)
    }

    /// Passes an edge now; the epoch behind it.
    fn pass(&mut self, edge: Edge) -> u32 {
        self.0.push(edge);
        // The first one is 1.
        crate::num::small(self.0.len())
    }

    /// Whether a path with this epoch has passed an edge since the state of this number was kept, of something that was
    /// there then and is there still.
    pub(super) fn passed_since(&self, epoch: u32, number: u32, owed: &[Owed]) -> bool {
        let mut epoch = epoch;
        while let Some(edge) = (epoch as usize).checked_sub(1).and_then(|i| self.0.get(i)) {
            if edge.at <= number {
                return false;
            }
            let lasts = edge.iterator == 0 || owed.iter().any(|o| o.id == edge.iterator);
            if (edge.since <= number && lasts) || planted!(AnyEdgeEnds) {
                return true;
            }
            epoch = edge.before;
        }
        false
    }
}

/// Whether what bounds edges is the same in both states: frames and iterators.
pub(super) fn same_bounds(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len()
        && a.owed.len() == b.owed.len()
        && a.frames.iter().zip(&b.frames).all(|(a, b)| a.since == b.since)
        && a.owed.iter().zip(&b.owed).all(|(a, b)| a.id == b.id)
}

impl crate::walk::Walk<'_> {
    /// A round of the frame's may_goto begins.
    pub(in crate::walk) fn pass_counter(&mut self) {
        let since = self.state.top().since;
        self.pass_edge(self.epoch, since, 0);
    }

    /// A round begins with an iterator's element.
    pub(in crate::walk) fn pass_element(&mut self, iterator: u32) {
        let owed = self.state.owed.iter().find(|o| o.id == iterator);
        let since = owed.map_or(u32::MAX, |o| o.since);
        self.pass_edge(self.epoch, since, iterator);
    }

    /// A round of the callback begins whose frame is the newest, called by a helper in this epoch.
    pub(in crate::walk) fn pass_callback(&mut self, outer: u32) {
        let since = self.state.top().since;
        self.pass_edge(outer, since, 0);
    }

    fn pass_edge(&mut self, before: u32, since: u32, iterator: u32) {
        let at = self.scratch.prune.ever_kept();
        self.epoch = self.epochs.pass(Edge { before, at, since, iterator });
    }
}
