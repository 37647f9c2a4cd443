//! The parts of the load bench that are commands of their own.

pub mod phases;
