//! Tests of every map type: against a model, from the host and from programs.
//!
//! All tests share one process: none of them forks, raises signals, or counts the process's allocations.

#[path = "../common/mod.rs"]
mod common;

mod cursors;
mod freeze;
mod hash_concurrent;
mod host;
mod kernel;
mod models;
mod program_side;
mod reset;
mod rings;
mod validity;
