//! The effect of a loop on a state: observed in one round, generalised to a candidate for all rounds, and compared when
//! a path comes round.
//!
//! Approach: each register and stack slot that a round changes gets a [`Change`]. A place that every round moves by the
//! same constant is `start + step * k`, with one k for all places, so a comparison of one of them bounds the others. A
//! place that moves otherwise gets a name of its own for the round, by which its growth is observed. A place that
//! changes in other ways only has a range.
//!
//! Invariants: nothing here is trusted, except two properties. A candidate covers the state that entered the loop, with
//! k = 0 ([`Guess::new`], [`Guess::settle`] only join with it). And [`Guess::next_round`] only renames: k becomes k - 1
//! of the next round, and each other name of the round becomes the name of its value in the next, so a state has the
//! same meaning before and after.

mod join;
mod parting;
mod place;
mod relation;
mod relations;
mod report;
mod round;
mod rows;
mod shape;
mod shrinks;
mod sides;
mod tables;

use bpf_isa::{AluOp, Width};

use super::Measure;
use crate::env::Env;
use crate::faults::planted;
use crate::integer::line_fits;
use crate::scalar::Scalar;
use crate::state::{Line, Mark, Pool, Room, Round, State};
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value, Why, age, is_offset_name, len_id, offset_name};
use crate::walk::linear::Form;
use crate::walk::pointers::size_of;
use join::{Widen, merge};
use place::{Place, look, places, put, value};
use relation::Relation;
use round::Measures;
use rows::Row;
use shape::Change;
pub(super) use shape::{Shape, compare, name_all};
use shrinks::Shrink;
use sides::Sides;
pub(super) use tables::MAX_TABLE_TRIES;

/// The greatest number of rounds that is counted, so that products with it do not overflow.
const MAX_ROUNDS: u64 = 1 << 62;

/// The set of `start + step * k`.
fn on_line(start: &Scalar, step: i32, k: &Scalar) -> Scalar {
    let size = Scalar::constant(step.unsigned_abs().into());
    let far = k.alu(AluOp::Mul, Width::W64, &size);
    start.alu(if step > 0 { AluOp::Add } else { AluOp::Sub }, Width::W64, &far)
}

/// The set of a place of which only the type is known. If the shape knows more, the range's ends and low bits that stay
/// are kept.
fn loosened_to(v: &Value, place: Place, shape: &Shape, env: &Env<'_>) -> Scalar {
    let all = loosened(v, env);
    let range = match v.is_scalar() {
        false => all,
        true => {
            let (min, max) = shape.range(place, (v.n.umin(), v.n.umax()), (all.umin(), all.umax()));
            Scalar::unsigned(min, max)
        }
    };
    range.meet(&shape.aligned(place, v)).unwrap_or(range)
}

fn loosened(v: &Value, env: &Env<'_>) -> Scalar {
    match v.ty {
        Ty::Scalar if v.n.high_half_is_zero() => Scalar::low_bits(32),
        Ty::Scalar => Scalar::UNKNOWN,
        _ => {
            let size = i64::from(size_of(v, env));
            let least = v.n.smin().min(if matches!(v.ty, Ty::Stack { .. } | Ty::Signed) { -size } else { 0 });
            Scalar::signed(least, v.n.smax().max(size))
        }
    }
}

/// The name that a place has for the current round.
#[derive(Clone, Copy, Debug)]
struct Own {
    place: Place,
    id: u32,
}

/// A candidate invariant.
#[derive(Debug)]
pub(super) struct Guess {
    /// The state at the head, in round k.
    pub(super) state: State,
    k: u32,
    steps: Vec<Place>,
    rows: Vec<Row>,
    own: Vec<Own>,
    uncounted: bool,
    entry: State,
    /// The most rounds that a havocked candidate allows.
    most: u64,
    /// Names of other places in a havocked candidate, by which paths that leave them unchanged are recognised.
    named: Vec<Own>,
    /// The join of the states that came back to a havocked candidate.
    back: Option<State>,
    /// Places that every path left unchanged; the join says nothing about them.
    still: Vec<Own>,
    /// Places that the newest path left unchanged.
    unchanged: Vec<Own>,
    /// Places that did not change as assumed.
    broken: Vec<(Place, Change)>,
    /// Named numbers that were assumed to stay unchanged, and did not.
    moved: Vec<Place>,
    measures: Measures,
    /// Places that stay unchanged, and have a name to show it.
    same: Vec<Place>,
    /// Whether places are related to each other. `relations`: the relations in the candidate, with the names of their
    /// sums. `refuted`: the relations that did not hold of a state that came back.
    related: bool,
    further: bool,
    relations: Vec<(Relation, u32)>,
    refuted: Vec<Relation>,
    /// Relations of sums that a state which came back knew.
    seen: Vec<Relation>,
    /// For each round that came back: the constants by which places moved.
    moves: Vec<Vec<(Place, i128)>>,
    /// The first name that was made for this candidate.
    first_name: u32,
    /// The sides of the partition; `state`, `back` and `still` belong to one side.
    sides: Sides,
    /// The number that counts rounds because each round divides it, with the most rounds; `shrinking`: the options in a
    /// havocked candidate.
    shrink: Option<(Shrink, u64)>,
    shrinking: Option<Vec<Shrink>>,
    /// Whether a round came back that did not divide that number.
    undivided: bool,
    /// For a havocked candidate: places that came back from tables.
    tabled: Vec<Place>,
}

impl Guess {
    /// The state that entered the loop, generalised to round k. In a havocked candidate, k is any round before a number
    /// wraps or a pointer leaves its memory; otherwise k is 0. `pool`: unused states.
    pub(super) fn new(
        entry: &State,
        shape: &Shape,
        (k, id, loose): (u32, u32, bool),
        env: &Env<'_>,
        next_id: &mut u32,
        pool: &mut Pool,
    ) -> Option<Guess> {
        let mut state = entry.copied(pool);
        let counted_below = shape.changes.iter().filter_map(|(p, c)| below_zero(entry, *p, *c));
        counted_below.clone().for_each(|(p, v)| put(&mut state, p, v));
        let mut begun = entry.copied(pool);
        counted_below.for_each(|(p, v)| put(&mut begun, p, v));
        let entry = &begun;
        // Remembered loads and definitions refer to names that denote other numbers in the next round.
        state.seen.clear();
        state.definitions.clear();
        let counted: Vec<(Place, i32)> = shape
            .changes
            .iter()
            .filter_map(|(p, c)| match c {
                Change::Step(d) if !shape.uncounted => Some((*p, *d)),
                _ => None,
            })
            .collect();
        let most = counted
            .iter()
            .filter_map(|(p, d)| rounds_of(&value(entry, *p)?, *d, shape.wide, env))
            .fold(MAX_ROUNDS, u64::min);
        // The rounds may also be bounded by a number that each of them divides.
        let shrink = shape.shrink.filter(|_| !shape.uncounted && !counted.is_empty());
        let with_rounds = |s: Shrink| value(entry, s.place).filter(Value::is_scalar).map(|v| (s, s.rounds(v.n.umax())));
        let shrink = shrink.and_then(with_rounds);
        let most = shrink.map_or(most, |(_, rounds)| most.min(rounds));
        let rounds = match (shape.uncounted || counted.is_empty(), loose) {
            (true, _) => Scalar::UNKNOWN,
            (false, true) => Scalar::unsigned(0, most),
            (false, false) => Scalar::constant(0),
        };
        let first_name = *next_id + 1;
        let sides = Sides::new(entry, shape, || {
            *next_id += 1;
            *next_id
        });
        let mut mark = Mark {
            id,
            round: Round::Guessed,
            k: Value { id: k, ..Value::scalar(rounds) },
            lines: Vec::new(),
            ids: sides.owns().map(|o| o.id).chain([k]).collect(),
            side: sides.begun(),
        };
        let mut g = Guess {
            state: State::default(),
            k,
            steps: Vec::new(),
            rows: Vec::new(),
            own: sides.owns().collect(),
            uncounted: shape.uncounted || counted.is_empty(),
            entry: entry.copied(pool),
            most,
            named: Vec::new(),
            back: None,
            still: Vec::new(),
            unchanged: Vec::new(),
            broken: Vec::new(),
            moved: Vec::new(),
            measures: Measures::default(),
            same: Vec::new(),
            related: shape.relates(),
            further: shape.further,
            relations: Vec::new(),
            refuted: Vec::new(),
            seen: Vec::new(),
            moves: Vec::new(),
            first_name,
            sides,
            shrink,
            shrinking: None,
            undivided: false,
            tabled: Vec::new(),
        };
        // The initial values of lines that have a name of their own: the name, and the value.
        let mut begins: Vec<(u32, Value)> = Vec::new();
        let mut fresh = Fresh(next_id);
        // Region pointers with one base that move together share the new name: the old id and scale, the new id, the
        // first pointer's distance.
        let mut bases: Vec<(u32, i16, u32, i32)> = Vec::new();
        // Numbers come first, since pointers may fall with one of them.
        let is_number = |p: &Place| value(entry, *p).is_some_and(|v| v.is_scalar());
        let (numbers, others): (Vec<_>, Vec<_>) = shape
            .changes
            .iter()
            .copied()
            .chain(g.sides.moves())
            .filter(|(p, _)| !g.is_none(*p))
            .partition(|(p, _)| is_number(p));
        for (place, change) in numbers.into_iter().chain(others) {
            let Some(v) = value(&state, place) else { continue };
            if let (Change::Step(d), false) = (change, g.uncounted)
                && let v = divided(&mut state, &v, d, fresh.0)
                && let Some((tied, start)) = tie(&v, d, &mut mark, &begins, &mut fresh)
            {
                let n = match loose {
                    // A pointer is assumed to stay at or above the start of its memory: below it, comparisons say
                    // nothing.
                    true if v.is_pointer() && d < 0 => {
                        let n = on_line(&start, d, &rounds);
                        n.meet(&Scalar::signed(loosened(&v, env).smin(), i64::MAX)).unwrap_or(n)
                    }
                    // A pointer is assumed not to rise beyond the end of its memory, for the same reason.
                    true if v.is_pointer() && shape.further => {
                        let n = on_line(&start, d, &rounds);
                        n.meet(&Scalar::signed(i64::MIN, loosened(&v, env).smax())).unwrap_or(n)
                    }
                    true => on_line(&start, d, &rounds),
                    false => v.n,
                };
                put(&mut state, place, Value { n, ..tied });
                // A value at a distance from its line is not the line's initial value.
                let begun = |l: &&Line| {
                    (l.x, 1, 0) == (tied.line_id(), tied.scale, tied.delta)
                        && (age(l.n) >= g.first_name || v.is_scalar())
                };
                if let Some(line) = mark.lines.iter().find(begun) {
                    begins.push((line.n, v));
                }
                g.steps.push(place);
                continue;
            }
            if !g.uncounted && shape.strides.iter().any(|s| s.place == place) {
                continue;
            }
            let n = if loose { loosened_to(&v, place, shape, env) } else { v.n };
            let moves = !matches!(change, Change::Any);
            let v = match v.ty {
                Ty::Scalar
                    if (moves && g.uncounted)
                        || g.related
                        || shape.parts_by(place)
                        || shrink.is_some_and(|(s, _)| s.place == place) =>
                {
                    let twin = shape.twin_of(place, entry).and_then(|t| g.own.iter().find(|o| o.place == t));
                    let twin = twin.map(|o| o.id);
                    let own = twin.unwrap_or_else(|| fresh.name());
                    g.own.push(Own { place, id: own });
                    g.sides.set_name(Own { place, id: own });
                    mark.ids.push(own);
                    if !loose && twin.is_none() {
                        order_own(entry, &mut state, &v, own, v.delta);
                    }
                    Value { n, ..v.renamed(own, 1, 0) }
                }
                Ty::Packet { .. } => {
                    let base = bases.iter().find(|(i, s, ..)| moves && (*i, *s) == (v.id, v.scale)).copied();
                    let (_, _, own, first) = base.unwrap_or_else(|| {
                        let own = fresh.name();
                        let begun = Value { n, ..v.renamed(own, 1, 0) };
                        (v.id, v.scale, if begun.is_of_no_negative() { own } else { offset_name(own) }, v.delta)
                    });
                    if base.is_none() {
                        bases.push((v.id, v.scale, own, first));
                        mark.ids.push(own);
                        if !loose {
                            order_own(entry, &mut state, &v, own, first);
                        }
                    }
                    g.own.push(Own { place, id: own });
                    g.sides.set_name(Own { place, id: own });
                    Value { n, ..v.renamed(own, 1, v.delta.checked_sub(first)?) }
                }
                Ty::Scalar if loose => {
                    let id = fresh.name();
                    g.named.push(Own { place, id });
                    mark.ids.push(id);
                    Value { n, ..v.renamed(id, 1, 0) }
                }
                Ty::Scalar => Value { n, ..v.unlinked() },
                Ty::Uninit(_) => v,
                Ty::Half { .. } => Value { n, ..v.adrift(fresh.0) },
                _ => {
                    let id = if v.id == 0 { 0 } else { fresh.name() };
                    Value { n, id, ..v.renamed(0, 1, 0) }
                }
            };
            // An or-null pointer is null together with others; that relation is not known after a round.
            let v = if v.null && v.is_pointer() { Value::uninit(Why::Dead) } else { v };
            put(&mut state, place, v);
        }
        for &place in &shape.same {
            if let Some(v) = value(&state, place)
                && v.is_scalar()
                && v.id == 0
                && v.n.as_const().is_none()
            {
                let id = fresh.name();
                mark.ids.push(id);
                let v = v.renamed(id, 1, 0);
                put(&mut state, place, v);
                // The place holds the same number when the loop begins.
                put(&mut g.entry, place, v);
                g.same.push(place);
            }
        }
        for (n, v) in begins {
            // V(n) is the value with which the loop begins.
            if v.is_scalar() && v.id != 0 && v.scale == 1 {
                let at = i64::from(v.delta);
                state.learn_below(Room { id: v.id, scale: 1, bytes: at, hi: n });
                state.learn_below(Room { id: n, scale: 1, bytes: -at, hi: v.id });
            }
        }
        for line in &mark.lines {
            let (id, hi) = if line.step > 0 { (line.n, line.x) } else { (line.x, line.n) };
            state.learn_below(Room { id, scale: 1, bytes: 0, hi });
            mark.ids.extend([line.x, line.n].into_iter().filter(|id| *id >= crate::value::FIRST_FREE_ID));
        }
        mark.ids.sort_unstable();
        mark.ids.dedup();
        for f in &mut state.frames {
            f.drop_uninit_spills();
        }
        state.top_mut().loops.push(mark);
        g.state = state;
        if !g.uncounted {
            g.begin_rows(&shape.strides, env, loose, next_id);
        }
        if loose && !g.uncounted {
            g.state.bound(k, 0, most.into(), 1);
        }
        if g.related {
            g.relate(shape, next_id);
        }
        if loose {
            g.begin_sides(shape, env, next_id);
        }
        pool.push(begun);
        Some(g)
    }

    /// All states of the candidate.
    pub(super) fn states(&self) -> impl Iterator<Item = &State> {
        [&self.state, &self.entry].into_iter().chain(&self.back).chain(self.sides.states())
    }

    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut State> {
        [&mut self.state, &mut self.entry].into_iter().chain(&mut self.back).chain(self.sides.states_mut())
    }

    /// Returns its states to the pool.
    pub(super) fn retire(self, pool: &mut Pool) {
        let Guess { state, entry, back, sides, .. } = self;
        pool.extend([state, entry]);
        pool.extend(back);
        sides.retire(pool);
    }

    /// Whether the candidate still shows of each place that its number is not negative, if its name says so.
    pub(super) fn keeps_signs(&self) -> bool {
        let states = || std::iter::once(&self.state).chain(self.other_sides());
        let may_be = |o: &Own| !is_offset_name(o.id) && states().any(|s| s.may_be_negative(o.id));
        planted!(SignsUnkept) || !self.own.iter().any(may_be)
    }

    /// Whether the rounds seen so far are proven to end, provided that the candidate covers them: they are counted and
    /// the count is bounded, or a place moves one way in all of them.
    pub(super) fn ends(&self) -> bool {
        planted!(EveryLoopEnds) || (!self.undivided && (!self.uncounted || self.measures.end()))
    }

    /// The most rounds of the candidate, if they are counted.
    pub(super) fn rounds(&self) -> Option<u64> {
        let mark = self.state.top().loops.last()?;
        (!self.uncounted).then(|| self.other_rounds().map(|k| k.umax()).fold(mark.k.n.umax(), u64::max))
    }

    /// Notes a comparison of a number of a havocked iteration with a constant: if the number is a place's, the place
    /// may be bounded there.
    pub(super) fn see_compared(&self, shape: &mut Shape, v: &Value, constant: i32) {
        let named = |o: &&Own| o.id == v.id && v.id != 0 && v.scale == 1;
        if let Some(o) = self.own.iter().chain(&self.named).find(named) {
            shape.limit(o.place, i128::from(constant) - i128::from(v.delta));
        }
    }

    /// Whether any path came back to a loose guess.
    pub(super) fn came_back(&self) -> bool {
        self.back.is_some() || self.came_back_apart()
    }

    /// Joins a path that came back to a havocked candidate.
    ///
    /// A path that leaves a place unchanged adds nothing to the possible values of the place, so the havocked range is
    /// not joined.
    pub(super) fn note_back(&mut self, mut back: State, next_id: &mut u32, pool: &mut Pool) {
        let unchanged = std::mem::take(&mut self.unchanged);
        self.see_parting(&back);
        self.without_none(&mut back);
        self.see_crossed(&unchanged);
        match &mut self.back {
            None => {
                self.back = Some(back);
                self.still = unchanged;
            }
            Some(all) => {
                for o in &unchanged {
                    take_over(&mut back, all, o);
                }
                for o in self.still.extract_if(.., |o| !unchanged.iter().any(|u| u.place == o.place)) {
                    take_over(all, &back, &o);
                }
                if !merge(all, &back, Widen::Not, next_id) {
                    self.broken.clear();
                    self.uncounted = true;
                    self.measures.see((0, 0), Vec::new(), Vec::new());
                }
                pool.push(back);
            }
        }
    }

    /// Corrects the shape after a havocked iteration. `true` if another havocked iteration is needed.
    pub(super) fn revise(&mut self, shape: &mut Shape) -> bool {
        // A new partition needs another havocked iteration.
        if self.part(shape) {
            return true;
        }
        let mut again = false;
        for &(place, change) in &self.broken {
            if !shape.parts_by(place) {
                shape.set(place, change);
                again = true;
            }
        }
        let mut counted = None;
        self.each_side(|g| {
            again |= g.revise_side(shape);
            counted = counted.max(g.back.as_ref().and_then(|b| b.top().loops.last()).map(|m| m.k.n.umax()));
        });
        again |= shape.revise_relations(self);
        if !self.uncounted && !again && shape.shrink.is_none() && !shape.undivided && !shape.is_parted() {
            shape.shrink = counted.and_then(|k| self.counts_less(k));
            if shape.shrink.is_some() {
                return true;
            }
        }
        if !self.uncounted && !again && counted.is_some_and(|k| k > self.most) {
            shape.uncounted = std::mem::replace(&mut shape.wide, true);
            again = true;
        }
        again
    }

    /// Corrects the shape by the states that came back to the present side.
    fn revise_side(&self, shape: &mut Shape) -> bool {
        let mut again = false;
        if let Some(back) = &self.back {
            let changed: Vec<Place> = shape.changes.iter().map(|(p, _)| *p).collect();
            for place in changed.into_iter().filter(|p| !self.still.iter().any(|o| o.place == *p)) {
                if let (Some(e), Some(b)) = (look(&self.entry, place), look(back, place))
                    && e.is_scalar()
                    && !self.steps.contains(&place)
                    && !self.names_row_of(place)
                {
                    again |= shape.tables.see(place, &e, &b, self.tabled.contains(&place));
                    // If the candidate assumed a smaller range than the type's, the value that came back is compared
                    // with that range.
                    let e =
                        if self.related || !self.is_begun_side() { look(&self.state, place).unwrap_or(e) } else { e };
                    again |= shape.see_range(place, &e, &b);
                }
            }
        }
        // A place that the first round left unchanged may change in later rounds.
        if let Some(back) = &self.back {
            for place in places(&self.state) {
                let (Some(g), Some(b)) = (look(&self.state, place), look(back, place)) else { continue };
                let beyond = || !b.n.subset(&g.n);
                if shape.parts_by(place) {
                    // A place that holds something on this side: its range is observed like that of other places.
                    if g.is_scalar() && b.is_scalar() && !self.is_none(place) && beyond() {
                        again |= shape.see_range(place, &g, &b);
                    }
                    continue;
                }
                let known = |shape: &Shape| shape.changes.iter().any(|(p, _)| *p == place);
                let numbers = g.is_scalar() && b.is_scalar();
                if numbers && (beyond() || self.moved.contains(&place)) && !known(shape) {
                    shape.set(place, Change::Move);
                    shape.see_range(place, &g, &b);
                    again = true;
                }
                // A pointer that may stay or move becomes a place of its own in candidates with relations.
                let pointers = matches!((g.ty, b.ty), (Ty::Packet { .. }, Ty::Packet { .. })) && g.ty == b.ty;
                if (self.related && shape.further && pointers)
                    && (beyond() || (g.id, g.scale, g.delta) != (b.id, b.scale, b.delta))
                    && !known(shape)
                {
                    shape.set(place, Change::Move);
                    again = true;
                }
            }
        }
        again
    }

    /// Joins the state that entered with the states that came back to the havocked candidate, and takes over its
    /// observations about order. `false` if no path came back in a usable way. `related`: whether relations are used
    /// everywhere.
    pub(super) fn settle(&mut self, loose: &mut Guess, related: bool, next_id: &mut u32) -> bool {
        loose.each_side(|_| {});
        if !loose.came_back() {
            return true;
        }
        if !loose.ends() {
            return false;
        }
        // Names of places and of lines differ between the two candidates; they were made in the same order.
        let (Some(mine), Some(theirs)) = (self.state.top().loops.last(), loose.state.top().loops.last()) else {
            return false;
        };
        let alike = self.own.len() == loose.own.len() && self.rows.len() == loose.rows.len();
        if mine.lines.len() != theirs.lines.len() || !alike {
            return false;
        }
        let mut names: Vec<(u32, u32)> =
            mine.lines.iter().zip(&theirs.lines).flat_map(|(m, t)| [(t.x, m.x), (t.n, m.n)]).collect();
        names.extend(self.own.iter().zip(&loose.own).map(|(m, t)| (t.id, m.id)));
        names.extend(self.rows.iter().zip(&loose.rows).flat_map(|(m, t)| t.names().zip(m.names())));
        let named = |r: &Relation| self.relations.iter().find(|(mine, _)| mine == r).map(|(_, name)| *name);
        names.extend(loose.relations.iter().filter(|(_, t)| *t != 0).filter_map(|(r, t)| Some((*t, named(r)?))));
        for (place, v) in places(&self.state).filter_map(|p| Some((p, look(&self.state, p)?))) {
            // Names that are equal in every round are matched, too.
            if let Some(t) = look(&loose.state, place)
                && t.line_id() != v.line_id()
                && !names.iter().any(|(t2, _)| *t2 == t.line_id())
            {
                names.push((t.line_id(), v.line_id()));
            }
        }
        let first = self.first_name.min(loose.first_name);
        if let Some(back) = loose.back.as_ref().filter(|_| related) {
            self.define_sums(back, first, &mut names, next_id);
        }
        let joined = loose.back.as_ref().is_none_or(|back| self.settle_begun(back, &loose.still, &names, next_id));
        self.settle_sides(loose, &names, next_id);
        self.each_side(|g| g.order_entry(&loose.measures));
        self.measures = Measures::default();
        joined
    }

    /// Names the sums of unchanged numbers that a fact of the havocked iteration is about (`pos + 12 <= 8 * len`): such
    /// a sum is the same number in all rounds, but was first named inside the loop.
    ///
    /// Claim: the candidate still covers the state that entered. Proof: the new name is defined by the sum, exists
    /// nowhere else, and both parts are numbers or lengths of regions that the entry state knows, so they are not
    /// negative.
    fn define_sums(&mut self, back: &State, first: u32, names: &mut Vec<(u32, u32)>, next_id: &mut u32) {
        let known = |state: &State, id: u32| match id {
            ..FIRST_FREE_ID => state.min_len.get((id as usize).wrapping_sub(1)).is_some(),
            _ => age(id) < first && places(state).any(|p| look(state, p).is_some_and(|v| v.is_scalar() && v.id == id)),
        };
        for t in back.sums.iter().filter(|t| age(t.s) >= first && !t.split && t.delta == 0) {
            let asked = back.room.iter().any(|f| f.id == t.s || f.hi == t.s);
            let Ok(scale) = i16::try_from(t.scale) else { continue };
            if !asked || !known(&self.state, t.a) || !known(&self.state, t.b) || names.iter().any(|(id, _)| *id == t.s)
            {
                continue;
            }
            if let Some((id, 0)) = self.state.name_sum((t.a, t.b, scale), 0, i64::MAX, next_id) {
                names.push((t.s, id));
            }
        }
    }

    /// [`Guess::settle`] for the side that entered. `names`: pairs of a name in the havocked candidate and this
    /// candidate's name.
    fn settle_begun(&mut self, back: &State, still: &[Own], names: &[(u32, u32)], next_id: &mut u32) -> bool {
        let mut back = back.clone();
        for o in still {
            if let Some(v) = value(&self.state, o.place) {
                put(&mut back, o.place, v);
            }
        }
        let new = |id: u32| names.iter().find(|(t, _)| *t == id && id != 0).map_or(id, |(_, m)| *m);
        for v in back.values_mut() {
            let id = v.line_id();
            if id != 0 && new(id) != id {
                *v = v.renamed(new(id), v.scale, v.delta);
            }
        }
        for f in &mut back.room {
            (f.id, f.hi) = (new(f.id), new(f.hi));
        }
        for t in &mut back.sums {
            (t.s, t.a, t.b) = (new(t.s), new(t.a), new(t.b));
        }
        for t in &mut back.products {
            (t.p, t.a, t.b) = (new(t.p), new(t.a), new(t.b));
        }
        if let Some(m) = back.top_mut().loops.last_mut() {
            for l in &mut m.lines {
                (l.x, l.n) = (new(l.x), new(l.n));
            }
            m.ids = self.state.top().loops.last().map(|m| m.ids.clone()).unwrap_or_default();
        }
        let facts: Vec<Room> = back
            .room
            .iter()
            .filter(|f| !self.names_row(f.id) && !self.names_row(f.hi))
            .filter(|f| !self.state.is_below(f.id, f.scale, f.bytes, f.hi))
            .filter_map(|f| Some(Room { bytes: f.bytes.min(self.at_entry(f)?), ..*f }))
            .collect();
        facts.into_iter().for_each(|f| self.state.learn_below(f));
        merge(&mut self.state, &back, Widen::Not, next_id)
    }

    /// Adds orders to the initial value: a place that never fell (or never rose) in the havocked iteration is at least
    /// (at most) its initial value. The order holds when the loop begins, since nothing has moved yet, and the check
    /// proves that it stays true.
    fn order_entry(&mut self, seen: &Measures) {
        for m in seen.weak() {
            let Some(own) = self.own.iter().find(|o| o.place == m.what) else { continue };
            let (Some(e), Some(g)) = (value(&self.entry, m.what), value(&self.state, m.what)) else { continue };
            if e.line_id() == 0 || e.scale != 1 || g.line_id() != own.id || g.scale != 1 {
                continue;
            }
            // V(own) begins as V(n) + apart.
            let apart = i64::from(e.delta) - i64::from(g.delta);
            self.state.learn_below(match m.grows {
                true => Room { id: e.line_id(), scale: 1, bytes: apart, hi: own.id },
                false => Room { id: own.id, scale: 1, bytes: -apart, hi: e.line_id() },
            });
        }
    }

    /// The best bound of the fact's form when the loop begins, with k = 0.
    fn at_entry(&self, f: &Room) -> Option<i64> {
        let s = &self.state;
        if f.id == 0 || f.hi == 0 {
            return None;
        }
        // The simple derivation mostly suffices.
        let easily = self.at_entry_by_parts(f);
        if easily >= Some(f.bytes) {
            return easily;
        }
        // The state still is the one that entered, in the candidate's names, with k = 0.
        let form = Form::constant(f.bytes.into())
            .plus(&Form::name(f.id), f.scale.into())
            .and_then(|form| form.plus(&Form::name(f.hi), -1));
        if form.is_some_and(|form| s.proves_by_all(&form)) { Some(f.bytes) } else { easily }
    }

    /// [`Guess::at_entry`] from the initial values of both sides of the fact separately.
    fn at_entry_by_parts(&self, f: &Room) -> Option<i64> {
        let s = &self.state;
        let mark = s.top().loops.last()?;
        let (most, named) = if f.id == self.k {
            (0, None)
        } else if let Some(line) = mark.lines.iter().find(|l| l.x == f.id) {
            let named = if line.n == 0 { None } else { s.below(line.n, f.scale, f.hi) };
            (line.start.umax(), named)
        } else {
            let own = self.own.iter().find(|o| o.id == f.id)?;
            let v = value(&self.entry, own.place).filter(Value::is_scalar)?;
            let named = if v.scale == 1 { self.entry.below(v.id, f.scale, f.hi) } else { None };
            (v.n.umax(), named.and_then(|b| b.checked_sub(i64::from(v.delta) * i64::from(f.scale))))
        };
        let apart =
            s.least_of(f.hi).and_then(|hi| i64::try_from(i128::from(hi) - i128::from(most) * i128::from(f.scale)).ok());
        named.max(apart)
    }

    /// Weakens the candidate so that it covers the state that came back, too. `false` if that is impossible.
    pub(super) fn weaken(&mut self, back: &State, env: &Env<'_>, next_id: &mut u32) -> bool {
        for (place, _) in std::mem::take(&mut self.broken) {
            let Some(v) = value(&self.state, place) else { continue };
            // A falling line is not negative only because a place holds it; without the place, nothing would imply
            // that.
            let falls = |m: &Mark| m.lines.iter().any(|l| l.x == v.line_id() && l.step < 0);
            if self.state.top().loops.last().is_some_and(falls) {
                return false;
            }
            let v = match v.ty {
                Ty::Packet { .. } => return false,
                _ => v.adrift(next_id),
            };
            put(&mut self.state, place, Value { n: loosened(&v, env), ..v });
            self.loosen_others(place, env, next_id);
            for row in self.rows.extract_if(.., |r| r.place == place) {
                rows::forget_names(&mut self.state, &row.names().collect::<Vec<_>>(), next_id);
            }
            self.steps.retain(|p| *p != place);
            self.own.retain(|o| o.place != place);
        }
        self.measures = Measures::default();
        if self.steps.is_empty() && !self.uncounted {
            return false;
        }
        let widen = if self.weakens_again() { Widen::Far } else { Widen::Near };
        merge(&mut self.state, back, widen, next_id)
    }
}

/// Replaces the facts of `state` about a place and its name by those of `by`.
fn take_over(state: &mut State, by: &State, o: &Own) {
    let Some(v) = value(by, o.place) else { return };
    put(state, o.place, v);
    state.room.retain(|f| f.id != o.id && f.hi != o.id);
    by.room.iter().filter(|f| f.id == o.id || f.hi == o.id).for_each(|f| state.learn_below(*f));
}

/// Copies the orders of the value's name to a new name, at this distance from the old one.
fn order_own(entry: &State, state: &mut State, v: &Value, own: u32, delta: i32) {
    for region in 0..crate::num::few(entry.min_len.len()) {
        let bytes = match v.id {
            0 if v.is_pointer() => Some(i64::from(entry.min_len[usize::from(region)])),
            0 => None,
            id => entry.below(id, v.scale, len_id(region)),
        };
        if let Some(bytes) = bytes.and_then(|bytes| bytes.checked_sub(delta.into())) {
            state.learn_below(Room { id: own, scale: 1, bytes, hi: len_id(region) });
        }
    }
}

/// The number of rounds for which a step of `d` neither wraps nor leaves the pointer's memory by more than one step.
///
/// `wide`: a number that has few bits when the loop begins may grow beyond them.
fn rounds_of(v: &Value, d: i32, wide: bool, env: &Env<'_>) -> Option<u64> {
    let size = u64::from(d.unsigned_abs());
    if !v.is_scalar() {
        return Some(u64::from(size_of(v, env)) / size + 1);
    }
    if d < 0 {
        return Some(v.n.umax() / size);
    }
    let top = match v.n.high_half_is_zero() && !wide {
        true => ones(32),
        // From a negative number up to 0.
        false if v.n.smax() < 0 => u64::MAX,
        false => u64::MAX >> 1,
    };
    Some(top.saturating_sub(v.n.umax()) / size)
}

/// A register that holds a constant and falls below zero in the first round, as a signed number.
fn below_zero(entry: &State, place: Place, change: Change) -> Option<(Place, Value)> {
    let Change::Step(d @ ..0) = change else { return None };
    let v = value(entry, place).filter(|_| place.is_register())?;
    let falls = |c: u64| (c as i64) < i64::from(d.unsigned_abs());
    v.as_const().filter(|c| falls(*c))?;
    Some((place, v.as_signed()?))
}

/// A source of fresh names.
struct Fresh<'a>(&'a mut u32);

impl Fresh<'_> {
    fn name(&mut self) -> u32 {
        *self.0 += 1;
        *self.0
    }
}

/// Renames a value that is a multiple of its name and moves by less than that multiple: it gets a name for the
/// multiple.
fn divided(state: &mut State, v: &Value, d: i32, next_id: &mut u32) -> Value {
    let id = v.line_id();
    if id == 0 || v.scale <= 1 || d % i32::from(v.scale) == 0 || state.may_be_negative(id) {
        return *v;
    }
    let named = state.name_sum((id, id, v.scale - 1), 0, i64::MAX, next_id);
    match named.and_then(|(s, apart)| Some((s, v.delta.checked_add(apart)?))) {
        Some((s, delta)) => v.renamed(s, 1, delta),
        None => *v,
    }
}

/// The value as a function of the round, and its value for k = 0: by its scale if its start is constant, otherwise on a
/// line of its own. `begins`: initial values of number lines that have a name of their own.
fn tie(v: &Value, d: i32, mark: &mut Mark, begins: &[(u32, Value)], fresh: &mut Fresh<'_>) -> Option<(Value, Scalar)> {
    let scale = i16::try_from(d).ok()?;
    let k = mark.k.id;
    let known = match v.ty {
        Ty::Packet { .. } if v.id == 0 => Some(v.delta),
        Ty::Packet { .. } => None,
        Ty::Scalar => v.n.as_const().and_then(|c| i32::try_from(c).ok()),
        Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Signed => {
            v.n.as_const().and_then(|c| i32::try_from(c as i64).ok())
        }
        _ => return None,
    };
    if let Some(delta) = known {
        return Some((v.renamed(k, scale, delta), v.n));
    }
    if v.null {
        return None;
    }
    // V(x) must not be negative, as no V is. A value that falls to 0 from above its name's distance would make it
    // negative, and so may the name of a pointer that once lay before its region. A pointer that begins below its
    // object does not, as long as its distance from the name is not positive: whether each round preserves that is
    // checked when it comes back ([`Guess::next_round`]), with all facts.
    let begins_above = v.line_id() != 0 && v.scale > 0 && v.delta <= 0 && v.least_of_line() >= 0;
    let from_start = v.is_scalar() || v.n.smin() >= i64::from(v.delta).max(0) || begins_above;
    let rises = v.line_id() != 0 && v.scale > 0 && d > 0 && v.is_of_no_negative();
    let falls = v.line_id() != 0 && v.scale > 0 && d < 0 && v.delta <= 0 && from_start;
    // V(n) has a range of 64 bits. A value that lies below its name by a distance may be a number while V is none (`4 *
    // x - 4000`); such a line begins at the value itself.
    let fits = !v.is_scalar() || line_fits::<i128>(v.scale.into(), v.delta.into(), v.n.umax().into());
    let named = (rises || falls) && d % i32::from(v.scale) == 0 && fits;
    // The value falls with a number that a place holds and that is therefore not negative.
    let like = begins.iter().find_map(|(n, b)| {
        let moves = |l: &&Line| v.scale > 0 && l.step.checked_mul(v.scale.into()) == Some(d) && d < 0;
        let line = mark.lines.iter().filter(|l| l.n == *n).find(moves)?;
        let alike = b.is_scalar() && (b.line_id(), b.scale) == (v.line_id(), 1) && v.line_id() != 0;
        // V(id) is V(n) minus b's distance.
        let delta = v.delta.checked_sub(b.delta.checked_mul(v.scale.into())?)?;
        (alike && !named).then_some(v.renamed(line.x, v.scale, delta))
    });
    if let Some(v) = like {
        return Some((v, v.n));
    }
    if !named && matches!(v.ty, Ty::Packet { .. }) {
        return None;
    }
    // A value without a name is expressed by its distance from its least value.
    let least = i32::try_from(v.n.smin().min(0)).ok().filter(|_| !v.is_scalar()).unwrap_or(0);
    if !named && ((!v.is_scalar() && v.n.smin() < least.into()) || (d < 0 && !from_start)) {
        return None;
    }
    let (n, scale, delta) = if named { (v.line_id(), v.scale, v.delta) } else { (0, 1, least) };
    let step = d / i32::from(scale);
    let line = mark.lines.iter().find(|l| n != 0 && l.n == n && l.step == step).map(|l| l.x);
    let x = line.unwrap_or_else(|| {
        let n = if n == 0 { fresh.name() } else { n };
        let start = match scale {
            1 => v.n.alu(AluOp::Sub, Width::W64, &Scalar::constant(i64::from(delta) as u64)),
            _ => {
                let (min, max) = v.range_of_line();
                Scalar::unsigned(min, max)
            }
        };
        let x = fresh.name();
        mark.lines.push(Line { x, n, step, start });
        x
    });
    Some((v.renamed(x, scale, delta), v.n))
}
