//! A pool of unused states, whose vectors the next copies use.
//!
//! Problem: a state has a dozen vectors, and most states live for a few steps. Approach: the next copy takes the
//! vectors of the state that was given up last. Where memory is short (`walk/memory.rs`), nothing is recycled, and a
//! copy is exactly as large as its contents.

use super::State;
use crate::kept::shrink;

/// A pool of unused states.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    states: Vec<State>,
    /// The bytes that each of them holds.
    sizes: Vec<usize>,
    /// Bytes that they hold, in all.
    held: usize,
    /// Whether memory is short, so that nothing is recycled.
    short: bool,
}

impl Pool {
    #[inline]
    pub(crate) fn push(&mut self, state: State) {
        if self.short {
            return;
        }
        if self.states.len() == self.states.capacity() {
            let more = self.states.len() / 8 + 16;
            if self.states.try_reserve_exact(more).is_err() || self.sizes.try_reserve_exact(more).is_err() {
                return;
            }
        }
        let held = state.sizes().held;
        self.held += held;
        self.sizes.push(held);
        self.states.push(state);
    }

    pub(crate) fn extend(&mut self, states: impl IntoIterator<Item = State>) {
        states.into_iter().for_each(|state| self.push(state));
    }

    /// Takes a state with arbitrary contents.
    #[inline]
    pub(crate) fn any(&mut self) -> State {
        self.held -= self.sizes.pop().unwrap_or(0);
        self.states.pop().unwrap_or_default()
    }

    /// Copies a state into the memory of an unused one, if there is one.
    #[inline]
    pub(crate) fn copy(&mut self, of: &State) -> State {
        if self.short {
            return of.clone();
        }
        match self.states.pop() {
            Some(mut state) => {
                self.held -= self.sizes.pop().unwrap_or(0);
                state.clone_from(of);
                state
            }
            None => of.clone(),
        }
    }

    /// Frees states until they hold at most this many bytes.
    pub(crate) fn trim(&mut self, bytes: usize) {
        while self.held > bytes {
            drop(self.any());
        }
        // A state is larger than its entry in either list.
        shrink(&mut self.states, bytes);
        shrink(&mut self.sizes, bytes);
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> usize {
        self.held + self.states.capacity() * size_of::<State>() + self.sizes.capacity() * size_of::<usize>()
    }

    /// Sets whether memory is short. If it is, all states are freed and none is recycled.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.short = short;
        if short {
            *self = Pool { short, ..Pool::default() };
        }
    }
}
