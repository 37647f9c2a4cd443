//! The constants of the Linux kernel's user-space interface of BPF: map types, helpers, program types, flags, the
//! fields of contexts, error numbers.
//!
//! Problem: an object file, a map, the verifier, the interpreter, both JITs and the tests use the same numbers, and a
//! number written twice will diverge. Approach: one table for each kind of number, here; all other code refers to its
//! rows. The crate has no dependencies and no code beyond conversions, and does not know which rows this family
//! implements. A row without an implementation exists so that an error can name it.
//!
//! Invariant: matches over [`MapType`] and [`Helper`] in shipped code have no catch-all arm (`cargo xtask check`), so
//! that a new row is a compile error wherever it must be handled.
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

/// Bytes of an arena's page: the size that programs are compiled for, whatever the machine's page size.
pub const ARENA_PAGE: u32 = 4096;

/// Bytes before and after an arena's window that belong to it: an access has an offset of 16 bits and at most eight
/// bytes, rounded up to whole pages.
pub const ARENA_GUARD: u64 = 9 * ARENA_PAGE as u64;

/// Bytes of a `struct bpf_timer`, which lies at a multiple of 8 in a map's value.
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
