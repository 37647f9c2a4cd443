//! The linear solver: consequences of all equations and inequalities of a state together.
//!
//! Problem: orders ([`crate::state::Room`]), sums and the lines of loops are each looked up by themselves, one or two
//! steps far. A program that keeps `p + left` constant, or tests one sum and uses another with three parts, needs more
//! of them at once. Approach: the question is whether a linear form is at most 0. The negation is added to the state's
//! rows about the numbers in it, and unknowns are eliminated one after the other (Fourier-Motzkin elimination,
//! equations first). If a constant above 0 remains in a row, the negation is impossible. Mostly the negation is
//! satisfiable: a point that satisfies all rows shows it, and is cheaper to find ([`points`]), so the solver looks for
//! one first.
//!
//! Invariants: each row states `sum of coefficient * V + constant <= 0` of integers, exactly (see [`super::lines`]). A
//! derived row is a sum of others, each times a factor that is not negative, or an equation times any factor. Therefore
//! no heuristic choice can prove a wrong answer, and giving up (too many rows, an overflow) proves nothing. A point
//! cannot prove anything either: its only consequence is the answer "not proven".

mod points;
mod rows;

use std::cell::Cell;

use crate::by_name;
use crate::env::Region;
use crate::faults::planted;
use crate::fuel;
use crate::state::{Frame, Room, State, Sum};
use crate::value::{FIRST_FREE_ID, Value};
use points::Points;
use rows::Rows;

/// The neighbourhoods of a question that are tried in turn: the greatest distance from its names, in equations and
/// inequalities, and the most unknowns.
const NEAR: [(u32, usize); 3] = [(1, 6), (2, 10), (4, 16)];
/// Beyond this, a coefficient or constant is too much: so the negative of each is one too.
const MAX_NUMBER: u128 = 1 << 120;
/// Fuel for each question; for each fact that is visited for each unknown; and for each word of a remembered question.
const QUESTION: u64 = 40;
const FACT: u64 = 1;
const WORD: u64 = 1;

fn not_too_much(number: i128) -> Option<i128> {
    (number.unsigned_abs() <= MAX_NUMBER).then_some(number)
}

/// The linear form `sum of coefficient * V(id) + constant`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::walk) struct Form {
    /// Sorted by name; no coefficient is 0.
    terms: Vec<(u32, i128)>,
    constant: i128,
}

impl Form {
    pub(in crate::walk) fn constant(c: i128) -> Form {
        Form { terms: Vec::new(), constant: c }
    }

    /// V(id).
    pub(in crate::walk) fn name(id: u32) -> Form {
        Form { terms: vec![(id, 1)], constant: 0 }
    }

    /// The value as a form, if it is constant or has a name.
    pub(in crate::walk) fn of(v: &Value) -> Option<Form> {
        match v.line_id() {
            0 if v.is_scalar() => v.n.as_const().map(|c| Form::constant(c.into())),
            0 => v.n.as_const().map(|c| Form::constant((c as i64).into())),
            id => Some(Form { terms: vec![(id, v.scale.into())], constant: v.delta.into() }),
        }
    }

    /// Adds a multiple of another form. `None` if a coefficient overflows.
    pub(in crate::walk) fn plus(mut self, other: &Form, times: i128) -> Option<Form> {
        for &(id, c) in &other.terms {
            let c = not_too_much(c.checked_mul(times)?)?;
            match self.terms.binary_search_by_key(&id, |(i, _)| *i) {
                Ok(at) => {
                    self.terms[at].1 = not_too_much(self.terms[at].1.checked_add(c)?)?;
                    if self.terms[at].1 == 0 {
                        self.terms.remove(at);
                    }
                }
                Err(at) if c != 0 => self.terms.insert(at, (id, c)),
                Err(_) => {}
            }
        }
        self.constant = not_too_much(self.constant.checked_add(other.constant.checked_mul(times)?)?)?;
        Some(self)
    }

    /// A constant minus the form.
    fn negated(&self, constant: i128) -> Option<Form> {
        let constant = not_too_much(constant.checked_sub(self.constant)?)?;
        Some(Form { terms: self.terms.iter().map(|(id, c)| (*id, -c)).collect(), constant })
    }

    #[cfg(test)]
    fn times(&self, id: u32) -> i128 {
        self.terms.binary_search_by_key(&id, |(i, _)| *i).map_or(0, |at| self.terms[at].1)
    }

    pub(in crate::walk) fn names(&self) -> impl Iterator<Item = u32> {
        self.terms.iter().map(|(id, _)| *id)
    }

    /// The name, its coefficient and the constant of a form with one name.
    pub(in crate::walk) fn single(&self) -> Option<(u32, i128, i128)> {
        match self.terms[..] {
            [(id, times)] => Some((id, times, self.constant)),
            _ => None,
        }
    }

    pub(in crate::walk) fn as_const(&self) -> Option<i128> {
        self.terms.is_empty().then_some(self.constant)
    }
}

/// The least and the greatest value, where known.
pub(in crate::walk) type Range = (Option<i128>, Option<i128>);

/// The memory of the solver.
#[derive(Debug, Default)]
struct Solver {
    facts: Facts,
    rows: Rows,
    last: Last,
    /// Whether the last question was proven.
    proven: bool,
    /// The words that describe the current rows, and remembered answers.
    words: Vec<u64>,
    known: Vec<Known>,
    /// Capacity in words of all remembered questions.
    remembered: usize,
}

/// The facts of a state that a question needs, and memory to find them.
#[derive(Debug, Default)]
struct Facts {
    /// The unknowns of the question, and their ranges.
    about: Vec<u32>,
    ranges: Vec<Range>,
    /// The ranges of all names of the state, for series of questions.
    named: Vec<(u32, Range)>,
    /// All equations of the state, the names of its inequalities, and names that may have fallen below 0.
    equations: Vec<Sum>,
    ordered: Vec<(u32, u32)>,
    fallen: Vec<u32>,
    /// Which inequalities and equations relate these unknowns.
    rooms: Vec<bool>,
    sums: Vec<bool>,
}

/// The rows of the last question with the facts that they were made from: a following question is often about the same
/// names. `names` is empty if they may not be reused.
#[derive(Debug, Default)]
struct Last {
    names: Vec<u32>,
    pointers: bool,
    room: Vec<Room>,
    equations: Vec<Sum>,
    fallen: Vec<u32>,
    about: Vec<u32>,
    ranges: Vec<Range>,
    rows: Rows,
    points: Points,
}

/// An answer, and its question.
#[derive(Debug, Default)]
struct Known {
    question: Vec<u64>,
    answer: Option<Range>,
}

/// The most remembered answers; a newer one replaces an older one in its place.
const MAX_KNOWN: usize = 512;
/// The most bytes for rows: those of the current and the last question, each with the derived rows.
const ROWS_HELD: usize = 128 << 10;
/// The most words of a remembered question.
const MAX_WORDS: usize = 256;

thread_local! {
    /// Any code that has a state may ask a question, so the solver's memory belongs to the thread.
    static SOLVER: Cell<Option<Box<Solver>>> = const { Cell::new(None) };
}

/// Calls `ask` with the thread's solver. (While a thread ends, a temporary one is used.)
fn with_solver<R>(ask: impl FnOnce(&mut Solver) -> R) -> R {
    let mut solver = SOLVER.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let answer = ask(&mut solver);
    let _ended_too = SOLVER.try_with(|kept| kept.set(Some(solver)));
    answer
}

/// Bytes that the solver holds: remembered questions and answers, and an upper bound for rows.
pub(in crate::walk) fn held() -> usize {
    let solver = SOLVER.try_with(Cell::take).ok().flatten();
    let held = solver.as_ref().map_or(0, |solver| {
        let words = solver.words.capacity() + solver.remembered;
        words * size_of::<u64>() + solver.known.capacity() * size_of::<Known>() + ROWS_HELD
    });
    let _ended_too = SOLVER.try_with(|kept| kept.set(solver));
    held
}

/// Forgets all answers, since the questions about one program do not concern the next.
pub(crate) fn forget_answers() {
    let _ended_too = SOLVER.try_with(Cell::take);
}

impl Facts {
    fn begin(&mut self, state: &State) {
        fuel::charge_each(state.room.len() + state.sums.len(), FACT);
        state.all_sums_into(&mut self.equations);
        self.ordered.clear();
        self.ordered.extend(state.room.iter().map(|f| (f.id, f.hi)));
        self.fallen.clear();
        for line in state.frames.iter().flat_map(|f| &f.loops).flat_map(|m| &m.lines) {
            if line.step < 0 && state.may_have_fallen(line.x) {
                self.fallen.push(line.x);
            }
        }
    }
}

impl Solver {
    /// Whether the rows are found to contradict each other.
    fn contradict(&mut self) -> bool {
        self.remembered(0, |rows| rows.contradict().unwrap_or(false).then_some((None, None))).is_some()
    }

    /// The range of an unknown.
    fn range(&mut self, id: u32) -> Option<Range> {
        let column = self.rows.place_of(id)? as u64;
        self.remembered(1 + column, |rows| rows.range(id))
    }

    /// The answer to a question of this kind, computed from the rows, or remembered: loops are walked repeatedly, and
    /// their questions differ in the names only, if at all.
    fn remembered(&mut self, kind: u64, ask: impl FnOnce(&mut Rows) -> Option<Range>) -> Option<Range> {
        let Solver { rows, words, known, remembered, .. } = self;
        words.clear();
        words.push(kind);
        let described = rows.describe(words);
        fuel::charge_each(words.len(), WORD);
        if !described || words.len() > MAX_WORDS {
            return ask(rows);
        }
        let hash =
            words.iter().fold(0u64, |hash, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if known.is_empty() {
            known.resize_with(MAX_KNOWN, Known::default);
        }
        let known = &mut known[(hash >> 32) as usize % MAX_KNOWN];
        if known.question != *words {
            known.answer = ask(rows);
            *remembered -= known.question.capacity();
            known.question.clear();
            known.question.extend_from_slice(words);
            *remembered += known.question.capacity();
        }
        known.answer
    }
}

impl State {
    /// Whether the form is at most 0 in every run of the state. Uses facts about names and numbers, but not about
    /// pointers: a pointer that no path reads is not marked as needed (see [`super::trail`]).
    pub(in crate::walk) fn proves(&self, form: &Form) -> bool {
        self.proves_from(form, false)
    }

    /// [`State::proves`] with all values, also pointers: for the facts of a loop's candidate. Where its check begins,
    /// the whole state is demanded (`Walk::needs_all`), and so it is where a path comes back to the loop.
    pub(in crate::walk) fn proves_by_all(&self, form: &Form) -> bool {
        self.proves_from(form, true)
    }

    fn proves_from(&self, form: &Form, pointers: bool) -> bool {
        if let Some(c) = form.as_const() {
            return c <= 0;
        }
        // Its negation: 1 - form <= 0.
        let Some(mut negation) = form.negated(1) else { return false };
        if planted!(AtMostIsLess) {
            negation.constant += 1;
        }
        // Ranges alone cannot help: the operands themselves have been looked at.
        let about = |id: u32| form.terms.iter().any(|(of, _)| *of == id);
        let lines = || self.frames.iter().flat_map(|f| &f.loops);
        let tied = self.room.iter().any(|f| about(f.id) || about(f.hi))
            || self.sums.iter().any(|t| about(t.s) || about(t.a) || about(t.b))
            || self.products.iter().any(|t| t.names().into_iter().any(about))
            || lines().any(|m| about(m.k.id) || m.lines.iter().any(|l| about(l.x) || about(l.n)));
        if !tied && !pointers {
            return false;
        }
        fuel::charge(QUESTION);
        if fuel::is_spent() {
            return false;
        }
        with_solver(|solver| {
            solver.facts.begin(self);
            // A proven question is mostly followed by another; then the neighbourhood is tried first.
            let points_at = usize::from(solver.proven);
            solver.proven = self.refutes(form, &negation, pointers, solver, Some(points_at));
            solver.proven
        })
    }

    /// Whether the negation of the question contradicts the state's rows: by elimination in a near neighbourhood, which
    /// mostly suffices, and then in wider ones.
    ///
    /// `points_at`: before which attempt a satisfying point is searched, if at all. It affects the time, and not the
    /// answer.
    fn refutes(
        &self,
        form: &Form,
        negation: &Form,
        pointers: bool,
        solver: &mut Solver,
        points_at: Option<usize>,
    ) -> bool {
        let mut last = 0;
        for (at, near) in NEAR.into_iter().enumerate() {
            if points_at == Some(at) {
                // Nearer rows are among the furthest ones, so a point that satisfies all of them satisfies each part.
                let Solver { facts, last, .. } = solver;
                self.rows_again(form, pointers, facts, last);
                if last.points.satisfy(&last.rows, negation) {
                    return false;
                }
            }
            let Solver { facts, rows, .. } = solver;
            rows.clear();
            rows.add(&negation.terms, negation.constant);
            let (seen, found) = self.rows_about(form, pointers, near, facts, rows);
            if found || solver.contradict() {
                return true;
            }
            if seen == last {
                return false;
            }
            last = seen;
        }
        false
    }

    /// Makes all rows for a question about the names of this form, without its negation. The last rows are reused if
    /// they were made from the same facts, which are all that [`State::rows_about`] reads, except for products: if
    /// there are any, rows are made anew. The first columns are the form's names.
    fn rows_again(&self, form: &Form, pointers: bool, facts: &mut Facts, last: &mut Last) {
        if last.pointers == pointers
            && last.names.iter().copied().eq(form.names())
            && self.products.is_empty()
            && last.room == self.room
            && (&last.equations, &last.fallen) == (&facts.equations, &facts.fallen)
        {
            self.ranges_of(&last.about, pointers, &[], &mut facts.ranges);
            if last.ranges == facts.ranges {
                return;
            }
        }
        let [.., furthest] = NEAR;
        last.rows.clear();
        let named = form.names().all(|id| last.rows.has_column(id));
        let (_, found) = self.rows_about(form, pointers, furthest, facts, &mut last.rows);
        last.points.begin(&last.rows, named && !found);
        last.names.clear();
        if self.products.is_empty() {
            last.names.extend(form.names());
        }
        last.pointers = pointers;
        last.room.clone_from(&self.room);
        last.equations.clone_from(&facts.equations);
        last.fallen.clone_from(&facts.fallen);
        last.about.clone_from(&facts.about);
        last.ranges.clone_from(&facts.ranges);
    }

    /// An upper bound of the form, by facts about names and numbers near it. Pointers are not used, as in
    /// [`State::proves`].
    pub(in crate::walk) fn most_of_form(&self, form: &Form) -> Option<i128> {
        with_solver(|solver| {
            solver.facts.begin(self);
            self.range_of_form(form, solver).1
        })
    }

    /// The ranges of these forms, as [`State::most_of_form`] bounds one: asking many at once is cheaper.
    pub(in crate::walk) fn ranges_of_forms(&self, forms: &[Form]) -> Vec<Range> {
        with_solver(|solver| {
            solver.facts.begin(self);
            self.name_ranges(&mut solver.facts.named);
            let ranges = forms.iter().map(|form| self.range_of_form(form, solver)).collect();
            solver.facts.named.clear();
            ranges
        })
    }

    fn range_of_form(&self, form: &Form, solver: &mut Solver) -> Range {
        fuel::charge(QUESTION);
        if fuel::is_spent() {
            return (None, None);
        }
        /// A name that no number has, greater than all others.
        const IT: u32 = u32::MAX;
        let mut it = form.clone();
        it.terms.push((IT, -1));
        // The widest neighbourhood implies everything that a nearer one does, but the nearer one may be small enough
        // for an answer.
        for near in NEAR.into_iter().skip(1).rev() {
            let Solver { facts, rows, .. } = solver;
            rows.clear();
            rows.add_equation(&it.terms, it.constant);
            let (_, found) = self.rows_about(form, false, near, facts, rows);
            if !found && let Some(range) = solver.range(IT) {
                return range;
            }
        }
        (None, None)
    }

    /// Whether two forms are always equal.
    pub(in crate::walk) fn proves_equal(&self, a: &Form, b: &Form) -> bool {
        let less = |a: &Form, b: &Form| a.clone().plus(b, -1).is_some_and(|f| self.proves_by_all(&f));
        less(a, b) && less(b, a)
    }

    /// Adds the rows about the form's unknowns and about unknowns that are related to these over at most `hops` facts,
    /// up to `most` unknowns. Returns whether they contradict each other by themselves.
    fn rows_about(
        &self,
        form: &Form,
        pointers: bool,
        (hops, most): (u32, usize),
        facts: &mut Facts,
        rows: &mut Rows,
    ) -> (usize, bool) {
        let Facts { about, rooms, sums, equations, ordered, fallen, ranges, named } = facts;
        about.clear();
        about.extend(form.names());
        let (mut next, mut left, mut end) = (0, hops, about.len());
        rooms.clear();
        rooms.resize(self.room.len(), false);
        sums.clear();
        sums.resize(equations.len(), false);
        while let Some(&id) = about.get(next) {
            if next == end {
                (left, end) = (left - 1, about.len());
            }
            if left == 0 {
                break;
            }
            next += 1;
            fuel::charge_each(ordered.len() + equations.len() + self.products.len(), FACT);
            let mut see = |id: u32| {
                if !about.contains(&id) && about.len() < most {
                    about.push(id);
                }
            };
            for (&(lo, hi), seen) in ordered.iter().zip(&mut *rooms) {
                if (lo == id || hi == id) && !*seen {
                    *seen = true;
                    see(lo);
                    see(hi);
                }
            }
            for t in self.products.iter().filter(|t| t.names().contains(&id)) {
                t.names().into_iter().for_each(&mut see);
            }
            for (t, seen) in equations.iter().zip(&mut *sums) {
                if [t.s, t.a, t.b].contains(&id) && !*seen {
                    *seen = true;
                    see(t.s);
                    see(t.a);
                    see(t.b);
                }
            }
        }
        let mut found = false;
        for (t, _) in equations.iter().zip(&*sums).filter(|(_, seen)| **seen) {
            rows.add_equation(&[(t.a, 1), (t.b, t.scale.into()), (t.s, -1)], t.delta.into());
            // A falling line is not negative in the initial state of a candidate, but not yet in a state that came back
            // to it.
            for part in [t.a, t.b] {
                if !fallen.contains(&part) || planted!(LinesBelowZero) {
                    found |= rows.add(&[(part, -1)], 0);
                }
            }
            if t.max < i64::MAX {
                found |= rows.add(&[(t.s, 1)], -i128::from(t.max));
            }
            if t.split {
                let most = if planted!(RemainderForgotten) { 0 } else { i128::from(t.scale) - 1 };
                found |= rows.add(&[(t.a, 1)], -most);
            }
        }
        for (f, _) in self.room.iter().zip(&*rooms).filter(|(_, seen)| **seen) {
            found |= rows.add_order((f.id, f.scale.into()), f.bytes, f.hi);
        }
        self.ranges_of(about, pointers, named, ranges);
        if !self.products.is_empty() {
            let range =
                |id: u32| about.iter().zip(&*ranges).find(|(of, _)| **of == id).map_or((None, None), |(_, r)| *r);
            for row in self.product_rows(about, range) {
                found |= rows.add(&row, 0);
            }
        }
        about.iter().zip(&*ranges).for_each(|(id, range)| rows.add_range(*id, *range));
        (about.len(), found)
    }

    /// Whether no value with this name of a falling line shows that it is not negative.
    fn may_have_fallen(&self, id: u32) -> bool {
        by_name::note();
        let mut named = self.frames.iter().flat_map(Frame::values).filter(|v| v.is_named(id)).peekable();
        named.peek().is_some() && !named.any(|v| v.least_of_line() >= 0)
    }

    /// The bounds of these names, from the values that have them. `named`: the ranges of all names, if they were
    /// computed, without pointers.
    fn ranges_of(&self, about: &[u32], pointers: bool, named: &[(u32, Range)], ranges: &mut Vec<Range>) {
        by_name::note();
        ranges.clear();
        ranges.extend(about.iter().map(|id| match *id {
            id if id < FIRST_FREE_ID => {
                let least = self.min_len.get(id as usize - 1).map(|len| i128::from(*len));
                (least, Some(Region::MAX_LEN.into()))
            }
            id => named.iter().find(|(of, _)| *of == id).map_or((None, None), |(_, range)| *range),
        }));
        if !named.is_empty() {
            debug_assert!(!pointers, "questions that are asked together do not depend on pointers");
            return;
        }
        fuel::charge(FACT * self.size());
        let mut see = |v: &Value| {
            if let Some(at) = named_by(v, pointers).and_then(|id| about.iter().position(|of| *of == id)) {
                narrow(&mut ranges[at], v);
            }
        };
        for f in &self.frames {
            f.each_value(&mut see);
        }
    }

    /// The ranges of all names of numbers.
    fn name_ranges(&self, named: &mut Vec<(u32, Range)>) {
        named.clear();
        fuel::charge(FACT * self.size());
        let mut see = |v: &Value| {
            let Some(id) = named_by(v, false) else { return };
            let at = named.iter().position(|(of, _)| *of == id).unwrap_or(named.len());
            if at == named.len() {
                named.push((id, (None, None)));
            }
            narrow(&mut named[at].1, v);
        };
        self.frames.iter().for_each(|f| f.each_value(&mut see));
    }
}

/// The name that the value bounds: a number's, or with `pointers` a pointer's.
fn named_by(v: &Value, pointers: bool) -> Option<u32> {
    let id = if v.id | v.tie == 0 { 0 } else { v.line_id() };
    (id >= FIRST_FREE_ID && (v.is_scalar() || (pointers && !v.null))).then_some(id)
}

/// Narrows the range of a name by a value that has it.
fn narrow((min, max): &mut Range, v: &Value) {
    let (lo, hi) = v.bounds();
    // Nothing is known of an offset beyond 63 bits.
    let (lo, hi) = super::lines::of_multiple(lo, hi, v.scale, v.delta);
    (*min, *max) = (Some(min.map_or(lo, |m| m.max(lo))), Some(max.map_or(hi, |m| m.min(hi))));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(terms: &[(u32, i128)], constant: i128) -> Form {
        let add = |f: Form, (id, c): &(u32, i128)| f.plus(&Form::name(*id), *c).expect("small");
        terms.iter().fold(Form::constant(constant), add)
    }

    #[test]
    fn contradictions_are_those_that_no_numbers_solve() {
        // A small generator makes rows over three unknowns in -4..=4, and all assignments are tried.
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut contradictions, mut solved) = (0, 0);
        for _ in 0..3000 {
            let mut rows = Rows::default();
            let mut all: Vec<(Form, bool)> = Vec::new();
            for id in 1..4 {
                all.push((form(&[(id, 1)], -4), false));
                all.push((form(&[(id, -1)], -4), false));
            }
            for _ in 0..3 + below(3) {
                let mut term = |id| (id, i128::from(below(5)) - 2);
                let terms = [term(1), term(2), term(3)];
                all.push((form(&terms, i128::from(below(9)) - 3), below(4) == 0));
            }
            let mut at_once = false;
            for (f, equal) in &all {
                if *equal {
                    rows.add_equation(&f.terms, f.constant);
                } else {
                    at_once |= rows.add(&f.terms, f.constant);
                }
            }
            let said = at_once || rows.contradict() == Some(true);
            let holds = |v: [i128; 3]| {
                all.iter().all(|(f, equal)| {
                    let at = f.constant + (1..4).map(|id| f.times(id) * v[id as usize - 1]).sum::<i128>();
                    if *equal { at == 0 } else { at <= 0 }
                })
            };
            let range = || -4i128..=4;
            let solution = range().any(|x| range().any(|y| range().any(|z| holds([x, y, z]))));
            assert!(!(said && solution), "{all:?}");
            contradictions += u32::from(said);
            solved += u32::from(solution);
        }
        assert!(contradictions > 300 && solved > 300, "{contradictions} {solved}");
    }

    /// Rows, and whether each is an equation.
    type Said = Vec<(Vec<(u32, i128)>, i128, bool)>;

    /// The range of an unknown, with all names increased by `more`.
    fn range_of(solver: &mut Solver, all: &Said, id: u32, more: u32) -> Option<Range> {
        solver.rows.clear();
        for (terms, constant, equal) in all {
            let terms: Vec<_> = terms.iter().map(|(id, c)| (id + more, *c)).collect();
            if *equal {
                solver.rows.add_equation(&terms, *constant);
            } else {
                assert!(!solver.rows.add(&terms, *constant), "{all:?}");
            }
        }
        solver.range(id + more)
    }

    #[test]
    fn answers_leave_out_no_solution() {
        // Rows that some point satisfies, a quarter with large coefficients, and the rows with one of them loosened.
        // Each unknown is asked about, with and without memory that other questions used before, and remembered
        // answers.
        let mut seed = 7u64;
        let mut below = |n: i128| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            i128::from(seed >> 33) % n
        };
        let mut solver = Solver::default();
        let (mut bounded, mut exact) = ([0; 2], [0; 2]);
        for _ in 0..1500 {
            let large = below(4) == 0;
            let point = [below(9) - 4, below(9) - 4, if large { (below(1 << 31) << 31) - (1 << 61) } else { 0 }];
            let mut all = Said::new();
            for _ in 0..3 + below(6) {
                let term = |id: u32, c: i128| (id, if large && c > 2 { (1 << 62) - c } else { c - 2 });
                let mut terms: Vec<_> = (0..3).map(|id| term(id, below(5))).collect();
                terms.retain(|_| below(3) > 0);
                let at: i128 = terms.iter().map(|(id, c)| c * point[*id as usize]).sum();
                let equal = below(5) == 0;
                all.push((terms, -at - if equal { 0 } else { below(3) }, equal));
            }
            for looser in [false, true] {
                if looser && let Some((_, constant, _)) = all.iter_mut().rfind(|(_, _, equal)| !equal) {
                    *constant -= 1;
                }
                for (id, at) in (0..3).zip(point) {
                    let range = range_of(&mut solver, &all, id, 0);
                    assert_eq!(range, range_of(&mut solver, &all, id, 10), "names make no difference: {all:?}");
                    assert_eq!(range, range_of(&mut Solver::default(), &all, id, 0), "{all:?}");
                    let (least, most) = range.unwrap_or_default();
                    let within = least.is_none_or(|least| least <= at) && most.is_none_or(|most| at <= most);
                    assert!(within, "{all:?} at {point:?}: {range:?}");
                    for (side, bound) in [least, most].into_iter().enumerate() {
                        bounded[side] += u32::from(bound.is_some());
                        exact[side] += u32::from(bound == Some(at));
                    }
                }
            }
        }
        assert!(bounded.into_iter().min() > Some(1000) && exact.into_iter().min() > Some(300), "{bounded:?} {exact:?}");
    }

    /// Compares answers with those of elimination alone, for states that differ from the last one in at most one thing.
    #[test]
    fn points_change_no_answer() {
        const NAMES: u32 = 8;
        let mut seed = 11u64;
        let mut below = |n: i64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            i64::try_from(seed >> 33).expect("31 bits") % n
        };
        let (mut proven, mut not, mut again) = (0, 0, 0);
        let mut state = State::default();
        let mut asked: Vec<Form> = Vec::new();
        for round in 0..6000 {
            let mut name = || FIRST_FREE_ID + u32::try_from(below(NAMES.into())).expect("few");
            let (a, b, c) = (name(), name(), name());
            if round % 20 == 0 {
                state = State::default();
                state.frames.push(Frame::new(0, 0, crate::state::Entry::Root));
            }
            match below(if round % 20 < 8 { 6 } else { 12 }) {
                0..3 => state.learn_below(Room { id: a, scale: 1 + below(2) as i16, bytes: below(9) - 4, hi: b }),
                3 => {
                    let (delta, max) = (below(5) - 2, if below(3) == 0 { 40 } else { i64::MAX });
                    state.push_sum(Sum { s: a, a: b, b: c, scale: 1 + below(2), delta, max, split: false });
                }
                4 | 5 => {
                    let least = below(12);
                    let n = crate::Scalar::signed(least, least + below(30));
                    let at = below(8) as usize;
                    state.top_mut().regs[at] = Value::scalar(n).renamed(a, 1, 0);
                }
                6 if !state.room.is_empty() => {
                    let at = below(state.room.len() as i64) as usize;
                    state.room[at].bytes += below(5) - 2;
                }
                7 if !state.sums.is_empty() => {
                    let at = below(state.sums.len() as i64) as usize;
                    state.sums[at].delta += below(5) - 2;
                }
                8 => state.push_product(crate::state::Product { p: a, a: b, b: c }),
                _ => {}
            }
            // The last question, one about the same names, or one about others.
            if below(3) == 0 || asked.is_empty() {
                let of = form(&[(a, below(3).into()), (b, -1 - i128::from(below(2))), (c, i128::from(below(2)))], 0);
                asked = (-3..3).map(|by| of.clone().plus(&Form::constant(by * 4), 1).expect("small")).collect();
            } else {
                again += 1;
            }
            for f in asked.iter().filter(|f| f.as_const().is_none()) {
                let pointers = true;
                let said = state.proves_from(f, pointers);
                let mut solver = Solver::default();
                solver.facts.begin(&state);
                let negation = f.negated(1).expect("small");
                let eliminated = state.refutes(f, &negation, pointers, &mut solver, None);
                assert_eq!(said, eliminated, "{f:?} of {:?} {:?} {:?}", state.room, state.sums, state.products);
                *(if said { &mut proven } else { &mut not }) += 1;
            }
        }
        assert!(proven > 1000 && not > 1000 && again > 1000, "{proven} {not} {again}");
    }

    #[test]
    fn too_many_rows_prove_nothing() {
        let mut rows = Rows::default();
        for _ in 0..70_000 {
            rows.add_equation(&[(1, 2), (2, 3)], 5);
        }
        assert_ne!(rows.contradict(), Some(true));
        // And the memory serves for the next question.
        rows.clear();
        rows.add(&[(1, 2), (2, 3)], 5);
        rows.add(&[(1, -2), (2, -3)], -4);
        assert_eq!(rows.contradict(), Some(true));
    }

    #[test]
    fn an_overflow_proves_nothing() {
        let mut rows = Rows::default();
        rows.add(&[(1, (1 << 62) - 1), (2, 3)], 5);
        rows.add(&[(1, -(1 << 61)), (2, -7)], 5);
        rows.add(&[(2, -5), (1, 11)], 7);
        assert_ne!(rows.contradict(), Some(true));
        // A product that is the number without a negative.
        let least = form(&[(1, 1 << 64)], 1 << 64);
        assert_eq!(Form::default().plus(&least, -(1 << 63)), None);
    }
}
