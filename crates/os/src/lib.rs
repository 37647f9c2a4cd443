//! The operating system interface of the family: all system calls are made in this crate.
//!
//! Problem: memory that is mapped twice, barriers of other cores, pages that a forked child must not have, stacks and
//! signals: the system may refuse each of them (limits, seccomp, an old kernel, no huge pages). Each refusal must
//! leave a consistent state, which only a test with a failing call can show. A port to another system must find all
//! that it has to provide in one place.
//!
//! Approach: one function per call, with a typed error that names the call ([`Call`], [`SysError`]). With the feature
//! `inject`, which tests of all crates share, the n-th call of a kind fails (`inject`); without it the check is an
//! empty inline function. `cargo xtask rules` refuses `libc` as a dependency of any other shipped crate, and `extern`
//! declarations of functions, except those of an unwinder (`bpf-debug`).
//!
//! Invariants:
//! * No mapping is ever writable and executable, except by [`memory::map_debuggable_over`]. All protections are those
//!   of [`memory::Protection`].
//! * Runs call nothing here, except for helpers ([`time`], [`thread`]) and to wait for a lock ([`wait`]).
//! * A missing feature is an error or `None`, never a panic, and the caller has an alternative.
//!
//! # Functions that a port provides
//!
//! A folder beside `linux/` with the same modules and functions. Without a JIT, some may return "not here":
//!
//! | module | needed | may answer "not here", and then |
//! |---|---|---|
//! | [`memory`] | `map`, `unmap`, `reserve`, `protect`, `page_size` | `advise`: small pages, and a forked child has a copy; `map_file_over`, `map_shared_over` and `map_debuggable_over`: no ring buffers, no executable memory; `map_again`: code has a memory file; `zeroed_in_children`: forks are told by the process id; `guard`: no run sleeps |
//! | [`mod@file`] | | `memory_file`: no ring buffers, MMAPABLE arrays or executable memory |
//! | [`event`] | | `Event`: no ring buffers |
//! | [`barrier`] | | `membarrier`: guards carry fences |
//! | [`wait`] | both functions (a `yield` would do) | |
//! | [`thread`] | `id`, `name` | `stack`, `signal_stack`: runs are not held to their thread's stack; `ExitKey`: a thread that ends inside a guard holds its slot |
//! | [`process`] | `user`, `group` | `mappings`: packs lie anywhere; `huge_bytes`: statistics say 0; `build`: serialised modules tell builds apart by the version alone |
//! | [`time`] | the clocks | |
//!
//! Every system without a folder uses `plain.rs`: the standard library's means, and "not here" for the rest.
//! Descriptors ([`fd`]) are part of the API of maps; a system without descriptors has types without values in their
//! place. Error numbers that programs see are Linux's everywhere ([`bpf_uapi::Errno`]): [`SysError`] keeps the
//! system's own number, and its conversion translates it.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod error;
#[cfg(feature = "inject")]
pub mod inject;
#[cfg(not(feature = "inject"))]
mod inject {
    //! Does nothing: only tests make a call fail on purpose.

    use crate::{Call, SysError};

    #[inline(always)]
    pub(crate) fn check(_: Call) -> Result<(), SysError> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn mapped(_: *mut u8, _: usize) {}

    #[inline(always)]
    pub(crate) fn unmapped(_: *mut u8) {}
}
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("bpf needs a 64-bit target: programs hold addresses in 64-bit registers, as numbers that do not wrap");
#[cfg(not(target_endian = "little"))]
compile_error!("bpf needs a little-endian target: objects and map values are read as clang's `bpfel` has them");

#[cfg(unix)]
pub use std::os::fd;
#[cfg(not(unix))]
pub use system::fd;

pub use error::{Call, Membarrier, SysError};
pub use system::{barrier, event, file, memory, process, thread, time, wait};
