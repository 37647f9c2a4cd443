//! Places that go from one constant of a table to another: the state of an automaton.
//!
//! Problem: the possible values of such a place are the entries that the table leads to from its initial value. A
//! havocked iteration in which the place may be anything loads from anywhere in the map that contains the table, and
//! finds the contents of other tables, too. Approach: a place that comes back from a table is approximated from below
//! instead: it has its initial value in the next havocked iteration, and also the values that came back in later ones,
//! until nothing new does. Most automata are closed after a few steps, since ranges also contain the values between two
//! states.
//!
//! Invariant: this only affects which candidate is checked.

use super::Guess;
use super::place::{Place, value};
use crate::state::State;
use crate::value::Value;

/// The most steps from the initial value of a place to all its values.
pub(in crate::walk::loops) const MAX_TABLE_TRIES: u8 = 16;

/// A place that comes back from a table.
#[derive(Clone, Copy, Debug)]
struct Tabled {
    place: Place,
    /// The range of values found so far, and the number of steps so far.
    min: u64,
    max: u64,
    times: u8,
}

impl Tabled {
    /// Whether it has not taken too many steps.
    fn holds(&self) -> bool {
        self.times <= MAX_TABLE_TRIES
    }
}

/// The places of a loop that come back from tables.
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

    /// The candidate's range for a place that comes back from a table.
    pub(super) fn range(&self, place: Place) -> Option<(u64, u64)> {
        let table = self.0.iter().find(|t| t.place == place)?;
        table.holds().then_some((table.min, table.max))
    }

    /// Notes the values of a place at the loop's begin (`e`) and when it came back (`b`); `from`: whether it came from
    /// a table. Returns whether the candidate's range changes.
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
    /// Notes the places that came back from tables in a havocked iteration.
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
