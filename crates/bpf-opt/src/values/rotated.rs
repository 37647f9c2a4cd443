//! Products that are rotated.
//!
//! Compilers turn `x * d` rotated into `x * c | x * d >> s`, since a product shifted left is a product too: two
//! products where one and a rotation do.

use super::Pass;
use crate::rules;
use bpf_isa::Width;
use bpf_lir::{BinOp, Op, VReg, Val, narrow};

impl Pass<'_> {
    /// `x * c | x * d >> s` where c is d, shifted left by what s leaves of the width: compilers make this of a product
    /// that is rotated. The product by d, and by how much it is rotated left.
    ///
    /// x times d << k is x times d, shifted left by k, modulo any power of two; the rest is a rotation by two shifts.
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
        let left = i64::from(rules::bits(width)) - shift;
        let shifted = BinOp::Shl.apply(width, d as u64, left as u64);
        (x == y && shift > 0 && left > 0 && narrow(width, c as u64) == shifted).then_some((product, left))
    }
}
