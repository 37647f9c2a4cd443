//! The source line of an instruction.

use std::borrow::Cow;
use std::fmt;

/// The source line of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLine<'a> {
    /// File name.
    pub file: Cow<'a, str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// The line's text; empty if the compiler could not read it.
    pub text: Cow<'a, str>,
}

impl SourceLine<'_> {
    /// The line apart from its object.
    pub fn into_owned(self) -> SourceLine<'static> {
        let SourceLine { file, line, column, text } = self;
        SourceLine { file: file.into_owned().into(), line, column, text: text.into_owned().into() }
    }
}

impl fmt::Display for SourceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`", self.file, self.line, self.text.trim())
    }
}
