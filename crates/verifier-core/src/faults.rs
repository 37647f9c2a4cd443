//! Deliberate bugs in the core, to test the tests and the proofs with.
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
        "the verifier's core":
        /// A signed comparison bounds as an unsigned one.
        SignedIsUnsigned,
        /// A comparison of lower halves bounds the whole.
        HalfIsWhole,
        /// A remainder may be its divisor.
        RemainderTooSmall,
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
