//! Handles for users: programs, instances of objects, prog arrays.

pub(crate) mod coverage;
pub(crate) mod instance;
pub(crate) mod kept;
pub(crate) mod prog_array;
pub(crate) mod program;
pub(crate) mod run_async;
pub(crate) mod typed;
