//! Places that hold *none* (`-1` or null) in some rounds, and an index or a pointer in others: trace partitioning
//! (Rival and Mauborgne 2007).
//!
//! Problem: a range of both, from -1 to the last index, has no name, as no number with a name is negative; and the join
//! of a pointer with null is nothing at all. Approach: rounds in which such a place holds none are separated from the
//! others. A candidate has a state for each set of places that hold none ([`Side`]): the set of the state that entered
//! the loop, and the sets that rounds were seen to come back to. On sides where the place holds something, it has a
//! name of its own, like every place that moves. One walk of the body starts from each side; a state that comes back
//! must be covered by the side that its own values select.
//!
//! Claim: the candidate as a whole, all its sides together, is an invariant. Proof: by induction over the rounds. One
//! side covers the state that entered ([`Guess::new`]). A round that begins inside a side is one that the walk from
//! that side has seen. Where it comes back, [`Guess::receive`] selects a side by the values in the places *there*, and
//! that side must cover the state; if there is no such side, the state is not covered. The selection itself proves
//! nothing: a wrong side would not cover the state.
//!
//! Termination: the round k is one number for all sides, and each side bounds it. A [`super::Measure`] compares a place
//! at the head with the place at the next head, so it says something only where the place has a name at both. A round
//! where the place holds none at either says nothing, and must be ended by another argument. A state that was kept on
//! one side never covers a state of another, whose names have other meanings (`Mark::side`).
//!
//! Invariant: if a place holds none, no fact of the state is about its name, which denotes nothing then.

use super::parting::{NONES, Parted, parted_between, without};
use super::place::{Place, look, places, put, value};
use super::relation::{Of, Relation};
use super::rows::forget_names;
use super::{Change, Guess, Own, Shape, loosened_to, relations};
use crate::env::Env;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Pool, Room, State};
use crate::value::{Ty, Value, Why, offset_name};

/// One part of the partition: the rounds in which exactly these places hold none.
#[derive(Debug)]
pub(super) struct Side {
    bits: u8,
    state: State,
    /// As in [`Guess`].
    back: Option<State>,
    still: Vec<Own>,
}

/// The partition of a candidate.
#[derive(Debug, Default)]
pub(super) struct Sides {
    /// For each place: the constant that is none, and the name of the place where it holds something, or 0.
    parted: Vec<(Place, u64, u32)>,
    /// The side of [`Guess::state`], and the side of the state that entered.
    now: u8,
    begun: u8,
    others: Vec<Side>,
    /// Sides of states that came back and that the candidate lacks; and places by which rounds might be partitioned.
    missing: Vec<u8>,
    seen: Vec<Vec<Parted>>,
    /// Places that a round left unchanged which went from another side to this one.
    crossed: Vec<(u8, Place)>,
    /// Whether the last state that came back went from one side to another.
    crosses: bool,
    /// Sides that have been weakened.
    weakened: Vec<u8>,
}

/// Whether the place is one of the partition's and holds none on that side.
fn holds_none(parted: &[(Place, u64, u32)], place: Place, side: u8) -> bool {
    parted.iter().enumerate().any(|(i, (p, ..))| *p == place && side >> i & 1 != 0)
}

impl Sides {
    /// The partition for a state that enters the loop. `name` makes names.
    pub(super) fn new(entry: &State, shape: &Shape, mut name: impl FnMut() -> u32) -> Sides {
        let mut sides = Sides::default();
        sides.begun = shape.parting.side_of(entry, &[]);
        sides.now = sides.begun;
        for p in &shape.parting.places {
            sides.parted.push((p.place, p.none, 0));
        }
        for p in &shape.parting.places {
            let named = p.some.is_some_and(|some| matches!(some.ty, Ty::Scalar | Ty::Packet { .. }));
            if named && sides.is_none(p.place, sides.begun) && sides.owns().all(|o| o.place != p.place) {
                let id = if p.some.is_some_and(|some| some.is_in_region()) { offset_name(name()) } else { name() };
                sides.set_name(Own { place: p.place, id });
            }
        }
        sides
    }

    /// The states of all sides.
    pub(super) fn states(&self) -> impl Iterator<Item = &State> {
        self.others.iter().flat_map(|side| [&side.state].into_iter().chain(&side.back))
    }

    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut State> {
        self.others.iter_mut().flat_map(|side| [&mut side.state].into_iter().chain(&mut side.back))
    }

    /// Gives their states back.
    pub(super) fn retire(self, pool: &mut Pool) {
        for side in self.others {
            pool.push(side.state);
            pool.extend(side.back);
        }
    }

    pub(super) fn begun(&self) -> u8 {
        self.begun
    }

    /// The places of the partition, as places that move.
    pub(super) fn moves(&self) -> impl Iterator<Item = (Place, Change)> {
        self.distinct().map(|(place, _)| (place, Change::Move))
    }

    /// Each place once, with its name, even if it has two constants that are none.
    fn distinct(&self) -> impl Iterator<Item = (Place, u32)> {
        let first = |i: usize, p: Place| self.parted[..i].iter().all(|(q, ..)| *q != p);
        let places = self.parted.iter().enumerate().filter(move |(i, (p, ..))| first(*i, *p));
        places.map(|(_, (place, _, id))| (*place, *id))
    }

    /// The names of places that hold none when the loop begins.
    pub(super) fn owns(&self) -> impl Iterator<Item = Own> {
        self.distinct().filter(|(_, id)| *id != 0).map(|(place, id)| Own { place, id })
    }

    /// Notes the name of a place that holds something when the loop begins.
    pub(super) fn set_name(&mut self, own: Own) {
        for (_, _, id) in self.parted.iter_mut().filter(|(p, ..)| *p == own.place) {
            *id = own.id;
        }
    }

    /// Whether the place holds none on that side.
    fn is_none(&self, place: Place, side: u8) -> bool {
        holds_none(&self.parted, place, side)
    }

    /// Whether the relation is about a place that holds none on that side.
    fn misses(&self, r: Relation, side: u8) -> bool {
        r.about().any(|of| matches!(of, Of::Place(p) if self.is_none(p, side)))
    }

    fn side_of(&self, state: &State) -> u8 {
        let none = |(i, (p, none, _)): (usize, &(Place, u64, u32))| {
            u8::from(value(state, *p).is_some_and(|v| v.as_const() == Some(*none))) << i
        };
        self.parted.iter().enumerate().map(none).sum()
    }
}

impl Guess {
    /// The states of the sides that did not enter the loop.
    pub(in crate::walk::loops) fn other_sides(&self) -> impl Iterator<Item = &State> {
        self.sides.others.iter().map(|s| &s.state)
    }

    /// Whether the place holds none on the present side.
    pub(super) fn is_none(&self, place: Place) -> bool {
        self.sides.is_none(place, self.sides.now)
    }

    /// Whether the relation says nothing on the present side.
    pub(super) fn misses(&self, r: Relation) -> bool {
        self.sides.misses(r, self.sides.now)
    }

    /// The present side.
    pub(super) fn side(&self) -> u8 {
        self.sides.now
    }

    /// Whether the present side is the side of the state that entered the loop.
    pub(super) fn is_begun_side(&self) -> bool {
        self.sides.now == self.sides.begun
    }

    /// Whether the relation holds when the loop begins, or is about a place that holds none then.
    pub(super) fn begins_with(&self, r: Relation, state: &State) -> bool {
        self.sides.misses(r, self.sides.begun) || r.holds(&self.entry, state)
    }

    /// Whether the relation's places have names, at least on another side.
    pub(super) fn names_relation(&self, r: Relation) -> bool {
        let named_elsewhere = |p: Place| self.sides.parted.iter().any(|(q, _, id)| *q == p && *id != 0);
        r.about().all(|of| match of {
            Of::Place(p) if self.is_none(p) => named_elsewhere(p),
            of => of == Of::Zero || of.named(&self.state).is_some(),
        })
    }

    /// The names of the partition's places. They denote other values in each round, or none.
    pub(super) fn parted_names(&self) -> impl Iterator<Item = u32> {
        self.sides.parted.iter().map(|(.., id)| *id).filter(|id| *id != 0)
    }

    /// Makes this side the present one. `false` if there is no such side.
    fn turn_to(&mut self, bits: u8) -> bool {
        if self.sides.now == bits {
            return true;
        }
        let Some(side) = self.sides.others.iter_mut().find(|s| s.bits == bits) else { return false };
        std::mem::swap(&mut self.state, &mut side.state);
        std::mem::swap(&mut self.back, &mut side.back);
        std::mem::swap(&mut self.still, &mut side.still);
        std::mem::swap(&mut self.sides.now, &mut side.bits);
        true
    }

    /// Calls `with` for each side as the present one. The side of the state that entered comes last and stays the
    /// present one.
    pub(super) fn each_side(&mut self, mut with: impl FnMut(&mut Guess)) {
        let begun = self.sides.begun;
        let others: Vec<u8> = self.sides.others.iter().map(|s| s.bits).chain([self.sides.now]).collect();
        for bits in others.into_iter().filter(|bits| *bits != begun).chain([begun]) {
            if self.turn_to(bits) {
                with(self);
            }
        }
    }

    /// Renames a state that came back to the names of the next round, and makes its side the present one. `false` if
    /// there is no such side.
    pub(in crate::walk::loops) fn receive(&mut self, back: &mut State, next_id: &mut u32) -> bool {
        let to = self.sides.side_of(back);
        if !self.turn_to(to) {
            if !self.sides.missing.contains(&to) {
                self.sides.missing.push(to);
            }
            let found = parted_between(&self.entry, back);
            self.note_parting(found);
            return false;
        }
        let from = back.top().loops.last().map_or(0, |m| m.side);
        self.sides.crosses = from != to;
        self.sign_as_guessed(back);
        self.next_round(back, from, next_id);
        if let Some(mark) = back.top_mut().loops.last_mut() {
            mark.side = to;
        }
        true
    }

    /// Makes numbers that the candidate counts below zero signed again, after they came back as plain numbers.
    fn sign_as_guessed(&self, back: &mut State) {
        for place in places(&self.state).filter(|p| p.is_register()) {
            let counted = look(&self.state, place).is_some_and(|v| v.ty == Ty::Signed);
            if let (true, Some(v)) = (counted, value(back, place).and_then(|v| v.as_signed())) {
                put(back, place, v);
            }
        }
    }

    /// Whether the place had the name when a round of that side began.
    pub(super) fn had_name(&self, own: Own, from: u8) -> bool {
        let state = match from == self.sides.now {
            true => Some(&self.state),
            false => self.sides.others.iter().find(|s| s.bits == from).map(|s| &s.state),
        };
        state.and_then(|s| value(s, own.place)).is_some_and(|v| v.line_id() == own.id)
    }

    /// Whether a planted fault takes the state that came back as covered.
    pub(in crate::walk::loops) fn planted_inside(&self) -> bool {
        self.sides.crosses && planted!(SidesUncovered)
    }

    /// Removes none from places that hold something on this side, in a state of a havocked iteration.
    pub(super) fn without_none(&self, back: &mut State) {
        for (place, none, _) in &self.sides.parted {
            if let (Some(v), false) = (value(back, *place), self.is_none(*place)) {
                put(back, *place, without(&v, *none));
            }
        }
    }

    /// Notes that a round which went from another side to this one left these places unchanged.
    pub(super) fn see_crossed(&mut self, unchanged: &[Own]) {
        if self.sides.crosses {
            let now = self.sides.now;
            for o in unchanged {
                if !self.sides.crossed.contains(&(now, o.place)) {
                    self.sides.crossed.push((now, o.place));
                }
            }
        }
    }

    /// Notes that the present side is weakened. Returns whether it was before.
    pub(super) fn weakens_again(&mut self) -> bool {
        let again = self.sides.weakened.contains(&self.sides.now);
        self.sides.weakened.push(self.sides.now);
        again
    }

    /// Notes the places by which the state that came back might be partitioned.
    pub(super) fn see_parting(&mut self, back: &State) {
        let mut found = parted_between(&self.entry, back);
        found.retain(|p| !self.sides.parted.iter().any(|(q, none, _)| (*q, *none) == (p.place, p.none)));
        self.note_parting(found);
    }

    fn note_parting(&mut self, mut found: Vec<Parted>) {
        // A place that every round moves by the same step is no such place, wherever it begins.
        let moves = |p: &Parted| self.steps.contains(&p.place) && self.broken.iter().all(|(q, _)| *q != p.place);
        found.retain(|p| !moves(p));
        let what = |p: &Parted| (p.place, p.none, p.back);
        let same = |of: &Vec<Parted>| of.iter().map(what).eq(found.iter().map(what));
        if !found.is_empty() && !self.sides.seen.iter().any(same) {
            self.sides.seen.push(found);
        }
    }

    /// Refines the partition by the states that came back. Returns whether it changed.
    pub(in crate::walk::loops) fn part(&mut self, shape: &mut Shape) -> bool {
        let mut new = false;
        let seen = std::mem::take(&mut self.sides.seen);
        let known = shape.parting.places.len();
        for found in &seen {
            new |= shape.see_parted(found);
        }
        for bits in std::mem::take(&mut self.sides.missing) {
            new |= shape.parting.see_side(bits);
        }
        if shape.parting.places.len() == known {
            return new;
        }
        // The sides of the new places, from the observations of each path.
        for found in &seen {
            let bits = shape.parting.side_of(&self.entry, found);
            new |= shape.parting.see_side(bits);
        }
        new
    }

    /// In a havocked candidate: creates the sides that rounds came back to, with every changing place unknown on them,
    /// too.
    pub(super) fn begin_sides(&mut self, shape: &Shape, env: &Env<'_>, next_id: &mut u32) {
        let begun = self.sides.begun;
        for &bits in shape.parting.sides.iter().filter(|bits| **bits != begun) {
            let mut state = self.state.clone();
            let mut gone = Vec::new();
            for (i, p) in shape.parting.places.iter().enumerate() {
                let own = self.sides.parted[i].2;
                match (self.sides.is_none(p.place, begun), self.sides.is_none(p.place, bits)) {
                    (_, true) if bits >> i & 1 != 0 => {
                        put(&mut state, p.place, Value::constant(p.none));
                        gone.push(own);
                    }
                    (true, false) => {
                        let Some(some) = p.some else { continue };
                        let n = loosened_to(&some, p.place, shape, env);
                        let v = Value { n, ..some };
                        let v = match own {
                            0 if v.null => Value::uninit(Why::Dead),
                            0 if v.id == 0 => v.renamed(0, 1, 0),
                            0 => {
                                *next_id += 1;
                                let id = if v.is_in_region() { offset_name(*next_id) } else { *next_id };
                                Value { id, ..v.renamed(0, 1, 0) }
                            }
                            own => v.renamed(own, 1, 0),
                        };
                        put(&mut state, p.place, v);
                    }
                    (_, true) | (false, false) => {}
                }
            }
            // A place about which nothing is known there gets no side.
            let unknown = |p: &Parted| {
                value(&state, p.place)
                    .is_some_and(|v| self.sides.is_none(p.place, bits) != NONES.map(Some).contains(&v.as_const()))
            };
            if shape.parting.places.iter().any(unknown) {
                continue;
            }
            let others: Vec<u32> =
                self.own.iter().filter(|o| !self.sides.is_none(o.place, bits)).map(|o| o.id).collect();
            gone.retain(|id| *id != 0 && !others.contains(id));
            let lost = self.relations.iter().filter(|(r, name)| *name != 0 && self.sides.misses(*r, bits));
            gone.extend(lost.map(|(_, name)| *name));
            forget_names(&mut state, &gone, next_id);
            let begin = |(r, _): &&(Relation, u32)| self.sides.misses(*r, begun) && !self.sides.misses(*r, bits);
            let more: Vec<_> = self.relations.iter().filter(begin).copied().collect();
            let names = state.clone();
            for (r, name) in &more {
                r.enter(&names, &mut state, *name);
            }
            relations::clip(&more, &names, &mut state, self.further);
            if let Some(mark) = state.top_mut().loops.last_mut() {
                mark.side = bits;
            }
            for f in &mut state.frames {
                f.drop_uninit_spills();
            }
            self.sides.others.push(Side { bits, state, back: None, still: Vec::new() });
        }
    }

    /// Takes the states of the other sides from the states that came back to the havocked candidate, in this
    /// candidate's names: nothing else has entered these sides.
    pub(super) fn settle_sides(&mut self, loose: &Guess, names: &[(u32, u32)], next_id: &mut u32) {
        for side in &loose.sides.others {
            let Some(back) = &side.back else { continue };
            let mut state = back.clone();
            for o in side.still.iter().filter(|o| !self.sides.is_none(o.place, self.sides.begun)) {
                if let Some(v) = value(&self.state, o.place) {
                    put(&mut state, o.place, v);
                }
            }
            rename(&mut state, names, next_id);
            // A place that a round left unchanged has the value with which the round began, mostly that of the side
            // that entered.
            for (_, place) in loose.sides.crossed.iter().filter(|(bits, _)| *bits == side.bits) {
                if let (Some(v), Some(begun)) = (value(&state, *place), value(&self.state, *place))
                    && (v.ty == begun.ty && v.null == begun.null && !self.sides.is_none(*place, self.sides.begun))
                {
                    put(&mut state, *place, Value { n: v.n.join(&begun.n), ..v });
                }
            }
            if let (Some(m), Some(mine)) = (state.top_mut().loops.last_mut(), self.state.top().loops.last()) {
                m.ids.clone_from(&mine.ids);
                m.side = side.bits;
            }
            self.sides.others.push(Side { bits: side.bits, state, back: None, still: Vec::new() });
        }
    }

    /// Weakens a place on the other sides as it was weakened on the side of the state that entered.
    pub(super) fn loosen_others(&mut self, place: Place, env: &Env<'_>, next_id: &mut u32) {
        let Guess { sides, .. } = self;
        for side in sides.others.iter_mut() {
            let none = holds_none(&sides.parted, place, side.bits);
            if let (Some(v), false) = (value(&side.state, place), none) {
                let v = match v.ty {
                    Ty::Packet { .. } => Value::uninit(Why::Dead),
                    _ => Value { n: super::loosened(&v, env), ..v.adrift(next_id) },
                };
                put(&mut side.state, place, v);
                for f in &mut side.state.frames {
                    f.drop_uninit_spills();
                }
            }
        }
    }

    /// The round numbers of the other sides.
    pub(super) fn other_rounds(&self) -> impl Iterator<Item = Scalar> {
        self.other_sides().filter_map(|s| s.top().loops.last()).map(|m| m.k.n)
    }

    /// Whether a path came back to another side than the side of the state that entered.
    pub(super) fn came_back_apart(&self) -> bool {
        self.sides.others.iter().any(|s| s.back.is_some())
    }
}

/// Renames the values of a state. A value whose old name has no new one loses its relation to others.
pub(super) fn rename(state: &mut State, names: &[(u32, u32)], next_id: &mut u32) {
    let new = |id: u32| names.iter().find(|(t, _)| *t == id && id != 0).map_or(id, |(_, m)| *m);
    for v in state.values_mut() {
        let id = v.line_id();
        match new(id) {
            to if to == id => {}
            0 => *v = v.adrift(next_id),
            to => *v = v.renamed(to, v.scale, v.delta),
        }
    }
    state.room.retain(|f: &Room| new(f.id) != 0 && new(f.hi) != 0);
    for f in &mut state.room {
        (f.id, f.hi) = (new(f.id), new(f.hi));
    }
    state.sums.retain(|t| ![t.s, t.a, t.b].into_iter().any(|id| new(id) == 0));
    for t in &mut state.sums {
        (t.s, t.a, t.b) = (new(t.s), new(t.a), new(t.b));
    }
    state.forget_products(|id| new(id) == 0);
    for t in &mut state.products {
        (t.p, t.a, t.b) = (new(t.p), new(t.a), new(t.b));
    }
    if let Some(m) = state.top_mut().loops.last_mut() {
        for l in &mut m.lines {
            (l.x, l.n) = (new(l.x), new(l.n));
        }
    }
}
