//! Removes control characters from a file's strings before they are shown.
//!
//! Problem: names, sections, licences and source lines appear in messages, listings, profilers' maps and terminals,
//! of this family and of its hosts. ESC lets the author of an object control its reader's terminal, a newline forges
//! lines of a log, and marks of text direction make one name look like another. Not every message can be relied on to
//! escape its parts.
//!
//! Approach: an object's strings are cleaned once, where they are read (`clean`): each control character is replaced
//! by as many question marks as it has bytes, so that offsets into the tables stay valid. Text from other sources
//! (arguments, other files) is escaped where it is written ([`Shown`]).

use std::fmt;

/// Whether a character controls the display instead of being shown: control characters (C0, DEL, C1), line and
/// paragraph separators, and the marks, embeddings, overrides and isolates of text direction (Unicode Standard Annex
/// 9).
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Number of bytes of the control character at the start of `bytes`, 0 if there is none. NUL, which ends strings, and
/// tabs, which indent source lines, are not counted.
fn control_at(bytes: &[u8]) -> usize {
    match *bytes {
        [0 | b'\t', ..] => 0,
        [..0x20 | 0x7f, ..] => 1,
        [0xc2, 0x80..=0x9f, ..] | [0xd8, 0x9c, ..] => 2,
        [0xe2, 0x80, 0x8e | 0x8f | 0xa8..=0xae, ..] | [0xe2, 0x81, 0xa6..=0xa9, ..] | [0xef, 0xbb, 0xbf, ..] => 3,
        _ => 0,
    }
}

/// Whether [`clean`] would not change the bytes.
pub(crate) fn is_clean(bytes: &[u8]) -> bool {
    (0..bytes.len()).all(|at| control_at(&bytes[at..]) == 0)
}

/// Replaces the control characters of a table of strings by question marks.
pub(crate) fn clean(bytes: &mut [u8]) {
    for at in 0..bytes.len() {
        let len = control_at(&bytes[at..]);
        bytes[at..at + len].fill(b'?');
    }
}

/// Text as one line, with its control characters escaped as Rust writes them (`\n`, `\u{1b}`).
///
/// ```
/// assert_eq!(bpf_object::text::Shown("a\u{1b}[2J\nb").to_string(), "a\\u{1b}[2J\\nb");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shown<T>(pub T);

impl<T: fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escaping { to: f, lines: false }, "{}", self.0)
    }
}

/// Text of several lines, with its control characters escaped as by [`Shown`] except newlines and tabs.
#[derive(Clone, Copy, Debug)]
pub struct ShownLines<T>(pub T);

impl<T: fmt::Display> fmt::Display for ShownLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escaping { to: f, lines: true }, "{}", self.0)
    }
}

struct Escaping<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    lines: bool,
}

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let acts = |c: char| is_control(c) && !(self.lines && matches!(c, '\n' | '\t'));
        for part in text.split_inclusive(acts) {
            match part.chars().next_back().filter(|&c| acts(c)) {
                // `escape_default` writes non-ASCII characters as `\u{…}`; `escape_debug` leaves some of these
                // unescaped.
                Some(c) => write!(self.to, "{}{}", &part[..part.len() - c.len_utf8()], c.escape_default())?,
                None => self.to.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte patterns agree with [`is_control`], character by character.
    #[test]
    fn cleaning_leaves_no_character_that_acts() {
        for c in '\0'..=char::MAX {
            let mut bytes = [0; 4];
            let text = c.encode_utf8(&mut bytes).to_owned();
            let acts = is_control(c) && !matches!(c, '\0' | '\t');
            assert_eq!(control_at(text.as_bytes()), if acts { text.len() } else { 0 }, "{c:?}");
            let mut cleaned = format!("a{c}b").into_bytes();
            assert_eq!(is_clean(&cleaned), !acts);
            clean(&mut cleaned);
            let cleaned = String::from_utf8(cleaned).unwrap();
            assert!(is_clean(cleaned.as_bytes()) && cleaned.len() == text.len() + 2);
            let (one, lines) = (Shown(&text).to_string(), ShownLines(&text).to_string());
            assert!(!one.chars().any(is_control), "{c:?}");
            assert!(!lines.chars().any(|c| is_control(c) && !matches!(c, '\n' | '\t')), "{c:?}");
        }
    }
}
