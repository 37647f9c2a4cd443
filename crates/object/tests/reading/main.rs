//! Tests of objects: reading, linking, and refusals.
//!
//! All tests share one process: none of them forks, raises signals, changes limits or counts allocations.

#[path = "../common/mod.rs"]
mod common;

mod co_re;
mod golden;
mod link;
mod malformed;
mod proofs;
mod struct_ops;
