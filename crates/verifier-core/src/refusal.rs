//! Reasons for which the core refuses a program and its certificate: the first obligation that could not be proven.

use bpf_isa::{InsnIdx, Reg};

/// The first obligation that could not be proven, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at instruction {at}: {why}")]
pub struct Refusal {
    /// The instruction that was about to run.
    pub at: InsnIdx,
    /// The obligation.
    pub why: Why,
}

/// The obligation that could not be proven.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// An instruction, function or value that the core has no rule for.
    #[error("the core has no rule for {0}")]
    Unsupported(&'static str),
    /// The description of the host contradicts itself.
    #[error("the environment contradicts itself: {0}")]
    Environment(String),
    /// A register is read that holds nothing.
    #[error("{0} is read and holds nothing")]
    Unset(Reg),
    /// A number is needed, and a pointer would leak.
    #[error("{0} holds a pointer where a number is needed")]
    NotANumber(Reg),
    /// A pointer to memory is needed.
    #[error("{0} holds no pointer to memory")]
    NotAPointer(Reg),
    /// A pointer is used that may be null.
    #[error("{0} may be null")]
    MayBeNull(Reg),
    /// Arithmetic on a pointer for which there is no rule.
    #[error("arithmetic on the pointer in {0}")]
    PointerArithmetic(Reg),
    /// A division by the constant 0, or a shift by a constant that is not below the width.
    #[error("a division by the constant 0, or a shift by as many bits as there are or more")]
    Immediate,
    /// A comparison of pointers for which there is no rule.
    #[error("a comparison of pointers that may show where they are")]
    PointerComparison,
    /// An access is not proven to lie within its memory.
    #[error("the access is not proven to lie within {what}")]
    OutOfBounds {
        /// The memory.
        what: &'static str,
    },
    /// Memory is written that programs only read.
    #[error("{0} is only to be read")]
    ReadOnly(&'static str),
    /// Memory is read that programs only write.
    #[error("{0} is only to be written")]
    WriteOnly(&'static str),
    /// A pointer would be stored where others see it, or cut into pieces.
    #[error("a pointer would leave the program")]
    Leak,
    /// Bytes of the stack are read that may be part of a pointer, or were never written.
    #[error("the stack is read where nothing was written, or where it may hold a pointer")]
    StackOpaque,
    /// One instruction accesses the context on one way and something else on another.
    #[error("the instruction accesses the context and other memory, or two of its fields")]
    MixedAccess,
    /// An argument is not what the function needs.
    #[error("argument {arg} of {func} is not {expected}")]
    Argument {
        /// The function.
        func: String,
        /// The number of the argument, from 1.
        arg: usize,
        /// The requirement.
        expected: &'static str,
    },
    /// The program returns a number that its context does not allow.
    #[error("the program may return what its context does not allow")]
    Return,
    /// A record is used that is not held, for example after it was submitted.
    #[error("{0} points into a record that is not held")]
    NotHeld(Reg),
    /// A legacy packet load needs the context in r6.
    #[error("a legacy packet load, and r6 is not the context")]
    NotTheContext,
    /// Memory that a function writes may be another argument's.
    #[error("two memory arguments of {func} may overlap")]
    Overlap {
        /// The function.
        func: String,
    },
    /// A call that may sleep, where the program may not.
    #[error("{func} may sleep, and {why}")]
    Sleeps {
        /// The function.
        func: String,
        /// Why the program may not sleep there.
        why: &'static str,
    },
    /// A record is still held where the program ends or is replaced.
    #[error("a record is still held")]
    Held,
    /// A kept point is not shown to cover the state that reaches it.
    #[error("the kept point does not cover the state: {0}")]
    NotCovered(&'static str),
    /// No component of the rank is shown to decrease.
    #[error("the rank is not shown to decrease")]
    Rank,
    /// The certificate refers to something that does not exist.
    #[error("the certificate is not well-formed: {0}")]
    Certificate(&'static str),
    /// The check has used up its fuel.
    #[error("the check takes more than its fuel")]
    Fuel,
    /// The states of paths that are still to be walked take more than the check's memory.
    #[error("the check takes more than its memory")]
    Memory,
    /// The guide has given up.
    #[error("the guide has no advice")]
    Stopped,
    /// No run is in this state: the way ends, and nothing is refused.
    #[error("no run comes here")]
    Unreachable,
    /// The core has reached what its own invariants exclude.
    #[error("internal: {0}")]
    Internal(&'static str),
}

pub(crate) type Res<T> = Result<T, Why>;
