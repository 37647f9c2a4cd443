//! Certificates: what a search has found, as plain data.

use bpf_verifier_core::{Kept, Recording};

/// Kept points and the answers of a guide, by which the core checks that a program is safe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// What holds at loop heads.
    pub kept: Vec<Kept>,
    /// The answers.
    pub answers: Recording,
}
