//! The parts of the load bench that are tables of their own.

pub(crate) mod memory;
pub(crate) mod phases;
pub(crate) mod tag;
pub(crate) mod threads;
pub(crate) mod verified;
