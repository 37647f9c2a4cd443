//! Bugs on purpose, to test the tests of the crates above with: an oracle that finds none of them proves nothing.
//!
//! A crate lists its bugs with [`faults!`](crate::faults) and asks for one, where it would be, with
//! [`planted_in!`](crate::planted_in). They exist only with that crate's feature `faults`, which a release build
//! refuses, and only on a thread that has planted one. Elsewhere the question is the constant `false`, and the code
//! beside it is not there. This is not about instructions; it is here because it is below the crates that have such
//! bugs.

/// `Fault`, one variant a bug, with `plant` and `is_planted`: for a module behind the feature `faults`. The string says
/// what is wrong with any of them.
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
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];
        }

        std::thread_local!(static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) });

        /// Plants a fault on this thread, or takes it out.
        pub fn plant(fault: Option<Fault>) {
            PLANTED.set(fault);
        }

        /// Whether this one is planted on this thread.
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
