//! Sites and tables: every interleaving, random schedules, tokens that come too early.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

#[path = "../model/mod.rs"]
mod model;

mod exhaustive;
mod schedules;
mod tokens;
