//! Transfer functions of the number domain: the abstract result of an operation on abstract operands.
//!
//! Approach: two constant operands are folded by [`eval`], the concrete definition, which the tests use as well.
//! Otherwise each component is computed from the same component of the operands. A component about which an operator
//! says nothing is left full, and is refined in `sync`. A low-half operation works on the low-half components alone and
//! zero-extends.
//!
//! Invariant: for every x in γ(a), y in γ(b): `eval(op, x, y)` is in γ(result).

use bpf_isa::word::{Signed, Word};
use bpf_isa::{AluOp, ByteOrder, Width};

use super::Num;
use crate::domain::interval::Interval;
use crate::domain::tnum::{Tnum, ones};

/// The concrete value of `a op b` in the low `w` bits of the operands, zero-extended (RFC 9669, section 4).
pub fn eval<T: Word>(op: AluOp, w: u32, a: T, b: T) -> T {
    let (a, b) = (a & ones(w), b & ones(w));
    let (sa, sb) = (a.sext(w), b.sext(w));
    let count = b & T::of(u64::from(w - 1));
    let r = match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(T::ZERO),
        AluOp::SDiv if b == T::ZERO => T::ZERO,
        AluOp::SDiv => sa.wrapping_div(sb).unsigned(),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SMod if b == T::ZERO => a,
        AluOp::SMod => sa.wrapping_rem(sb).unsigned(),
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a << count,
        AluOp::Rsh => a >> count,
        AluOp::Arsh => (sa >> count).unsigned(),
    };
    r & ones(w)
}

/// The shift counts that `b` allows at width `w`. Counts are masked, so a `b` that may be `w` or more allows every
/// count.
fn counts<const V: u32, T: Word>(b: Interval<V, T>, w: u32) -> (T, T) {
    let top = T::of(u64::from(w - 1));
    if b.umax <= top { (b.umin, b.umax) } else { (T::ZERO, top) }
}

/// The known bits of the result, from the known bits of the operands.
#[inline(always)]
fn bits_op<const V: u32, T: Word>(op: AluOp, a: Tnum<V, T>, b: Tnum<V, T>, kmin: T, kmax: T) -> Tnum<V, T> {
    T::operation(op, (a, b), (kmin, kmax), || bits(op, a, b, kmin, kmax))
}

/// The ranges of the result, from the ranges of the operands.
#[inline(always)]
fn range_op<const V: u32, T: Word>(
    op: AluOp,
    a: Interval<V, T>,
    b: Interval<V, T>,
    kmin: T,
    kmax: T,
) -> Interval<V, T> {
    T::operation(op, (a, b), (kmin, kmax), || range(op, a, b, kmin, kmax))
}

#[inline(always)]
pub(crate) fn bits<const V: u32, T: Word>(op: AluOp, a: Tnum<V, T>, b: Tnum<V, T>, kmin: T, kmax: T) -> Tnum<V, T> {
    match op {
        AluOp::Add => a.add(b),
        AluOp::Sub => a.sub(b),
        AluOp::Mul => a.mul(b),
        AluOp::Or => a.or(b),
        AluOp::And => a.and(b),
        AluOp::Xor => a.xor(b),
        AluOp::Lsh if kmin == kmax => a.lsh(kmin),
        AluOp::Rsh if kmin == kmax => a.rsh(kmin),
        AluOp::Arsh if kmin == kmax => a.arsh(kmin),
        // The result of a left shift by at least `kmin` has at least `kmin` zeros at its low end.
        AluOp::Lsh => Tnum::new(T::ZERO, ones::<T>(64) << kmin),
        AluOp::Rsh | AluOp::Arsh | AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod => Tnum::UNKNOWN,
    }
}

#[inline(always)]
pub(crate) fn range<const V: u32, T: Word>(
    op: AluOp,
    a: Interval<V, T>,
    b: Interval<V, T>,
    kmin: T,
    kmax: T,
) -> Interval<V, T> {
    match op {
        AluOp::Add => a.add(b),
        AluOp::Sub => a.sub(b),
        AluOp::Mul => a.mul(b),
        AluOp::Div => a.udiv(b),
        AluOp::SDiv => a.sdiv(b),
        AluOp::Mod => {
            let mut r = a.umod(b);
            if crate::faults::planted!(RemainderTooSmall) && r.umax > r.umin {
                r.umax = r.umax - T::ONE;
            }
            r
        }
        AluOp::SMod => a.smod(b),
        AluOp::Or => a.or(b),
        AluOp::And => a.and(b),
        AluOp::Xor => a.xor(b),
        AluOp::Lsh => a.lsh(kmin, kmax),
        AluOp::Rsh => a.rsh(kmin, kmax),
        AluOp::Arsh => a.arsh(kmin, kmax),
    }
}

/// Whether the low half of the result depends on the low halves of the operands only.
fn low_half_is_local(op: AluOp) -> bool {
    match op {
        AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor => true,
        // The low half of a left shift depends on the low half alone, too, but the count may exceed the half's width.
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh | AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod => false,
    }
}

impl<const W: u32, const H: u32, T: Word> Num<W, H, T> {
    /// `self op other` on the whole, or on the low halves, zero-extended.
    pub fn alu(&self, op: AluOp, width: Width, other: &Self) -> Self {
        let mut n = *self;
        n.alu_assign(op, width, other);
        n
    }

    /// [`Num::alu`] in place. A number is large, and copying one that was just written stalls on its stores.
    pub fn alu_assign(&mut self, op: AluOp, width: Width, other: &Self) {
        match width {
            Width::W64 => match (self.as_const(), other.as_const()) {
                (Some(a), Some(b)) => *self = Self::constant(eval(op, W, a, b)),
                _ => self.alu_full(op, other),
            },
            Width::W32 => match (self.bits.low::<H>(), other.bits.low::<H>()) {
                (a, b) if a.is_const() && b.is_const() => *self = Self::constant(eval(op, H, a.value(), b.value())),
                (a, b) => self.alu_low(op, a, b, other),
            },
        }
    }

    fn alu_full(&mut self, op: AluOp, other: &Self) {
        // If one operand may be any number, its sum, difference or exclusive or with the other may be any number.
        if matches!(op, AluOp::Add | AluOp::Sub | AluOp::Xor) && (self.knows_nothing() || other.knows_nothing()) {
            *self = Self::UNKNOWN;
            return;
        }
        // One arm for each operator, so that each is compiled for itself.
        match op {
            AluOp::Add => self.whole(AluOp::Add, other),
            AluOp::Sub => self.whole(AluOp::Sub, other),
            AluOp::Mul => self.whole(AluOp::Mul, other),
            AluOp::Div => self.whole(AluOp::Div, other),
            AluOp::SDiv => self.whole(AluOp::SDiv, other),
            AluOp::Mod => self.whole(AluOp::Mod, other),
            AluOp::SMod => self.whole(AluOp::SMod, other),
            AluOp::Or => self.whole(AluOp::Or, other),
            AluOp::And => self.whole(AluOp::And, other),
            AluOp::Xor => self.whole(AluOp::Xor, other),
            AluOp::Lsh => self.whole(AluOp::Lsh, other),
            AluOp::Rsh => self.whole(AluOp::Rsh, other),
            AluOp::Arsh => self.whole(AluOp::Arsh, other),
        }
        self.settle();
    }

    #[inline(always)]
    fn whole(&mut self, op: AluOp, other: &Self) {
        let (kmin, kmax) = counts(other.full, W);
        self.bits = bits_op(op, self.bits, other.bits, kmin, kmax);
        self.full = range_op(op, self.full, other.full, kmin, kmax);
        self.low =
            if low_half_is_local(op) { range_op(op, self.low, other.low, T::ZERO, T::ZERO) } else { Interval::FULL };
    }

    fn alu_low(&mut self, op: AluOp, a: Tnum<H, T>, b: Tnum<H, T>, other: &Self) {
        let (kmin, kmax) = counts(other.low, H);
        self.bits = bits_op(op, a, b, kmin, kmax).zext();
        self.low = range_op(op, self.low, other.low, kmin, kmax);
        self.full = Interval::unsigned(T::ZERO, ones(H));
        self.settle();
    }

    /// The low half, zero-extended: a 32-bit move.
    pub fn zext_low(&self) -> Self {
        if self.high_half_is_zero() {
            return *self;
        }
        Self::of(self.bits.low::<H>().zext(), Interval::unsigned(T::ZERO, ones(H)), self.low)
    }

    /// The low `bits` bits, zero-extended.
    pub fn truncate(&self, bits: u32) -> Self {
        if self.full.umax <= ones(bits) {
            return *self;
        }
        let low = if bits >= H { self.low } else { Interval::FULL };
        Self::of(self.bits.truncate(bits), Interval::unsigned(T::ZERO, ones(bits)), low)
    }

    /// The low `bits` bits, sign-extended to the whole.
    pub fn sign_extend(&self, bits: u32) -> Self {
        let (min, max) = (T::Signed::LEAST[bits as usize], T::Signed::MOST[bits as usize]);
        if min <= self.full.smin && self.full.smax <= max {
            return *self;
        }
        let full = if bits == H { Interval::signed(self.low.smin, self.low.smax) } else { Interval::signed(min, max) };
        let low = if bits >= H { self.low } else { Interval::FULL };
        Self::of(self.bits.sign_extend(bits), full, low)
    }

    /// `-self` at the given width.
    pub fn neg(&self, width: Width) -> Self {
        Self::constant(T::ZERO).alu(AluOp::Sub, width, self)
    }
}

impl<T: Word> Num<64, 32, T> {
    /// Byte order conversion of the low `bits` bits (16, 32 or 64) on a little-endian host, zero above.
    pub fn end(&self, order: ByteOrder, bits: u32) -> Self {
        match order {
            ByteOrder::ToLe => self.truncate(bits),
            ByteOrder::ToBe | ByteOrder::Swap => {
                Self::of(self.bits.byte_swap(bits), Interval::unsigned(T::ZERO, ones(bits)), Interval::FULL)
            }
        }
    }
}
