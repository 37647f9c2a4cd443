//! Points: integers for all unknowns that satisfy all rows.
//!
//! Problem: for two of three questions, the answer is "not proven", and elimination finds that out only when no unknown
//! is left: first for the rows near the question, then for more, then for all. Approach: one point that satisfies all
//! rows, including the negation of the question, shows it at once. Two searches look for one. From below, all unknowns
//! begin at their least value, and an unknown that is too small for a row is raised; none is ever lowered. From above,
//! it is the other way round. An order states that one unknown is at least another, so for orders alone this finds the
//! least solution; for sums it tries one part after the other, and may miss a point. The next question is often about
//! the same names in the same state: all rows but the negation hold at the last point, and only unknowns that move from
//! there are visited.
//!
//! Invariants: a point counts only if each row was evaluated, in exact arithmetic, after the last of its unknowns
//! moved, and holds; an overflow is no point. Rows derived by elimination hold wherever their premises hold: this is
//! clear for sums, and rounding removes no integers. So if there is a point, elimination finds no contradiction in
//! these rows or in a subset of them, in any order, and a question with a point has the answer that elimination would
//! give. If rows were left out, the nearer rows may be no subset of the others, and no point is searched. An error here
//! could only make the solver fail to prove a true statement: no point makes an unsafe program accepted.

use super::Form;
use super::rows::{COLUMNS, Row, Rows, columns_of};
use crate::fuel;

/// Fuel for each row that is visited.
const ROW: u64 = 3;
/// The number of passes over all rows.
const PASSES: usize = 3;
/// The greatest distance from 0 at which an unbounded unknown begins.
const FAR: i64 = 1 << 40;

/// An integer for each column.
type Point = [i64; COLUMNS];

/// Points that satisfy rows.
#[derive(Debug, Default)]
pub(super) struct Points {
    /// Whether a search is worthwhile.
    any: bool,
    /// The range of each unknown.
    within: [(i64, i64); COLUMNS],
    /// The points found last for these rows: by raising, and by lowering.
    found: [Option<Point>; 2],
}

impl Points {
    /// Begins a search for points that satisfy these rows. `all`: whether these are all rows of the state about the
    /// question.
    pub(super) fn begin(&mut self, rows: &Rows, all: bool) {
        self.found = [None; 2];
        self.any = all && !rows.left_out && self.see_bounds(rows).is_some();
    }

    /// Reads the bounds. `None` if those of an unknown exclude each other.
    fn see_bounds(&mut self, rows: &Rows) -> Option<()> {
        for (within, [least, most]) in self.within.iter_mut().zip(&rows.bounds) {
            let least = least.map_or(Some(i64::MIN), |least| i64::try_from(least.max(i64::MIN.into())).ok())?;
            let most = most.map_or(Some(i64::MAX), |most| i64::try_from((-most).min(i64::MAX.into())).ok())?;
            *within = (least, most);
            if least > most {
                return None;
            }
        }
        Some(())
    }

    /// Whether some integers satisfy the rows and `form <= 0`, where the form's names are the first columns. `false` if
    /// none were found.
    pub(super) fn satisfy(&mut self, rows: &Rows, form: &Form) -> bool {
        let Some(row) = self.any.then(|| Row::of_first(&form.terms, form.constant)).flatten() else { return false };
        [true, false].into_iter().any(|raised| {
            let found = self.found[usize::from(raised)];
            // A point that satisfies all rows but one is mostly near a solution.
            let point = found.and_then(|near| self.look(rows, &row, raised, near, 0));
            let point = point.or_else(|| self.look(rows, &row, raised, self.first(raised), u32::MAX));
            if point.is_some() {
                self.found[usize::from(raised)] = point;
            }
            point.is_some()
        })
    }

    /// The point with all unknowns at their least, or at their greatest values.
    fn first(&self, raised: bool) -> Point {
        self.within.map(|(least, most)| match raised {
            true if least >= -FAR => least,
            true => most.min(0),
            false => most.min(FAR).max(least),
        })
    }

    /// A point that satisfies all rows and one more, searched from `point` on. `moved`: the columns that moved since
    /// rows with them were last seen to hold.
    fn look(&self, rows: &Rows, more: &Row, raised: bool, mut point: Point, moved: u32) -> Option<Point> {
        let mut before = moved;
        for _ in 0..PASSES {
            fuel::charge_each(1 + rows.equal.len() + rows.less.len(), ROW);
            // The columns that move in this pass.
            let mut moved = more.move_point(false, raised, &mut point, &self.within)?;
            for place in &rows.equal {
                moved |= rows.rows[usize::from(*place)].move_point(true, raised, &mut point, &self.within)?;
            }
            for counted in &rows.less {
                if counted.used & (before | moved) != 0 {
                    let row = &rows.rows[usize::from(counted.place)];
                    if row.value(&point)? > 0 {
                        moved |= row.move_point(false, raised, &mut point, &self.within)?;
                    }
                }
            }
            if moved == 0 {
                return Some(point);
            }
            before = moved;
        }
        None
    }
}

impl Row {
    /// The value of the row at the point.
    fn value(&self, point: &Point) -> Option<i64> {
        let constant = i64::try_from(self.constant).ok()?;
        columns_of(self.used).try_fold(constant, |sum, at| sum.checked_add(self.by[at].checked_mul(point[at])?))
    }

    /// Moves the point to where the row, or equation, holds: unknowns are raised, or lowered, within their bounds.
    /// Returns the columns that moved; `None` if the row still does not hold.
    fn move_point(
        &self,
        equation: bool,
        raised: bool,
        point: &mut Point,
        within: &[(i64, i64); COLUMNS],
    ) -> Option<u32> {
        let mut value = self.value(point)?;
        let holds = |value: i64| value == 0 || (!equation && value < 0);
        let (too_much, mut which) = (value > 0, 0);
        let mut columns = columns_of(self.used);
        while !holds(value) {
            let at = columns.next()?;
            let by = self.by[at];
            // A sum decreases when an unknown with a negative coefficient increases.
            if ((by < 0) == too_much) != raised {
                continue;
            }
            let missing = match by {
                1 | -1 => value.checked_abs()?,
                by if equation && value % by != 0 => continue, // The equation has no integer solution for this column.
                by => (value / by).checked_abs()?.checked_add((value % by != 0).into())?,
            };
            let (x, (least, most)) = (point[at], within[at]);
            let moved = if raised { x.saturating_add(missing).min(most) } else { x.saturating_sub(missing).max(least) };
            value = value.checked_add(by.checked_mul(moved.checked_sub(x)?)?)?;
            point[at] = moved;
            which |= 1 << at;
        }
        Some(which)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum of coefficient * V + constant`, and whether that is 0, or else at most 0.
    type Said = (Vec<(u32, i128)>, i128, bool);

    fn form(terms: &[(u32, i128)], constant: i128) -> Form {
        let add = |f: Form, (id, c): &(u32, i128)| f.plus(&Form::name(*id), *c).expect("small");
        terms.iter().fold(Form::constant(constant), add)
    }

    fn rows_of(names: &[u32], said: &[Said]) -> Rows {
        let mut rows = Rows::default();
        assert!(names.iter().all(|id| rows.has_column(*id)));
        for (terms, constant, equal) in said {
            if *equal {
                rows.add_equation(terms, *constant);
            } else {
                rows.add(terms, *constant);
            }
        }
        rows
    }

    /// Rows about four unknowns, of which the first two are asked about again and again, a quarter with numbers that
    /// overflow: each point satisfies all rows and what was asked, and where there is one, elimination finds nothing.
    #[test]
    fn points_satisfy_all_rows_and_change_no_answer() {
        let mut seed = 3u64;
        let mut below = |n: i128| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            i128::from(seed >> 33) % n
        };
        let mut points = Points::default();
        let (mut found, mut missed, mut impossible, mut large_found) = (0, 0, 0, 0);
        for _ in 0..4000 {
            let large = below(4) == 0;
            let mut said = Vec::<Said>::new();
            for id in 1..5 {
                if below(4) > 0 {
                    let least = if large { below(1 << 31) << [8, 20, 33][below(3) as usize] } else { below(9) }
                        - if below(2) == 0 { 4 } else { 0 };
                    said.push((vec![(id, -1)], least, false));
                    if below(2) > 0 {
                        said.push((vec![(id, 1)], -least.abs() - below(40), false));
                    }
                }
            }
            for _ in 0..1 + below(5) {
                let number = |c: i128| if large && c > 3 { (1 << 62) - c } else { c - 2 };
                let mut terms: Vec<_> = (1..5).map(|id| (id, number(below(5)))).collect();
                terms.retain(|(_, c)| *c != 0 && below(3) > 0);
                if !terms.is_empty() {
                    said.push((terms, below(13) - 8, below(5) == 0));
                }
            }
            points.begin(&rows_of(&[1, 2], &said), true);
            for _ in 0..4 {
                let asked = form(&[(1, 1 + below(2)), (2, -1 - below(3))], below(9) - 4);
                let asked = if below(2) == 0 { asked.negated(1).expect("small") } else { asked };
                let rows = rows_of(&[1, 2], &said);
                let satisfied = points.satisfy(&rows, &asked);
                let mut all = said.clone();
                all.push((asked.terms.clone(), asked.constant, false));
                let mut at_once = false;
                let mut rows = Rows::default();
                for (terms, constant, equal) in &all {
                    if *equal {
                        rows.add_equation(terms, *constant);
                    } else {
                        at_once |= rows.add(terms, *constant);
                    }
                }
                let contradict = at_once || rows.contradict() == Some(true);
                if !satisfied {
                    missed += u32::from(!contradict);
                    impossible += u32::from(contradict);
                    continue;
                }
                assert!(!contradict, "{all:?}");
                // Columns: the first two are the question's, the others come as rows name them.
                let columns = rows_of(&[1, 2], &said).columns;
                let holds = |point: &Point| {
                    all.iter().all(|(terms, constant, equal)| {
                        let of = |id: u32| columns.iter().position(|x| *x == id).map_or(0, |at| i128::from(point[at]));
                        let sum = terms.iter().map(|(id, c)| c * of(*id)).sum::<i128>() + constant;
                        sum == 0 || (!equal && sum < 0)
                    })
                };
                assert!(points.found.iter().flatten().any(holds), "{all:?} {:?}", points.found);
                found += 1;
                large_found += u32::from(large);
            }
        }
        let counts = [found, missed, impossible, large_found];
        assert!(counts.into_iter().all(|n| n > 300) && found > 2 * missed, "{counts:?}");
    }

    /// Elimination of fewer rows may depend on a row that did not fit.
    #[test]
    fn no_point_is_found_where_a_row_was_left_out() {
        let mut points = Points::default();
        let mut said: Vec<Said> = (1..=20).map(|id| (vec![(id, -1)], 0, false)).collect();
        points.begin(&rows_of(&[1], &said), true);
        assert!(points.satisfy(&rows_of(&[1], &said), &form(&[(1, 1)], -3)));
        said.push((vec![(1, -1), (21, 1)], 5, false));
        points.begin(&rows_of(&[1], &said), true);
        assert!(!points.satisfy(&rows_of(&[1], &said), &form(&[(1, 1)], -3)));
    }
}
