//! Reads by name: a rule looks for the bounds of a name in all values that have it, wherever they are.
//!
//! Problem: a walk forgets from a kept state the places that no path from it has read, and then covers paths that
//! differ there. The trail marks reads of registers and of stack slots. It does not mark a rule that searches the whole
//! state for values of one name: a bound may then come from a spill that no instruction reads, and paths without that
//! spill must not be covered.
//!
//! Approach: each function that searches values by their name calls [`note`]. From then on kept states of this walk are
//! finished with all live numbers exact, and keep all values that have names, numbers and pointers
//! (`walk/trail/demand.rs`, `forget_unneeded`). A state is finished after all paths from it, so each state on a path to
//! the search is finished with the mark set. States also keep these values if some path has known a sum
//! (`Pruner::sums`). The facts of a loop's candidate are searched for in the whole state, all
//! of which is demanded where the candidate's check begins (`Walk::needs_all`).
//!
//! Invariant: the mark belongs to the thread, as fuel does, because states have no reference to their walk. Once
//! set, it stays set until the next walk, which begins with [`begin`].

use std::cell::Cell;

thread_local! {
    static READ: Cell<bool> = const { Cell::new(false) };
}

/// Begins a walk, without a mark.
pub(crate) fn begin() {
    READ.set(false);
}

/// Notes that a rule searches the values of the state for a name.
#[inline]
pub(crate) fn note() {
    READ.set(true);
}

/// Returns whether some rule of this walk has searched by name.
pub(crate) fn is_noted() -> bool {
    READ.get()
}
