//! Rounds that are counted by a number which each of them divides: a ranking function by logarithm.
//!
//! Problem: a number has as many digits, or bits, as it can be divided: no test bounds their count, which is the index
//! at which they are written. Approach: find a place that every round which comes back leaves at a fraction of its
//! value ([`Shrink`]). If that bounds the rounds closer than the exits do, it counts them. If a candidate with this
//! count fails, the rounds are counted by the exits again.
//!
//! Claim: let the place be at most `most` when the loop begins, and let each round that comes back begin with at least
//! `least` there and leave at most `1 / by` of its value. Then at most `1 + log(most / least)` rounds to the base `by`
//! come back, and none if `most < least`. Proof: V(j), with which round j (from 0) begins, is at most `most / by^j`,
//! and at least `least` if that round comes back. So `by^j <= most / least`, which holds for at most that many j.
//!
//! Invariants: a havocked iteration finds such a place; the check tests every round that comes back
//! ([`Guess::rounds_of_divided`]). If one does not divide the place ([`Guess::undivided`]), the rounds are not proven
//! to end ([`Guess::ends`]), however few the candidate allows.

use super::Guess;
use super::place::{Place, places, value};
use crate::faults::planted;
use crate::state::State;
use crate::value::Value;

/// A place that each round divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shrink {
    pub(super) place: Place,
    /// Upper bound of the fraction that a round leaves: `1 / by`.
    by: u64,
    /// Lower bound of the value with which a round begins that comes back.
    least: u64,
}

impl Shrink {
    /// The most rounds that come back, if the place is at most `most` when the loop begins.
    pub(super) fn rounds(&self, most: u64) -> u64 {
        match most / self.least {
            0 => 0,
            times => 1 + u64::from(times.ilog(self.by)),
        }
    }
}

impl Guess {
    /// The shrink of each named place that this round divided.
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

    /// Keeps the shrinks that this round, and all earlier ones, performed.
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

    /// The shrink that bounds the rounds below `counted`, if there is one.
    pub(super) fn counts_less(&self, counted: u64) -> Option<Shrink> {
        let rounds = |s: &Shrink| value(&self.entry, s.place).map_or(u64::MAX, |v| s.rounds(v.n.umax()));
        let found = self.shrinking.iter().flatten().min_by_key(|s| rounds(s));
        found.filter(|s| rounds(s) < counted).copied()
    }

    /// The bound of the rounds that come back, if this round has divided the place that counts them.
    pub(super) fn rounds_of_divided(&self, back: &State) -> Option<u64> {
        let (s, rounds) = self.shrink?;
        let again = |now: &Shrink| now.place == s.place && now.by >= s.by && now.least >= s.least;
        (self.shrinking(back).iter().any(again) || planted!(RoundsUndivided)).then_some(rounds)
    }
}
