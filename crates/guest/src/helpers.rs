//! Kernel helpers that every host has.

use crate::printed::Value;
use crate::sys;
use core::ffi::CStr;

/// Nanoseconds since the machine started, without the time it was suspended (`bpf_ktime_get_ns`).
#[inline(always)]
pub fn now() -> u64 {
    sys::now()
}

/// A random number (`bpf_get_prandom_u32`).
#[inline(always)]
pub fn random() -> u32 {
    sys::random()
}

/// The execution slot of the run, the index of per-CPU values (`bpf_get_smp_processor_id`).
#[inline(always)]
pub fn slot() -> u32 {
    sys::slot()
}

/// Prints a line: [`printk!`](crate::printk) uses it.
#[doc(hidden)]
#[inline(always)]
pub fn print(format: &'static CStr, values: [Value; 3]) {
    sys::print(format, values);
}
