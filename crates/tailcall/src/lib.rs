//! Direct tail calls: poke sites as a typed state machine.
//!
//! Problem: a tail call whose table and index are constants should be a direct jump, patched while other threads run
//! it. A site has two patchable instructions, and between them code that cannot be undone:
//!
//! ```text
//! count check; BYPASS; count; unwind the frame; TARGET; out:
//! ```
//!
//! BYPASS is `jmp out` or nop, TARGET is nop or `jmp program`. With both nops a thread would unwind its frame and
//! then run into `out`. It is not enough that memory never holds two nops, because instruction fetch need not see two
//! stores in their order.
//!
//! Approach: three layers, none of which knows an architecture, BPF, or programs.
//!
//! * [`order`]: tokens for "every CPU sees it" ([`Barrier`]) and "every run that could not see it is over"
//!   ([`Elapsed`]). They carry stamps, so that a token says which earlier steps it covers.
//! * [`site`]: one [`Site`], whose state is a private enum. [`Site::view`] returns a value whose type is the state,
//!   and only the transitions of that state exist on it. Transitions that need a token take one. Each changes one
//!   instruction.
//! * [`sites`]: all sites that jump through one table, updated together: any number of slots with one barrier.
//!
//! ```text
//!              arm                 open (Barrier)
//!  Unlinked ---------> Armed ------------------------> Linked
//!  (jmp, nop)          (jmp, jmp f)                    (nop, jmp f)
//!      ^                 ^   | abandon                    | close
//!      | unlink (Elapsed)|   v                            |
//!      +------------- Draining  <-------------------------+
//!                     (jmp, jmp f)
//! ```
//!
//! Invariants: (nop, nop) cannot be expressed. A failed transition has changed neither text nor state. The site keeps
//! a target alive until no CPU can jump to it any more.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

pub mod order;
pub mod site;
pub mod sites;
mod text;

pub use order::{Barrier, Clock, Elapsed, Fences, Grace};
pub use site::{Armed, Draining, Failed, Failure, Insn, Linked, Site, Slot, Slots, Target, Unlinked, View};
pub use sites::{Change, Sites, UpdateError};
pub use text::TextSlots;
