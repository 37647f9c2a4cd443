//! Storage that programs keep for threads: `bpf_task_storage_get` and `bpf_task_storage_delete`. A thread is identified
//! by its number ([`super::system::get_current_task`]). Any number is accepted, since no memory is read through it.
//!
//! Source: `kernel/bpf/bpf_task_storage.c` (Linux 6.18).

use crate::call::helpers::socket::{storage_delete, storage_get};
use bpf_jit_code::RunCtx;

/// The identity that something is kept of: any number but 0.
fn thread_of(task: u64) -> Option<u64> {
    (task != 0).then_some(task)
}

/// `bpf_task_storage_get(map, task, value, flags)`.
///
/// # Safety
/// The map must be live, the value null or of its size; the last argument is the run's hidden one.
pub(super) unsafe extern "C" fn task_storage_get(
    map: u64,
    task: u64,
    value: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven the map, and the value's size; the last argument is the run's hidden one.
    unsafe { storage_get(thread_of(task), [map, value, flags], run) }
}

/// `bpf_task_storage_delete(map, task)`.
///
/// # Safety
/// The map must be live, and one of storage; the last argument is the run's hidden one.
pub(super) unsafe extern "C" fn task_storage_delete(
    map: u64,
    task: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven the map; the last argument is the run's hidden one.
    unsafe { storage_delete(thread_of(task), map, run) }
}
