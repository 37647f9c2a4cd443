//! The optimiser.
#![forbid(unsafe_code)]

mod dead;
mod passes;
mod peephole;

pub use passes::{Pass, PassOptions, PassScratch, optimise};
