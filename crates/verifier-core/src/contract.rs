//! The contract between host and program, as data: contexts, regions, maps, prototypes of functions, limits.
//!
//! Problem: a proof is about a program in an environment, and one that contradicts itself proves anything. Approach:
//! plain descriptions; each item says what it promises; [`Env::check`] refuses a description that contradicts itself.
//! Whether the host keeps its promises is the host's to know.

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
