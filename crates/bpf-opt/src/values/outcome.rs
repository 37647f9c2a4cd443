//! Simplifies selections between a value and a changed version of it, and comparisons for a sign.
//!
//! * BPF cannot store the outcome of a comparison as a number, so compilers write `n = 1; if c goto +1; n = 0; x += n`
//!   for a carry. `x + (c ? 1 : 0)` becomes a selection between x + 1 and x, which machines have as one instruction
//!   (`adc`, `csinc`), and which saves an addition on others.
//! * `c ? x op p : x`, where c tests one bit, becomes `x op (p & m)`, where every bit of m is the tested bit. This pays
//!   on a machine that shifts its second operand: if x is a shifted value, the shift needs no instruction.
//! * On a machine without shifted operands, `p & m` with such an m becomes a selection between p and 0.
//! * A comparison for the sign of a sign-extended value becomes a test of the bit that is extended.
//!
//! All four are proven (`cargo xtask prove`).

use super::{NEW, Pass};
use crate::operand::Takes;
use crate::rules;
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{BinOp, Op, VReg, Val, narrow};

/// The operations `op` for which `c ? x op p : x` becomes `x op (p & m)`: x op 0 is x, and machines can shift their
/// second operand.
pub(crate) const MASKED: [BinOp; 3] = [BinOp::Add, BinOp::Or, BinOp::Xor];

/// The operations by which the outcome of a comparison is added to a value or subtracted from it.
pub(crate) const STEPPED: [BinOp; 2] = [BinOp::Add, BinOp::Sub];

/// Returns the width at which bit number `bit` is spread to a mask for an op of this width.
pub(crate) fn mask_width(width: Width, bit: u8) -> Width {
    if bit < rules::bits(width) { width } else { Width::W64 }
}

/// Returns the counts of the left shift and of the arithmetic right shift that copy a bit to all bits of this width.
pub(crate) fn spread(width: Width, bit: u8) -> [u8; 2] {
    let top = rules::bits(width) - 1;
    [top - bit, top]
}

/// Whether a comparison tests the sign of its first operand: `Some(true)` if it holds for negative numbers,
/// `Some(false)` if it holds for the others.
fn asks_sign(width: Width, cond: Cond, imm: i64) -> Option<bool> {
    match (cond, rules::sign(width, imm as u64)) {
        (Cond::SLt, 0) | (Cond::SLe, -1) => Some(true),
        (Cond::SGe, 0) | (Cond::SGt, -1) => Some(false),
        _ => None,
    }
}

/// Returns the mask of the sign bit of a value of size `from`, if the size has at most 16 bits.
pub(crate) fn sign_bit(from: Size) -> Option<i64> {
    match from {
        Size::B => Some(0x80),
        Size::H => Some(0x8000),
        Size::W | Size::DW => None,
    }
}

impl Pass<'_> {
    /// Turns a comparison for the sign of a sign-extended value, which nothing else reads, into a test of the bit that
    /// is extended.
    pub(super) fn sign_of_extended(
        &mut self,
        width: Width,
        cond: Cond,
        a: VReg,
        b: Val,
    ) -> Option<(Width, Cond, VReg, Val)> {
        let (Val::Imm(imm), Some(&Op::Ext { width: made, signed: true, from, src, .. })) = (b, self.def(a)) else {
            return None;
        };
        let is_set = asks_sign(width, cond, imm)?;
        let mask = Val::Imm(sign_bit(from)?);
        // A value that was sign-extended to 32 bits is never negative as a number of 64 bits.
        if self.s.uses[a.index()] != 0 || made == Width::W32 && width == Width::W64 {
            return None;
        }
        self.done += 1;
        let width = Width::W32;
        if is_set {
            return Some((width, Cond::Set, src, mask));
        }
        let bit = self.number(Op::Bin { op: BinOp::And, width, dst: NEW, a: src, b: mask }, NEW);
        Some((width, Cond::Eq, bit, Val::Imm(0)))
    }

    /// Turns `x + (c ? 1 : 0)` into `c ? x + 1 : x`, and a difference likewise.
    pub(super) fn add_outcome(
        &mut self,
        op: BinOp,
        width: Width,
        x: VReg,
        outcome: VReg,
        dst: VReg,
        depth: u32,
    ) -> Option<VReg> {
        let Some(&Op::Select { width: compared, cond, a, b, yes, no, .. }) = self.def(outcome) else { return None };
        if !STEPPED.contains(&op) {
            return None;
        }
        // Nothing else reads the outcome, and it was made in this block, so the operands of its comparison live only a
        // little longer.
        let alone = self.s.uses[outcome.index()] == 0 && self.s.blocks[outcome.index()] == self.block;
        let whole = self.s.bits[x.index()] <= rules::bits(width);
        let holds = match (self.constant(yes)?, self.constant(no)?) {
            (1, 0) => true,
            (0, 1) => false,
            _ => return None,
        };
        if !alone || !whole || x == outcome {
            return None;
        }
        self.done += 1;
        let more = self.value(Op::Bin { op, width, dst: NEW, a: x, b: Val::Imm(1) }, NEW, depth + 1);
        let (yes, no) = if holds { (more, x) } else { (x, more) };
        Some(self.value(Op::Select { width: compared, cond, a, b, dst: NEW, yes, no }, dst, depth + 1))
    }

    /// Turns `c ? x op p : x` into `x op (p & m)`, where c tests one bit, and x is a shifted value that nothing else
    /// reads.
    pub(super) fn masked(&mut self, select: Op, dst: VReg) -> Option<VReg> {
        let Op::Select { yes, no, .. } = select else { return None };
        if self.addresses.operands != Takes::Shifted {
            return None;
        }
        let (tested, bit, is_set) = self.one_bit(&select)?;
        let (changed, x) = if is_set { (yes, no) } else { (no, yes) };
        let Some(&Op::Bin { op, width, a, b, .. }) = self.def(changed) else { return None };
        let by = match b {
            Val::Reg(b) if b == x => Val::Reg(a),
            _ if a == x => b,
            _ => return None,
        };
        let shifted = matches!(
            self.def(x),
            Some(Op::Bin { op: BinOp::Shl | BinOp::Shr | BinOp::Sar, width: made, b: Val::Imm(_), .. })
                if *made == width
        );
        let here = self.s.blocks[x.index()] == self.block && self.s.blocks[changed.index()] == self.block;
        let alone = self.s.uses[changed.index()] == 0 && self.s.uses[x.index()] == 1;
        if !MASKED.contains(&op) || !shifted || !here || !alone || by == Val::Reg(x) {
            return None;
        }
        self.done += 1;
        let made = mask_width(width, bit);
        let [left, right] = spread(made, bit).map(i64::from);
        let mut bin = |op, width, a, b, dst| self.value(Op::Bin { op, width, dst: NEW, a, b }, dst, 0);
        let top = bin(BinOp::Shl, made, tested, Val::Imm(left), NEW);
        let mask = bin(BinOp::Sar, made, top, Val::Imm(right), NEW);
        let part = bin(BinOp::And, width, mask, by, NEW);
        Some(bin(op, width, x, Val::Reg(part), dst))
    }

    /// Turns `p & m` into `c ? p : 0`, where every bit of m is the bit that c tests, and nothing else reads m. A
    /// machine with `test` then needs no copy, two shifts and a mask.
    pub(super) fn unmasked(&mut self, width: Width, mask: VReg, p: VReg, dst: VReg, depth: u32) -> Option<VReg> {
        let Some(&Op::Bin { op: BinOp::Sar, width: made, a: top, b: Val::Imm(right), .. }) = self.def(mask) else {
            return None;
        };
        let Some(&Op::Bin { op: BinOp::Shl, width: shifted, a, b: Val::Imm(left), .. }) = self.def(top) else {
            return None;
        };
        let highest = rules::bits(width) - 1;
        let bit = u8::try_from(left).ok().and_then(|left| highest.checked_sub(left))?;
        let is_spread = spread(width, bit).map(i64::from) == [left, right] && [made, shifted] == [width; 2];
        // A mask of bit 31 or above at 64 bits would be a constant of more than 32 bits, which must be made in a
        // register.
        let short = width == Width::W32 || bit < 31;
        let alone = self.s.uses[mask.index()] == 0 && self.s.uses[top.index()] == 1;
        let whole = self.s.bits[p.index()] <= rules::bits(width);
        if self.addresses.operands != Takes::Memory || !is_spread || !short || !alone || !whole || p == mask {
            return None;
        }
        self.done += 1;
        let no = self.mov(Width::W64, Val::Imm(0), NEW);
        let b = Val::Imm(rules::sign(width, 1 << bit));
        let select = Op::Select { width, cond: Cond::Set, a, b, dst: NEW, yes: p, no };
        Some(self.value(select, dst, depth + 1))
    }

    /// Returns the value of which a selection's condition tests one bit, the bit's number, and whether the condition
    /// holds if the bit is set.
    fn one_bit(&self, select: &Op) -> Option<(VReg, u8, bool)> {
        let Op::Select { width, cond, a, b: Val::Imm(imm), .. } = *select else { return None };
        let bit = |width: Width, mask: i64| {
            let mask = narrow(width, mask as u64);
            mask.is_power_of_two().then(|| crate::num::count(mask.trailing_zeros()))
        };
        match (cond, rules::sign(width, imm as u64)) {
            (Cond::Set, _) => Some((a, bit(width, imm)?, true)),
            (Cond::Eq | Cond::Ne, 0) => match *self.def(a)? {
                Op::Bin { op: BinOp::And, width: made, a, b: Val::Imm(mask), .. } => {
                    let bit = bit(made, mask).filter(|bit| *bit < rules::bits(width))?;
                    Some((a, bit, cond == Cond::Ne))
                }
                _ => None,
            },
            _ => asks_sign(width, cond, imm).map(|is_set| (a, rules::bits(width) - 1, is_set)),
        }
    }
}
