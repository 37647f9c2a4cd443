//! The system calls of executable memory: one function each, so that tests can make each of them fail.
//!
//! Problem: every call may fail (limits, seccomp, no huge pages), and each failure must leave a consistent state.
//!
//! Approach: a function per call that returns a typed error naming it. Under `cfg(test)` a per-thread countdown
//! ([`inject`]) makes the n-th call fail instead.
//!
//! Invariant: no mapping is ever writable and executable: the only protections passed anywhere are those of
//! [`Protection`].

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A system call of this crate, in errors.
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
}

/// A failed system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call:?} failed with errno {errno}")]
pub struct SysError {
    /// The call.
    pub call: Call,
    /// Its error number.
    pub errno: i32,
}

/// What may be done with mapped memory. There is no writable and executable variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    None,
    ReadWrite,
    ReadExecute,
}

impl Protection {
    fn bits(self) -> libc::c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Self::ReadExecute => libc::PROT_READ | libc::PROT_EXEC,
        }
    }
}

fn failed(call: Call) -> SysError {
    SysError { call, errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}

fn check(call: Call) -> Result<(), SysError> {
    #[cfg(test)]
    inject::check(call)?;
    let _ = call;
    Ok(())
}

/// Reserves `len` bytes of address space at exactly `at`, or anywhere.
pub(crate) fn reserve(at: Option<usize>, len: usize) -> Result<usize, SysError> {
    check(Call::Mmap)?;
    let place = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | place;
    let hint = std::ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: without MAP_FIXED no existing mapping is replaced.
    let mapped = unsafe { libc::mmap(hint, len, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(failed(Call::Mmap));
    }
    match at {
        // Kernels before 4.17 take the address as a hint.
        Some(at) if mapped.addr() != at => {
            unmap(mapped.addr(), len)?;
            Err(SysError { call: Call::Mmap, errno: libc::EEXIST })
        }
        _ => Ok(mapped.expose_provenance()),
    }
}

/// Maps the whole of `fd` over reserved address space.
///
/// # Safety
/// `at..at + len` is reserved by the caller and nothing uses it.
pub(crate) unsafe fn map_file(at: usize, len: usize, protection: Protection, fd: &OwnedFd) -> Result<(), SysError> {
    check(Call::Mmap)?;
    let at = std::ptr::with_exposed_provenance_mut(at);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the caller owns the range.
    let mapped = unsafe { libc::mmap(at, len, protection.bits(), flags, fd.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(failed(Call::Mmap)) } else { Ok(()) }
}

/// Maps new shared memory that no descriptor names over reserved address space, read-write. The kernel calls it
/// `/dev/zero`.
///
/// # Safety
/// `at..at + len` is reserved by the caller and nothing uses it.
pub(crate) unsafe fn map_shared(at: usize, len: usize) -> Result<(), SysError> {
    check(Call::Mmap)?;
    let at = std::ptr::with_exposed_provenance_mut(at);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller owns the range.
    let mapped = unsafe { libc::mmap(at, len, Protection::ReadWrite.bits(), flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(failed(Call::Mmap)) } else { Ok(()) }
}

/// Maps shared memory a second time, read-execute over reserved address space; on failure that is reserved again.
/// `from` must not be `DontFork` yet: the new mapping would be as well.
///
/// # Safety
/// `from..from + len` is a mapping of [`map_shared`]; `at..at + len` is reserved by the caller and nothing uses it.
pub(crate) unsafe fn map_again(from: usize, at: usize, len: usize) -> Result<(), SysError> {
    check(Call::Mremap)?;
    let from = std::ptr::with_exposed_provenance_mut::<libc::c_void>(from);
    let to = std::ptr::with_exposed_provenance_mut::<libc::c_void>(at);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: an old length of 0 leaves the old mapping of shared memory as it is (mremap(2)); the caller owns the new
    // range.
    if unsafe { libc::mremap(from, 0, len, flags, to) } == libc::MAP_FAILED {
        return Err(failed(Call::Mremap));
    }
    // SAFETY: mapped above, and nobody else knows it.
    let protect = || match unsafe { libc::mprotect(to, len, Protection::ReadExecute.bits()) } {
        0 => Ok(()),
        _ => Err(failed(Call::Mprotect)),
    };
    check(Call::Mprotect).and_then(|()| protect()).inspect_err(|_| {
        // SAFETY: the caller's range, which nobody has seen mapped.
        let _ = unsafe { unmap_to_reserved(at, len) };
    })
}

/// Turns mapped memory back into reserved address space.
///
/// # Safety
/// `at..at + len` is the caller's and nothing uses it any more.
pub(crate) unsafe fn unmap_to_reserved(at: usize, len: usize) -> Result<(), SysError> {
    check(Call::Mmap)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller owns the range.
    let mapped = unsafe { libc::mmap(at, len, Protection::None.bits(), flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(failed(Call::Mmap)) } else { Ok(()) }
}

/// Unmaps address space that this module mapped and that nothing uses any more.
pub(crate) fn unmap(at: usize, len: usize) -> Result<(), SysError> {
    check(Call::Munmap)?;
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: crate-private; all callers pass ranges they got from `reserve` and own.
    if unsafe { libc::munmap(at, len) } == 0 { Ok(()) } else { Err(failed(Call::Munmap)) }
}

/// Memory without a name, of `len` bytes.
pub(crate) fn memory_file(len: usize, huge: bool) -> Result<OwnedFd, SysError> {
    check(Call::Memfd)?;
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let base = if huge { base | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB } else { base };
    // MFD_EXEC (Linux 6.3) says that we mean to execute it; older kernels do not know the flag.
    let create = |flags| {
        // SAFETY: the name is a NUL-terminated constant.
        unsafe { libc::memfd_create(c"prog-pack".as_ptr(), flags) }
    };
    let mut fd = create(base | libc::MFD_EXEC);
    if fd < 0 && failed(Call::Memfd).errno == libc::EINVAL {
        fd = create(base);
    }
    if fd < 0 {
        return Err(failed(Call::Memfd));
    }
    // SAFETY: the descriptor was just made and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    check(Call::Ftruncate)?;
    // SAFETY: takes integers only.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
        return Err(failed(Call::Ftruncate));
    }
    Ok(fd)
}

/// Forbids to change the file's size (a shorter one would turn code into SIGBUS) and its seals.
pub(crate) fn seal(fd: &OwnedFd) -> Result<(), SysError> {
    check(Call::Seal)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: takes integers only.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 { Ok(()) } else { Err(failed(Call::Seal)) }
}

/// `madvise` with an advice that changes no contents.
pub(crate) fn advise(at: usize, len: usize, advice: Advice) -> Result<(), SysError> {
    check(Call::Madvise)?;
    let advice = match advice {
        Advice::DontFork => libc::MADV_DONTFORK,
        Advice::Collapse => MADV_COLLAPSE,
    };
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: crate-private; all callers pass ranges they mapped, and no advice above changes what the memory holds.
    if unsafe { libc::madvise(at, len, advice) } == 0 { Ok(()) } else { Err(failed(Call::Madvise)) }
}

/// Advices in use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Advice {
    /// A forked child does not get the mapping.
    DontFork,
    /// Make huge pages now (Linux 6.1).
    Collapse,
}

/// linux/mman.h; not in libc for all targets.
const MADV_COLLAPSE: libc::c_int = 25;

/// One mapping of `/proc/self/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) permissions: String,
    pub(crate) name: String,
}

/// The process's mappings in address order; empty where `/proc` is not to be had.
pub(crate) fn mappings() -> Vec<Mapping> {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let permissions = fields.next()?.to_owned();
    let name = fields.nth(3).unwrap_or_default().to_owned();
    Some(Mapping { start, end, permissions, name })
}

/// How many bytes of `at..at + len` are mapped through huge-page entries, by `/proc/self/smaps`.
pub(crate) fn huge_bytes(at: usize, len: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut inside, mut huge) = (false, 0);
    for line in smaps.lines() {
        if let Some(mapping) = parse_mapping(line) {
            inside = mapping.start >= at && mapping.end <= at + len;
        } else if let Some((key, value)) = line.split_once(':')
            && inside
            && matches!(key, "ShmemPmdMapped" | "FilePmdMapped" | "Shared_Hugetlb" | "Private_Hugetlb")
        {
            let kib = value.split_ascii_whitespace().next().and_then(|n| n.parse::<usize>().ok());
            huge += kib.unwrap_or(0) * 1024;
        }
    }
    huge
}

#[cfg(test)]
pub(crate) mod inject {
    //! Makes the n-th call of a kind fail, on the calling thread.

    use std::cell::Cell;

    use super::{Call, SysError};

    #[derive(Clone, Copy)]
    struct Plan {
        call: Call,
        /// Calls of that kind that succeed before.
        before: u32,
        /// Whether the later ones fail as well.
        lasting: bool,
        reached: bool,
    }

    thread_local!(static PLAN: Cell<Option<Plan>> = const { Cell::new(None) });

    /// Runs `f` with the `nth` (from 0) call of that kind failing; also says whether that call was reached.
    pub(crate) fn failing<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
        with(Plan { call, before: nth, lasting: false, reached: false }, f)
    }

    /// The same with all later calls of that kind failing as well: those that clean up after the first failure too.
    pub(crate) fn failing_from<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
        with(Plan { call, before: nth, lasting: true, reached: false }, f)
    }

    fn with<R>(plan: Plan, f: impl FnOnce() -> R) -> (R, bool) {
        PLAN.set(Some(plan));
        let result = f();
        (result, PLAN.take().is_some_and(|plan| plan.reached))
    }

    pub(super) fn check(call: Call) -> Result<(), SysError> {
        let Some(mut plan) = PLAN.get().filter(|plan| plan.call == call) else { return Ok(()) };
        if plan.reached && !plan.lasting {
            return Ok(());
        }
        if plan.before > 0 {
            plan.before -= 1;
        } else {
            plan.reached = true;
        }
        PLAN.set(Some(plan));
        if plan.reached { Err(SysError { call, errno: libc::EPERM }) } else { Ok(()) }
    }
}
