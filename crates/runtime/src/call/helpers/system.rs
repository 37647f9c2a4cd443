//! Helpers that ask the system: clocks, the thread and its process, a random number.

use bpf_jit_code::RunCtx;
use bpf_os::time::{Clock, now_ns};
use bpf_os::{process, thread};
use core::cell::Cell;

/// `bpf_ktime_get_ns`: the monotonic clock.
pub(super) extern "C" fn ktime_get_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    now_ns(Clock::Monotonic)
}

/// Helpers whose answer is 0 here: there is one NUMA node.
pub(super) extern "C" fn zero(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    0
}

/// `bpf_ktime_get_boot_ns`: the monotonic clock that counts suspension.
pub(super) extern "C" fn ktime_get_boot_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    now_ns(Clock::Boot)
}

/// `bpf_ktime_get_coarse_ns`: the monotonic clock as of the last tick.
pub(super) extern "C" fn ktime_get_coarse_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    now_ns(Clock::MonotonicCoarse)
}

/// `bpf_ktime_get_tai_ns`: atomic time.
pub(super) extern "C" fn ktime_get_tai_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    now_ns(Clock::Atomic)
}

/// `bpf_jiffies64`: a coarse clock, here of 1000 ticks a second (the kernel's `HZ` is its own affair), from boot.
pub(super) extern "C" fn jiffies64(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    now_ns(Clock::MonotonicCoarse) / 1_000_000
}

/// `bpf_get_current_comm(buf, size)`: the thread's name, cut to the buffer and ended by a zero byte.
///
/// # Safety
/// `buf` must be writable for `size` bytes.
pub(super) unsafe extern "C" fn get_current_comm(buf: u64, size: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let name = thread::name();
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len()).min(crate::num::index(size).saturating_sub(1));
    // SAFETY: the program was proven to pass `size` writable bytes at `buf`. All are zeroed first, as the kernel does
    // with the rest.
    unsafe { core::ptr::write_bytes(buf as *mut u8, 0, crate::num::index(size)) };
    // SAFETY: `len` is below `size` (or both are 0) and at most 16.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), buf as *mut u8, len) };
    0
}

/// `bpf_get_prandom_u32`: a xorshift generator a thread, seeded from the process's hash keys.
pub(super) extern "C" fn get_prandom_u32(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    STATE.with(|state| {
        let mut x = state.get();
        if x == 0 {
            x = RandomState::new().hash_one(0u8) | 1;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x >> 32
    })
}

/// `bpf_get_smp_processor_id`: the execution slot, which is what per-CPU maps are indexed by.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`](crate::abi::run::Run).
pub(super) unsafe extern "C" fn get_smp_processor_id(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    unsafe { (*ctx).slot }.into()
}

/// `bpf_get_current_pid_tgid`: process id in the upper half, thread id in the lower.
pub(super) extern "C" fn get_current_pid_tgid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(thread::id())
}

/// `bpf_get_current_task_btf()`: the thread that runs the program, by its number: programs only pass it on.
pub(super) extern "C" fn get_current_task(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    thread::id().into()
}

/// `bpf_get_current_uid_gid`: group id in the upper half, user id in the lower.
pub(super) extern "C" fn get_current_uid_gid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    u64::from(process::group()) << 32 | u64::from(process::user())
}
