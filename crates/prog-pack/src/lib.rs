//! Executable memory: many programs packed into huge pages, never writable where they are executable.
//!
//! Problem: thousands of small programs are loaded and freed under traffic. One page each would waste memory and,
//! above all, iTLB entries. Pages that are both writable and executable help attackers. Code that is patched or freed
//! while it runs must never be seen half-written.
//!
//! Approach: [`Packs`] hands out 64-byte chunks of *packs*: memory mapped twice, executable in an `arena` near the
//! host's text, writable elsewhere. A program is built in two phases, enforced by types: [`Packs::stage`] copies it
//! and relocates it for its final address, [`Staged::finalize`] publishes it, and only the resulting [`Text`] has
//! entry points. Dropping a `Text` frees it: after a grace period (no run that could be inside is left) its bytes
//! become traps, and after one core barrier for many programs its chunks are free (`retire`). Patch slots change by
//! one atomic store ([`PatchSite`]).
//!
//! Invariants: this crate is the only writer of code. Every byte of a pack belongs to one program or is a trap. No
//! page is writable and executable through one mapping. Nothing here knows BPF. A forked child does not have the
//! memory: guards are refused there ([`bpf_quiesce::EnterError::Forked`]), every operation that would write fails
//! with [`Error::Forked`], and dropping frees nothing.
//!
//! ```
//! use bpf_jit_code::{Arch, Code};
//! use bpf_prog_pack::{Options, Packs};
//! use bpf_quiesce::Domain;
//!
//! # if Arch::HOST != Some(Arch::X64) { return Ok(()) }
//! let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default())?;
//! let mut code = Code::new(Arch::X64);
//! code.bytes = vec![0xb8, 42, 0, 0, 0, 0xc3]; // mov eax, 42; ret
//! code.entries = vec![0];
//! let text = packs.stage(&code, |_symbol| None)?.finalize()?;
//!
//! let guard = packs.domain().enter()?;
//! let entry = text.entry(0).expect("the main program");
//! // SAFETY: the code above is a C function of this type, and the guard keeps it.
//! let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(entry) };
//! assert_eq!(function(), 42);
//! drop(text); // Freed once no guard held now is left.
//! assert_eq!(function(), 42);
//! drop(guard);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod arch;
mod arena;
mod chunks;
#[cfg(test)]
mod failures;
mod forward;
mod holds;
mod pack;
mod packs;
mod place;
mod poke;
mod retire;
#[cfg(test)]
mod schedules;
mod shard;
mod stage;

pub use arch::Patch;
pub use bpf_os::{Call, SysError};
pub use forward::Forward;
pub use pack::Backing;
pub use packs::{Options, Packs, Stats};
pub use poke::{PatchSite, PokeError};
pub use stage::{Staged, Text};

use bpf_jit_code::{Arch, Symbol};
use bpf_quiesce::{CoreBarrierError, MemoryFull, WaitError};

/// The reason why code could not be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The calling process is a forked child of the one that made the packs: a write would change the parent's code.
    #[error("code cannot be loaded in a forked child")]
    Forked,
    /// There is no code to place.
    #[error("the code is empty")]
    Empty,
    /// The code is for another architecture.
    #[error("the code is for {0:?}, which is not this host's architecture")]
    WrongArch(Arch),
    /// This crate knows neither the traps nor the branches of this host's architecture.
    #[error("no support for code on this host's architecture")]
    UnsupportedHost,
    /// A staged program belongs to other packs.
    #[error("a staged program belongs to other packs")]
    OtherPacks,
    /// The resolver does not know a symbol.
    #[error("symbol {symbol:?} at code offset {at} has no address")]
    Unresolved {
        /// Offset of the relocated field.
        at: u32,
        /// The symbol.
        symbol: Symbol,
    },
    /// A relocation lies outside the code, does not fit the architecture, or its target cannot be encoded.
    #[error("the relocation at code offset {at} cannot be applied")]
    BadReloc {
        /// Offset of the relocated field.
        at: u32,
    },
    /// The arena has no room for another pack.
    #[error("no room for {len} bytes of code")]
    NoRoom {
        /// Bytes asked for.
        len: usize,
    },
    /// Another pack would take more memory than the domain's objects may hold together.
    #[error("room for {len} bytes of code: {full}")]
    MemoryFull {
        /// Bytes of code.
        len: usize,
        /// The bytes that the smallest pack for it needs, and the bytes left.
        full: MemoryFull,
    },
    /// The operating system refused memory.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// New code could not be made visible to all CPUs: the core barrier failed.
    #[error("publishing code: {0}")]
    CoreBarrier(CoreBarrierError),
    /// New code could not be made visible to all CPUs: without a core barrier that needs a grace period.
    #[error("publishing code: {0}")]
    Wait(WaitError),
}

impl From<CoreBarrierError> for Error {
    fn from(error: CoreBarrierError) -> Error {
        Error::CoreBarrier(error)
    }
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Error {
        Error::Wait(error)
    }
}

/// Converts a number of chunks, packs or extents, which fits into 32 bits: an arena lies within the reach of a near
/// call.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "2 GiB of chunks at most; and debug builds check it")]
pub(crate) fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}

/// A place between critical sections, where other threads may run; tests switch threads here.
#[inline(always)]
pub(crate) fn point() {
    #[cfg(test)]
    crate::schedules::point();
}
