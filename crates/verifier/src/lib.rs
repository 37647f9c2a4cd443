//! BPF verifier: abstract interpretation that makes [`Verified`] programs.
//!
//! Problem: anyone may hand a program to the service; it must be proven harmless before it runs. Approach: walk every
//! path over abstract states (`walk`), in which a register is a number with known bits and ranges (`scalar`) or a
//! pointer with a bounded offset (`value`), and the stack is known byte by byte (`state`); drop paths that an earlier
//! one covers (`walk::prune`), by what is still needed (`need`). What the host offers is data (`env`, `helpers`). The
//! outcome is the program with facts for the JIT (`notes`), or the first reason against it (`error`).
//!
//! Invariants: an accepted program, run in an environment that keeps the promises of its [`Env`], touches only memory
//! it was given, reads nothing uninitialised, shows no address to anyone, gives back what it reserves, and ends.
//! Nothing here panics on any program.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod access;
mod builtins;
mod content;
mod course;
mod env;
mod error;
#[cfg_attr(feature = "faults", doc(hidden))]
pub mod faults;
mod few;
mod fill;
mod helpers;
mod integer;
mod interval;
mod kept;
mod kfuncs;
mod lens;
mod need;
mod notes;
mod num;
#[doc(hidden)]
pub mod proof;
mod scalar;
mod state;
mod states;
mod tnum;
mod value;
mod verify;
mod walk;
mod ways;

pub use access::Access;
pub use bpf_uapi::{Helper, MapType, MapTypes};
pub use builtins::builtin;
pub use env::*;
pub use error::{Decision, LoopFailure, Reason, UnprovenLoop, VerifyError};
pub use helpers::*;
pub use interval::Interval;
pub use kfuncs::kfunc;
pub use scalar::{Num, Scalar, eval};
pub use states::States;
pub use tnum::Tnum;
pub use value::Debt;
pub use verify::{Verified, Verifier};
pub use walk::Stats;
