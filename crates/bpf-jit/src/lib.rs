//! The compile seam: BPF in, [`Lir`] between, [`bpf_jit_code::Code`] out.
//!
//! ```text
//! lower(&Program, &Facts)        -> Lir      BPF meaning ends here
//! optimise(&mut Lir)             -> Lir      passes (bpf-opt)
//! allocate(&Func, &MachineDesc)  -> Alloc    virtual registers -> host registers or slots
//! Backend::emit(&Lir, &[Alloc])  -> Code     bpf-jit-x64, bpf-jit-arm64
//! ```
//!
//! Without optimisation ([`OptLevel::None`]) compilation is one step: instructions are lowered to fixed registers,
//! straight into the backend.
//!
//! Invariants: a backend sees no BPF, no memory, no address and no host. All of this crate is architecture-neutral;
//! differences between architectures are data in a [`MachineDesc`]. Any allocation that respects the machine's fixed
//! operands is correct, even one without any register.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod alloc;
mod backend;
mod blocks;
mod check;
mod compiler;
mod confined;
mod externs;
mod fixed;
mod lower;
mod machine;
mod moves;
#[doc(hidden)]
pub mod num;
mod simplify;
mod skeleton;
mod switch;
mod weights;

pub use alloc::{Alloc, AllocOptions, Allocator, Loc};
pub use backend::{Backend, EmitError, EmitOptions, Emitter, Shape, innermost_loops};
pub use bpf_jit_code::OptLevel;
#[cfg(feature = "eval")]
pub use bpf_lir::eval;
pub use bpf_lir::{
    AtomicOp, Base, BinOp, Block, BlockId, CallTarget, Cfg, Check, Cond, Dominators, Extern, Func, Lir, LirError,
    Liveness, Mem, Op, ParseError, Region, Span, TailKey, VReg, Val,
};
#[cfg(feature = "faults")]
#[doc(hidden)]
pub use bpf_opt::faults;
pub use bpf_opt::{
    Addresses, Carried, Change, Compared, Constants, Field, Pass, PassOptions, PassScratch, PassSet, Side, SideAs,
    Takes, carried, compared, extended_index, field, held, optimise, side,
};
pub use check::check;
pub use compiler::{CompileError, CompileOptions, Compiler};
pub use confined::unconfined;
pub use externs::{Hidden, MapShape, Signatures};
pub use lower::{COUNTER_STRIDE, LowerOptions, Lowerer};
pub use machine::{FixedOperands, HostReg, HostRegSet, MachineDesc, OpClass};
pub use moves::{Move, MoveSrc, parallel_moves};
pub use skeleton::{DirectSite, Skeleton, Stub};
pub use switch::{Others, Switch, switches};
