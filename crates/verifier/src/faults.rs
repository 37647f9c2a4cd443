//! Deliberate bugs, one in each of many rules. Tests must find them: an oracle that finds none of them proves nothing.
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
        "the verifier":
        /// A value that one path moves differently is taken to move as on the others.
        StepOnOnePath,
        /// A line's stride is taken to be 1.
        StrideLost,
        /// `<=` is taken for `<`.
        AtMostIsLess,
        /// The negative of a number that is counted below zero loses its distance from its name.
        NegativeForgetsDistance,
        /// A number that a loop counts is taken not to wrap.
        WrapForgotten,
        /// A probe is told of eight bytes more than are readable.
        ProbedMore,
        /// The distance of two objects, which a privileged program may compute, is taken to be short.
        ShownDistanceShort,
        /// The low half of an address, which a privileged program may copy, is taken to be short.
        ShownHalfShort,
        /// The number that an operation of a privileged program makes of an address is taken to be short.
        ShownNumberShort,
        /// A comparison of an address with a number, which a privileged program may make, is taken to have one outcome.
        ShownOrderKnown,
        /// Every loop is taken to end.
        EveryLoopEnds,
        /// A refused guess ends the path instead of walking it round by round.
        RefusedGuessDropped,
        /// If rounds are partitioned into sides, only the side that entered the loop is walked.
        SidesUnwalked,
        /// A round that returns to another side than the one it began on is taken to be covered by that side.
        SidesUncovered,
        /// A state of one side's rounds covers those of another's.
        SidesAlike,
        /// Rounds that lead from one side to another are not considered for termination.
        SidesApart,
        /// A round that comes back outside of its guess does not weaken it.
        GuessNotWeakened,
        /// A fill includes the bytes between its stores, which are not written.
        FillLeavesHoles,
        /// A pointer that is stored in a fill is taken for a number.
        FillHoldsPointers,
        /// A state with a smaller fill is covered, too.
        FillForgotten,
        /// The distance up to the end of an array is counted from the frame's top instead of the array.
        DistanceForgetsPlace,
        /// A byte that was seen not to be one character is taken to be no other either.
        UnlikeAnything,
        /// A state that knows fewer values to differ from a byte is taken to be covered.
        UnlikeForgotten,
        /// The kept distances between names are larger than the forgotten facts imply.
        DistancesKeptMore,
        /// The first round of a loop that is walked by itself is taken for all of them.
        PeeledIsAll,
        /// A pointer that is not behind another one into the same object is taken to be before it, though the two may
        /// be equal.
        PointersNeverMeet,
        /// An element that a store may miss is taken to hold the stored value.
        ContentOverwritten,
        /// A write of another kind to an array leaves its content.
        ContentSurvives,
        /// A store between two elements counts as a store to an element.
        ContentMisaligned,
        /// Elements that a loop may not have written are taken to be written.
        ContentNeverFresh,
        /// A state where less is known of an array's elements is covered, too.
        ContentForgotten,
        /// Numbers that are stored in an array are not checked against its order.
        OrderUnasked,
        /// A state with weaker upper bounds of an array's numbers is taken to be covered.
        OrderForgotten,
        /// A state that rests on a round which is still open is taken to end.
        RestsForgotten,
        /// Subtracting a pointer into any region is taken to cancel the address in a biased number.
        BiasOfAnother,
        /// A 64-bit difference of values that hold the low half of an address is taken for a number, though a carry may
        /// show the address.
        BiasOfHalves,
        /// A congruence modulo a power of two is taken for an equality, as if nothing had wrapped round.
        CongruentIsEqual,
        /// Every function is taken to read only the low 32 bits of its length argument.
        LengthsAreHalves,
        /// A sum of two unknown numbers is taken not to wrap.
        SumsNeverWrap,
        /// A falling number in a loop is taken to stay at or above the start of its memory.
        LinesBelowZero,
        /// Two pointers that a loop moves by different multiples of a number are taken to stay at their distance.
        BasesMoveApart,
        /// A difference that equals the largest possible value of the minuend is taken to have wrapped.
        DifferencesWrapEarly,
        /// A difference of two numbers is taken not to have wrapped as soon as anything is compared.
        DifferencesNeverWrap,
        /// Relations of a loop's variables are taken to hold in the next round.
        RelationsUnchecked,
        /// Relations of places are asserted of the candidate's names for them, not of the values that returned in the
        /// places.
        RelationsByOldNames,
        /// Relations of a loop's variables are taken to hold when it begins.
        RelationsUnbegun,
        /// Sums of numbers that a loop moves are taken to stay as they are.
        SumsStay,
        /// The remainder of a division or a mask is taken to be 0.
        RemainderForgotten,
        /// A number at a distance from its name is divided as if it were the named number.
        SplitForgetsDistance,
        /// A multiple is shifted to the right by one bit more than it was.
        MultipleShiftedMore,
        /// A number that was loaded from a region is taken to be there still after a store to one.
        SeenSurvivesStores,
        /// A number that decides a branch is not marked as needed exactly.
        DecisionsUnmarked,
        /// A number that was compared with an exact number is not marked as needed exactly.
        BoundsUnmarked,
        /// A comparison does not mark values that are tied to its operand.
        TiesUnmarked,
        /// A comparison does not mark a stack slot that is tied to its operand.
        TiedSlotsUnmarked,
        /// A load does not mark its slot as needed exactly.
        LoadsUnmarked,
        /// A store to an exact slot does not mark the stored value.
        StoresUnmarked,
        /// The result of a function is not marked as needed exactly.
        ResultsUnmarked,
        /// The arguments of a function are not marked as needed exactly.
        ArgumentsUnmarked,
        /// A write ends the life of the byte before it.
        NeighbourOverwritten,
        /// The key of an element that is known to exist is not marked as needed exactly.
        KeysUnmarked,
        /// A finished state does not record which of its values are equal.
        NamesForgotten,
        /// The demand of the second side of a branch is not added to the branch's demand.
        OtherSideForgotten,
        /// A round of a callback, an iterator or a may_goto is taken to need none of the stack.
        RoundReadsForgotten,
        /// A path that is covered needs nothing.
        CoveringUnneeded,
        /// A path that gives up a number goes on with those of the state it is merged with.
        MergedIsOld,
        /// An access that relies on a region's length does not mark the length as needed.
        LengthsUnmarked,
        /// The length that a comparison proves is taken to be all that is needed afterwards.
        LearntSuffices,
        /// A number that a region's length bounds does not mark the length as needed.
        LengthFlowsUnmarked,
        /// A comparison of a lower half with a constant shows the upper one, too.
        EqualHalves,
        /// A number that must be less than 2^32 is marked as such even if it is not known to be, and nothing else of it
        /// is needed.
        HalvesUnknown,
        /// The early return of a legacy load is not walked.
        LegacyReturnForgotten,
        /// A legacy load's result is taken to be a byte.
        LegacyResult,
        /// The second round of a may_goto loop is taken to be like the first.
        MayGotoOneRound,
        /// The second round of a loop over an iterator is taken to be like the first.
        IteratorOneRound,
        /// An iterator is taken to give elements for ever.
        IteratorNeverEmpty,
        /// An iterator's element may be written.
        ElementWritable,
        /// A dynptr's slice has eight bytes more than were asked for.
        SliceLonger,
        /// A dynptr's slice may be used without a null check.
        SliceNeverNull,
        /// A dynptr's slice of the packet survives a call that moves the packet.
        SliceSurvives,
        /// A store into a part of a spilled value leaves the spill as it was.
        SpillSurvives,
        /// A slot of another frame is taken for the same slot of this one.
        WrongFrame,
        /// A callback is walked once.
        CallbackOneRound,
        /// A callback is taken to be called at least once.
        CallbackAtLeastOnce,
        /// A store somewhere within some slots ends the life of all of them.
        SomeWriteEndsAll,
        /// A load through a pointer to another frame does not count as reading the slot.
        OtherFramesUnread,
        /// Only the first byte of a global function's memory is checked.
        GlobalMemoryShort,
        /// A global function's memory is taken never to be null.
        GlobalMemoryNotNull,
        /// A global function's memory need not be aligned as the function was verified for.
        GlobalMemoryUnaligned,
        /// The stack that a global function may write is not forgotten.
        GlobalMemoryKept,
        /// A call of a global function that moves the packet leaves pointers into it.
        GlobalMovesNothing,
        /// Spilled packet pointers survive a call that moves the packet.
        SpilledPacketSurvives,
        /// The proven length of the packet survives a call that moves the packet.
        PacketLengthSurvives,
        /// A null check of one pointer counts for all pointers that may be null.
        NullOfAll,
        /// An or-null pointer may be moved.
        NullMoves,
        /// A value's null check may be left out.
        ValueNeverNull,
        /// An inner map may be missing without a check.
        InnerMapNeverNull,
        /// Values of inner maps have eight bytes more.
        InnerValueLarger,
        /// The key of for_each may be written.
        KeyWritable,
        /// `<=` is taken for `<` of a packet pointer and the end.
        RoomOneMore,
        /// A comparison of a packet pointer that leaves the wrong way teaches what the right way would.
        RoomEitherWay,
        /// The packet is taken to have a byte at least.
        PacketNeverEmpty,
        /// A helper that writes up to so many bytes is taken to write all of them.
        HelperWritesMost,
        /// States are compared by the number of held locks instead of the locks.
        LocksAlike,
        /// A lock that may fail is always taken.
        LockNeverFails,
        /// The saved interrupt state is taken to be written even if the lock is not taken.
        SavedUntaken,
        /// A program may read and write a spin lock's bytes.
        LockOpen,
        /// A spilled pointer into a record survives its submission.
        RecordSurvives,
        /// A spilled pointer to an object in a list survives the release of the lock.
        BorrowSurvives,
        /// A program may read and write the links of an object.
        LinksOpen,
        /// A pointer to an object, loaded from the field where it is stashed, is never null.
        LoadedNeverNull,
        /// Other objects may be stashed in an object that was loaded from the field where it is itself stashed.
        LoadedTakes,
        /// The pointer to the instance for a CPU is never null, even if no such CPU exists.
        InstanceNeverNull,
        /// The program still owns an object with an instance for each CPU after it has stashed it.
        StashedOwned,
        /// A list needs no lock.
        RootsUnlocked,
        /// A pointer to an element of a hash survives a call that may sleep.
        ElementSleeps,
        /// A spilled pointer to an element survives a call that may sleep.
        SpilledElementSleeps,
        /// A pointer to this slot's value of a per-CPU array survives a call that may sleep.
        SlotValueSleeps,
        /// An inner map survives a call that may sleep.
        InnerMapSleeps,
        /// Memory that a function returned survives a call that may sleep.
        MemorySleeps,
        /// A dynptr survives a call that may sleep.
        DynptrSleeps,
        /// A program may sleep while it holds an object that it must release.
        SleepsOwing,
        /// A program may sleep with a lock.
        SleepsLocked,
        /// A program may sleep in a section.
        SleepsInSection,
        /// Pointers survive the head of a loop at which the run may yield.
        YieldsHolding,
        /// A run may yield at the head of a loop where one path may sleep and another may not.
        YieldsOnOnePath,
        /// A run may yield with a lock.
        YieldsLocked,
        /// A run may yield in a function that was verified on its own.
        YieldsAlone,
        /// A global function may return in a section that it has entered.
        SectionLeftOpen,
        /// A callback may sleep.
        CallbackSleeps,
        /// A call of a global function that may sleep leaves pointers to memory that may be freed.
        GlobalNeverSleeps,
        /// States are compared without the sections that they are in.
        SectionsAlike,
        /// A run may end without giving back a record.
        RecordForgotten,
        /// A program may throw while it owns an obligation.
        ThrownOwes,
        /// A callback may throw.
        CallbackThrows,
        /// States are compared without their stacks.
        StacksAlike,
        /// States are compared without regard to which pointers may be null.
        NullAlike,
        /// Any number covers any other.
        NumbersAlike,
        /// A number that is compared bounds those tied to it as if they were equal.
        TiedIsEqual,
        /// Atomics need no alignment.
        AtomicUnaligned,
        /// An atomic fetch leaves its register as it was.
        FetchForgotten,
        /// The range that one path has learnt of an operand of a mask or a shift is used on the next path, too.
        SiblingKnowsRanges,
        /// Pointers that were taken before different moves of the packet are taken to be of one.
        MovesAlike,
        /// A state is kept with its definitions, which states are compared without.
        DefinitionsKept,
        /// A right shift undoes a left shift of any other named number.
        HalfOfAnother,
        /// A shift to the left loses nothing at the top.
        ShiftsLoseNothing,
        /// Two numbers whose sum is related to a constant are less than that.
        BoundedSumsLess,
        /// An index is bounded by one less than the access that was proven implies.
        ProvenLess,
        /// Two places that held one number are taken to be equal even when neither has a name any more.
        TwinsStayAlike,
        /// Bits that a comparison of a mask has shown to be set are taken to be clear.
        SetBitsAreClear,
        /// The remainder of a multiple is taken to be less than the number even if the number is 0.
        PartOfNothing,
        /// A round number that is not divisible by the stride is taken for a round.
        RoundsUndivided,
        /// A round number that is not divisible by the stride does not refute a candidate.
        UndividedUnseen,
        /// A difference that was truncated is taken to be that of numbers which fit the width.
        CutDifferencesFit,
        /// One summand is taken to be less than the multiplier of the other, so that the sum splits into digits.
        DigitsOverlap,
        /// A sum with a power of two is taken not to wrap, whatever was subtracted before.
        AheadOfNothing,
        /// A constant part of a sum relates the rest at a distance that is one too large.
        ConstantPartMore,
        /// A pair of bits is taken to have at most one bit set.
        PairsHaveOne,
        /// A mask is taken to remove less than the bits that it lacks.
        MaskTakesLess,
        /// The results of two masks of one number are each taken to be at most the other, whatever bits the masks have.
        MasksAlike,
        /// A kept state forgets values that are not read, although a rule has searched for their names.
        NamesakesForgotten,
        /// A walk does not note that a rule has searched all values for a name.
        SearchesUnmarked,
        /// A name that no value holds is not negative.
        UnheldNotNegative,
        /// A candidate's name keeps its sign.
        SignsUnkept,
        /// A fact about a multiple is taken from a number that may be negative.
        MultiplesOfAnySign,
        /// A number whose low bits are set is taken to be one less.
        LowBitsLess,
        /// The OR of a pointer and a number is taken to be their sum, however the pointer is aligned.
        OrIsSum,
        /// A memory argument is checked for one byte less than its length argument.
        LengthOneMore,
        /// A difference of two numbers is taken to have wrapped round if they may be equal.
        EqualIsLess,
        /// A difference is taken to be one more than it is.
        LeftIsMore,
        /// A product is taken to be less than its factors make it.
        ProductsLess,
        /// A product that is in no register is taken to fit its width, however large its factors are.
        ProductsOfAnySize,
        /// The initial value of a line is taken to be a number of 64 bits, however far below its values are.
        LinesOfAnySize,
        /// A bound that is derived from a forgotten sum is one too large.
        HandedDownMore,
        /// A product with the number of a loop's round is taken to be the product with the next round's number.
        ProductsStay,
        /// A row is taken to begin nearer to where it is than it does.
        RowsFromAfar,
        /// A row is taken to move by its length in each round, whatever it does.
        RowsUnchecked,
        /// Accesses that a havocked iteration assumes to be within bounds are not proven when the candidate is checked.
        AssumedWithin,
        /// Offsets that a havocked iteration assumes to be small are not proven to be when the candidate is checked.
        AssumedNear,
        /// Numbers that a havocked iteration assumes to fit a cast are not proven to when the candidate is checked.
        AssumedShort,
        /// Pointers that a havocked iteration assumes to be before an end are not proven to be when the candidate is
        /// checked.
        AssumedBeforeEnd,
        /// When a number is partitioned at a constant, the part above the constant is not walked.
        PartUnwalked,
        /// When a number is partitioned by the values of a shift count, only the least value is walked.
        ExponentUnwalked,
        /// A number that differs between merged paths is taken to be that of the last path.
        BlendedAsOther,
        /// A signed comparison bounds as an unsigned one.
        SignedIsUnsigned,
        /// A comparison of lower halves bounds the whole.
        HalfIsWhole,
        /// The upper bound of a remainder is one too small.
        RemainderTooSmall,
        /// A loop is taken to end if anything is bounded in it, even if it was created in the round.
        AnyEdgeEnds,
        /// A loop that returns to an equal state is taken to end.
        EndlessLoops,
        /// A constant map may be written.
        ConstantsWritable,
        /// Stack never written may be read.
        UninitReadable,
        /// Unwritten stack that is read is not requested to be zeroed.
        ZeroesForgotten,
        /// A read takes a pointer on the stack for a fresh byte.
        FreshAlike,
        /// The program's result may be an address.
        AddressReturned,
    }

    impl Fault {
        /// Faults in the proofs of loops. A program written for each finds it (`tests/loops_faults.rs`).
        pub const OF_LOOPS: &[Fault] = &[
            Fault::StepOnOnePath,
            Fault::StrideLost,
            Fault::AtMostIsLess,
            Fault::WrapForgotten,
            Fault::EveryLoopEnds,
            Fault::RefusedGuessDropped,
            Fault::SumsNeverWrap,
            Fault::LinesBelowZero,
            Fault::BasesMoveApart,
            Fault::ShiftsLoseNothing,
            Fault::AssumedBeforeEnd,
            Fault::PartUnwalked,
            Fault::NegativeForgetsDistance,
        ];
        /// Faults in quotients and in sums that are truncated. A program written for each finds it
        /// (`tests/quotients.rs`).
        pub const OF_QUOTIENTS: &[Fault] = &[
            Fault::ExponentUnwalked,
            Fault::AheadOfNothing,
            Fault::DigitsOverlap,
            Fault::CutDifferencesFit,
            Fault::RoundsUndivided,
            Fault::UndividedUnseen,
            Fault::PartOfNothing,
            Fault::SetBitsAreClear,
            Fault::SiblingKnowsRanges,
            Fault::DefinitionsKept,
            Fault::TwinsStayAlike,
        ];
        /// Faults in sums and differences of numbers that a loop moves (`tests/loops_faults.rs`).
        pub const OF_SUMS: &[Fault] = &[
            Fault::MultipleShiftedMore,
            Fault::RelationsUnchecked,
            Fault::RelationsByOldNames,
            Fault::DifferencesWrapEarly,
            Fault::RemainderForgotten,
            Fault::SeenSurvivesStores,
            Fault::BoundedSumsLess,
            Fault::ProvenLess,
            Fault::ConstantPartMore,
            Fault::DistanceForgetsPlace,
            Fault::UnlikeAnything,
            Fault::UnlikeForgotten,
            Fault::DistancesKeptMore,
            Fault::LeftIsMore,
            Fault::ProductsLess,
            Fault::ProductsOfAnySize,
            Fault::LinesOfAnySize,
            Fault::HandedDownMore,
            Fault::ProductsStay,
            Fault::RowsUnchecked,
            Fault::PeeledIsAll,
            Fault::PointersNeverMeet,
        ];
        /// Faults in relations that programs without loops use, too. A program written for each finds it
        /// (`tests/straight.rs`).
        pub const OF_RELATIONS: &[Fault] = &[
            Fault::PairsHaveOne,
            Fault::MaskTakesLess,
            Fault::MasksAlike,
            Fault::NamesakesForgotten,
            Fault::SearchesUnmarked,
            Fault::UnheldNotNegative,
            Fault::MultiplesOfAnySign,
            Fault::SignsUnkept,
            Fault::LowBitsLess,
            Fault::OrIsSum,
            Fault::LengthOneMore,
            Fault::EqualIsLess,
        ];
        /// Faults in partitions of a loop by places that hold no value. Generated programs find them
        /// (`tests/verify/assumptions.rs`).
        pub const OF_SIDES: &[Fault] =
            &[Fault::SidesUnwalked, Fault::SidesUncovered, Fault::SidesAlike, Fault::SidesApart];
        /// Faults in the assumptions of havocked iterations. Generated programs find them (`tests/loops_oracle.rs`).
        pub const OF_ASSUMPTIONS: &[Fault] = &[Fault::AssumedWithin, Fault::AssumedNear, Fault::AssumedShort];
        /// Faults in fills. Each accepts a program that reads unwritten stack or a pointer (`tests/loops_oracle.rs`).
        pub const OF_FILLS: &[Fault] = &[Fault::FillLeavesHoles, Fault::FillHoldsPointers, Fault::FillForgotten];
        /// Faults in objects that programs own, and in stale pointers, which no generated program has. Each accepts a
        /// refused program of `tests/pairs.txt` (`tests/verify/pairs.rs`).
        pub const OF_OBJECTS: &[Fault] = &[
            Fault::BorrowSurvives,
            Fault::LinksOpen,
            Fault::RootsUnlocked,
            Fault::ThrownOwes,
            Fault::CallbackThrows,
            Fault::LocksAlike,
            Fault::LockNeverFails,
            Fault::SavedUntaken,
            Fault::LoadedNeverNull,
            Fault::LoadedTakes,
            Fault::InstanceNeverNull,
            Fault::StashedOwned,
            Fault::MovesAlike,
            Fault::BiasOfAnother,
            Fault::BiasOfHalves,
            Fault::LengthsAreHalves,
        ];
        /// Faults in sleeping. Generated programs that sleep find each (`bpf_testkit::sleepers`).
        pub const OF_SLEEPING: &[Fault] = &[
            Fault::ElementSleeps,
            Fault::SpilledElementSleeps,
            Fault::SlotValueSleeps,
            Fault::InnerMapSleeps,
            Fault::MemorySleeps,
            Fault::DynptrSleeps,
            Fault::SleepsOwing,
            Fault::SleepsLocked,
            Fault::SleepsInSection,
            Fault::SectionLeftOpen,
            Fault::CallbackSleeps,
            Fault::GlobalNeverSleeps,
            Fault::SectionsAlike,
            Fault::YieldsHolding,
        ];
        /// Faults in where runs may yield. As for [`Fault::OF_SLEEPING`], and programs written for each find it, too
        /// (`tests/verify/yields.rs`).
        pub const OF_YIELDING: [Fault; 3] = [Fault::YieldsLocked, Fault::YieldsOnOnePath, Fault::YieldsAlone];
        /// Faults in array contents and in parts of numbers. Each accepts a refused program of `tests/pairs.txt`, too.
        pub const OF_CONTENTS: &[Fault] = &[
            Fault::ContentOverwritten,
            Fault::ContentSurvives,
            Fault::ContentMisaligned,
            Fault::ContentNeverFresh,
            Fault::ContentForgotten,
            Fault::SplitForgetsDistance,
            Fault::HalfOfAnother,
        ];
        /// Faults that programs without loops find (`tests/verify/loops_oracle.rs`).
        pub const OF_STRAIGHT: &[Fault] = &[Fault::ProbedMore];
        /// Faults in rules for privileged programs. Generated programs find them (`tests/verify/loops_oracle.rs`).
        pub const OF_SHOWN: &[Fault] =
            &[Fault::ShownDistanceShort, Fault::ShownHalfShort, Fault::ShownNumberShort, Fault::ShownOrderKnown];
        /// Faults in the orders of array contents. Generated programs find them (`tests/loops_oracle.rs`).
        pub const OF_ORDERS: &[Fault] = &[Fault::OrderUnasked, Fault::OrderForgotten];
        /// Faults in the demand of regions' lengths. Generated programs find them (`tests/lengths.rs`).
        pub const OF_LENGTHS: &[Fault] = &[Fault::LengthsUnmarked, Fault::LearntSuffices, Fault::LengthFlowsUnmarked];
        /// Faults in the demand of numbers whose low half a comparison bounds. Generated programs find them
        /// (`tests/constants.rs`).
        pub const OF_HALVES: &[Fault] = &[Fault::EqualHalves, Fault::HalvesUnknown];
        /// Faults in the demand of a path. Walking paths that were dropped finds them (`tests/verify/needed.rs`).
        pub const OF_NEEDS: &[Fault] = &[
            Fault::DecisionsUnmarked,
            Fault::BoundsUnmarked,
            Fault::TiesUnmarked,
            Fault::TiedSlotsUnmarked,
            Fault::LoadsUnmarked,
            Fault::StoresUnmarked,
            Fault::ResultsUnmarked,
            Fault::ArgumentsUnmarked,
            Fault::NeighbourOverwritten,
            Fault::KeysUnmarked,
            Fault::NamesForgotten,
            Fault::OtherSideForgotten,
            Fault::RoundReadsForgotten,
            Fault::CoveringUnneeded,
            Fault::MergedIsOld,
        ];
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted};

/// Plants a fault on this thread, here or in the core; `None` removes it.
#[cfg(feature = "faults")]
pub fn plant(fault: Option<Fault>) {
    use bpf_verifier_core::faults::{self as core, Fault as Core};
    core::plant(match fault {
        Some(Fault::SignedIsUnsigned) => Some(Core::SignedIsUnsigned),
        Some(Fault::HalfIsWhole) => Some(Core::HalfIsWhole),
        Some(Fault::RemainderTooSmall) => Some(Core::RemainderTooSmall),
        _ => None,
    });
    with::plant(fault);
}
