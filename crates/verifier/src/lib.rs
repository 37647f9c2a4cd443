//! BPF verifier: abstract interpretation that makes [`Verified`] programs.
//!
//! Problem: a program may come from an untrusted party, so it must be proven harmless before it runs. Approach: walk
//! every path over abstract states (`walk`), in which a register is a number with known bits and ranges (`scalar`) or a
//! pointer with a bounded offset (`value`), and the stack is known byte by byte (`state`); drop paths that an earlier
//! one covers (`walk::prune`), comparing only what later instructions need (`need`). The contract with the host is
//! data, and the operations on numbers are proven; both are in `bpf_verifier_core`. The outcome is the program with
//! facts for the JIT (`notes`), or the first reason against it (`error`).
//!
//! Invariants: an accepted program, run in an environment that keeps the promises of its [`Env`], touches only memory
//! it was given, reads nothing uninitialised, shows no address to anyone, gives back what it reserves, and ends.
//! Nothing here panics on any program.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod by_name;
pub mod certify;
mod content;
mod course;
mod error;
#[cfg_attr(feature = "faults", doc(hidden))]
pub mod faults;
mod few;
mod fields;
mod fill;
mod fuel;
mod integer;
mod kept;
mod lens;
mod need;
mod notes;
mod num;
#[doc(hidden)]
pub mod proof;
mod state;
mod states;
mod value;
mod verify;
mod walk;
mod ways;

use bpf_verifier_core::contract::{self as access, self as env, self as helpers};
use bpf_verifier_core::domain::{interval, scalar, tnum};

pub use bpf_verifier_core::contained::{Escape, Uncontained, contain};
pub use bpf_verifier_core::contract::*;
pub use bpf_verifier_core::domain::{Interval, Num, Scalar, Tnum, eval};
pub use bpf_verifier_core::{Refusal, Why};
pub use certify::{Part as ProofPart, Proof, ProofError, ProofSection, Strategy as ProofStrategy, Tried, Unproven};
pub use error::{Awake, Decision, Effort, EffortPlace, LoopFailure, Reason, UnprovenLoop, VerifyError};
pub use states::States;
pub use value::Debt;
pub use verify::{Verified, Verifier};
pub use walk::Stats;
