//! The result of operations inside the crate: one of the kernel's error numbers.
//!
//! The host API adds what was expected ([`crate::MapError`]); the program side returns the number as it is.

pub use bpf_uapi::Errno;

/// What operations inside the crate return.
pub(crate) type OpResult<T = ()> = Result<T, Errno>;

/// The helper return value of an operation: 0 or the negative error number.
pub(crate) fn ret(result: OpResult) -> i64 {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.as_ret(),
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    /// The vocabulary has its own numbers; the operating system's are these.
    #[test]
    fn error_numbers_are_the_systems() {
        let pairs = [
            (Errno::EPERM, libc::EPERM),
            (Errno::ENOENT, libc::ENOENT),
            (Errno::E2BIG, libc::E2BIG),
            (Errno::EAGAIN, libc::EAGAIN),
            (Errno::ENOMEM, libc::ENOMEM),
            (Errno::EBUSY, libc::EBUSY),
            (Errno::EEXIST, libc::EEXIST),
            (Errno::EINVAL, libc::EINVAL),
            (Errno::ENOSPC, libc::ENOSPC),
            (Errno::EDEADLK, libc::EDEADLK),
            (Errno::EOVERFLOW, libc::EOVERFLOW),
            (Errno::EOPNOTSUPP, libc::EOPNOTSUPP),
        ];
        for (ours, system) in pairs {
            assert_eq!(ours.0, system, "{ours}");
        }
    }
}
