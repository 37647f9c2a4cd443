//! Words that are terms: the verifier's and the optimiser's code runs on them as on `u64`.
//!
//! A constant is kept as a number, because the code's constants are made before there is a table of terms. Each
//! comparison is a decision of [`crate::paths`]; each step requires that it would not panic on `u64` (an overflow, a
//! shift too far, a division by zero).

use crate::paths::{self, decide, require};
use crate::term::{Op, Term};
use bpf_isa::AluOp;
use bpf_isa::word::{Numbers, Signed, Wide, Word};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Neg, Not, Shl, Shr, Sub};

/// An unsigned number of 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum U {
    Const(u64),
    Of(Term),
}

/// A signed word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum S {
    Const(i64),
    Of(Term),
}

/// A signed one of 128 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct W(Term);

impl U {
    pub(crate) fn term(self) -> Term {
        match self {
            U::Const(value) => Term::constant(64, value.into()),
            U::Of(term) => term,
        }
    }

    fn from(term: Term) -> U {
        term.known().map_or(U::Of(term), |value| U::Const(value as u64))
    }

    fn op(op: Op, a: U, b: U) -> U {
        U::from(Term::op(op, a.term(), b.term()))
    }
}

impl S {
    fn term(self) -> Term {
        match self {
            S::Const(value) => Term::constant(64, value as u64 as u128),
            S::Of(term) => term,
        }
    }

    fn from(term: Term) -> S {
        term.known().map_or(S::Of(term), |value| S::Const(value as u64 as i64))
    }

    fn op(op: Op, a: S, b: S) -> S {
        S::from(Term::op(op, a.term(), b.term()))
    }
}

fn less(op: Op, a: Term, b: Term) -> bool {
    decide(Term::op(op, a, b))
}

/// Whether a 64-bit operation on terms stays the same with more bits.
fn exact(op: Op, a: Term, b: Term, extend: fn(Term, u32) -> Term) -> Term {
    let wide = Term::op(op, extend(a, 66), extend(b, 66));
    Term::op(Op::Eq, wide, extend(Term::op(op, a, b), 66))
}

macro_rules! compared {
    ($type:ident, $less:ident, $at_most:ident) => {
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                decide(Term::op(Op::Eq, self.term(), other.term()))
            }
        }
        impl Eq for $type {}
        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.term().hash(state);
            }
        }
        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(match () {
                    () if self == other => Ordering::Equal,
                    () if self < other => Ordering::Less,
                    () => Ordering::Greater,
                })
            }
            fn lt(&self, other: &Self) -> bool {
                less(Op::$less, self.term(), other.term())
            }
            fn le(&self, other: &Self) -> bool {
                less(Op::$at_most, self.term(), other.term())
            }
            fn gt(&self, other: &Self) -> bool {
                other < self
            }
            fn ge(&self, other: &Self) -> bool {
                other <= self
            }
        }
    };
}

compared!(U, Ult, Ule);
compared!(S, Slt, Sle);

macro_rules! operators {
    ($type:ident, $extend:ident, $shr:ident) => {
        operators!(@bits $type, BitAnd, bitand, And);
        operators!(@bits $type, BitOr, bitor, Or);
        operators!(@bits $type, BitXor, bitxor, Xor);
        operators!(@exact $type, Add, add, Add, $extend);
        operators!(@exact $type, Sub, sub, Sub, $extend);
        impl Not for $type {
            type Output = $type;
            fn not(self) -> $type {
                $type::op(Op::Xor, self, $type::from(Term::constant(64, u64::MAX.into())))
            }
        }
        operators!(@shift $type, Shl, shl, Shl);
        operators!(@shift $type, Shr, shr, $shr);
    };
    (@bits $type:ident, $trait:ident, $method:ident, $op:ident) => {
        impl $trait for $type {
            type Output = $type;
            fn $method(self, other: $type) -> $type {
                $type::op(Op::$op, self, other)
            }
        }
    };
    (@exact $type:ident, $trait:ident, $method:ident, $op:ident, $extend:ident) => {
        impl $trait for $type {
            type Output = $type;
            fn $method(self, other: $type) -> $type {
                require(exact(Op::$op, self.term(), other.term(), Term::$extend), "an overflow");
                $type::op(Op::$op, self, other)
            }
        }
    };
    (@shift $type:ident, $trait:ident, $method:ident, $op:ident) => {
        impl $trait<U> for $type {
            type Output = $type;
            fn $method(self, count: U) -> $type {
                require(Term::op(Op::Ult, count.term(), Term::constant(64, 64)), "a shift too far");
                $type::from(Term::op(Op::$op, self.term(), count.term()))
            }
        }
        impl $trait<u32> for $type {
            type Output = $type;
            fn $method(self, count: u32) -> $type {
                self.$method(U::Const(count.into()))
            }
        }
    };
}

operators!(U, zext, Lshr);
operators!(S, sext, Ashr);

impl Neg for S {
    type Output = S;
    fn neg(self) -> S {
        S::ZERO - self
    }
}

impl Div for S {
    type Output = S;
    fn div(self, other: S) -> S {
        let (a, b) = (self.term(), other.term());
        require(Term::op(Op::Eq, b, S::ZERO.term()).not(), "a division by zero");
        let least = Term::op(Op::Eq, a, S::LEAST[64].term());
        require(least.and(Term::op(Op::Eq, b, S::Const(-1).term())).not(), "an overflow");
        S::op(Op::Sdiv, self, other)
    }
}

impl Word for U {
    type Signed = S;
    type Wide = W;

    const ZERO: Self = U::Const(0);
    const ONE: Self = U::Const(1);
    const ONES: [Self; 65] = {
        let mut table = [U::Const(0); 65];
        let mut w = 0;
        while w <= 64 {
            table[w] = U::Const(<u64 as Word>::ONES[w]);
            w += 1;
        }
        table
    };

    fn of(value: u64) -> Self {
        U::Const(value)
    }
    fn signed(self) -> S {
        S::from(self.term())
    }
    fn wide(self) -> W {
        W(self.term().zext(128))
    }
    fn min(self, other: Self) -> Self {
        U::from(Term::op(Op::Ule, self.term(), other.term()).choose(self.term(), other.term()))
    }
    fn max(self, other: Self) -> Self {
        U::from(Term::op(Op::Ule, self.term(), other.term()).choose(other.term(), self.term()))
    }
    fn wrapping_add(self, other: Self) -> Self {
        U::op(Op::Add, self, other)
    }
    fn wrapping_sub(self, other: Self) -> Self {
        U::op(Op::Sub, self, other)
    }
    fn wrapping_mul(self, other: Self) -> Self {
        U::op(Op::Mul, self, other)
    }
    fn checked_add(self, other: Self) -> Option<Self> {
        decide(exact(Op::Add, self.term(), other.term(), Term::zext)).then(|| self.wrapping_add(other))
    }
    fn checked_sub(self, other: Self) -> Option<Self> {
        decide(exact(Op::Sub, self.term(), other.term(), Term::zext)).then(|| self.wrapping_sub(other))
    }
    fn checked_div(self, other: Self) -> Option<Self> {
        (other != U::ZERO).then(|| U::op(Op::Udiv, self, other))
    }
    fn checked_rem(self, other: Self) -> Option<Self> {
        (other != U::ZERO).then(|| U::op(Op::Urem, self, other))
    }
    fn is_power_of_two(self) -> bool {
        let rest = self & self.wrapping_sub(U::ONE);
        U::ask(|| self != U::ZERO && rest == U::ZERO)
    }
    fn count_ones(self) -> Self {
        (0..64).fold(U::ZERO, |sum, bit| sum.wrapping_add(self >> bit & U::ONE))
    }
    fn trailing_zeros(self) -> Self {
        // Counts the bits below the lowest bit that is set.
        (!self & self.wrapping_sub(U::ONE)).count_ones()
    }
    fn swap_bytes(self) -> Self {
        (0..8).fold(U::ZERO, |all, byte| all | (self >> (8 * byte) & U::Const(0xff)) << (56 - 8 * byte))
    }
    fn fill(self) -> Self {
        [1, 2, 4, 8, 16, 32].into_iter().fold(self, |x, n| x | x >> n)
    }
    fn one_if(condition: impl Fn() -> bool) -> Self {
        U::from(paths::truth_of(condition).choose(U::ONE.term(), U::ZERO.term()))
    }
    fn step<A: Numbers<Self>>(set: &mut A, _: impl FnOnce(&mut A) -> bool) -> bool {
        paths::stand_in(set)
    }
    fn operation<A: Numbers<Self>>(op: AluOp, (a, b): (A, A), counts: (U, U), _: impl FnOnce() -> A) -> A {
        paths::stand_in_for(op, a, b, counts)
    }
    fn ask(question: impl Fn() -> bool) -> bool {
        decide(paths::truth_of(question))
    }
}

impl Signed for S {
    type Unsigned = U;

    const ZERO: Self = S::Const(0);
    const ONE: Self = S::Const(1);
    const LEAST: [Self; 65] = {
        let mut table = [S::Const(0); 65];
        let mut w = 0;
        while w <= 64 {
            table[w] = S::Const(<i64 as Signed>::LEAST[w]);
            w += 1;
        }
        table
    };
    const MOST: [Self; 65] = {
        let mut table = [S::Const(0); 65];
        let mut w = 0;
        while w <= 64 {
            table[w] = S::Const(<i64 as Signed>::MOST[w]);
            w += 1;
        }
        table
    };

    fn unsigned(self) -> U {
        U::from(self.term())
    }
    fn wide(self) -> W {
        W(self.term().sext(128))
    }
    fn min(self, other: Self) -> Self {
        S::from(Term::op(Op::Sle, self.term(), other.term()).choose(self.term(), other.term()))
    }
    fn max(self, other: Self) -> Self {
        S::from(Term::op(Op::Sle, self.term(), other.term()).choose(other.term(), self.term()))
    }
    fn wrapping_add(self, other: Self) -> Self {
        S::op(Op::Add, self, other)
    }
    fn wrapping_sub(self, other: Self) -> Self {
        S::op(Op::Sub, self, other)
    }
    fn wrapping_div(self, other: Self) -> Self {
        require(Term::op(Op::Eq, other.term(), S::ZERO.term()).not(), "a division by zero");
        S::op(Op::Sdiv, self, other)
    }
    fn wrapping_rem(self, other: Self) -> Self {
        require(Term::op(Op::Eq, other.term(), S::ZERO.term()).not(), "a division by zero");
        S::op(Op::Srem, self, other)
    }
    fn checked_add(self, other: Self) -> Option<Self> {
        decide(exact(Op::Add, self.term(), other.term(), Term::sext)).then(|| self.wrapping_add(other))
    }
    fn checked_sub(self, other: Self) -> Option<Self> {
        decide(exact(Op::Sub, self.term(), other.term(), Term::sext)).then(|| self.wrapping_sub(other))
    }
    fn signum(self) -> Self {
        let sign = Term::op(Op::Slt, self.term(), S::ZERO.term());
        let zero = Term::op(Op::Eq, self.term(), S::ZERO.term());
        S::from(zero.choose(S::ZERO.term(), sign.choose(S::Const(-1).term(), S::ONE.term())))
    }
    fn unsigned_abs(self) -> U {
        let sign = Term::op(Op::Slt, self.term(), S::ZERO.term());
        let negative = Term::op(Op::Sub, S::ZERO.term(), self.term());
        U::from(sign.choose(negative, self.term()))
    }
}

impl PartialEq for W {
    fn eq(&self, other: &Self) -> bool {
        decide(Term::op(Op::Eq, self.0, other.0))
    }
}

impl PartialOrd for W {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(match () {
            () if self == other => Ordering::Equal,
            () if less(Op::Slt, self.0, other.0) => Ordering::Less,
            () => Ordering::Greater,
        })
    }
}

impl Add for W {
    type Output = W;
    fn add(self, other: W) -> W {
        W(Term::op(Op::Add, self.0, other.0))
    }
}

impl Shl<u32> for W {
    type Output = W;
    fn shl(self, count: u32) -> W {
        W(Term::op(Op::Shl, self.0, Term::constant(128, count.into())))
    }
}

impl Shr<u32> for W {
    type Output = W;
    fn shr(self, count: u32) -> W {
        W(Term::op(Op::Ashr, self.0, Term::constant(128, count.into())))
    }
}

impl Wide<U> for W {
    fn min(self, other: Self) -> Self {
        W(Term::op(Op::Sle, self.0, other.0).choose(self.0, other.0))
    }
    fn max(self, other: Self) -> Self {
        W(Term::op(Op::Sle, self.0, other.0).choose(other.0, self.0))
    }
    fn wrapping_mul(self, other: Self) -> Self {
        W(Term::op(Op::Mul, self.0, other.0))
    }
    fn low(self) -> U {
        U::from(self.0.low(64))
    }
}
