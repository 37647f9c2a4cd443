//! The interface between a JIT and executable memory.
//!
//! Problem: a backend must not know where its code will run, and the memory layer must not know what the code means.
//! Approach: [`Code`] is position-independent bytes plus data: relocations against opaque [`Symbol`]s, entry offsets,
//! patch slots, a map from code to source. [`layout`] chooses between short and long branches for both architectures.
//! [`RunCtx`] is the machine ABI's hidden argument, shared by emitted code and the runtime.
//!
//! Invariants: nothing in this crate knows BPF opcodes or host addresses; a [`Code`] is valid at any base address
//! aligned to [`Code::ALIGN`].
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod code;
mod hardening;
mod homes;
pub mod layout;
mod opt_level;
mod run_ctx;
pub mod unwind;

pub use code::{
    Arch, Code, FrameShape, Needs, PATCH_WORD, PatchSlot, PatchSlotError, PcEntry, Reloc, RelocKind, Symbol,
    TailCallSite, TailTarget,
};
pub use hardening::{CpuFeatures, Hardening};
pub use homes::{Home, Homes};
pub use opt_level::OptLevel;
pub use run_ctx::{RunCtx, StopCode, TAIL_CALL_LIMIT};
pub use unwind::{Unwind, UnwindOp};
