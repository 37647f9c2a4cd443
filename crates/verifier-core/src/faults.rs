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
        /// The upper bound of a remainder is one too small.
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
        /// A contained program's slice survives a move of its packet and the end of its record.
        SliceSurvives,
        /// A kept point covers states whose registers hold other values.
        RegistersUncompared,
        /// A kept point covers states whose stack slots hold other values.
        StackUncompared,
        /// A way from one kept point to the next need not decrease the rank.
        RanksUncompared,
        /// Only one case of a split is walked.
        SplitDropsCase,
        /// Only one side of a branch is walked where both can be taken.
        BranchDropsSide,
        /// The least value of a name that follows from a row is one too large.
        BoundTooTight,
        /// The order that a comparison shows is strict where it need not be.
        OrderIsStrict,
        /// An access need only begin within its object.
        SizeUncounted,
        /// A store at a variable place of the stack leaves the values of the slots there.
        StoreKeepsSlots,
        /// An atomic access need not be aligned.
        AtomicUnaligned,
        /// A number is less than its quotient says by one.
        QuotientTooSmall,
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
