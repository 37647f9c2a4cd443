//! A run as emitted code sees it: how it is entered, what state it has, why it stops. This module does not depend on
//! loaded programs.

pub(crate) mod around;
pub(crate) mod begin;
pub(crate) mod clock;
pub(crate) mod critical;
pub(crate) mod entry;
pub(crate) mod fiber;
pub(crate) mod held;
pub(crate) mod level;
pub(crate) mod limits;
pub(crate) mod link;
pub(crate) mod machine_stack;
pub(crate) mod parked;
pub(crate) mod roots;
pub(crate) mod run;
#[cfg(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod shadow;
pub(crate) mod slots;
pub(crate) mod stack;
pub(crate) mod stacks;
pub(crate) mod stop;
pub(crate) mod stopped;
mod sync;
pub(crate) mod timers;
pub(crate) mod watch;
pub(crate) mod whole;
