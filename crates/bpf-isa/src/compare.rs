//! The meaning of conditions, on numbers and on the terms of a solver.

use crate::insn::{Cond, Width};
use crate::word::{Signed, Word};

impl Cond {
    /// Whether the condition holds for two 64-bit operands (for 32-bit jumps: zero-extend for the unsigned and
    /// sign-extend for the signed conditions first, or use [`Cond::holds`]).
    pub fn holds64(self, a: u64, b: u64) -> bool {
        self.compares(a, b)
    }
    /// Whether the condition holds for the operands at this width.
    pub fn holds(self, width: Width, a: u64, b: u64) -> bool {
        self.compares_at(width, a, b)
    }
    /// [`Cond::holds64`] for any [`Word`], so that a solver can prove it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn compares<T: Word>(self, a: T, b: T) -> bool {
        let (sa, sb) = (a.signed(), b.signed());
        match self {
            Cond::Eq => a == b,
            Cond::Ne => a != b,
            Cond::Gt => a > b,
            Cond::Ge => a >= b,
            Cond::Lt => a < b,
            Cond::Le => a <= b,
            Cond::Set => a & b != T::ZERO,
            Cond::SGt => sa > sb,
            Cond::SGe => sa >= sb,
            Cond::SLt => sa < sb,
            Cond::SLe => sa <= sb,
        }
    }
    /// [`Cond::holds`] for any [`Word`], so that a solver can prove it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn compares_at<T: Word>(self, width: Width, a: T, b: T) -> bool {
        match width {
            Width::W64 => self.compares(a, b),
            // Sign extension of both sides preserves the signed *and* the unsigned order, equality and the and-test.
            Width::W32 => self.compares(a.sext(32).unsigned(), b.sext(32).unsigned()),
        }
    }
}
