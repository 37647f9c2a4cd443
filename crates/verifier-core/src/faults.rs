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
    }
}

#[cfg(feature = "faults")]
pub use with::{Fault, is_planted, plant};
