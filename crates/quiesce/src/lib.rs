//! Run guards, execution slots, grace periods and cross-core instruction barriers.
//!
//! Problem: programs run on any thread, at any time, in nanoseconds; code and map elements they may be using are
//! replaced and freed meanwhile. A run needs three things from one cheap announcement: what it can reach must stay, it
//! needs a slot number no other running thread has (per-CPU maps), and it must not execute instructions its CPU fetched
//! before they changed.
//!
//! Approach: a [`Domain`] per engine. [`Domain::enter`] gives a [`Guard`] for about a nanosecond: one plain store and a
//! few loads, no fence; the thread that frees something pays instead, through `membarrier(2)` (`core`). Where that is
//! denied, guards carry fences ([`Barriers::Fenced`] does the same on request). Freeing waits for a grace period:
//! blocking ([`Domain::synchronize`]), as a token ([`Domain::start_grace_period`]) or as a callback
//! ([`Domain::defer`]).
//!
//! Deferred callbacks may own the domain that owns them. So each drop of a handle must be followed by
//! [`Domain::settle`], which runs the callbacks it can; readers that block the rest run them when they leave.
//! Callbacks may panic; [`Finish`] lets an operation complete all of its steps nevertheless.
//!
//! Why not a library: `seize` 0.5 (also membarrier-based) and `crossbeam-epoch` 0.9 (a full fence per pin) provide
//! reclamation of pointers. Neither has the other uses of a guard here: slots, grace-period tokens that a drain
//! protocol can hold, instruction barriers, a typed refusal to wait under one's own guard, and fork detection.
//!
//! ```
//! use bpf_quiesce::{Domain, Options};
//!
//! let domain = Domain::new(Options::default());
//! let guard = domain.enter()?;
//! assert!(guard.slot() < domain.max_slots());
//! assert!(domain.synchronize().is_err(), "it would wait for itself");
//! drop(guard);
//! domain.defer(|| println!("no reader is left"));
//! assert_eq!(domain.reclaim(), 1);
//! # Ok::<(), bpf_quiesce::EnterError>(())
//! ```
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(loom, allow(dead_code, unreachable_pub, reason = "the thread-local half is not part of the model"))]

mod core;
#[cfg(not(loom))]
mod defer;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod exit;
#[cfg(all(test, not(loom)))]
mod failures;
#[cfg(not(loom))]
mod finish;
#[cfg(not(loom))]
pub mod fork;
mod granted;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod owner;
#[cfg(not(loom))]
mod per_process;
mod record;
#[cfg(not(loom))]
mod registration;
#[cfg(not(loom))]
mod section;
mod sync;
mod users;

#[cfg(not(loom))]
pub use domain::{CoreBarrier, Domain, GracePeriod, Guard, Reclaimer, RunGuard, Settles};
#[cfg(not(loom))]
pub use finish::{Finish, Foreign, caught, drop_payload};
#[cfg(not(loom))]
pub use memory::{Held, Holder, Label, LimitBelowUse, Memory, MemoryFull, Reservation, Whose};
#[cfg(not(loom))]
pub use owner::{OtherDomain, Owned};
#[cfg(not(loom))]
pub use per_process::{Begin, PerProcess};
#[cfg(not(loom))]
pub use section::interrupted;
pub use users::Users;
#[cfg(not(loom))]
pub use users::{SHARDS, thread_number};

/// The largest [`Options::max_slots`]. Bounds the size of objects with one part per slot.
pub const MAX_SLOTS: u32 = 1 << 16;

/// How a [`Domain`] is set up.
///
/// ```
/// use bpf_quiesce::{Domain, Options, WhenFull};
///
/// let domain = Domain::new(Options::new().max_slots(4).when_full(WhenFull::Error));
/// assert_eq!(domain.max_slots(), 4);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How many threads may run at a time: 1 to [`MAX_SLOTS`], both inclusive.
    pub max_slots: u32,
    /// How a thread proceeds that finds all slots in use.
    pub when_full: WhenFull,
    /// The barriers that the domain uses.
    pub barriers: Barriers,
    /// Bytes that all objects of the domain may reserve together ([`Domain::memory`]).
    pub memory_limit: u64,
}

impl Default for Options {
    /// 64 slots, waiting when all are in use, the best barriers this process is granted, no memory limit.
    fn default() -> Self {
        Self { max_slots: 64, when_full: WhenFull::Wait, barriers: Barriers::Auto, memory_limit: u64::MAX }
    }
}

impl Options {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets [`Options::max_slots`].
    #[must_use]
    pub fn max_slots(mut self, max_slots: u32) -> Options {
        self.max_slots = max_slots;
        self
    }

    /// Sets [`Options::when_full`].
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Options {
        self.when_full = when_full;
        self
    }

    /// Sets [`Options::barriers`].
    #[must_use]
    pub fn barriers(mut self, barriers: Barriers) -> Options {
        self.barriers = barriers;
        self
    }

    /// Sets [`Options::memory_limit`].
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: u64) -> Options {
        self.memory_limit = memory_limit;
        self
    }
}

/// How [`Domain::enter`] proceeds when more than [`Options::max_slots`] threads want to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Waits, first come first served.
    Wait,
    /// Returns [`EnterError::Full`].
    Error,
}

/// Which barriers a [`Domain`] uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barriers {
    /// `membarrier(2)` where the process may call it, fences where not.
    Auto,
    /// Fences only, as if `membarrier` were denied.
    Fenced,
}

/// Why a run could not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// All slots are in use ([`WhenFull::Error`]).
    #[error("all {max_slots} execution slots are in use")]
    Full {
        /// The domain's limit.
        max_slots: u32,
    },
    /// The calling thread already holds 65,535 guards of this domain, the maximum.
    #[error("guards are nested too deeply")]
    TooDeep,
    /// The calling process is a forked child of the one that made the domain. Shared code and maps belong to the
    /// parent, which changes and frees them without knowing of runs in the child. The child can make a domain (an
    /// engine) of its own.
    #[error("nothing of the parent process runs in a forked child; make an engine there")]
    Forked,
    /// The caller is a signal handler that interrupted its thread while that thread was registering, was waiting for
    /// a slot or for a grace period, or was waking a waiting thread. Handlers are refused in no other place.
    #[error("the caller is a signal handler, and its thread was taking or giving up an execution slot, or waiting")]
    Signal,
    /// The calling thread is running its thread-local destructors.
    #[error("the thread is exiting")]
    ThreadExiting,
    /// All slots belong to idle threads, and `membarrier` failed, which is needed to revoke one.
    #[error("membarrier failed with errno {0}")]
    Barrier(i32),
}

/// Why a thread did not wait for a grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The calling thread is inside a guard of this domain and would wait for itself.
    #[error("waiting for a grace period under one's own guard")]
    UnderOwnGuard,
    /// The calling process is a forked child: the readers to wait for do not exist there.
    #[error("grace periods do not work in a forked child")]
    Forked,
    /// `membarrier` failed. The grace period may be waited for again.
    #[error("membarrier failed with errno {0}")]
    Barrier(i32),
}

/// Why no instruction barrier was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreBarrierError {
    /// The process was not granted `membarrier` with `SYNC_CORE` when the domain was made.
    #[error("this process has no cross-core instruction barrier")]
    Denied,
    /// The calling process is a forked child.
    #[error("code is not changed in a forked child")]
    Forked,
    /// `membarrier` failed with this `errno`.
    #[error("membarrier failed with errno {0}")]
    Failed(i32),
}
