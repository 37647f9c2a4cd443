//! The candidate rows of a point.
//!
//! Problem: an invariant needs rows between what a loop moves, and each row of a claim costs work in every proof.
//! Approach: candidates come from the rows of a state (`project`), from pairs of values, and from rows that a round
//! moves by a constant. A later state in which a candidate does not hold drops it (Houdini: Flanagan and Leino, FME
//! 2001). A row that the bounds of names and one other row imply is set aside until they no longer do. It costs nothing
//! there, and is not lost with the stronger row.

use bpf_verifier_core::{Form, State};

use super::super::{multipliers, project};
use super::{PointState, places};
use crate::fuel;

/// Units of fuel for two rows that are compared.
const COMPARE: u64 = 60;

/// The most rows of a claim, and the most that these imply.
const MAX_CANDIDATES: usize = 96;
const MAX_IMPLIED: usize = 2 * MAX_CANDIDATES;

/// The number of times that the constant of a row is relaxed (template polyhedra: Sankaranarayanan, Sipma and Manna,
/// VMCAI 2005).
const RELAXED: usize = 2;

impl PointState {
    /// Adds the consequences of a state's rows for the claim's names.
    pub(super) fn project(&mut self, state: &State) {
        if let Some(renaming) = self.renaming(state) {
            self.add_rows(project::rows(state.known(), &self.claim.names, &renaming));
        }
    }

    /// Whether the bounds of the names and at most one row of the claim imply that the form is not negative.
    pub(super) fn implies(&self, form: &Form) -> bool {
        fuel::charge_each(1 + self.claim.rows.len(), COMPARE);
        let least = |form: &Form| {
            form.terms().iter().try_fold(form.offset(), |least, (n, a)| {
                let (min, max) = self.claim.names.get(n.index())?.bounds();
                least.checked_add(a.checked_mul(if *a > 0 { min } else { max })?)
            })
        };
        let not_negative = |form: &Form| least(form).is_some_and(|least| least >= 0);
        not_negative(form)
            || self.claim.rows.iter().any(|row| form.plus(row, -1).is_some_and(|rest| not_negative(&rest)))
    }

    /// Adds candidate rows, and returns whether one is new.
    pub(super) fn add_rows(&mut self, rows: Vec<Form>) -> bool {
        let mut changed = false;
        for row in rows {
            let is_known =
                || [&self.claim.rows, &self.implied, &self.dropped].into_iter().any(|all| all.contains(&row));
            if row.terms().len() < 2 || is_known() {
                continue;
            }
            if self.implies(&row) {
                if self.implied.len() < MAX_IMPLIED {
                    self.implied.push(row);
                }
            } else if let Some(other) = self.claim.rows.iter_mut().find(|other| other.terms() == row.terms()) {
                let weaker = std::mem::replace(other, row);
                self.implied.push(weaker);
                changed = true;
            } else if self.claim.rows.len() < MAX_CANDIDATES {
                self.claim.rows.push(row);
                changed = true;
            }
        }
        changed
    }

    /// Adds rows that may hold between values that the loop moves and all others.
    pub(super) fn add_candidates(&mut self, from: usize, state: &State, renaming: &[Form]) {
        let mut forms: Vec<Form> = Vec::new();
        for place in places(&self.claim.lengths, &self.claim.frames) {
            let known = self.number(place).filter(|form| !form.terms().is_empty() && !forms.contains(form));
            forms.extend(known);
        }
        let moves = |form: &Form| form.terms().iter().any(|(n, _)| n.index() >= from);
        // Bounds on the difference of two forms that rows of the state give.
        let difference = |a: &Form, b: &Form| b.substitute(renaming)?.plus(&a.substitute(renaming)?, -1);
        let known = |a: &Form, b: &Form| {
            let difference = difference(a, b);
            let rows = state.known().rows().iter();
            let by_rows = rows.filter_map(|row| difference.as_ref()?.plus(row, -1)?.as_const()).collect::<Vec<_>>();
            let least = difference.as_ref().and_then(|form| state.known().bounds(form)).map(|(min, _)| min);
            by_rows.into_iter().chain(least.filter(|min| (-64..=4096).contains(min)))
        };
        let is_negative = |form: &Form| {
            let bounds = form.substitute(renaming).and_then(|form| state.known().bounds(&form));
            bounds.is_some_and(|(min, _)| (-(1 << 40)..0).contains(&min))
        };
        for a in forms.iter().filter(|form| moves(form)) {
            for b in forms.iter().filter(|b| *b != a) {
                fuel::charge_each(1 + state.known().rows().len(), fuel::VALUE);
                if self.claim.rows.len() >= MAX_CANDIDATES || fuel::is_spent() {
                    return;
                }
                let mut rows = Vec::new();
                // Sums, where a value is below zero (octagons: Mine, HOSC 2006).
                let negated = if is_negative(a) || is_negative(b) { a.times(-1) } else { None };
                for (a, b) in [(a, b), (b, a)].into_iter().chain(negated.as_ref().map(|negated| (negated, b))) {
                    for by in known(a, b).chain([1, 0]) {
                        rows.extend(b.plus(a, -1).and_then(|f| f.shifted(by.checked_neg()?)));
                    }
                }
                self.add_rows(rows);
            }
        }
        let mut rows = Vec::new();
        // Bounds of sums of names that do not follow from the bounds of the names.
        for form in forms.iter().filter(|form| moves(form) && form.terms().len() > 1) {
            let bounds = form.substitute(renaming).and_then(|form| state.known().bounds(&form));
            let least = bounds.map(|(min, _)| min).filter(|min| *min != 0);
            rows.extend([Some(0), least].into_iter().flatten().filter_map(|min| form.shifted(min.checked_neg()?)));
            rows.extend(bounds.and_then(|(_, max)| form.times(-1)?.shifted(max)));
        }
        self.add_rows(rows);
    }

    /// Adds rows that a round moves by a constant: a new counter is 0 in the states before and 1 in this state, so that
    /// `row - by * counter` holds in all of them if `row - by` does in this one (the convex hull of two successive
    /// states, as in linear relation analysis: Gonnord and Halbwachs, SAS 2006).
    pub(super) fn add_extrapolated(&mut self, rounds: &Form, state: &State, renaming: &[Form]) {
        let known = state.known();
        let mut rows = Vec::new();
        for row in &self.claim.rows {
            let Some(here) = row.substitute(renaming) else { continue };
            let holds = |by: i128| here.shifted(by).is_some_and(|form| multipliers::holds(known, &form));
            let by = if holds(-1) {
                -1
            } else if !holds(0) && holds(1) {
                1
            } else {
                continue;
            };
            rows.extend(row.plus(rounds, by));
        }
        self.add_rows(rows);
    }

    pub(super) fn drop_rows(&mut self, renaming: &[Form], state: &State) -> bool {
        let known = state.known();
        let holds = |row: &Form| row.substitute(renaming).is_some_and(|row| multipliers::holds(known, &row));
        let (kept, lost): (Vec<Form>, Vec<Form>) = self.claim.rows.drain(..).partition(holds);
        self.claim.rows = kept;
        let changed = !lost.is_empty();
        for row in lost {
            let before = self.dropped.iter().filter(|other| other.terms() == row.terms()).count();
            let relaxed = |by: &i128| row.shifted(*by).filter(|row| holds(row));
            let relaxed = if before < RELAXED { [1, 2].iter().find_map(relaxed) } else { None };
            self.dropped.push(row);
            self.implied.extend(relaxed);
        }
        // Rows that the claim no longer implies.
        let mut implied = std::mem::take(&mut self.implied);
        implied.sort_by_key(Form::offset);
        for row in implied {
            if self.implies(&row) {
                self.implied.push(row);
            } else if self.claim.rows.len() < MAX_CANDIDATES && holds(&row) {
                self.claim.rows.push(row);
            } else {
                self.dropped.push(row);
            }
        }
        changed
    }
}
