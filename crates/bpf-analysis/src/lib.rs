//! Static analysis of BPF programs: control flow, loops, liveness, constants, and the [`Facts`]
//! that a verifier adds.
//!
//! Everything here is plain data over a structurally valid [`bpf_isa::Program`]. Invariant: an analysis that knows
//! nothing says so by its default, and every consumer is correct with the default.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod bounds;
mod cfg;
mod constants;
mod contained;
mod facts;
mod liveness;
mod loops;
mod regs;
mod stack;
mod values;

pub use bounds::{BoundsPlace, RegionBounds};
pub use cfg::{Block, BlockId, Cfg};
pub use constants::Constants;
pub use contained::{Confined, Contained, Extent, Hold, Home, Object, Passed, Place};
pub use facts::{
    AccessCheck, ArenaFact, CheckRegion, ConstMapCall, ConstTailCall, ContextAccess, FORMAT_VALUES, Facts, FormatCall,
    HeaderPlaces, InsnFact, MemKind, Private, Zeroed,
};
pub use liveness::{CallArity, Liveness};
pub use loops::{Loop, Loops};
pub use regs::{RegSet, defs, results, uses};
pub use stack::{FrameUse, touched_below_r10};
pub use values::{AccessFact, AccessRegion, Known, LoopFact, ValueFacts};

/// A number of slots, blocks, loops or subprograms: a program has a million slots at most.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
