//! What a program is made of beside instructions, and what can be wrong with it: subprograms, calls, edges.

use crate::InsnIdx;
use crate::codec::{DecodeError, Malformed};
use core::fmt;

/// At most this many slots (Linux: BPF_COMPLEXITY_LIMIT_INSNS).
pub const MAX_INSNS: usize = 1_000_000;

/// At most this many frames, the main program's included (Linux: MAX_CALL_FRAMES).
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
    /// Whether this is a callback reference ([`Imm64::Func`](crate::Imm64::Func)) rather than a call, or what follows
    /// from one: `at` is a call through a register then ([`Callee::Reg`](crate::Callee::Reg)), which may call what
    /// others have taken the address of.
    pub callback: bool,
}

/// At most this many functions that calls through registers may call, summed over these calls (and as many edges of
/// the call graph that only follow from them; in a program with more there are none).
pub const MAX_INDIRECT_CALLEES: usize = 1 << 16;

/// At most this many targets of indirect jumps, summed over these jumps.
pub const MAX_INDIRECT_EDGES: usize = 1 << 18;

/// A function with calls through registers, and one that they may call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IndirectCallee {
    /// The function that calls.
    pub caller: SubprogId,
    /// What it may call.
    pub callee: SubprogId,
}

/// An instruction after which control may go elsewhere than to the next one: a jump, a branch or an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The instruction.
    pub at: InsnIdx,
    /// Where it jumps; `None` for an exit, and for an indirect jump, which goes to any of its subprogram's
    /// [`indirect_targets`](crate::Program::indirect_targets).
    pub target: Option<InsnIdx>,
}

/// Why instructions are not a program, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValidateError {
    /// The slot the error is in.
    pub slot: InsnIdx,
    /// What is wrong.
    pub kind: ValidateErrorKind,
}

/// What is wrong with a program.
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
        /// The slot it leads to; it may be negative.
        target: i64,
    },
    /// A jump, call or callback reference that leads into the middle of a two-slot instruction.
    TargetIsSecondSlot {
        /// The slot it leads to.
        target: InsnIdx,
    },
    /// A jump into another subprogram.
    JumpLeavesSubprog {
        /// The slot it leads to.
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
    /// Indirect jumps, each with the targets in its subprogram, that have more than [`MAX_INDIRECT_EDGES`] in all.
    IndirectEdges,
    /// A target of indirect jumps that is no instruction of the program.
    BadIndirectTarget {
        /// The slot it names.
        target: InsnIdx,
    },
    /// Calls through registers, each with so many functions that it may call, that there are more than
    /// [`MAX_INDIRECT_CALLEES`] in all.
    IndirectCallees,
    /// A call by which a chain of calls has more than [`MAX_CALL_DEPTH`] frames.
    CallsTooDeep {
        /// The subprogram called.
        callee: SubprogId,
    },
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A decode error names its slot itself, and the two below concern the program as a whole.
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

impl core::error::Error for ValidateError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match &self.kind {
            ValidateErrorKind::Decode(error) => Some(error),
            _ => None,
        }
    }
}
