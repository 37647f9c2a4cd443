//! Where programs are attached, and run from: hooks, dispatchers, many runs under one guard.

pub(crate) mod dispatcher;
pub(crate) mod hook;
pub(crate) mod plan;
pub(crate) mod published;
pub(crate) mod runner;
