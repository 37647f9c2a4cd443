//! Bounded edges: the bounds that end rounds which the walk does not count.
//!
//! Problem: a path that comes back to an open state may end there only if it cannot do so for ever. Each round of a
//! bounded construct leaves one round less. But a construct that was created after the state was kept (an iterator, the
//! counter of a frame that was entered, a helper that calls back) is created anew next time. Approach: passing a
//! bounded edge makes an *epoch*, which refers to the previous one; so all edges on the path, with their bounds, are
//! found from the path's epoch. Times are numbers of kept states.
//!
//! Invariant: along the chain of epochs, edges become older.

use crate::faults::planted;
use crate::state::{Owed, State};
use crate::walk::memory::{List, Memory, Short};

#[derive(Clone, Copy, Debug)]
struct Edge {
    /// The epoch before the edge.
    before: u32,
    at: u32,
    /// The time at which its bound was created.
    since: u32,
    /// The iterator that bounds it; 0 for a helper or a frame's counter, which exists as long as the walk is in its
    /// epoch.
    iterator: u32,
}

/// The epochs of a walk.
#[derive(Debug, Default)]
pub(in crate::walk) struct Epochs(Vec<Edge>);

impl Epochs {
    pub(in crate::walk) fn clear(&mut self) {
        self.0.clear();
    }

    /// Makes room for the epochs that may be entered until memory is measured again.
    pub(in crate::walk) fn weigh(&mut self, memory: &mut Memory) -> Result<(), Short> {
        // Most programs enter none, and the first few are small.
        let spare = if self.0.is_empty() { 0 } else { 128 };
        memory.list(List::Epochs, &mut self.0, spare)
    }

    /// Passes an edge. Returns the epoch behind it.
    fn pass(&mut self, edge: Edge) -> u32 {
        self.0.push(edge);
        // The first one is 1.
        crate::num::small(self.0.len())
    }

    /// Whether a path with this epoch has passed, since the state of this number was kept, an edge whose bound existed
    /// then and still exists.
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

/// Whether the bounds of edges, which are frames and iterators, are equal in both states.
pub(super) fn same_bounds(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len()
        && a.owed.len() == b.owed.len()
        && a.frames.iter().zip(&b.frames).all(|(a, b)| a.since == b.since)
        && a.owed.iter().zip(&b.owed).all(|(a, b)| a.id == b.id)
}

impl crate::walk::Walk<'_> {
    /// Begins a round of the frame's may_goto.
    pub(in crate::walk) fn pass_counter(&mut self) {
        let since = self.state.top().since;
        self.pass_edge(self.epoch, since, 0);
    }

    /// Begins a round with an iterator's element.
    pub(in crate::walk) fn pass_element(&mut self, iterator: u32) {
        let owed = self.state.owed.iter().find(|o| o.id == iterator);
        let since = owed.map_or(u32::MAX, |o| o.since);
        self.pass_edge(self.epoch, since, iterator);
    }

    /// Begins a round of the callback in the newest frame, called by a helper in this epoch.
    pub(in crate::walk) fn pass_callback(&mut self, outer: u32) {
        let since = self.state.top().since;
        self.pass_edge(outer, since, 0);
    }

    fn pass_edge(&mut self, before: u32, since: u32, iterator: u32) {
        let at = self.scratch.prune.ever_kept();
        self.epoch = self.epochs.pass(Edge { before, at, since, iterator });
    }
}
