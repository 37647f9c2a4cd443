//! Any other system, through Rust's standard library: sufficient for verifying, and for interpreting with maps in
//! this process's memory. Functions that need a system call return "not here", and their callers use the alternatives
//! listed in the crate's documentation.
//!
//! Memory comes from the global allocator, page-aligned and zeroed. Address space cannot be reserved, there are no
//! memory files, and no memory is executable.

use crate::{Call, SysError};

/// Descriptors, for systems other than Unix: types without values.
#[cfg(not(unix))]
pub mod fd {
    /// An owned descriptor.
    #[derive(Debug)]
    pub enum OwnedFd {}

    /// A borrowed descriptor.
    #[derive(Debug, Clone, Copy)]
    pub struct BorrowedFd<'f>(core::convert::Infallible, core::marker::PhantomData<&'f ()>);

    /// A type with a descriptor to borrow.
    pub trait AsFd {
        /// Borrows the descriptor.
        fn as_fd(&self) -> BorrowedFd<'_>;
    }

    impl AsFd for OwnedFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }
}

/// Barriers that other threads execute: not here; guards execute fences instead.
pub mod barrier {
    use super::{Call, SysError};
    use crate::Membarrier;

    /// Not here.
    ///
    /// # Errors
    /// Always.
    pub fn membarrier(command: Membarrier) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Membarrier(command)))
    }
}

/// Events: not here, so there are no ring buffers.
pub mod event {
    use super::{Call, SysError};
    use crate::fd::{AsFd, BorrowedFd};
    use std::time::Duration;

    /// Has no values.
    #[derive(Debug)]
    pub enum Event {}

    impl Event {
        /// Not here.
        ///
        /// # Errors
        /// Always.
        pub fn new() -> Result<Self, SysError> {
            Err(SysError::not_here(Call::Eventfd))
        }

        /// Sets the flag.
        pub fn set(&self) {
            match *self {}
        }

        /// Resets the flag.
        pub fn clear(&self) {
            match *self {}
        }

        /// Waits for the flag.
        ///
        /// # Errors
        /// None: there is no value to call it on.
        pub fn wait(&self, _: Option<Duration>) -> Result<bool, SysError> {
            match *self {}
        }
    }

    impl AsFd for Event {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }
}

/// Files: there are no memory files.
pub mod file {
    use super::{Call, SysError};
    use crate::fd::OwnedFd;
    use std::ffi::CStr;

    /// The content of a memory file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Content {
        /// Data.
        Data,
        /// Code, which will be mapped executable.
        Code,
        /// Code, on huge pages.
        HugeCode,
    }

    /// A file to write to. No limit of the system ends the process.
    #[derive(Debug)]
    pub struct Bounded<'f>(pub &'f std::fs::File);

    impl std::io::Write for Bounded<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.0.flush()
        }
    }

    /// The operations that a seal forbids.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Seals {
        /// Changes of length.
        Length,
        /// Changes of length, and adding seals.
        LengthFinally,
        /// Writing.
        FutureWrites,
    }

    /// Not here: no ring buffers, `MMAPABLE` arrays or executable memory.
    ///
    /// # Errors
    /// Always.
    pub fn memory_file(_: &CStr, _: usize, _: Content) -> Result<OwnedFd, SysError> {
        Err(SysError::not_here(Call::Memfd))
    }

    /// Not here.
    ///
    /// # Errors
    /// Always: there is no memory file.
    pub fn seal(_: &OwnedFd, _: Seals) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Seal))
    }
}

/// Pages of the global allocator.
pub mod memory {
    use super::{Call, SysError};
    use crate::fd::BorrowedFd;
    use crate::inject;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// The access rights of mapped memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Protection {
        /// Nothing.
        None,
        /// Reading and writing.
        ReadWrite,
        /// Reading and executing.
        ReadExecute,
        /// All rights.
        ReadWriteExecute,
    }

    /// The source of new pages.
    #[derive(Debug, Clone, Copy)]
    pub enum Pages<'f> {
        /// Zeroed pages, private to this process.
        Anonymous,
        /// Pages of a memory file; not here.
        File(BorrowedFd<'f>),
    }

    /// Advice on a mapping.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Advice {
        /// A forked child does not get the mapping.
        DontFork,
        /// Use huge pages.
        Huge,
        /// Collapse the range into huge pages at once.
        Collapse,
        /// Return the memory of the pages, which become zero.
        Discard,
    }

    /// Alignment of memory in bytes; stands for the size of a page.
    #[inline]
    pub fn page_size() -> usize {
        4096
    }

    fn layout(len: usize) -> Result<Layout, SysError> {
        let layout = Layout::from_size_align(len, page_size()).ok().filter(|layout| layout.size() != 0);
        layout.ok_or(SysError { call: Call::Mmap, errno: NO_MEMORY })
    }

    /// Linux's `ENOMEM`; other systems have this number too.
    const NO_MEMORY: i32 = 12;

    /// Allocates `len` zeroed bytes, aligned to a page.
    ///
    /// # Errors
    /// The system has no more memory, or `pages` asks for a file's.
    pub fn map(len: usize, pages: Pages<'_>) -> Result<*mut u8, SysError> {
        inject::check(Call::Mmap)?;
        match pages {
            Pages::Anonymous => {}
            Pages::File(_) => return Err(SysError::not_here(Call::Mmap)),
        }
        // SAFETY: `layout` refuses a length of 0.
        let at = unsafe { alloc_zeroed(layout(len)?) };
        if at.is_null() {
            return Err(SysError { call: Call::Mmap, errno: NO_MEMORY });
        }
        at.expose_provenance();
        inject::mapped(at, len);
        Ok(at)
    }

    /// Not here.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn guard(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mprotect))
    }

    /// Not here.
    ///
    /// # Errors
    /// Always.
    pub fn reserve(_: Option<usize>, _: usize) -> Result<*mut u8, SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// None: the function does nothing.
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_file_over(
        _: *mut u8,
        _: usize,
        _: Protection,
        _: BorrowedFd<'_>,
        _: u64,
    ) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// None: the function does nothing.
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_shared_over(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// None: the function does nothing.
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_debuggable_over(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// None: the function does nothing.
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_again(_: *mut u8, _: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mremap))
    }

    /// Not here: address space cannot be reserved.
    ///
    /// # Safety
    /// None: the function does nothing.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn unmap_to_reserved(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Frees memory of [`map`].
    ///
    /// # Safety
    /// `at` came from [`map`] with this very length, and no reference to it is left.
    ///
    /// # Errors
    /// None.
    pub unsafe fn unmap(at: *mut u8, len: usize) -> Result<(), SysError> {
        inject::check(Call::Munmap)?;
        inject::unmapped(at);
        // SAFETY: allocated with this layout (contract).
        unsafe { dealloc(at, layout(len)?) };
        Ok(())
    }

    /// Not here: memory stays writable.
    ///
    /// # Safety
    /// None: the function does nothing.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn protect(_: *mut u8, _: usize, _: Protection) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mprotect))
    }

    /// Not here: a forked child has a copy, and pages are small.
    ///
    /// # Safety
    /// None: the function does nothing.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn advise(_: *mut u8, _: usize, _: Advice) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Madvise))
    }

    /// Not here: forks are detected by the process id.
    ///
    /// # Errors
    /// Always.
    pub fn zeroed_in_children(_: usize) -> Result<NonNull<u8>, SysError> {
        Err(SysError::not_here(Call::WipeOnFork))
    }
}

/// The process.
pub mod process {
    /// One mapping.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mapping {
        /// The first address.
        pub start: usize,
        /// The address after the last.
        pub end: usize,
        /// The access rights.
        pub permissions: String,
        /// Name of the file, if the mapping has one.
        pub name: String,
    }

    /// Returns no mappings.
    pub fn mappings() -> Vec<Mapping> {
        Vec::new()
    }

    /// Returns 0.
    pub fn huge_bytes(_: usize, _: usize) -> usize {
        0
    }

    /// Returns `None`: the standard library has no such call.
    pub fn build(_: usize) -> Option<u64> {
        None
    }

    /// Returns 0: the standard library has no such call.
    pub fn user() -> u32 {
        0
    }

    /// Returns 0: the standard library has no such call.
    pub fn group() -> u32 {
        0
    }

    /// Does nothing: no signals end the process.
    pub fn end_with_the_pipe() {}
}

/// The calling thread.
pub mod thread {
    use super::{Call, SysError};
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A number of the thread, unique in this process.
    pub fn id() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        thread_local! {
            static ID: Cell<u32> = const { Cell::new(0) };
        }
        if ID.get() == 0 {
            // Relaxed: only uniqueness matters.
            ID.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        ID.get()
    }

    /// The thread's name in Rust, truncated: bytes up to the first zero.
    pub fn name() -> [u8; 16] {
        let mut name = [0; 16];
        let thread = std::thread::current();
        for (to, from) in name[..15].iter_mut().zip(thread.name().unwrap_or_default().bytes()) {
            *to = from;
        }
        name
    }

    /// Not here: runs are not limited by their thread's stack.
    pub fn stack() -> Option<(u64, u64)> {
        None
    }

    /// Not here.
    pub fn signal_stack() -> Option<(u64, u64)> {
        None
    }

    /// A type without values: a thread that ends inside a guard keeps its slot.
    #[derive(Debug, Clone, Copy)]
    pub enum ExitKey {}

    impl ExitKey {
        /// Not here.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: unsafe extern "C" fn(*mut c_void)) -> Result<Self, SysError> {
            Err(SysError::not_here(Call::ThreadKey))
        }

        /// The number that POSIX guarantees.
        pub const ROUNDS: u32 = 4;

        /// Sets the calling thread's pointer.
        ///
        /// # Safety
        /// None: there is no value to call it on.
        #[must_use]
        pub unsafe fn set(self, _: *mut c_void) -> bool {
            match self {}
        }
    }
}

/// Clocks.
pub mod time {
    use std::sync::OnceLock;
    use std::time::{Instant, SystemTime};

    /// Clocks in use.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Clock {
        /// Monotonic.
        Monotonic,
        /// Monotonic; equal to [`Clock::Monotonic`].
        MonotonicCoarse,
        /// Monotonic; the system decides whether it includes the time during which the machine was suspended.
        Boot,
        /// Wall-clock time, without the leap seconds that Linux adds.
        Atomic,
        /// Wall-clock time.
        Real,
    }

    /// The clock's time in nanoseconds; monotonic clocks count from the first call in this process.
    #[inline]
    pub fn now_ns(clock: Clock) -> u64 {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        let time = match clock {
            Clock::Monotonic | Clock::MonotonicCoarse | Clock::Boot => FIRST.get_or_init(Instant::now).elapsed(),
            Clock::Atomic | Clock::Real => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        };
        // Fits for 584 years.
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Waiting for a word in memory, by polling.
pub mod wait {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Yields while `*word == expected`. May return spuriously.
    pub fn sleep_while(word: &AtomicU32, expected: u32) {
        // Relaxed: the caller checks the word again.
        if word.load(Ordering::Relaxed) == expected {
            std::thread::yield_now();
        }
    }

    /// Does nothing: no thread sleeps.
    pub fn wake_all(_: usize) {}
}
