//! The operating system and the CPU, as far as this crate needs them: `membarrier(2)` and the instruction barrier.
//!
//! Problem: `membarrier` may be missing (old kernels), denied (seccomp, gVisor), or fail; every caller must cope, and
//! tests must be able to make each call fail.
//!
//! Approach: [`Sys`] holds the one function through which all `membarrier` calls go, and what the process was granted
//! when the domain was made. Tests substitute the function. Host dependence sits in [`imp`].
//!
//! Invariant: `expedited` is true only after the kernel accepted the registration, and it never changes afterwards:
//! readers and writers of one domain always agree on the protocol.

use crate::sync::{Ordering, fence};

/// The `membarrier` commands in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Announce that this process will use [`Command::Expedited`].
    RegisterExpedited,
    /// Every running thread of this process executes a full memory barrier.
    Expedited,
    /// Announce that this process will use [`Command::SyncCore`].
    RegisterSyncCore,
    /// Every running thread of this process executes a core-serialising instruction before it returns to user code.
    SyncCore,
}

/// A failed system call: its `errno`.
pub(crate) type Errno = i32;

/// One domain's access to the barriers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sys {
    membarrier: fn(Command) -> Result<(), Errno>,
    expedited: bool,
    sync_core: bool,
}

impl Sys {
    /// Registers with the kernel through `membarrier`; what it denies is not used later.
    pub(crate) fn probe(membarrier: fn(Command) -> Result<(), Errno>) -> Self {
        let expedited = membarrier(Command::RegisterExpedited).is_ok();
        let sync_core = membarrier(Command::RegisterSyncCore).is_ok();
        Self { membarrier, expedited, sync_core }
    }

    /// Uses no system call at all: guards carry their own fences, instruction barriers are the guards' own.
    pub(crate) fn fenced() -> Self {
        Self { membarrier: |_| Err(libc::ENOSYS), expedited: false, sync_core: false }
    }

    /// Whether guards may leave their fence to [`Sys::heavy_barrier`].
    #[inline]
    pub(crate) fn expedited(&self) -> bool {
        self.expedited
    }

    /// Whether [`Sys::core_barrier`] can work.
    #[inline]
    pub(crate) fn sync_core(&self) -> bool {
        self.sync_core
    }

    /// The writer's half of the asymmetric barrier. Pairs with `light_barrier` in `Core::enter` and `Core::leave`
    /// (expedited), or with the `fence(SeqCst)` in the same places (fenced): of a store before one half and a load
    /// after it, in both threads, at least one load sees the other thread's store.
    pub(crate) fn heavy_barrier(&self) -> Result<(), Errno> {
        // The fence is needed in both modes: the kernel's barrier orders the caller as well, but that is not something
        // the compiler or loom knows.
        fence(Ordering::SeqCst);
        if self.expedited {
            (self.membarrier)(Command::Expedited)?;
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// The cross-core instruction barrier, which is a [`Sys::heavy_barrier`] as well.
    pub(crate) fn core_barrier(&self) -> Result<(), Errno> {
        if !self.sync_core {
            return Err(libc::ENOSYS);
        }
        // As there. Fenced readers pair with these fences.
        fence(Ordering::SeqCst);
        (self.membarrier)(Command::SyncCore)?;
        fence(Ordering::SeqCst);
        Ok(())
    }
}

pub(crate) use imp::instruction_barrier;
#[cfg(not(loom))]
pub(crate) use imp::membarrier;

#[cfg(all(target_os = "linux", not(miri), not(loom)))]
mod imp {
    use super::{Command, Errno};

    /// `membarrier(2)`.
    pub(crate) fn membarrier(command: Command) -> Result<(), Errno> {
        let command = match command {
            Command::RegisterExpedited => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
            Command::Expedited => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
            Command::RegisterSyncCore => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
            Command::SyncCore => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
        };
        // SAFETY: membarrier takes three integers and touches no memory of the caller.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
    }

    /// Discards instructions that this CPU fetched before now (Intel SDM 3A 9.1.3; AMD APM 2 7.6.4: `cpuid`
    /// serialises).
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn instruction_barrier() {
        std::hint::black_box(std::arch::x86_64::__cpuid(0));
    }

    /// Discards instructions that this CPU fetched before now (Arm ARM B2.3.10).
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn instruction_barrier() {
        // SAFETY: `isb` changes no register and no memory.
        unsafe { std::arch::asm!("isb", options(nostack, preserves_flags)) };
    }

    /// No JIT backend exists for this architecture, so no instruction is ever replaced.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn instruction_barrier() {}
}

#[cfg(any(not(target_os = "linux"), miri, loom))]
mod imp {
    use super::{Command, Errno};

    /// Not offered by this host.
    pub(crate) fn membarrier(_: Command) -> Result<(), Errno> {
        Err(libc::ENOSYS)
    }

    /// No machine code is executed on this host.
    pub(crate) fn instruction_barrier() {}
}
