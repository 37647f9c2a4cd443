//! What products and distances say, for any kind of integer.
//!
//! Problem: that a row of a table lies within the table follows from what a product is to its factors, and that two
//! pointers are so far apart from where each is; a proof about a copy of such code says nothing about the code.
//! Approach: those parts of the walk that calculate (`walk/products.rs`, `walk/objects.rs`, `walk/loops/guess.rs`,
//! `walk/loops/guess/rows.rs`) are here, over [`Integer`].
//! The walk runs them on `i128`, and `cargo xtask prove` on a solver's integers, which have no end: products of unknown
//! numbers are easier there than as bits.
//!
//! Invariants: what might not fit `i128` is multiplied by [`Integer::times`]; all else is of numbers up to [`BEYOND`],
//! and the prover shows that it fits.

use std::ops::{Add, Mul, Neg, Sub};

use crate::faults::planted;

/// No value that is named is as large as that. Numbers are below 2^64; but what a multiple is made of has a name where
/// the number lies below that by a distance, and a sum of two has one where it is only compared.
pub const BEYOND: i128 = 1 << 81;

/// An integer.
pub trait Integer:
    Copy + PartialOrd + From<i64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    /// Of a `u64`.
    fn of(value: u64) -> Self;
    /// The product, if it fits `i128`.
    fn times(self, other: Self) -> Option<Self>;
    /// The quotient by a number above 0, if nothing is left.
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

/// Of `V(p) = V(a) * V(b)` with `least <= V(a)`: how often V(p) and V(b) are in a sum that is not positive.
pub fn product_at_least<I: Integer>(least: I) -> [I; 2] {
    [I::from(-1), least]
}

/// The same with `V(a) <= most`.
pub fn product_at_most<I: Integer>(most: I) -> [I; 2] {
    [I::from(1), -(most - one_if(planted!(ProductsLess)))]
}

/// Of `V(p) = V(a) * V(b)` and `V(q) = V(c) * V(b)` with `V(a) + gap <= V(c)`: how often V(p), V(b) and V(q) are in
/// such a sum.
pub fn product_beside<I: Integer>(gap: I) -> [I; 3] {
    [I::from(1), gap + one_if(planted!(ProductsLess)), I::from(-1)]
}

/// The ends of the product of a number in `min..=max` and one that is no less and no more than these, where both are
/// known not to be negative, and the product to be a number: no more than `i64::MAX` is said to be its least or most.
pub fn product_range<I: Integer>((min, max): (I, I), least: Option<I>, most: Option<I>) -> (I, I) {
    let zero = I::from(0);
    let positive = |n: I| if n > zero { n } else { zero };
    let small = |product: &I| *product >= zero && *product <= I::from(i64::MAX);
    let least = positive(min).times(positive(least.unwrap_or(zero))).filter(small);
    let most = most.and_then(|most| most.times(max)).filter(small);
    (least.unwrap_or(zero), most.unwrap_or(I::of(u64::MAX)))
}

/// Whether the product of two numbers that are not negative, no more than these, fits 63 bits.
pub fn product_fits<I: Integer>(a: I, b: I) -> bool {
    a.times(b).is_some_and(|product| product <= I::from(i64::MAX)) || planted!(ProductsOfAnySize)
}

/// `(x * V(a) + apart) * (y * V(b))` with `V(p) = V(a) * V(b)`: how often V(p) and V(b) are in it.
pub fn product_of_line<I: Integer>((x, apart): (I, I), y: I) -> Option<(I, I)> {
    let (zero, one) = (I::from(0), I::from(1));
    if apart == zero {
        return Some((x * y, zero));
    }
    (x == one && y == one).then_some((one, apart))
}

/// Whether V is a number of 64 bits where `scale * V + delta` is one, which is no more than `most`.
pub fn line_fits<I: Integer>(scale: I, delta: I, most: I) -> bool {
    scale > I::from(1) || most - delta <= I::of(u64::MAX) || planted!(LinesOfAnySize)
}

/// [`BEYOND`].
fn beyond<I: Integer>() -> I {
    I::from(1 << 41) * I::from(1 << 40)
}

/// What `V(a) + scale * V(b) + delta` is at least, where these are no less than that and not negative. Nothing is said
/// of more than what has a name: there are no such numbers.
pub fn sum_at_least<I: Integer>(a: I, (scale, b): (I, I), delta: I) -> Option<I> {
    let times = scale.times(b).filter(|times| *times <= beyond())?;
    Some(a + times + delta)
}

/// Of a row that began at `times * V(start) + delta` and has moved by `scale * V(p)`, both above 0: how often V(start)
/// and V(p) are in a sum, and how often that is where it is, less the delta.
pub fn row_sum<I: Integer>(times: I, scale: I) -> Option<[I; 3]> {
    let one = I::from(1);
    if let Some(of_start) = times.over(scale) {
        return Some([of_start, one + one_if(planted!(RowsFromAfar)), scale]);
    }
    scale.over(times).map(|of_p| [one, of_p, times])
}

/// Where in its object a pointer is.
#[derive(Clone, Copy, Debug)]
pub enum Place<I> {
    /// There.
    At(I),
    /// At `scale * V + delta`.
    Moves {
        /// Times the number.
        scale: I,
        /// Beside that.
        delta: I,
    },
}

/// How far the first is behind the second, `scale * V + delta`, if one of them moves.
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
