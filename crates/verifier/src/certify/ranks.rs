//! Ranks: differences of what a loop moves, of which those that do not decrease are dropped.
//!
//! The rank of a point is lexicographic: for each loop around it, outermost first, where that stands in its function
//! and its measure; for each call its place; and last whether the point comes before what is inside of its loop, or
//! after. So ways from one loop to a later one decrease without a measure, and the parts of the graph of kept points
//! need not be known.

use bpf_isa::InsnIdx;
use bpf_verifier_core::{Form, Knowledge, State};

use super::multipliers;
use super::points::{Place, PointState, number_at, places};

/// A loop, by the chain of calls to its function and its head.
type LoopId = (Vec<Option<InsnIdx>>, u32);

/// What may decrease.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Measure {
    /// The one place less the other.
    Apart(Place, Place),
    /// The constant less the place.
    Below(i128, Place),
    /// The place less the constant.
    Above(Place, i128),
    /// A form over the names of the loop's own point, of a loop without others inside.
    Own(usize, Form),
}

#[derive(Clone, Debug)]
struct Candidate {
    measure: Measure,
    /// Whether the loop's own point may rank above what is inside of it, and below.
    above: bool,
    below: bool,
}

/// The candidates that are left, by loop.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    heads: Vec<(u32, u32)>,
    of: Vec<(LoopId, Vec<Candidate>)>,
}

const ABOVE: i128 = 1 << 40;

fn position(pc: u32) -> i128 {
    (1 << 33) - i128::from(pc)
}

/// Part of a rank.
enum Part {
    Loop(LoopId, u32),
    Call(u32),
}

impl Ranks {
    /// Every candidate of every loop.
    pub(super) fn new(heads: &[(u32, u32)], points: &[PointState]) -> Ranks {
        let mut ranks = Ranks { heads: heads.to_vec(), of: Vec::new() };
        for (i, point) in points.iter().enumerate() {
            let Some(Part::Loop(id, _)) = ranks.parts(point).pop() else { continue };
            let all = measures(i, point).into_iter().map(|measure| Candidate { measure, above: true, below: true });
            ranks.of.push((id, all.collect()));
        }
        ranks
    }

    /// The loops and calls around a point, outermost first: the last is its own loop.
    fn parts(&self, point: &PointState) -> Vec<Part> {
        let frames = &point.claim.frames;
        let mut parts = Vec::new();
        let mut chain = Vec::new();
        for (f, frame) in frames.iter().enumerate() {
            chain.push(frame.back);
            let next = frames.get(f + 1).and_then(|frame| frame.back);
            let pc = next.map_or(point.at.0, |back| back.0.saturating_sub(1));
            let around = self.heads.iter().filter(|(head, last)| (*head..=*last).contains(&pc));
            parts.extend(around.map(|(head, _)| Part::Loop((chain.clone(), *head), *head)));
            // A point that is no loop head is placed after the heads of the loops around it, as if it were called from
            // them.
            if next.is_some() || self.heads.iter().all(|(head, _)| *head != pc) {
                parts.push(Part::Call(pc));
            }
        }
        parts
    }

    fn chosen(&self, id: &LoopId) -> Option<&Candidate> {
        let (_, all) = self.of.iter().find(|(of, _)| of == id)?;
        all.iter().find(|c| c.above || c.below)
    }

    /// The rank of a point.
    pub(super) fn of(&self, point: &PointState) -> Vec<Form> {
        let mut rank = Vec::new();
        let mut above = true;
        for part in self.parts(point) {
            match part {
                Part::Loop(id, head) => {
                    let chosen = self.chosen(&id);
                    above = chosen.is_none_or(|c| c.above);
                    rank.push(Form::constant(position(head)));
                    let measure = chosen.and_then(|c| value(&c.measure, usize::MAX, point));
                    rank.push(measure.unwrap_or_default());
                }
                Part::Call(pc) => rank.push(Form::constant(position(pc))),
            }
        }
        rank.push(Form::constant(if above { ABOVE } else { 0 }));
        rank
    }

    /// Drops what does not decrease on the way from one point to another.
    pub(super) fn see(
        &mut self,
        (from, source): (usize, &PointState),
        (to, target): (usize, &PointState),
        state: &State,
        renaming: &[Form],
    ) {
        let (from_parts, to_parts) = (self.parts(source), self.parts(target));
        for (depth, pair) in from_parts.iter().zip(&to_parts).enumerate() {
            let id = match pair {
                (Part::Loop(a, _), Part::Loop(b, _)) if a == b => a,
                (Part::Call(a), Part::Call(b)) if a == b => continue,
                _other => return,
            };
            let (source_is_own, target_is_own) = (depth + 1 == from_parts.len(), depth + 1 == to_parts.len());
            let later = match (from_parts.get(depth + 1), to_parts.get(depth + 1)) {
                (Some(a), Some(b)) => place_of(a) > place_of(b) || same(a, b),
                _other => true,
            };
            let Some((_, all)) = self.of.iter_mut().find(|(of, _)| of == id) else { return };
            for candidate in all.iter_mut().filter(|c| c.above || c.below) {
                let before = value(&candidate.measure, from, source);
                let after = value(&candidate.measure, to, target).and_then(|form| form.substitute(renaming));
                let less = before.as_ref().zip(after).and_then(|(before, after)| before.plus(&after, -1));
                let (Some(before), Some(less)) = (before, less) else {
                    (candidate.above, candidate.below) = (false, false);
                    continue;
                };
                let strictly = less.shifted(-1).is_some_and(|f| holds(state.known(), &f));
                if strictly && holds(state.known(), &before) {
                    continue;
                }
                if !holds(state.known(), &less) || !later || source_is_own && target_is_own {
                    (candidate.above, candidate.below) = (false, false);
                }
                candidate.below &= !source_is_own;
                candidate.above &= !target_is_own;
            }
        }
    }
}

fn same(a: &Part, b: &Part) -> bool {
    match (a, b) {
        (Part::Loop(a, _), Part::Loop(b, _)) => a == b,
        (Part::Call(a), Part::Call(b)) => a == b,
        (Part::Loop(..), Part::Call(_)) | (Part::Call(_), Part::Loop(..)) => false,
    }
}

fn place_of(part: &Part) -> i128 {
    match part {
        Part::Loop(_, pc) | Part::Call(pc) => position(*pc),
    }
}

fn holds(known: &Knowledge, claim: &Form) -> bool {
    known.is_not_negative(claim) || multipliers::find(known, claim).is_some()
}

/// The measure at a point; `i` is the point's number, or unknown and its own.
fn value(measure: &Measure, i: usize, point: &PointState) -> Option<Form> {
    let at = |place: Place| number_at(&point.claim.lengths, &point.claim.frames, place);
    match measure {
        Measure::Apart(a, b) => at(*a)?.plus(&at(*b)?, -1),
        Measure::Below(c, place) => Form::constant(*c).plus(&at(*place)?, -1),
        Measure::Above(place, c) => at(*place)?.shifted(c.checked_neg()?),
        Measure::Own(own, form) => (i == usize::MAX || i == *own).then(|| form.clone()),
    }
}

/// What may decrease in the loop of a point.
fn measures(i: usize, point: &PointState) -> Vec<Measure> {
    let claim = &point.claim;
    let at = |place: Place| number_at(&claim.lengths, &claim.frames, place);
    let all = places(&claim.lengths, &claim.frames);
    let mut measures = Vec::new();
    let bounds = |form: &Form| {
        form.terms().iter().try_fold((form.offset(), form.offset()), |(min, max), (n, a)| {
            let (least, most) = claim.names.get(n.index())?.bounds();
            let (x, y) = (a.checked_mul(least)?, a.checked_mul(most)?);
            Some((min.checked_add(x.min(y))?, max.checked_add(x.max(y))?))
        })
    };
    let moving: Vec<Place> = all.iter().copied().filter(|p| at(*p).is_some_and(|f| f.as_const().is_none())).collect();
    for a in &moving {
        if let Some((min, max)) = at(*a).and_then(|form| bounds(&form)) {
            measures.extend([Measure::Below(max, *a), Measure::Above(*a, min)]);
        }
    }
    for a in &all {
        for b in moving.iter().filter(|b| *b != a) {
            measures.push(Measure::Apart(*a, *b));
            measures.push(Measure::Apart(*b, *a));
        }
    }
    measures.extend(claim.rows.iter().map(|row| Measure::Own(i, row.clone())));
    measures
}
