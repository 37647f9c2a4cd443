//! Address space and pages: reserved, mapped, protected, advised about.
//!
//! The provenance of every mapping's address is exposed, so that a caller may keep addresses as numbers
//! ([`std::ptr::with_exposed_provenance_mut`]).

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::failed;
use crate::{Call, SysError, inject};

/// The access rights of mapped memory. Only [`map_debuggable_over`] uses the variant that is writable and executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    None,
    /// Reading and writing.
    ReadWrite,
    /// Reading and executing.
    ReadExecute,
    /// All rights: for code that is debugged ([`map_debuggable_over`]).
    ReadWriteExecute,
}

impl Protection {
    fn bits(self) -> libc::c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Self::ReadExecute => libc::PROT_READ | libc::PROT_EXEC,
            Self::ReadWriteExecute => libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        }
    }
}

/// The source of new pages.
#[derive(Debug, Clone, Copy)]
pub enum Pages<'f> {
    /// Zeroed pages, private to this process.
    Anonymous,
    /// Pages of a memory file, shared with all processes that map it.
    File(BorrowedFd<'f>),
}

const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, `at..at + len` belongs to the caller, and no reference to it exists.
unsafe fn mmap(
    at: *mut u8,
    len: usize,
    protection: Protection,
    flags: libc::c_int,
    file: Option<BorrowedFd<'_>>,
    offset: u64,
) -> Result<*mut u8, SysError> {
    inject::check(Call::Mmap)?;
    let too_far = SysError { call: Call::Mmap, errno: libc::EOVERFLOW };
    let offset = libc::off_t::try_from(offset).map_err(|_| too_far)?;
    let fd = file.map_or(-1, |file| file.as_raw_fd());
    // SAFETY: a new mapping replaces none but the caller's own (contract).
    let mapped = unsafe { libc::mmap(at.cast(), len, protection.bits(), flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(failed(Call::Mmap));
    }
    mapped.expose_provenance();
    Ok(mapped.cast())
}

/// Maps `len` bytes, readable and writable, at an address of the system's choice. Pages take memory when they are
/// first written.
///
/// # Errors
/// The system has no more memory.
pub fn map(len: usize, pages: Pages<'_>) -> Result<*mut u8, SysError> {
    let (flags, file) = match pages {
        Pages::Anonymous => (PRIVATE, None),
        Pages::File(file) => (libc::MAP_SHARED, Some(file)),
    };
    // SAFETY: without MAP_FIXED, the mapping replaces no other.
    let at = unsafe { mmap(std::ptr::null_mut(), len, Protection::ReadWrite, flags, file, 0) }?;
    inject::mapped(at, len);
    Ok(at)
}

/// Reserves `len` bytes of address space at exactly `at`, or anywhere. The range is not accessible yet.
///
/// # Errors
/// There is no room at this place.
pub fn reserve(at: Option<usize>, len: usize) -> Result<*mut u8, SysError> {
    let place = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let hint = std::ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: without MAP_FIXED (MAP_FIXED_NOREPLACE fails instead), the mapping replaces no other.
    let mapped = unsafe { mmap(hint, len, Protection::None, PRIVATE | place, None, 0) }?;
    inject::mapped(mapped, len);
    match at {
        // Kernels before 4.17 take the address as a hint.
        Some(at) if mapped.addr() != at => {
            // SAFETY: mapped above, and its address was not given out.
            unsafe { unmap(mapped, len) }?;
            Err(SysError { call: Call::Mmap, errno: libc::EEXIST })
        }
        _ => Ok(mapped),
    }
}

/// Maps `len` bytes of a file, from `offset` on, over reserved address space, shared with all processes that map it.
///
/// # Safety
/// `at..at + len` was reserved by the caller, and no reference to it exists.
///
/// # Errors
/// The system has no more memory, or the file is shorter.
pub unsafe fn map_file_over(
    at: *mut u8,
    len: usize,
    protection: Protection,
    file: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), SysError> {
    // SAFETY: the caller's range (contract).
    unsafe { mmap(at, len, protection, libc::MAP_SHARED | libc::MAP_FIXED, Some(file), offset) }.map(drop)
}

/// Maps new shared memory without a descriptor over reserved address space, readable and writable. The kernel names
/// it `/dev/zero`.
///
/// # Safety
/// `at..at + len` was reserved by the caller, and no reference to it exists.
///
/// # Errors
/// The system has no more memory.
pub unsafe fn map_shared_over(at: *mut u8, len: usize) -> Result<(), SysError> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller's range (contract).
    unsafe { mmap(at, len, Protection::ReadWrite, flags, None, 0) }.map(drop)
}

/// Maps private memory that is readable, writable and executable at once over reserved address space. A debugger can
/// write breakpoints into no other executable memory. On failure the range is reserved address space, or not mapped
/// at all.
///
/// # Safety
/// `at..at + len` was reserved by the caller, and no reference to it exists.
///
/// # Errors
/// The system forbids such memory, or has no more memory.
pub unsafe fn map_debuggable_over(at: *mut u8, len: usize) -> Result<(), SysError> {
    // SAFETY: the caller's range (contract).
    unsafe { mmap(at, len, Protection::ReadWriteExecute, PRIVATE | libc::MAP_FIXED, None, 0) }.map(drop)
}

/// Maps shared memory a second time, read-execute, over reserved address space; on failure that is reserved again.
/// Must be called before [`Advice::DontFork`] is applied to `from`, which the new mapping would inherit.
///
/// # Safety
/// `from..from + len` is a mapping of [`map_shared_over`]; `at..at + len` was reserved by the caller, and no
/// reference to it exists.
///
/// # Errors
/// The system does not support this (user-mode QEMU), or has no more memory.
pub unsafe fn map_again(from: *mut u8, at: *mut u8, len: usize) -> Result<(), SysError> {
    inject::check(Call::Mremap)?;
    let to = at.cast::<libc::c_void>();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: an old length of 0 leaves the old mapping of shared memory unchanged (mremap(2)); the caller owns the
    // new range.
    if unsafe { libc::mremap(from.cast(), 0, len, flags, to) } == libc::MAP_FAILED {
        return Err(failed(Call::Mremap));
    }
    // SAFETY: mapped above, and no other code knows the address.
    unsafe { protect(at, len, Protection::ReadExecute) }.inspect_err(|_| {
        // SAFETY: the caller's range, whose mapping was not given out.
        let _ = unsafe { unmap_to_reserved(at, len) };
    })
}

/// Turns mapped memory back into reserved address space.
///
/// # Safety
/// `at..at + len` belongs to the caller, and no reference to it is left.
///
/// # Errors
/// The system is out of mappings.
pub unsafe fn unmap_to_reserved(at: *mut u8, len: usize) -> Result<(), SysError> {
    // SAFETY: the caller's range (contract).
    unsafe { mmap(at, len, Protection::None, PRIVATE | libc::MAP_FIXED, None, 0) }.map(drop)
}

/// Unmaps a mapping, or a part of one. A failure, which can happen only for a part, loses address space.
///
/// # Safety
/// `at..at + len` was mapped here, belongs to the caller, and no reference to it is left.
///
/// # Errors
/// The system is out of mappings.
pub unsafe fn unmap(at: *mut u8, len: usize) -> Result<(), SysError> {
    inject::check(Call::Munmap)?;
    inject::unmapped(at);
    // SAFETY: the caller's range (contract).
    if unsafe { libc::munmap(at.cast(), len) } == 0 { Ok(()) } else { Err(failed(Call::Munmap)) }
}

/// Changes the access rights of mapped memory.
///
/// # Safety
/// `at..at + len` belongs to the caller, and is not accessed in a way that becomes forbidden.
///
/// # Errors
/// The system is out of mappings.
pub unsafe fn protect(at: *mut u8, len: usize, protection: Protection) -> Result<(), SysError> {
    inject::check(Call::Mprotect)?;
    // SAFETY: the caller's range (contract).
    let done = unsafe { libc::mprotect(at.cast(), len, protection.bits()) };
    if done == 0 { Ok(()) } else { Err(failed(Call::Mprotect)) }
}

/// linux/mman.h; not in libc for all targets. Linux 6.13.
const MADV_GUARD_INSTALL: libc::c_int = 102;
/// Linux 5.14.
const MADV_POPULATE_READ: libc::c_int = 22;

/// Whether the kernel has lightweight guards: not known, [`YES`] or [`NO`]. To ask for each guard would be one system
/// call more.
static LIGHT_GUARDS: AtomicU8 = AtomicU8::new(0);
const YES: u8 = 1;
const NO: u8 = 2;

/// Makes pages of private anonymous memory inaccessible. Where the kernel has lightweight guards, the mapping is not
/// split, of which a process has few (`vm.max_map_count`); elsewhere it is.
///
/// # Safety
/// `at..at + len` is a part of a mapping of [`map`], is the caller's, and nothing accesses it.
///
/// # Errors
/// The system is out of mappings.
pub unsafe fn guard(at: *mut u8, len: usize) -> Result<(), SysError> {
    inject::check(Call::Mprotect)?;
    // Relaxed: a fact about the kernel, which any thread may find out.
    let known = LIGHT_GUARDS.load(Ordering::Relaxed);
    // SAFETY: the caller's range (contract), which nobody accesses.
    if known != NO && unsafe { libc::madvise(at.cast(), len, MADV_GUARD_INSTALL) } == 0 {
        if known == YES {
            return Ok(());
        }
        // User-mode QEMU takes any advice and does nothing: pages that can be populated are no guards.
        // SAFETY: the caller's range (contract), whose contents this does not change.
        let populated = unsafe { libc::madvise(at.cast(), len, MADV_POPULATE_READ) } == 0;
        if !populated && Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
            LIGHT_GUARDS.store(YES, Ordering::Relaxed);
            return Ok(());
        }
        if populated {
            LIGHT_GUARDS.store(NO, Ordering::Relaxed);
        }
    }
    // SAFETY: the caller's range (contract).
    let done = unsafe { libc::mprotect(at.cast(), len, Protection::None.bits()) };
    if done == 0 { Ok(()) } else { Err(failed(Call::Mprotect)) }
}

/// The advice values in use. Only [`Advice::Discard`] changes the contents of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// A forked child does not get the mapping.
    DontFork,
    /// Use huge pages where the system has them.
    Huge,
    /// Collapse the range into huge pages at once (Linux 6.1).
    Collapse,
    /// Return the memory of private, anonymous pages, which become zero.
    Discard,
}

/// linux/mman.h; not in libc for all targets.
const MADV_COLLAPSE: libc::c_int = 25;

/// `madvise(2)`.
///
/// # Safety
/// `at..at + len` is a mapping of the caller. With [`Advice::DontFork`] no forked child accesses it. With
/// [`Advice::Discard`] all users of the range accept that it becomes zero at any moment.
///
/// # Errors
/// The kernel does not know the advice, or cannot follow it.
pub unsafe fn advise(at: *mut u8, len: usize, advice: Advice) -> Result<(), SysError> {
    inject::check(Call::Madvise)?;
    let advice = match advice {
        Advice::DontFork => libc::MADV_DONTFORK,
        Advice::Huge => libc::MADV_HUGEPAGE,
        Advice::Collapse => MADV_COLLAPSE,
        Advice::Discard => libc::MADV_DONTNEED,
    };
    // SAFETY: the caller's mapping (contract), which may become zero if it is discarded (contract); no other advice
    // above changes its contents.
    if unsafe { libc::madvise(at.cast(), len, advice) } == 0 { Ok(()) } else { Err(failed(Call::Madvise)) }
}

/// Maps zeroed pages that the system zeroes again in every forked child. They are never unmapped.
///
/// # Errors
/// The kernel does not know such pages (before 4.14, Miri), or has no memory.
pub fn zeroed_in_children(len: usize) -> Result<NonNull<u8>, SysError> {
    if cfg!(miri) {
        return Err(SysError::not_here(Call::WipeOnFork));
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(failed(Call::WipeOnFork));
    }
    let advised = inject::check(Call::WipeOnFork).and_then(|()| {
        // SAFETY: mapped above with this length.
        let done = unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) };
        if done == 0 { Ok(()) } else { Err(failed(Call::WipeOnFork)) }
    });
    if let Err(error) = advised {
        // SAFETY: mapped above, and no reference to it exists.
        unsafe { libc::munmap(page, len) };
        return Err(error);
    }
    page.expose_provenance();
    NonNull::new(page.cast()).ok_or(SysError { call: Call::WipeOnFork, errno: libc::ENOMEM })
}

/// Bytes in a page. Asked for once, because every commit of a ring's record needs it.
#[inline]
pub fn page_size() -> usize {
    static SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf with a constant name only reads.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}
