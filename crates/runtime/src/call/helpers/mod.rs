//! The shipped helpers: the kernel's, by the kernel's ids, for programs in this process.
//!
//! Each is a C function that emitted code calls directly; the interpreter calls the same ones after checking their
//! arguments against the prototype. Helpers that call back into the program (`bpf_loop`, `bpf_for_each_map_elem`) are
//! written once over "how to call back" and have two callers, emitted code and the interpreter.
//!
//! What the SAFETY comments of these modules call proven of an argument, the verifier has proven, or the interpreter
//! checks before the call, or whoever loaded the program unverified has promised.

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
