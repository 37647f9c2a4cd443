//! The barriers that a domain uses, as far as this process was granted them, and the CPU's instruction barrier.
//!
//! Problem: `membarrier(2)` may be missing (old kernels), denied (seccomp, gVisor), or fail; every caller must cope.
//!
//! Approach: [`Granted`] holds what the process was granted when the domain was made; a call that fails later is an
//! error. Under loom all are granted, and the fences beside them are what loom explores.
//!
//! Invariant: `expedited` is true only after the kernel accepted the registration, and it never changes afterwards:
//! readers and writers of one domain always agree on the protocol.

#[cfg(not(loom))]
use bpf_os::barrier::membarrier;
use bpf_os::{Call, Membarrier, SysError};

use crate::sync::{Ordering, fence};

/// A failed system call: its `errno`.
pub(crate) type Errno = i32;

/// One domain's access to the barriers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    expedited: bool,
    sync_core: bool,
}

impl Granted {
    /// Registers with the kernel, and records the commands it accepts.
    pub(crate) fn ask() -> Self {
        let expedited = membarrier(Membarrier::RegisterExpedited).is_ok();
        let sync_core = membarrier(Membarrier::RegisterSyncCore).is_ok();
        Self { expedited, sync_core }
    }

    /// Uses no system call: guards execute their own fences and instruction barriers.
    pub(crate) fn nothing() -> Self {
        Self { expedited: false, sync_core: false }
    }

    /// Whether guards may leave their fence to [`Granted::heavy_barrier`].
    #[inline]
    pub(crate) fn expedited(&self) -> bool {
        self.expedited
    }

    /// Whether [`Granted::core_barrier`] can work.
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
            membarrier(Membarrier::Expedited).map_err(errno)?;
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// The cross-core instruction barrier, which is a [`Granted::heavy_barrier`] as well.
    pub(crate) fn core_barrier(&self) -> Result<(), Errno> {
        if !self.sync_core {
            return Err(SysError::not_here(Call::Membarrier(Membarrier::SyncCore)).errno);
        }
        // As in `heavy_barrier`; fenced readers pair with these fences too.
        fence(Ordering::SeqCst);
        membarrier(Membarrier::SyncCore).map_err(errno)?;
        fence(Ordering::SeqCst);
        Ok(())
    }
}

fn errno(error: SysError) -> Errno {
    error.errno
}

/// Under loom the barrier is a no-op: loom explores its own threads only, through the fences beside each call.
#[cfg(loom)]
fn membarrier(_: Membarrier) -> Result<(), SysError> {
    Ok(())
}

/// Discards instructions that this CPU has fetched before this call (Intel SDM 3A 9.1.3; AMD APM 2 7.6.4: `cpuid`
/// serialises).
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
pub(crate) fn instruction_barrier() {
    #[allow(unused_unsafe, reason = "unsafe in older Rust")]
    // SAFETY: every x86-64 CPU has `cpuid`, which changes nothing but the registers it answers in.
    let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
    std::hint::black_box(leaf);
}

/// Discards instructions that this CPU has fetched before this call (Arm ARM B2.3.10).
#[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
pub(crate) fn instruction_barrier() {
    // SAFETY: `isb` changes no register and no memory.
    unsafe { std::arch::asm!("isb", options(nostack, preserves_flags)) };
}

/// Does nothing: without a JIT backend, or where no machine code is executed, no instruction is ever replaced.
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, loom))]
pub(crate) fn instruction_barrier() {}
