//! Any other system, by what Rust's standard library has of it: enough to verify, and to interpret on maps that lie in
//! this process's memory. Everything that needs a call of the system itself answers "not here", and its caller has the
//! other way that the table in the crate's documentation names.
//!
//! Memory comes from the global allocator, page-aligned and zeroed; no address space is reserved, no file lies in
//! memory, and nothing can be executed.

use crate::{Call, SysError};

/// Descriptors, which systems other than Unix do not have: these have no values.
#[cfg(not(unix))]
pub mod fd {
    /// A descriptor that is owned.
    #[derive(Debug)]
    pub enum OwnedFd {}

    /// A descriptor that is lent.
    #[derive(Debug, Clone, Copy)]
    pub struct BorrowedFd<'f>(core::convert::Infallible, core::marker::PhantomData<&'f ()>);

    /// What has a descriptor to lend.
    pub trait AsFd {
        /// Lends it.
        fn as_fd(&self) -> BorrowedFd<'_>;
    }

    impl AsFd for OwnedFd {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }
}

/// Barriers that other threads execute: guards carry fences.
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

/// A flag that a thread can wait for: there is none, so no ring buffers.
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

/// Files: none lie in memory.
pub mod file {
    use super::{Call, SysError};
    use crate::fd::OwnedFd;
    use std::ffi::CStr;

    /// What is to lie in a memory file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Content {
        /// Data.
        Data,
        /// Code, which will be mapped executable.
        Code,
        /// Code, on huge pages.
        HugeCode,
    }

    /// A file to write to. The system has no limit that ends the process.
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

    /// What is forbidden from now on to whoever has the file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Seals {
        /// To change its length.
        Length,
        /// The same, and to add seals.
        LengthFinally,
        /// To write to it.
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

    /// What may be done with mapped memory. There is no writable and executable variant.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Protection {
        /// Nothing.
        None,
        /// Reading and writing.
        ReadWrite,
        /// Reading and executing.
        ReadExecute,
        /// Everything.
        ReadWriteExecute,
    }

    /// Where new pages come from.
    #[derive(Debug, Clone, Copy)]
    pub enum Pages<'f> {
        /// Zeroed ones of this process.
        Anonymous,
        /// Those of a memory file, which there are none of.
        File(BorrowedFd<'f>),
    }

    /// What the system is told of a mapping.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Advice {
        /// A forked child does not get the mapping.
        DontFork,
        /// Huge pages from now on.
        Huge,
        /// Make huge pages now.
        Collapse,
        /// The pages give their memory back and are zero.
        Discard,
    }

    /// Bytes in a page, as far as the family cares: what memory is aligned to.
    #[inline]
    pub fn page_size() -> usize {
        4096
    }

    fn layout(len: usize) -> Result<Layout, SysError> {
        let layout = Layout::from_size_align(len, page_size()).ok().filter(|layout| layout.size() != 0);
        layout.ok_or(SysError { call: Call::Mmap, errno: NO_MEMORY })
    }

    /// Linux's `ENOMEM`, which the systems at hand have as well.
    const NO_MEMORY: i32 = 12;

    /// Allocates `len` zeroed bytes at a page's beginning.
    ///
    /// # Errors
    /// The system has no such memory, or it was asked for a file's.
    pub fn map(len: usize, pages: Pages<'_>) -> Result<*mut u8, SysError> {
        inject::check(Call::Mmap)?;
        match pages {
            Pages::Anonymous => {}
            Pages::File(_) => return Err(SysError::not_here(Call::Mmap)),
        }
        // SAFETY: `layout` refuses what is empty.
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
    /// # Errors
    /// Always.
    pub fn reserve(_: Option<usize>, _: usize) -> Result<*mut u8, SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// # Safety
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
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_shared_over(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_debuggable_over(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Not here.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn map_again(_: *mut u8, _: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mremap))
    }

    /// Not here: there is no reserved address space.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn unmap_to_reserved(_: *mut u8, _: usize) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mmap))
    }

    /// Gives memory of [`map`] back.
    ///
    /// # Safety
    /// `at` came from [`map`] with this very length, and nothing refers to it any more.
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

    /// Not here: memory can be written to as long as it is there.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn protect(_: *mut u8, _: usize, _: Protection) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Mprotect))
    }

    /// Not here: a forked child has a copy, and pages are small.
    ///
    /// # Safety
    /// None is needed: nothing is done.
    ///
    /// # Errors
    /// Always.
    pub unsafe fn advise(_: *mut u8, _: usize, _: Advice) -> Result<(), SysError> {
        Err(SysError::not_here(Call::Madvise))
    }

    /// Not here: forks are told by the process id.
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
        /// The address behind the last.
        pub end: usize,
        /// What may be done with it.
        pub permissions: String,
        /// Of the file, if it has one.
        pub name: String,
    }

    /// Nothing is known of them.
    pub fn mappings() -> Vec<Mapping> {
        Vec::new()
    }

    /// Nothing is known of them.
    pub fn huge_bytes(_: usize, _: usize) -> usize {
        0
    }

    /// The standard library does not say.
    pub fn user() -> u32 {
        0
    }

    /// The standard library does not say.
    pub fn group() -> u32 {
        0
    }

    /// Nothing to do where no signal ends anybody.
    pub fn end_with_the_pipe() {}
}

/// The calling thread.
pub mod thread {
    use super::{Call, SysError};
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A number that no other thread of this process has.
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

    /// The name that Rust knows, as far as it fits: bytes up to the first zero.
    pub fn name() -> [u8; 16] {
        let mut name = [0; 16];
        let thread = std::thread::current();
        for (to, from) in name[..15].iter_mut().zip(thread.name().unwrap_or_default().bytes()) {
            *to = from;
        }
        name
    }

    /// Not here: runs are not held to their thread's stack.
    pub fn stack() -> Option<(u64, u64)> {
        None
    }

    /// Not here.
    pub fn signal_stack() -> Option<(u64, u64)> {
        None
    }

    /// Has no values: a thread that ends inside a guard holds its slot.
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

        /// As elsewhere.
        pub const ROUNDS: u32 = 4;

        /// Sets the calling thread's pointer.
        ///
        /// # Safety
        /// None is needed: there is no value to call it on.
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
        /// The same.
        MonotonicCoarse,
        /// The same: whether the time counts that the machine was suspended, the system decides.
        Boot,
        /// Wall-clock time, without the leap seconds that Linux adds.
        Atomic,
        /// The same.
        Real,
    }

    /// Nanoseconds that the clock shows: the monotonic ones, since this process first asked.
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

/// Waiting for a word in memory: by looking again.
pub mod wait {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Lets others run while `*word == expected`. May come back for no reason.
    pub fn sleep_while(word: &AtomicU32, expected: u32) {
        // Relaxed: the caller looks again.
        if word.load(Ordering::Relaxed) == expected {
            std::thread::yield_now();
        }
    }

    /// Nobody sleeps.
    pub fn wake_all(_: usize) {}
}
