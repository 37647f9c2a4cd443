//! Address families, as used in structures that helpers fill in.
//!
//! Source: `include/linux/socket.h`. Other systems have other numbers; programs are compiled for Linux's.

/// IPv4.
pub const INET: u32 = 2;
/// IPv6.
pub const INET6: u32 = 10;
