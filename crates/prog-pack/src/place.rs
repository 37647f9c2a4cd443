//! Where a program lies.

use crate::chunks::Extent;

/// Programs start and end at multiples of this.
pub(crate) const CHUNK: usize = 64;

/// Chunks of one program, and where they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) extent: Extent,
    /// Executable.
    pub(crate) rx: usize,
    /// The same memory, writable.
    pub(crate) rw: usize,
}

impl Place {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.extent.len as usize * CHUNK
    }
}
