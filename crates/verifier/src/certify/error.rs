//! Why a proof is not accepted.

use bpf_verifier_core::Refusal;

use super::against::Part;

/// The version of the form of proofs that is read and written here.
pub(super) const VERSION: u32 = 3;

/// Why a program is not accepted by a proof.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The object carries no proof of this program.
    #[error("the object carries no proof of it; `bpf prove` makes one")]
    Missing,
    /// The bytes are no proof.
    #[error("the proof is malformed: {what} at byte {at}")]
    Malformed {
        /// The place, in bytes from the start of the section or of the proof.
        at: usize,
        /// The unexpected content there.
        what: &'static str,
    },
    /// The proofs are in a form of another version.
    #[error("the proofs have form {found}, and this verifier reads form {}", VERSION)]
    Version {
        /// The version that was found.
        found: u32,
    },
    /// The proof was made for another program or environment.
    #[error("the proof was made with other inputs ({part}); run `bpf prove` again")]
    Differs {
        /// The first part that differs.
        part: Part,
    },
    /// The check does not accept the proof.
    #[error("the proof does not hold {0}")]
    NotProven(#[from] Refusal),
}
