//! Turns division by a constant into multiplication.
//!
//! For a divisor d that is no power of two, x / d is the high half of x times a multiplier of about 2^n / d, shifted
//! right (Granlund and Montgomery, "Division by Invariant Integers using Multiplication"). Where x has at most 32 bits,
//! a multiplier of 64 bits is exact: with m = floor(2^64 / d) + 1 the product exceeds 2^64 x / d by at most x d / d,
//! less than 2^32, and x / d is at least 1 / d away from the next integer.

use super::{NEW, Pass};
use bpf_isa::Width;
use bpf_lir::{BinOp, Op, VReg, Val};

/// The constants with which x / d = ((x * multiplier >> 64), plus x before the shift if `add`) >> shift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Magic {
    multiplier: u64,
    add: bool,
    shift: u32,
}

/// Computes the constants for a divisor d that is neither 0, 1 nor a power of two. They are right for all x of 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "d is above 2^(log - 1), so both quotients are below 2^64")]
fn magic(d: u64) -> Magic {
    // `log` is ceil(log2 d). The multiplier 2^(64 + log) / d, rounded up, has 65 bits.
    let log = 64 - (d - 1).leading_zeros();
    let wide = |n: u32| {
        // floor(2^(64 + n) / d) + 1 without its 65th bit: 2^64 d is subtracted from the dividend first.
        let high = (1u128 << n) - u128::from(d).min(1u128 << n);
        (((high << 64) / u128::from(d)) as u64).wrapping_add(1)
    };
    // A multiplier with one bit less is exact for many divisors: it must be too large by so little that the excess
    // times d is at most 2^(log - 1).
    let short = ((1u128 << (64 + log - 1)) / u128::from(d)) as u64;
    let excess = u128::from(d) - ((1u128 << (64 + log - 1)) % u128::from(d));
    if excess <= 1u128 << (log - 1) {
        return Magic { multiplier: short.wrapping_add(1), add: false, shift: log - 1 };
    }
    Magic { multiplier: wide(log), add: true, shift: log }
}

impl Pass<'_> {
    /// Replaces an unsigned division or remainder by a constant, if the constant is at least 3 and no power of two.
    pub(super) fn divide(&mut self, op: BinOp, width: Width, a: VReg, b: Val, dst: VReg, depth: u32) -> Option<VReg> {
        let (BinOp::Div | BinOp::Mod, Val::Imm(imm)) = (op, b) else { return None };
        let d = bpf_lir::narrow(width, imm as u64);
        if d < 3 || d.is_power_of_two() {
            return None;
        }
        self.done += 1;
        let x = match width {
            Width::W32 => self.value(Op::Mov { width, dst: NEW, src: Val::Reg(a) }, NEW, depth + 1),
            Width::W64 => a,
        };
        let remainder = op == BinOp::Mod;
        let quotient = self.quotient(x, d, if remainder { NEW } else { dst }, depth);
        if !remainder {
            return Some(quotient);
        }
        let b = Val::Imm(imm);
        let product = self.value(Op::Bin { op: BinOp::Mul, width, dst: NEW, a: quotient, b }, NEW, depth + 1);
        Some(self.value(Op::Bin { op: BinOp::Sub, width, dst: NEW, a: x, b: Val::Reg(product) }, dst, depth + 1))
    }

    fn quotient(&mut self, x: VReg, d: u64, dst: VReg, depth: u32) -> VReg {
        let width = Width::W64;
        if self.s.bits[x.index()] <= 32 {
            if d >> 32 != 0 {
                return self.mov(width, Val::Imm(0), dst);
            }
            let b = Val::Imm((u64::MAX / d + 1) as i64);
            return self.value(Op::Bin { op: BinOp::MulHighU, width, dst: NEW, a: x, b }, dst, depth + 1);
        }
        let mut bin = |op, a, b, dst| self.value(Op::Bin { op, width, dst: NEW, a, b }, dst, depth + 1);
        let Magic { multiplier, add, shift } = magic(d);
        let high = bin(BinOp::MulHighU, x, Val::Imm(multiplier as i64), NEW);
        if !add {
            return bin(BinOp::Shr, high, Val::Imm(shift.into()), dst);
        }
        // x + high has 65 bits. Half of it is high + (x - high) / 2, since high is not above x.
        let rest = bin(BinOp::Sub, x, Val::Reg(high), NEW);
        let half = bin(BinOp::Shr, rest, Val::Imm(1), NEW);
        let sum = bin(BinOp::Add, half, Val::Reg(high), NEW);
        bin(BinOp::Shr, sum, Val::Imm(i64::from(shift) - 1), dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(x: u64, Magic { multiplier, add, shift }: Magic) -> u64 {
        let high = ((u128::from(x) * u128::from(multiplier)) >> 64) as u64;
        match add {
            false => high >> shift,
            true => (((x - high) >> 1) + high) >> (shift - 1),
        }
    }

    /// Checks quotients at the values of x where they change and at the ends of the range, which a wrong multiplier
    /// fails first.
    #[test]
    fn quotients_are_right_where_they_change() {
        let mut random = 3u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            random ^ random >> 31
        };
        let edges = (0..64).flat_map(|n| [(1u64 << n).wrapping_sub(1), 1u64 << n, (1u64 << n).wrapping_add(1)]);
        let divisors: Vec<u64> = (3..2000).chain(edges).chain((0..2000).map(|n| next() >> (n % 63))).collect();
        for d in divisors.into_iter().filter(|d| *d > 2 && !d.is_power_of_two()) {
            let quotients = (0..40).map(|n| next() >> (n % 64)).chain([1, 2, u64::MAX / d]);
            let around = quotients.map(|q| q % (u64::MAX / d + 1)).flat_map(|q| {
                let x = q * d;
                [x, x.wrapping_sub(1), x.wrapping_add(d - 1)]
            });
            for x in around.chain([0, 1, d - 1, d, u64::MAX, u64::MAX - 1]) {
                assert_eq!(by(x, magic(d)), x / d, "{x} / {d}: {:?}", magic(d));
                if d >> 32 == 0 {
                    let (x, m) = (x & 0xffff_ffff, u64::MAX / d + 1);
                    assert_eq!(((u128::from(x) * u128::from(m)) >> 64) as u64, x / d, "{x} / {d} at 32 bits");
                }
            }
        }
    }
}
