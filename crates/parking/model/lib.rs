//! How runs that wait are woken, ended and freed, under loom.
//!
//! Problem: a lost wake-up in the runtime is a request that hangs once in a million, and the runtime with all that it
//! depends on cannot be built for loom. Approach: this crate compiles the files of the protocol alone
//! (`crates/runtime/src/abi`: `parked`, `around`, `critical`, `watch`), so that the explored code is the shipped code.
//! Stand-ins here are the primitives (`sync`), the level of a run without its machine state, and the clock. `abi`
//! has the models. Without `--cfg loom` the crate is empty.
#![cfg(loom)]
#![allow(dead_code, reason = "the models use a part of the files")]

mod abi;

extern crate self as bpf_quiesce;

/// Stands in for the function of `bpf-quiesce`, which loom's build of that crate does not have.
pub fn drop_payload(payload: Box<dyn std::any::Any + Send>) {
    drop(payload);
}
