//! The parts of the load bench that are tables of their own.

pub mod memory;
pub mod phases;
pub mod tag;
pub mod threads;
