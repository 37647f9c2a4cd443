//! Recorded runs: how they are recorded, kept as bytes, and repeated.

pub(crate) mod bytes;
pub(crate) mod recorder;
pub(crate) mod recording;
pub(crate) mod replay;
