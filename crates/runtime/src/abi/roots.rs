//! The interface through which a run asks about the programs that it began with, without depending on them.

use crate::abi::stack::Stack;
use crate::error::RunError;

/// Where a run was stopped.
#[derive(Debug)]
pub(crate) struct StoppedAt {
    /// An address in the code that was stopped; 0 if a host function stopped it.
    pub(crate) pc: u64,
    /// Whether a tail call had left the program that the run began with.
    pub(crate) jumped: bool,
    /// The frames of the stopped code, innermost first.
    pub(crate) stack: Vec<Stack>,
    /// Whether the run's stack is its own, and the thread in the section of the run's end.
    pub(crate) apart: bool,
}

/// The program, or the list of programs, that a run of emitted code began with.
pub(crate) trait Roots {
    /// Adds the program and the source line to the error that ended a run. Called inside the run's guard.
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError;

    /// Returns an upper bound on the machine stack of a run in bytes, with the programs that it may jump to. Called
    /// inside the run's guard, after the load of the code that is run.
    fn code_stack(&self) -> u64;
}
