//! Products that are rotated.
//!
//! Compilers turn `x * d` rotated into `x * c | x * d >> s`, since a product shifted left is a product too: two
//! products where one and a rotation do.

use super::Pass;
use crate::rules;
use bpf_isa::Width;
use bpf_isa::word::Word;
use bpf_lir::{BinOp, Op, VReg, Val, narrow};

/// The multiplier of the part whose product is shifted left, where `d` is that of the other part and the product by `d`
/// is rotated left by so much; proven to be right (`cargo xtask prove`).
pub(crate) fn shifted<T: Word>(width: Width, d: T, left: u8) -> T {
    BinOp::Shl.apply_to(width, d, T::of(left.into()))
}

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
        let bits = rules::bits(width);
        let left = u8::try_from(shift).ok().filter(|shift| (1..bits).contains(shift)).map(|shift| bits - shift)?;
        let same = narrow(width, c as u64) == shifted(width, d as u64, left);
        (x == y && same).then_some((product, left.into()))
    }
}
