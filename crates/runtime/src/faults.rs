//! Deliberate bugs in runs that wait, which test the tests: an oracle that finds none of them proves nothing.
//!
//! The faults exist only with the feature `faults`, which a release build refuses (`bpf-isa/src/faults.rs`).

/// Whether this fault is planted on this thread. The argument is a variant of `Fault`.
macro_rules! planted {
    ($fault:ident) => {
        bpf_isa::planted_in!(crate::faults, $fault)
    };
}
pub(crate) use planted;

#[cfg(feature = "faults")]
mod with {
    bpf_isa::faults! {
        "the runtime":
        /// A run that waits for the first time keeps its guard, and so its slot.
        GuardKept,
        /// A run that goes on is taken to be in the slot of before.
        SlotOfBefore,
        /// The stack of a run that is over serves no other run.
        FiberLost,
        /// The host's future stays where a run is given up.
        FutureKept,
        /// A deadline stays listed when its run is over.
        DeadlineListed,
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
