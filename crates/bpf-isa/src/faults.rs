//! Planted bugs, which test the tests of the crates above: an oracle that finds none of them proves nothing.
//!
//! A crate lists its bugs with [`faults!`](crate::faults) and queries one, at its place in the code, with
//! [`planted_in!`](crate::planted_in). They exist only with that crate's feature `faults`, which a release build
//! refuses, and only on a thread that has planted one. Otherwise the query is the constant `false`, and the faulty
//! code is compiled out. This module does not concern instructions; it is here because this crate is below all crates
//! with such bugs.

/// Defines `Fault`, with one variant per bug, `plant` and `is_planted`: for a module behind the feature `faults`. The
/// string describes the effect of all of them.
#[doc(hidden)]
#[macro_export]
macro_rules! faults {
    ($what:literal: $($(#[$doc:meta])* $name:ident,)*) => {
        #[cfg(not(debug_assertions))]
        compile_error!(concat!("the feature `faults` makes ", $what, " wrong on purpose: it is for tests, with debug assertions"));

        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All faults.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];
        }

        std::thread_local!(static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) });

        /// Plants a fault on this thread, or removes it (`None`).
        pub fn plant(fault: Option<Fault>) {
            PLANTED.set(fault);
        }

        /// Whether this fault is planted on this thread.
        pub fn is_planted(fault: Fault) -> bool {
            PLANTED.get() == Some(fault)
        }
    };
}

/// Whether a variant of `Fault` in that module is planted on this thread.
#[doc(hidden)]
#[macro_export]
macro_rules! planted_in {
    ($($module:ident)::+, $fault:ident) => {{
        #[cfg(feature = "faults")]
        let planted = $($module)::+::is_planted($($module)::+::Fault::$fault);
        #[cfg(not(feature = "faults"))]
        let planted = false;
        planted
    }};
}
