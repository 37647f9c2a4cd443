//! Numbers to which compilers add a power of two that is truncated later.
//!
//! Problem: of `(u32)(len - 32) / 4` only 32 bits are used, so clang computes `(len + 2^34 - 32) >> 2` and takes the
//! low half: the subtraction becomes a large sum that no 32-bit distance expresses. Approach: the sum is remembered by
//! the number that it is ahead of, `V(sum) = number + by`, where `by` is the power of two next above the added
//! constant; quotients of the sum are remembered likewise. An operation that depends only on bits below that power
//! works on the number instead.
//!
//! Claim: such an operation has the same result for the number. Proof: the sum does not wrap, as checked below, so it
//! is the number plus `by` in the integers. Let `by` be a multiple of 2^n. The low n bits of the sum and the number are
//! equal. Therefore equal are the results of a 32-bit operation if n is at least 32, of a mask without bits from n on,
//! and of a shift to the left by at least 64 - n. And `(number + by) >> k` is `(number >> k) + (by >> k)` for all k up
//! to n, since the shift drops only zeros of `by`.
//!
//! Invariants: those of [`Definition`], by which the sum is remembered ([`Made::Ahead`]).

use bpf_isa::{AluOp, Reg, Src, Width};

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Affine, Definition, Made};
use crate::value::Value;

/// The least and the greatest power of two that is handled.
const LEAST: u64 = 1 << 32;
const MOST: u64 = 1 << 48;

impl Walk<'_> {
    /// Performs the operation on the number that `dst` is ahead of, if the result is the same, or creates such a sum.
    /// `true` if the operation is done.
    pub(super) fn ahead(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        // If both operands are the sum, the other one cannot be replaced.
        if src == Src::Reg(dst) {
            return false;
        }
        let constant = match src {
            Src::Imm(i) => Some(i as i64 as u64),
            Src::Reg(r) => self.state.reg(r).as_const(),
        };
        if let (Width::W64, AluOp::Add, Some(c @ LEAST..=MOST)) = (width, op, constant) {
            return self.goes_ahead(dst, c);
        }
        let Some((v, by)) = self.is_ahead_of(dst) else { return false };
        let low = by.trailing_zeros();
        match (width, op, constant) {
            (Width::W64, AluOp::Rsh, Some(k)) if k <= low.into() && by >> k != 0 => {
                let Ok(count) = i32::try_from(k) else { return false };
                self.decides();
                self.state.set(dst, v);
                self.numbers(Width::W64, AluOp::Rsh, dst, Src::Imm(count));
                self.give_name(dst);
                let v = *self.state.reg(dst);
                self.set_ahead(dst, v, by >> k);
                true
            }
            (Width::W64, AluOp::And, Some(mask)) if mask >> low == 0 => self.falls_back(dst, v),
            (Width::W64, AluOp::Lsh, Some(k)) if k < 64 && k + u64::from(low) >= 64 => self.falls_back(dst, v),
            (Width::W32, ..) if low >= 32 => self.falls_back(dst, v),
            _ => false,
        }
    }

    /// The number whose low half is the register's low half, if the register is ahead of it by a multiple of 2^32.
    pub(super) fn short_behind(&self, r: Reg) -> Option<Value> {
        self.is_ahead_of(r).filter(|(_, by)| by.trailing_zeros() >= 32).map(|(v, _)| v)
    }

    /// Adds a constant such that the sum is ahead of a number. `false` if that does not apply.
    fn goes_ahead(&mut self, dst: Reg, c: u64) -> bool {
        let d = *self.state.reg(dst);
        let by = c.next_power_of_two();
        let less = by - c;
        let Ok(apart) = i32::try_from(less) else { return false };
        // The number must not be negative, and the sum must fit 64 bits.
        let above = d.n.umin() >= less || planted!(AheadOfNothing);
        let Some(delta) = d.delta.checked_sub(apart) else { return false };
        if !d.is_scalar() || d.id == 0 || !above || d.n.umax() > MOST || !self.relates() {
            return false;
        }
        self.decides();
        let n = d.n.alu(AluOp::Sub, Width::W64, &Scalar::constant(less));
        let n = n.meet(&Scalar::unsigned(0, MOST)).unwrap_or(n);
        self.set_ahead(dst, Value { n, delta, ..d }, by);
        true
    }

    /// Sets the register to `v + by`.
    fn set_ahead(&mut self, dst: Reg, v: Value, by: u64) {
        let n = v.n.alu(AluOp::Add, Width::W64, &Scalar::constant(by));
        self.state.set(dst, Value::scalar(n));
        let Some(of) = Affine::of(&v) else { return };
        self.give_name(dst);
        let result = *self.state.reg(dst);
        if result.id != 0 {
            self.state.define(Definition { name: result.id, result, of, made: Made::Ahead(by) });
            self.copied_at = Some(self.stats.steps);
        }
    }

    /// The number that the register is ahead of, and the distance.
    fn is_ahead_of(&self, r: Reg) -> Option<(Value, u64)> {
        let d = self.state.reg(r);
        let (of, made, by) = self.state.definitions_of(d).find_map(|x| match x.made {
            Made::Ahead(by) => Some((x.of, x.made, by)),
            Made::Masked(_) | Made::Right(_) | Made::Left { .. } | Made::Inverted | Made::Modulo { .. } => None,
        })?;
        // The range that later comparisons have shown of the sum, and of its low half.
        let n = self.state.range_of(of).meet(&made.operand(&d.n))?;
        let short = by.trailing_zeros() >= 32 && n.high_half_is_zero();
        let n = if short { n.meet(&d.n.zext_low())? } else { n };
        Some((of.value(n), by))
    }

    /// Replaces the register by the number that it was ahead of, for the next operation.
    fn falls_back(&mut self, dst: Reg, v: Value) -> bool {
        self.decides();
        self.state.set(dst, v);
        self.state.bound_by(&v);
        false
    }
}
