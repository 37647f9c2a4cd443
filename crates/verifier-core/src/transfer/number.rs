//! Arithmetic on numbers, and the reading of a word as an integer.
//!
//! A number is the residue of a form modulo 2^64, so sums, differences and products by constants are those of forms,
//! without overflow or loss of precision. An operation that needs the *integer* of a word (a comparison, a shift to the
//! right, a 32-bit result) reads the form at a width ([`Checker::read_as`]): the form itself where it is proven to lie
//! in range, and a fresh name for its residue elsewhere.

use bpf_isa::{AluOp, ByteOrder, Width};

use crate::check::Checker;
use crate::domain::{Definition, Form, Known, Name, Scalar};
use crate::faults::planted;
use crate::refusal::{Res, Why};
use crate::state::State;

/// The number of bits of a width.
pub(crate) fn bits(width: Width) -> u32 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// The least integer of `bits` bits.
fn least(bits: u32, signed: bool) -> i128 {
    if signed { -(1i128 << (bits - 1)) } else { 0 }
}

impl Checker<'_> {
    /// The set that the word of a form is in. The sets of all its names are added up, which costs that much.
    pub(crate) fn word(&mut self, state: &State, form: &Form) -> Res<Scalar> {
        self.spend(form.terms().len() as u64)?;
        Ok(state.known.word(form))
    }

    /// A fresh name for an integer: the signed or unsigned value of a word in this set.
    pub(crate) fn fresh(&mut self, state: &mut State, word: Scalar, signed: bool) -> Res<Name> {
        state.known.name(Known { word, signed }).ok_or(Why::Fuel)
    }

    /// A fresh name for a number in this set, as the signed or the unsigned integer, by the shorter range.
    pub(crate) fn fresh_number(&mut self, state: &mut State, word: Scalar) -> Res<Form> {
        if let Some(c) = word.as_const() {
            return Ok(Form::constant(c.into()).residue(64));
        }
        let signed = word.smin() < 0 && word.smax().abs_diff(word.smin()) < word.umax() - word.umin();
        Ok(Form::name(self.fresh(state, word, signed)?))
    }

    /// The name of a form's residue modulo 2^`bits`: the name defined earlier in the segment, or a fresh one.
    pub(crate) fn fresh_residue(&mut self, state: &mut State, form: &Form, bits: u32, signed: bool) -> Res<Name> {
        let form = form.residue(bits);
        let definition = Definition::Residue { form: form.clone(), bits, signed };
        if let Some(name) = self.defined(state, &definition)?.and_then(|value| value.as_name()) {
            return Ok(name);
        }
        let word = self.word(state, &form)?;
        let word = if signed { word.sign_extend(bits) } else { word.truncate(bits) };
        let name = self.fresh(state, word, signed)?;
        state.known.define(definition, Form::name(name));
        Ok(name)
    }

    /// The value of a definition, if the segment has noted it.
    fn defined(&mut self, state: &State, definition: &Definition) -> Res<Option<Form>> {
        self.spend(1 + state.known.definitions() as u64 / 16)?;
        Ok(state.known.defined(definition).cloned())
    }

    /// The integer that the low `bits` bits of a number represent, signed or unsigned.
    pub(crate) fn read_as(&mut self, state: &mut State, form: &Form, bits: u32, signed: bool) -> Res<Form> {
        let (modulus, least) = (1i128 << bits, least(bits, signed));
        // If the bounds of the form lie within one period of the modulus, subtracting that period's multiple of the
        // modulus gives the integer exactly.
        let periods = |form: &Form| {
            let (min, max) = state.known.bounds(form)?;
            Some((min.checked_sub(least)?.div_euclid(modulus), max.checked_sub(least)?.div_euclid(modulus)))
        };
        let in_period = |form: &Form, period: i128| form.shifted(period.checked_mul(modulus)?.checked_neg()?);
        let nearest = form.residue(bits);
        for form in [form, &nearest] {
            if let Some((first, last)) = periods(form)
                && first == last
                && let Some(exact) = in_period(form, first)
            {
                return Ok(exact);
            }
        }
        // Otherwise rows may prove which of up to three periods the form lies in.
        if nearest.terms().len() > 1
            && let Some((first, last)) = periods(&nearest)
            && last - first <= 2
        {
            for exact in (first..=last).filter_map(|period| in_period(&nearest, period)) {
                let (above, below) =
                    (exact.shifted(-least), exact.times(-1).and_then(|f| f.shifted(least + modulus - 1)));
                if let (Some(above), Some(below)) = (above, below)
                    && self.proves(state, &above)?
                    && self.proves(state, &below)?
                {
                    return Ok(exact);
                }
            }
        }
        Ok(Form::name(self.fresh_residue(state, &nearest, bits, signed)?))
    }

    /// `a op b` on the low bits of the width, zero-extended.
    pub(crate) fn number_op(&mut self, state: &mut State, op: AluOp, width: Width, a: &Form, b: &Form) -> Res<Form> {
        let wide = width == Width::W64;
        let constant = |f: &Form| f.residue(64).as_const();
        let count = |f: &Form| constant(f).map(|c| c.rem_euclid(bits(width).into()));
        let linear = match op {
            AluOp::Add => a.plus(b, 1),
            AluOp::Sub => a.plus(b, -1),
            AluOp::Mul => match (constant(a), constant(b)) {
                (_, Some(c)) => a.times(c),
                (Some(c), None) => b.times(c),
                (None, None) => None,
            },
            AluOp::Lsh => count(b).and_then(|k| a.times(1i128 << k)),
            AluOp::Div
            | AluOp::SDiv
            | AluOp::Mod
            | AluOp::SMod
            | AluOp::Or
            | AluOp::And
            | AluOp::Xor
            | AluOp::Rsh
            | AluOp::Arsh => None,
        };
        if let Some(form) = linear {
            return if wide { Ok(form.residue(64)) } else { self.read_as(state, &form, 32, false) };
        }
        let (x, y) = (self.word(state, a)?, self.word(state, b)?);
        let result = x.alu(op, width, &y);
        if result.as_const().is_some() {
            return self.fresh_number(state, result);
        }
        let definition = Definition::Word { op, width, of: (a.residue(64), b.residue(64)) };
        if let Some(value) = self.defined(state, &definition)? {
            return Ok(value);
        }
        let known = match op {
            AluOp::And => self.masked(state, width, (a, b), result)?,
            AluOp::Or | AluOp::Xor => self.joined(state, op, width, (a, b), result)?,
            AluOp::Rsh => match count(b) {
                Some(k) => self.shifted_right(state, width, a, k, result)?,
                None => None,
            },
            AluOp::Arsh => match count(b) {
                Some(k) if wide => self.halved_back(state, a, k, true)?,
                Some(_) | None => None,
            },
            AluOp::Div => match constant(b) {
                Some(by) if by > 0 => Some(self.quotient(state, width, a, by, result)?),
                Some(_) | None => None,
            },
            AluOp::Mod => {
                let whole = self.read_as(state, a, bits(width), false)?;
                Some(self.at_most(state, &[whole], result)?)
            }
            AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::Lsh | AluOp::SDiv | AluOp::SMod => None,
        };
        let value = match known {
            Some(form) => form,
            None => self.fresh_number(state, result)?,
        };
        state.known.define(definition, value.clone());
        Ok(value)
    }

    /// A fresh name for an unsigned number that is in the set and at most each of these integers.
    fn at_most(&mut self, state: &mut State, wholes: &[Form], result: Scalar) -> Res<Form> {
        let name = Form::name(self.fresh(state, result, false)?);
        for whole in wholes {
            self.define(state, whole.plus(&name, -1))?;
        }
        Ok(name)
    }

    /// Notes a row that follows from the definition of a fresh name.
    fn define(&mut self, state: &mut State, row: Option<Form>) -> Res<()> {
        self.spend(state.known.rows().len() as u64)?;
        let Some(row) = row else { return Ok(()) };
        // A fresh name has a value in every run of the state, so a contradiction shows that the state has no run.
        if state.known.learn(row) { Ok(()) } else { Err(Why::Unreachable) }
    }

    /// `a & b`. For a mask of adjacent ones, the result is a multiple of a quotient. Otherwise it is at most each
    /// operand.
    fn masked(&mut self, state: &mut State, width: Width, (a, b): (&Form, &Form), result: Scalar) -> Res<Option<Form>> {
        for (number, mask) in [(a, b), (b, a)] {
            let mask = self.word(state, mask)?.truncate(bits(width));
            match mask.as_const() {
                Some(u64::MAX) => return Ok(Some(number.clone())),
                // The mask selects the bits `low` to `high - 1`: the result is 2^low times the quotient of the low
                // `high` bits by 2^low.
                Some(mask) if mask != 0 && (mask >> mask.trailing_zeros()).wrapping_add(1).is_power_of_two() => {
                    let (low, high) = (mask.trailing_zeros(), 64 - mask.leading_zeros());
                    let whole = self.read_as(state, number, high, false)?;
                    if low == 0 {
                        return Ok(Some(whole));
                    }
                    let by = 1i128 << low;
                    return Ok(self.quotient_of(state, whole, by)?.times(by));
                }
                Some(_) | None => {}
            }
        }
        let wholes = [self.read_as(state, a, bits(width), false)?, self.read_as(state, b, bits(width), false)?];
        Ok(Some(self.at_most(state, &wholes, result)?))
    }

    /// `a | b = a + b - (a & b)` and `a ^ b = a + b - 2 * (a & b)` (Warren, Hacker's Delight, 2-2).
    fn joined(
        &mut self,
        state: &mut State,
        op: AluOp,
        width: Width,
        (a, b): (&Form, &Form),
        result: Scalar,
    ) -> Res<Option<Form>> {
        let wholes = [self.read_as(state, a, bits(width), false)?, self.read_as(state, b, bits(width), false)?];
        let (x, y) = (self.word(state, &wholes[0])?.bits().max(), self.word(state, &wholes[1])?.bits().max());
        let times = if op == AluOp::Or { -1 } else { -2 };
        let sum = wholes[0].plus(&wholes[1], 1);
        if x & y == 0 {
            return Ok(sum);
        }
        let both = self.number_op(state, AluOp::And, width, &wholes[0], &wholes[1])?;
        let both = self.read_as(state, &both, bits(width), false)?;
        let Some(joined) = sum.and_then(|sum| sum.plus(&both, times)) else { return Ok(None) };
        // The set of the word may be tighter than the bounds of the sum, so a fresh name, equal to the sum, gets that
        // set.
        if self.word(state, &joined)?.subset(&result) {
            return Ok(Some(joined));
        }
        let name = Form::name(self.fresh(state, result, false)?);
        for row in [name.plus(&joined, -1), joined.plus(&name, -1)] {
            self.define(state, row)?;
        }
        Ok(Some(name))
    }

    /// `a >> k` for a form that 2^k divides (`x << k >> k`): the low `64 - k` bits of the divided form, zero- or
    /// sign-extended.
    fn halved_back(&mut self, state: &mut State, a: &Form, k: i128, signed: bool) -> Res<Option<Form>> {
        let Ok(k @ 1..64) = u32::try_from(k) else { return Ok(None) };
        let Some(number) = a.residue(64).divided(1i128 << k) else { return Ok(None) };
        Ok(Some(self.read_as(state, &number, 64 - k, signed)?))
    }

    fn shifted_right(
        &mut self,
        state: &mut State,
        width: Width,
        a: &Form,
        k: i128,
        result: Scalar,
    ) -> Res<Option<Form>> {
        if width == Width::W64
            && let Some(back) = self.halved_back(state, a, k, false)?
        {
            return Ok(Some(back));
        }
        Ok(Some(self.quotient(state, width, a, 1i128 << k, result)?))
    }

    /// The unsigned quotient by a number above 0.
    fn quotient(&mut self, state: &mut State, width: Width, a: &Form, by: i128, result: Scalar) -> Res<Form> {
        if width == Width::W32 && by >= 1 << 31 {
            return self.fresh_number(state, result);
        }
        let whole = self.read_as(state, a, bits(width), false)?;
        self.quotient_of(state, whole, by)
    }

    /// The quotient `q` of an unsigned 64-bit integer by a number above 0: `by * q <= whole < by * q + by`.
    fn quotient_of(&mut self, state: &mut State, whole: Form, by: i128) -> Res<Form> {
        let definition = Definition::Quotient { form: whole.clone(), by };
        if let Some(q) = self.defined(state, &definition)? {
            return Ok(q);
        }
        let divisor = u64::try_from(by).map_err(|_| Why::Internal("a quotient by more than a word"))?;
        let word = self.word(state, &whole)?.alu(AluOp::Div, Width::W64, &Scalar::constant(divisor));
        let q = Form::name(self.fresh(state, word, false)?);
        let left = whole.plus(&q, -by);
        self.define(state, left.clone())?;
        let most = by - 1 - i128::from(planted!(QuotientTooSmall));
        self.define(state, left.and_then(|left| left.times(-1)?.shifted(most)))?;
        state.known.define(definition, q.clone());
        Ok(q)
    }

    /// The low `from` bits of a number, sign-extended to the width and then zero-extended to 64 bits.
    pub(crate) fn sign_extended(&mut self, state: &mut State, a: &Form, from: u32, width: Width) -> Res<Form> {
        let number = self.read_as(state, a, from, true)?;
        match width {
            Width::W64 => Ok(number.residue(64)),
            Width::W32 => self.read_as(state, &number, 32, false),
        }
    }

    /// The result of a byte order conversion.
    pub(crate) fn byte_order(&mut self, state: &mut State, order: ByteOrder, a: &Form, bits: u32) -> Res<Form> {
        match order {
            ByteOrder::ToLe => Ok(self.read_as(state, a, bits, false)?.residue(64)),
            ByteOrder::ToBe | ByteOrder::Swap => {
                let word = self.word(state, a)?.end(order, bits);
                self.fresh_number(state, word)
            }
        }
    }
}

#[cfg(test)]
#[path = "number_tests.rs"]
mod tests;
