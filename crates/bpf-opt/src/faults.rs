//! Deliberate bugs, of the kinds that optimisers have, to test the tests with: a comparison of engines that finds none
//! of them proves nothing.
//!
//! They exist only with the feature `faults`, which a release build refuses, and only on a thread that has planted one.
//! Elsewhere `planted!` is the constant `false`, and the code beside it is not there.

#[cfg(all(feature = "faults", not(debug_assertions)))]
compile_error!("the feature `faults` makes the optimiser wrong on purpose: it is for tests, with debug assertions");

/// Whether this fault is planted on this thread. The argument is a variant of `Fault`.
macro_rules! planted {
    ($fault:ident) => {{
        #[cfg(feature = "faults")]
        let planted = $crate::faults::is_planted($crate::faults::Fault::$fault);
        #[cfg(not(feature = "faults"))]
        let planted = false;
        planted
    }};
}
pub(crate) use planted;

#[cfg(feature = "faults")]
mod with {
    use std::cell::Cell;

    /// A bug that can be planted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Fault {
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
        /// A clobber: what an op overwrites is not kept from values that live across it.
        ClobbersIgnored,
        /// Two values that live at one time have one register.
        ConflictsIgnored,
    }

    impl Fault {
        /// All of them.
        pub const ALL: &[Fault] = &[
            Fault::WrongRule,
            Fault::RuleUnconditional,
            Fault::BasesApart,
            Fault::CallsForgetNothing,
            Fault::LoadsSinkAnywhere,
            Fault::DominanceIgnored,
            Fault::LoopsNeverWiden,
            Fault::LivesIgnored,
            Fault::CopiesInOrder,
            Fault::ClobbersIgnored,
            Fault::ConflictsIgnored,
        ];
        /// Those in how registers are allocated, which the crate above does: what is computed stays the same.
        pub const OF_ALLOCATION: &[Fault] = &[Fault::ClobbersIgnored, Fault::ConflictsIgnored];
    }

    thread_local!(static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) });

    /// Plants a fault on this thread, or takes it out.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether this one is planted on this thread.
    pub fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
