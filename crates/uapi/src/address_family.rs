//! Families of addresses, as structures that helpers fill in name them.
//!
//! Source: `include/linux/socket.h`. Other systems have other numbers; programs are compiled for these.

/// IPv4.
pub const INET: u32 = 2;
/// IPv6.
pub const INET6: u32 = 10;
