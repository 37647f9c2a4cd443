//! Numbers as a trait, so that generic code runs on integers and can be proven on a solver's terms.
//!
//! Problem: a verifier's conclusion from a comparison, or an optimiser's replacement of an expression, must be
//! correct for every number, and a proof about a copy of such code says nothing about the code. Approach: the code is
//! generic over [`Word`]. It runs on `u64`, and `cargo xtask prove` runs this very code on the terms of a solver. An
//! `if` stays an `if`: a comparison is a `bool`, and the prover runs the code once for each possible outcome of its
//! comparisons.
//!
//! Invariants: on `u64` and `i64` every method is the one with that name (or the one line given here), inlined.
//! There, [`Word::step`], [`Word::operation`] and [`Word::ask`] only call their argument. A step and an operation are
//! proven separately; in the proof of the code that contains them, any result that satisfies their contract replaces
//! them.

use crate::insn::AluOp;
use core::fmt::Debug;
use core::hash::Hash;
use core::ops::{Add, BitAnd, BitOr, BitXor, Div, Neg, Not, Shl, Shr, Sub};

/// A 64-bit number, as an unsigned one.
pub trait Word:
    Copy
    + Eq
    + PartialOrd
    + Hash
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
    + Shl<Self, Output = Self>
    + Shr<Self, Output = Self>
{
    /// The signed type of equal width.
    type Signed: Signed<Unsigned = Self>;
    /// The type with twice the number of bits.
    type Wide: Wide<Self>;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// By index: the number whose lowest `index` bits are set.
    const ONES: [Self; 65];

    /// Converts from a `u64`.
    fn of(value: u64) -> Self;
    /// Reinterprets the bits as a signed number.
    fn signed(self) -> Self::Signed;
    /// Converts to twice the number of bits.
    fn wide(self) -> Self::Wide;

    /// As on `u64`.
    fn min(self, other: Self) -> Self;
    /// As on `u64`.
    fn max(self, other: Self) -> Self;
    /// As on `u64`.
    fn wrapping_add(self, other: Self) -> Self;
    /// As on `u64`.
    fn wrapping_sub(self, other: Self) -> Self;
    /// As on `u64`.
    fn wrapping_mul(self, other: Self) -> Self;
    /// As on `u64`.
    fn checked_add(self, other: Self) -> Option<Self>;
    /// As on `u64`.
    fn checked_sub(self, other: Self) -> Option<Self>;
    /// As on `u64`.
    fn checked_div(self, other: Self) -> Option<Self>;
    /// As on `u64`.
    fn checked_rem(self, other: Self) -> Option<Self>;
    /// As on `u64`.
    fn is_power_of_two(self) -> bool;
    /// As on `u64`, with the count as a `Self`.
    fn count_ones(self) -> Self;
    /// As on `u64`, with the count as a `Self`.
    fn trailing_zeros(self) -> Self;
    /// As on `u64`.
    fn swap_bytes(self) -> Self;

    /// Sets every bit below the highest set bit.
    fn fill(self) -> Self;

    /// The low `w` bits, sign-extended.
    #[inline(always)]
    fn sext(self, w: u32) -> Self::Signed {
        (self << (64 - w)).signed() >> (64 - w)
    }

    /// 1 if the condition holds, else 0.
    #[inline(always)]
    fn one_if(condition: impl Fn() -> bool) -> Self {
        Self::of(u64::from(condition()))
    }

    /// A step that loses no number: every number in `set` before the step is in `set` after it, and the step returns
    /// `true` if there is one.
    #[inline(always)]
    fn step<S: Numbers<Self>>(set: &mut S, step: impl FnOnce(&mut S) -> bool) -> bool {
        step(set)
    }

    /// An operation on abstract operands: the result contains the instruction's result for all numbers that the
    /// operands contain. A shift count, if there is one, lies between the two numbers in `counts`, both included.
    #[inline(always)]
    fn operation<S: Numbers<Self>>(_: AluOp, _: (S, S), _counts: (Self, Self), operation: impl FnOnce() -> S) -> S {
        operation()
    }

    /// A question of which only the answer matters, and not the computation.
    #[inline(always)]
    fn ask(question: impl Fn() -> bool) -> bool {
        question()
    }
}

/// A 64-bit number, as a signed one.
pub trait Signed:
    Copy
    + Eq
    + PartialOrd
    + Hash
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Neg<Output = Self>
    + Div<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Shl<Self::Unsigned, Output = Self>
    + Shr<u32, Output = Self>
    + Shr<Self::Unsigned, Output = Self>
{
    /// The unsigned type of equal width.
    type Unsigned: Word<Signed = Self>;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// By index from 1: the smallest number of that many bits.
    const LEAST: [Self; 65];
    /// By index from 1: the largest number of that many bits.
    const MOST: [Self; 65];

    /// Reinterprets the bits as an unsigned number.
    fn unsigned(self) -> Self::Unsigned;
    /// Converts to twice the number of bits.
    fn wide(self) -> <Self::Unsigned as Word>::Wide;

    /// As on `i64`.
    fn min(self, other: Self) -> Self;
    /// As on `i64`.
    fn max(self, other: Self) -> Self;
    /// As on `i64`.
    fn wrapping_add(self, other: Self) -> Self;
    /// As on `i64`.
    fn wrapping_sub(self, other: Self) -> Self;
    /// As on `i64`.
    fn wrapping_div(self, other: Self) -> Self;
    /// As on `i64`.
    fn wrapping_rem(self, other: Self) -> Self;
    /// As on `i64`.
    fn checked_add(self, other: Self) -> Option<Self>;
    /// As on `i64`.
    fn checked_sub(self, other: Self) -> Option<Self>;
    /// As on `i64`.
    fn signum(self) -> Self;
    /// As on `i64`.
    fn unsigned_abs(self) -> Self::Unsigned;

    /// The number as an unsigned one, if it is not negative.
    #[inline(always)]
    fn not_negative(self) -> Option<Self::Unsigned> {
        (self >= Self::ZERO).then_some(self.unsigned())
    }
}

/// A 128-bit number, as a signed one.
pub trait Wide<T: Word>:
    Copy + PartialOrd + Add<Output = Self> + Shr<u32, Output = Self> + Shl<u32, Output = Self>
{
    /// As on `i128`.
    fn min(self, other: Self) -> Self;
    /// As on `i128`.
    fn max(self, other: Self) -> Self;
    /// As on `i128`.
    fn wrapping_mul(self, other: Self) -> Self;
    /// The low 64 bits.
    fn low(self) -> T;
}

/// A type made of words that represents a set of numbers.
pub trait Numbers<T: Word>: Copy {
    /// Number of bits of the numbers.
    const BITS: u32;

    /// Makes a value from these words, not necessarily a well-formed one.
    fn of_words(next: &mut impl FnMut() -> T) -> Self;
    /// Whether the type's invariants hold.
    fn well_formed(&self) -> bool;
    /// Whether the number is in the set.
    fn holds(&self, x: T) -> bool;
}

/// All ones in the low `w` bits.
const fn ones(w: u32) -> u64 {
    if w >= 64 { u64::MAX } else { (1u64 << w) - 1 }
}

/// Implements methods by the inherent methods of the same names.
macro_rules! same {
    ($($name:ident($($arg:ident)?) -> $result:ty;)*) => {$(
        #[inline(always)]
        fn $name(self $(, $arg: Self)?) -> $result {
            <Self>::$name(self $(, $arg)?)
        }
    )*};
}

/// Implements the methods that both traits share.
macro_rules! ordered {
    () => {
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Ord::min(self, other)
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Ord::max(self, other)
        }
    };
}

impl Word for u64 {
    type Signed = i64;
    type Wide = i128;

    const ZERO: Self = 0;
    const ONE: Self = 1;
    const ONES: [Self; 65] = {
        let mut table = [0; 65];
        let mut w = 0;
        while w <= 64 {
            table[w] = ones(crate::small(w));
            w += 1;
        }
        table
    };

    #[inline(always)]
    fn of(value: u64) -> Self {
        value
    }
    #[inline(always)]
    fn signed(self) -> i64 {
        self as i64
    }
    #[inline(always)]
    fn wide(self) -> i128 {
        i128::from(self)
    }

    ordered!();
    same! {
        wrapping_add(other) -> Self;
        wrapping_sub(other) -> Self;
        wrapping_mul(other) -> Self;
        checked_add(other) -> Option<Self>;
        checked_sub(other) -> Option<Self>;
        checked_div(other) -> Option<Self>;
        checked_rem(other) -> Option<Self>;
        is_power_of_two() -> bool;
        swap_bytes() -> Self;
    }

    #[inline(always)]
    fn count_ones(self) -> Self {
        u64::from(u64::count_ones(self))
    }
    #[inline(always)]
    fn trailing_zeros(self) -> Self {
        u64::from(u64::trailing_zeros(self))
    }
    #[inline(always)]
    fn fill(self) -> Self {
        ones(64 - self.leading_zeros())
    }
}

impl Signed for i64 {
    type Unsigned = u64;

    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LEAST: [Self; 65] = {
        let mut table = [0; 65];
        let mut w = 1;
        while w <= 64 {
            table[w] = i64::MIN >> (64 - w);
            w += 1;
        }
        table
    };
    const MOST: [Self; 65] = {
        let mut table = [0; 65];
        let mut w = 1;
        while w <= 64 {
            table[w] = i64::MAX >> (64 - w);
            w += 1;
        }
        table
    };

    #[inline(always)]
    fn unsigned(self) -> u64 {
        self as u64
    }
    #[inline(always)]
    fn wide(self) -> i128 {
        i128::from(self)
    }

    ordered!();
    same! {
        wrapping_add(other) -> Self;
        wrapping_sub(other) -> Self;
        wrapping_div(other) -> Self;
        wrapping_rem(other) -> Self;
        checked_add(other) -> Option<Self>;
        checked_sub(other) -> Option<Self>;
        signum() -> Self;
        unsigned_abs() -> u64;
    }
}

impl Wide<u64> for i128 {
    ordered!();
    same! {
        wrapping_mul(other) -> Self;
    }
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "what is meant")]
    fn low(self) -> u64 {
        self as u64
    }
}
