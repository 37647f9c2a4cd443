//! Code in packs: loaded, run, patched, freed; and a model of why patching needs a barrier.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

#[path = "../common/mod.rs"]
mod common;

mod fetch_model;
mod flip;
mod load;
