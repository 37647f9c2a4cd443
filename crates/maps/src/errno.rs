//! Error numbers as BPF programs see them.
//!
//! Every operation inside the crate fails with one of the kernel's numbers; the host API adds what was expected
//! ([`crate::MapError`]). Keeping the inner type a bare number means that the program side needs no conversion and
//! that a test can compare it with the kernel's directly.

/// One of the kernel's error numbers, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted: a read-only or write-only map.
    pub const EPERM: Self = Self(libc::EPERM);
    /// No such key, or nothing left.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// More than fits: a full map, an index out of range.
    pub const E2BIG: Self = Self(libc::E2BIG);
    /// No data to drain.
    pub const EAGAIN: Self = Self(libc::EAGAIN);
    /// No memory.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// The map is in use by this very thread further up its stack, or by the only other party allowed.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// The key exists.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// An argument the operation does not take.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// No room left.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// Taking this lock would wait for oneself.
    pub const EDEADLK: Self = Self(libc::EDEADLK);
    /// The map type has no such operation (programs and the newer system-call paths).
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The map type has no such operation. Not part of the user-space headers: the kernel leaks its internal
    /// `ENOTSUPP` from the map system calls.
    pub const ENOTSUPP: Self = Self(524);

    /// The value a helper returns in r0 for this error.
    #[must_use]
    pub fn as_ret(self) -> i64 {
        -i64::from(self.0)
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            Self::EOPNOTSUPP => f.write_str("EOPNOTSUPP"),
            Self::ENOTSUPP => f.write_str("ENOTSUPP"),
            Self(n) => write!(f, "errno {n}"),
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// What operations inside the crate return.
pub(crate) type OpResult<T = ()> = Result<T, Errno>;

/// The helper return value of an operation: 0 or the negative error number.
pub(crate) fn ret(result: OpResult) -> i64 {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.as_ret(),
    }
}
