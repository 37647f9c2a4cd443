//! What is known of names: for each the set its machine word lies in, and linear inequalities between them.
//!
//! Problem: whoever may write down a fact may write down a wrong one. Approach: as in LCF (Gordon, Milner and
//! Wadsworth, 1979), a fact is a value that only the rules of this file make; the fields are private. The rules:
//!
//! * `name`: a fresh name for an integer that is proven to be in a set (the result of a proven operation on numbers).
//! * `learn`: a row `form >= 0`, tightened by the divisor of its coefficients, on the way that a comparison took, or
//!   from the definition of a name, or in a case of which the other is walked, too. Bounds follow from it by interval
//!   propagation (HC4: Benhamou et al., ICLP 1999).
//! * `meet`: a set that the word of a name is proven to lie in, likewise.
//! * `proves`: Farkas' lemma with integer rounding (Schrijver 1986, chapters 7 and 23). For `k > 0` and multipliers
//!   `m_i >= 0`, from `k * claim - sum m_i * row_i > -k` over the box of all names follows `claim > -1`, and as it is
//!   an integer, `claim >= 0`. In a cutting-plane proof (Chvatal 1973) what is left of a step is tightened and is the
//!   claim of the next step. Whoever asks brings the multipliers; the rule only adds up.
//!
//! Invariants: whatever values the names have in a run that the state stands for, each is in its set, and each row is
//! not negative. No rule searches.

use bpf_isa::{AluOp, Width};

use super::form::{Form, Name};
use super::scalar::Scalar;

/// What is known of one name: its word, and whether the integer is the word's signed value or its unsigned one.
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

    /// Whether nothing is known but the bounds.
    pub fn is_range(&self) -> bool {
        let (min, max) = self.bounds();
        Known::range(min, max, self.signed).is_some_and(|range| range == *self)
    }
}

/// A proof that a form is not negative: see the head of the module. Each step but the last leaves a smaller claim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Combination {
    /// One step at least.
    pub steps: Vec<Step>,
}

/// A step of a [`Combination`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// How often the claim is in it, above 0.
    pub scale: i128,
    /// By row, how often that is in it, 0 at least.
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

/// The value of what a definition says is a function of the forms in it, so equal definitions have one value: global
/// value numbering (Kildall, POPL 1973).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Definition {
    /// The residue of the form modulo 2^`bits`, signed or unsigned.
    Residue { form: Form, bits: u32, signed: bool },
    /// The form, which is not negative, by the number above 0, rounded down.
    Quotient { form: Form, by: i128 },
    /// The word that the operation makes of the words of the forms.
    Word { op: AluOp, width: Width, of: (Form, Form) },
}

/// The facts of one state.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    names: Vec<Known>,
    rows: Vec<Form>,
    /// Definitions of this segment, each with its value.
    defined: Vec<(Definition, Form)>,
}

/// Floor division by a number above 0.
fn floor(a: i128, by: i128) -> i128 {
    a.div_euclid(by)
}

impl Knowledge {
    /// What is assumed of the names of an invariant. Whoever reaches the invariant must prove it.
    pub(crate) fn assume(names: Vec<Known>, rows: Vec<Form>) -> Option<Knowledge> {
        let over = rows.iter().all(|row| row.is_over(names.len()));
        over.then(|| Knowledge { names, rows, defined: Vec::new() })
    }

    /// What is known of each name, by its number.
    pub fn names(&self) -> &[Known] {
        &self.names
    }

    /// The forms that are not negative.
    pub fn rows(&self) -> &[Form] {
        &self.rows
    }

    /// The bounds of a form, by those of its names; `None` if they do not fit.
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

    /// The set that the word of a form, its residue modulo 2^64, is in.
    pub fn word(&self, form: &Form) -> Scalar {
        let low = |a: i128| Scalar::constant(low_word(a));
        let mut sum = low(form.offset());
        for (n, a) in form.terms() {
            let Some(known) = self.names.get(n.index()) else { return Scalar::UNKNOWN };
            let product = if *a == 1 { known.word } else { known.word.alu(AluOp::Mul, Width::W64, &low(*a)) };
            sum = sum.alu(AluOp::Add, Width::W64, &product);
        }
        // The sum of the bounds may say more than the sum of the sets.
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

    /// `scale * claim` less the rows of a step; `None` if that is no step.
    fn rest(&self, claim: &Form, step: &Step) -> Option<Form> {
        let mut rest = (step.scale > 0).then(|| claim.times(step.scale))??;
        for (row, times) in &step.rows {
            let row = self.rows.get(*row as usize)?;
            rest = rest.plus_wide(row, (*times >= 0).then(|| times.checked_neg())??)?;
        }
        Some(rest)
    }

    /// A fresh name for an integer whose word is in the set.
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

    /// Notes that the form has the value that the definition says.
    pub(crate) fn define(&mut self, definition: Definition, value: Form) {
        self.defined.push((definition, value));
    }

    /// The word of the name is in this set, too. `false` if there is no such word.
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

    /// The word of the form is in this set. `false` if there is no such word.
    pub(crate) fn meet_word(&mut self, form: &Form, word: &Scalar) -> bool {
        // Where the form is `n + c` or `c - n`, the word decides that of the name.
        let c = Scalar::constant(low_word(form.offset()));
        match form.terms() {
            [(n, 1)] => self.meet(*n, &word.alu(AluOp::Sub, Width::W64, &c)),
            [(n, -1)] => self.meet(*n, &c.alu(AluOp::Sub, Width::W64, word)),
            _ => true,
        }
    }

    /// The form is not negative. `false` if that is seen to be impossible.
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
        // What has one name is in its bounds, but for what rounding leaves.
        if form.terms().len() > 1 && !self.rows.contains(&form) {
            self.rows.push(form);
        }
        (0..self.rows.len()).all(|i| {
            let row = self.rows[i].clone();
            self.propagate(&row)
        })
    }

    /// Bounds each name of a form that is not negative by the bounds of the others. `false` if one has no value left.
    fn propagate(&mut self, form: &Form) -> bool {
        for (n, a) in form.terms() {
            // a * n + rest >= 0, so a * n >= -max(rest).
            let others = a.checked_neg().and_then(|a| form.plus(&Form::name(*n), a));
            let Some((_, rest)) = others.and_then(|rest| self.bounds(&rest)) else { continue };
            let Some(known) = self.names.get(n.index()) else { return false };
            let (mut min, mut max) = known.bounds();
            if *a > 0 {
                // n >= -rest / a, rounded up.
                min = min.max(floor(rest, *a).saturating_neg());
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
