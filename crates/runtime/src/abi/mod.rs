//! A run as emitted code sees it: how it is entered, what state it has, why it stops. Knows no programs.

pub(crate) mod entry;
pub(crate) mod machine_stack;
pub(crate) mod run;
pub(crate) mod stop;
