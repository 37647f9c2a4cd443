//! What the Linux kernel's user-space interface of BPF defines, as names: map types, helpers, program types, flags, the
//! fields of contexts, error numbers.
//!
//! Problem: an object file, a map, the verifier, the interpreter, both JITs and the tests all speak of the same
//! numbers, and a number written twice is a number that will differ. Approach: one table each, here; everything else
//! names the row. The crate has no dependencies, no code beyond conversions, and knows nothing of what this family
//! implements: a row that is not implemented is there to be refused by its name.
//!
//! Invariant: matches over [`MapType`] and [`Helper`] in shipped code have no catch-all arm (`cargo xtask check`), so
//! that a new row is a compile error wherever something must be decided about it.
//!
//! Source: `include/uapi/linux/bpf.h` of Linux 6.18.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod address_family;
mod builtin;
pub mod context;
mod enums;
mod errno;
pub mod flags;
mod helper;
mod kfunc;
pub mod legacy_load;
mod map_type;
mod owned;
mod program_type;

/// Bytes of an arena's page: what programs are compiled for, whatever the machine's is.
pub const ARENA_PAGE: u32 = 4096;

/// Bytes before and behind an arena's window that belong to it: an access is at an offset of 16 bits and has eight
/// bytes at most, in whole pages.
pub const ARENA_GUARD: u64 = 9 * ARENA_PAGE as u64;

/// Bytes of a `struct bpf_timer`, at a multiple of 8 of a map's value.
pub const TIMER_BYTES: u32 = 16;

pub use builtin::Builtin;
pub use context::ContextField;
pub use enums::{ENUMERATIONS, Enumeration};
pub use errno::Errno;
pub use helper::{Helper, helper_id};
pub use kfunc::Kfunc;
pub use map_type::{MapType, MapTypes};
pub use owned::{MAX_INSTANCE, MAX_OBJECT, OwnedField, OwnedKind, OwnedType};
pub use program_type::ProgramType;
