//! The result of operations inside the crate: one of the kernel's error numbers.
//!
//! The host API adds what was expected ([`crate::MapError`]); the program side returns the number as it is.

pub use bpf_uapi::Errno;

/// The result of operations inside the crate.
pub(crate) type OpResult<T = ()> = Result<T, Errno>;

/// The helper return value of an operation: 0 or the negative error number.
pub(crate) fn ret(result: OpResult) -> i64 {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.as_ret(),
    }
}
