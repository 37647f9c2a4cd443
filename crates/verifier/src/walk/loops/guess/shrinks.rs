//! Rounds that are counted by a number which each of them divides.
//!
//! Problem: the digits of a number, or its bits, are as many as it can be divided: no test bounds their count, which is
//! an index of what they are written to. Approach: a place is looked for that every round which comes back leaves at a
//! fraction of what it was ([`Shrink`]); if that bounds them closer than the exits do, it counts them. Where a guess
//! that is counted so fails, they are counted by the exits again.
//!
//! Claim: no more than `1 + log(most / least)` to the base `by` come back, or none if `most` is below `least`; where
//! the place is `most` at most when the loop begins, and a round that comes back began with `least` there, or more, and
//! left `1 / by` of it, or less. Proof: V(j), of what round j begins with, is `most / by^j` at most, and `least` or
//! more if that round comes back: so `by^j <= most / least`, and the head is reached once more than that at most.
//!
//! Invariants: a loose walk looks for such a place; the check asks every round that comes back whether it does so
//! ([`Guess::rounds_of_divided`]). If one does not ([`Guess::undivided`]), the rounds are not proven to end
//! ([`Guess::ends`]), however few the guess holds.

use super::Guess;
use super::place::{Place, places, value};
use crate::faults::planted;
use crate::state::State;
use crate::value::Value;

/// A place that each round divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shrink {
    pub(super) place: Place,
    /// What a round leaves is so often in what it began with, or more often.
    by: u64,
    /// What a round begins with that comes back, at least.
    least: u64,
}

impl Shrink {
    /// How many rounds come back at most, if the place is that at most when the loop begins.
    pub(super) fn rounds(&self, most: u64) -> u64 {
        match most / self.least {
            0 => 0,
            times => 1 + u64::from(times.ilog(self.by)),
        }
    }
}

impl Guess {
    /// What each place that has a name does in a round that comes back, if it is divided.
    fn shrinking(&self, back: &State) -> Vec<Shrink> {
        let of = |place: Place| {
            let (g, b) = (value(&self.state, place)?, value(back, place)?);
            let plain = |v: &Value| v.is_scalar() && v.id != 0 && (v.scale, v.delta) == (1, 0);
            if !plain(&g) || !plain(&b) || g.id == b.id {
                return None;
            }
            let below = back.room.iter().filter(|f| (f.id, f.hi) == (b.id, g.id) && f.bytes >= 0);
            let by = u64::try_from(below.map(|f| f.scale).max()?).ok().filter(|by| *by > 1)?;
            let left = back.least_of(b.id).and_then(|least| u64::try_from(least).ok()).unwrap_or(0);
            let began = back.least_of(g.id).and_then(|least| u64::try_from(least).ok()).unwrap_or(0);
            let least = left.checked_mul(by)?.max(began);
            (least > 0).then_some(Shrink { place, by, least })
        };
        places(&self.state).filter_map(of).collect()
    }

    /// A round of a loose walk has come back: those that are left of what all rounds divided.
    pub(super) fn see_shrinking(&mut self, back: &State) {
        if self.shrink.is_some() || self.uncounted {
            return;
        }
        let now = self.shrinking(back);
        self.shrinking = Some(match self.shrinking.take() {
            None => now,
            Some(ever) => {
                let both = |s: Shrink| {
                    let n = now.iter().find(|n| n.place == s.place)?;
                    Some(Shrink { by: s.by.min(n.by), least: s.least.min(n.least), ..s })
                };
                ever.into_iter().filter_map(both).collect()
            }
        });
    }

    /// A place that they divide, if it says of fewer rounds than all else, `counted`.
    pub(super) fn counts_less(&self, counted: u64) -> Option<Shrink> {
        let rounds = |s: &Shrink| value(&self.entry, s.place).map_or(u64::MAX, |v| s.rounds(v.n.umax()));
        let found = self.shrinking.iter().flatten().min_by_key(|s| rounds(s));
        found.filter(|s| rounds(s) < counted).copied()
    }

    /// How many rounds come back, if this one that has come back has divided the place by which they are counted.
    pub(super) fn rounds_of_divided(&self, back: &State) -> Option<u64> {
        let (s, rounds) = self.shrink?;
        let again = |now: &Shrink| now.place == s.place && now.by >= s.by && now.least >= s.least;
        (self.shrinking(back).iter().any(again) || planted!(RoundsUndivided)).then_some(rounds)
    }
}
