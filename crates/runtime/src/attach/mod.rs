//! Ways to run programs: hooks, dispatchers, plans of changes, many runs under one guard.

pub(crate) mod dispatcher;
pub(crate) mod hook;
pub(crate) mod hook_async;
pub(crate) mod plan;
pub(crate) mod published;
pub(crate) mod runner;
