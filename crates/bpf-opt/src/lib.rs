//! The optimiser: [`Lir`](bpf_lir::Lir) in, faster [`Lir`](bpf_lir::Lir) out.
//!
//! Problem: BPF has ten registers, no rotation, no selection and no indexed addressing, and its compilers load bytes
//! where they want words and copy before they compute. One machine instruction for each BPF instruction is therefore
//! slow. Approach: a sequence of passes. Each pass transforms one function and preserves what the function computes.
//! Most passes work in SSA form, between one construction and one destruction:
//!
//! | file | what |
//! |---|---|
//! | `passes` | the passes by name, and their order in a compilation |
//! | `peephole` | fuses two adjacent ops into one |
//! | `slots` | turns pieces of the BPF stack into values |
//! | `convert` | turns branches into selections |
//! | `unroll` | lets short counted loops do several rounds at a time |
//! | `ssa`, `destruct` | construct SSA form, and leave it with few copies |
//! | `values` | value numbering, constant folding, rules, memory contents, wide loads, division by constants |
//! | `rules` | the algebraic rules, as data |
//! | `gather` | shares one confinement among several accesses of a contained program |
//! | `index` | moves sums into the addresses of the accesses that use them |
//! | `invariant` | moves loop-invariant ops and constants in front of the loop |
//! | `step` | lets reads behind a counter's step use the stepped counter |
//! | `operand` | moves a value down to its one reader, if the machine can compute both in one instruction |
//! | `blind` | keeps the program's constants out of its machine code |
//! | `layout` | removes jumps |
//! | `loops` | finds natural loops |
//! | `sweep`, `dead` | remove ops whose results are not read, in SSA form and outside of it |
//! | `num` | named casts that lose nothing |
//! | `report` | lists what the passes changed, for people |
//! | `faults`, `proof` | bugs planted by tests; the rules as the prover reads them |
//!
//! Invariants: this crate knows neither BPF nor machine code. It relies only on the meaning of ops as `bpf_lir::eval`
//! defines it, and assumes nothing about a program but what its ops say. A load whose region is unknown may therefore
//! read unmapped memory and trap, so it stays unless another load that stays reads the same bytes. Two accesses with
//! different bases may overlap unless their regions exclude it. Passes are linear in the number of ops, or give up
//! above a named limit.
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
