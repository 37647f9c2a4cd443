//! A piece of emitted code that was placed, and what there is to say about it.

use bpf_jit_code::{Arch, PcEntry, Unwind, UnwindOp};

/// A function of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Offset of its first byte in the unit. It reaches up to the next function, the last one to the unit's end.
    pub start: u32,
    /// Index of its first source instruction; `None` for code that no instruction stands for.
    pub insn: Option<u32>,
}

/// "The source instructions from this one on, up to the next line, came from this place."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Index of the source instruction.
    pub insn: u32,
    /// Index into [`Unit::files`].
    pub file: u32,
    /// From 1; 0 if unknown.
    pub line: u32,
    /// From 1; 0 if unknown.
    pub column: u32,
}

/// A piece of emitted code at its place: a program with its subprograms.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Architecture.
    pub arch: Arch,
    /// Name of the program. Any text: it is made harmless where a format demands it.
    pub name: String,
    /// Address of the first byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Functions, ascending by start; the first starts at 0 and is the program itself.
    pub functions: Vec<Function>,
    /// From code to instructions, ascending by code offset.
    pub pc_map: Vec<PcEntry>,
    /// From instructions to source lines, ascending by instruction; empty if unknown.
    pub lines: Vec<Line>,
    /// Source files.
    pub files: Vec<String>,
    /// Changes of the frame, ascending.
    pub unwind: Vec<Unwind>,
}

/// A code offset, and where the code from there on came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) code: u32,
    pub(crate) line: Line,
}

/// A length in what is made of a unit, whose code is below 2 GiB and whose names are as long as the program's.
#[expect(clippy::cast_possible_truncation, reason = "see there; and debug builds check it")]
pub(crate) fn small(len: usize) -> u32 {
    debug_assert!(len <= u32::MAX as usize);
    len as u32
}

impl Unit {
    /// Address behind the last byte.
    pub(crate) fn end(&self) -> usize {
        self.base + self.len
    }

    /// Index of the function that the byte at `offset` belongs to.
    pub(crate) fn function_at(&self, offset: u32) -> Option<usize> {
        self.functions.partition_point(|f| f.start <= offset).checked_sub(1)
    }

    /// First byte and end of a function.
    pub(crate) fn range(&self, function: usize) -> (u32, u32) {
        let start = self.functions.get(function).map_or(small(self.len), |f| f.start);
        let end = self.functions.get(function + 1).map_or(small(self.len), |f| f.start);
        (start, end.max(start))
    }

    /// First byte and end of a function's code, without the room behind it.
    pub(crate) fn code_range(&self, function: usize) -> (u32, u32) {
        let (start, end) = self.range(function);
        let mut ends = self.unwind.iter().filter(|note| note.op == UnwindOp::End && note.at > start && note.at <= end);
        (start, ends.next().map_or(end, |note| note.at))
    }

    /// What symbol tables call a function: `bpf:program` or `bpf:program/function`, without anything that would break a
    /// line or a C string.
    pub(crate) fn symbol(&self, function: usize) -> String {
        let mut symbol = String::from("bpf:");
        let mut push = |text: &str| {
            symbol.extend(text.chars().map(|c| if c.is_control() || c.is_whitespace() { '_' } else { c }));
        };
        push(&self.name);
        if let Some(f) = self.functions.get(function)
            && function > 0
        {
            push("/");
            push(&f.name);
        }
        symbol
    }

    /// The instruction that the byte at `offset` was made from.
    pub(crate) fn insn_at(&self, offset: u32) -> Option<u32> {
        let function = &self.functions[self.function_at(offset)?];
        let first = function.insn?;
        // What comes before a function's first op is its prologue.
        let entry = self.pc_map.partition_point(|e| e.code <= offset).checked_sub(1).map(|i| self.pc_map[i]);
        Some(entry.filter(|e| e.code >= function.start).map_or(first, |e| e.insn))
    }

    /// The line of an instruction of a function.
    pub(crate) fn line_of(&self, function: &Function, insn: u32) -> Option<Line> {
        let line = self.lines[self.lines.partition_point(|l| l.insn <= insn).checked_sub(1)?];
        (line.insn >= function.insn?).then_some(line)
    }

    /// The places of a function's code in the source, one for each stretch of code, ascending. The prologue has its
    /// first instruction's.
    pub(crate) fn rows(&self, function: usize) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let (start, end) = self.range(function);
        let Some(f) = self.functions.get(function) else { return rows };
        let Some(first) = f.insn else { return rows };
        let entries = self.pc_map.iter().filter(|e| (start..end).contains(&e.code)).map(|e| (e.code, e.insn));
        for (code, insn) in core::iter::once((start, first)).chain(entries) {
            let Some(line) = self.line_of(f, insn) else { continue };
            match rows.last_mut() {
                Some(last) if last.code == code => last.line = line,
                Some(last) if (last.line.file, last.line.line) == (line.file, line.line) => {}
                Some(_) | None => rows.push(Row { code, line }),
            }
        }
        rows
    }

    /// Name of a source file.
    pub(crate) fn file(&self, line: Line) -> &str {
        self.files.get(line.file as usize).map_or("", String::as_str)
    }
}
