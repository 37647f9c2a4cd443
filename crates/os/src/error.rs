//! Errors of system calls: the call and the error number.

use bpf_uapi::Errno;

/// A system call, in errors and in plans of failures. One call has several variants where callers handle its failures
/// differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// `mmap(2)`.
    Mmap,
    /// `munmap(2)`.
    Munmap,
    /// `memfd_create(2)`.
    Memfd,
    /// `ftruncate(2)`.
    Ftruncate,
    /// `fcntl(2)` with `F_ADD_SEALS`.
    Seal,
    /// `madvise(2)`.
    Madvise,
    /// `mremap(2)`.
    Mremap,
    /// `mprotect(2)`.
    Mprotect,
    /// `eventfd(2)`.
    Eventfd,
    /// `poll(2)`.
    Poll,
    /// `madvise(2)` with `MADV_WIPEONFORK`, of a separate page.
    WipeOnFork,
    /// `membarrier(2)`.
    Membarrier(Membarrier),
    /// `pthread_key_create(3)`.
    ThreadKey,
    /// `pthread_getattr_np(3)`.
    ThreadStack,
}

/// The commands of `membarrier(2)` in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membarrier {
    /// Announces that this process will use [`Membarrier::Expedited`].
    RegisterExpedited,
    /// Makes every running thread of this process execute a full memory barrier.
    Expedited,
    /// Announces that this process will use [`Membarrier::SyncCore`].
    RegisterSyncCore,
    /// Makes every running thread of this process execute a core-serialising instruction before it returns to user
    /// code.
    SyncCore,
}

/// A failed system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call:?} failed with errno {errno}")]
pub struct SysError {
    /// The call.
    pub call: Call,
    /// The system's error number.
    pub errno: i32,
}

impl SysError {
    /// The error of a call that this system, or this process, does not have.
    #[must_use]
    pub const fn not_here(call: Call) -> Self {
        Self { call, errno: ENOSYS }
    }
}

/// "Function not implemented", Linux's number.
const ENOSYS: i32 = 38;

/// Converts to the error number that programs and callers of map operations see: Linux's, which on Linux is the
/// system's.
impl From<SysError> for Errno {
    fn from(error: SysError) -> Self {
        Self(error.errno)
    }
}

impl From<SysError> for std::io::Error {
    fn from(error: SysError) -> Self {
        Self::from_raw_os_error(error.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants of [`Errno`] equal the operating system's.
    #[test]
    fn error_numbers_are_the_systems() {
        macro_rules! pairs {
            ($($name:ident)*) => { [$((Errno::$name, libc::$name)),*] };
        }
        let pairs = pairs!(
            EPERM ENOENT EIO E2BIG EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENOSPC ERANGE EDEADLK ENODATA
            EPROTO EOVERFLOW EPROTOTYPE EOPNOTSUPP EAFNOSUPPORT EALREADY ETIMEDOUT
        );
        for (ours, system) in pairs {
            assert_eq!(ours.0, system, "{ours}");
        }
        let compared = |errno: &Errno| *errno == Errno::ENOTSUPP || pairs.iter().any(|(ours, _)| ours == errno);
        assert!(Errno::ALL.iter().all(compared), "each number is compared, but the one that systems do not know");
        assert_eq!(ENOSYS, libc::ENOSYS);
    }
}
