//! Partitioning: finds places that hold none in some rounds of a loop, by comparing the state that entered it with the
//! states that came back.
//!
//! Approach: one of both values is `-1` or null, and the other is something else. It is not known in advance whether a
//! partition by the place ([`super::sides`]) helps, so it is tried only after all else has failed. Until then, only the
//! existence of such a place is noted.
//!
//! Invariant: nothing here is trusted. A wrong choice of none only makes another candidate.

use super::place::{Place, places_of_both, value};
use crate::scalar::Scalar;
use crate::state::State;
use crate::value::{Origin, Ty, Value};

/// The most places by which rounds are partitioned.
const MAX_PARTED: usize = 4;
/// The most sides besides the side of the state that entered.
const MAX_SIDES: usize = 5;

/// The constants that are none: `-1` in 64, 32 and 16 bits, and null.
pub(super) const NONES: [u64; 4] = [u64::MAX, 0xffff_ffff, 0xffff, 0];

/// A place that holds none in some rounds. It may have two constants for none: `-1` in 32 bits may become `-1` in 64
/// bits in the first round, in code for older processor versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parted {
    pub(super) place: Place,
    pub(super) none: u64,
    /// The other value that it was first seen to hold.
    pub(super) some: Option<Value>,
    /// The constant as which it came back.
    pub(super) back: Option<u64>,
}

/// The partition as far as a shape knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Parting {
    pub(super) places: Vec<Parted>,
    /// The sides to which rounds came back: one bit for each place that holds none.
    pub(super) sides: Vec<u8>,
    /// Whether rounds might be partitioned by some place and are not.
    pub(super) missed: bool,
}

/// The value without none. An index is assumed not to be negative; like everything in a candidate, this is checked.
pub(super) fn without(some: &Value, none: u64) -> Value {
    let most = if none == 0xffff { none - 1 } else { none >> 1 };
    let n = match some.is_scalar() && some.n.contains(none) {
        true => some.n.meet(&Scalar::unsigned(0, most)).unwrap_or(some.n),
        false => some.n,
    };
    Value { n, ..*some }
}

/// The constants that are none for a place that began as the first value and came back as the second.
fn parting(place: Place, begun: &Value, came: &Value) -> [Option<Parted>; 2] {
    let none = |v: &Value| v.as_const().filter(|c| NONES.contains(c));
    let back = came.as_const();
    let parted = |none, some: Option<&Value>| Some(Parted { place, none, some: some.map(|v| without(v, none)), back });
    let apart = |c: u64, some: &Value| match some.ty {
        // A number with the full range of its type is rather a hash or a sum.
        Ty::Scalar => {
            let any = || [16, 32, 64].iter().any(|bits| some.is_any(*bits));
            c != 0 && some.as_const() != Some(c) && (some.id != 0 || !any())
        }
        Ty::Packet { .. } | Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } => c == 0 && !some.null,
        _other => false,
    };
    match (none(begun), none(came)) {
        (Some(a), Some(b)) if a != b && a != 0 && b != 0 => [parted(a, None), parted(b, None)],
        (Some(c), None) if apart(c, came) => [parted(c, Some(came)), None],
        (None, Some(c)) if apart(c, begun) => [parted(c, Some(begun)), None],
        (Some(_) | None, Some(_) | None) => [None, None],
    }
}

/// The places that hold none in one state and something else in the other.
pub(super) fn parted_between(a: &State, b: &State) -> Vec<Parted> {
    let parts = |p| Some(parting(p, &value(a, p)?, &value(b, p)?));
    places_of_both(a, b).filter_map(parts).flatten().flatten().collect()
}

impl Parting {
    /// The partition for another use of the loop, in which frames and owners are others.
    pub(super) fn reusable(&self) -> Parting {
        let lasts = |some: &Value| {
            let frame = matches!(some.ty, Ty::Stack { .. } | Ty::Mem { from: Origin::Lent { .. }, .. });
            !frame && some.owner == 0
        };
        let place = |p: &Parted| Parted { some: p.some.filter(lasts), ..*p };
        Parting { places: self.places.iter().map(place).collect(), ..self.clone() }
    }

    /// Notes that a round ended with these places. Returns whether anything is new, and the new places.
    pub(super) fn see(&mut self, found: &[Parted]) -> (bool, Vec<Place>) {
        let (mut new, mut places) = (false, Vec::new());
        for p in found {
            let known = |q: &&mut Parted| (q.place, q.none) == (p.place, p.none);
            if let Some(q) = self.places.iter_mut().find(known) {
                new |= q.some.is_none() && p.some.is_some();
                q.some = q.some.or(p.some);
            } else if self.places.len() < MAX_PARTED {
                self.places.push(*p);
                places.push(p.place);
                new = true;
            }
        }
        (new, places)
    }

    /// Notes a side to which rounds came back. Returns whether it is new.
    pub(super) fn see_side(&mut self, bits: u8) -> bool {
        let new = !self.sides.contains(&bits) && self.sides.len() < MAX_SIDES;
        if new {
            self.sides.push(bits);
        }
        new
    }

    /// The side of a path that changed these places.
    pub(super) fn side_of(&self, entry: &State, found: &[Parted]) -> u8 {
        let none = |p: &Parted| match found.iter().find(|f| f.place == p.place) {
            Some(f) => f.back == Some(p.none),
            None => value(entry, p.place).is_some_and(|v| v.as_const() == Some(p.none)),
        };
        self.places.iter().enumerate().map(|(i, p)| u8::from(none(p)) << i).sum()
    }
}
