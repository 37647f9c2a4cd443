//! How a loaded program is executed: as machine code, or by the interpreter with what that checks.

pub(crate) mod asleep;
mod granted;
mod interp;
mod run;
pub(crate) mod timers;
