//! The types of keys, values and records.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The types of keys and values: bytes without padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + 'static {}
impl<T: FromBytes + IntoBytes + Immutable + 'static> Plain for T {}
