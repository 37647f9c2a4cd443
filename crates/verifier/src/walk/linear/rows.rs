//! Rows of coefficients, from which unknowns are eliminated one after the other.
//!
//! Problem: questions are many and small, so memory that each row allocates costs more than what is asked. Approach: a
//! row has a coefficient for each of a few columns, in place; the columns are the unknowns in the order in which they
//! came. What does not fit (an unknown too many, a number too large) is left out, and what is left out proves nothing.
//! The same memory serves for one attempt at an answer after the other.
//!
//! Invariants: each row says `sum of coefficient * V + constant <= 0`, or `= 0` of an equation, and follows from those
//! that were added. Coefficients are at most [`MAX_COEFFICIENT`] and constants [`MAX_NUMBER`], either way.

use super::MAX_NUMBER;

/// Unknowns of the rows.
const COLUMNS: usize = 20;
/// Rows at any time.
const MAX_ROWS: usize = 44;
/// So the negative of each is one, too.
const MAX_COEFFICIENT: i128 = 1 << 62;
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

#[derive(Clone, Copy, Debug)]
struct Row {
    by: [i64; COLUMNS],
    constant: i128,
    /// Of the coefficients, to compare them by.
    key: u64,
}

/// Rows, of which some are equations.
#[derive(Debug, Default)]
pub(super) struct Rows {
    columns: Vec<u32>,
    equal: Vec<Row>,
    less: Vec<Row>,
    /// Those that an unknown is being taken out of.
    with: Vec<Row>,
}

/// A product that overflows is none. Mostly, both are short.
fn times(constant: i128, by: i64) -> Option<i128> {
    match i64::try_from(constant) {
        Ok(short) => Some(i128::from(short) * i128::from(by)),
        Err(_) => constant.checked_mul(by.into()),
    }
}

impl Row {
    /// `a` times this row plus `b` times the other, in the first columns. `None` if an entry overflows.
    fn combined(&self, a: i64, other: &Row, b: i64, columns: usize) -> Option<Row> {
        let mut out = Row { by: [0; COLUMNS], constant: 0, key: 0 };
        let mut over = false;
        let pairs = self.by.iter().zip(&other.by);
        for (out, (x, y)) in out.by.iter_mut().zip(pairs).take(columns) {
            let ((x, x_over), (y, y_over)) = (x.overflowing_mul(a), y.overflowing_mul(b));
            let (sum, sum_over) = x.overflowing_add(y);
            over |= x_over | y_over | sum_over | (i128::from(sum).abs() > MAX_COEFFICIENT);
            *out = sum;
        }
        if over {
            return None;
        }
        let (x, y) = (times(self.constant, a)?, times(other.constant, b)?);
        out.constant = x.checked_add(y).filter(|c| c.unsigned_abs() <= MAX_NUMBER)?;
        Some(out)
    }

    /// Divides by what all coefficients have in common. Of integers, the constant may be rounded up.
    fn reduce(&mut self, columns: usize) {
        let gcd = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let mut common = 0;
        for c in self.by.iter().take(columns).filter(|c| **c != 0) {
            common = gcd(common, c.unsigned_abs());
            if common == 1 {
                return;
            }
        }
        if let (true, Ok(common)) = (common > 1, i64::try_from(common)) {
            self.by.iter_mut().take(columns).for_each(|c| *c /= common);
            self.constant = -(-self.constant).div_euclid(common.into());
        }
    }
}

impl Rows {
    /// Empty, for one question after the other.
    pub(super) fn new() -> Rows {
        let (equal, with) = (Vec::new(), Vec::new());
        Rows { columns: Vec::with_capacity(COLUMNS), equal, less: Vec::with_capacity(MAX_ROWS / 2), with }
    }

    /// Empties them for the next attempt.
    pub(super) fn clear(&mut self) {
        self.columns.clear();
        self.equal.clear();
        self.less.clear();
        self.with.clear();
    }

    /// The terms as a row. `None` if they do not fit.
    fn row(&mut self, terms: &[(u32, i128)], constant: i128) -> Option<Row> {
        let mut row = Row { by: [0; COLUMNS], constant, key: 0 };
        if constant.unsigned_abs() > MAX_NUMBER {
            return None;
        }
        for &(id, c) in terms {
            let at = match self.columns.iter().position(|x| *x == id) {
                Some(at) => at,
                None if self.columns.len() < COLUMNS => {
                    self.columns.push(id);
                    self.columns.len() - 1
                }
                None => return None,
            };
            let c = c.checked_add(row.by[at].into()).filter(|c| c.abs() <= MAX_COEFFICIENT)?;
            row.by[at] = i64::try_from(c).ok()?;
        }
        Some(row)
    }

    /// A sum that is at most 0. `true` if it cannot be.
    pub(super) fn add(&mut self, terms: &[(u32, i128)], constant: i128) -> bool {
        self.row(terms, constant).is_some_and(|row| self.add_row(row))
    }

    /// A sum that is 0.
    pub(super) fn add_equation(&mut self, terms: &[(u32, i128)], constant: i128) {
        if let Some(row) = self.row(terms, constant) {
            self.equal.push(row);
        }
    }

    fn add_row(&mut self, mut row: Row) -> bool {
        let columns = self.columns.len();
        row.reduce(columns);
        // Of different rows it mostly differs.
        let hashed = row.by.iter().zip(&HASHED_BY).take(columns);
        row.key = hashed.fold(0, |key, (c, by)| key.wrapping_add(c.cast_unsigned().wrapping_mul(*by)));
        if row.by.iter().take(columns).all(|c| *c == 0) {
            return row.constant > 0;
        }
        match self.less.iter_mut().find(|r| r.key == row.key && r.by == row.by) {
            Some(r) => r.constant = r.constant.max(row.constant),
            None => self.less.push(row),
        }
        false
    }

    /// The most that this unknown is, when all others have been taken out of them; `None` if nothing says so, or if
    /// that was not found out.
    pub(super) fn most(&mut self, id: u32) -> Option<i128> {
        let columns = self.columns.len();
        let of = self.columns.iter().position(|x| *x == id)?;
        while let Some(e) = self.equal.pop() {
            let single = e.by.iter().enumerate().find(|(at, c)| *at != of && c.abs() == 1);
            let Some((at, c)) = single.map(|(at, c)| (at, *c)) else {
                let negative = Row { by: e.by.map(|c| -c), constant: -e.constant, key: 0 };
                if self.add_row(e) || self.add_row(negative) {
                    return None;
                }
                continue;
            };
            for other in self.equal.iter_mut().filter(|other| other.by[at] != 0) {
                *other = other.combined(1, &e, -other.by[at] * c, columns)?;
            }
            if self.replace(at, &e, c, columns)? {
                return None;
            }
        }
        while let Some(at) = self.next_unknown(columns, Some(of)) {
            if self.eliminate(at, columns)? {
                return None;
            }
        }
        // c * V + constant <= 0.
        self.less.iter().filter(|r| r.by[of] > 0).map(|r| (-r.constant).div_euclid(r.by[of].into())).min()
    }

    /// The unknown that is taken out of the inequalities with the fewest new ones.
    fn next_unknown(&self, columns: usize, but: Option<usize>) -> Option<usize> {
        let (mut above, mut below) = ([0i64; COLUMNS], [0i64; COLUMNS]);
        for row in &self.less {
            for (at, c) in row.by.iter().enumerate().take(columns) {
                above[at] += i64::from(*c > 0);
                below[at] += i64::from(*c < 0);
            }
        }
        let used = (0..columns).filter(|at| above[*at] + below[*at] > 0 && Some(*at) != but);
        let cost = |at: &usize| (above[*at] * below[*at] - (above[*at] + below[*at]), self.columns.get(*at).copied());
        used.min_by_key(cost)
    }

    /// Takes an unknown out of the inequalities that an equation has `c` times, once with either sign. Whether they
    /// contradict each other; `None` if a number is too large.
    fn replace(&mut self, at: usize, e: &Row, c: i64, columns: usize) -> Option<bool> {
        let mut with = std::mem::take(&mut self.with);
        with.clear();
        with.extend(self.less.extract_if(.., |r| r.by[at] != 0));
        for other in &with {
            let row = other.combined(1, e, -other.by[at] * c, columns)?;
            if self.add_row(row) {
                return Some(true);
            }
        }
        self.with = with;
        Some(false)
    }

    /// Takes an unknown out of the inequalities. Whether they contradict each other; `None` if there are too many.
    fn eliminate(&mut self, at: usize, columns: usize) -> Option<bool> {
        let mut with = std::mem::take(&mut self.with);
        with.clear();
        with.extend(self.less.extract_if(.., |r| r.by[at] != 0));
        for a in with.iter().filter(|r| r.by[at] > 0) {
            for b in with.iter().filter(|r| r.by[at] < 0) {
                let row = a.combined(-b.by[at], b, a.by[at], columns)?;
                if self.add_row(row) {
                    return Some(true);
                }
            }
        }
        self.with = with;
        (self.less.len() <= MAX_ROWS).then_some(false)
    }

    /// Takes one unknown after the other out of them. Whether they contradict each other; `None` if that was not found
    /// out.
    pub(super) fn contradict(&mut self) -> Option<bool> {
        let columns = self.columns.len();
        // An equation with an unknown that it has once says what that is.
        while let Some(e) = self.equal.pop() {
            if e.by.iter().all(|c| *c == 0) {
                if e.constant != 0 {
                    return Some(true);
                }
                continue;
            }
            let single = e.by.iter().enumerate().filter(|(_, c)| c.abs() == 1);
            let Some((at, c)) = single.min_by_key(|(at, _)| self.columns.get(*at)).map(|(at, c)| (at, *c)) else {
                let negative = Row { by: e.by.map(|c| -c), constant: -e.constant, key: 0 };
                if self.add_row(e) || self.add_row(negative) {
                    return Some(true);
                }
                continue;
            };
            for other in self.equal.iter_mut().filter(|other| other.by[at] != 0) {
                *other = other.combined(1, &e, -other.by[at] * c, columns)?;
            }
            if self.replace(at, &e, c, columns)? {
                return Some(true);
            }
        }
        while let Some(at) = self.next_unknown(columns, None) {
            if self.eliminate(at, columns)? {
                return Some(true);
            }
        }
        Some(false)
    }
}
