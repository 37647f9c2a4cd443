//! Why a proof is not accepted.

use bpf_verifier_core::Refusal;

use super::against::Part;

/// The version of the form of proofs that is read and written here.
pub(super) const VERSION: u32 = 1;

/// Why a program is not accepted by a proof.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// There is none for this program.
    #[error("the object carries no proof of it; `bpf prove` makes one")]
    Missing,
    /// The bytes are no proof.
    #[error("the proof is malformed: {what} at byte {at}")]
    Malformed {
        /// The place, in bytes from the start of the section or of the proof.
        at: usize,
        /// What is there.
        what: &'static str,
    },
    /// The proofs are in a form of another version.
    #[error("the proofs have form {found}, and this verifier reads form {}", VERSION)]
    Version {
        /// The version that was found.
        found: u32,
    },
    /// The proof was made for something else.
    #[error("the proof was made for something else: {part} differ; prove it again here")]
    Differs {
        /// The first part that differs.
        part: Part,
    },
    /// The check does not accept the proof.
    #[error("the proof does not hold {0}")]
    NotProven(#[from] Refusal),
}
