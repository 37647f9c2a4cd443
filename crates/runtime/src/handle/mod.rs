//! What users hold: programs, the instance that an object was loaded as, prog arrays.

pub(crate) mod instance;
pub(crate) mod kept;
pub(crate) mod over;
pub(crate) mod prog_array;
pub(crate) mod program;
