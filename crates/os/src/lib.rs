//! The operating system, as far as the family needs it: every system call is made here, and nowhere else.
//!
//! Problem: memory that is mapped twice, barriers of other cores, pages that a forked child must not have, stacks and
//! signals: each may be refused (limits, seccomp, an old kernel, no huge pages), and each refusal must leave a
//! consistent state, which only a test that makes the call fail can show. And a port to another system must find what
//! it has to provide in one place.
//!
//! Approach: a function a call, with a typed error that names it ([`Call`], [`SysError`]). With the feature `inject`,
//! which tests of all crates share, the n-th call of a kind fails (`inject`); without it the check is an empty inline
//! function. `cargo xtask rules` refuses `libc` as a dependency of any other shipped crate, and functions that are
//! declared instead of depended on, but for those of an unwinder (`bpf-debug`).
//!
//! Invariants:
//! * No mapping is ever writable and executable: all protections there are, are those of [`memory::Protection`].
//! * Nothing here is called in a run, but for what a helper asks for ([`time`], [`thread`]) and a wait for a lock
//!   ([`wait`]).
//! * What may be missing is an error or `None`, never a panic, and its caller has another way.
//!
//! # What a port provides
//!
//! A folder beside `linux/` with the same modules and functions. Not all are needed for a family without a JIT:
//!
//! | module | needed | may answer "not here", and then |
//! |---|---|---|
//! | [`memory`] | `map`, `unmap`, `reserve`, `protect`, `page_size` | `advise`: small pages, and a forked child has a copy; `map_file_over`, `map_shared_over` and `map_debuggable_over`: no ring buffers, no executable memory; `map_again`: code has a memory file; `zeroed_in_children`: forks are told by the process id |
//! | [`mod@file`] | | `memory_file`: no ring buffers, MMAPABLE arrays or executable memory |
//! | [`event`] | | `Event`: no ring buffers |
//! | [`barrier`] | | `membarrier`: guards carry fences |
//! | [`wait`] | both functions (a `yield` would do) | |
//! | [`thread`] | `id`, `name` | `stack`, `signal_stack`: runs are not held to their thread's stack; `ExitKey`: a thread that ends inside a guard holds its slot |
//! | [`process`] | `user`, `group` | `mappings`: packs lie anywhere; `huge_bytes`: statistics say 0 |
//! | [`time`] | the clocks | |
//!
//! Every system without a folder has `plain.rs`: what the standard library offers, and "not here" for the rest.
//! Descriptors ([`fd`]) are part of the API of maps; a system without them has types without values in their
//! place. Error numbers that programs see are Linux's everywhere ([`bpf_uapi::Errno`]): [`SysError`] keeps the system's
//! own, and its conversion translates.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod error;
#[cfg(feature = "inject")]
pub mod inject;
#[cfg(not(feature = "inject"))]
mod inject {
    //! Only tests make a call fail on purpose.

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
