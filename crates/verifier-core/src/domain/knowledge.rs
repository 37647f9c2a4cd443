//! Knowledge of the names: for each name the set in which its machine word lies, and linear inequalities between names.
//!
//! Problem: code that may write down a fact may write down a wrong one. Approach: as in LCF (Gordon, Milner and
//! Wadsworth, 1979), a fact is a value that only the rules of this file make; the fields are private. The rules:
//!
//! * `name`: a fresh name for an integer that is proven to be in a set (the result of a proven operation on numbers).
//! * `learn`: a row `form >= 0`, tightened by the greatest common divisor of its coefficients. Its premise is the
//!   outcome of a comparison on this path, the definition of a name, or one case of a split whose other case is walked,
//!   too. Bounds follow from rows by interval propagation (HC4: Benhamou et al., ICLP 1999).
//! * `meet`: a set that the word of a name is proven to lie in, with the same premises.
//! * `proves`: Farkas' lemma with integer rounding (Schrijver 1986, chapters 7 and 23). For `k > 0` and multipliers
//!   `m_i >= 0`, `k * claim - sum m_i * row_i > -k` over the box of all names implies `claim > -1`, and therefore
//!   `claim >= 0`, since the claim is an integer. In a cutting-plane proof (Chvatal 1973), the inequality that remains
//!   after a step is tightened and becomes the claim of the next step. The caller brings the multipliers; the rule only
//!   adds up.
//!
//! Invariant: in every run that the state stands for, each name's value is in its set and each row is not negative. No
//! rule searches.

use bpf_isa::{AluOp, Width};

use super::form::{Form, Name};
use super::scalar::Scalar;
use crate::faults::planted;

/// The fact about one name: the set of its word, and whether the integer is the word's signed or unsigned value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The set that the 64-bit word is in.
    pub word: Scalar,
    /// Whether the name stands for the signed value.
    pub signed: bool,
}

impl Known {
    /// An integer from `min` to `max`, both of 64 bits unsigned, or both signed.
    pub fn range(min: i128, max: i128, signed: bool) -> Option<Known> {
        let word = match signed {
            true => Scalar::signed(i64::try_from(min).ok()?, i64::try_from(max).ok()?),
            false => Scalar::unsigned(u64::try_from(min).ok()?, u64::try_from(max).ok()?),
        };
        (min <= max).then_some(Known { word, signed })
    }

    /// The least and the greatest integer.
    pub fn bounds(&self) -> (i128, i128) {
        match self.signed {
            true => (self.word.smin().into(), self.word.smax().into()),
            false => (self.word.umin().into(), self.word.umax().into()),
        }
    }

    /// Whether the set is exactly the range of its bounds, so that no further bit is known.
    pub fn is_range(&self) -> bool {
        let (min, max) = self.bounds();
        Known::range(min, max, self.signed).is_some_and(|range| range == *self)
    }
}

/// A proof that a form is not negative; the head of the module states the rule. Each step but the last leaves a claim
/// for the next step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Combination {
    /// The steps of the proof, at least one.
    pub steps: Vec<Step>,
}

/// A step of a [`Combination`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The multiplier of the claim, above 0.
    pub scale: i128,
    /// Rows by index, each with its multiplier, which is at least 0.
    pub rows: Vec<(u32, i128)>,
}

impl Combination {
    /// The combination of one step.
    pub fn of(scale: i128, rows: Vec<(u32, i128)>) -> Combination {
        Combination { steps: vec![Step { scale, rows }] }
    }

    /// The number of rows that the steps add up, and of the steps.
    pub(crate) fn size(&self) -> u64 {
        self.steps.iter().map(|step| 1 + step.rows.len() as u64).sum()
    }
}

/// The operation that defined a name. Its value is a function of the forms in it, so equal definitions have equal
/// values: global value numbering (Kildall, POPL 1973).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Definition {
    /// The residue of the form modulo 2^`bits`, signed or unsigned.
    Residue { form: Form, bits: u32, signed: bool },
    /// The form, which is not negative, divided by a number above 0, rounded down.
    Quotient { form: Form, by: i128 },
    /// The result word of an operation on the words of the two forms.
    Word { op: AluOp, width: Width, of: (Form, Form) },
}

/// The facts of one state.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    names: Vec<Known>,
    rows: Vec<Form>,
    /// The definitions noted in this segment, each with its value.
    defined: Vec<(Definition, Form)>,
}

/// Floor division by a number above 0.
fn floor(a: i128, by: i128) -> i128 {
    a.div_euclid(by)
}

impl Knowledge {
    /// The facts that an invariant assumes of its names. Each path that reaches the invariant must have proven them.
    pub(crate) fn assume(names: Vec<Known>, rows: Vec<Form>) -> Option<Knowledge> {
        let over = rows.iter().all(|row| row.is_over(names.len()));
        over.then(|| Knowledge { names, rows, defined: Vec::new() })
    }

    /// The facts about each name, by its index.
    pub fn names(&self) -> &[Known] {
        &self.names
    }

    /// The forms that are not negative.
    pub fn rows(&self) -> &[Form] {
        &self.rows
    }

    /// The bounds of a form by interval arithmetic over its names; `None` on overflow.
    pub fn bounds(&self, form: &Form) -> Option<(i128, i128)> {
        let (mut min, mut max) = (form.offset(), form.offset());
        for (n, a) in form.terms() {
            let (least, most) = self.names.get(n.index())?.bounds();
            let (x, y) = (a.checked_mul(least)?, a.checked_mul(most)?);
            min = min.checked_add(x.min(y))?;
            max = max.checked_add(x.max(y))?;
        }
        Some((min, max))
    }

    /// A set that contains the word of a form: the form's residue modulo 2^64.
    pub fn word(&self, form: &Form) -> Scalar {
        let low = |a: i128| Scalar::constant(low_word(a));
        let mut sum = low(form.offset());
        for (n, a) in form.terms() {
            let Some(known) = self.names.get(n.index()) else { return Scalar::UNKNOWN };
            let product = if *a == 1 { known.word } else { known.word.alu(AluOp::Mul, Width::W64, &low(*a)) };
            sum = sum.alu(AluOp::Add, Width::W64, &product);
        }
        // The interval of the integer sum may be tighter than the sum of the word sets.
        let range = self.bounds(form).and_then(|(min, max)| {
            let (signed, unsigned) = (Known::range(min, max, true), Known::range(min, max, false));
            signed.into_iter().chain(unsigned).try_fold(sum, |sum, known| sum.meet(&known.word))
        });
        range.unwrap_or(sum)
    }

    /// Whether the bounds alone show that the form is not negative.
    pub fn is_not_negative(&self, form: &Form) -> bool {
        self.bounds(form).is_some_and(|(min, _)| min >= 0)
    }

    /// Whether the combination proves that the claim is not negative.
    pub fn proves(&self, claim: &Form, by: &Combination) -> bool {
        let Some((last, first)) = by.steps.split_last() else { return false };
        let mut claim = claim.clone();
        for step in first {
            // The claim of the next step is `rest > -scale`: as integers, `rest + scale - 1 >= 0`.
            match self.rest(&claim, step).and_then(|rest| rest.shifted(step.scale.checked_sub(1)?)) {
                Some(rest) => claim = rest.tightened(),
                None => return false,
            }
        }
        let min = self.rest(&claim, last).and_then(|rest| self.bounds(&rest));
        min.is_some_and(|(min, _)| min > -last.scale)
    }

    /// `scale * claim` minus the multiplied rows of a step; `None` if a multiplier has the wrong sign, a row does not
    /// exist, or the sum overflows.
    fn rest(&self, claim: &Form, step: &Step) -> Option<Form> {
        let mut rest = (step.scale > 0).then(|| claim.times(step.scale))??;
        for (row, times) in &step.rows {
            let row = self.rows.get(*row as usize)?;
            rest = rest.plus_wide(row, (*times >= 0).then(|| times.checked_neg())??)?;
        }
        Some(rest)
    }

    /// A fresh name for an integer. The caller has proven that the integer is in the set.
    pub(crate) fn name(&mut self, known: Known) -> Option<Name> {
        let name = Name(u32::try_from(self.names.len()).ok()?);
        self.names.push(known);
        Some(name)
    }

    /// The value of a definition, if it has been noted.
    pub(crate) fn defined(&self, definition: &Definition) -> Option<&Form> {
        self.defined.iter().find(|(is, _)| is == definition).map(|(_, value)| value)
    }

    /// Every definition, oldest first.
    #[cfg(test)]
    pub(crate) fn all_defined(&self) -> &[(Definition, Form)] {
        &self.defined
    }

    /// The number of definitions.
    pub(crate) fn definitions(&self) -> usize {
        self.defined.len()
    }

    /// Notes that the definition has this value. The caller has proven it.
    pub(crate) fn define(&mut self, definition: Definition, value: Form) {
        self.defined.push((definition, value));
    }

    /// Intersects the set of a name's word with `word`. `false` if the intersection is found empty: no run is in this
    /// state.
    pub(crate) fn meet(&mut self, n: Name, word: &Scalar) -> bool {
        let Some(known) = self.names.get_mut(n.index()) else { return false };
        match known.word.meet(word) {
            Some(met) => {
                known.word = met;
                true
            }
            None => false,
        }
    }

    /// Intersects the set of a form's word with `word`. `false` if the intersection is found empty: no run is in this
    /// state.
    pub(crate) fn meet_word(&mut self, form: &Form, word: &Scalar) -> bool {
        // For the forms `n + c` and `c - n`, the set of the form's word determines the set of the name's word. For
        // other forms nothing is noted, which loses precision only.
        let c = Scalar::constant(low_word(form.offset()));
        match form.terms() {
            [(n, 1)] => self.meet(*n, &word.alu(AluOp::Sub, Width::W64, &c)),
            [(n, -1)] => self.meet(*n, &c.alu(AluOp::Sub, Width::W64, word)),
            _ => true,
        }
    }

    /// Notes that the form is not negative, and propagates bounds. `false` if this is found to be impossible: no run is
    /// in this state.
    pub(crate) fn learn(&mut self, form: Form) -> bool {
        let form = form.tightened();
        match self.bounds(&form) {
            Some((_, max)) if max < 0 => return false,
            Some((min, _)) if min >= 0 => return true,
            Some(_) | None => {}
        }
        if !self.propagate(&form) {
            return false;
        }
        // A row over one name is not stored: tightened, its coefficient is 1 or -1, and `propagate` has noted it as a
        // bound.
        if form.terms().len() > 1 && !self.rows.contains(&form) {
            self.rows.push(form);
        }
        let rows = std::mem::take(&mut self.rows);
        let possible = rows.iter().all(|row| self.propagate(row));
        self.rows = rows;
        possible
    }

    /// Tightens the bound of each name of a form that is not negative, by the bounds of the other names. `false` if a
    /// name has no value left. The work is linear in the names of the form, which fuel counts on.
    fn propagate(&mut self, form: &Form) -> bool {
        let Some((_, most)) = self.bounds(form) else { return true };
        for (n, a) in form.terms() {
            let Some(known) = self.names.get(n.index()) else { return false };
            let (mut min, mut max) = known.bounds();
            // A form has a name once, so what is learnt of the others leaves the share of this one in `most` as it was.
            let (Some(x), Some(y)) = (a.checked_mul(min), a.checked_mul(max)) else { continue };
            let Some(rest) = most.checked_sub(x.max(y)) else { continue };
            // a * n + rest >= 0, so a * n >= -rest. Mostly nothing is left to learn.
            if x.min(y).checked_add(rest).is_none_or(|least| least >= 0) {
                continue;
            }
            if *a > 0 {
                // n >= -rest / a, rounded up.
                min = min.max(floor(rest, *a).saturating_neg() + i128::from(planted!(BoundTooTight)));
            } else {
                let Some(times) = a.checked_neg() else { continue };
                max = max.min(floor(rest, times));
            }
            match Known::range(min, max, known.signed) {
                Some(range) => {
                    if !self.meet(*n, &range.word) {
                        return false;
                    }
                }
                None => return false,
            }
        }
        true
    }
}

/// The low 64 bits.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is meant")]
pub(crate) fn low_word(a: i128) -> u64 {
    a as u64
}

#[cfg(test)]
#[path = "knowledge_tests.rs"]
mod tests;
