//! The structure of a program beyond its instructions (subprograms, calls, edges), and the errors of validation.

use crate::InsnIdx;
use crate::codec::{DecodeError, Malformed};
use core::fmt;

/// The largest number of slots of a program (Linux: BPF_COMPLEXITY_LIMIT_INSNS).
pub const MAX_INSNS: usize = 1_000_000;

/// The largest number of frames, the main program's included (Linux: MAX_CALL_FRAMES).
pub const MAX_CALL_DEPTH: u32 = 8;

/// Index of a subprogram. 0 is the main program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SubprogId(pub u32);

impl SubprogId {
    /// The index as a `usize`, to index slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A function of the program: the slots `start .. end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subprog {
    /// First slot.
    pub start: u32,
    /// One past the last slot.
    pub end: u32,
}

/// An edge of the call graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSite {
    /// The call, or the LD_IMM64 that takes a callback's address.
    pub at: InsnIdx,
    /// The subprogram called or referred to.
    pub callee: SubprogId,
    /// Whether this is an edge without a direct call: a callback reference ([`Imm64::Func`](crate::Imm64::Func)), or
    /// an implied edge, whose `at` is a call through a register ([`Callee::Reg`](crate::Callee::Reg)) that may call a
    /// function whose address is taken elsewhere.
    pub callback: bool,
}

/// The largest number of possible callees of calls through registers, summed over these calls. Also the largest
/// number of implied edges of the call graph; a program with more has no implied edges.
pub const MAX_INDIRECT_CALLEES: usize = 1 << 16;

/// The largest number of targets of indirect jumps, summed over these jumps.
pub const MAX_INDIRECT_EDGES: usize = 1 << 18;

/// A function with calls through registers, and a possible callee of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IndirectCallee {
    /// The function that calls.
    pub caller: SubprogId,
    /// The possible callee.
    pub callee: SubprogId,
}

/// An instruction after which control may continue elsewhere than at the next one: a jump, a branch or an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The instruction.
    pub at: InsnIdx,
    /// The target; `None` for an exit, and for an indirect jump, whose targets are its subprogram's
    /// [`indirect_targets`](crate::Program::indirect_targets).
    pub target: Option<InsnIdx>,
}

/// The reason why instructions are not a valid program, and the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValidateError {
    /// The slot the error is in.
    pub slot: InsnIdx,
    /// The kind of error.
    pub kind: ValidateErrorKind,
}

/// The kinds of validation errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ValidateErrorKind {
    /// The bytes are not instructions (only from [`Program::from_bytes`](crate::Program::from_bytes)).
    Decode(DecodeError),
    /// There is no instruction.
    Empty,
    /// More than [`MAX_INSNS`] slots.
    TooLong {
        /// Slots in the program.
        slots: usize,
    },
    /// The instruction has no encoding, or is half of a two-slot instruction.
    Malformed(Malformed),
    /// The instruction writes the frame pointer.
    WritesFramePointer,
    /// A jump, call or callback reference that leads outside the program.
    TargetOutOfRange {
        /// The target slot; may be negative.
        target: i64,
    },
    /// A jump, call or callback reference that leads into the middle of a two-slot instruction.
    TargetIsSecondSlot {
        /// The target slot.
        target: InsnIdx,
    },
    /// A jump into another subprogram.
    JumpLeavesSubprog {
        /// The target slot.
        target: InsnIdx,
        /// The subprogram it leaves.
        subprog: Subprog,
    },
    /// Control falls off the end of a subprogram: its last instruction is reachable and neither `exit` nor `goto`.
    FallsThrough {
        /// The subprogram.
        subprog: Subprog,
    },
    /// A call that closes a cycle in the call graph.
    Recursion {
        /// The subprogram that would be entered again.
        callee: SubprogId,
    },
    /// The indirect jumps, each with all targets in its subprogram, have more than [`MAX_INDIRECT_EDGES`] edges in
    /// all.
    IndirectEdges,
    /// A target of indirect jumps is not an instruction of the program.
    BadIndirectTarget {
        /// The slot it names.
        target: InsnIdx,
    },
    /// The calls through registers have more than [`MAX_INDIRECT_CALLEES`] possible callees in all.
    IndirectCallees,
    /// A call that makes a chain of calls longer than [`MAX_CALL_DEPTH`] frames.
    CallsTooDeep {
        /// The subprogram called.
        callee: SubprogId,
    },
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A decode error names its slot itself, and the two errors below concern the whole program.
        match self.kind {
            ValidateErrorKind::Decode(error) => return error.fmt(f),
            ValidateErrorKind::Empty => return f.write_str("the program has no instruction"),
            ValidateErrorKind::IndirectEdges => {
                return write!(
                    f,
                    "the indirect jumps (gotox) have more than {MAX_INDIRECT_EDGES} targets in all: use fewer or smaller \
                     tables in a function"
                );
            }
            ValidateErrorKind::BadIndirectTarget { target } => {
                return write!(f, "instruction {target}, a target of indirect jumps, is no instruction of the program");
            }
            ValidateErrorKind::IndirectCallees => {
                return write!(
                    f,
                    "the calls through registers (callx) may call more than {MAX_INDIRECT_CALLEES} functions in all: \
                     call some of them directly"
                );
            }
            ValidateErrorKind::TooLong { slots } => {
                return write!(f, "the program has {slots} instructions, the limit is {MAX_INSNS}");
            }
            ValidateErrorKind::Malformed(_)
            | ValidateErrorKind::WritesFramePointer
            | ValidateErrorKind::TargetOutOfRange { .. }
            | ValidateErrorKind::TargetIsSecondSlot { .. }
            | ValidateErrorKind::JumpLeavesSubprog { .. }
            | ValidateErrorKind::FallsThrough { .. }
            | ValidateErrorKind::Recursion { .. }
            | ValidateErrorKind::CallsTooDeep { .. } => write!(f, "instruction {}: ", self.slot)?,
        }
        match self.kind {
            ValidateErrorKind::Decode(_)
            | ValidateErrorKind::Empty
            | ValidateErrorKind::IndirectEdges
            | ValidateErrorKind::BadIndirectTarget { .. }
            | ValidateErrorKind::IndirectCallees
            | ValidateErrorKind::TooLong { .. } => Ok(()),
            ValidateErrorKind::Malformed(malformed) => malformed.fmt(f),
            ValidateErrorKind::WritesFramePointer => f.write_str("writes r10, the frame pointer"),
            ValidateErrorKind::TargetOutOfRange { target } => {
                write!(f, "leads to instruction {target}, outside the program")
            }
            ValidateErrorKind::TargetIsSecondSlot { target } => {
                write!(f, "leads to instruction {target}, the second slot of a two-slot instruction")
            }
            ValidateErrorKind::JumpLeavesSubprog { target, subprog } => {
                let Subprog { start, end } = subprog;
                write!(f, "jumps to instruction {target}, out of its subprogram {start}..{end}")
            }
            ValidateErrorKind::FallsThrough { subprog: Subprog { start, end } } => {
                write!(f, "control falls off the end of the subprogram {start}..{end}")
            }
            ValidateErrorKind::Recursion { callee } => write!(f, "calls subprogram {} recursively", callee.0),
            ValidateErrorKind::CallsTooDeep { callee } => {
                write!(f, "calls subprogram {} more than {MAX_CALL_DEPTH} frames deep", callee.0)
            }
        }
    }
}

impl From<DecodeError> for ValidateError {
    fn from(error: DecodeError) -> ValidateError {
        ValidateError { slot: error.slot, kind: ValidateErrorKind::Decode(error) }
    }
}

impl core::error::Error for ValidateError {}
