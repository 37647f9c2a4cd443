//! Errors of the assembler.

use core::fmt;

/// The reason why a text is not a program, and the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsmError {
    /// The line, from 1.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
    /// The kind of error.
    pub kind: AsmErrorKind,
}

/// The kinds of errors in a line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsmErrorKind {
    /// The grammar requires other text at this place.
    Expected {
        /// The expected text.
        what: &'static str,
        /// The text at this place; empty at the end of the line.
        found: String,
    },
    /// A number that does not fit its field.
    OutOfRange {
        /// The number.
        value: i128,
        /// The field.
        field: &'static str,
    },
    /// A register that differs from the one the instruction must repeat, in number or in width.
    RegisterMismatch,
    /// A label that is not defined.
    UnknownLabel(String),
    /// A label that is defined twice.
    DuplicateLabel(String),
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line, self.column)?;
        match &self.kind {
            AsmErrorKind::Expected { what, found } if found.is_empty() => write!(f, "expected {what}, found the end"),
            AsmErrorKind::Expected { what, found } => write!(f, "expected {what}, found '{found}'"),
            AsmErrorKind::OutOfRange { value, field } => write!(f, "{value} does not fit {field}"),
            AsmErrorKind::RegisterMismatch => f.write_str("the registers of this instruction must agree"),
            AsmErrorKind::UnknownLabel(name) => write!(f, "no label '{name}'"),
            AsmErrorKind::DuplicateLabel(name) => write!(f, "label '{name}' is defined twice"),
        }
    }
}

impl core::error::Error for AsmError {}
