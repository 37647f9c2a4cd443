//! Deliberate bugs, of the kinds that optimisers have, to test the tests with: a comparison of engines that finds none
//! of them proves nothing.
//!
//! They exist only with the feature `faults`, which a release build refuses (`bpf-isa/src/faults.rs`).

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
        /// A wrong rule: `x - c` is `x + c`.
        WrongRule,
        /// A rule without its condition: all that a mask leaves is what there was.
        RuleUnconditional,
        /// A wrong alias: accesses by different bases never meet.
        BasesApart,
        /// What is in memory stays known across a call.
        CallsForgetNothing,
        /// Bytes are loaded behind a store that may have changed them.
        LoadsSinkAnywhere,
        /// A value computed on one way is taken for one computed on every way.
        DominanceIgnored,
        /// A value is taken to be as narrow as it is the first time round a loop.
        LoopsNeverWiden,
        /// Two values that live at one time become one.
        LivesIgnored,
        /// The copies of an edge happen one after the other.
        CopiesInOrder,
        /// A loop does several rounds at once where there may be fewer.
        RoundsUncertain,
        /// What a round of a loop makes is taken to be what every round makes.
        RoundsAlike,
        /// A field of bits takes one more than it should.
        FieldsTooWide,
        /// A piece of the stack becomes a value though a load takes more than a store stored.
        MixedUnseen,
        /// Of two limits of a loop the greater one is taken.
        GreaterBound,
        /// A comparison is made again with what a selection before it has changed.
        ComparedLate,
        /// Any mask of a shift's count goes.
        CountsUnmasked,
        /// Where the lower half of what a mask leaves is compared with zero, all of it is (`operand::tested`).
        TestsWhole,
        /// Of a loop that asks at its end, a branch keeps its condition when its ways change places (`layout::ask`).
        AskedInverted,
        /// A side of a selection made in 32 bits is taken for one made in 64 (arm64, `operand::side`).
        SidesTooWide,
        /// A selection that makes a side on the way keeps its condition when its sides change places (arm64).
        SidesSwapped,
        /// An index that is extended by its sign is extended by zeros (arm64, `operand::extended_index`).
        IndicesUnsigned,
        /// Flags are asked again after what was compared has changed (arm64, `Emitter::keep_told`).
        FlagsStale,
        /// A selection that adds what a comparison carries adds it for any condition (x86-64, `operand::carried`).
        CarriesIgnored,
        /// What reads a counter behind its step reads the stepped one as it is (`step.rs`).
        StepsForgotten,
        /// Of what must be confined, everything is taken to be inside (`bpf-jit/src/lower/contained.rs`).
        ConfinedAnywhere,
        /// The limit of a group of accesses is not lowered by the distance from the lowest to the farthest
        /// (`gather.rs`).
        FartherForgotten,
        /// A clobber: what an op overwrites is not kept from values that live across it.
        ClobbersIgnored,
        /// Two values that live at one time have one register.
        ConflictsIgnored,
        /// Two values that live at one time have one slot.
        SlotsIgnored,
    }

    impl Fault {
        /// Those in how registers are allocated, which the crate above does: what is computed stays the same.
        pub const OF_ALLOCATION: &[Fault] = &[Fault::ClobbersIgnored, Fault::ConflictsIgnored, Fault::SlotsIgnored];
        /// Faults of confinement, which is only in contained programs.
        pub const OF_CONTAINED: &[Fault] = &[Fault::ConfinedAnywhere, Fault::FartherForgotten];
        /// Those in what only arm64 does on the way.
        pub const OF_ARM64: &[Fault] = &[
            Fault::FieldsTooWide,
            Fault::SidesTooWide,
            Fault::SidesSwapped,
            Fault::IndicesUnsigned,
            Fault::FlagsStale,
        ];
        /// Those in what only x86-64 does on the way.
        pub const OF_X64: &[Fault] = &[Fault::CarriesIgnored];
        /// Those that programs of fields, selections, tests and indices find, and other generated ones late or never.
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
