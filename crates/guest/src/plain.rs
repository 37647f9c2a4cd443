//! What keys, values and records are.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What keys and values are made of: bytes without padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + 'static {}
impl<T: FromBytes + IntoBytes + Immutable + 'static> Plain for T {}
