//! A program that is loaded: its code or instructions, what they refer to, the tables that it jumps through. Not how it
//! is run.

#[cfg(native)]
pub(crate) mod again;
pub(crate) mod bindings;
pub(crate) mod bound;
pub(crate) mod code;
pub(crate) mod interpreted;
pub(crate) mod loaded;
pub(crate) mod locate;
pub(crate) mod map_ref;
pub(crate) mod name;
pub(crate) mod references;
#[cfg(native)]
mod sites;
pub(crate) mod source;
#[cfg(native)]
mod stack;
pub(crate) mod table;
#[cfg(native)]
mod tiered;
pub(crate) mod unit;
