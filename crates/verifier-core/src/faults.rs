//! Deliberate bugs in the core. Tests and proofs must find them.
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
        "the verifier's core":
        /// The bounds of a signed comparison are applied as unsigned ones.
        SignedIsUnsigned,
        /// The bounds of a comparison of low halves are applied to the whole.
        HalfIsWhole,
        /// The bound of a remainder is one too large: it includes the divisor.
        RemainderTooSmall,
        /// A pointer to an element of a hash, or to a per-CPU value, survives a sleep.
        SleepKeepsElements,
        /// An inner map and its values survive a sleep.
        SleepKeepsInner,
        /// Memory that a function returned survives a sleep.
        SleepKeepsMemory,
        /// A program may sleep while it holds a record.
        SleepsHolding,
        /// A program may sleep in a section.
        SleepsInside,
        /// A kept point covers states that are in other sections.
        SectionsUncompared,
        /// A run may yield where pointers were not forgotten.
        YieldForgetsNothing,
        /// A run may yield at the head of a loop where one path may not sleep.
        YieldsOnOneWay,
        /// Memory that a function writes may be another argument's.
        ArgumentsOverlap,
        /// A held object of a contained program survives a sleep.
        StartOutlastsSleep,
        /// A call of a function that sleeps leaves the held objects of a contained program.
        CalleeNeverSleeps,
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
