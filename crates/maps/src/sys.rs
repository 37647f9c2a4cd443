//! The few system calls the crate needs beyond `mmap`: page size, futex, memory files.

use crate::errno::Errno;

/// Bytes in a page: asked for once, because every commit of a ring's record needs it.
#[inline]
pub(crate) fn page_size() -> usize {
    static SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf with a constant name only reads.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// The calling thread's last system error.
pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
}

/// Sleeps while `*word == expected`. May wake for no reason.
#[cfg(not(loom))]
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, expected: u32) {
    let timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call; FUTEX_WAIT only reads it. Every failure (changed, interrupted) means
    // "look again", which the caller does anyway.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, timeout)
    };
}

/// Wakes every thread that sleeps on `word`.
#[cfg(not(loom))]
pub(crate) fn futex_wake_all(word: *const u32) {
    // SAFETY: FUTEX_WAKE uses the address as a name and does not access it.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

/// A file in memory of `bytes` zeroes.
#[cfg(not(loom))]
pub(crate) fn memory_file(bytes: usize) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: a constant name, and the result is checked.
    let fd = unsafe { libc::memfd_create(c"bpf-map".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let file = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
    // SAFETY: resizes our own file.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
        return Err(last_errno());
    }
    Ok(file)
}

/// From now on the file cannot be written to nor mapped for writing; mappings that exist stay as they are (Linux 5.1).
#[cfg(not(loom))]
pub(crate) fn seal_future_writes(file: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: changes only the seals of our own file.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}
