//! A structurally valid program (safety layer L0).
//!
//! [`Program::new`] is the only way to make one, so everything downstream may rely on: every instruction decodes;
//! every jump and call lands on the first slot of an instruction of the same program; jumps stay inside their
//! subprogram; control cannot fall off the end of a subprogram; the call graph has no cycle and is at most
//! [`MAX_CALL_DEPTH`] frames deep; no writes to r10.

use crate::Insn;

/// At most this many slots (Linux: BPF_COMPLEXITY_LIMIT_INSNS).
pub const MAX_INSNS: usize = 1_000_000;

/// Index of a subprogram. 0 is the main program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SubprogId(pub u32);

/// A function of the program: the slots `start .. end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subprog {
    /// First slot.
    pub start: u32,
    /// One past the last slot.
    pub end: u32,
}

/// A structurally valid program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    insns: Vec<Insn>,
    subprogs: Vec<Subprog>,
}
