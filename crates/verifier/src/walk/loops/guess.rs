//! What a loop may do to a state: seen in one round, guessed for all, and compared when it comes round.
//!
//! Approach: each register and stack slot that a round changes gets a [`Change`]. One that every round moves by the
//! same constant is `start + step * k`, with the k that all of them share; so what one comparison says of one of them
//! bounds the others. What moves in other ways gets a name of its own for the round, by which it is seen whether it
//! grows; what changes otherwise has only a range.
//!
//! Invariants: nothing here is trusted. A guess holds what entered the loop, with k = 0 ([`Guess::new`],
//! [`Guess::settle`]: a join with what entered is all they make); and [`Guess::next_round`] only renames: k becomes k -
//! 1 of the next round, and each other name of the round what has it next, so that a state means the same before and
//! after.

mod join;

use std::fmt;

use bpf_isa::{AluOp, Reg, Width};

use super::Measure;
use crate::env::Env;
use crate::error::LoopFailure;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Frame, Line, Mark, Room, Round, State};
use crate::tnum::ones;
use crate::value::{Ty, Value, Why, len_id};
use crate::walk::pointers::size_of;
use join::{Widen, merge};

/// More rounds than these are not counted: so that nothing that is multiplied with them overflows.
const MAX_ROUNDS: u64 = 1 << 62;

/// A register or slot, in the frame that is so many above the running one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    above: u8,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Reg(u8),
    Slot { depth: u16, size: u8 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Reg(r) => write!(f, "r{r}")?,
            What::Slot { depth, .. } => write!(f, "[r10 - {depth}]")?,
        }
        match self.above {
            0 => Ok(()),
            n => write!(f, " of the frame {n} above"),
        }
    }
}

/// What a round does to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Adds this.
    Step(i32),
    /// Moves it, differently each time.
    Move,
    /// Anything.
    Any,
}

/// What a round of a loop changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    changes: Vec<(Place, Change)>,
    /// What has been seen to become less, and to become more, than when the loop began.
    less: Vec<Place>,
    more: Vec<Place>,
    /// What is the same in every round, if it has no name of its own.
    same: Vec<Place>,
    /// While a round is watched: the names given to what had none.
    pub(super) names: Vec<(Place, u32)>,
    /// No exit bounds the number of rounds: nothing is counted by them.
    uncounted: bool,
}

impl Shape {
    /// What can be expected of another use of the loop.
    pub(super) fn reusable(&self) -> Shape {
        Shape { names: Vec::new(), ..self.clone() }
    }

    fn set(&mut self, place: Place, change: Change) {
        match self.changes.iter_mut().find(|(p, _)| *p == place) {
            Some((_, c)) => *c = change,
            None => self.changes.push((place, change)),
        }
        self.same.retain(|p| *p != place);
    }

    /// Sees whether the range of what came back leaves that of what entered. Whether that is new.
    fn see_range(&mut self, place: Place, e: &Value, b: &Value) -> bool {
        let ((e_min, e_max), (b_min, b_max)) = (e.bounds(), b.bounds());
        let mut new = false;
        for (left, list) in [(b_min < e_min, &mut self.less), (b_max > e_max, &mut self.more)] {
            if left && !list.contains(&place) {
                list.push(place);
                new = true;
            }
        }
        new
    }
}

fn frame(state: &State, place: Place) -> Option<&Frame> {
    state.frames.len().checked_sub(1 + usize::from(place.above)).and_then(|i| state.frames.get(i))
}

/// The value there; `None` if it cannot be read.
fn value(state: &State, place: Place) -> Option<Value> {
    let f = frame(state, place)?;
    let v = match place.what {
        What::Reg(r) => *f.regs.get(usize::from(r))?,
        What::Slot { depth, size } => match f.spilled(depth.into(), size.into()) {
            Some(s) => s.value,
            None => f.load(depth.into(), size.into()).ok()?,
        },
    };
    (!v.is_uninit()).then_some(v)
}

fn put(state: &mut State, place: Place, v: Value) {
    let Some(i) = state.frames.len().checked_sub(1 + usize::from(place.above)) else { return };
    let f = &mut state.frames[i];
    match place.what {
        What::Reg(r) => f.regs[usize::from(r)] = v,
        What::Slot { depth, size } => f.store_spill(depth.into(), size.into(), &v),
    }
}

/// Every register of the running frame, and every slot of any.
fn places<'s>(states: &'s [&'s State]) -> Vec<Place> {
    let mut out: Vec<Place> = (0..Reg::R10.index() as u8).map(|r| Place { above: 0, what: What::Reg(r) }).collect();
    for state in states {
        let count = state.frames.len();
        for (i, f) in state.frames.iter().enumerate() {
            for s in &f.spills {
                let place = Place { above: (count - 1 - i) as u8, what: What::Slot { depth: s.depth, size: s.size } };
                if !out.contains(&place) {
                    out.push(place);
                }
            }
        }
    }
    out
}

/// Names every number and every pointer at an unknown offset that has no name.
pub(super) fn name_all(state: &mut State, shape: &mut Shape, next_id: &mut u32) {
    shape.names.clear();
    for place in places(&[state]) {
        let Some(v) = value(state, place) else { continue };
        let pointer = match v.ty {
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } => {
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

/// Finds out what a round changed, from what entered it and what came back. `false` if it cannot be guessed about.
pub(super) fn compare(entry: &State, back: &State, shape: &mut Shape) -> bool {
    if entry.frames.len() != back.frames.len() || entry.owed != back.owed || entry.lock != back.lock {
        return false;
    }
    shape.changes.clear();
    shape.same.clear();
    shape.less.clear();
    shape.more.clear();
    for place in places(&[entry, back]) {
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
    true
}

/// What makes `b` of `e`.
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
        Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } if e.id == b.id => {
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

/// `start + step * k`.
fn on_line(start: &Scalar, step: i32, k: &Scalar) -> Scalar {
    let size = Scalar::constant(step.unsigned_abs().into());
    let far = k.alu(AluOp::Mul, Width::W64, &size);
    start.alu(if step > 0 { AluOp::Add } else { AluOp::Sub }, Width::W64, &far)
}

/// All that a value of this type can be where nothing but its type is known of it; where the shape knows no better, its
/// ends stay.
fn loosened_to(v: &Value, place: Place, shape: &Shape, env: &Env<'_>) -> Scalar {
    let all = loosened(v, env);
    if !v.is_scalar() {
        return all;
    }
    let min = if shape.less.contains(&place) { all.umin() } else { v.n.umin() };
    let max = if shape.more.contains(&place) { all.umax() } else { v.n.umax() };
    Scalar::unsigned(min, max)
}

fn loosened(v: &Value, env: &Env<'_>) -> Scalar {
    match v.ty {
        Ty::Scalar if v.n.high_half_is_zero() => Scalar::low_bits(32),
        Ty::Scalar => Scalar::UNKNOWN,
        _ => {
            let size = i64::from(size_of(v, env));
            let least = v.n.smin().min(if matches!(v.ty, Ty::Stack { .. }) { -size } else { 0 });
            Scalar::signed(least, v.n.smax().max(size))
        }
    }
}

/// A name of its own that a place has in a round.
#[derive(Clone, Copy, Debug)]
struct Own {
    place: Place,
    id: u32,
}

/// What moves in the rounds that came back.
///
/// They end if some things never move back, and in every round one of these moves: the sum of numbers that are bounded
/// does not grow for ever.
#[derive(Debug, Default)]
struct Measures {
    /// What never moved the other way; `None` before the first round.
    weak: Option<Vec<Measure<Place>>>,
    /// By round: what moved.
    strict: Vec<Vec<Measure<Place>>>,
}

impl Measures {
    fn see(&mut self, strict: Vec<Measure<Place>>, weak: Vec<Measure<Place>>) {
        match &mut self.weak {
            None => self.weak = Some(weak),
            Some(all) => all.retain(|m| weak.contains(m)),
        }
        if !self.strict.contains(&strict) {
            self.strict.push(strict);
        }
    }

    fn end(&self) -> bool {
        let Some(weak) = &self.weak else { return true };
        self.strict.iter().all(|moved| moved.iter().any(|m| weak.contains(m)))
    }
}

/// What may be true in every round.
#[derive(Debug)]
pub(super) struct Guess {
    /// The state at the head, in round k.
    pub(super) state: State,
    k: u32,
    steps: Vec<Place>,
    own: Vec<Own>,
    uncounted: bool,
    entry: State,
    /// Rounds that a loose guess allows.
    most: u64,
    /// Names that other places have in a loose guess, by which it is seen that a path leaves them as they are.
    named: Vec<Own>,
    /// What came back to a loose one, joined.
    back: Option<State>,
    /// Places that every path which came back left as they were: what is joined says nothing of them.
    still: Vec<Own>,
    /// Those that the newest left.
    unchanged: Vec<Own>,
    /// What did not change as guessed.
    broken: Vec<(Place, Change)>,
    measures: Measures,
}

impl Guess {
    /// What entered the loop, tied to round k: k is 0, or, in a loose guess, any round before something wraps or leaves
    /// its memory.
    pub(super) fn new(
        entry: &State,
        shape: &Shape,
        k: u32,
        id: u32,
        env: &Env<'_>,
        next_id: &mut u32,
        loose: bool,
    ) -> Option<Guess> {
        let mut state = entry.clone();
        let counted: Vec<(Place, i32)> = shape
            .changes
            .iter()
            .filter_map(|(p, c)| match c {
                Change::Step(d) if !shape.uncounted => Some((*p, *d)),
                _ => None,
            })
            .collect();
        let most =
            counted.iter().filter_map(|(p, d)| rounds_of(&value(entry, *p)?, *d, env)).fold(MAX_ROUNDS, u64::min);
        let rounds = match (shape.uncounted || counted.is_empty(), loose) {
            (true, _) => Scalar::UNKNOWN,
            (false, true) => Scalar::unsigned(0, most),
            (false, false) => Scalar::constant(0),
        };
        let mut mark = Mark {
            id,
            round: Round::Guessed,
            k: Value { id: k, ..Value::scalar(rounds) },
            lines: Vec::new(),
            ids: vec![k],
        };
        let mut g = Guess {
            state: State::default(),
            k,
            steps: Vec::new(),
            own: Vec::new(),
            uncounted: shape.uncounted || counted.is_empty(),
            entry: entry.clone(),
            most,
            named: Vec::new(),
            back: None,
            still: Vec::new(),
            unchanged: Vec::new(),
            broken: Vec::new(),
            measures: Measures::default(),
        };
        let mut fresh = || {
            *next_id += 1;
            *next_id
        };
        // Region pointers of one base that move together share the new one: old id and scale, the new id, the first's
        // distance.
        let mut bases: Vec<(u32, i16, u32, i32)> = Vec::new();
        for &(place, change) in &shape.changes {
            let Some(v) = value(&state, place) else { continue };
            if let (Change::Step(d), false) = (change, g.uncounted)
                && let Some((tied, start)) = tie(&v, d, &mut mark, &mut fresh)
            {
                let n = if loose { on_line(&start, d, &rounds) } else { v.n };
                put(&mut state, place, Value { n, ..tied });
                g.steps.push(place);
                continue;
            }
            let n = if loose { loosened_to(&v, place, shape, env) } else { v.n };
            let moves = !matches!(change, Change::Any);
            let v = match v.ty {
                Ty::Scalar if moves && g.uncounted => {
                    let own = fresh();
                    g.own.push(Own { place, id: own });
                    mark.ids.push(own);
                    if !loose {
                        order_own(entry, &mut state, &v, own, v.delta);
                    }
                    Value { n, ..v.renamed(own, 1, 0) }
                }
                Ty::Packet { .. } => {
                    let base = bases.iter().find(|(i, s, ..)| moves && (*i, *s) == (v.id, v.scale)).copied();
                    let (_, _, own, first) = base.unwrap_or_else(|| (v.id, v.scale, fresh(), v.delta));
                    if base.is_none() {
                        bases.push((v.id, v.scale, own, first));
                        mark.ids.push(own);
                        if !loose {
                            order_own(entry, &mut state, &v, own, first);
                        }
                    }
                    g.own.push(Own { place, id: own });
                    Value { n, ..v.renamed(own, 1, v.delta.checked_sub(first)?) }
                }
                Ty::Scalar if loose => {
                    let id = fresh();
                    g.named.push(Own { place, id });
                    mark.ids.push(id);
                    Value { n, ..v.renamed(id, 1, 0) }
                }
                Ty::Scalar => Value { n, ..v.unlinked() },
                Ty::Uninit(_) => v,
                _ => {
                    let id = if v.id == 0 { 0 } else { fresh() };
                    Value { n, id, ..v.renamed(0, 1, 0) }
                }
            };
            // An or-null pointer is null with others: which, is not known after a round.
            let v = if v.null && v.is_pointer() { Value::uninit(Why::Dead) } else { v };
            put(&mut state, place, v);
        }
        for &place in &shape.same {
            if let Some(v) = value(&state, place)
                && v.is_scalar()
                && v.id == 0
                && v.n.as_const().is_none()
            {
                let id = fresh();
                mark.ids.push(id);
                put(&mut state, place, v.renamed(id, 1, 0));
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
        if loose && !g.uncounted {
            state.bound(k, 0, most.into(), 1);
        }
        g.state = state;
        Some(g)
    }

    /// Renames what came back, so that it compares with the guess: its round is the next.
    pub(super) fn next_round(&mut self, back: &mut State, next_id: &mut u32) {
        let Some(mark) = back.top().loops.last() else { return };
        let still = |o: &&Own| {
            let tie = |v: &Value| (v.line_id(), v.scale, v.delta);
            let (g, b) = (value(&self.state, o.place), value(back, o.place));
            g.as_ref().is_some_and(|g| g.line_id() == o.id) && g.as_ref().map(tie) == b.as_ref().map(tie)
        };
        self.unchanged = self.own.iter().chain(&self.named).filter(still).copied().collect();
        // V of the next round is V of this one, and this.
        let mut moved: Vec<(u32, i64)> = vec![(self.k, 1)];
        moved.extend(
            mark.lines.iter().map(|l| (l.x, i64::from(if planted!(StrideLost) { l.step.signum() } else { l.step }))),
        );
        let one = Scalar::constant(1);
        if let Some(mark) = back.top_mut().loops.last_mut() {
            mark.k.n.alu_assign(AluOp::Add, Width::W64, &one);
        }
        for v in back.frames.iter_mut().flat_map(|f| f.regs.iter_mut().chain(f.spills.iter_mut().map(|s| &mut s.value)))
        {
            let id = v.line_id();
            let Some((_, by)) = moved.iter().find(|(m, _)| *m == id && id != 0) else { continue };
            let delta = i64::from(v.delta) - by * i64::from(v.scale);
            match i32::try_from(delta) {
                Ok(delta) => v.delta = delta,
                Err(_) if matches!(v.ty, Ty::Packet { .. }) => *v = Value::uninit(Why::Dead),
                Err(_) => *v = v.renamed(0, 1, 0),
            }
        }
        let by = |id: u32| moved.iter().find(|(m, _)| *m == id).map_or(0, |(_, by)| *by);
        for f in &mut back.room {
            f.bytes = f.bytes.saturating_sub(by(f.id).saturating_mul(f.scale.into())).saturating_add(by(f.hi));
        }
        back.sums.retain_mut(|t| {
            let parts = by(t.b).checked_mul(t.scale).and_then(|b| b.checked_add(by(t.a)));
            let delta = parts.and_then(|p| t.delta.checked_sub(p)?.checked_add(by(t.s)));
            let max = if t.max == i64::MAX { Some(i64::MAX) } else { t.max.checked_add(by(t.s)) };
            // What was less than the scale need not be, later.
            (t.split, t.delta, t.max) =
                (t.split && delta == Some(t.delta), delta.unwrap_or(0), max.unwrap_or(i64::MAX));
            delta.is_some()
        });
        self.next_own(back, next_id);
        for &place in &self.steps {
            let tie = |v: &Value| (v.line_id(), v.scale, v.delta);
            let (want, got) = (value(&self.state, place), value(back, place));
            if let (true, Some(want), Some(got)) = (planted!(StepOnOnePath), &want, &got) {
                let (id, scale, delta) = tie(want);
                let start = Scalar::constant(i64::from(delta) as u64);
                let k = back.top().loops.last().map_or(Scalar::UNKNOWN, |m| m.k.n);
                put(back, place, Value { n: on_line(&start, scale.into(), &k), ..got.renamed(id, scale, delta) });
            } else if want.as_ref().map(tie) != got.as_ref().map(tie) && got.is_some() {
                let change = if got.is_some_and(|v| v.line_id() != 0) { Change::Move } else { Change::Any };
                self.broken.push((place, change));
            }
        }
    }

    /// The names that single places have in a round pass to what is there now. Sees what has grown and what has shrunk.
    fn next_own(&mut self, back: &mut State, next_id: &mut u32) {
        let (mut seen, mut weak): (Vec<Measure<Place>>, Vec<Measure<Place>>) = Default::default();
        let mut facts: Vec<Room> = Vec::new();
        // The name, what V of it is now: this of another V, and so much.
        let mut passed: Vec<(u32, u32, i64)> = Vec::new();
        let mut simply: Vec<bool> = Vec::new();
        let mut renamed: Vec<(Place, Value)> = Vec::new();
        for &Own { place, id } in &self.own {
            let (Some(g), Some(b)) = (value(&self.state, place), value(back, place)) else { continue };
            let packet = matches!(g.ty, Ty::Packet { .. });
            if g.ty != b.ty || g.line_id() != id {
                continue;
            }
            let by = i64::from(b.delta) - i64::from(g.delta);
            let simple = b.scale == 1 && (b.id != 0 || packet);
            if simple && b.id != 0 {
                let grown = back.below(id, 1, b.id).is_some_and(|x| x.saturating_add(by) > 0);
                let shrunk = back.below(b.id, 1, id).is_some_and(|x| x.saturating_sub(by) > 0);
                for (grows, strictly, at_all) in [
                    (true, grown, back.below(id, 1, b.id).is_some_and(|x| x.saturating_add(by) >= 0)),
                    (false, shrunk, back.below(b.id, 1, id).is_some_and(|x| x.saturating_sub(by) >= 0)),
                ] {
                    let what = Measure { what: place, grows };
                    if strictly {
                        seen.push(what);
                    }
                    if at_all {
                        weak.push(what);
                    }
                }
            } else if b.id == id && b.scale > 1 {
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
            match passed.iter().find(|(i, ..)| *i == id) {
                None => {
                    if simple {
                        let regions = (0..back.min_len.len() as u8).map(len_id);
                        // Another name of the round is of something else in the next.
                        let own = |h: u32| self.own.iter().any(|o| o.id == h);
                        let his = regions.chain(back.room.iter().map(|f| f.hi)).filter(|h| !own(*h));
                        for hi in his.collect::<Vec<_>>() {
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
                    }
                    passed.push((id, b.id, by));
                    simply.push(simple && b.id != 0);
                }
                // Two pointers that have moved apart: the second keeps what it is now.
                Some((_, of, first)) if (*of, *first) != (b.id, by) || !simple => {
                    self.broken.push((place, Change::Any));
                    continue;
                }
                Some(_) => {}
            }
            renamed.push((place, b.renamed(id, 1, g.delta)));
        }
        // Of two of them, as they are now.
        let now: Vec<(u32, u32, i64)> =
            passed.iter().zip(&simply).filter(|(_, simple)| **simple).map(|(p, _)| *p).collect();
        for (id, of, by) in &now {
            for (other, hi, above) in now.iter().filter(|(other, ..)| other != id) {
                let bytes = back.below(*of, 1, *hi).and_then(|x| x.checked_sub(*by)?.checked_add(*above));
                if let Some(bytes) = bytes {
                    facts.push(Room { id: *id, scale: 1, bytes, hi: *other });
                }
            }
        }
        let old: Vec<u32> = passed.iter().map(|(id, ..)| *id).collect();
        back.room.retain(|f| !old.contains(&f.id) && !old.contains(&f.hi));
        back.sums.retain(|t| ![t.s, t.a, t.b].iter().any(|id| old.contains(id)));
        // What still has a name of the old round is something else now.
        for v in back.frames.iter_mut().flat_map(|f| f.regs.iter_mut().chain(f.spills.iter_mut().map(|s| &mut s.value)))
        {
            if v.line_id() != 0 && old.contains(&v.line_id()) {
                if matches!(v.ty, Ty::Packet { .. }) {
                    *next_id += 1;
                    v.id = *next_id;
                } else {
                    *v = v.renamed(0, 1, 0);
                }
            }
        }
        for (place, v) in renamed {
            put(back, place, v);
        }
        facts.into_iter().for_each(|f| back.learn_below(f));
        self.measures.see(seen, weak);
    }

    /// Whether the rounds seen so far are proven to end, if they are inside the guess: they are counted, and the count
    /// is part of it; or something moves one way in all of them.
    pub(super) fn ends(&self) -> bool {
        planted!(EveryLoopEnds) || !self.uncounted || self.measures.end()
    }

    /// The most rounds that it holds, if they are counted.
    pub(super) fn rounds(&self) -> Option<u64> {
        let mark = self.state.top().loops.last()?;
        (!self.uncounted).then(|| mark.k.n.umax())
    }

    /// What came back to a loose guess.
    ///
    /// A path that leaves a place as it was adds nothing to what that can be: whatever the loose guess took it for is
    /// not joined.
    pub(super) fn note_back(&mut self, mut back: State, next_id: &mut u32) {
        let unchanged = std::mem::take(&mut self.unchanged);
        match &mut self.back {
            None => {
                self.back = Some(back);
                self.still = unchanged;
            }
            Some(all) => {
                for o in &unchanged {
                    take_over(&mut back, all, o);
                }
                for o in self.still.extract_if(.., |o| !unchanged.iter().any(|u| u.id == o.id)) {
                    take_over(all, &back, &o);
                }
                if !merge(all, &back, Widen::Not, next_id) {
                    self.broken.clear();
                    self.uncounted = true;
                    self.measures.see(Vec::new(), Vec::new());
                }
            }
        }
    }

    /// After a loose walk: corrects the shape. `true` if that asks for another one.
    pub(super) fn revise(&self, shape: &mut Shape) -> bool {
        let mut again = false;
        for &(place, change) in &self.broken {
            shape.set(place, change);
            again = true;
        }
        if let Some(back) = &self.back {
            let changed: Vec<Place> = shape.changes.iter().map(|(p, _)| *p).collect();
            for place in changed.into_iter().filter(|p| !self.still.iter().any(|o| o.place == *p)) {
                if let (Some(e), Some(b)) = (value(&self.entry, place), value(back, place))
                    && e.is_scalar()
                    && !self.steps.contains(&place)
                {
                    again |= shape.see_range(place, &e, &b);
                }
            }
        }
        // What the first round left as it was may change in later ones.
        if let Some(back) = &self.back {
            for place in places(&[&self.state]) {
                let known = shape.changes.iter().any(|(p, _)| *p == place);
                if let (false, Some(g), Some(b)) = (known, value(&self.state, place), value(back, place))
                    && g.is_scalar()
                    && b.is_scalar()
                    && !b.n.subset(&g.n)
                {
                    shape.set(place, Change::Move);
                    shape.see_range(place, &g, &b);
                    again = true;
                }
            }
        }
        let counted = self.back.as_ref().and_then(|b| b.top().loops.last()).map(|m| m.k.n.umax());
        if !self.uncounted && !again && counted.is_some_and(|k| k > self.most) {
            shape.uncounted = true;
            again = true;
        }
        again
    }

    /// Joins what entered with what came back to the loose guess, and takes over what that found out of order. `false`
    /// if nothing did.
    pub(super) fn settle(&mut self, loose: &Guess, env: &Env<'_>, next_id: &mut u32) -> bool {
        let Some(back) = &loose.back else { return true };
        if !loose.ends() {
            return false;
        }
        // Names of places' own and of lines differ between the two: they were made in the same order.
        let mut back = back.clone();
        for o in &loose.still {
            if let Some(v) = value(&self.state, o.place) {
                put(&mut back, o.place, v);
            }
        }
        let (Some(mine), Some(theirs)) = (self.state.top().loops.last(), loose.state.top().loops.last()) else {
            return false;
        };
        if mine.lines.len() != theirs.lines.len() || self.own.len() != loose.own.len() {
            return false;
        }
        let mut names: Vec<(u32, u32)> =
            mine.lines.iter().zip(&theirs.lines).flat_map(|(m, t)| [(t.x, m.x), (t.n, m.n)]).collect();
        names.extend(self.own.iter().zip(&loose.own).map(|(m, t)| (t.id, m.id)));
        for (place, v) in places(&[&self.state]).into_iter().filter_map(|p| Some((p, value(&self.state, p)?))) {
            // Those that are the same in every round, too.
            if let Some(t) = value(&loose.state, place)
                && t.line_id() != v.line_id()
                && !names.iter().any(|(t2, _)| *t2 == t.line_id())
            {
                names.push((t.line_id(), v.line_id()));
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
        back.sums.retain(|t| [t.s, t.a, t.b].iter().all(|id| new(*id) == *id));
        if let Some(m) = back.top_mut().loops.last_mut() {
            for l in &mut m.lines {
                (l.x, l.n) = (new(l.x), new(l.n));
            }
            m.ids = self.state.top().loops.last().map(|m| m.ids.clone()).unwrap_or_default();
        }
        let facts: Vec<Room> = back
            .room
            .iter()
            .filter(|f| self.state.below(f.id, f.scale, f.hi).is_none())
            .filter_map(|f| Some(Room { bytes: f.bytes.min(self.at_entry(f)?), ..*f }))
            .collect();
        facts.into_iter().for_each(|f| self.state.learn_below(f));
        merge(&mut self.state, &back, Widen::Not, next_id) && {
            self.measures = Measures::default();
            let _ = env;
            true
        }
    }

    /// What the fact was when the loop began, when k was 0.
    fn at_entry(&self, f: &Room) -> Option<i64> {
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

    /// Makes the guess hold what came back, too. `false` if it cannot.
    pub(super) fn weaken(&mut self, back: &State, env: &Env<'_>, again: bool, next_id: &mut u32) -> bool {
        for (place, _) in std::mem::take(&mut self.broken) {
            let Some(v) = value(&self.state, place) else { continue };
            let v = match v.ty {
                Ty::Packet { .. } => return false,
                _ => v.renamed(0, 1, 0),
            };
            put(&mut self.state, place, Value { n: loosened(&v, env), ..v });
            self.steps.retain(|p| *p != place);
            self.own.retain(|o| o.place != place);
        }
        self.measures = Measures::default();
        if self.steps.is_empty() && !self.uncounted {
            return false;
        }
        let widen = if again { Widen::Far } else { Widen::Near };
        merge(&mut self.state, back, widen, next_id)
    }

    /// What is guessed: registers of the running frame, and slots that a round changes.
    pub(super) fn parts(&self, env: &Env<'_>) -> Vec<(String, String)> {
        let top = self.state.top();
        let rounds = match top.loops.last() {
            Some(mark) if !self.uncounted => mark.k.n.to_string(),
            _ => "any number".into(),
        };
        let mut out = vec![("rounds".into(), rounds)];
        for place in places(&[&self.state]) {
            let of_frame = matches!(place.what, What::Reg(_)) || self.moves(place);
            if let (Some(v), true) = (value(&self.state, place), of_frame) {
                out.push((place.to_string(), v.describe(env)));
            }
        }
        out
    }

    fn moves(&self, place: Place) -> bool {
        self.steps.contains(&place) || self.own.iter().any(|o| o.place == place)
    }

    /// The first place that came back to the loose guess and did not move as guessed.
    pub(super) fn unstable(&self, env: &Env<'_>) -> LoopFailure {
        match &self.back {
            Some(back) => self.change(back, env),
            None => LoopFailure::Unlike,
        }
    }

    /// The first place of what came back that the guess does not hold.
    pub(super) fn change(&self, back: &State, env: &Env<'_>) -> LoopFailure {
        let unlike = |place: &Place| match (value(&self.state, *place), value(back, *place)) {
            (Some(g), Some(b)) => g.ty != b.ty || !b.n.subset(&g.n),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let broken = self.broken.iter().map(|(p, _)| *p).find(|p| value(&self.state, *p).is_some());
        let Some(place) = places(&[&self.state]).into_iter().find(unlike).or(broken) else {
            return LoopFailure::Unlike;
        };
        let text = |state: &State| value(state, place).map_or("not known".into(), |v| v.describe(env));
        LoopFailure::Changes { what: place.to_string(), guessed: text(&self.state), came_back: text(back) }
    }

    /// What is guessed, for the log.
    pub(super) fn describe(&self, env: &Env<'_>) -> String {
        let parts = self.parts(env);
        parts
            .iter()
            .enumerate()
            .map(|(i, (what, v))| format!("{} {what} = {v}", if i == 0 { "" } else { "," }))
            .collect()
    }
}

/// Replaces what `state` says of a place and its name by what `by` says.
fn take_over(state: &mut State, by: &State, o: &Own) {
    let Some(v) = value(by, o.place) else { return };
    put(state, o.place, v);
    state.room.retain(|f| f.id != o.id && f.hi != o.id);
    by.room.iter().filter(|f| f.id == o.id || f.hi == o.id).for_each(|f| state.learn_below(*f));
}

/// What the value's name says of its order is said of a new name, at this distance from the old one.
fn order_own(entry: &State, state: &mut State, v: &Value, own: u32, delta: i32) {
    for region in 0..entry.min_len.len() as u8 {
        let bytes = match v.id {
            0 if v.is_pointer() => Some(i64::from(entry.min_len[usize::from(region)])),
            0 => None,
            id => entry.below(id, v.scale, len_id(region)),
        };
        if let Some(bytes) = bytes {
            state.learn_below(Room {
                id: own,
                scale: 1,
                bytes: bytes.saturating_sub(delta.into()),
                hi: len_id(region),
            });
        }
    }
}

/// Rounds for which a step of `d` cannot wrap, nor leave what is pointed into by more than a step.
fn rounds_of(v: &Value, d: i32, env: &Env<'_>) -> Option<u64> {
    let size = u64::from(d.unsigned_abs());
    if !v.is_scalar() {
        return Some(u64::from(size_of(v, env)) / size + 1);
    }
    if d < 0 {
        return Some(v.n.umax() / size);
    }
    let top = if v.n.high_half_is_zero() { ones(32) } else { u64::MAX >> 1 };
    Some(top.saturating_sub(v.n.umax()) / size)
}

/// The value on a line with the round, and what it is when k is 0: by its scale if it is known, else on a line of its
/// own.
fn tie(v: &Value, d: i32, mark: &mut Mark, fresh: &mut impl FnMut() -> u32) -> Option<(Value, Scalar)> {
    let scale = i16::try_from(d).ok()?;
    let k = mark.k.id;
    let known = match v.ty {
        Ty::Packet { .. } if v.id == 0 => Some(v.delta),
        Ty::Packet { .. } => None,
        Ty::Scalar => v.n.as_const().and_then(|c| i32::try_from(c).ok()),
        Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } => {
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
    // V(x) must not be negative, as no V is: what falls to 0 from above its name's distance would lead it there, and
    // so would what falls to before its object; and so may the name of what lay before its region once.
    let from_start = v.is_scalar() || v.n.smin() >= i64::from(v.delta).max(0);
    let rises = v.line_id() != 0 && v.scale > 0 && d > 0 && v.is_of_no_negative();
    let falls = v.line_id() != 0 && v.scale > 0 && d < 0 && v.delta <= 0 && from_start;
    let named = (rises || falls) && d % i32::from(v.scale) == 0;
    if !named && matches!(v.ty, Ty::Packet { .. }) {
        return None;
    }
    // What has no name is so far from the least that it can be.
    let least = i32::try_from(v.n.smin().min(0)).ok().filter(|_| !v.is_scalar()).unwrap_or(0);
    if !named && ((!v.is_scalar() && v.n.smin() < least.into()) || (d < 0 && !from_start)) {
        return None;
    }
    let (n, scale, delta) = if named { (v.line_id(), v.scale, v.delta) } else { (0, 1, least) };
    let step = d / i32::from(scale);
    let line = mark.lines.iter().find(|l| n != 0 && l.n == n && l.step == step).map(|l| l.x);
    let x = line.unwrap_or_else(|| {
        let n = if n == 0 { fresh() } else { n };
        let start = match scale {
            1 => v.n.alu(AluOp::Sub, Width::W64, &Scalar::constant(i64::from(delta) as u64)),
            _ => {
                let (min, max) = v.range_of_line();
                Scalar::unsigned(min, max)
            }
        };
        let x = fresh();
        mark.lines.push(Line { x, n, step, start });
        x
    });
    Some((v.renamed(x, scale, delta), v.n))
}
