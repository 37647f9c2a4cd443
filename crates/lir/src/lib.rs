//! The low-level intermediate representation.
//!
//! Problem: two backends, an allocator and an optimiser need one program form that is closer to machines than BPF is.
//! Approach: three-address operations over any number of virtual registers, in basic blocks. The form is not
//! necessarily SSA: a virtual register may be written many times.
//!
//! | file | what |
//! |---|---|
//! | `op` | operations: operands, results |
//! | `func` | functions and blocks, and how to change them |
//! | `cfg`, `dominators` | successors, predecessors, dominators: derived, never stored in a function |
//! | `liveness` | the values live out of each block: derived likewise |
//! | `verify` | structure, definitions and dominance |
//! | `text`, `parse` | the text form, printed and read |
//! | `externs` | the external symbols of the code |
//! | `eval` | the naive evaluator, which defines the ops |
//!
//! Invariants: the operands of a 32-bit operation are the low halves of its registers, its result is zero-extended;
//! control-flow ops are the last of their block; the first block of a function's order is its entry, and a block
//! without a jump at its end falls through to the next one of the order; each op records the BPF instructions it came
//! from. A function contains no results of analyses, so changing it cannot make any stale.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod cfg;
mod dominators;
#[cfg(any(test, feature = "eval"))]
pub mod eval;
mod externs;
mod func;
mod liveness;
mod op;
mod parse;
mod text;
mod verify;

pub use cfg::Cfg;
pub use dominators::{Dominance, Dominators};
pub use externs::Extern;
pub use func::{Block, Ends, Func, Lir, Span};
pub use liveness::Liveness;
pub use op::{
    AtomicOp, Base, BinOp, BlockId, CallTarget, Check, Cond, Mem, Op, Region, TailKey, VReg, Val, bswap, extend, narrow,
};
pub use parse::ParseError;
pub use verify::LirError;

/// Converts a number of ops, blocks or registers: a program of a million slots has far fewer than 2^32.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
