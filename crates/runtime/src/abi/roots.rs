//! What a run of emitted code begins with, as far as the run itself must know: no program, but who can be asked.

use crate::abi::stack::Stack;
use crate::error::RunError;

/// Where a run was stopped.
#[derive(Debug)]
pub(crate) struct StoppedAt {
    /// An address in the code that was stopped; 0 if a host function stopped it.
    pub(crate) pc: u64,
    /// It was no longer in the program that it began with.
    pub(crate) jumped: bool,
    /// The frames that it was in, innermost first.
    pub(crate) stack: Vec<Stack>,
}

/// What a run of emitted code may have begun with.
pub(crate) trait Roots {
    /// Says of the error that ended a run in which program, and at which source line. Called inside the run's guard.
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError;

    /// Worst machine stack of a run of them, in bytes, with the programs that they may jump to. Called inside the run's
    /// guard, behind the load of what is run.
    fn code_stack(&self) -> u64;
}
