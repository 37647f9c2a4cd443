//! Error numbers as BPF programs see them.
//!
//! Helpers return them negative in r0; map operations fail with them, and the host's API adds what was expected. The
//! type is a bare number, so that the program side needs no conversion and a test can compare it with the kernel's
//! directly.
//!
//! Source: `include/uapi/asm-generic/errno-base.h` and `errno.h`, which x86-64 and arm64 share.

/// One of the kernel's error numbers, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted: a read-only or write-only map.
    pub const EPERM: Self = Self(1);
    /// No such key, or nothing left.
    pub const ENOENT: Self = Self(2);
    /// More than fits: a full map, an index out of range.
    pub const E2BIG: Self = Self(7);
    /// No data to drain.
    pub const EAGAIN: Self = Self(11);
    /// No memory.
    pub const ENOMEM: Self = Self(12);
    /// The map is in use by this very thread further up its stack, or by the only other party allowed.
    pub const EBUSY: Self = Self(16);
    /// The key exists.
    pub const EEXIST: Self = Self(17);
    /// An argument the operation does not take.
    pub const EINVAL: Self = Self(22);
    /// No room left.
    pub const ENOSPC: Self = Self(28);
    /// Taking this lock would wait for oneself.
    pub const EDEADLK: Self = Self(35);
    /// A number larger than it may be.
    pub const EOVERFLOW: Self = Self(75);
    /// The map type has no such operation (programs and the newer system-call paths).
    pub const EOPNOTSUPP: Self = Self(95);
    /// The map type has no such operation. Not part of the user-space headers: the kernel leaks its internal
    /// `ENOTSUPP` from the map system calls.
    pub const ENOTSUPP: Self = Self(524);

    /// The value a helper returns in r0 for this error.
    #[must_use]
    pub fn as_ret(self) -> i64 {
        -i64::from(self.0)
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::EPERM => f.write_str("EPERM"),
            Self::ENOENT => f.write_str("ENOENT"),
            Self::E2BIG => f.write_str("E2BIG"),
            Self::EAGAIN => f.write_str("EAGAIN"),
            Self::ENOMEM => f.write_str("ENOMEM"),
            Self::EBUSY => f.write_str("EBUSY"),
            Self::EEXIST => f.write_str("EEXIST"),
            Self::EINVAL => f.write_str("EINVAL"),
            Self::ENOSPC => f.write_str("ENOSPC"),
            Self::EDEADLK => f.write_str("EDEADLK"),
            Self::EOVERFLOW => f.write_str("EOVERFLOW"),
            Self::EOPNOTSUPP => f.write_str("EOPNOTSUPP"),
            Self::ENOTSUPP => f.write_str("ENOTSUPP"),
            Self(n) => write!(f, "errno {n}"),
        }
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self, f)
    }
}
