//! Case splits of numbers that are compared twice with the same constant (trace partitioning).
//!
//! Problem: compilers test a byte where a loop ends, and again after the loop, to see whether it ended with that byte.
//! If the byte differs from the constant, a range cannot express that unless the constant is at one of its ends. The
//! second test is then walked both ways, of which one never happens. Approach: where a second test may follow, the
//! number is walked twice: below the constant, and above it. Both are ranges. Several such tests in a loop multiply its
//! paths, so the split is made only for candidates with relations, after simpler ones have failed.
//!
//! Invariant: every number that differs from the constant is walked in one of the two parts, as if the program had
//! compared it with the constant once more. A split without effect is undone by pruning at the next join, so it is made
//! only if the register is tested again before it is written.

use bpf_analysis::defs;
use bpf_isa::{Cond, Insn, InsnIdx, Reg, Src, Width};

use super::Walk;
use crate::scalar::Scalar;

/// The most instructions that are inspected for a second test.
const MOST_SEEN: usize = 48;

/// The most numbers that a walk splits.
const MOST_SPLIT: u32 = 400;

#[derive(Debug, Default)]
pub(super) struct Retests {
    /// For each instruction: whether a second test may follow, once computed.
    again: Vec<Option<bool>>,
    /// The number of splits made.
    split: u32,
}

impl Retests {
    /// Whether one more number may be split; if so, counts the split.
    pub(super) fn may_split(&mut self) -> bool {
        let may = self.split < MOST_SPLIT;
        self.split += u32::from(may);
        may
    }
}

/// The parts of a range below and above a constant inside of it.
fn apart(n: &Scalar, constant: u64) -> Option<(Scalar, Scalar)> {
    let inside = n.umin() < constant && constant < n.umax();
    let below = inside.then(|| n.meet(&Scalar::unsigned(0, constant - 1)))??;
    let above = n.meet(&Scalar::unsigned(constant + 1, u64::MAX))?;
    Some((below, above))
}

/// Whether some path from here compares the register with the constant for equality before the register is written.
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
    /// The two ranges in which a number is walked that was compared with the constant and differs from it; `None` if a
    /// split is useless. `then`: the next instruction.
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
