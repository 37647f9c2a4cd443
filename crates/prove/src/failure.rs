//! Why an obligation is not shown.

/// Why an obligation is not shown.
pub(crate) enum Failure {
    /// The obligation is false for these numbers.
    Refuted(String),
    /// The solver found no answer.
    Open(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refuted(why) => write!(f, "REFUTED: {why}"),
            Failure::Open(why) => write!(f, "NOT SHOWN: {why}"),
        }
    }
}
