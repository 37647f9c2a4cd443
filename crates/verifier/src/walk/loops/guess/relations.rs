//! Relations between places that a round moves, which hold in every round.
//!
//! Problem: `lo < hi`, `p + left = end`, `j <= i` hold in every round of a loop, and no fact about a single variable
//! implies them. Approach (Houdini: Flanagan and Leino 2001), only after a simpler candidate has failed: every relation
//! of these kinds that holds when the loop begins is assumed in the havocked candidate, beside relations that the
//! program compared in a round and that held at the beginning, too. A relation that does not hold of a state that comes
//! back is dropped, and the rest is tried again; so each remaining relation holds in the next round if it holds in this
//! one. Values are compared with all facts of the state ([`crate::walk::linear`]).
//!
//! Sums: `at + n <= rest` relates three values: the sum of two places, or of a place and an unchanged number, is at
//! most a third, or at least it. Candidates are the facts about sums that a round which came back knows
//! ([`Guess::see_sums`]), hence results of comparisons. Claim: with `S` the relation's own name, `V(S) = V(a) + V(b)`
//! and `V(S) + bytes <= V(end)` hold in every round, where in the next round S denotes the sum of the places' values
//! then. Proof: by induction. When the loop begins, the form `a + b + bytes - end` is proven to be at most 0 for the
//! state that entered. On each path that comes back, it is proven of the values that the places have there, before any
//! name passes to the next round. Between the two, S names nothing: [`Guess::next_round`] drops all facts about S and
//! removes the name from values that have it, as it does with places' own names, so no fact about the old sum is taken
//! for one about the new sum.
//!
//! Where all else has failed ([`Shape::further`]), two more kinds are tried: as a bound, a sum that one path keeps and
//! another decreases; and a bound of a multiple, `base + scale * left <= end`. They are proven like the others, of the
//! state that entered and of each that comes back, as the form `a + scale * b + bytes - end`. The sum is `V(S) = V(a) +
//! scale * V(b)`, so the proof above applies. [`clip`] also uses that neither V is negative, which [`Relation::holds`]
//! requires: therefore `V(a)` and `scale * V(b)` are each at most the whole.
//!
//! Invariants: a relation is entered in a candidate only if it is proven of the state that entered the loop
//! ([`Guess::relate`]), and in a state that came back only if it is proven there, of the values that the places have
//! then. The parts of a sum are not negative.

use bpf_isa::{AluOp, Cond, Insn, Reg, Src};

use super::place::{Place, What, put, value};
use super::relation::{Of, Relation};
use super::{Change, Guess, Shape};
use crate::by_name;
use crate::faults::planted;
use crate::integer::BEYOND;
use crate::state::{Frame, State};
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value, age};
use crate::walk::linear::Form;

/// The most relations that are tried at a time.
const MAX_RELATIONS: usize = 20;
/// The greatest multiple that is tried.
const MAX_SCALE: u128 = 1 << 12;
/// The most places that are related to each other.
const MAX_PLACES: usize = 7;
/// The most balances (sums of two places) that are tried, and the most rounds that are inspected for them.
const MAX_BALANCES: usize = 6;
const MAX_MOVES: usize = 24;

impl Shape {
    /// Whether relations are worth trying: a place moves by an amount that differs between rounds, or a candidate in
    /// which all places move by constant steps was refused.
    pub(in crate::walk::loops) fn may_relate(&self, refused: bool) -> bool {
        self.related.is_none() && (refused || self.changes.iter().any(|(_, c)| !matches!(c, Change::Step(_))))
    }

    /// Relates places that move to each other from now on.
    ///
    /// `inside`: whether an instruction is part of the loop. Numbers that are compared there bound moving places more
    /// often than numbers in the rest of the program.
    pub(in crate::walk::loops) fn relate(&mut self, insns: &[Insn], inside: impl Fn(usize) -> bool) {
        self.compared_with = [
            numbers_compared(insns.iter().enumerate().filter(|(at, _)| inside(*at)).map(|(_, insn)| insn)),
            numbers_compared(insns),
        ];
        self.related = Some(Vec::new());
        self.begun = false;
    }

    /// Also tries orders between compared registers and unchanged ones, whether a round has shown them or not.
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

    /// Whether places are related to each other.
    pub(in crate::walk::loops) fn relates(&self) -> bool {
        self.related.is_some()
    }

    /// Revises the relations after a havocked iteration. After the first, which assumed none: begins with relations
    /// that the program compared in it and that hold when the loop begins. After later ones: drops relations that did
    /// not hold of a state that came back. Returns whether anything changed.
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
            // A sum that one path keeps and another decreases: in a search, half of the range is left, and the part to
            // the left of it may be dropped.
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
                None if age(id) < g.first_name && id != g.k => Some((Of::Name(id), 0)),
                None => None,
            };
            for f in &back.room {
                let (Some((lo, x)), Some((hi, y))) = (of(f.id), of(f.hi)) else { continue };
                let known = || g.state.below(f.id, f.scale, f.hi) >= Some(f.bytes);
                if matches!((lo, hi), (Of::Name(_), Of::Name(_))) || related.len() >= MAX_RELATIONS || known() {
                    continue;
                }
                // The fact is converted from names to the values, which are at distances from their names.
                let bytes = f.bytes.saturating_sub(x.saturating_mul(f.scale.into())).saturating_add(y);
                // A place that came back at most `bytes` behind the end, as far as is known, may in fact be at most at
                // the end. A difference that may have wrapped gives no fact until that is assumed.
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
    /// Adds the relations to the state at the loop's head. Each of them is proven of the state that entered the loop.
    pub(super) fn relate(&mut self, shape: &Shape, next_id: &mut u32) {
        // Entering relations changes no place, so one copy names all of them.
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
                // The name denotes another value in each round, and must be kept while the round lasts.
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
                // The negated form is tried, too.
                let small = |c: i128| i64::try_from(c).ok().filter(|c| *c != i64::MIN);
                if let Some(apart) = less.as_const().and_then(small) {
                    equal(p, q, apart).into_iter().for_each(&mut add);
                }
                for (form, s, a, b) in [(&less, p, q, None), (&less, q, p, None), (&sum, p, q, Some(()))] {
                    // The form is a single name plus a distance.
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

    /// Unchanged numbers with which other numbers are compared.
    fn fixed_ends<'s>(&'s self, shape: &'s Shape) -> impl Iterator<Item = Place> + 's {
        let places = shape.ends.iter().map(|r| Place { above: 0, what: What::Reg(*r) });
        let stays = |p: &Place| !shape.changes.iter().any(|(q, _)| q == p);
        places
            .filter(stays)
            .filter(|p| value(&self.state, *p).is_some_and(|v| (v.is_scalar() || v.is_in_region()) && v.id != 0))
    }

    /// Orders between a place that every round moves by the same step and a compared place that only some rounds move.
    fn compared(&self, shape: &Shape, places: &[(Place, Form, bool)], out: &mut Vec<Relation>) {
        let ends = |p: &Place| p.above == 0 && matches!(p.what, What::Reg(r) if shape.ends.contains(&r));
        let ends = || places.iter().filter(|(p, ..)| ends(p));
        for (lo, _, own) in ends() {
            for (hi, ..) in ends().filter(|(.., other)| own != other) {
                // Relations beyond the limit are not tried.
                if out.len() >= MAX_RELATIONS {
                    return;
                }
                let below = |bytes| Relation::Below { lo: Of::Place(*lo), scale: 1, bytes, hi: Of::Place(*hi) };
                let found = [1, 0].into_iter().map(below).find(|r| r.holds(&self.entry, &self.state));
                out.extend(found);
            }
        }
    }

    /// Bounds of multiples, for a place that begins at a constant and another place of which a multiple begins below an
    /// unchanged number: the sum of both stays below it (`base` and the `n` words that are left of a buffer).
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

    /// Balances: three places of which one moved as the sum of the other two did in each round that came back. Their
    /// initial values give the constant distance.
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
                        // The sum never moves further than the third place, and one part gives what the other takes.
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

    /// Records the constants by which a round that came back moved places.
    pub(super) fn see_moves(&mut self, back: &State) {
        let by = |p: Place| {
            let (g, b) = (value(&self.state, p)?, value(back, p)?);
            let by = Form::of(&b)?.plus(&Form::of(&g)?, -1)?;
            // The old value may be known by now.
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

    /// Records the facts about sums of two places, or of a place and an unchanged number, that a round which came back
    /// knows. Relations are derived from them.
    pub(super) fn see_sums(&mut self, back: &State) {
        let of = |id: u32| {
            let place = |o: &Place| value(back, *o).filter(|v| v.line_id() == id && v.scale == 1).map(|v| (*o, v));
            let own = self.own.iter().find_map(|o| place(&o.place));
            let found = own.or_else(|| self.steps.iter().chain(&self.same).find_map(place));
            match found {
                Some((p, v)) => Some((Of::Place(p), i64::from(v.delta))),
                None if id != 0 && age(id) < self.first_name => Some((Of::Name(id), 0)),
                None => None,
            }
        };
        let mut found: Vec<Relation> = Vec::new();
        for t in back.sums.iter().filter(|t| t.scale == 1) {
            let (Some((a, x)), Some((b, y))) = (of(t.a), of(t.b)) else { continue };
            let ((a, x), (b, y)) = if matches!(a, Of::Place(_)) { ((a, x), (b, y)) } else { ((b, y), (a, x)) };
            // V(s) = a + b + apart
            let apart = t.delta.saturating_sub(x).saturating_sub(y);
            // Only a constant bounds this sum.
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

    /// Enters relations that hold in a state that came back and already has the names of the next round.
    ///
    /// The relations were proven of the values in the places, and are entered for the candidate's names of these
    /// places. So each place must have the candidate's name by now. A place that left its line does not, nor does one
    /// that was assumed to stay unchanged and did not: there, the candidate's name still denotes the old value, which
    /// other places may have.
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

/// Refines ranges by orders: the lower side is at most the upper side, and the upper side at least the lower. `names`:
/// the state that gives the names of the places.
pub(super) fn clip(related: &[(Relation, u32)], names: &State, state: &mut State, further: bool) {
    for (r, _) in related {
        let (lo, scale, bytes, hi) = match *r {
            Relation::Below { lo, scale, bytes, hi } => (lo, scale, bytes, hi),
            // Neither V of a part is negative, so each part is at most what the whole leaves, minus the other's
            // distance.
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
            // One side is at most the maximum of the other.
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
                // The whole bounds its parts.
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

/// An upper bound of V(id).
fn most_of(state: &State, id: u32) -> Option<i128> {
    if id < FIRST_FREE_ID {
        return Some(crate::env::Region::MAX_LEN.into());
    }
    by_name::note();
    let named = |v: &&Value| v.id == id && v.is_scalar() && v.scale > 0;
    let values = state.frames.iter().flat_map(Frame::values).filter(named);
    // A bound that was cut off at 64 bits may be too small.
    values.map(|v| v.range_of_line().1).filter(|most| *most < u64::MAX).map(i128::from).min()
}

/// Thresholds for widening: the constants that a program compares with, their neighbours, 0, and the greatest number of
/// each signed type that is compared.
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
