//! Tests of the whole family, in one binary: examples, engines and generated programs compared, emitted code as text.

#[cfg(feature = "planted")]
mod believed;
mod engines;
mod examples;
mod flow_dissector;
mod fuzz;
mod hardening;
mod selected;
mod sleepers;
mod snapshots;
mod soundness;
mod speculated;
