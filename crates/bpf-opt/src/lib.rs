//! The optimiser: [`Lir`](bpf_lir::Lir) in, faster [`Lir`](bpf_lir::Lir) out.
//!
//! Problem: BPF has ten registers, no rotation, no index in an address, loads bytes where it wants words, and copies
//! before it computes; translated one to one it runs at half the speed of native code. Approach: passes, each a
//! function over one function that keeps what it computes. Most work in SSA form, between one construction and one
//! destruction:
//!
//! | file | what |
//! |---|---|
//! | `passes` | the passes by name, and what a compilation runs of them |
//! | `peephole` | two adjacent ops that are one |
//! | `slots` | pieces of the stack that become values |
//! | `convert` | branches that become selections |
//! | `unroll` | short loops that do several rounds at a time |
//! | `ssa`, `destruct` | into SSA form, and out of it without copies that need not be |
//! | `values` | constants, rules, what was computed before; bytes that are one load; division by constants |
//! | `rules` | the algebraic rules, as data |
//! | `gather` | one confinement for several accesses of a contained program |
//! | `index` | sums that are addresses, into the accesses that use them |
//! | `invariant` | what each round of a loop computes anew, before the loop |
//! | `operand` | values brought to the op that can make them on the way |
//! | `blind` | constants of the program do not appear in its machine code |
//! | `layout` | jumps that need not be |
//! | `sweep`, `dead` | what nobody reads, in SSA form and outside |
//! | `num` | casts that lose nothing, by name |
//! | `report` | what passes did, for people |
//! | `faults` | bugs on purpose, for tests |
//!
//! Invariants: this crate knows neither BPF nor machine code, only what [`bpf_lir::eval`] says that ops mean; nothing
//! is assumed of a program but what its ops say. So a load whose region is unknown may be of memory that is not there,
//! and stays unless another load that stays finds the same bytes; what it may meet is decided by regions alone. Passes
//! are linear in the ops, or give up above a limit that is named.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod blind;
mod convert;
mod dead;
mod destruct;
#[doc(hidden)]
pub mod faults;
mod gather;
mod index;
mod invariant;
mod layout;
mod loops;
mod num;
mod operand;
mod passes;
mod peephole;
#[doc(hidden)]
pub mod proof;
mod report;
mod rules;
mod slots;
mod ssa;
mod step;
mod sweep;
mod unroll;
mod values;

pub use invariant::Constants;
pub use operand::{
    Carried, Compared, Field, Side, SideAs, Takes, carried, compared, extended_index, field, held, side,
};
pub use passes::{Pass, PassOptions, PassScratch, PassSet, optimise};
pub use report::{Change, report};
pub use values::Addresses;
