//! Why a host function ends the run.

use std::error::Error;
use std::fmt;

/// Why a host function ends the run.
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
            HelperError::Failed(error) => error.fmt(f),
            HelperError::Panicked(text) => write!(f, "panicked: {text}"),
            HelperError::Stopped => f.write_str("stopped in a callback"),
            HelperError::MemoryFull { full } => write!(f, "an argument: {full}"),
            HelperError::NoMemory { needed } => write!(f, "an argument: the system has no {needed} bytes"),
        }
    }
}

impl Error for HelperError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            HelperError::Failed(error) => Some(error.as_ref()),
            HelperError::Panicked(_)
            | HelperError::Stopped
            | HelperError::MemoryFull { .. }
            | HelperError::NoMemory { .. } => None,
        }
    }
}
