//! Operations of the host on programs: load, run, attach, replace and drop.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

#[path = "../common/mod.rs"]
mod common;

mod api;
mod borrowed_state;
mod dispatcher;
mod drops;
mod examples;
mod hook;
mod host_functions;
mod interfaces;
mod lifetime;
mod limits;
mod metrics;
mod modules;
mod ownership;
mod payloads;
mod plans;
mod reclaim;
mod reserved;
mod run_limits;
mod runner;
mod tail_calls;
mod tail_calls_live;
mod tenants;
mod undefined_host;
mod unwinding;
mod usage;
