//! BPF instructions: decode, encode, validate, print, assemble.
//!
//! Problem: every other crate reasons about instructions, and each opcode byte must be understood in exactly one
//! place. Approach: [`decode`] turns eight-byte slots into the closed enum [`Insn`], once; everything downstream
//! matches on the enum, exhaustively. [`encode`] is the inverse; [`Program::new`] adds structural validation (L0).
//!
//! Invariants: no opcode byte is known outside this crate; `encode(decode(x)) == x` for every accepted `x`; an index
//! into a program ([`InsnIdx`]) counts eight-byte *slots*, as the kernel's logs and llvm-objdump do.
#![forbid(unsafe_code)]

mod codec;
mod insn;
mod opcode;
mod program;
mod scan;
mod structure;
mod text;
#[doc(hidden)]
pub mod word;

pub use codec::{DecodeError, DecodeErrorKind, EncodeError, Field, Malformed, RawInsn, decode, encode};
pub use insn::*;
pub use program::Program;
pub use scan::{Contents, StackUse};
pub use structure::{CallSite, Flow, MAX_CALL_DEPTH, MAX_INSNS, Subprog, SubprogId, ValidateError, ValidateErrorKind};
pub use text::{AsmError, AsmErrorKind, Listing, assemble, disassemble};
