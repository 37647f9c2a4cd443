//! What every map type does: against a model, from the host and from programs.
//!
//! One process: nothing here forks, raises signals, or counts what the process allocates.

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
