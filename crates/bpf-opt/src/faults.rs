//! Deliberate bugs, of the kinds that optimisers have, which test the tests: an oracle that finds none of them proves
//! nothing.
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
        "the optimiser":
        /// A wrong rule: `x - c` becomes `x + c`.
        WrongRule,
        /// Rules are applied without their conditions: a mask is removed although it clears bits.
        RuleUnconditional,
        /// A wrong alias analysis: accesses with different bases are taken never to overlap.
        BasesApart,
        /// A contained program's dynptr is not restored before a call that uses it.
        DynptrUnrestored,
        /// Known contents of memory are kept across calls.
        CallsForgetNothing,
        /// A load moves behind a store that may have changed its bytes.
        LoadsSinkAnywhere,
        /// A value computed on one path is used where other paths lead too.
        DominanceIgnored,
        /// The number of bits of a value is that of the first round of a loop.
        LoopsNeverWiden,
        /// Two values that live at the same time are coalesced.
        LivesIgnored,
        /// The parallel copies of an edge are executed in sequence, although one overwrites the source of another.
        CopiesInOrder,
        /// An unrolled loop does several rounds where fewer may be left.
        RoundsUncertain,
        /// An op that reads a value defined in a loop is moved in front of the loop.
        RoundsAlike,
        /// A bit field has one bit more than it should.
        FieldsTooWide,
        /// A piece of the stack becomes a value although a load reads more bytes than a store wrote.
        MixedUnseen,
        /// A piece of the stack becomes a value although an address may lead to it.
        PiecesShared,
        /// The greater one of a loop's two limits is taken.
        GreaterBound,
        /// A comparison is repeated after a selection has changed its operand.
        ComparedLate,
        /// The mask of a shift count is removed although it clears bits that the shift reads.
        CountsUnmasked,
        /// A comparison of 32 bits with zero of a masked value becomes a test of 64 bits (`operand::tested`).
        TestsWhole,
        /// A branch at the end of a loop keeps its condition when its two targets are exchanged (`layout::ask`).
        AskedInverted,
        /// An operand of a selection that was computed in 32 bits is computed in 64 by the selection (arm64,
        /// `operand::side`).
        SidesTooWide,
        /// A selection that computes one of its operands keeps its condition when its operands are exchanged (arm64).
        SidesSwapped,
        /// A sign-extended index is zero-extended by the access (arm64, `operand::extended_index`).
        IndicesUnsigned,
        /// Flags are reused after an operand of their comparison has changed (arm64, `Emitter::keep_told`).
        FlagsStale,
        /// A selection becomes an addition of the carry flag although its condition is not the carry (x86-64,
        /// `operand::carried`).
        CarriesIgnored,
        /// A reader behind a counter's step reads the stepped counter without correcting for the step (`step.rs`).
        StepsForgotten,
        /// Every access that needs a confinement is taken to be in bounds (`bpf-jit/src/lower/contained.rs`).
        ConfinedAnywhere,
        /// The limit of a group of accesses is not lowered by the distance from the lowest to the farthest access
        /// (`gather.rs`).
        FartherForgotten,
        /// The registers that an op overwrites are given to values that live across the op.
        ClobbersIgnored,
        /// Two values that live at the same time get the same register.
        ConflictsIgnored,
        /// Two values that live at the same time get the same spill slot.
        SlotsIgnored,
    }

    impl Fault {
        /// Faults of register allocation, which is done by `bpf-jit`. The function's ops stay the same.
        pub const OF_ALLOCATION: &[Fault] = &[Fault::ClobbersIgnored, Fault::ConflictsIgnored, Fault::SlotsIgnored];
        /// Faults that only contained programs show, since they concern confinements.
        pub const OF_CONTAINED: &[Fault] = &[Fault::ConfinedAnywhere, Fault::FartherForgotten];
        /// Faults that only verified programs show, since they concern facts.
        pub const OF_FACTS: &[Fault] = &[Fault::PiecesShared];
        /// Faults in forms of operands that only arm64 has.
        pub const OF_ARM64: &[Fault] = &[
            Fault::FieldsTooWide,
            Fault::SidesTooWide,
            Fault::SidesSwapped,
            Fault::IndicesUnsigned,
            Fault::FlagsStale,
        ];
        /// Faults in forms of operands that only x86-64 has.
        pub const OF_X64: &[Fault] = &[Fault::CarriesIgnored];
        /// Faults that generated programs of bit fields, selections, tests and indices find; other generated programs
        /// find them late or never.
        pub const OF_SIDES: &[Fault] = &[
            Fault::TestsWhole,
            Fault::AskedInverted,
            Fault::FieldsTooWide,
            Fault::SidesTooWide,
            Fault::SidesSwapped,
            Fault::IndicesUnsigned,
            Fault::FlagsStale,
            Fault::CarriesIgnored,
        ];
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
