//! The errors that end a run.

use core::fmt;
use std::error::Error;

use bpf_isa::{Imm64, InsnIdx};

/// The reason why a run ended without a result, and the place.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stop {
    /// The instruction that could not be executed.
    pub at: InsnIdx,
    /// The program that contains it: 0 is the one the run began with, n the one that the n-th tail call entered.
    pub program: u32,
    /// The kind of error.
    pub kind: StopKind,
    /// The calls that led there, of subprograms and of callbacks, innermost first: the program, numbered as above,
    /// and the call.
    pub callers: Vec<(u32, InsnIdx)>,
}

/// The reason why a run ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopKind {
    /// An access to memory that the run was not given, or a write to memory that it may only read.
    BadAccess {
        /// First byte.
        addr: u64,
        /// Number of bytes.
        size: u64,
        /// Whether it is a write.
        write: bool,
    },
    /// An atomic access to an address that is not a multiple of its size.
    UnalignedAtomic {
        /// First byte.
        addr: u64,
        /// Number of bytes.
        size: u32,
    },
    /// The host has no helper with this id.
    UnknownHelper(u32),
    /// The host has no host function with this id.
    UnknownHostFunction(i32),
    /// The host has no map, map value or variable for this reference.
    Unresolved(Imm64),
    /// A helper or host function failed.
    Helper(Box<dyn Error + Send + Sync>),
    /// [`crate::Env::admits`] refused the instruction.
    NotAdmitted,
    /// The value passed as a callback is not the address of a subprogram of this program.
    BadCallback(u64),
    /// An indirect jump (gotox) to a number that is not one of its targets ([`bpf_isa::Program::indirect_targets`]).
    BadJump(u64),
    /// A call through a register (callx) whose value is not the address of a subprogram that it may call
    /// ([`bpf_isa::Program::indirect_callees`]).
    BadCall(u64),
    /// The chain of calls, callbacks included, is longer than [`bpf_isa::MAX_CALL_DEPTH`] frames.
    CallDepth,
    /// The stack on which the interpreter runs has no room for another frame ([`crate::Env::enters`]).
    Stack {
        /// Bytes that a frame needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The budget of taken back-edges and calls is spent.
    Budget,
    /// The host asked the run to end.
    Interrupted,
    /// A bug of this crate: a state that validation excludes.
    Internal(&'static str),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}", self.at)?;
        if self.program != 0 {
            write!(f, " after tail call {}", self.program)?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl fmt::Display for StopKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopKind::BadAccess { addr, size, write } => {
                let verb = if *write { "write" } else { "read" };
                write!(f, "{verb} of {size} bytes at {addr:#x}, which is not the program's memory")
            }
            StopKind::UnalignedAtomic { addr, size } => {
                write!(f, "atomic access of {size} bytes at {addr:#x}, which is not aligned")
            }
            StopKind::UnknownHelper(id) => write!(f, "no helper has id {id}"),
            StopKind::UnknownHostFunction(id) => write!(f, "no host function has id {id}"),
            StopKind::Unresolved(imm) => write!(f, "nothing is bound to {imm}"),
            StopKind::Helper(error) => error.fmt(f),
            StopKind::NotAdmitted => f.write_str("the host does not admit the instruction"),
            StopKind::BadCallback(value) => write!(f, "{value:#x} is not the address of a subprogram"),
            StopKind::BadJump(value) => write!(f, "{value:#x} is no target of indirect jumps here"),
            StopKind::BadCall(value) => {
                write!(f, "{value:#x} is not the address of a subprogram that callx may call here")
            }
            StopKind::CallDepth => write!(f, "more than {} frames", bpf_isa::MAX_CALL_DEPTH),
            StopKind::Stack { needed, left } => {
                write!(f, "a call needs {needed} bytes of the thread's stack, and {left} are left")
            }
            StopKind::Budget => f.write_str("the budget is spent"),
            StopKind::Interrupted => f.write_str("interrupted"),
            StopKind::Internal(what) => write!(f, "internal error: {what}"),
        }
    }
}

impl Error for Stop {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.kind {
            StopKind::Helper(error) => error.source(),
            _ => None,
        }
    }
}
