//! Deliberate bugs, one in each of many rules, to test the tests with: an oracle that finds none of them proves
//! nothing.
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
        "the verifier":
        /// A value that one path moves differently is taken to move as on the others.
        StepOnOnePath,
        /// A line's stride is taken to be 1.
        StrideLost,
        /// `<=` is taken for `<`.
        AtMostIsLess,
        /// The negative of a number that is counted below zero loses its distance from its name.
        NegativeForgetsDistance,
        /// What a loop counts is taken not to wrap round.
        WrapForgotten,
        /// A probe is told of eight bytes more than are readable.
        ProbedMore,
        /// The distance of two objects, which a privileged program may compute, is taken to be short.
        ShownDistanceShort,
        /// Every loop is taken to end.
        EveryLoopEnds,
        /// A refused guess ends the path instead of walking it round by round.
        RefusedGuessDropped,
        /// Of rounds that are told apart, those that did not enter the loop are not walked.
        SidesUnwalked,
        /// A round that comes back to another side than it began on is taken to be inside that.
        SidesUncovered,
        /// A state of one side's rounds covers those of another's.
        SidesAlike,
        /// Rounds that lead from one side to another are taken to be no part of what may go on for ever.
        SidesApart,
        /// A round that comes back outside of its guess does not weaken it.
        GuessNotWeakened,
        /// A loop fills what lies between its stores, too.
        FillLeavesHoles,
        /// A pointer stored in what a loop fills is a number.
        FillHoldsPointers,
        /// A state where less is filled is covered, too.
        FillForgotten,
        /// What is left up to the end of an array is taken to be counted from the frame's top.
        DistanceForgetsPlace,
        /// A byte that was seen not to be one character is taken to be no other either.
        UnlikeAnything,
        /// A state in which less is known of what a byte is not is covered, too.
        UnlikeForgotten,
        /// What stays is taken to be further apart than what is forgotten tells.
        DistancesKeptMore,
        /// The first round of a loop that is walked by itself is taken for all of them.
        PeeledIsAll,
        /// Of two pointers into one object, one that is not behind the other is taken to be before it.
        PointersNeverMeet,
        /// An element that a store may miss is taken to hold what was stored.
        ContentOverwritten,
        /// What is written to an array leaves what is known of all its elements.
        ContentSurvives,
        /// A store between two elements is one of an element.
        ContentMisaligned,
        /// Elements that a loop may not have written are taken to be written.
        ContentNeverFresh,
        /// A state where less is known of an array's elements is covered, too.
        ContentForgotten,
        /// What is stored in an array is taken to be no more than what all its numbers were.
        OrderUnasked,
        /// A state in which less is known of what an array's numbers are below is covered, too.
        OrderForgotten,
        /// What rests on a round that is still open is taken to end.
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
        /// What falls in a loop is taken to stay behind the start of its memory.
        LinesBelowZero,
        /// Two pointers that a loop moves by different multiples of a number are taken to stay at their distance.
        BasesMoveApart,
        /// A difference that is as much as what it was taken off allows is taken to have wrapped round.
        DifferencesWrapEarly,
        /// A difference of two numbers is taken not to wrap round as soon as anything is compared.
        DifferencesNeverWrap,
        /// Relations of a loop's variables are taken to hold in the next round.
        RelationsUnchecked,
        /// What is related of places is said of the guess's names for them, whatever came back in them.
        RelationsByOldNames,
        /// Relations of a loop's variables are taken to hold when it begins.
        RelationsUnbegun,
        /// Sums of what a loop moves are taken to stay as they are.
        SumsStay,
        /// What a division or a mask leaves is taken to be nothing.
        RemainderForgotten,
        /// What is divided is taken to be what its name names, without its distance.
        SplitForgetsDistance,
        /// A number that was loaded from a region is taken to be there still after a store to one.
        SeenSurvivesStores,
        /// What decides is not needed exactly.
        DecisionsUnmarked,
        /// What was compared with an exact number is not needed exactly itself.
        BoundsUnmarked,
        /// What is tied to an operand is not bounded by a comparison.
        TiesUnmarked,
        /// A stack slot that is tied to an operand is not bounded by a comparison.
        TiedSlotsUnmarked,
        /// What is loaded from a slot does not make the slot exact.
        LoadsUnmarked,
        /// What is stored to an exact slot is not exact.
        StoresUnmarked,
        /// What a function returns is not needed exactly.
        ResultsUnmarked,
        /// What a function is given is not needed exactly.
        ArgumentsUnmarked,
        /// A write ends the life of the byte before it.
        NeighbourOverwritten,
        /// The key of an element that is known to exist is not needed exactly.
        KeysUnmarked,
        /// A finished state does not say which of its values are the same.
        NamesForgotten,
        /// The second side of a branch needs all that the branch needs.
        OtherSideForgotten,
        /// A round of a callback, an iterator or a may_goto is taken to need none of the stack.
        RoundReadsForgotten,
        /// A path that is covered needs nothing.
        CoveringUnneeded,
        /// A path that gives up a number goes on with those of the state it is merged with.
        MergedIsOld,
        /// What is proven of a region's length is not needed by what asks for it.
        LengthsUnmarked,
        /// What a test shows of a region's length is taken to be all that is needed of it afterwards.
        LearntSuffices,
        /// What is proven of a region's length is not needed by a number that it bounds.
        LengthFlowsUnmarked,
        /// A comparison of a lower half with a constant shows the upper one, too.
        EqualHalves,
        /// That a number is less than 2^32 is needed of one that is not known to be, and nothing else is.
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
        /// What a global function may write is not forgotten.
        GlobalMemoryKept,
        /// A call of a global function that moves the packet leaves pointers into it.
        GlobalMovesNothing,
        /// Spilled packet pointers survive a call that moves the packet.
        SpilledPacketSurvives,
        /// What was proven of the packet's length survives a call that moves it.
        PacketLengthSurvives,
        /// A null check of one pointer is one of all that may be null.
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
        /// Which locks are held makes no difference to what is walked again, only how many.
        LocksAlike,
        /// A lock that may fail is always taken.
        LockNeverFails,
        /// What is to be saved on the stack as a lock is taken is taken to be written where it is not, too.
        SavedUntaken,
        /// A spin lock's bytes are like any others.
        LockOpen,
        /// A spilled pointer into a record survives its submission.
        RecordSurvives,
        /// A spilled pointer to an object in a list survives the release of the lock.
        BorrowSurvives,
        /// The links of an object are like any other bytes.
        LinksOpen,
        /// An object that was loaded from where it is stashed is never null.
        LoadedNeverNull,
        /// An object that was loaded from where it is stashed takes others.
        LoadedTakes,
        /// There is an instance for every CPU that a program asks for.
        InstanceNeverNull,
        /// An object with an instance for each CPU is the program's still where it is stashed.
        StashedOwned,
        /// A list needs no lock.
        RootsUnlocked,
        /// A run may end without giving back a record.
        RecordForgotten,
        /// What throws may own what it must give back.
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
        /// What one path has learnt of a number that a mask or a shift was made of is known on the next path, too.
        SiblingKnowsRanges,
        /// Pointers that were taken before different moves of the packet are taken to be of one.
        MovesAlike,
        /// A state is kept with its definitions, which states are compared without.
        DefinitionsKept,
        /// What has been shifted comes back from any named number that is shifted.
        HalfOfAnother,
        /// A shift to the left loses nothing at the top.
        ShiftsLoseNothing,
        /// Two numbers whose sum is related to a constant are less than that.
        BoundedSumsLess,
        /// What an access was proven by bounds its index by one less.
        ProvenLess,
        /// Two places that held the same number are taken to hold the same one when neither has a name any more.
        TwinsStayAlike,
        /// Bits that a mask has shown not to be 0 are taken to be.
        SetBitsAreClear,
        /// What a division leaves of a multiple is taken to be less than the number even if that is 0.
        PartOfNothing,
        /// A round that does not divide what counts the rounds is taken to be one of them.
        RoundsUndivided,
        /// A round that does not divide what counts the rounds is no reason to give a guess up.
        UndividedUnseen,
        /// A difference that was cut to some bits is taken to be one of a number that fits them.
        CutDifferencesFit,
        /// Of two numbers that a sum is made of, one is taken to be less than what the other is multiplied by.
        DigitsOverlap,
        /// What a number is ahead of by a power of two is taken to be a number whatever was taken off.
        AheadOfNothing,
        /// A part of a sum that is constant ties the rest one too far.
        ConstantPartMore,
        /// A pair of bits is taken to have one at most.
        PairsHaveOne,
        /// A mask takes away less than the bits that it lacks.
        MaskTakesLess,
        /// A number whose low bits are set is taken to be one less.
        LowBitsLess,
        /// The OR of a pointer and a number is taken to be their sum, however the pointer is aligned.
        OrIsSum,
        /// As many bytes as a number says are taken to end one earlier.
        LengthOneMore,
        /// A difference of two numbers is taken to have wrapped round if they may be equal.
        EqualIsLess,
        /// What is left of a number that something was taken off is taken to be one more.
        LeftIsMore,
        /// A product is taken to be less than its factors make it.
        ProductsLess,
        /// A product that nothing holds is taken to be no more than a number, however large its factors are.
        ProductsOfAnySize,
        /// What a line begins with is taken to be a number, however far what is on it lies below.
        LinesOfAnySize,
        /// What a forgotten sum says of what lies below its part is taken to be one more.
        HandedDownMore,
        /// What was multiplied with the number of a loop's round is that of the next one.
        ProductsStay,
        /// A row is taken to begin nearer to where it is than it does.
        RowsFromAfar,
        /// A row is taken to move by its length in each round, whatever it does.
        RowsUnchecked,
        /// What a loose walk goes on over is let pass where a guess is checked, too.
        AssumedWithin,
        /// What is added to a pointer is taken to be near where a guess is checked, too.
        AssumedNear,
        /// What is cast is taken to fit where a guess is checked, too.
        AssumedShort,
        /// A pointer is taken to lie before the end that it is measured from where a guess is checked, too.
        AssumedBeforeEnd,
        /// Of a number that is tested again, what is above the constant is not walked.
        PartUnwalked,
        /// Of a number that a constant is shifted by, only the least is walked.
        ExponentUnwalked,
        /// A number of paths that meet in a loop is taken to be what it was on the last of them.
        BlendedAsOther,
        /// A signed comparison bounds as an unsigned one.
        SignedIsUnsigned,
        /// A comparison of lower halves bounds the whole.
        HalfIsWhole,
        /// A remainder may be its divisor.
        RemainderTooSmall,
        /// A loop ends that comes round with anything bounded in it, also what was made in the round.
        AnyEdgeEnds,
        /// A loop in an equal state is one that ends.
        EndlessLoops,
        /// A constant map may be written.
        ConstantsWritable,
        /// Stack never written may be read.
        UninitReadable,
        /// What is read though nothing was written to it need not be zeroed.
        ZeroesForgotten,
        /// A pointer on the stack is a fresh byte to who reads that.
        FreshAlike,
        /// The result may be an address.
        AddressReturned,
    }

    impl Fault {
        /// Those in how loops are proven: each is found by a program written for it (`tests/loops_faults.rs`).
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
        /// Those in quotients, and in what is added and cut off again: each is found by a program written for it
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
        /// Those in sums of what a loop moves, and in differences of it (`tests/loops_faults.rs`).
        pub const OF_SUMS: &[Fault] = &[
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
        /// Those in relations that programs without loops rest on, too: each is found by a program written for it
        /// (`tests/straight.rs`).
        pub const OF_RELATIONS: &[Fault] = &[
            Fault::PairsHaveOne,
            Fault::MaskTakesLess,
            Fault::LowBitsLess,
            Fault::OrIsSum,
            Fault::LengthOneMore,
            Fault::EqualIsLess,
        ];
        /// Those in rounds that are told apart by places which hold none: each is found by generated programs
        /// (`tests/verify/assumptions.rs`).
        pub const OF_SIDES: &[Fault] =
            &[Fault::SidesUnwalked, Fault::SidesUncovered, Fault::SidesAlike, Fault::SidesApart];
        /// Those in what loose walks take for granted: each is found by generated programs (`tests/loops_oracle.rs`).
        pub const OF_ASSUMPTIONS: &[Fault] = &[Fault::AssumedWithin, Fault::AssumedNear, Fault::AssumedShort];
        /// Those in what loops are known to have written: each lets a program through that reads what was not,
        /// or a pointer (`tests/loops_oracle.rs`).
        pub const OF_FILLS: &[Fault] = &[Fault::FillLeavesHoles, Fault::FillHoldsPointers, Fault::FillForgotten];
        /// Those in objects that programs own, and in pointers to what is gone, which no generated program has: each
        /// lets a program of `tests/pairs.txt` through that is refused (`tests/verify/pairs.rs`).
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
        /// Those in what is known of the elements of arrays, and of parts of numbers: the same.
        pub const OF_CONTENTS: &[Fault] = &[
            Fault::ContentOverwritten,
            Fault::ContentSurvives,
            Fault::ContentMisaligned,
            Fault::ContentNeverFresh,
            Fault::ContentForgotten,
            Fault::SplitForgetsDistance,
            Fault::HalfOfAnother,
        ];
        /// Faults that straight lines find (`tests/verify/loops_oracle.rs`).
        pub const OF_STRAIGHT: &[Fault] = &[Fault::ProbedMore];
        /// Faults in what privileged programs may do: found by generated programs (`tests/verify/loops_oracle.rs`).
        pub const OF_SHOWN: &[Fault] = &[Fault::ShownDistanceShort];
        /// Those in what the numbers of an array are no more than: each is found by generated programs
        /// (`tests/loops_oracle.rs`).
        pub const OF_ORDERS: &[Fault] = &[Fault::OrderUnasked, Fault::OrderForgotten];
        /// Those in what is needed of lengths of regions: found by generated programs (`tests/lengths.rs`).
        pub const OF_LENGTHS: &[Fault] = &[Fault::LengthsUnmarked, Fault::LearntSuffices, Fault::LengthFlowsUnmarked];
        /// Those in what is needed of numbers whose lower half a comparison has shown: found by generated programs
        /// (`tests/constants.rs`).
        pub const OF_HALVES: &[Fault] = &[Fault::EqualHalves, Fault::HalvesUnknown];
        /// Those in what a path is found to need: each is found by walking paths that were dropped
        /// (`tests/verify/needed.rs`).
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

/// Plants a fault on this thread, here or in the core, or takes it out.
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
