//! The place of a program in its pack.

use crate::chunks::Extent;

/// Size of a chunk in bytes; programs start and end at multiples of it.
pub(crate) const CHUNK: usize = 64;

/// The chunks of one program, and their addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) extent: Extent,
    /// Address in the executable view.
    pub(crate) rx: usize,
    /// Address in the writable view.
    pub(crate) rw: usize,
}

impl Place {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.extent.len as usize * CHUNK
    }
}
