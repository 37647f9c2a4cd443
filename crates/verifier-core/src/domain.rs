//! Abstract numbers: which values a 64-bit word may have.
//!
//! Three domains and their reduced product (Cousot and Cousot, POPL 1979): known bits ([`Tnum`]), unsigned and signed
//! ranges ([`Interval`]), and both for the word and its low half ([`Num`], [`Scalar`]). Every operation is proven sound
//! from the code that runs, by z3 or exhaustively at small widths (`crates/prove`). Above them stand relations between
//! words: linear forms over the integers (`form`), and the rules by which facts about them are made (`knowledge`).

pub mod form;
pub mod interval;
pub mod knowledge;
pub mod scalar;
pub mod tnum;

pub use form::{Form, Name};
pub use interval::Interval;
pub(crate) use knowledge::Definition;
pub use knowledge::{Combination, Knowledge, Known, Step};
pub use scalar::{Num, Scalar, eval};
pub use tnum::Tnum;
