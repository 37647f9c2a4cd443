//! The shape of a loop: the changes of a round, observed by comparing the state that entered it with the state that
//! came back.

use bpf_isa::{AluOp, Width};

use super::parting::{Parted, Parting, parted_between};
use super::place::{Place, places, places_of_both, put, value};
use super::relation::Relation;
use super::rows::{Stride, strides};
use super::shrinks::Shrink;
use super::tables::Tables;
use crate::scalar::Scalar;
use crate::state::State;
use crate::tnum::ones;
use crate::value::{Ty, Value};

/// The change of a place in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// A round adds this constant.
    Step(i32),
    /// A round adds an amount that differs between rounds.
    Move,
    /// A round may leave any value.
    Any,
}

/// How often an end of a range is widened to the next number that the program compares with, before it is widened fully
/// (thresholds); and how often to the next number that the loop compares that place with.
const MAX_STEPS: [u8; 2] = [3, 6];

/// The most comparisons of places that are remembered for one loop.
const MAX_LIMITS: usize = 48;

/// Low bits whose constancy is observed: those of an aligned address, or of a number that counts in strides.
const MAX_LOW: u32 = 4;

/// The shape of a loop: what a round changes.
#[derive(Clone, Debug, Default)]
pub(in crate::walk::loops) struct Shape {
    pub(super) changes: Vec<(Place, Change)>,
    /// Places that were seen below (above) the candidate's range: how far, and how often that was new.
    pub(super) less: Vec<(Place, i128, u8)>,
    pub(super) more: Vec<(Place, i128, u8)>,
    /// The number of low bits of a number or a pointer's offset that are known and stay unchanged.
    pub(super) low: Vec<(Place, u32)>,
    /// Thresholds: numbers that the loop compares with, and numbers beside them; then those of the whole program.
    pub(in crate::walk::loops) compared_with: [Vec<u64>; 2],
    /// Thresholds for single places, as values at the head, from comparisons in havocked iterations.
    pub(in crate::walk::loops) limits: Vec<(Place, u64)>,
    /// Places that are unchanged in every round, if they have no name of their own.
    pub(super) same: Vec<Place>,
    /// In a sample round: the names given to values without one.
    pub(in crate::walk::loops) names: Vec<(Place, u32)>,
    /// Whether no exit bounds the number of rounds within the width of the short numbers, so that wider ones may.
    pub(super) wide: bool,
    /// Whether no exit bounds the number of rounds at all, so that nothing is counted by them.
    pub(super) uncounted: bool,
    /// Pairs of places that held one number when the sample round began, and one number when it ended; the second is
    /// earlier. Compilers keep copies of numbers that a loop tests.
    pub(super) twins: Vec<(Place, Place)>,
    /// Places that go from one constant of a table to another.
    pub(super) tables: Tables,
    /// The number that every round divides, where that counts the rounds.
    pub(super) shrink: Option<Shrink>,
    /// Whether a candidate that counted rounds so has failed.
    pub(super) undivided: bool,
    /// The relations of places, if a candidate without them has failed; `begun`: whether the initial ones were chosen.
    pub(super) related: Option<Vec<Relation>>,
    /// Registers that the loop compares with others: if one stays unchanged, others may stay below it.
    pub(in crate::walk::loops) ends: Vec<u8>,
    pub(super) begun: bool,
    /// Whether pointers that may stay unchanged are related, too, and sums that do not hold in every round are tried as
    /// bounds.
    pub(in crate::walk::loops) further: bool,
    /// Places that move by multiples of unchanged numbers.
    pub(super) strides: Vec<Stride>,
    /// Whether rounds may be partitioned by places that hold none; and the partition.
    pub(in crate::walk::loops) parts: bool,
    pub(super) parting: Parting,
}

impl Shape {
    /// The part of the shape that another use of the loop can start from, which may be at another depth of calls: no
    /// names, and nothing that a frame or an owner of this use identifies.
    pub(in crate::walk::loops) fn reusable(&self) -> Shape {
        Shape { names: Vec::new(), related: None, begun: false, parting: self.parting.reusable(), ..self.clone() }
    }

    /// Notes that the value of the place at the head is compared with about this number.
    pub(super) fn limit(&mut self, place: Place, at: i128) {
        for at in [at - 1, at, at + 1].into_iter().filter_map(|at| u64::try_from(at).ok()) {
            if self.limits.len() < MAX_LIMITS && !self.limits.contains(&(place, at)) {
                self.limits.push((place, at));
            }
        }
    }

    /// Whether rounds are partitioned.
    pub(in crate::walk::loops) fn is_parted(&self) -> bool {
        !self.parting.places.is_empty()
    }

    /// Stops counting rounds by a divided number. Returns whether they were.
    pub(in crate::walk::loops) fn count_otherwise(&mut self) -> bool {
        let counted = self.shrink.take().is_some();
        self.undivided |= counted;
        counted
    }

    /// Whether some place is searched from below, step by step.
    pub(in crate::walk::loops) fn has_tables(&self) -> bool {
        self.tables.any()
    }

    /// Whether rounds are partitioned by this place.
    pub(super) fn parts_by(&self, place: Place) -> bool {
        self.parting.places.iter().any(|p| p.place == place)
    }

    /// Whether a place was seen by which rounds might be partitioned, and are not.
    pub(in crate::walk::loops) fn misses_parts(&self) -> bool {
        self.parting.missed
    }

    /// Notes that a round ended with these places: rounds are partitioned by them from now on, instead of moving them.
    /// Returns whether that is new.
    pub(super) fn see_parted(&mut self, found: &[Parted]) -> bool {
        if !self.parts {
            self.parting.missed |= !found.is_empty();
            return false;
        }
        let (new, places) = self.parting.see(found);
        for place in places {
            self.changes.retain(|(p, _)| *p != place);
            self.same.retain(|p| *p != place);
            self.low.retain(|(p, _)| *p != place);
            self.less.retain(|(p, ..)| *p != place);
            self.more.retain(|(p, ..)| *p != place);
            self.strides.retain(|s| s.place != place && s.by != place);
        }
        new
    }

    pub(super) fn set(&mut self, place: Place, change: Change) {
        match self.changes.iter_mut().find(|(p, _)| *p == place) {
            Some((_, c)) => *c = change,
            None => self.changes.push((place, change)),
        }
        self.same.retain(|p| *p != place);
        self.strides.retain(|s| s.place != place && s.by != place);
        if change == Change::Any {
            self.twins.retain(|(p, first)| *p != place && *first != place);
        }
    }

    /// The place that held the same number as this one when the loop began, and may do so in every round.
    pub(super) fn twin_of(&self, place: Place, entry: &State) -> Option<Place> {
        let (_, first) = self.twins.iter().find(|(p, _)| *p == place && !self.parts_by(*p))?;
        alike(&value(entry, place)?, &value(entry, *first)?).then_some(*first)
    }

    /// Notes the places that changed alike.
    fn see_twins(&mut self, entry: &State, back: &State) {
        self.twins.clear();
        let both = |a: Place, b: Place| {
            let (ea, eb, ba, bb) = (value(entry, a), value(entry, b), value(back, a), value(back, b));
            matches!((ea, eb, ba, bb), (Some(ea), Some(eb), Some(ba), Some(bb)) if alike(&ea, &eb) && alike(&ba, &bb))
        };
        for (i, (place, _)) in self.changes.iter().enumerate() {
            // The first place that is alike.
            let first = |(p, _): &&(Place, Change)| both(*p, *place);
            if let Some((first, _)) = self.changes[..i].iter().find(first) {
                self.twins.push((*place, *first));
            }
        }
    }

    /// Notes whether the range at the back-edge exceeds the range at entry. Returns whether that is new.
    pub(super) fn see_range(&mut self, place: Place, e: &Value, b: &Value) -> bool {
        let ((e_min, e_max), (b_min, b_max)) = (e.bounds(), b.bounds());
        let stay = low_bits_alike(e, b);
        let most = self.most_steps(place);
        let mut new = false;
        match self.low.iter_mut().find(|(p, _)| *p == place) {
            Some((_, bits)) if stay < *bits => (*bits, new) = (stay, true),
            Some(_) => {}
            None => self.low.push((place, stay)),
        }
        for (left, at, list) in [(b_min < e_min, b_min, &mut self.less), (b_max > e_max, b_max, &mut self.more)] {
            match list.iter_mut().find(|(p, ..)| *p == place) {
                _ if !left => {}
                None => {
                    list.push((place, at, 0));
                    new = true;
                }
                // A further threshold, where thresholds are used.
                Some((_, ever, times)) if self.related.is_some() && *times < most => {
                    (*ever, *times) = (at, *times + 1);
                    new = true;
                }
                Some(_) => {}
            }
        }
        new
    }

    fn most_steps(&self, place: Place) -> u8 {
        MAX_STEPS[usize::from(self.limits.iter().any(|(p, _)| *p == place))]
    }

    /// The set of numbers whose low bits are those of `v` that stay unchanged.
    pub(super) fn aligned(&self, place: Place, v: &Value) -> Scalar {
        let bits = self.low.iter().find(|(p, _)| *p == place).map_or(0, |(_, bits)| *bits);
        let low: u64 = ones(bits);
        let cleared = Scalar::UNKNOWN.alu(AluOp::And, Width::W64, &Scalar::constant(!low));
        cleared.alu(AluOp::Or, Width::W64, &Scalar::constant(v.n.bits().value() & low))
    }

    /// The range of a place in the candidate, from its initial range `old` within its type's range `all`. An end that
    /// no round exceeded stays. Where more candidates may be tried, an end that was exceeded goes to the next number
    /// that the loop compares the place with, or else with anything, a few times.
    pub(super) fn range(&self, place: Place, old: (u64, u64), all: (u64, u64)) -> (u64, u64) {
        if let Some((min, max)) = self.tables.range(place) {
            return (min.min(old.0), max.max(old.1));
        }
        let left = |list: &[(Place, i128, u8)]| list.iter().find(|(p, ..)| *p == place).copied();
        let near = |times: u8| self.related.is_some() && times < self.most_steps(place);
        let own = || self.limits.iter().filter(|(p, _)| *p == place).map(|(_, c)| *c);
        let min = match left(&self.less) {
            None => old.0,
            Some((_, at, times)) if near(times) => {
                let lower = |of: &Vec<u64>| of.iter().filter(|c| i128::from(**c) <= at && **c >= all.0).max().copied();
                let own = own().filter(|c| i128::from(*c) <= at && *c >= all.0).max();
                own.or_else(|| self.compared_with.iter().find_map(lower)).unwrap_or(all.0)
            }
            Some(_) => all.0,
        };
        let max = match left(&self.more) {
            None => old.1,
            Some((_, at, times)) if near(times) => {
                let upper = |of: &Vec<u64>| of.iter().filter(|c| i128::from(**c) >= at && **c <= all.1).min().copied();
                let own = own().filter(|c| i128::from(*c) >= at && *c <= all.1).min();
                own.or_else(|| self.compared_with.iter().find_map(upper)).unwrap_or(all.1)
            }
            Some(_) => all.1,
        };
        (min.min(max), max)
    }
}

/// The number of low bits that are known in both values, and equal.
fn low_bits_alike(a: &Value, b: &Value) -> u32 {
    a.n.bits().join(b.n.bits()).mask().trailing_zeros().min(MAX_LOW)
}

/// Whether the two are the same number, by its name.
fn alike(a: &Value, b: &Value) -> bool {
    a.is_scalar() && b.is_scalar() && a.id != 0 && (a.id, a.scale, a.delta) == (b.id, b.scale, b.delta)
}

/// Names every number without a name, and every pointer at an unknown offset.
pub(in crate::walk::loops) fn name_all(state: &mut State, shape: &mut Shape, next_id: &mut u32) {
    shape.names.clear();
    for place in places(state).collect::<Vec<_>>() {
        let Some(v) = value(state, place) else { continue };
        let pointer = match v.ty {
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Signed => {
                v.tie == 0 && v.n.smin() >= 0 && v.n.as_const().is_none()
            }
            _ => false,
        };
        if pointer || (v.is_scalar() && v.id == 0) {
            *next_id += 1;
            shape.names.push((place, *next_id));
            put(state, place, v.renamed(*next_id, 1, 0));
        }
    }
}

/// Finds the changes of a round, from the state that entered it and the state that came back. `false` if no candidate
/// can be made.
pub(in crate::walk::loops) fn compare(entry: &State, back: &State, shape: &mut Shape) -> bool {
    let same_held = entry.owed == back.owed && entry.locks == back.locks && entry.sections == back.sections;
    if entry.frames.len() != back.frames.len() || !same_held {
        return false;
    }
    shape.changes.clear();
    shape.same.clear();
    shape.less.clear();
    shape.more.clear();
    shape.low.clear();
    shape.tables.clear();
    shape.strides.clear();
    shape.parting = Parting::default();
    for place in places_of_both(entry, back) {
        let (Some(mut e), Some(b)) = (value(entry, place), value(back, place)) else { continue };
        let name = shape.names.iter().find(|(p, _)| *p == place).map(|(_, id)| *id);
        if let Some(id) = name {
            e = e.renamed(id, 1, 0);
        }
        match change(&e, &b) {
            None if e.line_id() != 0 && name.is_some() && e.n.as_const().is_none() && b.line_id() == e.line_id() => {
                shape.same.push(place);
            }
            None => {}
            Some(c) => {
                shape.changes.push((place, c));
                shape.see_range(place, &e, &b);
            }
        }
    }
    shape.see_twins(entry, back);
    if shape.further {
        let mut named = entry.clone();
        for (place, id) in &shape.names {
            if let Some(v) = value(entry, *place) {
                put(&mut named, *place, v.renamed(*id, 1, 0));
            }
        }
        let moved = shape.changes.iter().filter(|(_, c)| !matches!(c, Change::Step(_))).map(|(p, _)| *p);
        shape.strides = strides(&named, back, moved);
    }
    let mut parted = parted_between(entry, back);
    parted.retain(|p| !shape.changes.iter().any(|(q, c)| *q == p.place && matches!(c, Change::Step(_))));
    if shape.see_parted(&parted) {
        let side = shape.parting.side_of(entry, &parted);
        shape.parting.see_side(side);
    }
    true
}

/// The change from `e` to `b`.
fn change(e: &Value, b: &Value) -> Option<Change> {
    if e.ty != b.ty || e.null != b.null || e.owner != b.owner {
        return Some(Change::Any);
    }
    let step = |d: i64| match i16::try_from(d) {
        Ok(0) => None,
        Ok(d) => Some(Change::Step(d.into())),
        Err(_) => Some(Change::Any),
    };
    let tied = e.line_id() != 0 && (e.line_id(), e.scale) == (b.line_id(), b.scale);
    let apart = i64::from(b.delta) - i64::from(e.delta);
    match e.ty {
        Ty::Scalar => match (e.n.as_const(), b.n.as_const()) {
            _ if tied => step(apart),
            (Some(x), Some(y)) => step((y as i64).wrapping_sub(x as i64)),
            _ if b.id == 0 && b.n.subset(&e.n) => None,
            _ if b.id != 0 => Some(Change::Move),
            _ => Some(Change::Any),
        },
        Ty::Packet { .. } if (e.id, e.scale) == (b.id, b.scale) => step(apart),
        Ty::Packet { .. } => Some(Change::Move),
        Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Signed if e.id == b.id => {
            match (e.n.as_const(), b.n.as_const()) {
                (Some(x), Some(y)) => step((y as i64).wrapping_sub(x as i64)),
                _ if tied => step(apart),
                _ if e.n == b.n => None,
                _ => Some(Change::Any),
            }
        }
        _ if e.id == b.id && e.n == b.n => None,
        _ => Some(Change::Any),
    }
}
