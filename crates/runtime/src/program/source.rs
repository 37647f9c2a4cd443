//! Where the instructions of a program came from, for messages about its runs.

use crate::error;
use bpf_isa::InsnIdx;
use bpf_verifier::SourceLine;

/// Functions and source lines of a program; nothing where its object does not say.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Source lines, ascending by first instruction.
    lines: Vec<SourceLine>,
    /// Names of functions, ascending by first instruction; empty if there is only one.
    functions: Vec<(u32, String)>,
}

impl Source {
    /// Makes the source information of the object's code.
    pub(crate) fn new(code: &bpf_object::Code, lines: Vec<SourceLine>) -> Source {
        let functions = code.functions();
        let named = functions.iter().filter(|_| functions.len() > 1).map(|f| (f.start.0, f.name.clone()));
        Source { lines, functions: named.collect() }
    }

    /// From lines, ascending by instruction, and functions, given if there is more than one.
    pub(crate) fn of(lines: Vec<SourceLine>, functions: Vec<(u32, String)>) -> Source {
        Source { lines, functions }
    }

    /// Source lines, ascending by first instruction.
    pub(crate) fn lines(&self) -> &[SourceLine] {
        &self.lines
    }

    /// Names of functions, ascending by first instruction; empty if there is only one.
    pub(crate) fn functions(&self) -> &[(u32, String)] {
        &self.functions
    }

    /// The function that an instruction belongs to.
    pub(crate) fn function(&self, insn: InsnIdx) -> Option<String> {
        let at = self.functions.partition_point(|(start, _)| *start <= insn.0).checked_sub(1)?;
        Some(self.functions[at].1.clone())
    }

    /// The source line that an instruction came from.
    pub(crate) fn line(&self, insn: InsnIdx) -> Option<error::SourceLine> {
        let at = self.lines.partition_point(|line| line.insn <= insn.0).checked_sub(1)?;
        let SourceLine { file, line, text, .. } = &self.lines[at];
        Some(error::SourceLine { file: file.to_string(), line: *line, text: text.trim().to_owned() })
    }
}
