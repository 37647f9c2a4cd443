//! Numbers that are compared with the same constant twice.
//!
//! Problem: compilers test one byte where a loop ends, and again behind it, where it ended with that byte. Where it is
//! another one, a range says nothing of that unless the constant is at one of its ends, so the second test is walked
//! both ways, of which one never happens. Approach: where there may be a second test, the number is walked twice: below
//! the constant, and above it. Both are ranges. Several such tests in a loop multiply its paths, so that is done only
//! in guesses that relate places, which others have failed before: what needs no more is walked as ever.
//!
//! Invariant: every number that is not the constant is walked in one of the two, as if the program had compared it with
//! the constant once more. Where such a test leads nowhere, the other is dropped at the next join: that is why it is
//! done only where the register is tested again before it is written.

use bpf_analysis::defs;
use bpf_isa::{Cond, Insn, InsnIdx, Reg, Src, Width};

use super::Walk;
use crate::scalar::Scalar;

/// Instructions that are looked at for a second test.
const MOST_SEEN: usize = 48;

/// Numbers that a walk splits so at most.
const MOST_SPLIT: u32 = 400;

#[derive(Debug, Default)]
pub(super) struct Retests {
    /// Of each instruction, once it has been asked for: whether there may be a second test.
    again: Vec<Option<bool>>,
    /// Numbers that have been split.
    split: u32,
}

impl Retests {
    /// Whether one more number may be walked in parts: then it counts as one.
    pub(super) fn may_split(&mut self) -> bool {
        let may = self.split < MOST_SPLIT;
        self.split += u32::from(may);
        may
    }
}

/// The numbers that are not the constant in the middle of these: below it, and above it.
fn apart(n: &Scalar, constant: u64) -> Option<(Scalar, Scalar)> {
    let inside = n.umin() < constant && constant < n.umax();
    let below = inside.then(|| n.meet(&Scalar::unsigned(0, constant - 1)))??;
    let above = n.meet(&Scalar::unsigned(constant + 1, u64::MAX))?;
    Some((below, above))
}

/// Whether some way from here compares the register for equality with the constant before it is written.
fn retests(insns: &[Insn], from: InsnIdx, reg: Reg, constant: i32) -> bool {
    let mut left = vec![from];
    let mut next = 0;
    while let Some(&at) = left.get(next) {
        next += 1;
        let Some(insn) = insns.get(at.0 as usize) else { continue };
        let mut ways = [Some(InsnIdx(at.0 + 1)), insn.jump_offset().and_then(|off| at.jump(off))];
        match *insn {
            Insn::JumpIf { cond, dst, src, .. }
                if matches!(cond, Cond::Eq | Cond::Ne) && (dst, src) == (reg, Src::Imm(constant)) =>
            {
                return true;
            }
            _ if defs(insn).contains(reg) || matches!(insn, Insn::Call(_)) => continue,
            _ if insn.ends_flow() => ways[0] = None,
            _ => {}
        }
        for way in ways.into_iter().flatten() {
            if left.len() < MOST_SEEN && !left.contains(&way) {
                left.push(way);
            }
        }
    }
    false
}

impl Walk<'_> {
    /// The two ranges in which a number is walked that has been compared with the constant here and is not equal to it,
    /// if that is of use. `then`: what is walked next.
    pub(super) fn parts_beside(
        &mut self,
        n: &Scalar,
        width: Width,
        (reg, src): (Reg, Src),
        then: InsnIdx,
    ) -> Option<(Scalar, Scalar)> {
        let Src::Imm(constant) = src else { return None };
        let parts = match width {
            Width::W64 => apart(n, i64::from(constant).cast_unsigned())?,
            Width::W32 if n.high_half_is_zero() => apart(n, constant.cast_unsigned().into())?,
            Width::W32 => return None,
        };
        let (at, insns) = (self.pc.0 as usize, self.insns);
        let again = &mut self.retests.again;
        if again.is_empty() {
            again.resize(insns.len(), None);
        }
        let again = *again.get_mut(at)?.get_or_insert_with(|| retests(insns, then, reg, constant));
        (again && self.retests.may_split()).then_some(parts)
    }
}
