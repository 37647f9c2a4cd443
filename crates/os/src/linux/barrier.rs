//! Barriers that other threads execute: `membarrier(2)`, which may be missing (old kernels) or denied (seccomp,
//! gVisor).

use crate::{Call, Membarrier, SysError, inject};

/// `membarrier(2)`.
///
/// # Errors
/// The kernel's error; under Miri every call fails.
pub fn membarrier(command: Membarrier) -> Result<(), SysError> {
    let call = Call::Membarrier(command);
    inject::check(call)?;
    if cfg!(miri) {
        return Err(SysError::not_here(call));
    }
    let command = match command {
        Membarrier::RegisterExpedited => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
        Membarrier::Expedited => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
        Membarrier::RegisterSyncCore => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
        Membarrier::SyncCore => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
    };
    // SAFETY: membarrier takes three integers and touches no memory of the caller.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result == 0 { Ok(()) } else { Err(super::failed(call)) }
}
