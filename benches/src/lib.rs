//! The common parts of the benchmarks: the programs, the engines behind one interface, and the measurement of time.
//!
//! A single figure means little on a shared machine. Every benchmark therefore measures all engines side by side:
//! short rounds, interleaved, thread CPU time, medians, and ratios to native code (`cargo bench -p bpf-benches`). An
//! engine that computes a wrong result has no time: a run is first compared with the native result, memory included.

pub mod call;
pub mod dissector;
pub mod engine;
pub mod engines;
pub mod layout;
pub mod maps;
pub mod measure;
pub mod plot;
pub mod programs;
pub mod straight;
pub mod table;
