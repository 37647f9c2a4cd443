//! Abstract numbers: which values a 64-bit word may have.
//!
//! Three domains and their reduced product (Cousot and Cousot, POPL 1979): known bits ([`Tnum`]), unsigned and signed
//! ranges ([`Interval`]), and both for the word and its low half ([`Num`], [`Scalar`]). Every operation is proven sound
//! from the code that runs, by z3 or exhaustively at small widths (`crates/prove`).

pub mod interval;
pub mod scalar;
pub mod tnum;

pub use interval::Interval;
pub use scalar::{Num, Scalar, eval};
pub use tnum::Tnum;
