//! Rules about products and distances, generic over the kind of integer.
//!
//! Problem: the rules that a row of a table lies within the table, and that two pointers are at a distance, follow from
//! arithmetic that must be proven; a proof about a copy of the code says nothing about the code. Approach: the
//! arithmetic of the walk (`walk/products.rs`, `walk/objects.rs`, `walk/loops/guess.rs`, `walk/loops/guess/rows.rs`) is
//! here, over [`Integer`]. The walk runs it on `i128`. `cargo xtask prove` runs it on a solver's unbounded integers,
//! for which products of unknown numbers are easier than as bit vectors.
//!
//! Invariant: a product that might not fit `i128` is computed by [`Integer::times`]. All other operands are at most
//! [`BEYOND`] in magnitude, and the prover shows that the results fit.

use std::ops::{Add, Mul, Neg, Sub};

use crate::faults::planted;

/// Strict upper bound of all named values. Numbers are below 2^64, but a name may stand for a value beyond: for the
/// base of a multiple that lies above the number by a distance, or for a sum of two numbers that is only compared.
pub const BEYOND: i128 = 1 << 81;

/// An integer.
pub trait Integer:
    Copy + PartialOrd + From<i64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// The integer with the value of a `u64`.
    fn of(value: u64) -> Self;
    /// The product, if it fits `i128`.
    fn times(self, other: Self) -> Option<Self>;
    /// The quotient by a number above 0, if it divides the integer.
    fn over(self, other: Self) -> Option<Self>;
}

impl Integer for i128 {
    #[inline(always)]
    fn of(value: u64) -> i128 {
        value.into()
    }
    #[inline(always)]
    fn times(self, other: i128) -> Option<i128> {
        self.checked_mul(other)
    }
    #[inline(always)]
    fn over(self, other: i128) -> Option<i128> {
        (self % other == 0).then(|| self / other)
    }
}

fn one_if<I: Integer>(planted: bool) -> I {
    I::from(i64::from(planted))
}

/// Coefficients of V(p) and V(b) in a sum that is not positive, given `V(p) = V(a) * V(b)` and `least <= V(a)`.
pub fn product_at_least<I: Integer>(least: I) -> [I; 2] {
    [I::from(-1), least]
}

/// Coefficients of V(p) and V(b) in a sum that is not positive, given `V(p) = V(a) * V(b)` and `V(a) <= most`.
pub fn product_at_most<I: Integer>(most: I) -> [I; 2] {
    [I::from(1), -(most - one_if(planted!(ProductsLess)))]
}

/// Coefficients of V(p), V(b) and V(q) in a sum that is not positive, given `V(p) = V(a) * V(b)`, `V(q) = V(c) * V(b)`
/// and `V(a) + gap <= V(c)`.
pub fn product_beside<I: Integer>(gap: I) -> [I; 3] {
    [I::from(1), gap + one_if(planted!(ProductsLess)), I::from(-1)]
}

/// The range of a product of a number in `min..=max` and a number in `least..=most`. Both factors are not negative, and
/// the product is a number of 64 bits. A bound of the result beyond `i64::MAX` is not stated.
pub fn product_range<I: Integer>((min, max): (I, I), least: Option<I>, most: Option<I>) -> (I, I) {
    let zero = I::from(0);
    let positive = |n: I| if n > zero { n } else { zero };
    let small = |product: &I| *product >= zero && *product <= I::from(i64::MAX);
    let least = positive(min).times(positive(least.unwrap_or(zero))).filter(small);
    let most = most.and_then(|most| most.times(max)).filter(small);
    (least.unwrap_or(zero), most.unwrap_or(I::of(u64::MAX)))
}

/// Whether a product fits 63 bits, for factors that are not negative and at most `a` and `b`.
pub fn product_fits<I: Integer>(a: I, b: I) -> bool {
    a.times(b).is_some_and(|product| product <= I::from(i64::MAX)) || planted!(ProductsOfAnySize)
}

/// Coefficients of V(p) and V(b) in `(x * V(a) + apart) * (y * V(b))`, given `V(p) = V(a) * V(b)`.
pub fn product_of_line<I: Integer>((x, apart): (I, I), y: I) -> Option<(I, I)> {
    let (zero, one) = (I::from(0), I::from(1));
    if apart == zero {
        return Some((x * y, zero));
    }
    (x == one && y == one).then_some((one, apart))
}

/// Whether V is a number of 64 bits, given that `scale * V + delta` is a number of at most `most`.
pub fn line_fits<I: Integer>(scale: I, delta: I, most: I) -> bool {
    scale > I::from(1) || most - delta <= I::of(u64::MAX) || planted!(LinesOfAnySize)
}

/// [`BEYOND`] as an `Integer`.
fn beyond<I: Integer>() -> I {
    I::from(1 << 41) * I::from(1 << 40)
}

/// A lower bound of `V(a) + scale * V(b) + delta`, for lower bounds `a` and `b` that are not negative. `None` if it
/// would exceed [`BEYOND`]: no named value is that large.
pub fn sum_at_least<I: Integer>(a: I, (scale, b): (I, I), delta: I) -> Option<I> {
    let times = scale.times(b).filter(|times| *times <= beyond())?;
    Some(a + times + delta)
}

/// The row of a table that began at `times * V(start) + delta` and moved by `scale * V(p)`, both multipliers above 0.
/// Returns the coefficients of V(start) and V(p) in a sum, and the multiple of that sum that the row's offset is, minus
/// `delta`.
pub fn row_sum<I: Integer>(times: I, scale: I) -> Option<[I; 3]> {
    let one = I::from(1);
    if let Some(of_start) = times.over(scale) {
        return Some([of_start, one + one_if(planted!(RowsFromAfar)), scale]);
    }
    scale.over(times).map(|of_p| [one, of_p, times])
}

/// The place of a pointer in its object.
#[derive(Clone, Copy, Debug)]
pub enum Place<I> {
    /// A constant offset.
    At(I),
    /// At `scale * V + delta`.
    Moves {
        /// The multiple of V.
        scale: I,
        /// The constant part.
        delta: I,
    },
}

/// The distance of the first place behind the second, as `scale * V + delta`, if exactly one of them moves.
pub fn distance<I: Integer>(d: Place<I>, s: Place<I>) -> Option<(I, I)> {
    match (d, s) {
        (Place::Moves { scale, delta }, Place::At(at)) => Some((scale, delta - at)),
        (Place::At(at), Place::Moves { scale, delta }) => {
            let at = if planted!(DistanceForgetsPlace) { I::from(0) } else { at };
            Some((-scale, at - delta))
        }
        (Place::At(_), Place::At(_)) | (Place::Moves { .. }, Place::Moves { .. }) => None,
    }
}
