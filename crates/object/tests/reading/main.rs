//! Objects: what is read in them, what linking makes of it, and what is refused.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

#[path = "../common/mod.rs"]
mod common;

mod co_re;
mod golden;
mod link;
mod malformed;
mod proofs;
mod struct_ops;
