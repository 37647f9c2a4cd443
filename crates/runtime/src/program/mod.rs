//! A program that is loaded: its code or instructions, what they refer to, the tables that it jumps through.

pub(crate) mod loaded;
pub(crate) mod name;
pub(crate) mod sites;
pub(crate) mod table;
