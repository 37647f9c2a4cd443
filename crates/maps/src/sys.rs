//! The system calls of the crate. Those that make a map go one function each, so that tests can make each of them fail
//! ([`inject`]).

use crate::errno::Errno;

/// What may fail while a map is made or lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(loom, allow(dead_code, reason = "only tables are used under loom"))]
pub(crate) enum Call {
    Mmap,
    Madvise,
    Mprotect,
    Memfd,
    Ftruncate,
    Seal,
    Eventfd,
}

/// Only tests make a call fail on purpose.
#[cfg(not(all(test, not(loom))))]
mod inject {
    #[inline(always)]
    pub(super) fn check(_: super::Call) -> Result<(), super::Errno> {
        Ok(())
    }

    #[inline(always)]
    pub(super) fn mapped(_: *mut u8, _: usize) {}

    #[inline(always)]
    pub(super) fn unmapped(_: *mut u8) {}
}

#[cfg(all(test, not(loom)))]
pub(crate) mod inject {
    //! Makes the n-th call of a kind fail, on the calling thread, and counts what that thread has mapped.

    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::{Call, Errno};

    thread_local! {
        /// What fails, how many succeed before, and whether that call was reached.
        static PLAN: Cell<Option<(Call, u32, bool)>> = const { Cell::new(None) };
        static MAPPED: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Runs `f` with the `nth` (from 0) call of that kind failing; also says whether that call was reached.
    pub(crate) fn failing<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
        PLAN.set(Some((call, nth, false)));
        let result = f();
        (result, PLAN.take().is_some_and(|(.., reached)| reached))
    }

    pub(super) fn check(call: Call) -> Result<(), Errno> {
        match PLAN.get() {
            Some((planned, before, false)) if planned == call => {
                PLAN.set(Some((planned, before.saturating_sub(1), before == 0)));
                if before == 0 { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn mapped(at: *mut u8, len: usize) {
        MAPPED.with_borrow_mut(|mapped| mapped.insert(at as usize, len));
    }

    pub(super) fn unmapped(at: *mut u8) {
        MAPPED.with_borrow_mut(|mapped| mapped.remove(&(at as usize)));
    }

    /// Bytes that this thread has mapped and not unmapped.
    pub(crate) fn mapped_bytes() -> usize {
        MAPPED.with_borrow(|mapped| mapped.values().sum())
    }
}

/// How new pages are to be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pages {
    /// Private anonymous ones.
    Anonymous,
    /// Private anonymous ones that nobody may access yet: a reservation.
    #[cfg_attr(loom, allow(dead_code, reason = "only tables are used under loom"))]
    Reserved,
    /// Those of a memory file from an offset on, shared with whoever maps it as well.
    File(libc::c_int, libc::off_t),
}

/// Maps `bytes` bytes at an address of the kernel's choice.
pub(crate) fn map(bytes: usize, pages: Pages) -> Result<*mut u8, Errno> {
    inject::check(Call::Mmap)?;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (protection, flags, fd, offset) = match pages {
        Pages::Anonymous => (access, anonymous, -1, 0),
        Pages::Reserved => (libc::PROT_NONE, anonymous, -1, 0),
        Pages::File(fd, offset) => (access, libc::MAP_SHARED, fd, offset),
    };
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(last_errno());
    }
    inject::mapped(at.cast(), bytes);
    Ok(at.cast())
}

/// Gives a mapping of [`map`] back.
///
/// # Safety
/// Nothing may refer to it any more.
pub(crate) unsafe fn unmap(at: *mut u8, bytes: usize) {
    inject::unmapped(at);
    // SAFETY: our own mapping, not referred to (contract). It cannot fail for a whole mapping; if it did, address space
    // would be lost.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Asks for huge pages. It may be refused: then the pages stay small, which is correct too.
pub(crate) fn advise_huge(at: *mut u8, bytes: usize) {
    if inject::check(Call::Madvise).is_ok() {
        // SAFETY: advice changes no contents; an address that is not mapped is an error.
        unsafe { libc::madvise(at.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}

/// Keeps pages out of forked children. Where that is refused they are shared with these, which must leave them alone
/// anyway.
///
/// # Safety
/// The pages must belong to the caller, who accesses them in no child.
#[cfg(not(loom))]
pub(crate) unsafe fn keep_from_children(at: *mut u8, bytes: usize) {
    // SAFETY: the caller's pages (contract).
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTFORK) };
}

/// Makes reserved pages accessible.
///
/// # Safety
/// The pages must belong to the caller.
#[cfg(not(loom))]
pub(crate) unsafe fn allow_access(at: *mut u8, bytes: usize) -> Result<(), Errno> {
    inject::check(Call::Mprotect)?;
    // SAFETY: the caller's pages (contract).
    let result = unsafe { libc::mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Maps part of a file over reserved pages.
///
/// # Safety
/// The pages must belong to the caller, and nothing may refer to them.
#[cfg(not(loom))]
pub(crate) unsafe fn map_over(
    at: *mut u8,
    bytes: usize,
    file: &std::os::fd::OwnedFd,
    offset: libc::off_t,
) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    inject::check(Call::Mmap)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the caller's pages, which nothing refers to (contract).
    let mapped = unsafe { libc::mmap(at.cast(), bytes, protection, flags, file.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(last_errno()) } else { Ok(()) }
}

/// An eventfd that is not set.
#[cfg(not(loom))]
pub(crate) fn event() -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    inject::check(Call::Eventfd)?;
    // SAFETY: no arguments that could be wrong; the result is checked.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if event < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(event) })
}

/// Bytes in a page: asked for once, because every commit of a ring's record needs it.
#[inline]
pub fn page_size() -> usize {
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

/// A file in memory of `bytes` zeroes, which keeps that length: whoever clones the descriptor could otherwise cut off
/// pages that runs access (`SIGBUS`), or cut constants off and let zeroes grow in their place.
#[cfg(not(loom))]
pub(crate) fn memory_file(bytes: usize) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::{AsRawFd, FromRawFd};
    inject::check(Call::Memfd)?;
    // SAFETY: a constant name, and the result is checked.
    let fd = unsafe { libc::memfd_create(c"bpf-map".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let file = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
    inject::check(Call::Ftruncate)?;
    // SAFETY: resizes our own file.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
        return Err(last_errno());
    }
    add_seals(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// From now on the file cannot be written to nor mapped for writing; mappings that exist stay as they are (Linux 5.1).
/// Its seals are final.
#[cfg(not(loom))]
pub(crate) fn seal_future_writes(file: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: takes integers only, and changes nothing.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    // A second call would be refused by the seal of the seals.
    if seals >= 0 && seals & libc::F_SEAL_FUTURE_WRITE != 0 {
        return Ok(());
    }
    add_seals(file, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

#[cfg(not(loom))]
fn add_seals(file: &std::os::fd::OwnedFd, seals: libc::c_int) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    inject::check(Call::Seal)?;
    // SAFETY: changes only the seals of our own file.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}
