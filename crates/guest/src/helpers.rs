//! Kernel helpers that every host has.

use crate::call::helper;

/// Nanoseconds since the machine started, without the time it was suspended (`bpf_ktime_get_ns`).
#[inline(always)]
pub fn now() -> u64 {
    let call = helper!(5: fn() -> u64);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}

/// A random number (`bpf_get_prandom_u32`).
#[inline(always)]
pub fn random() -> u32 {
    let call = helper!(7: fn() -> u32);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}

/// The execution slot of the run, the index of per-CPU values (`bpf_get_smp_processor_id`).
#[inline(always)]
pub fn slot() -> u32 {
    let call = helper!(8: fn() -> u32);
    // SAFETY: the helper takes no arguments.
    unsafe { call() }
}
