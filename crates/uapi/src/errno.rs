//! Error numbers that BPF programs see.
//!
//! Helpers return them negated in r0. Map operations fail with them, and the host's API adds a message. The type is a
//! bare number, so that the program side needs no conversion and a test can compare it with the kernel's directly.
//!
//! Source: `include/uapi/asm-generic/errno-base.h` and `errno.h`, which x86-64 and arm64 share.

/// One of the kernel's error numbers, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// All numbers with a name here.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name, if it has one here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    Self(_) => None,
                }
            }
        }
    };
}

errnos! {
    /// Operation not permitted: a read-only or write-only map.
    EPERM = 1,
    /// No such key, or nothing left.
    ENOENT = 2,
    /// Reading or writing failed.
    EIO = 5,
    /// More than fits: a full map, an index out of range.
    E2BIG = 7,
    /// No data to drain.
    EAGAIN = 11,
    /// No memory.
    ENOMEM = 12,
    /// An access that this context does not allow.
    EACCES = 13,
    /// Outside of the packet or the buffer.
    EFAULT = 14,
    /// The map is in use by an interrupted run of this thread, or by the only other user allowed.
    EBUSY = 16,
    /// The key exists.
    EEXIST = 17,
    /// No such network interface.
    ENODEV = 19,
    /// An argument the operation does not take.
    EINVAL = 22,
    /// No room left.
    ENOSPC = 28,
    /// A number outside the range of the type.
    ERANGE = 34,
    /// Taking this lock would be a deadlock.
    EDEADLK = 35,
    /// The operation took too long.
    ETIMEDOUT = 110,
    /// No data are available.
    ENODATA = 61,
    /// A protocol that the operation does not know.
    EPROTO = 71,
    /// A number above its maximum.
    EOVERFLOW = 75,
    /// Protocol wrong type for socket.
    EPROTOTYPE = 91,
    /// The map type has no such operation (programs and the newer system-call paths).
    EOPNOTSUPP = 95,
    /// An address family that the operation does not support.
    EAFNOSUPPORT = 97,
    /// The state that was asked for exists already.
    EALREADY = 114,
    /// The map type has no such operation. Not part of the user-space headers: the kernel leaks its internal
    /// `ENOTSUPP` from the map system calls.
    ENOTSUPP = 524,
}

impl Errno {
    /// The value a helper returns in r0 for this error.
    #[must_use]
    pub const fn as_ret(self) -> i64 {
        // `i64::from` is not const.
        -(self.0 as i64)
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self, f)
    }
}
