//! Numbers, as code sees them that is proven for all of them.
//!
//! Problem: what a verifier concludes from a comparison, or an optimiser puts for an expression, must hold for every
//! number, and a proof about a copy of such code says nothing about the code. Approach: the code is generic over
//! [`Word`]. It runs on `u64`, and `cargo xtask prove` runs the very same code on the terms of a solver. An `if` stays
//! an `if`: a comparison is a `bool`, and the prover runs the code once for each way that its comparisons can go.
//!
//! Invariants: on `u64` and `i64` every method is the one of that name (or the one line that it says here), inlined;
//! [`Word::step`], [`Word::operation`] and [`Word::ask`] do nothing there but call. A step and an operation are
//! proven by themselves, and in the proof of what they are part of, anything that keeps their promise stands for them.

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
    /// The same number, as a signed one.
    type Signed: Signed<Unsigned = Self>;
    /// Numbers of twice the bits.
    type Wide: Wide<Self>;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// By index: so many low bits set.
    const ONES: [Self; 65];

    /// This number.
    fn of(value: u64) -> Self;
    /// The same bits, as a signed number.
    fn signed(self) -> Self::Signed;
    /// The same number with more bits.
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
    /// As on `u64`, the count a number.
    fn count_ones(self) -> Self;
    /// As on `u64`, the count a number.
    fn trailing_zeros(self) -> Self;
    /// As on `u64`.
    fn swap_bytes(self) -> Self;

    /// Every bit up to the highest one that is set.
    fn fill(self) -> Self;

    /// The low `w` bits, sign-extended.
    #[inline(always)]
    fn sext(self, w: u32) -> Self::Signed {
        (self << (64 - w)).signed() >> (64 - w)
    }

    /// 1 if it is so, else 0.
    #[inline(always)]
    fn one_if(condition: impl Fn() -> bool) -> Self {
        Self::of(u64::from(condition()))
    }

    /// A step that loses no number: if one is in `set` before, the step returns `true` and the number is in `set`.
    #[inline(always)]
    fn step<S: Numbers<Self>>(set: &mut S, step: impl FnOnce(&mut S) -> bool) -> bool {
        step(set)
    }

    /// An operation on what is known of its operands, of which a shift count, if it has one, lies between the two in
    /// `counts`: the result holds what the instruction computes of numbers that the operands hold.
    #[inline(always)]
    fn operation<S: Numbers<Self>>(_: AluOp, _: (S, S), _counts: (Self, Self), operation: impl FnOnce() -> S) -> S {
        operation()
    }

    /// A question, of which only the answer matters and not how it is found.
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
    /// The same number, as an unsigned one.
    type Unsigned: Word<Signed = Self>;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// By index, which is not 0: the least number of so many bits.
    const LEAST: [Self; 65];
    /// By index, which is not 0: the greatest number of so many bits.
    const MOST: [Self; 65];

    /// The same bits, as an unsigned number.
    fn unsigned(self) -> Self::Unsigned;
    /// The same number with more bits.
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

    /// The same number, if it is not negative.
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

/// Something made of words that stands for a set of numbers.
pub trait Numbers<T: Word>: Copy {
    /// How many bits the numbers have.
    const BITS: u32;

    /// One made of these words, not necessarily a well-formed one.
    fn of_words(next: &mut impl FnMut() -> T) -> Self;
    /// Whether it is as its type's invariants say.
    fn well_formed(&self) -> bool;
    /// Whether the number is in the set.
    fn holds(&self, x: T) -> bool;
}

/// All ones in the low `w` bits.
const fn ones(w: u32) -> u64 {
    if w >= 64 { u64::MAX } else { (1u64 << w) - 1 }
}

/// A method that is the one of the same name.
macro_rules! same {
    ($($name:ident($($arg:ident)?) -> $result:ty;)*) => {$(
        #[inline(always)]
        fn $name(self $(, $arg: Self)?) -> $result {
            <Self>::$name(self $(, $arg)?)
        }
    )*};
}

/// The same of two trait's methods.
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
