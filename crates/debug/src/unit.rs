//! The description of a placed piece of emitted code.

use bpf_jit_code::{Arch, Homes, PcEntry, Unwind, UnwindOp};
use std::sync::Arc;

/// A function of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Offset of its first byte in the unit. It extends to the next function, the last one to the unit's end.
    pub start: u32,
    /// Index of its first source instruction; `None` for code that belongs to no instruction.
    pub insn: Option<u32>,
    /// The places of BPF registers in its code, if each has one.
    pub homes: Option<Homes>,
    /// The address of its first instruction in [`Unit::dwarf`], if that describes it.
    pub source: Option<u64>,
    /// Bytes below r10 that its instructions reach, a multiple of eight.
    pub stack: u32,
}

/// The source position of the instructions from `insn` up to the next `Line`.
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

/// A placed piece of emitted code: a program with its subprograms.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Architecture.
    pub arch: Arch,
    /// Name of the program. Any text: characters that a format cannot contain are replaced.
    pub name: String,
    /// Address of the first byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Functions, ascending by start; the first starts at 0 and is the program itself.
    pub functions: Vec<Function>,
    /// The map from code to instructions, ascending by code offset.
    pub pc_map: Vec<PcEntry>,
    /// The map from instructions to source lines, ascending by instruction; empty if unknown.
    pub lines: Vec<Line>,
    /// Source files.
    pub files: Vec<String>,
    /// Changes of the frame, ascending by offset.
    pub unwind: Vec<Unwind>,
    /// The instructions that call something, ascending: r0 to r5 are lost in their code.
    pub calls: Vec<u32>,
    /// The instructions that leave their function, ascending.
    pub exits: Vec<u32>,
    /// Sections of the object's DWARF by name, not trusted; addresses are those of [`Function::source`], of eight
    /// bytes an instruction. Empty if unknown.
    pub dwarf: Vec<(&'static str, Arc<[u8]>)>,
}

/// A code offset, and the source position of the code from there on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) code: u32,
    pub(crate) line: Line,
}

/// Converts a length in a file made from a unit, whose code is shorter than 2 GiB and whose names are as long as the
/// program's.
#[expect(clippy::cast_possible_truncation, reason = "see there; and debug builds check it")]
pub(crate) fn small(len: usize) -> u32 {
    debug_assert!(len <= u32::MAX as usize);
    len as u32
}

impl Unit {
    /// The address after the last byte.
    pub(crate) fn end(&self) -> usize {
        self.base + self.len
    }

    /// Index of the function that contains the byte at `offset`.
    pub(crate) fn function_at(&self, offset: u32) -> Option<usize> {
        self.functions.partition_point(|f| f.start <= offset).checked_sub(1)
    }

    /// Start and end offset of a function.
    pub(crate) fn range(&self, function: usize) -> (u32, u32) {
        let start = self.functions.get(function).map_or(small(self.len), |f| f.start);
        let end = self.functions.get(function + 1).map_or(small(self.len), |f| f.start);
        (start, end.max(start))
    }

    /// Start and end offset of a function's code, without the padding after it.
    pub(crate) fn code_range(&self, function: usize) -> (u32, u32) {
        let (start, end) = self.range(function);
        let mut ends = self.unwind.iter().filter(|note| note.op == UnwindOp::End && note.at > start && note.at <= end);
        (start, ends.next().map_or(end, |note| note.at))
    }

    /// The offset of a function's code behind its prologue.
    pub(crate) fn body(&self, function: usize) -> u32 {
        let (start, end) = self.range(function);
        let first = self.pc_map.partition_point(|entry| entry.code < start);
        self.pc_map.get(first).map_or(start, |entry| entry.code).min(end)
    }

    /// The name of a function in symbol tables: `bpf:program` or `bpf:program/function`, without characters that
    /// would break a line or a C string.
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

    /// The instruction from which the byte at `offset` was made.
    pub(crate) fn insn_at(&self, offset: u32) -> Option<u32> {
        let function = &self.functions[self.function_at(offset)?];
        let first = function.insn?;
        // The code before a function's first op is its prologue.
        let entry = self.pc_map.partition_point(|e| e.code <= offset).checked_sub(1).map(|i| self.pc_map[i]);
        Some(entry.filter(|e| e.code >= function.start).map_or(first, |e| e.insn))
    }

    /// The source line of an instruction of a function.
    pub(crate) fn line_of(&self, function: &Function, insn: u32) -> Option<Line> {
        let line = self.lines[self.lines.partition_point(|l| l.insn <= insn).checked_sub(1)?];
        (line.insn >= function.insn?).then_some(line)
    }

    /// The source positions of a function's code, one per stretch of code, ascending. The prologue has the position
    /// of the first instruction.
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
