//! Places that hold none in some rounds of a loop: found by comparing what entered it with what came back.
//!
//! Approach: one of the two is `-1` or null, and the other is something else, which is no such number. Whether that is
//! worth telling rounds apart by ([`super::sides`]), nobody knows yet, so it is tried only where all else has failed;
//! until then it is noted that there is such a place.
//!
//! Invariants: nothing here is trusted. What is wrongly taken for none, or for another number, is another guess.

use super::place::{Place, places_of_both, value};
use crate::scalar::Scalar;
use crate::state::State;
use crate::value::{Ty, Value};

/// Places that rounds are told apart by.
const MAX_PARTED: usize = 4;
/// Sides that are seen besides what entered.
const MAX_SIDES: usize = 5;

/// `-1` in 64 bits, in 32 and in 16, and null.
pub(super) const NONES: [u64; 4] = [u64::MAX, 0xffff_ffff, 0xffff, 0];

/// A place that holds none in some rounds. One may have two: `-1` in 32 bits that an older processor version makes one
/// in 64 of in the first round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parted {
    pub(super) place: Place,
    pub(super) none: u64,
    /// What it was first seen to be besides.
    pub(super) some: Option<Value>,
    /// The constant that it came back as.
    pub(super) back: Option<u64>,
}

/// What a shape knows of such places.
#[derive(Clone, Debug, Default)]
pub(super) struct Parting {
    pub(super) places: Vec<Parted>,
    /// Sides that rounds came back to: a bit for each place that holds none.
    pub(super) sides: Vec<u8>,
    /// Some place might be told apart, and is not.
    pub(super) missed: bool,
}

/// The value, taken not to be none: as an index it is not negative. That is guessed, as all is.
pub(super) fn without(some: &Value, none: u64) -> Value {
    let most = if none == 0xffff { none - 1 } else { none >> 1 };
    let n = match some.is_scalar() && some.n.contains(none) {
        true => some.n.meet(&Scalar::unsigned(0, most)).unwrap_or(some.n),
        false => some.n,
    };
    Value { n, ..*some }
}

/// What of a place that began as the first and came back as the second is none, if one of them is.
fn parting(place: Place, begun: &Value, came: &Value) -> [Option<Parted>; 2] {
    let none = |v: &Value| v.as_const().filter(|c| NONES.contains(c));
    let back = came.as_const();
    let parted = |none, some: Option<&Value>| Some(Parted { place, none, some: some.map(|v| without(v, none)), back });
    let apart = |c: u64, some: &Value| match some.ty {
        // What is any number of its size is a hash or a sum.
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

/// Places that one of the two has none in, and the other something else.
pub(super) fn parted_between(a: &State, b: &State) -> Vec<Parted> {
    let parts = |p| Some(parting(p, &value(a, p)?, &value(b, p)?));
    places_of_both(a, b).filter_map(parts).flatten().flatten().collect()
}

impl Parting {
    /// A round was seen to end with these. Whether that is new, and the places that are.
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

    /// Rounds were seen to come back to this side. Whether that is new.
    pub(super) fn see_side(&mut self, bits: u8) -> bool {
        let new = !self.sides.contains(&bits) && self.sides.len() < MAX_SIDES;
        if new {
            self.sides.push(bits);
        }
        new
    }

    /// The side that a path comes back to on which these places changed.
    pub(super) fn side_of(&self, entry: &State, found: &[Parted]) -> u8 {
        let none = |p: &Parted| match found.iter().find(|f| f.place == p.place) {
            Some(f) => f.back == Some(p.none),
            None => value(entry, p.place).is_some_and(|v| v.as_const() == Some(p.none)),
        };
        self.places.iter().enumerate().map(|(i, p)| u8::from(none(p)) << i).sum()
    }
}
