//! The contract between host and program as data: contexts, regions, maps, prototypes of functions, limits.
//!
//! Problem: a proof assumes an environment, and a contradictory environment proves anything. Approach: plain
//! descriptions; each item says what it promises, and [`Env::check`] refuses a description that contradicts itself.
//! Only the host can know whether it keeps its promises.

mod access;
mod builtins;
mod env;
mod helpers;
mod kfuncs;

pub use access::Access;
pub use bpf_uapi::{Helper, MapType, MapTypes};
pub use builtins::builtin;
pub use env::*;
pub use helpers::*;
pub use kfuncs::kfunc;
