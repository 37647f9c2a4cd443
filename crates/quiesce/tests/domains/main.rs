//! What domains promise to threads: one, two in turn, many, those that end; and why the protocol keeps it.
//!
//! One process: nothing here forks, raises signals, changes limits or counts what the process allocates.

mod asymmetric_model;
mod basics;
mod exit;
mod left_behind;
mod stress;
