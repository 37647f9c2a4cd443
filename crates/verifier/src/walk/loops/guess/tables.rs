//! Places that go on from one constant of a table to another: the state of an automaton.
//!
//! Problem: what such a place may be is what the table leads to from where it begins. A loose walk in which it may be
//! anything loads from anywhere in the map that the table is part of, and so finds whatever other tables hold.
//! Approach: a place that comes back from a table is guessed from below instead: it is what it begins with in the next
//! loose walk, and what came back besides in those that follow, until nothing new does. Most automata are closed after
//! a few steps, as ranges hold what lies between two states, too.
//!
//! Invariant: this decides which guess is checked, and nothing else.

use super::Guess;
use super::place::{Place, value};
use crate::state::State;
use crate::value::Value;

/// Steps from what a place begins with to all that it may be.
pub(in crate::walk::loops) const MAX_TABLE_TRIES: u8 = 16;

/// A place that comes back from a table.
#[derive(Clone, Copy, Debug)]
struct Tabled {
    place: Place,
    /// What it may be, as far as that has been found out, and in how many steps.
    min: u64,
    max: u64,
    times: u8,
}

impl Tabled {
    /// Whether it has not taken too many.
    fn holds(&self) -> bool {
        self.times <= MAX_TABLE_TRIES
    }
}

/// All such places of a loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables(Vec<Tabled>);

impl Tables {
    /// Whether some place may be guessed from below.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(Tabled::holds)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The range to guess of a place that comes back from a table.
    pub(super) fn range(&self, place: Place) -> Option<(u64, u64)> {
        let table = self.0.iter().find(|t| t.place == place)?;
        table.holds().then_some((table.min, table.max))
    }

    /// The place was `e` when the loop began, and came back as `b`, `from` a table perhaps. Whether it is guessed to be
    /// something new.
    pub(super) fn see(&mut self, place: Place, e: &Value, b: &Value, from: bool) -> bool {
        match self.0.iter_mut().find(|t| t.place == place) {
            None if from => {
                self.0.push(Tabled { place, min: e.n.umin(), max: e.n.umax(), times: 0 });
                true
            }
            Some(t) if t.holds() && (b.n.umin() < t.min || b.n.umax() > t.max) => {
                (t.min, t.max) = (t.min.min(b.n.umin()), t.max.max(b.n.umax()));
                t.times += 1;
                true
            }
            _ => false,
        }
    }
}

impl Guess {
    /// A path of a loose walk has come back: notes the places that come from tables.
    pub(in crate::walk::loops) fn see_tabled(&mut self, back: &State, tabled: &[u32]) {
        if tabled.is_empty() {
            return;
        }
        for o in self.own.iter().chain(&self.named) {
            let from_table = value(back, o.place).is_some_and(|v| v.is_scalar() && tabled.contains(&v.id));
            if from_table && !self.tabled.contains(&o.place) {
                self.tabled.push(o.place);
            }
        }
    }
}
