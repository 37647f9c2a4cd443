//! The error of a description that is no host, with its place.

/// Why a description is no host.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}")]
#[non_exhaustive]
pub struct HostInterfaceError {
    /// The place in the description: `context.fields[2].name`.
    pub place: String,
    /// The problem.
    pub problem: String,
}

pub(super) fn wrong<T>(place: impl Into<String>, problem: impl Into<String>) -> Result<T, HostInterfaceError> {
    Err(HostInterfaceError { place: place.into(), problem: problem.into() })
}

/// Checks that this is a name in C.
pub(super) fn check_name(place: &str, name: &str) -> Result<(), HostInterfaceError> {
    let mut letters = name.bytes();
    let first = letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if name.len() > 128 || !first || !letters.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return wrong(place, format!("{:?} is no name in C of at most 128 letters", cut(name)));
    }
    Ok(())
}

/// The start of a text from a file, for a message.
fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}
