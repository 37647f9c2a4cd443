//! BPF ELF objects: programs, maps, relocations, BTF.
//!
//! Problem: a compiled object consists of sections, symbols and type descriptions under conventions that grew over a
//! decade (libbpf, iproute2, the kernel's samples), and it is hostile input. Approach: [`Object::parse`] reads all of
//! it into plain data once, without side effects. [`Object::link`] then produces one program's complete instruction
//! stream, in which maps and host functions are indices. The caller creates maps, finds functions and loads, so this
//! crate depends only on the instruction set.
//!
//! Invariants: no panic, no unbounded work or memory on any input (work is linear in the file, up to logarithms, and
//! memory a small multiple of it plus [`MAX_GLOBAL_DATA`]). Every error names a section, symbol and offset or
//! instruction. A feature that cannot be honoured is refused by name, never ignored. No string contains control
//! characters ([`text`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

pub mod btf;
mod co_re;
mod code;
mod dwarf;
mod elf;
mod error;
mod externs;
mod function;
mod global;
mod jump_table;
mod layout;
mod line;
mod link;
mod map;
mod map_btf;
mod map_legacy;
mod object;
mod owned;
mod reloc;
mod struct_ops;
pub mod text;
mod wire;

pub use bpf_uapi::{MapType, ProgramType};
pub use co_re::{CoreField, CoreType, FieldType, HostTypes, UNRESOLVED_CALL, Unresolved};
pub use code::{Code, CodeFunction, CodeTable, CoreKind, CoreRelocation, Reference, ReferenceKind};
pub use dwarf::Dwarf;
pub use error::*;
pub use externs::{ExternVariable, HostFunction, LINUX_KERNEL_VERSION};
pub use global::MAX_GLOBAL_DATA;
pub use line::SourceLine;
pub use link::LinkedCode;
pub use map::*;
pub use object::{Object, PROOFS, Program};
pub use owned::OwnedTypes;
