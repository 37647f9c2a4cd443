//! Finds products that are rotated.
//!
//! Compilers turn the rotation of `x * d` into `x * c | x * d >> s`, since a product shifted left is another product.
//! This module turns these two products back into one product and a rotation.

use super::Pass;
use crate::rules;
use bpf_isa::Width;
use bpf_isa::word::Word;
use bpf_lir::{BinOp, Op, VReg, Val, narrow};

/// Returns the factor c of the part that is shifted left, for the factor `d` of the other part and a rotation to the
/// left by `left` bits. The function is proven to be right (`cargo xtask prove`).
pub(crate) fn shifted<T: Word>(width: Width, d: T, left: u8) -> T {
    BinOp::Shl.apply_to(width, d, T::of(left.into()))
}

impl Pass<'_> {
    /// Matches `x * c | x * d >> s`, where c is d shifted left by the width less s. Returns the product `x * d` and the
    /// count by which it is rotated left.
    ///
    /// The product of x and d << k is x times d shifted left by k, modulo 2^width. The expression is thus a rotation by
    /// two shifts.
    pub(super) fn rotated_product(&self, width: Width, high: VReg, low: VReg) -> Option<(VReg, i64)> {
        let bin = |v: VReg, wanted: BinOp| match self.def(v) {
            Some(&Op::Bin { op, width: found, a, b: Val::Imm(imm), .. }) if op == wanted && found == width => {
                Some((a, imm))
            }
            Some(_) | None => None,
        };
        let (x, c) = bin(high, BinOp::Mul)?;
        let (product, shift) = bin(low, BinOp::Shr)?;
        let (y, d) = bin(product, BinOp::Mul)?;
        let bits = rules::bits(width);
        let left = u8::try_from(shift).ok().filter(|shift| (1..bits).contains(shift)).map(|shift| bits - shift)?;
        let same = narrow(width, c as u64) == shifted(width, d as u64, left);
        (x == y && same).then_some((product, left.into()))
    }
}
