//! Conditional jumps: which of both branches can be taken, and which facts hold on each.
//!
//! A comparison of numbers teaches facts in two ways. The proven operation [`Scalar::refine`] refines the words of both
//! operands. The order of the two compared integers is a row.

use bpf_isa::{Cond, Reg, Src, Width};

use super::number::bits;
use crate::check::{Checker, Flow};
use crate::domain::{Form, Scalar};
use crate::faults::planted;
use crate::refusal::{Res, Why};
use crate::state::{Base, Pointer, State, Value};

/// The greatest distance from its object's start at which a pointer may be compared. Objects are assumed to end at
/// least this far below the end of the address space, so addresses up to this distance are ordered as their offsets
/// are.
const NEAR: i128 = 1 << 31;

/// A condition and the width it is compared at.
type Test = (Width, Cond);

fn is_signed(cond: Cond) -> bool {
    match cond {
        Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe => true,
        Cond::Eq | Cond::Ne | Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le | Cond::Set => false,
    }
}

/// The forms that are not negative if `a cond b` holds of these integers; none if the condition is not an inequality.
fn order(cond: Cond, a: &Form, b: &Form) -> Vec<Form> {
    // a - b - by >= 0
    let above = |a: &Form, b: &Form, by: i128| a.plus(b, -1).and_then(|f| f.shifted(-by));
    let rows = match cond {
        Cond::Eq => vec![above(a, b, 0), above(b, a, 0)],
        Cond::Gt | Cond::SGt => vec![above(a, b, 1)],
        Cond::Ge | Cond::SGe => vec![above(a, b, i128::from(planted!(OrderIsStrict)))],
        Cond::Lt | Cond::SLt => vec![above(b, a, 1)],
        Cond::Le | Cond::SLe => vec![above(b, a, 0)],
        Cond::Ne | Cond::Set => Vec::new(),
    };
    rows.into_iter().flatten().collect()
}

impl Checker<'_> {
    pub(crate) fn branch(&mut self, state: &mut State, test: Test, dst: Reg, src: Src, off: i16) -> Res<Flow> {
        let target = self.target(off.into())?;
        let (a, b) = (self.value(state, dst)?, self.operand(state, src)?);
        let mut taken;
        let (yes, no) = match (&a, &b) {
            (Value::Number(a), Value::Number(b)) => {
                // Both branches refer to the same names, so the operands are named before the state is copied.
                let read = self.compared(state, test, a, b)?;
                taken = self.copy(state)?;
                let yes = self.way_of_numbers(&mut taken, test, true, (a, b), &read)?;
                (yes, self.way_of_numbers(state, test, false, (a, b), &read)?)
            }
            (Value::Pointer(p), Value::Number(n)) | (Value::Number(n), Value::Pointer(p)) => {
                taken = self.copy(state)?;
                (self.null_test(&mut taken, test, true, p, n)?, self.null_test(state, test, false, p, n)?)
            }
            (Value::Pointer(p), Value::Pointer(q)) => {
                let offsets = self.near(state, test, p, q)?;
                taken = self.copy(state)?;
                (
                    self.learn_order(&mut taken, test.1, true, &offsets)?,
                    self.learn_order(state, test.1, false, &offsets)?,
                )
            }
            (Value::Unset, _) | (_, Value::Unset) => return Err(Why::Unset(dst)),
        };
        match (yes, no) {
            (true, true) if planted!(BranchDropsSide) => Ok(Flow::Next),
            (true, true) => {
                self.push(target, taken)?;
                Ok(Flow::Next)
            }
            (true, false) => {
                *state = taken;
                Ok(Flow::To(target))
            }
            (false, true) => Ok(Flow::Next),
            (false, false) => Ok(Flow::End),
        }
    }

    /// The two integers that are compared; `None` if the condition does not compare integers.
    fn compared(&mut self, state: &mut State, (width, cond): Test, a: &Form, b: &Form) -> Res<Option<(Form, Form)>> {
        if cond == Cond::Set {
            return Ok(None);
        }
        let (bits, signed) = (bits(width), is_signed(cond));
        let a = self.read_as(state, a, bits, signed)?;
        Ok(Some((a, self.read_as(state, b, bits, signed)?)))
    }

    /// Whether the comparison can have this outcome; refines the state, which is the branch's own, by it.
    fn way_of_numbers(
        &mut self,
        state: &mut State,
        (width, cond): Test,
        taken: bool,
        (a, b): (&Form, &Form),
        read: &Option<(Form, Form)>,
    ) -> Res<bool> {
        let (x, y) = (self.word(state, a)?, self.word(state, b)?);
        let Some((x, y)) = Scalar::refine(cond, width, taken, &x, &y) else { return Ok(false) };
        if !state.known.meet_word(a, &x) || !state.known.meet_word(b, &y) {
            return Ok(false);
        }
        match read {
            Some(read) => self.learn_order(state, cond, taken, read),
            None => Ok(true),
        }
    }

    /// Notes the row that a comparison's outcome implies. `false` if the outcome is proven impossible.
    fn learn_order(&mut self, state: &mut State, cond: Cond, taken: bool, (a, b): &(Form, Form)) -> Res<bool> {
        let outcome = match (taken, cond.negate()) {
            (true, _) => cond,
            (false, Some(negated)) => negated,
            (false, None) => return Ok(true),
        };
        let mut rows = order(outcome, a, b);
        if outcome == Cond::Ne {
            // If two integers are in order and differ, the order is strict.
            let difference = a.plus(b, -1);
            for difference in [difference.clone(), difference.and_then(|d| d.times(-1))].into_iter().flatten() {
                let order = self.proves(state, &difference)?;
                rows.extend(difference.shifted(-1).filter(|_| order));
            }
        }
        for row in rows {
            self.spend(1 + state.known.rows().len() as u64)?;
            // The rows together may refute the outcome although no single one does.
            if let Some(never) = row.times(-1).and_then(|f| f.shifted(-1))
                && self.proves(state, &never)?
            {
                return Ok(false);
            }
            if !state.known.learn(row) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a pointer's comparison with null can have this outcome; refines the state by it.
    fn null_test(&mut self, state: &mut State, (width, cond): Test, taken: bool, p: &Pointer, n: &Form) -> Res<bool> {
        let null = match (width, cond) {
            (Width::W64, Cond::Eq) => taken,
            (Width::W64, Cond::Ne) => !taken,
            _other => return Err(Why::PointerComparison),
        };
        if n.as_const() != Some(0) {
            return Err(Why::PointerComparison);
        }
        if let Some(present) = p.present {
            return Ok(state.known.meet(present, &Scalar::constant(u64::from(!null))));
        }
        match p.base {
            // An empty region may be at any address, and so may an address past the end of a region, so neither outcome
            // is excluded.
            Base::Region(_) => {
                self.within_reach(state, &p.offset)?;
                Ok(true)
            }
            Base::Context | Base::Map(_) | Base::Inner(_) if p.offset.as_const() == Some(0) => Ok(!null),
            Base::Stack(_) => match state.known.bounds(&p.offset) {
                Some((min, max)) if -i128::from(self.env.frame_bytes) <= min && max <= 0 => Ok(!null),
                Some(_) | None => Err(Why::PointerComparison),
            },
            Base::MapValue(_) | Base::InnerValue(_) | Base::Memory { .. } | Base::Record { .. } => {
                self.within_reach(state, &p.offset)?;
                Ok(!null)
            }
            Base::Context | Base::Map(_) | Base::Inner(_) => Err(Why::PointerComparison),
        }
    }

    /// Proves that the offset is at least 0 and at most [`NEAR`].
    fn within_reach(&mut self, state: &State, offset: &Form) -> Res<()> {
        let behind = offset.times(-1).and_then(|f| f.shifted(NEAR)).ok_or(Why::PointerComparison)?;
        if self.proves(state, offset)? && self.proves(state, &behind)? { Ok(()) } else { Err(Why::PointerComparison) }
    }

    /// Proves that comparing two pointers is equivalent to comparing the returned offsets, and reveals nothing else
    /// about the addresses.
    fn near(&mut self, state: &State, (width, cond): Test, p: &Pointer, q: &Pointer) -> Res<(Form, Form)> {
        let offsets = self.in_one_object(state, p, q).filter(|_| {
            let is_compared = width == Width::W64 && !is_signed(cond) && cond != Cond::Set;
            is_compared && matches!(p.base, Base::Stack(_) | Base::Region(_) | Base::Record { .. })
        });
        let (a, b) = offsets.ok_or(Why::PointerComparison)?;
        // Offsets into a stack are at most 0. Addresses within a frame do not wrap either.
        for offset in [&a, &b] {
            match p.base {
                Base::Stack(_) => {
                    let inside = state.known.bounds(offset);
                    if inside.is_none_or(|(min, max)| min < -i128::from(self.env.frame_bytes) || max > 0) {
                        return Err(Why::PointerComparison);
                    }
                }
                _memory => self.within_reach(state, offset)?,
            }
        }
        Ok((a, b))
    }
}
