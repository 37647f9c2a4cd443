//! Tests of images: their shapes and their behaviour.
//!
//! All tests share one process: none of them forks, raises signals, changes limits or counts allocations.

mod run;
mod shapes;
