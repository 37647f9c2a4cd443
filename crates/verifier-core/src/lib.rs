//! The trusted core of the BPF verifier: what must be right for "an accepted program is safe".
//!
//! Problem: a verifier that searches for proofs is large, and grows with each idiom that it learns; an error anywhere
//! in it may let an unsafe program out. Approach: the part that must be right is kept apart, small, and free of
//! heuristics. `domain` holds the abstract numbers, each operation of which is proven by a solver or tried exhaustively
//! at small widths (`cargo xtask prove`); `contract` holds what the host promises a program.
//!
//! Invariants: nothing here searches, and nothing here panics on any program, contract or certificate.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

pub mod contract;
pub mod domain;
#[cfg_attr(feature = "faults", doc(hidden))]
pub mod faults;
#[doc(hidden)]
pub mod proof;

pub use contract::*;
pub use domain::{Interval, Num, Scalar, Tnum, eval};
