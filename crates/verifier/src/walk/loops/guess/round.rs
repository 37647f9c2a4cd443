//! Consecution: renames a state that came back to a candidate's head to the names of the next round.

use bpf_isa::{AluOp, Width};

use super::place::{Place, look, places, put, value};
use super::{Change, Guess, Measure, Own, on_line};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Frame, Room, State};
use crate::value::{Ty, Value, Why, len_id, offset_name};
use crate::walk::linear::Form;

/// The movements of places in the rounds that came back, for a lexicographic rank.
///
/// The rounds end if places can be ordered so that each round moves one of them forward and none of the earlier ones
/// backward: the first place moves a bounded number of times, and each later one so between two moves of the earlier
/// ones.
///
/// Where rounds are partitioned into sides ([`super::sides`]), this is required of each strongly connected set of sides
/// by itself. Claim: then the loop ends. Proof: the sides of a run form a path through a finite graph, whose edges are
/// the rounds seen. An edge that lies on no cycle is taken at most once, and there are finitely many of them. So a run
/// that does not end takes none of them from some round on: all its rounds are in one such set, for which the rank
/// shows that they end.
#[derive(Debug, Default)]
pub(super) struct Measures {
    /// The distinct movements of rounds.
    rounds: Vec<Moves>,
}

/// The movements of one round.
#[derive(Debug, Default, PartialEq)]
struct Moves {
    /// The side on which it begins, and the side to which it comes back.
    from: u8,
    to: u8,
    /// The places that moved, each with its direction.
    strict: Vec<Measure<Place>>,
    /// The places that moved or stayed, including those in `strict`.
    weak: Vec<Measure<Place>>,
}

impl Measures {
    pub(super) fn see(&mut self, (from, to): (u8, u8), strict: Vec<Measure<Place>>, weak: Vec<Measure<Place>>) {
        let moves = Moves { from, to, strict, weak };
        if !self.rounds.contains(&moves) {
            self.rounds.push(moves);
        }
    }

    /// The measures that never moved the other way.
    pub(super) fn weak(&self) -> impl Iterator<Item = Measure<Place>> {
        let first = self.rounds.first().map(|r| r.weak.as_slice()).unwrap_or_default();
        first.iter().copied().filter(|m| self.rounds.iter().all(|r| r.weak.contains(m)))
    }

    pub(super) fn end(&self) -> bool {
        self.rounds.iter().all(|r| self.end_on(r.from))
    }

    /// Whether rounds lead from one side to the other.
    fn lead(&self, from: u8, to: u8) -> bool {
        let mut reached = vec![from];
        let mut next = 0;
        while let Some(&side) = reached.get(next) {
            next += 1;
            for r in self.rounds.iter().filter(|r| r.from == side) {
                if !reached.contains(&r.to) {
                    reached.push(r.to);
                }
            }
        }
        reached.contains(&to)
    }

    /// Whether the rounds end that lie on cycles through this side.
    fn end_on(&self, side: u8) -> bool {
        let within = |r: &&Moves| {
            let there_and_back = self.lead(side, r.from) && self.lead(r.to, side);
            there_and_back && (r.from == r.to || !planted!(SidesApart))
        };
        let mut left: Vec<&Moves> = self.rounds.iter().filter(within).collect();
        // A measure that some of the remaining rounds advance, and none reverses, comes next in the lexicographic
        // order.
        while let Some(first) = left.iter().flat_map(|r| &r.strict).find(|m| left.iter().all(|r| r.weak.contains(m))) {
            let first = *first;
            left.retain(|r| !r.strict.contains(&first));
        }
        left.is_empty()
    }
}

/// The value of a round's name in the next round: `V(id)` becomes `scale * V(of) + by`. Places with one name must agree
/// on all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Passed {
    id: u32,
    of: u32,
    scale: i16,
    by: i64,
}

impl Guess {
    /// Renames the state that came back to the names of the next round, so that it can be compared with the candidate.
    /// `from`: the side on which the round began.
    pub(super) fn next_round(&mut self, back: &mut State, from: u8, next_id: &mut u32) {
        let Some(mark) = back.top().loops.last() else { return };
        let still = |o: &&Own| {
            let g = tie(&self.state, o.place);
            g.is_some_and(|(id, ..)| id == o.id) && g == tie(back, o.place)
        };
        self.unchanged = self.own.iter().chain(&self.named).filter(still).copied().collect();
        self.see_moved_too(back);
        if self.related && self.relations.is_empty() {
            self.see_moves(back);
        }
        let rows = self.held_rows(back);
        self.see_shrinking(back);
        let divided = self.rounds_of_divided(back);
        self.undivided |= self.shrink.is_some() && divided.is_none() && !planted!(UndividedUnseen);
        // V of the next round is V of this round plus the number.
        let mut moved: Vec<(u32, i64)> = vec![(self.k, 1)];
        moved.extend(
            mark.lines.iter().map(|l| (l.x, i64::from(if planted!(StrideLost) { l.step.signum() } else { l.step }))),
        );
        let one = Scalar::constant(1);
        if let Some(mark) = back.top_mut().loops.last_mut() {
            mark.k.n.alu_assign(AluOp::Add, Width::W64, &one);
        }
        back.next_fills(self.k);
        back.seen.clear();
        back.definitions.clear();
        for v in back.frames.iter_mut().flat_map(|f| f.regs.iter_mut().chain(f.spills.iter_mut().map(|s| &mut s.value)))
        {
            let id = v.line_id();
            let Some((_, by)) = moved.iter().find(|(m, _)| *m == id && id != 0) else { continue };
            let delta = i64::from(v.delta) - by * i64::from(v.scale);
            match i32::try_from(delta) {
                Ok(delta) => v.delta = delta,
                Err(_) if v.is_in_region() => *v = Value::uninit(Why::Dead),
                Err(_) => *v = v.renamed(0, 1, 0),
            }
        }
        let by = |id: u32| moved.iter().find(|(m, _)| *m == id).map_or(0, |(_, by)| *by);
        back.room.retain_mut(|f| {
            let bytes =
                by(f.id).checked_mul(f.scale.into()).and_then(|b| f.bytes.checked_sub(b)?.checked_add(by(f.hi)));
            f.bytes = bytes.unwrap_or(0);
            bytes.is_some()
        });
        back.sums.retain_mut(|t| {
            let parts = by(t.b).checked_mul(t.scale).and_then(|b| b.checked_add(by(t.a)));
            let delta = parts.and_then(|p| t.delta.checked_sub(p)?.checked_add(by(t.s)));
            let delta = if planted!(SumsStay) { Some(t.delta) } else { delta };
            let max = if t.max == i64::MAX { Some(i64::MAX) } else { t.max.checked_add(by(t.s)) };
            // A part that was less than the scale need not be less in the next round.
            t.split &= by(t.a) == 0 && delta == Some(t.delta);
            (t.delta, t.max) = (delta.unwrap_or(0), max.unwrap_or(i64::MAX));
            delta.is_some()
        });
        back.forget_products(|id| moved.iter().any(|(m, _)| *m == id) && !planted!(ProductsStay));
        if let Some(most) = divided {
            // `most` also bounds the counter in all earlier rounds.
            if let Some(mark) = back.top_mut().loops.last_mut()
                && let Some(n) = mark.k.n.meet(&Scalar::unsigned(0, most))
            {
                mark.k.n = n;
                back.bound(self.k, 0, most.into(), 1);
            }
        }
        self.see_falling(back);
        lose_negative_lines(back, next_id);
        if self.related && self.relations.is_empty() {
            self.see_sums(back);
        }
        let held = self.see_relations(back, next_id);
        self.forget_rows(back, next_id);
        self.next_own(back, from, next_id);
        self.enter_rows(&rows, back);
        self.broken.extend(self.lost_rows(&rows).into_iter().map(|place| (place, Change::Any)));
        self.enter_relations(&held, back);
        for &place in &self.steps {
            let (want, got) = (tie(&self.state, place), tie(back, place));
            if let (true, Some(want), Some(got)) = (planted!(StepOnOnePath), want, value(back, place)) {
                let (id, scale, delta) = want;
                let start = Scalar::constant(i64::from(delta) as u64);
                let k = back.top().loops.last().map_or(Scalar::UNKNOWN, |m| m.k.n);
                put(back, place, Value { n: on_line(&start, scale.into(), &k), ..got.renamed(id, scale, delta) });
            } else if let Some((id, ..)) = got
                && want != got
            {
                let change = if id != 0 { Change::Move } else { Change::Any };
                self.broken.push((place, change));
            }
        }
    }

    /// Records numbers that the candidate assumes to stay unchanged and that came back at another distance from their
    /// names, or under other names.
    fn see_moved_too(&mut self, back: &State) {
        for place in places(&self.state) {
            let guessed = || {
                self.steps.contains(&place)
                    || self.names_row_of(place)
                    || self.own.iter().chain(&self.named).any(|o| o.place == place)
            };
            if let (Some(g), Some(b)) = (look(&self.state, place), look(back, place))
                && g.is_scalar()
                && (b.is_scalar() && g.id != 0 && b.id != 0 && (g.id, g.scale, g.delta) != (b.id, b.scale, b.delta))
                && !guessed()
                && !self.moved.contains(&place)
            {
                self.moved.push(place);
            }
        }
    }

    /// For pointers on falling lines: if the facts show that the line has not fallen below 0, their distance from the
    /// name is not negative either.
    fn see_falling(&self, back: &mut State) {
        for &place in &self.steps {
            let Some(v) = value(back, place).filter(|v| v.is_pointer() && v.scale > 0 && v.least_of_line() < 0) else {
                continue;
            };
            let lines = back.top().loops.last().into_iter().flat_map(|m| &m.lines);
            let falls = lines.into_iter().any(|l| l.x == v.line_id() && l.step < 0);
            let above = || Form::default().plus(&Form::name(v.line_id()), -1);
            if falls
                && above().is_some_and(|f| back.proves_by_all(&f))
                && let Some(n) = v.n.meet(&Scalar::signed(v.delta.into(), i64::MAX))
            {
                put(back, place, Value { n, ..v });
            }
        }
    }

    /// Passes the places' own names on to their present values, and records which places grew and which shrank.
    fn next_own(&mut self, back: &mut State, from: u8, next_id: &mut u32) {
        let (mut seen, mut weak): (Vec<Measure<Place>>, Vec<Measure<Place>>) = Default::default();
        let mut facts: Vec<Room> = Vec::new();
        let mut passed: Vec<Passed> = Vec::new();
        let mut renamed: Vec<(Place, Value)> = Vec::new();
        // Other names of the round denote other values in the next round, so facts about them are not kept.
        let (owns, sums) = (&self.own, &self.relations);
        let own = |h: u32| owns.iter().any(|o| o.id == h) || sums.iter().any(|(_, name)| *name == h && h != 0);
        let his = if self.own.is_empty() { Vec::new() } else { ends(back, own) };
        for &Own { place, id } in &self.own {
            let (Some(g), Some(b)) = (value(&self.state, place), value(back, place)) else { continue };
            let packet = matches!(g.ty, Ty::Packet { .. });
            if g.ty != b.ty || g.line_id() != id {
                continue;
            }
            let by = i64::from(b.delta) - i64::from(g.delta);
            let simple = b.scale == 1 && (b.id != 0 || packet);
            // A place that held none when the round began had no name then, so nothing is recorded about its movement.
            let had_name = self.had_name(Own { place, id }, from);
            if had_name && simple && b.id != 0 {
                let grown = back.below(id, 1, b.id).map(|x| x.saturating_add(by));
                let shrunk = back.below(b.id, 1, id).map(|x| x.saturating_sub(by));
                for (grows, moved) in [(true, grown), (false, shrunk)] {
                    let what = Measure { what: place, grows };
                    if moved.is_some_and(|by| by > 0) {
                        seen.push(what);
                    }
                    if moved.is_some_and(|by| by >= 0) {
                        weak.push(what);
                    }
                }
            } else if had_name && b.id == id && b.scale > 1 {
                // V becomes scale * V + delta.
                let least = back.least_of(id).unwrap_or(0).max(0).saturating_mul(i64::from(b.scale) - 1);
                let what = Measure { what: place, grows: true };
                if least.saturating_add(by) > 0 {
                    seen.push(what);
                }
                if least.saturating_add(by) >= 0 {
                    weak.push(what);
                }
            }
            if self.related && had_name {
                self.see_moved(back, (place, id), &g, &b, &mut seen, &mut weak);
            }
            let now = Passed { id, of: b.id, scale: b.scale, by };
            match passed.iter().find(|p| p.id == id) {
                None => {
                    if simple {
                        for &hi in &his {
                            let bytes = match b.id {
                                0 => {
                                    (hi < crate::value::FIRST_FREE_ID).then(|| i64::from(back.min_len[hi as usize - 1]))
                                }
                                of => back.below(of, 1, hi),
                            };
                            if let Some(bytes) = bytes.and_then(|x| x.checked_sub(by)) {
                                facts.push(Room { id, scale: 1, bytes, hi });
                            }
                        }
                        // Lower bounds that the candidate states are kept if they still hold.
                        for f in self.state.room.iter().filter(|f| f.hi == id && b.id != 0 && !own(f.id)) {
                            let bytes = back.below(f.id, f.scale, b.id).and_then(|x| x.checked_add(by));
                            facts.extend(bytes.map(|bytes| Room { bytes, ..*f }));
                        }
                    }
                    passed.push(now);
                }
                // Two places with one name have moved apart: the second one leaves the name. (Two numbers without names
                // have nothing in common either, whereas a pointer without a name has V = 0.)
                Some(first)
                    if (*first != now || (b.is_scalar() && b.id == 0 && !planted!(TwinsStayAlike)))
                        && !(planted!(BasesMoveApart) && (first.of, first.by) == (now.of, now.by)) =>
                {
                    self.broken.push((place, Change::Any));
                    continue;
                }
                Some(_) => {}
            }
            renamed.push((place, b.renamed(id, 1, g.delta)));
        }
        // Orders between two of these names, for their present values.
        let simple = || passed.iter().filter(|p| p.scale == 1 && p.of != 0);
        for lo in simple() {
            for hi in simple().filter(|hi| hi.id != lo.id) {
                let bytes = back.below(lo.of, 1, hi.of).and_then(|x| x.checked_sub(lo.by)?.checked_add(hi.by));
                if let Some(bytes) = bytes {
                    facts.push(Room { id: lo.id, scale: 1, bytes, hi: hi.id });
                }
            }
        }
        // The names of the relations' sums are dropped, too.
        let sums = self.relations.iter().map(|(_, name)| *name).filter(|name| *name != 0);
        let old: Vec<u32> = passed.iter().map(|p| p.id).chain(sums).chain(self.parted_names()).collect();
        back.room.retain(|f| !old.contains(&f.id) && !old.contains(&f.hi));
        back.sums.retain(|t| ![t.s, t.a, t.b].iter().any(|id| old.contains(id)));
        back.forget_products(|id| old.contains(&id));
        // A value that still has an old name gets a fresh one or none, since the name denotes another value now.
        for v in back.frames.iter_mut().flat_map(|f| f.regs.iter_mut().chain(f.spills.iter_mut().map(|s| &mut s.value)))
        {
            if v.line_id() != 0 && old.contains(&v.line_id()) {
                *v = v.adrift(next_id);
            }
        }
        for (place, v) in renamed {
            put(back, place, v);
        }
        facts.into_iter().for_each(|f| back.learn_below(f));
        self.measures.see((from, self.side()), seen, weak);
    }

    /// Whether a place has grown or shrunk, with all facts of the state.
    fn see_moved(
        &self,
        back: &State,
        (what, id): (Place, u32),
        g: &Value,
        b: &Value,
        seen: &mut Vec<Measure<Place>>,
        weak: &mut Vec<Measure<Place>>,
    ) {
        let Some(now) = Form::of(b).and_then(|f| f.plus(&Form::constant(g.delta.into()), -1)) else { return };
        for (grows, sign) in [(true, 1), (false, -1)] {
            let measure = Measure { what, grows };
            let moved = |by: i128| {
                let form = Form::constant(by).plus(&Form::name(id), sign).and_then(|f| f.plus(&now, -sign));
                form.is_some_and(|f| back.proves_by_all(&f))
            };
            if !weak.contains(&measure) && moved(0) {
                weak.push(measure);
            }
            if !seen.contains(&measure) && weak.contains(&measure) && moved(1) {
                seen.push(measure);
            }
        }
    }
}

/// Names that may be upper bounds, except names of the round: regions' lengths, and names in facts.
fn ends(back: &State, own: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut his: Vec<u32> = (0..crate::num::few(back.min_len.len())).map(len_id).collect();
    for f in &back.room {
        if !his.contains(&f.hi) {
            his.push(f.hi);
        }
    }
    his.retain(|hi| !own(*hi));
    his
}

/// The name, scale and distance of the value at a place.
fn tie(state: &State, place: Place) -> Option<(u32, i16, i32)> {
    look(state, place).map(|v| (v.line_id(), v.scale, v.delta))
}

/// Makes pointers leave falling lines that may have fallen below 0: equations require that no V is negative. A falling
/// number would wrap and lose its name, but a pointer before its memory keeps its name. If a pointer leaves its line,
/// the candidate does not hold.
fn lose_negative_lines(back: &mut State, next_id: &mut u32) {
    let lines = back.top().loops.last().map(|m| m.lines.as_slice()).unwrap_or_default();
    let falling: Vec<u32> = lines.iter().filter(|l| l.step < 0).map(|l| l.x).collect();
    for x in falling {
        let named = |v: &&Value| v.line_id() == x;
        let least = back.frames.iter().flat_map(Frame::values).filter(named).map(Value::least_of_line).max();
        if least.is_some_and(|least| least >= 0) || planted!(LinesBelowZero) {
            continue;
        }
        for v in back.values_mut().filter(|v| v.line_id() == x) {
            *next_id += 1;
            *v = v.renamed(offset_name(*next_id), 1, 0);
        }
        // Facts that state that V(x) is not negative were about the round before.
        back.room.retain(|f| f.id != x || f.scale == 1);
        back.sums.retain(|t| t.a != x && t.b != x);
        back.forget_products(|id| id == x);
        let lines = back.top_mut().loops.last_mut().into_iter().flat_map(|m| &mut m.lines);
        lines.filter(|l| l.x == x).for_each(|l| l.n = 0);
    }
}
