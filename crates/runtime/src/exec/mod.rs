//! Execution of a loaded program: as machine code, or by the interpreter with its checks of memory.

pub(crate) mod asleep;
mod granted;
mod interp;
mod run;
pub(crate) mod timers;
