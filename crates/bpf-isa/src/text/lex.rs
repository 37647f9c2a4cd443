//! A cursor over one line of assembly.
//!
//! The syntax mixes operators and words without separators (`s>>=`, `skb[r1 + 4]`), so there is no token list: the
//! parser asks the cursor for the tokens that the grammar allows at a place. A failed request does not move the
//! cursor.

use super::error::AsmErrorKind;

/// A place in a line: bytes from its start.
pub(super) type Column = usize;

/// An error and its column in the line.
pub(super) type Failure = (Column, AsmErrorKind);

#[derive(Clone)]
pub(super) struct Cursor<'a> {
    /// The line, without its comment.
    line: &'a str,
    at: Column,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a str) -> Cursor<'a> {
        let mut cursor = Cursor { line: line[..comment_start(line)].trim_end(), at: 0 };
        cursor.skip_blanks();
        cursor
    }

    pub(super) fn column(&self) -> Column {
        self.at
    }

    pub(super) fn at_end(&self) -> bool {
        self.at == self.line.len()
    }

    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at = self.line.len() - self.rest().trim_start().len();
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        self.skip_blanks();
    }

    /// The word (letters, digits, `_`, `.`) at the cursor, not consumed; empty if there is none.
    pub(super) fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(rest.len());
        &rest[..end]
    }

    /// Takes the word at the cursor.
    pub(super) fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.advance(word.len());
        word
    }

    /// Takes `word` if it is the whole word at the cursor.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.advance(word.len());
        }
        found
    }

    /// Whether this punctuation is at the cursor.
    pub(super) fn peek(&self, text: &str) -> bool {
        self.rest().starts_with(text)
    }

    /// Takes this punctuation if it is at the cursor.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let found = self.peek(text);
        if found {
            self.advance(text.len());
        }
        found
    }

    /// Takes the first of these spellings that is at the cursor.
    pub(super) fn eat_any<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        table.iter().find(|(text, _)| self.eat(text)).map(|&(_, value)| value)
    }

    /// Takes an unsigned number, decimal or hexadecimal, of at most 64 bits.
    pub(super) fn number(&mut self) -> Option<u64> {
        let word = self.peek_word();
        let value = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => word.parse().ok()?,
        };
        self.advance(word.len());
        Some(value)
    }

    /// Takes a number with an optional sign.
    pub(super) fn signed(&mut self) -> Option<i128> {
        let start = self.at;
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        match self.number() {
            Some(value) => Some(if negative { -i128::from(value) } else { value.into() }),
            None => {
                self.at = start;
                None
            }
        }
    }

    /// The error "expected `what`" at the cursor.
    pub(super) fn expected(&self, what: &'static str) -> Failure {
        let rest = self.rest();
        let found = match self.peek_word() {
            "" => rest.chars().next().map(String::from).unwrap_or_default(),
            word => word.to_owned(),
        };
        (self.at, AsmErrorKind::Expected { what, found })
    }

    /// Takes this punctuation, or fails with the error that it was expected.
    pub(super) fn require(&mut self, text: &'static str) -> Result<(), Failure> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(text)) }
    }
}

/// The start of a comment: `;`, `//`, or a `#` at the start or after a space (`kfunc#1` is no comment).
fn comment_start(line: &str) -> usize {
    let bytes = line.as_bytes();
    (0..bytes.len())
        .find(|&i| match bytes[i] {
            b';' => true,
            b'/' => bytes.get(i + 1) == Some(&b'/'),
            b'#' => i == 0 || bytes[i - 1].is_ascii_whitespace(),
            _ => false,
        })
        .unwrap_or(line.len())
}
