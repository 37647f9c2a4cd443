//! The places where a run finds the bounds of the regions that its context leads to.

/// The bounds of a context region, as a run finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionBounds {
    /// The region is never shorter than this many bytes.
    pub min_len: u32,
    /// The place of the region's start and end.
    pub place: BoundsPlace,
}

/// See [`RegionBounds`]. Offsets are into the host's context structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BoundsPlace {
    /// The region has no bounds, so every check against them fails.
    Nowhere,
    /// The region is the raw context: the address and length that the run was given.
    Raw,
    /// The region is between two addresses of 64 bits, which the context structure holds.
    Addresses {
        /// Byte offset of the start's address.
        start: u32,
        /// Byte offset of the end's address.
        end: u32,
    },
    /// An address of 64 bits and a length.
    Length {
        /// Byte offset of the start's address.
        start: u32,
        /// Byte offset of the length.
        len: u32,
        /// Bytes of the length: 4 or 8.
        len_size: u32,
    },
}
