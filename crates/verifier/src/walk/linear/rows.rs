//! Rows of coefficients, from which unknowns are eliminated one after the other.
//!
//! Problem: questions are many and small, so allocating memory for each row, or copying rows, would cost more than the
//! answers. Approach: a row has a coefficient for each of a few columns, in place, and knows which of them it uses:
//! mostly two or three. Most rows have one column and only give a lower or an upper bound; of these, the tightest is
//! kept. The columns are the unknowns in the order in which they came. A row that does not fit (too many unknowns, too
//! large a number) is left out, which is sound: fewer rows prove less. Rows stay where they are made; a list of places
//! gives the active rows. The same memory serves for one attempt at an answer after the other.
//!
//! Invariants: each row says `sum of coefficient * V + constant <= 0`, or `= 0` of an equation, and follows from the
//! rows that were added. Coefficients are at most [`MAX_COEFFICIENT`] and constants [`MAX_NUMBER`], either way.
//! Coefficients of columns that a row does not use are arbitrary.

use super::{MAX_NUMBER, Range};
use crate::fuel;

/// The most unknowns of the rows.
pub(super) const COLUMNS: usize = 20;
/// The most rows at any time.
const MAX_ROWS: usize = 44;
/// Fuel for a row that is made of two others, and for each of its columns.
const COMBINED: u64 = 8;
const COLUMN: u64 = 1;
/// Upper bound of the magnitude of coefficients; symmetric, so that each has a negative.
const MAX_COEFFICIENT: u64 = 1 << 62;
/// By which coefficients are hashed, column by column: powers of an odd number.
const HASHED_BY: [u64; COLUMNS] = {
    let mut by = [0x9e37_79b9_7f4a_7c15u64; COLUMNS];
    let mut at = 1;
    while at < COLUMNS {
        by[at] = by[at - 1].wrapping_mul(by[0]);
        at += 1;
    }
    by
};

/// The contribution of a coefficient to the hash of its row.
fn hash_of(coefficient: i64, at: usize) -> u64 {
    coefficient.cast_unsigned().wrapping_mul(HASHED_BY[at])
}

/// The columns of a set, a bit each.
pub(super) fn columns_of(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (at < COLUMNS).then_some(at)
    })
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) by: [i64; COLUMNS],
    pub(super) constant: i128,
    /// The columns that have a coefficient other than 0, a bit each.
    pub(super) used: u32,
}

/// An active row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// A hash of the coefficients, for comparisons.
    key: u64,
    /// As in the row.
    pub(super) used: u32,
    pub(super) place: u16,
}

/// Rows, of which some are equations.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) columns: Vec<u32>,
    /// All rows, including inactive ones.
    pub(super) rows: Vec<Row>,
    /// Places of equations.
    pub(super) equal: Vec<u16>,
    pub(super) less: Vec<Counted>,
    /// Whether an added row was left out.
    pub(super) left_out: bool,
    /// The rows from which an unknown is being eliminated.
    with: Vec<Counted>,
    /// Places that may be reused.
    free: Vec<u16>,
    /// For each unknown V, the inequalities without other unknowns: `constant - V <= 0`, and `V + constant <= 0`.
    pub(super) bounds: [[Option<i128>; 2]; COLUMNS],
    bounded: usize,
    /// For each unknown, the number of inequalities in which its coefficient is negative, and positive.
    times: [[i64; 2]; COLUMNS],
    /// A bit for each key that some inequality has, or had: for most rows it shows that no other has equal
    /// coefficients.
    keys: [u64; 8],
    /// Hints for the columns of unknowns, by the low bits of the name: the column where such an unknown was last found.
    hints: [u8; 32],
}

/// The product; `None` on overflow. Mostly, both factors are short.
fn times(constant: i128, by: i64) -> Option<i128> {
    match i64::try_from(constant) {
        Ok(short) => Some(i128::from(short) * i128::from(by)),
        Err(_) => constant.checked_mul(by.into()),
    }
}

/// `a * x + b * y`, if its magnitude is at most [`MAX_NUMBER`].
fn sum_of(x: i128, a: i64, y: i128, b: i64) -> Option<i128> {
    let (x, y) = (times(x, a)?, times(y, b)?);
    x.checked_add(y).filter(|c| c.unsigned_abs() <= MAX_NUMBER)
}

/// The constant of `by * V + constant <= 0` divided by `by > 0` and rounded, as V is an integer.
fn rounded(constant: i128, by: u64) -> i128 {
    match (by, i64::try_from(by), i64::try_from(constant).ok().and_then(i64::checked_neg)) {
        (1, ..) => constant,
        (_, Ok(by), Some(short)) => -i128::from(short.div_euclid(by)),
        _ => -(-constant).div_euclid(by.into()),
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Row {
    const NONE: Row = Row { by: [0; COLUMNS], constant: 0, used: 0 };

    /// A row over the first columns, in this order. `None` if the terms do not fit.
    pub(super) fn of_first(terms: &[(u32, i128)], constant: i128) -> Option<Row> {
        let mut row = Row { constant, ..Row::NONE };
        for (at, (_, c)) in terms.iter().enumerate() {
            *row.by.get_mut(at)? = i64::try_from(*c).ok()?;
            row.used |= u32::from(*c != 0) << at;
        }
        Some(row)
    }

    /// The coefficient of the unknown.
    fn of(&self, at: usize) -> i64 {
        if self.used >> at & 1 != 0 { self.by[at] } else { 0 }
    }

    /// Sets the row to `a * x + b * y`. `None` if an entry overflows.
    fn combine(&mut self, x: &Row, a: i64, y: &Row, b: i64) -> Option<()> {
        self.used = x.used ^ y.used;
        let mut over = false;
        let most = |c: i64| c.unsigned_abs() > MAX_COEFFICIENT;
        for (row, times, only) in [(x, a, x.used & !y.used), (y, b, y.used & !x.used)] {
            for at in columns_of(only) {
                let (c, c_over) = row.by[at].overflowing_mul(times);
                over |= c_over | most(c);
                self.by[at] = c;
            }
        }
        for at in columns_of(x.used & y.used) {
            let ((x, x_over), (y, y_over)) = (x.by[at].overflowing_mul(a), y.by[at].overflowing_mul(b));
            let (sum, sum_over) = x.overflowing_add(y);
            over |= x_over | y_over | sum_over | most(sum);
            self.by[at] = sum;
            self.used |= u32::from(sum != 0) << at;
        }
        if over {
            return None;
        }
        self.constant = sum_of(x.constant, a, y.constant, b)?;
        Some(())
    }

    /// Sets the row to `by` times the other without one of its unknowns, plus a multiple of a constant. `None` on
    /// overflow.
    fn without(&mut self, other: &Row, at: usize, by: i64, (constant, times): (i128, i64)) -> Option<()> {
        self.used = other.used & !(1 << at);
        for at in columns_of(self.used) {
            self.by[at] = other.by[at] * by;
        }
        self.constant = sum_of(other.constant, by, constant, times)?;
        Some(())
    }

    fn negate(&mut self) {
        for at in columns_of(self.used) {
            self.by[at] = -self.by[at];
        }
        self.constant = -self.constant;
    }

    /// Divides by the greatest common divisor of the coefficients. The constant is rounded up, since the unknowns are
    /// integers.
    fn reduce(&mut self) {
        let mut common = 0;
        for at in columns_of(self.used) {
            common = gcd(common, self.by[at].unsigned_abs());
            if common == 1 {
                return;
            }
        }
        if let (true, Ok(by)) = (common > 1, i64::try_from(common)) {
            columns_of(self.used).for_each(|at| self.by[at] /= by);
            self.constant = rounded(self.constant, common);
        }
    }

    /// Whether the coefficients are equal; both rows use the same columns.
    fn is_like(&self, other: &Row) -> bool {
        columns_of(self.used).all(|at| self.by[at] == other.by[at])
    }
}

impl Rows {
    /// Empties them for the next attempt.
    pub(super) fn clear(&mut self) {
        self.columns.clear();
        self.equal.clear();
        self.less.clear();
        self.with.clear();
        self.free.clear();
        self.free.extend((0..crate::num::half(self.rows.len())).rev());
        (self.bounds, self.bounded, self.times) = ([[None; 2]; COLUMNS], 0, [[0; 2]; COLUMNS]);
        (self.keys, self.left_out) = ([0; 8], false);
    }

    /// Returns a free place for a row. The place stays free, and is returned again, until a row is counted there.
    /// `None` if there are too many rows.
    fn spare(&mut self) -> Option<u16> {
        if let Some(at) = self.free.last() {
            return Some(*at);
        }
        let at = u16::try_from(self.rows.len()).ok().filter(|at| *at < u16::MAX)?;
        self.rows.push(Row::NONE);
        self.free.push(at);
        Some(at)
    }

    /// The column of an unknown, if there is one left for it.
    fn column(&mut self, id: u32) -> Option<usize> {
        let hint = &mut self.hints[id as usize % 32];
        if self.columns.get(usize::from(*hint)) == Some(&id) {
            return Some((*hint).into());
        }
        let at = match self.columns.iter().position(|x| *x == id) {
            Some(at) => at,
            None if self.columns.len() < COLUMNS => {
                self.columns.push(id);
                self.columns.len() - 1
            }
            None => return None,
        };
        *hint = crate::num::few(at);
        Some(at)
    }

    /// Whether the unknown has a column; it gets one if one is left.
    pub(super) fn has_column(&mut self, id: u32) -> bool {
        self.column(id).is_some()
    }

    /// The terms as a row in a spare place. `None` if they do not fit.
    fn row(&mut self, terms: &[(u32, i128)], constant: i128) -> Option<u16> {
        if constant.unsigned_abs() > MAX_NUMBER {
            return None;
        }
        let spare = self.spare()?;
        let mut used = 0;
        for &(id, c) in terms {
            let at = self.column(id)?;
            let by = &mut self.rows[usize::from(spare)].by[at];
            let before = if used >> at & 1 != 0 { *by } else { 0 };
            *by = i64::try_from(c).ok()?.checked_add(before).filter(|c| c.unsigned_abs() <= MAX_COEFFICIENT)?;
            used = used & !(1 << at) | u32::from(*by != 0) << at;
        }
        let row = &mut self.rows[usize::from(spare)];
        (row.constant, row.used) = (constant, used);
        Some(spare)
    }

    /// Adds `sum <= 0`. `true` if it contradicts another row.
    pub(super) fn add(&mut self, terms: &[(u32, i128)], constant: i128) -> bool {
        // This is the most frequent form.
        if let [(id, c @ (1 | -1))] = *terms {
            match self.column(id).filter(|_| constant.unsigned_abs() <= MAX_NUMBER) {
                Some(at) => self.bound(at, c > 0, constant),
                None => self.left_out = true,
            }
            return false;
        }
        let row = self.row(terms, constant);
        self.left_out |= row.is_none();
        row.is_some_and(|row| self.add_row(row))
    }

    /// Adds `scale * V(lo) + bytes <= V(hi)`, the most frequent form with several unknowns. `true` if it contradicts
    /// another row.
    pub(super) fn add_order(&mut self, (lo, scale): (u32, i64), bytes: i64, hi: u32) -> bool {
        let places = (self.spare(), self.column(lo), self.column(hi));
        let (Some(spare), Some(x), Some(y)) = places else {
            self.left_out = true;
            return false;
        };
        if x == y || scale == 0 || scale.unsigned_abs() > MAX_COEFFICIENT {
            return self.add(&[(lo, scale.into()), (hi, -1)], bytes.into());
        }
        let row = &mut self.rows[usize::from(spare)];
        (row.by[x], row.by[y]) = (scale, -1);
        (row.constant, row.used) = (bytes.into(), 1 << x | 1 << y);
        self.keep(spare, hash_of(scale, x).wrapping_add(hash_of(-1, y)));
        false
    }

    /// Adds the bounds of an unknown.
    pub(super) fn add_range(&mut self, id: u32, (min, max): Range) {
        let fits = |c: &i128| c.unsigned_abs() <= MAX_NUMBER;
        let known = [min, max].into_iter().flatten();
        self.left_out |= !known.clone().all(|c| fits(&c));
        let (min, max) = (min.filter(fits), max.filter(fits));
        if min.is_none() && max.is_none() {
            return;
        }
        let Some(at) = self.column(id) else {
            self.left_out = true;
            return;
        };
        min.into_iter().for_each(|min| self.bound(at, false, min));
        max.into_iter().for_each(|max| self.bound(at, true, -max));
    }

    /// Adds an inequality with one unknown.
    fn bound(&mut self, at: usize, above: bool, constant: i128) {
        let bound = &mut self.bounds[at][usize::from(above)];
        if bound.is_none() {
            self.bounded += 1;
            self.times[at][usize::from(above)] += 1;
        }
        *bound = (*bound).max(Some(constant));
    }

    /// Adds `sum = 0`.
    pub(super) fn add_equation(&mut self, terms: &[(u32, i128)], constant: i128) {
        match self.row(terms, constant) {
            Some(row) => {
                self.free.pop();
                self.equal.push(row);
            }
            None => self.left_out = true,
        }
    }

    /// Makes the row in the spare place active. `true` if it contradicts another row.
    fn add_row(&mut self, place: u16) -> bool {
        let row = &mut self.rows[usize::from(place)];
        let used = row.used;
        if used == 0 {
            return row.constant > 0;
        }
        if used.is_power_of_two() {
            let at = used.trailing_zeros() as usize;
            let (by, constant) = (row.by[at], row.constant);
            self.bound(at, by > 0, rounded(constant, by.unsigned_abs()));
            return false;
        }
        row.reduce();
        let hashed = columns_of(used).map(|at| hash_of(row.by[at], at)).fold(0, u64::wrapping_add);
        self.keep(place, hashed);
        false
    }

    /// Makes the row in the spare place, which has several unknowns, active. `key`: a hash of its coefficients.
    fn keep(&mut self, place: u16, key: u64) {
        let row = &self.rows[usize::from(place)];
        let (used, constant) = (row.used, row.constant);
        let alike = |other: &&Counted| {
            (other.key, other.used) == (key, used) && self.rows[usize::from(other.place)].is_like(row)
        };
        let (word, bit) = ((key >> 61) as usize, 1 << (key >> 55 & 63));
        let like = if self.keys[word] & bit == 0 { None } else { self.less.iter().find(alike) };
        self.keys[word] |= bit;
        match like.map(|other| usize::from(other.place)) {
            Some(other) => self.rows[other].constant = self.rows[other].constant.max(constant),
            None => {
                self.free.pop();
                let row = Counted { key, used, place };
                self.less.push(row);
                self.count(row, 1);
            }
        }
    }

    /// Counts one inequality more, or less.
    fn count(&mut self, row: Counted, more: i64) {
        let by = &self.rows[usize::from(row.place)].by;
        for at in columns_of(row.used) {
            self.times[at][usize::from(by[at] > 0)] += more;
        }
    }

    /// Sets the spare row to `by` times another one without an unknown, plus a multiple of a constant. `None` on
    /// overflow.
    fn without(&mut self, x: u16, at: usize, by: i64, constant: (i128, i64)) -> Option<u16> {
        let spare = self.spare()?;
        let Ok([row, x]) = self.rows.get_disjoint_mut([usize::from(spare), usize::from(x)]) else { return None };
        fuel::charge(COMBINED + COLUMN * u64::from(x.used.count_ones()));
        row.without(x, at, by, constant)?;
        Some(spare)
    }

    /// Removes the two inequalities without other unknowns.
    fn take_bounds(&mut self, at: usize) -> [Option<i128>; 2] {
        let bounds = std::mem::take(&mut self.bounds[at]);
        for (bound, times) in bounds.iter().zip(&mut self.times[at]) {
            self.bounded -= usize::from(bound.is_some());
            *times -= i64::from(bound.is_some());
        }
        bounds
    }

    /// Sets the spare row to `a` times one row plus `b` times another. `None` if an entry overflows.
    fn combine(&mut self, (x, a): (u16, i64), (y, b): (u16, i64)) -> Option<u16> {
        let spare = self.spare()?;
        let places = [usize::from(spare), usize::from(x), usize::from(y)];
        let Ok([row, x, y]) = self.rows.get_disjoint_mut(places) else { return None };
        fuel::charge(COMBINED + COLUMN * u64::from((x.used | y.used).count_ones()));
        row.combine(x, a, y, b)?;
        Some(spare)
    }

    /// Removes the inequalities with this unknown, from which it is then eliminated.
    fn take_out(&mut self, at: usize) -> Vec<Counted> {
        let mut with = std::mem::take(&mut self.with);
        with.clear();
        fuel::charge_each(self.less.len() + self.columns.len(), 1);
        // Mostly, the unknown is only in inequalities without others.
        let bounds = self.bounds[at].iter().map(|bound| i64::from(bound.is_some())).sum::<i64>();
        if self.times[at].iter().sum::<i64>() == bounds {
            return with;
        }
        let mut kept = 0;
        for i in 0..self.less.len() {
            let row = self.less[i];
            if row.used >> at & 1 != 0 {
                self.count(row, -1);
                with.push(row);
            } else {
                self.less[kept] = row;
                kept += 1;
            }
        }
        self.less.truncate(kept);
        with
    }

    fn taken_out(&mut self, with: Vec<Counted>) {
        self.free.extend(with.iter().map(|r| r.place));
        self.with = with;
    }

    /// The coefficient of the unknown in an active row.
    fn times_of(&self, place: u16, at: usize) -> i64 {
        self.rows[usize::from(place)].of(at)
    }

    /// Adds an equation without an unknown that can be substituted, as two inequalities. Returns whether one of them is
    /// a contradiction; `None` if there are too many rows.
    fn add_both(&mut self, place: u16) -> Option<bool> {
        let equation = self.rows[usize::from(place)];
        for negative in [false, true] {
            let spare = self.spare()?;
            let row = &mut self.rows[usize::from(spare)];
            *row = equation;
            if negative {
                row.negate();
            }
            if self.add_row(spare) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Eliminates an unknown from all other rows by an equation in which its coefficient is `c`, 1 or -1. Returns
    /// whether they contradict each other; `None` if a number is too large.
    fn replace(&mut self, at: usize, e: u16, c: i64) -> Option<bool> {
        for i in 0..self.equal.len() {
            let other = self.equal[i];
            let by = self.times_of(other, at);
            if by != 0 {
                self.equal[i] = self.combine((other, 1), (e, -by * c))?;
                self.free.pop();
                self.free.push(other);
            }
        }
        let with = self.take_out(at);
        let contradict = self.replace_in(&with, at, e, c);
        self.taken_out(with);
        if contradict != Some(false) {
            return contradict;
        }
        for (bound, by) in self.take_bounds(at).into_iter().zip([-1, 1]) {
            let Some(constant) = bound else { continue };
            let row = self.without(e, at, -by * c, (constant, 1))?;
            if self.add_row(row) {
                return Some(true);
            }
        }
        self.free.push(e);
        Some(false)
    }

    fn replace_in(&mut self, with: &[Counted], at: usize, e: u16, c: i64) -> Option<bool> {
        for other in with {
            let by = self.times_of(other.place, at);
            let row = self.combine((other.place, 1), (e, -by * c))?;
            if self.add_row(row) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Describes everything that the answers depend on, in few words: rows with other names in the same order have the
    /// same description. `false` if that takes too many words.
    pub(super) fn describe(&self, words: &mut Vec<u64>) -> bool {
        let columns = &self.columns;
        // If two unknowns cost the same, the one with the smaller name is eliminated first.
        let rank = |at: usize| columns.iter().map(|id| u64::from(*id < columns[at])).sum::<u64>();
        let ranks = |from: usize| (from..columns.len().min(from + 12)).fold(0, |all, at| all << 5 | rank(at));
        let present = self.bounds[..columns.len()]
            .iter()
            .fold(0, |all, [least, most]| all << 2 | u64::from(least.is_some()) | u64::from(most.is_some()) << 1);
        words.extend([ranks(0), ranks(12), (columns.len() + (self.equal.len() << 8)) as u64, present]);
        for [least, most] in &self.bounds[..columns.len()] {
            for constant in [least, most].into_iter().flatten() {
                let Ok(short) = i64::try_from(*constant) else { return false };
                words.push(short.cast_unsigned());
            }
        }
        for place in self.equal.iter().copied().chain(self.less.iter().map(|r| r.place)) {
            let row = &self.rows[usize::from(place)];
            let Ok(constant) = i64::try_from(row.constant) else { return false };
            words.extend([row.used.into(), constant.cast_unsigned()]);
            for at in columns_of(row.used) {
                words.push(row.by[at].cast_unsigned());
            }
        }
        true
    }

    /// The column of an unknown, if they have it.
    pub(super) fn place_of(&self, id: u32) -> Option<usize> {
        self.columns.iter().position(|x| *x == id)
    }

    /// The range of this unknown after all others have been eliminated. `None` if elimination gave up.
    pub(super) fn range(&mut self, id: u32) -> Option<Range> {
        let of = self.columns.iter().position(|x| *x == id)?;
        while let Some(e) = self.equal.pop() {
            let row = &self.rows[usize::from(e)];
            let single = columns_of(row.used).find(|at| *at != of && row.by[*at].abs() == 1);
            let contradict = match single {
                Some(at) => self.replace(at, e, self.times_of(e, at))?,
                None => self.add_both(e)?,
            };
            if contradict {
                return None;
            }
        }
        while let Some(at) = self.next_unknown(Some(of)) {
            if self.eliminate(at)? {
                return None;
            }
        }
        // No other unknown is left: constant - V <= 0, and V + constant <= 0.
        let [least, most] = self.bounds[of];
        Some((least, most.map(|constant| -constant)))
    }

    /// The unknown whose elimination makes the fewest new inequalities.
    fn next_unknown(&self, but: Option<usize>) -> Option<usize> {
        let of = |at: usize| self.times[at];
        let mut least = None;
        for (at, id) in self.columns.iter().enumerate() {
            let [below, above] = of(at);
            if (below | above) == 0 || Some(at) == but {
                continue;
            }
            let cost = (above * below - (above + below), *id);
            if least.is_none_or(|(least, _)| cost < least) {
                least = Some((cost, at));
            }
        }
        least.map(|(_, at)| at)
    }

    /// Eliminates an unknown from the inequalities. Returns whether they contradict each other; `None` if there are too
    /// many.
    fn eliminate(&mut self, at: usize) -> Option<bool> {
        let with = self.take_out(at);
        let contradict = self.eliminate_from(&with, at);
        self.taken_out(with);
        if contradict != Some(false) {
            return contradict;
        }
        (self.less.len() + self.bounded <= MAX_ROWS).then_some(false)
    }

    fn eliminate_from(&mut self, with: &[Counted], at: usize) -> Option<bool> {
        for a in with {
            let above = self.times_of(a.place, at);
            for b in with.iter().filter(|_| above > 0) {
                let below = self.times_of(b.place, at);
                if below < 0 {
                    let row = self.combine((a.place, -below), (b.place, above))?;
                    if self.add_row(row) {
                        return Some(true);
                    }
                }
            }
        }
        let bounds = self.take_bounds(at);
        for a in with {
            let by = self.times_of(a.place, at);
            // A lower bound is combined with positive coefficients, an upper bound with negative ones.
            let Some(constant) = bounds[usize::from(by < 0)] else { continue };
            let row = self.without(a.place, at, 1, (constant, i64::try_from(by.unsigned_abs()).ok()?))?;
            if self.add_row(row) {
                return Some(true);
            }
        }
        Some(matches!(bounds, [Some(least), Some(most)] if least + most > 0))
    }

    /// Eliminates one unknown after the other. Returns whether the rows contradict each other; `None` if elimination
    /// gave up.
    pub(super) fn contradict(&mut self) -> Option<bool> {
        // An equation with a coefficient of 1 or -1 is solved for that unknown.
        while let Some(e) = self.equal.pop() {
            let row = &self.rows[usize::from(e)];
            if row.used == 0 {
                if row.constant != 0 {
                    return Some(true);
                }
                continue;
            }
            let single = columns_of(row.used).filter(|at| row.by[*at].abs() == 1);
            let contradict = match single.min_by_key(|at| self.columns.get(*at)) {
                Some(at) => self.replace(at, e, self.times_of(e, at))?,
                None => self.add_both(e)?,
            };
            if contradict {
                return Some(true);
            }
        }
        while let Some(at) = self.next_unknown(None) {
            if self.eliminate(at)? {
                return Some(true);
            }
        }
        Some(false)
    }
}
