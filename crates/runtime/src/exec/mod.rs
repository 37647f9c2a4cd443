//! Execution of a loaded program: as machine code, or by the interpreter with its checks of memory.

pub(crate) mod asleep;
mod granted;
pub(crate) mod image;
mod interp;
pub(crate) mod listing;
pub(crate) mod log;
pub(crate) mod observed;
mod run;
pub(crate) mod timers;
pub(crate) mod watch;
