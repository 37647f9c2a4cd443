//! The direction of a memory access: read, write, or both.

/// The directions in which memory is, or may be, accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes.
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
