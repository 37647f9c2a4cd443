//! How a loaded program is executed: as machine code, or by the interpreter with what that checks.

pub(crate) mod granted;
pub(crate) mod interp;
