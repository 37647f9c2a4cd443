//! What users hold: programs, the instance that an object was loaded as, prog arrays.

pub(crate) mod instance;
pub(crate) mod over;
pub(crate) mod program;
