//! Files: memory files, which are mapped more than once or given to others, and files that this process writes for
//! tools.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::failed;
use crate::{Call, SysError, inject};

/// The content of a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Data.
    Data,
    /// Code, which will be mapped executable.
    Code,
    /// Code, on huge pages of the administrator's pool (2 MiB each).
    HugeCode,
}

/// Creates a file in memory with `len` zero bytes. `/proc/self/maps` shows its name. Seals can be added to it.
///
/// # Errors
/// No descriptor, memory or huge page is available.
pub fn memory_file(name: &CStr, len: usize, content: Content) -> Result<OwnedFd, SysError> {
    inject::check(Call::Memfd)?;
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // MFD_EXEC (Linux 6.3) announces that the file will be executed.
    let flags = match content {
        Content::Data => base,
        Content::Code => base | libc::MFD_EXEC,
        Content::HugeCode => base | libc::MFD_EXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
    };
    let create = |flags| {
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::memfd_create(name.as_ptr(), flags) }
    };
    let mut fd = create(flags);
    // Older kernels do not know the flag.
    if fd < 0 && flags & libc::MFD_EXEC != 0 && failed(Call::Memfd).errno == libc::EINVAL {
        fd = create(flags & !libc::MFD_EXEC);
    }
    if fd < 0 {
        return Err(failed(Call::Memfd));
    }
    // SAFETY: the descriptor was just made, and no other code owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    inject::check(Call::Ftruncate)?;
    let too_long = SysError { call: Call::Ftruncate, errno: libc::EFBIG };
    // Beyond the limit, `ftruncate` would end the process by SIGXFSZ.
    if len as u64 > size_limit() {
        return Err(too_long);
    }
    let len = libc::off_t::try_from(len).map_err(|_| too_long)?;
    // SAFETY: takes integers only.
    if unsafe { libc::ftruncate(file.as_raw_fd(), len) } != 0 {
        return Err(failed(Call::Ftruncate));
    }
    Ok(file)
}

/// The largest file that this process may make, in bytes (`RLIMIT_FSIZE`).
fn size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes to `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// A file to write to. Exceeding `RLIMIT_FSIZE` is an error instead of a SIGXFSZ, which would end the process.
#[derive(Debug)]
pub struct Bounded<'f>(pub &'f File);

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let limit = size_limit();
        if limit != libc::RLIM_INFINITY {
            let start = self.0.metadata()?.len().max(self.0.stream_position()?);
            if start.saturating_add(bytes.len() as u64) > limit {
                return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
            }
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// The operations that a seal forbids to all users of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seals {
    /// Changes of length. Otherwise a process with the descriptor could cut off pages that are in use (`SIGBUS`), or
    /// cut constants off and let zeros grow in their place.
    Length,
    /// Changes of length, and adding seals.
    LengthFinally,
    /// Writing, mapping for writing, and adding seals; existing mappings stay (Linux 5.1). May be applied repeatedly.
    FutureWrites,
}

/// Seals a file of [`memory_file`].
///
/// # Errors
/// The kernel does not know the seal, or the seals are final.
pub fn seal(file: &OwnedFd, seals: Seals) -> Result<(), SysError> {
    let seals = match seals {
        Seals::Length => libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
        Seals::LengthFinally => libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
        Seals::FutureWrites => {
            // SAFETY: takes integers only, and changes nothing.
            let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
            // A second call would fail because the first one forbids to add seals.
            if seals >= 0 && seals & libc::F_SEAL_FUTURE_WRITE != 0 {
                return Ok(());
            }
            libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL
        }
    };
    inject::check(Call::Seal)?;
    // SAFETY: takes integers only.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if done == 0 { Ok(()) } else { Err(failed(Call::Seal)) }
}

/// Opens a file in a folder that all users can write to (`/tmp`), for reading and appending. Only its owner may read
/// it, a symbolic link in its place is refused, and executed programs do not inherit it.
///
/// # Errors
/// As [`OpenOptions::open`].
pub fn append_in_public_folder(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path)
}
