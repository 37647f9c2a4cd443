//! What the command says: results on standard output, messages on standard error.
//!
//! Problem: most of what is said comes from files (names, sections, licences, source lines, what programs print) that
//! may want to drive the terminal or forge lines; and writing may fail, which `println!` answers with a panic.
//!
//! Approach: everything goes through this file. A [`line`] is one line, whatever is in it; [`text`] may have several;
//! in both, and in JSON, characters that act instead of being shown are escaped. A failed write is an error of the
//! command ([`WriteError`]); where the reader has gone, SIGPIPE has ended the process or [`WriteError::is_closed`] says
//! to end quietly. Messages that cannot be written are lost.
//!
//! What matters in a line may have a [`Look`]. A terminal shows it in colour, unless `NO_COLOR` is set; anywhere else
//! it is plain text (`anstream` decides, as for clap's own messages). JSON has none.
//!
//! Invariant: nothing else in this crate prints (clippy's `print_stdout` and `print_stderr` are on).

use anstyle::{AnsiColor, Style};
use bpf_runtime::text::{Shown, ShownLines, is_control};
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Standard output took no more.
#[derive(Debug)]
pub(crate) struct WriteError(io::Error);

impl WriteError {
    /// Whether nobody reads any more.
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

/// One line of results, formatted.
macro_rules! line {
    ($($format:tt)*) => { $crate::out::write_line(format_args!($($format)*)) };
}
pub(crate) use line;

/// Results of several lines, formatted.
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

/// How a part of a line looks on a terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    /// What went well.
    Good,
    /// What went wrong.
    Bad,
    /// What the lines that follow are about.
    Title,
    /// What is only there to orient the reader.
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

/// One line of results, of parts.
pub(crate) fn parts(parts: &[(Look, fmt::Arguments<'_>)]) -> Result<(), WriteError> {
    let mut line = String::new();
    for (look, text) in parts {
        let style = look.style();
        line.push_str(&format!("{style}{}{style:#}", Shown(text)));
    }
    writeln!(anstream::stdout(), "{line}").map_err(WriteError)
}

/// How many passed and failed: the last line of the test protocols.
pub(crate) fn totals(passed: u32, failed: u32) -> Result<(), WriteError> {
    let look = if failed == 0 { Look::Good } else { Look::Bad };
    parts(&[(look, format_args!("{passed} passed, {failed} failed"))])
}

/// Text of our own making, as it is.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), WriteError> {
    io::stdout().write_all(bytes).map_err(WriteError)
}

/// A report as JSON. In it such characters are only found in strings, where JSON has an escape for them.
pub(crate) fn json(report: &impl Serialize) -> anyhow::Result<()> {
    let plain = serde_json::to_string_pretty(report)?;
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        if is_control(c) && c != '\n' {
            // All of them are in the first plane.
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            escaped.push(c);
        }
    }
    writeln!(io::stdout(), "{escaped}").map_err(WriteError)?;
    Ok(())
}

/// Flushes standard output. To be called last.
pub(crate) fn finish() -> Result<(), WriteError> {
    io::stdout().flush().map_err(WriteError)
}

/// A message, on standard error.
pub(crate) fn message(text: fmt::Arguments<'_>) {
    // Standard error is where this would be reported.
    let _ = write!(io::stderr(), "{}", ShownLines(text));
}

/// What went wrong, for programs.
#[derive(Serialize)]
struct Failure {
    error: String,
}

/// An error of the command: as a result under `--json`, else as a message.
pub(crate) fn failure(error: &anyhow::Error, in_json: bool) {
    let written = match error.downcast_ref::<WriteError>() {
        Some(write) if write.is_closed() => return,
        // An output that did not take the report will not take this either.
        Some(_) => false,
        None => in_json && json(&Failure { error: explain(error) }).is_ok() && finish().is_ok(),
    };
    if !written {
        let style = Look::Bad.style();
        // As in `message`.
        let _ = writeln!(anstream::stderr(), "{style}bpf:{style:#} {}", ShownLines(explain(error)));
    }
}

/// Returns the error and its causes, without those that its own message has in it.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
