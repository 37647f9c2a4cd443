//! Tests of a domain's promises to one thread, two in turn, many, and ending ones; and a model of the protocol.
//!
//! All tests share one process: none of them forks, raises signals, changes limits or counts allocations.

mod asymmetric_model;
mod basics;
mod exit;
mod left_behind;
mod stress;
