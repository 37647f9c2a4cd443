//! States no longer used, whose vectors the next copies are made in.
//!
//! Problem: a state has a dozen vectors, and most states live for a few steps. Approach: what is copied next takes the
//! memory of what was given up last. Where memory is short (`walk/memory.rs`), nothing is recycled, and a copy is
//! exactly as large as its contents.

use super::State;
use crate::kept::shrink;

/// States no longer used, for their vectors.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    states: Vec<State>,
    /// Bytes that they hold.
    held: usize,
    /// Memory is short: nothing is recycled.
    short: bool,
}

impl Pool {
    pub(crate) fn push(&mut self, state: State) {
        if self.short {
            return;
        }
        if self.states.len() == self.states.capacity() {
            let more = self.states.len() / 8 + 16;
            if self.states.try_reserve_exact(more).is_err() {
                return;
            }
        }
        self.held += state.held();
        self.states.push(state);
    }

    pub(crate) fn extend(&mut self, states: impl IntoIterator<Item = State>) {
        states.into_iter().for_each(|state| self.push(state));
    }

    /// A state with contents that do not matter.
    pub(crate) fn any(&mut self) -> State {
        let state = self.states.pop();
        self.held -= state.as_ref().map_or(0, State::held);
        state.unwrap_or_default()
    }

    /// A copy, in the memory of a state that is no longer used, if there is one.
    pub(crate) fn copy(&mut self, of: &State) -> State {
        if self.short {
            return of.clone();
        }
        let mut state = self.any();
        state.clone_from(of);
        state
    }

    /// Frees what is more than so many bytes.
    pub(crate) fn trim(&mut self, bytes: usize) {
        while self.held > bytes {
            drop(self.any());
        }
        shrink(&mut self.states, bytes);
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> usize {
        self.held + self.states.capacity() * size_of::<State>()
    }

    /// Recycles nothing, or again what is given to it.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.short = short;
        if short {
            *self = Pool { short, ..Pool::default() };
        }
    }
}
