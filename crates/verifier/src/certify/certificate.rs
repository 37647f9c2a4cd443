//! Certificates: the results of a search, as plain data.

use bpf_verifier_core::{Kept, Recording};

/// Kept points and the answers of a guide, by which the core checks that a program is safe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// The kept points: invariants and ranks, usually at loop heads.
    pub kept: Vec<Kept>,
    /// The guide's answers.
    pub answers: Recording,
}
