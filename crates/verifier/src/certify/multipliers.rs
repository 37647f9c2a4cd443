//! Multipliers by which rows show that a form is not negative.
//!
//! Problem: for a claim `c`, find `m_i >= 0` such that `c - sum m_i * row_i` is above -1 wherever the names are within
//! their bounds (Farkas). Approach: goal-directed elimination of few rows first (`eliminate`), which decides most
//! questions, and tightens what is left where its coefficients have a common divisor (cutting planes: Chvatal 1973).
//! Then the primal simplex method (Dantzig 1951) on the linear program that has the multipliers as unknowns: the
//! greatest least value over the box. Names have bounds, so the corner of the box where the claim is least is a first
//! basis, and no phase one is needed. The tableau holds integers over one denominator (Edmonds 1967; Bareiss 1968), so
//! the arithmetic is exact; an overflow of 128 bits counts as no answer.

use std::collections::BTreeMap;

use bpf_verifier_core::{Combination, Form, Knowledge, Name, Step};

use crate::fuel;

/// Units of fuel for a row that is looked at, for two rows that are combined, and for a number of a tableau.
const LOOK: u64 = 10;
const COMBINE: u64 = 200;
const CELL: u64 = 10;

/// The most rows in one combination of `eliminate`.
const DEPTH: usize = 4;
/// The most combinations that `eliminate` tries.
const TRIES: usize = 40;
/// The most names and rows of a linear program.
const MAX_NAMES: usize = 40;
const MAX_ROWS: usize = 96;
/// The most tightened claims that are solved.
const MAX_CUTS: usize = 4;
/// The most pivots.
const PIVOTS: usize = 120;

/// Multipliers for the claim, if some are found.
pub(super) fn find(known: &Knowledge, claim: &Form) -> Option<Combination> {
    if known.rows().is_empty() || fuel::is_spent() {
        return None;
    }
    let mut tries = TRIES;
    let mut search = Search { known, steps: vec![Step { scale: 1, rows: Vec::new() }], cuts: Vec::new() };
    if search.eliminate(claim, DEPTH, &mut tries).is_some() {
        return Some(Combination { steps: search.steps });
    }
    let solved = |claim: &Form| {
        let (names, rows) = relevant(known, claim)?;
        Tableau::new(known, claim, &names, rows)?.solve()
    };
    let proves = |found: &Combination| known.proves(claim, found);
    solved(claim).map(|step| Combination { steps: vec![step] }).filter(proves).or_else(|| {
        let cuts = std::mem::take(&mut search.cuts);
        cuts.into_iter().take(MAX_CUTS).find_map(|(mut steps, claim)| {
            steps.push(solved(&claim)?);
            Some(Combination { steps }).filter(proves)
        })
    })
}

/// Whether the form is not negative, by bounds or by multipliers.
pub(super) fn holds(known: &Knowledge, claim: &Form) -> bool {
    known.is_not_negative(claim) || find(known, claim).is_some()
}

/// Elimination of the names that make a claim negative.
struct Search<'a> {
    known: &'a Knowledge,
    /// The steps so far.
    steps: Vec<Step>,
    /// Claims that remained after steps and could be tightened, with these steps.
    cuts: Vec<(Vec<Step>, Form)>,
}

impl Search<'_> {
    /// `rest` is the remainder of the last step so far.
    fn eliminate(&mut self, rest: &Form, depth: usize, tries: &mut usize) -> Option<()> {
        let scale = self.steps.last()?.scale;
        let (min, max) = self.known.bounds(rest)?;
        if min > -scale {
            return Some(());
        }
        if depth == 0 || max < 0 {
            return None;
        }
        // If all coefficients have a common divisor, the remainder becomes the claim of another step.
        let whole = rest.shifted(scale.checked_sub(1)?)?;
        let tight = whole.tightened();
        if tight.terms() != whole.terms() {
            self.cuts.push((self.steps.clone(), tight.clone()));
            self.steps.push(Step { scale: 1, rows: Vec::new() });
            if self.eliminate(&tight, depth, tries).is_some() {
                return Some(());
            }
            self.steps.pop();
            return None;
        }
        fuel::charge_each(rest.terms().len() * self.known.rows().len(), LOOK);
        for (n, a) in rest.terms() {
            for (i, row) in (0u32..).zip(self.known.rows()) {
                let Some((_, b)) = row.terms().iter().find(|(m, _)| m == n) else { continue };
                let used = &self.steps.last()?.rows;
                if (*a > 0) != (*b > 0) || used.iter().any(|(j, _)| *j == i) {
                    continue;
                }
                *tries = tries.checked_sub(1)?;
                fuel::charge(COMBINE);
                // n cancels in |b| * rest - |a| * row.
                let divisor = gcd(a.unsigned_abs(), b.unsigned_abs());
                let of_rest = i128::try_from(b.unsigned_abs() / divisor).ok()?;
                let of_row = i128::try_from(a.unsigned_abs() / divisor).ok()?;
                let Some(next) = rest.times(of_rest).and_then(|rest| rest.plus(row, of_row.checked_neg()?)) else {
                    continue;
                };
                let before = self.steps.clone();
                let step = self.steps.last_mut()?;
                step.rows.iter_mut().for_each(|(_, times)| *times = times.saturating_mul(of_rest));
                step.rows.push((i, of_row));
                step.scale = scale.saturating_mul(of_rest);
                if self.eliminate(&next, depth - 1, tries).is_some() {
                    return Some(());
                }
                self.steps = before;
            }
        }
        None
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The names that rows connect with those of the claim, nearest first, and the rows over these; `None` without rows.
fn relevant(known: &Knowledge, claim: &Form) -> Option<(BTreeMap<Name, usize>, Vec<u32>)> {
    let mut names: BTreeMap<Name, usize> = BTreeMap::new();
    for (n, _) in claim.terms() {
        let next = names.len();
        names.entry(*n).or_insert(next);
    }
    let mut rows: Vec<u32> = Vec::new();
    let mut taken = vec![false; known.rows().len()];
    loop {
        fuel::charge_each(known.rows().len(), LOOK);
        let before = rows.len();
        let reached = names.clone();
        for (i, row) in (0u32..).zip(known.rows()) {
            let is_new = !taken[i as usize] && row.terms().iter().any(|(n, _)| reached.contains_key(n));
            if !is_new || rows.len() == MAX_ROWS {
                continue;
            }
            let fresh = row.terms().iter().filter(|(n, _)| !names.contains_key(n)).count();
            if names.len() + fresh > MAX_NAMES {
                continue;
            }
            for (n, _) in row.terms() {
                let next = names.len();
                names.entry(*n).or_insert(next);
            }
            taken[i as usize] = true;
            rows.push(i);
        }
        if rows.len() == before {
            return (!rows.is_empty()).then_some((names, rows));
        }
    }
}

/// An unknown of the linear program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Var {
    /// The multiplier of a row.
    Row(usize),
    /// The rest of a name's coefficient where that rest is not negative: it counts with the name's lower bound.
    Low(usize),
    /// The negated rest where that rest is not positive: it counts with the upper bound.
    High(usize),
}

/// The simplex tableau. For each name `x` it has an equation `low_x - high_x + sum m_i * row_i[x] = claim[x]`.
struct Tableau {
    rows: Vec<u32>,
    /// The bounds of each name.
    bounds: Vec<(i128, i128)>,
    /// For each equation: coefficients of the multipliers, then those of `low` by name (of `high` they are the negated
    /// ones), then the right side. The last line has the reduced costs, and on the right the negated least value.
    lines: Vec<Vec<i128>>,
    basis: Vec<Var>,
    denominator: i128,
}

impl Tableau {
    fn new(known: &Knowledge, claim: &Form, names: &BTreeMap<Name, usize>, rows: Vec<u32>) -> Option<Tableau> {
        let width = rows.len() + names.len() + 1;
        fuel::charge_each(width * (names.len() + 1), CELL);
        let mut lines = vec![vec![0i128; width]; names.len() + 1];
        let mut bounds = vec![(0, 0); names.len()];
        for (n, x) in names {
            bounds[*x] = known.names().get(n.index())?.bounds();
        }
        for (j, row) in rows.iter().enumerate() {
            for (n, a) in known.rows().get(*row as usize)?.terms() {
                lines[*names.get(n)?][j] = *a;
            }
        }
        for (n, a) in claim.terms() {
            lines[*names.get(n)?][width - 1] = *a;
        }
        // The corner at which the claim is least.
        let mut basis = Vec::new();
        let mut corner = Vec::new();
        let mut least = claim.offset();
        for x in 0..names.len() {
            lines[x][rows.len() + x] = 1;
            let right = lines[x][width - 1];
            let at = if right >= 0 { bounds[x].0 } else { bounds[x].1 };
            least = least.checked_add(right.checked_mul(at)?)?;
            corner.push(at);
            if right >= 0 {
                basis.push(Var::Low(x));
            } else {
                // The greatest coefficient of a form is 2^127 - 1, the least is -2^127, which has no negative.
                for a in &mut lines[x] {
                    *a = a.checked_neg()?;
                }
                basis.push(Var::High(x));
            }
        }
        let last = names.len();
        for (j, row) in rows.iter().enumerate() {
            let row = known.rows().get(*row as usize)?;
            let mut at_corner = row.offset();
            for (n, a) in row.terms() {
                at_corner = at_corner.checked_add(a.checked_mul(corner[*names.get(n)?])?)?;
            }
            lines[last][j] = at_corner.checked_neg()?;
        }
        for x in 0..last {
            lines[last][rows.len() + x] = bounds[x].0.checked_sub(corner[x])?;
        }
        lines[last][width - 1] = least.checked_neg()?;
        Some(Tableau { rows, bounds, lines, basis, denominator: 1 })
    }

    fn right(&self) -> usize {
        self.rows.len() + self.bounds.len()
    }

    /// The coefficient of an unknown in a line; `None` on overflow.
    fn at(&self, line: usize, var: Var) -> Option<i128> {
        match var {
            Var::Row(j) => Some(self.lines[line][j]),
            Var::Low(x) => Some(self.lines[line][self.rows.len() + x]),
            Var::High(x) => self.lines[line][self.rows.len() + x].checked_neg(),
        }
    }

    /// How much the least value grows with an unknown.
    fn gain(&self, var: Var) -> Option<i128> {
        let cost = self.at(self.basis.len(), var)?;
        match var {
            Var::Row(_) | Var::Low(_) => Some(cost),
            Var::High(x) => {
                let (min, max) = self.bounds[x];
                cost.checked_add(min.checked_sub(max)?.checked_mul(self.denominator)?)
            }
        }
    }

    fn solve(mut self) -> Option<Step> {
        let last = self.basis.len();
        let right = self.right();
        for round in 0..PIVOTS {
            // The least value is `-lines[last][right] / denominator`.
            if self.lines[last][right] < self.denominator {
                return self.combination(None);
            }
            let entering = self.entering(round > PIVOTS / 2)?;
            let mut leaving: Option<usize> = None;
            for line in 0..last {
                let a = self.at(line, entering)?;
                if a <= 0 {
                    continue;
                }
                let is_less = match leaving {
                    None => true,
                    Some(other) => {
                        let (mine, others) = (
                            self.lines[line][right].checked_mul(self.at(other, entering)?)?,
                            self.lines[other][right].checked_mul(a)?,
                        );
                        mine < others
                    }
                };
                if is_less {
                    leaving = Some(line);
                }
            }
            match leaving {
                Some(line) => self.pivot(line, entering)?,
                // The rows contradict each other, so any claim follows.
                None => return self.combination(Some(entering)),
            }
        }
        None
    }

    /// The unknown with the greatest gain, or with `first` the first one that has a gain (Bland 1977), which ends
    /// cycles.
    fn entering(&self, first: bool) -> Option<Var> {
        let vars = (0..self.rows.len()).map(Var::Row);
        let vars = vars.chain((0..self.bounds.len()).flat_map(|x| [Var::Low(x), Var::High(x)]));
        let mut best: Option<(i128, Var)> = None;
        for var in vars {
            let gain = self.gain(var)?;
            if gain > 0 && !self.basis.contains(&var) && best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, var));
                if first {
                    break;
                }
            }
        }
        best.map(|(_, var)| var)
    }

    fn pivot(&mut self, line: usize, entering: Var) -> Option<()> {
        let pivot = self.at(line, entering)?;
        let last = self.basis.len();
        fuel::charge_each(self.lines.len() * (self.right() + 1), CELL);
        let factors: Option<Vec<i128>> =
            (0..=last).map(|i| if i == last { self.gain(entering) } else { self.at(i, entering) }).collect();
        let factors = factors?;
        let (by, old) = (self.lines[line].clone(), self.denominator);
        // The line of costs is stated for `low`: where `high` enters, its gain differs from the negated cost.
        for (i, factor) in factors.into_iter().enumerate() {
            if i == line || factor == 0 && pivot == old {
                continue;
            }
            for (a, b) in self.lines[i].iter_mut().zip(&by) {
                if *a == 0 && (*b == 0 || factor == 0) {
                    continue;
                }
                let scaled = a.checked_mul(pivot)?.checked_sub(factor.checked_mul(*b)?)?;
                *a = scaled.checked_div(old)?;
            }
        }
        self.denominator = pivot;
        self.basis[line] = entering;
        Some(())
    }

    /// The multipliers of the basis, moved along a ray if one is unbounded.
    fn combination(&self, ray: Option<Var>) -> Option<Step> {
        let (last, right) = (self.basis.len(), self.right());
        let times = match ray {
            None => 0,
            Some(var) => {
                let missing = self.lines[last][right].checked_sub(self.denominator)?;
                missing.checked_div_euclid(self.gain(var)?)?.checked_add(1)?
            }
        };
        let mut rows = Vec::new();
        for (line, var) in self.basis.iter().enumerate() {
            let Var::Row(j) = *var else { continue };
            let moved = ray.map_or(Some(0), |ray| self.at(line, ray)?.checked_mul(times))?;
            rows.push((self.rows[j], self.lines[line][right].checked_sub(moved)?));
        }
        if let Some(Var::Row(j)) = ray {
            rows.push((self.rows[j], self.denominator.checked_mul(times)?));
        }
        rows.retain(|(_, times)| *times != 0);
        rows.sort_unstable();
        Some(Step { scale: self.denominator, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_isa::Program;
    use bpf_verifier_core::{Advice, ContextLayout, Env, Guide, Helpers, Point, explore};

    /// Asks for multipliers for a claim at each comparison.
    struct Asks {
        claim: Form,
        asked: usize,
    }

    impl Guide for Asks {
        fn advise(&mut self, point: &Point<'_>) -> Advice {
            let known = point.state.known();
            if !known.rows().is_empty() && self.claim.is_over(known.names().len()) {
                self.asked += 1;
                let found = find(known, &self.claim);
                assert!(found.is_none_or(|found| known.proves(&self.claim, &found)));
            }
            Advice::Step
        }
        fn prove(&mut self, _: &Point<'_>, _: &Form) -> Option<Combination> {
            None
        }
    }

    /// A truth value with the least coefficient, which has no negative: a form may have it after its names are replaced
    /// by multiples of 2^63 in a row with multiples of 2^63.
    #[test]
    fn the_least_coefficient_overflows_nothing() {
        let text = "if r2 < 9 goto out\nr3 = *(u8 *)(r1 + 0)\nr3 &= 1\nr4 = *(u8 *)(r1 + 1)\nif r3 > r4 goto out\n\
                    out: r0 = 0\nexit";
        let program = Program::new(bpf_isa::assemble(text).expect("a program")).expect("valid");
        let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
        let env = Env::new(&context, &helpers);
        let mut asked = 0;
        for (name, coefficient) in (0..6).flat_map(|n| [i128::MIN, i128::MAX, -1].map(|a| (Name(n), a))) {
            for offset in [i128::MIN, i128::MAX, 0] {
                let claim = Form::sum([(name, coefficient)], offset).expect("a form");
                let mut guide = Asks { claim, asked: 0 };
                explore(&program, &env, None, &mut guide, 1 << 12).expect("a safe program");
                asked += guide.asked;
            }
        }
        assert!(asked > 0);
    }
}
