//! The output of the command: results on standard output, messages on standard error.
//!
//! Problem: most of the output comes from files (names, sections, licences, source lines, output of programs), which
//! may try to control the terminal or to forge lines. Writing may fail, and `println!` then panics.
//!
//! Approach: all output goes through this file. A [`line`] is always one line; [`text`] may have several. In both,
//! and in JSON, control characters are escaped. A failed write is an error of the command ([`WriteError`]). If the
//! reader has closed the pipe, either SIGPIPE has ended the process, or [`WriteError::is_closed`] makes it end
//! without a message. Messages that cannot be written are lost.
//!
//! Important parts of a line may have a [`Look`]. A terminal shows it in colour, unless `NO_COLOR` is set; elsewhere
//! it is plain text (`anstream` decides, as for clap's own messages). JSON has no colours.
//!
//! Invariant: no other file of this crate prints (clippy's `print_stdout` and `print_stderr` are on).

use anstyle::{AnsiColor, Style};
use bpf_runtime::object::text::{Shown, ShownLines, is_control};
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// A failed write to standard output.
#[derive(Debug)]
pub(crate) struct WriteError(io::Error);

impl WriteError {
    /// Whether the reader has closed the pipe.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for WriteError {}

/// Prints one line of results, formatted.
macro_rules! line {
    ($($format:tt)*) => { $crate::out::write_line(format_args!($($format)*)) };
}
pub(crate) use line;

/// Prints several lines of results, formatted.
macro_rules! text {
    ($($format:tt)*) => { $crate::out::write_text(format_args!($($format)*)) };
}
pub(crate) use text;

pub(crate) fn write_line(text: fmt::Arguments<'_>) -> Result<(), WriteError> {
    writeln!(io::stdout(), "{}", Shown(text)).map_err(WriteError)
}

pub(crate) fn write_text(text: fmt::Arguments<'_>) -> Result<(), WriteError> {
    writeln!(io::stdout(), "{}", ShownLines(text)).map_err(WriteError)
}

/// The style of a part of a line on a terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    /// A success.
    Good,
    /// A failure.
    Bad,
    /// The subject of the following lines.
    Title,
    /// Orientation for the reader.
    Aside,
}

impl Look {
    fn style(self) -> Style {
        match self {
            Look::Plain => Style::new(),
            Look::Good => AnsiColor::Green.on_default(),
            Look::Bad => AnsiColor::Red.on_default().bold(),
            Look::Title => Style::new().bold(),
            Look::Aside => Style::new().dimmed(),
        }
    }
}

/// Prints one line of results that consists of parts.
pub(crate) fn parts(parts: &[(Look, fmt::Arguments<'_>)]) -> Result<(), WriteError> {
    let mut line = String::new();
    for (look, text) in parts {
        let style = look.style();
        line.push_str(&format!("{style}{}{style:#}", Shown(text)));
    }
    writeln!(anstream::stdout(), "{line}").map_err(WriteError)
}

/// Prints the numbers of passed and failed cases: the last line of the test protocols.
pub(crate) fn totals(passed: u32, failed: u32) -> Result<(), WriteError> {
    let look = if failed == 0 { Look::Good } else { Look::Bad };
    parts(&[(look, format_args!("{passed} passed, {failed} failed"))])
}

/// Prints text of this crate without escaping.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), WriteError> {
    io::stdout().write_all(bytes).map_err(WriteError)
}

/// Prints a report as JSON. Control characters can occur only in its strings, where JSON has an escape for them.
pub(crate) fn json(report: &impl Serialize) -> anyhow::Result<()> {
    let plain = serde_json::to_string_pretty(report)?;
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        if is_control(c) && c != '\n' {
            // All control characters are in the basic multilingual plane.
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    writeln!(io::stdout(), "{escaped}").map_err(WriteError)?;
    Ok(())
}

/// Flushes standard output. Must be called last.
pub(crate) fn finish() -> Result<(), WriteError> {
    io::stdout().flush().map_err(WriteError)
}

/// Prints a message on standard error.
pub(crate) fn message(text: fmt::Arguments<'_>) {
    // A failure cannot be reported, because reports go to standard error.
    let _ = write!(io::stderr(), "{}", ShownLines(text));
}

/// An error as JSON.
#[derive(Serialize)]
struct Failure {
    error: String,
}

/// Prints an error of the command: as a result under `--json`, otherwise as a message.
pub(crate) fn failure(error: &anyhow::Error, in_json: bool) {
    let written = match error.downcast_ref::<WriteError>() {
        Some(write) if write.is_closed() => return,
        // An output that failed for the report will fail for the error too.
        Some(_) => false,
        None => in_json && json(&Failure { error: format!("{error:#}") }).is_ok() && finish().is_ok(),
    };
    if !written {
        let style = Look::Bad.style();
        // A failure cannot be reported, as in `message`.
        let _ = writeln!(anstream::stderr(), "{style}bpf:{style:#} {}", ShownLines(format_args!("{error:#}")));
    }
}
