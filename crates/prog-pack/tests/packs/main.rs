//! Tests of code in packs: loading, running, patching, freeing; and a model that shows why patching needs a barrier.
//!
//! All tests share one process: none of them forks, raises signals, changes limits or counts allocations.

#[path = "../common/mod.rs"]
mod common;

mod fetch_model;
mod flip;
mod load;
