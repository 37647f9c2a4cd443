//! BPF instructions: decode, encode, validate, print, assemble.
//!
//! Problem: every other crate reasons about instructions, and each opcode byte must be interpreted in exactly one
//! place. Approach: [`decode`] turns eight-byte slots into the closed enum [`Insn`], once; all other code matches on
//! the enum, exhaustively. [`encode`] is the inverse; [`Program::new`] adds structural validation (L0).
//!
//! Invariants: no opcode byte is known outside this crate; `encode(decode(x)) == x` for every accepted `x`; an index
//! into a program ([`InsnIdx`]) counts eight-byte *slots*, as the kernel's logs and llvm-objdump do.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod codec;
mod compare;
mod faults;
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
pub use structure::{
    CallSite, Flow, IndirectCallee, MAX_CALL_DEPTH, MAX_INDIRECT_CALLEES, MAX_INDIRECT_EDGES, MAX_INSNS, Subprog,
    SubprogId, ValidateError, ValidateErrorKind,
};
pub use text::{AsmError, AsmErrorKind, Listing, assemble, disassemble};

/// Converts a number of slots, subprograms or frames of a program, of which there are at most [`MAX_INSNS`] (checked
/// before a [`Program`] exists), or a number of bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// The low 32 bits of a register or a constant, the operand of operations on w registers.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
pub(crate) const fn low(number: u64) -> u32 {
    number as u32
}
