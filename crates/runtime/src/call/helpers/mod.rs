//! The shipped helpers: the kernel's, by the kernel's ids, for programs in this process.
//!
//! Each is a C function that emitted code calls directly; the interpreter calls the same ones after checking their
//! arguments against the prototype. Helpers that call back into the program (`bpf_loop`, `bpf_for_each_map_elem`) are
//! written once over a function that calls back, and have two callers, emitted code and the interpreter.
//!
//! "Proven" in SAFETY comments of these modules means: proven by the verifier, checked by the interpreter before the
//! call, or promised by the caller that loaded the program unverified.

mod bits;
pub(crate) mod builtins;
pub(crate) mod callback_shims;
pub(crate) mod callbacks;
pub(crate) mod dynptr;
mod format;
mod frags;
pub(crate) mod kfuncs;
mod maps;
mod network;
pub(crate) mod owned;
pub(crate) mod packet;
pub(crate) mod print;
pub(crate) mod probe;
pub(crate) mod ring;
mod skb;
mod socket;
mod storage;
mod strings;
mod syncookie;
mod system;
pub(crate) mod table;
mod text;
pub(crate) mod timers;
