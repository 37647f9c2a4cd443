//! What places that a round moves are to each other, in every round.
//!
//! Problem: `lo < hi`, `p + left = end`, `j <= i` hold in every round of a loop, and nothing that is known of one
//! variable says so. Approach: only where a simpler guess has failed. Whatever relation of these kinds holds when the
//! loop begins is assumed in the loose guess, beside what the program compared in a round and held at the beginning
//! too. What does not come back in it is dropped, and the rest tried again; so what remains holds in the next round if
//! it does in this one. Values are compared by all that the state knows of them ([`crate::walk::linear`]).
//!
//! Sums: `at + n <= rest` is a relation of three: two places, or a place and what stays, whose
//! sum is no more than a third, or no less. Tried is what a round that came back knows of a sum ([`Guess::see_sums`]),
//! so what a branch compared. Claim: with `S` the relation's own name, the guess says `V(S) = V(a) + V(b)` and `V(S) +
//! bytes <= V(end)`; in the next round S is the sum of what the places have then. Proof: by induction. When the loop
//! begins, the form `a + b + bytes - end` is proven not to be above 0 of what entered; in each path that comes back it
//! is proven of the values that the places have there, before any name passes to the next round. Between the two S is
//! no name of anything: [`Guess::next_round`] drops all that is known of it, and takes it from what has it, as it does
//! with the names that places have of their own; so nothing of the old sum is left to be said of the new one.
//!
//! Where all else has failed ([`Shape::further`]), two more are tried: a sum that one path keeps and another makes
//! less, as a bound; and a bound of a multiple, `base + scale * left <= end`. Both are claims like the others: proven
//! of what entered and of what comes back, as the form `a + scale * b + bytes - end`, with `V(S) = V(a) + scale *
//! V(b)`, so the proof above is theirs. What [`clip`] takes from them is that neither V is negative, which
//! [`Relation::holds`] asks for: so `V(a)` and `scale * V(b)` are each no more than the whole.
//!
//! Invariants: a relation is entered in a guess only if it holds of what entered the loop ([`Guess::relate`] proves
//! it), and in what came back only if it is proven there, of the values that the places have then. Numbers that a sum
//! is made of are not negative.

use bpf_isa::{AluOp, Cond, Insn, Reg, Src};

use super::place::{Place, What, put, value};
use super::relation::{Of, Relation};
use super::{Change, Guess, Shape};
use crate::faults::planted;
use crate::integer::BEYOND;
use crate::state::{Frame, State};
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value};
use crate::walk::linear::Form;

/// Relations that are tried at a time.
const MAX_RELATIONS: usize = 20;
/// Multiples that are tried.
const MAX_SCALE: u128 = 1 << 12;
/// Places that are related to each other.
const MAX_PLACES: usize = 7;
/// Sums of two places that are tried, and rounds that are looked at for them.
const MAX_BALANCES: usize = 6;
const MAX_MOVES: usize = 24;

impl Shape {
    /// Whether relations are worth trying: something moves, differently each time; or what all moves by the same
    /// steps is not enough, and may be with what the loop compares.
    pub(in crate::walk::loops) fn may_relate(&self, refused: bool) -> bool {
        self.related.is_none() && (refused || self.changes.iter().any(|(_, c)| !matches!(c, Change::Step(_))))
    }

    /// From now on, places that move are related to each other.
    ///
    /// `inside`: whether an instruction is part of the loop. What is compared there bounds what moves there, more often
    /// than what the rest of the program compares.
    pub(in crate::walk::loops) fn relate(&mut self, insns: &[Insn], inside: impl Fn(usize) -> bool) {
        self.compared_with = [
            numbers_compared(insns.iter().enumerate().filter(|(at, _)| inside(*at)).map(|(_, insn)| insn)),
            numbers_compared(insns),
        ];
        self.related = Some(Vec::new());
        self.begun = false;
    }

    /// And those that it compares with what stays are tried below that, whether a round has shown that or not.
    pub(in crate::walk::loops) fn relate_to_ends(&mut self, insns: &[Insn], inside: impl Fn(usize) -> bool) {
        self.ends.clear();
        // The register that each register is a copy of: for `end - p >= 4`, the original `end` is compared with `p`.
        let mut copies: [Option<Reg>; 11] = [None; 11];
        for (_, insn) in insns.iter().enumerate().filter(|(at, _)| inside(*at)) {
            if let Insn::JumpIf { dst, src: Src::Reg(src), .. } = *insn {
                self.ends.extend([dst, src].map(|r| crate::num::few(r.index())));
            }
            if let Insn::Alu { op: AluOp::Sub, dst, src: Src::Reg(src), .. } = *insn {
                let of = copies[dst.index()].unwrap_or(dst);
                self.ends.extend([of, src].map(|r| crate::num::few(r.index())));
            }
            if let Insn::Mov { dst, src: Src::Reg(src), .. } = *insn {
                copies[dst.index()] = Some(src);
            } else if let Insn::Alu { dst, .. } = *insn {
                copies[dst.index()] = None;
            }
        }
        self.ends.sort_unstable();
        self.ends.dedup();
    }

    /// So they are.
    pub(in crate::walk::loops) fn relates(&self) -> bool {
        self.related.is_some()
    }

    /// After a loose walk. After the first, which assumed nothing: begins with what the program compared in it and what
    /// holds when the loop begins. After others: drops what did not come back. Whether anything changed.
    pub(super) fn revise_relations(&mut self, g: &mut Guess) -> bool {
        if self.related.is_none() {
            return false;
        }
        let first = !std::mem::replace(&mut self.begun, true);
        let mut begun = if first { g.first_relations(self) } else { Vec::new() };
        let Some(related) = &mut self.related else { return false };
        let before = related.len();
        related.retain(|r| !g.refuted.contains(r));
        let mut changed = related.len() != before;
        if self.further {
            // A sum that one path keeps, and another makes less: half of what is searched is left, and what of it is
            // to the left may be given up.
            for new in g.refuted.iter().filter_map(|r| r.as_bound()) {
                if related.len() < MAX_RELATIONS && !related.contains(&new) && g.begins_with(new, &g.state) {
                    related.push(new);
                }
            }
        }
        let from_back = |g: &mut Guess| {
            let Some(back) = &g.back else { return };
            let of = |id: u32| match g.own.iter().find(|o| o.id == id) {
                Some(o) => value(&g.state, o.place).map(|v| (Of::Place(o.place), i64::from(v.delta))),
                None if id < g.first_name && id != g.k => Some((Of::Name(id), 0)),
                None => None,
            };
            for f in &back.room {
                let (Some((lo, x)), Some((hi, y))) = (of(f.id), of(f.hi)) else { continue };
                let known = || g.state.below(f.id, f.scale, f.hi) >= Some(f.bytes);
                if matches!((lo, hi), (Of::Name(_), Of::Name(_))) || related.len() >= MAX_RELATIONS || known() {
                    continue;
                }
                // Of the values, which lie at distances from their names.
                let bytes = f.bytes.saturating_sub(x.saturating_mul(f.scale.into())).saturating_add(y);
                // What comes back behind the end, as far as was known, may be no further on than it: a difference that
                // may have wrapped round says nothing until that is assumed.
                for bytes in [Some(bytes), Some(0).filter(|_| bytes < 0)].into_iter().flatten() {
                    let new = Relation::Below { lo, scale: f.scale, bytes, hi };
                    let begun = || g.begins_with(new, &g.state) || planted!(RelationsUnbegun);
                    if related.len() < MAX_RELATIONS && !related.contains(&new) && begun() {
                        related.push(new);
                    }
                }
            }
        };
        if first {
            g.each_side(from_back);
        }
        for &new in g.seen.iter().filter(|_| first) {
            if related.len() < MAX_RELATIONS && g.begins_with(new, &g.state) {
                related.push(new);
            }
        }
        begun.retain(|r| !related.contains(r));
        related.extend(begun);
        changed |= first && !related.is_empty();
        changed
    }
}

impl Guess {
    /// Adds the relations to the state at the loop's head. All of them hold in the state that entered the loop.
    pub(super) fn relate(&mut self, shape: &Shape, next_id: &mut u32) {
        // What is entered changes no place.
        let names = self.state.clone();
        for &r in shape.related.iter().flatten() {
            if self.names_relation(r) && (self.begins_with(r, &self.state) || planted!(RelationsUnbegun)) {
                let name = if r.names_sum() {
                    *next_id += 1;
                    *next_id
                } else {
                    0
                };
                if !self.misses(r) {
                    r.enter(&names, &mut self.state, name);
                }
                self.relations.push((r, name));
                // It is of something else in each round, and keeps its name.
                if let (Some(mark), true) = (self.state.top_mut().loops.last_mut(), name != 0) {
                    mark.ids.push(name);
                }
            }
        }
        let related: Vec<_> = self.relations.iter().filter(|(r, _)| !self.misses(*r)).copied().collect();
        clip(&related, &names, &mut self.state, self.further);
    }

    fn first_relations(&self, shape: &Shape) -> Vec<Relation> {
        let entry = &self.entry;
        let numbers = |p: &Place| {
            value(entry, *p).filter(|v| matches!(v.ty, Ty::Scalar | Ty::Packet { .. })).and_then(|v| Form::of(&v))
        };
        let moving = shape.changes.iter().map(|(p, _)| *p).filter(|p| value(&self.state, *p).is_some());
        let places: Vec<(Place, Form, bool)> = moving
            .filter_map(|p| Some((p, numbers(&p)?, self.own.iter().any(|o| o.place == p))))
            .take(MAX_PLACES)
            .collect();
        let mut out: Vec<Relation> = Vec::new();
        let mut add = |r: Relation| {
            if out.len() < MAX_RELATIONS && !out.contains(&r) {
                out.push(r);
            }
        };
        let equal = |a: Of, b: Of, apart: i64| {
            // a = b + apart
            [
                Relation::Below { lo: a, scale: 1, bytes: -apart, hi: b },
                Relation::Below { lo: b, scale: 1, bytes: apart, hi: a },
            ]
        };
        for (i, (p, x, own)) in places.iter().enumerate() {
            for (q, y, other) in &places[i + 1..] {
                if !own && !other {
                    continue;
                }
                let (Some(less), Some(sum)) = (x.clone().plus(y, -1), x.clone().plus(y, 1)) else { continue };
                let (p, q) = (Of::Place(*p), Of::Place(*q));
                // With a negative.
                let small = |c: i128| i64::try_from(c).ok().filter(|c| *c != i64::MIN);
                if let Some(apart) = less.as_const().and_then(small) {
                    equal(p, q, apart).into_iter().for_each(&mut add);
                }
                for (form, s, a, b) in [(&less, p, q, None), (&less, q, p, None), (&sum, p, q, Some(()))] {
                    // One name, and a distance.
                    let Some((id, times, at)) = form.single() else { continue };
                    let (Some(at), true) = (small(at), times.unsigned_abs() <= MAX_SCALE) else { continue };
                    let scale = i64::try_from(times).unwrap_or(0);
                    if b.is_some() {
                        if times == 1 {
                            add(Relation::Sum { s: Of::Name(id), a: s, b: a, scale, delta: -at });
                        }
                    } else if s == p && times > 0 {
                        // p - q = times * V + at; or q - p = -times * V - at.
                        add(Relation::Sum { s, a, b: Of::Name(id), scale, delta: at });
                    } else if s == q && times < 0 {
                        add(Relation::Sum { s, a, b: Of::Name(id), scale: -scale, delta: -at });
                    }
                }
            }
            let (Some((id, times, at)), true) = (x.single(), *own) else { continue };
            let (Ok(at), Ok(times)) = (i64::try_from(at), i16::try_from(times)) else { continue };
            for f in entry.room.iter().filter(|f| f.id == id) {
                if f.scale % times == 0 && times > 0 {
                    let scale = f.scale / times;
                    let bytes = f.bytes.saturating_sub(at.saturating_mul(scale.into()));
                    add(Relation::Below { lo: Of::Place(*p), scale, bytes, hi: Of::Name(f.hi) });
                }
                if let Some(bytes) = entry.below(id, times, f.hi).filter(|_| times > 0) {
                    let bytes = bytes.saturating_sub(at);
                    add(Relation::Below { lo: Of::Place(*p), scale: 1, bytes, hi: Of::Name(f.hi) });
                }
            }
            if times != 1 {
                continue;
            }
            equal(Of::Place(*p), Of::Name(id), at).into_iter().for_each(&mut add);
        }
        for end in self.fixed_ends(shape) {
            for (p, ..) in places.iter().filter(|(_, _, own)| *own) {
                let below = |bytes| Relation::Below { lo: Of::Place(*p), scale: 1, bytes, hi: Of::Place(end) };
                let found = [1, 0].into_iter().map(below).find(|r| r.holds(entry, &self.state));
                if let (Some(r), true) = (found, out.len() < MAX_RELATIONS) {
                    out.push(r);
                }
            }
        }
        if shape.further {
            self.compared(shape, &places, &mut out);
            self.multiples(&places, &mut out);
        }
        self.balances(&places, &mut out);
        out
    }

    /// Numbers that stay as they are, and that others are compared with.
    fn fixed_ends<'s>(&'s self, shape: &'s Shape) -> impl Iterator<Item = Place> + 's {
        let places = shape.ends.iter().map(|r| Place { above: 0, what: What::Reg(*r) });
        let stays = |p: &Place| !shape.changes.iter().any(|(q, _)| q == p);
        places
            .filter(stays)
            .filter(|p| value(&self.state, *p).is_some_and(|v| (v.is_scalar() || v.is_in_region()) && v.id != 0))
    }

    /// What every round moves by the same step, and what it is compared with, which only some rounds move: one stays
    /// below the other.
    fn compared(&self, shape: &Shape, places: &[(Place, Form, bool)], out: &mut Vec<Relation>) {
        let ends = |p: &Place| p.above == 0 && matches!(p.what, What::Reg(r) if shape.ends.contains(&r));
        let ends = || places.iter().filter(|(p, ..)| ends(p));
        for (lo, _, own) in ends() {
            for (hi, ..) in ends().filter(|(.., other)| own != other) {
                // What has no place is not asked about.
                if out.len() >= MAX_RELATIONS {
                    return;
                }
                let below = |bytes| Relation::Below { lo: Of::Place(*lo), scale: 1, bytes, hi: Of::Place(*hi) };
                let found = [1, 0].into_iter().map(below).find(|r| r.holds(&self.entry, &self.state));
                out.extend(found);
            }
        }
    }

    /// A place that begins at a constant, and another of which a multiple begins below what stays: the two together are
    /// no more (`base` and the `n` words that are left of a buffer).
    fn multiples(&self, places: &[(Place, Form, bool)], out: &mut Vec<Relation>) {
        for (p, x, _) in places {
            let Some(begins) = x.as_const().and_then(|c| i64::try_from(c).ok()) else { continue };
            for (q, y, _) in places.iter().filter(|(q, ..)| q != p) {
                let Some((id, 1, at)) = y.single() else { continue };
                let Ok(at) = i64::try_from(at) else { continue };
                for f in self.entry.room.iter().filter(|f| f.id == id && f.scale > 0) {
                    let bytes = || at.checked_mul(f.scale.into())?.checked_add(begins);
                    let (scale, end) = (f.scale, Of::Name(f.hi));
                    if let Some(bytes) = bytes().and_then(|by| f.bytes.checked_sub(by))
                        && out.len() < MAX_RELATIONS
                    {
                        out.push(Relation::SumBelow { a: Of::Place(*p), b: Of::Place(*q), scale, bytes, end });
                    }
                }
            }
        }
    }

    /// Three places of which one moved as the other two together did in each round that came back: what they are when
    /// the loop begins says how far the two are from it.
    fn balances(&self, places: &[(Place, Form, bool)], out: &mut Vec<Relation>) {
        let found = out.len();
        let moved = |by: &[(Place, i128)], p: Place| by.iter().find(|(q, _)| *q == p).map(|(_, by)| *by);
        for (c, z, third) in places {
            for (i, (a, x, first)) in places.iter().enumerate() {
                for (b, y, second) in &places[i + 1..] {
                    let full = out.len() >= found + MAX_BALANCES;
                    if full || a == c || b == c || !(*first || *second || *third) || self.moves.len() < 2 {
                        continue;
                    }
                    let of = |by: &Vec<(Place, i128)>| Some([moved(by, *a)?, moved(by, *b)?, moved(by, *c)?]);
                    let moves: Option<Vec<[i128; 3]>> = self.moves.iter().map(of).collect();
                    let apart = || x.clone().plus(y, 1)?.plus(z, -1);
                    let (Some(apart), Some(moves)) = (apart(), moves) else { continue };
                    let [a, b, c] = [*a, *b, *c].map(Of::Place);
                    if moves.iter().any(|[a, b, c]| a + b != *c) {
                        // The two together never move further, and one gives what the other takes.
                        let gives = moves.iter().any(|[a, b, c]| a.min(b) < &0 && a.max(b) > c);
                        let less = moves.iter().all(|[a, b, c]| a + b <= *c);
                        let bytes = apart.as_const().and_then(|apart| i64::try_from(-apart).ok());
                        if let (true, true, Some(bytes)) = (gives, less, bytes) {
                            out.push(Relation::SumBelow { a, b, scale: 1, bytes, end: c });
                        }
                        continue;
                    }
                    let (d, delta) = match (apart.as_const(), apart.single()) {
                        (Some(delta), _) => (None, delta),
                        (None, Some((id, 1, delta))) => (Some(Of::Name(id)), delta),
                        _ => continue,
                    };
                    if let Ok(delta) = i64::try_from(delta) {
                        out.push(Relation::Balance { a, b, c, d, delta });
                    }
                }
            }
        }
    }

    /// How far a round that came back has moved what it moves by constants.
    pub(super) fn see_moves(&mut self, back: &State) {
        let by = |p: Place| {
            let (g, b) = (value(&self.state, p)?, value(back, p)?);
            let by = Form::of(&b)?.plus(&Form::of(&g)?, -1)?;
            // The number of before may be known by now.
            let by = match by.single() {
                Some((id, times, at)) if id == g.line_id() => {
                    let named = |v: &&Value| v.line_id() == id && v.is_scalar() && v.scale == 1;
                    let known = back.frames.iter().flat_map(Frame::values).filter(named).find_map(|v| {
                        let (min, max) = v.range_of_line();
                        (min == max).then_some(i128::from(min))
                    });
                    times.checked_mul(known?)?.checked_add(at)?
                }
                _ => by.as_const()?,
            };
            (g.ty == b.ty && g.line_id() != 0).then_some((p, by))
        };
        let own = self.own.iter().map(|o| o.place);
        let moves: Vec<(Place, i128)> = own.chain(self.steps.iter().copied()).filter_map(by).collect();
        if !self.moves.contains(&moves) && self.moves.len() < MAX_MOVES {
            self.moves.push(moves);
        }
    }

    /// What a round that came back knows of the sums of two places, or of one and what stays: by it, others are tried.
    pub(super) fn see_sums(&mut self, back: &State) {
        let of = |id: u32| {
            let place = |o: &Place| value(back, *o).filter(|v| v.line_id() == id && v.scale == 1).map(|v| (*o, v));
            let own = self.own.iter().find_map(|o| place(&o.place));
            let found = own.or_else(|| self.steps.iter().chain(&self.same).find_map(place));
            match found {
                Some((p, v)) => Some((Of::Place(p), i64::from(v.delta))),
                None if id != 0 && id < self.first_name => Some((Of::Name(id), 0)),
                None => None,
            }
        };
        let mut found: Vec<Relation> = Vec::new();
        for t in back.sums.iter().filter(|t| t.scale == 1) {
            let (Some((a, x)), Some((b, y))) = (of(t.a), of(t.b)) else { continue };
            let ((a, x), (b, y)) = if matches!(a, Of::Place(_)) { ((a, x), (b, y)) } else { ((b, y), (a, x)) };
            // V(s) = a + b + apart
            let apart = t.delta.saturating_sub(x).saturating_sub(y);
            // A sum of which only a constant says how large it is.
            if t.max < i64::MAX && [a, b].iter().any(|of| matches!(of, Of::Place(_))) {
                found.push(Relation::SumBelow { a, b, scale: 1, bytes: apart.saturating_sub(t.max), end: Of::Zero });
            }
            for f in back.room.iter().filter(|f| f.scale == 1) {
                let new = if f.id == t.s {
                    of(f.hi).map(|(end, z)| {
                        (
                            end,
                            Relation::SumBelow {
                                a,
                                b,
                                scale: 1,
                                bytes: f.bytes.saturating_add(apart).saturating_add(z),
                                end,
                            },
                        )
                    })
                } else if f.hi == t.s {
                    of(f.id).map(|(low, z)| {
                        (low, Relation::BelowSum { low, bytes: f.bytes.saturating_sub(apart).saturating_sub(z), a, b })
                    })
                } else {
                    None
                };
                if let Some((c, new)) = new
                    && [a, b, c].iter().any(|of| matches!(of, Of::Place(_)))
                    && c != a
                    && c != b
                {
                    found.push(new);
                }
            }
        }
        for new in found {
            if self.seen.len() < MAX_RELATIONS && !self.seen.contains(&new) {
                self.seen.push(new);
            }
        }
    }

    /// Which relations hold in the state at the back-edge, before its values get the names of the next round.
    pub(super) fn see_relations(&mut self, back: &mut State, next_id: &mut u32) -> Vec<(Relation, u32)> {
        if self.relations.is_empty() {
            return Vec::new();
        }
        let places: Vec<Place> = self.own.iter().map(|o| o.place).collect();
        for place in places {
            if let Some(v) = value(back, place)
                && v.is_scalar()
                && v.id == 0
                && v.n.as_const().is_none()
            {
                *next_id += 1;
                put(back, place, v.renamed(*next_id, 1, 0));
            }
        }
        let (held, lost): (Vec<_>, Vec<_>) = self
            .relations
            .iter()
            .filter(|(r, _)| !self.misses(*r))
            .partition(|(r, _)| r.holds(back, &self.state) || planted!(RelationsUnchecked));
        self.refuted.extend(lost.into_iter().map(|(r, _)| r));
        held
    }

    /// Enters in what came back, which has the names of the next round now, what holds of it.
    ///
    /// What holds was asked of the values in the places; it is said of the names that the guess has for these. So each
    /// place must have the guess's name by now. One that has left its line does not, nor one that was taken to stay as
    /// it is: there the guess's name is still of what was in it before, which other places may have.
    pub(super) fn enter_relations(&self, held: &[(Relation, u32)], back: &mut State) {
        let tie = |v: Value| (v.line_id(), v.scale, v.delta);
        let as_guessed = |p: Place| value(&self.state, p).map(tie) == value(back, p).map(tie);
        let named = |of: Of| !matches!(of, Of::Place(p) if !as_guessed(p)) || planted!(RelationsByOldNames);
        let held: Vec<_> = held.iter().filter(|(r, _)| r.about().all(named)).copied().collect();
        for (r, name) in &held {
            r.enter(&self.state, back, *name);
        }
        clip(&held, &self.state, back, self.further);
    }
}

/// What is below a number is no more than that, and that is no less. `names`: the state that says what the places are
/// called.
pub(super) fn clip(related: &[(Relation, u32)], names: &State, state: &mut State, further: bool) {
    for (r, _) in related {
        let (lo, scale, bytes, hi) = match *r {
            Relation::Below { lo, scale, bytes, hi } => (lo, scale, bytes, hi),
            // Neither V is negative of what is in sums: so each part is no more than the whole leaves beside the
            // other's distance.
            Relation::SumBelow { a, b, scale, bytes, end } if further && scale > 0 => {
                if let Some(((a, 1, x), (b, 1, y), (end, 1, z))) =
                    a.named(names).zip(b.named(names)).zip(end.named(names)).map(|((a, b), end)| (a, b, end))
                    && let Some(most) = most_of(state, end)
                {
                    let scale = i128::from(scale);
                    let most = most + i128::from(z) - i128::from(bytes) - i128::from(x) - scale * i128::from(y);
                    state.bound(a, i128::from(i64::MIN), most, 2);
                    state.bound(b, i128::from(i64::MIN), most.div_euclid(scale), 2);
                }
                continue;
            }
            Relation::SumBelow { .. } | Relation::BelowSum { .. } => continue,
            // One side is no more than the other may be.
            Relation::Balance { a, b, c, d, delta } => {
                let parts = || Some((a.named(names)?, b.named(names)?, c.named(names)?));
                let least = d.map_or(Some(0), |d| d.form(names)?.as_const()).unwrap_or(0).max(0);
                if let Some(((a, 1, x), (b, 1, y), (c, 1, z))) = parts()
                    && let (Some(p), Some(q)) = (most_of(state, a), most_of(state, b))
                {
                    let apart = i128::from(x) + i128::from(y) - i128::from(z) - i128::from(delta);
                    state.bound(c, i128::from(i64::MIN), p + q + apart - least, 2);
                }
                continue;
            }
            Relation::Sum { s, .. } => {
                // The parts are bounded by the whole.
                if let Some((id, ..)) = s.named(names)
                    && let Some(most) = most_of(state, id)
                {
                    state.bound(id, i128::from(i64::MIN), most, 2);
                }
                continue;
            }
        };
        let (Some(l), Some((hi, 1, above))) = (lo.named(names), hi.named(names)) else { continue };
        let (scale, bytes) =
            (i128::from(scale) * i128::from(l.1), i128::from(bytes) + i128::from(scale) * i128::from(l.2));
        let bytes = bytes - i128::from(above);
        if scale <= 0 {
            continue;
        }
        if let Some(most) = most_of(state, hi) {
            state.bound(l.0, i128::from(i64::MIN), (most - bytes).div_euclid(scale), 1);
        }
        let least = state.least_of(l.0).filter(|least| *least > 0);
        if let (Some(least), true) = (least, hi >= FIRST_FREE_ID) {
            state.bound(hi, i128::from(least) * scale + bytes, BEYOND, 1);
        }
    }
}

/// The most that V(id) is.
fn most_of(state: &State, id: u32) -> Option<i128> {
    if id < FIRST_FREE_ID {
        return Some(crate::env::Region::MAX_LEN.into());
    }
    let named = |v: &&Value| v.id == id && v.is_scalar() && v.scale > 0;
    let values = state.frames.iter().flat_map(Frame::values).filter(named);
    // What is cut off to 64 bits may be more.
    values.map(|v| v.range_of_line().1).filter(|most| *most < u64::MAX).map(i128::from).min()
}

/// Numbers that a program compares with, those beside them, 0, and the greatest of a signed type that is compared:
/// where what changes in a loop may be found to stay.
fn numbers_compared<'a>(insns: impl IntoIterator<Item = &'a Insn>) -> Vec<u64> {
    let mut all = vec![0];
    for insn in insns {
        let Insn::JumpIf { width, cond, src, .. } = *insn else { continue };
        if let Src::Imm(imm) = src
            && let Ok(imm) = u64::try_from(imm)
        {
            all.extend([imm.saturating_sub(1), imm, imm + 1]);
        }
        if matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) {
            all.push(ones(crate::walk::bits_of(width) - 1));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}
