//! What is done to memory: read it, write it, or both.

/// Direction in which memory may be, or is, used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether reads are included.
    pub fn reads(self) -> bool {
        self != Access::Write
    }
    /// Whether writes are included.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}
