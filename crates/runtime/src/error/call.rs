//! Why a host function ends the run.

use std::error::Error;
use std::fmt;

/// Why a host function ends the run. The text of [`HelperError::Failed`] is that of the function's error and of the
/// error's causes, each once.
#[derive(Debug)]
#[non_exhaustive]
pub enum HelperError {
    /// The function returned this error.
    Failed(Box<dyn Error + Send + Sync>),
    /// The function panicked, with this message.
    Panicked(String),
    /// A callback into the program was stopped; the run's stop code says why.
    Stopped,
    /// An argument ([`crate::OwnedBytes`]) does not fit the memory that the engine, or the account that the program was
    /// loaded for, may take. The function was not called.
    MemoryFull {
        /// The bytes needed and the bytes left.
        full: bpf_quiesce::MemoryFull,
    },
    /// The operating system gave no memory for an argument ([`crate::OwnedBytes`]). The function was not called.
    NoMemory {
        /// Bytes needed.
        needed: u64,
    },
}

impl HelperError {
    /// An error of the host function's own.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> HelperError {
        HelperError::Failed(error.into())
    }
}

impl fmt::Display for HelperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelperError::Failed(error) => f.write_str(&with_causes(error.as_ref())),
            HelperError::Panicked(text) => write!(f, "panicked: {text}"),
            HelperError::Stopped => f.write_str("stopped in a callback"),
            HelperError::MemoryFull { full } => write!(f, "an argument: {full}"),
            HelperError::NoMemory { needed } => write!(f, "an argument: the system has no {needed} bytes"),
        }
    }
}

impl Error for HelperError {}

/// Returns the text of an error, and of those of its causes whose text it does not contain.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the quota cannot be read")]
    struct Plain(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("no file")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("the quota cannot be read: {0}")]
    struct Whole(#[source] Inner);

    /// Errors of hosts have causes in their text, or return them, or both.
    #[test]
    fn each_cause_is_printed_once() {
        for error in [HelperError::new(Plain(Inner)), HelperError::new(Whole(Inner))] {
            assert_eq!(error.to_string(), "the quota cannot be read: no file");
            assert!(error.source().is_none());
        }
    }
}
