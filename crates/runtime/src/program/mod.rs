//! A program that is loaded: its code or instructions, what they refer to, the tables that it jumps through. Not how it
//! is run.

pub(crate) mod bindings;
pub(crate) mod bound;
mod code;
pub(crate) mod loaded;
pub(crate) mod locate;
pub(crate) mod map_ref;
mod name;
#[cfg(native)]
mod sites;
pub(crate) mod source;
#[cfg(native)]
mod stack;
pub(crate) mod table;
#[cfg(native)]
mod tiered;
