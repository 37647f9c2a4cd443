//! A stepper over the source lines of a run, for `bpf debug` and `bpf replay --commands`.
//!
//! Commands come from a file or from standard input, one a line. A run stops before its first instruction, and then
//! where the last command says; what it stops at is printed, so that a session is a text that tests compare. Commands
//! that do not come from a terminal are printed as well. At the end of the commands, the run goes on to its end.

use crate::input;
use crate::out::{self, Look, line};
use anyhow::{Context, Result, anyhow, bail, ensure};
use bpf_runtime::isa::{Callee, Insn, InsnIdx, disassemble};
use bpf_runtime::observe::{ListedField, ListedLine, Listing, Observed, Observer};
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

/// Shows maps and variables of the program.
pub(crate) trait Shows {
    /// Prints the map of this name.
    fn map(&self, name: &str) -> Result<()>;
    /// The value of the variable of this name in the program's data.
    fn variable(&self, name: &str) -> Option<String>;
}

/// Where the commands come from.
pub(crate) struct Commands {
    lines: Box<dyn BufRead>,
    /// Whether they are printed.
    echo: bool,
}

impl Commands {
    /// The commands of a file, or of standard input.
    pub(crate) fn open(path: Option<&Path>) -> Result<Commands> {
        Ok(match path {
            Some(path) if path != Path::new("-") => {
                let text = input::read_text(path)?;
                Commands { lines: Box::new(std::io::Cursor::new(text)), echo: true }
            }
            Some(_) | None => {
                let stdin = std::io::stdin();
                let echo = !stdin.is_terminal();
                Commands { lines: Box::new(stdin.lock()), echo }
            }
        })
    }

    /// The next command; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        if !self.echo {
            out::bytes(b"(bpf) ")?;
            out::finish()?;
        }
        loop {
            text.clear();
            if self.lines.read_line(&mut text).context("the commands")? == 0 {
                return Ok(None);
            }
            let command = text.trim();
            if self.echo && (command.is_empty() || command.starts_with('#')) {
                continue;
            }
            if self.echo {
                out::parts(&[(Look::Aside, format_args!("(bpf) {command}"))])?;
            }
            return Ok(Some(command.to_owned()));
        }
    }
}

/// Where a run stops next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    /// Stops at the next instruction.
    Insn,
    /// Stops at the next instruction of this function, or of its caller.
    NextInsn { frames: usize },
    /// Stops at another source line.
    Line { line: Option<usize>, frames: usize },
    /// Stops at another source line of this function, or in its caller.
    NextLine { line: Option<usize>, frames: usize },
    /// Stops in the caller of a function that is this deep.
    Finish { frames: usize },
    /// Stops at a breakpoint.
    Breakpoint,
    /// Runs to the end.
    End,
}

/// A stepper over one program.
pub(crate) struct Stepper<'a> {
    listing: &'a Listing,
    shows: &'a dyn Shows,
    commands: Commands,
    /// The instructions of each breakpoint, by its number.
    breakpoints: BTreeMap<usize, Vec<InsnIdx>>,
    made: usize,
    goal: Goal,
    /// The calls of the functions that have not returned, the outermost first.
    calls: Vec<InsnIdx>,
    before: Option<InsnIdx>,
    /// The address of the context.
    context: u64,
    /// The last command, which an empty line repeats.
    last: String,
    /// Whether the user has ended the session.
    quit: bool,
    failed: Option<anyhow::Error>,
}

impl<'a> Stepper<'a> {
    pub(crate) fn new(listing: &'a Listing, shows: &'a dyn Shows, commands: Commands) -> Stepper<'a> {
        Stepper {
            listing,
            shows,
            commands,
            breakpoints: BTreeMap::new(),
            made: 0,
            goal: Goal::Insn,
            calls: Vec::new(),
            before: None,
            context: 0,
            last: String::new(),
            quit: false,
            failed: None,
        }
    }

    /// Begins another run of the program. Returns whether the session goes on.
    pub(crate) fn begin(&mut self) -> bool {
        if self.goal != Goal::Breakpoint && self.goal != Goal::End {
            self.goal = Goal::Insn;
        }
        (self.calls, self.before) = (Vec::new(), None);
        !self.quit
    }

    /// Whether the user has ended the session.
    pub(crate) fn has_quit(&self) -> bool {
        self.quit
    }

    /// The error with which the session ended, if it did.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Notes the calls that lead to this instruction.
    fn follow(&mut self, step: &Observed<'_>) {
        let depth = step.frames().saturating_sub(1);
        self.calls.truncate(depth);
        if let (true, Some(call)) = (self.calls.len() < depth, self.before) {
            self.calls.push(call);
        }
        self.before = Some(step.at());
    }

    fn line_at(&self, at: InsnIdx) -> Option<usize> {
        self.listing.lines.partition_point(|line| line.insn <= at).checked_sub(1)
    }

    /// Whether two instructions are of one source line.
    fn same_line(&self, a: Option<usize>, b: Option<usize>) -> bool {
        let of = |line: Option<usize>| line.and_then(|line| self.listing.lines.get(line)).map(|l| (&l.file, l.line));
        of(a) == of(b)
    }

    fn stops(&self, step: &Observed<'_>) -> bool {
        let (at, frames) = (step.at(), step.frames());
        let breaks = self.breakpoints.values().flatten().any(|insn| *insn == at);
        match self.goal {
            Goal::Insn => true,
            Goal::NextInsn { frames: of } => breaks || frames <= of,
            Goal::Line { line, frames: of } => breaks || frames != of || !self.same_line(line, self.line_at(at)),
            Goal::NextLine { line, frames: of } => {
                breaks || frames < of || frames == of && !self.same_line(line, self.line_at(at))
            }
            Goal::Finish { frames: of } => breaks || frames < of,
            Goal::Breakpoint => breaks,
            Goal::End => false,
        }
    }

    /// Prints the place, and takes commands until one continues the run. Returns whether it does.
    fn stop(&mut self, step: &Observed<'_>) -> Result<bool> {
        print_place(self.listing, step.at())?;
        loop {
            let Some(command) = self.commands.next()? else {
                self.goal = Goal::End;
                return Ok(true);
            };
            let command = if command.is_empty() { self.last.clone() } else { command };
            self.last.clone_from(&command);
            match self.command(&command, step) {
                Ok(None) => {}
                Ok(Some(goal)) => {
                    self.goal = goal;
                    return Ok(true);
                }
                Err(error) if error.is::<out::WriteError>() => return Err(error),
                Err(error) => line!("{error:#}")?,
            }
            if self.quit {
                return Ok(false);
            }
        }
    }

    /// Executes a command. Returns the goal of one that continues the run.
    fn command(&mut self, command: &str, step: &Observed<'_>) -> Result<Option<Goal>> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let (at, frames) = (step.at(), step.frames());
        let line = self.line_at(at);
        Ok(match name {
            "" => None,
            "step" | "s" => Some(Goal::Line { line, frames }),
            "next" | "n" => Some(Goal::NextLine { line, frames }),
            "stepi" | "si" => Some(Goal::Insn),
            "nexti" | "ni" => Some(Goal::NextInsn { frames }),
            "finish" => Some(Goal::Finish { frames }),
            "continue" | "c" => Some(Goal::Breakpoint),
            "quit" | "q" => {
                self.quit = true;
                None
            }
            "break" | "b" => {
                let insns = self.place(rest)?;
                self.made += 1;
                let first = insns.first().copied().unwrap_or(InsnIdx(0));
                line!("breakpoint {} at {}", self.made, place(self.listing, first))?;
                self.breakpoints.insert(self.made, insns);
                None
            }
            "delete" | "d" => {
                let number: usize = rest.parse().context("a breakpoint's number is expected")?;
                ensure!(self.breakpoints.remove(&number).is_some(), "there is no breakpoint {number}");
                None
            }
            "breakpoints" => {
                for (number, insns) in &self.breakpoints {
                    let first = insns.first().copied().unwrap_or(InsnIdx(0));
                    line!("  {number}  {}", place(self.listing, first))?;
                }
                None
            }
            "print" | "p" => {
                line!("{rest} = {}", self.value(rest, step)?)?;
                None
            }
            "registers" | "regs" => {
                for (number, value) in step.regs().iter().enumerate() {
                    line!("  r{number:<2} = {}", number_text(*value))?;
                }
                None
            }
            "context" | "ctx" => {
                for field in &self.listing.fields {
                    line!("  {} = {}", field.name, self.field(field, step)?)?;
                }
                None
            }
            "map" => {
                self.shows.map(rest)?;
                None
            }
            "x" => {
                let (address, len) = rest.rsplit_once(' ').context("expected: x ADDRESS LENGTH")?;
                let address = self.address(address.trim(), step)?;
                let len: usize = len.parse().context("a length is expected")?;
                let bytes = step.read(address, len);
                let bytes = bytes
                    .with_context(|| format!("{len} bytes at {address:#x} are not all of the run's own memory"))?;
                for (i, chunk) in bytes.chunks(16).enumerate() {
                    line!("  {:#x}: {}", address.wrapping_add(16 * i as u64), hex::encode(chunk))?;
                }
                None
            }
            "backtrace" | "bt" => {
                for (number, insn) in std::iter::once(&at).chain(self.calls.iter().rev()).enumerate() {
                    line!("  {number}  {}", place(self.listing, *insn))?;
                }
                None
            }
            "list" | "l" => {
                self.list(at)?;
                None
            }
            "help" | "h" => {
                HELP.lines().try_for_each(|text| line!("{text}"))?;
                None
            }
            other => bail!("`{other}` is no command: `help` lists them"),
        })
    }

    /// The instructions of a place: a line, a file's line, an instruction, a function.
    fn place(&self, text: &str) -> Result<Vec<InsnIdx>> {
        if let Some(insn) = text.strip_prefix('*') {
            let insn: u32 = insn.parse().context("an instruction's number is expected")?;
            let is_there = self.listing.insns.get(insn as usize).is_some_and(|insn| *insn != Insn::SecondSlot);
            ensure!(is_there, "no instruction begins at {insn}");
            return Ok(vec![InsnIdx(insn)]);
        }
        if let Some(function) = self.listing.functions.iter().find(|function| function.name == text) {
            return Ok(vec![function.insn]);
        }
        let (file, number) = text.rsplit_once(':').map_or((None, text), |(file, number)| (Some(file), number));
        let number: u32 =
            number.parse().map_err(|_| anyhow!("`{text}` is no line, no *INSTRUCTION and no function"))?;
        let named =
            |line: &ListedLine| file.is_none_or(|file| line.file == file || line.file.ends_with(&format!("/{file}")));
        let here = |line: &&ListedLine| line.line == number && named(line);
        // A line whose instructions are at several places is entered at each of them.
        let insns: Vec<InsnIdx> = self.listing.lines.iter().filter(here).map(|line| line.insn).collect();
        ensure!(!insns.is_empty(), "line {text} has no instructions");
        Ok(insns)
    }

    /// The value of a register, a field of the context, or a variable.
    fn value(&self, text: &str, step: &Observed<'_>) -> Result<String> {
        if let Some(value) = register(text, step) {
            return Ok(number_text(value));
        }
        let name = text.strip_prefix("ctx.").unwrap_or(text);
        if let Some(field) = self.listing.fields.iter().find(|field| field.name == name) {
            return self.field(field, step);
        }
        let value = self.shows.variable(text);
        value.with_context(|| format!("`{text}` is no register, no field of the context and no global variable"))
    }

    fn field(&self, field: &ListedField, step: &Observed<'_>) -> Result<String> {
        // A field may have megabytes, and fields may overlap.
        let size = field.size as usize;
        let bytes = step.read(self.context.wrapping_add(field.offset.into()), size.min(SHOWN_BYTES));
        let bytes = bytes.with_context(|| format!("the context's field `{}` is not there", field.name))?;
        Ok(if size > SHOWN_BYTES { shown_part(&bytes, size) } else { shown(&bytes) })
    }

    /// An address: a number, or a register with an offset.
    fn address(&self, text: &str, step: &Observed<'_>) -> Result<u64> {
        let at = text.find(['+', '-']).unwrap_or(text.len());
        let (base, offset) = text.split_at(at);
        let base = match register(base.trim(), step) {
            Some(value) => value,
            None => number(base.trim())?,
        };
        let offset = match offset.split_at_checked(1) {
            None => 0,
            Some((sign, digits)) => {
                let digits = number(digits.trim())?;
                if sign == "-" { digits.wrapping_neg() } else { digits }
            }
        };
        Ok(base.wrapping_add(offset))
    }

    /// Prints the instructions of the source line.
    fn list(&self, at: InsnIdx) -> Result<()> {
        let line = self.line_at(at);
        for (i, insn) in self.listing.insns.iter().enumerate() {
            let index = InsnIdx(u32::try_from(i)?);
            if *insn == Insn::SecondSlot || !self.same_line(self.line_at(index), line) {
                continue;
            }
            let mark = if index == at { "->" } else { "  " };
            line!("{mark} {i:>4}: {}", insn_text(insn))?;
        }
        Ok(())
    }
}

impl Observer for Stepper<'_> {
    fn step(&mut self, step: &Observed<'_>) -> bool {
        if self.before.is_none() {
            self.context = step.regs()[1];
        }
        // The listing is that of the first program: one that a tail call enters is run over.
        if step.program() != 0 {
            return true;
        }
        self.follow(step);
        if !self.stops(step) {
            return true;
        }
        self.stop(step).unwrap_or_else(|error| {
            self.failed = Some(error);
            self.quit = true;
            false
        })
    }
}

const HELP: &str = "\
step, next          to another source line, into functions or over them
stepi, nexti        to the next instruction
finish              to the caller
continue            to a breakpoint or the end
break PLACE         stop at LINE, FILE:LINE, *INSTRUCTION or FUNCTION
delete N            remove breakpoint N; `breakpoints` lists them
print NAME          a register, a field of the context, a global variable
registers, context  all registers, all fields
map NAME            the entries of a map
x ADDRESS LENGTH    bytes of the stack or the context: x r10-16 16
backtrace, list     the calls that lead here; the instructions of this line
quit                end the session";

/// Prints each step of a run, with its source line where that changes.
pub(crate) struct Tracer<'a> {
    listing: &'a Listing,
    before: Option<[u64; 11]>,
    /// File and line of the last step.
    line: Option<(&'a str, u32)>,
    failed: Option<anyhow::Error>,
}

impl<'a> Tracer<'a> {
    pub(crate) fn new(listing: &'a Listing) -> Tracer<'a> {
        Tracer { listing, before: None, line: None, failed: None }
    }

    /// The error with which the trace ended, if it did.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn print(&mut self, step: &Observed<'_>) -> Result<()> {
        let changed = self.before.iter().flat_map(|before| before.iter().zip(step.regs()).enumerate());
        let changed = changed.filter(|(_, (before, now))| before != now);
        let changed: Vec<String> =
            changed.map(|(number, (_, now))| format!("r{number} = {}", number_text(*now))).collect();
        if !changed.is_empty() {
            out::parts(&[(Look::Aside, format_args!("          {}", changed.join(", ")))])?;
        }
        self.before = Some(*step.regs());
        if step.program() != 0 {
            self.line = None;
            let (name, at) = (step.name(), step.at().0);
            line!("    {at:>4}: {}    (in {name}, after a tail call)", insn_text(step.insn()))?;
            return Ok(());
        }
        let line = self.listing.line(step.at());
        let now = line.map(|line| (line.file.as_str(), line.line));
        if let Some(line) = line.filter(|_| now != self.line) {
            out::parts(&[
                (Look::Title, format_args!("{}:{}", line.file, line.line)),
                (Look::Plain, format_args!("  {}", line.text.trim())),
            ])?;
        }
        self.line = now;
        line!("    {:>4}: {}", step.at().0, text_at(self.listing, step.at()))?;
        Ok(())
    }
}

impl Observer for Tracer<'_> {
    fn step(&mut self, step: &Observed<'_>) -> bool {
        match self.print(step) {
            Ok(()) => true,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }
}

fn insn_text(insn: &Insn) -> String {
    // The offset of a call means nothing without the program around it.
    if let Insn::Call(Callee::Subprog(off)) = insn {
        return format!("call {off:+}");
    }
    disassemble(std::slice::from_ref(insn)).trim().to_owned()
}

fn text_at(listing: &Listing, at: InsnIdx) -> String {
    listing.insns.get(at.0 as usize).map_or_else(|| "?".to_owned(), insn_text)
}

/// An instruction's function, source line and number.
fn place(listing: &Listing, at: InsnIdx) -> String {
    let function = listing.function(at).map_or("?", |function| function.name.as_str());
    match listing.line(at) {
        Some(ListedLine { file, line, .. }) => format!("{function}, {file}:{line}, instruction {}", at.0),
        None => format!("{function}, instruction {}", at.0),
    }
}

fn print_place(listing: &Listing, at: InsnIdx) -> Result<()> {
    if let Some(ListedLine { file, line, text, .. }) = listing.line(at) {
        out::parts(&[(Look::Title, format_args!("{file}:{line}")), (Look::Plain, format_args!("  {}", text.trim()))])?;
    }
    out::parts(&[(Look::Aside, format_args!("    {:>4}: {}", at.0, text_at(listing, at)))])?;
    Ok(())
}

fn register(text: &str, step: &Observed<'_>) -> Option<u64> {
    let number: usize = text.strip_prefix('r')?.parse().ok()?;
    step.regs().get(number).copied()
}

fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .with_context(|| format!("`{text}` is no number and no register"))
}

/// A register's value: in decimal, and in hex if it is large.
fn number_text(value: u64) -> String {
    match value.cast_signed() {
        small @ -4096..=65535 => small.to_string(),
        large => format!("{large} ({value:#x})"),
    }
}

/// The bytes of a field: a number, if one has so many, or hex digits.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match *bytes {
        [a] => a.to_string(),
        [a, b] => u16::from_le_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).to_string(),
        [a, b, c, d, e, f, g, h] => number_text(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ if bytes.len() > SHOWN_BYTES => shown_part(&bytes[..SHOWN_BYTES], bytes.len()),
        _ => hex::encode(bytes),
    }
}

/// Shows the first bytes of a field of `size` bytes.
fn shown_part(bytes: &[u8], size: usize) -> String {
    format!("{}... ({size} bytes)", hex::encode(bytes))
}

/// Bytes of one field that are printed, at most. Fields may overlap.
const SHOWN_BYTES: usize = 256;
