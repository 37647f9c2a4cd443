//! Tests of sites and tables: every interleaving, random schedules, tokens that come too early.
//!
//! All tests share one process: none of them forks, raises signals, changes limits or counts allocations.

#[path = "../model/mod.rs"]
mod model;

mod exhaustive;
mod schedules;
mod tokens;
