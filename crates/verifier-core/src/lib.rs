//! The trusted core of the BPF verifier: what must be right for "an accepted program is safe".
//!
//! Problem: a verifier that searches for proofs is large, and grows with each idiom that it learns; an error anywhere
//! in the verifier may accept an unsafe program. Approach: checking a proof needs no search, so the part that must be
//! right is kept apart, small, and free of heuristics, as in LCF (a theorem is a value that only the kernel's rules
//! make) and proof-carrying code (the search is outside, its result is checked). [`check()`] takes a program, the
//! contract with its host, and a certificate: the kept points ([`Kept`]: an instruction, its invariant and a rank), and
//! the answers of a [`Guide`], which may be wrong. The check returns the [`bpf_analysis::Facts`] that compilers rely
//! on.
//!
//! | layer | what it holds |
//! |---|---|
//! | `domain` | abstract words; linear forms over names; the rules by which facts are made |
//! | `contract` | what the host promises: contexts, maps, prototypes of functions |
//! | `state` | registers, stack, lengths and held records, in terms of names |
//! | `transfer` | what one instruction does to a state |
//! | `entails` | whether a kept point covers a state, with a smaller rank |
//! | `check` | the walk from each kept point to the next |
//! | `contained` | apart from these: what accesses are confined to when no proof is to be relied upon |
//!
//! Invariants: an accepted program, in a host that keeps its contract, touches only memory it was given, reads nothing
//! uninitialised, shows no address to anyone, gives back what it reserves, and ends, whatever the guide answered.
//! Nothing in this crate searches or panics, for any program, contract or certificate. Programs that need a rule which
//! the core does not have are refused as [`Why::Unsupported`].
//!
//! The core decides about a program only where a load checks proofs. Otherwise `bpf-verifier` decides, by its own walk,
//! which shares the number domain and the contract with the core; tests run the core beside that walk
//! (`crates/verifier/tests/certify.rs`).
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod check;
pub mod contained;
pub mod contract;
pub mod domain;
mod entails;
#[cfg_attr(feature = "faults", doc(hidden))]
pub mod faults;
mod guide;
mod notes;
#[doc(hidden)]
pub mod proof;
mod refusal;
mod state;
mod transfer;

pub use check::{FUEL, check, explore};
pub use contract::*;
pub use domain::{Combination, Form, Interval, Knowledge, Known, Name, Num, Scalar, Step, Tnum, eval};
pub use guide::{Advice, Answer, Guide, Kept, Point, Recorder, Recording, Replay};
pub use refusal::{Refusal, Why};
pub use state::{Base, Byte, Cell, Frame, Invariant, Loaded, Pointer, Sections, Stack, State, Value};
