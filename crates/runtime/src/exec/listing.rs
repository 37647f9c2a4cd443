//! A program as tools that step through it show it.

use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use bpf_isa::{Insn, InsnIdx};

/// A program as tools that step through it show it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The program's name.
    pub name: String,
    /// Its instructions. A wide instruction has two slots.
    pub insns: Vec<Insn>,
    /// Its source lines, ascending by instruction; empty without line information.
    pub lines: Vec<ListedLine>,
    /// Its functions, ascending by instruction.
    pub functions: Vec<ListedFunction>,
    /// The fields of its context.
    pub fields: Vec<ListedField>,
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListedLine {
    /// The first instruction of it.
    pub insn: InsnIdx,
    /// The file, as the compiler named it.
    pub file: String,
    /// The line's number, from 1.
    pub line: u32,
    /// Its text; may be empty.
    pub text: String,
}

/// A function of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListedFunction {
    /// Its first instruction.
    pub insn: InsnIdx,
    /// Its name.
    pub name: String,
}

/// A field of a context.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListedField {
    /// Its name.
    pub name: String,
    /// The number of bytes before it, from where r1 points to at the start.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

impl Listing {
    /// The listing of a program whose instructions these are.
    pub(crate) fn of(loaded: &Loaded, what: &Interpreted) -> Listing {
        let source = loaded.source();
        let line = |line: &bpf_verifier::SourceLine| ListedLine {
            insn: InsnIdx(line.insn),
            file: line.file.clone(),
            line: line.line,
            text: line.text.clone(),
        };
        let named = source.map_or(&[][..], |source| source.functions());
        let function = |(insn, name): &(u32, String)| ListedFunction { insn: InsnIdx(*insn), name: name.clone() };
        let mut functions: Vec<ListedFunction> = named.iter().map(function).collect();
        if functions.is_empty() {
            functions.push(function(&(0, loaded.name.to_string())));
        }
        let field = |field: &bpf_verifier::Field| ListedField {
            name: field.name.to_string(),
            offset: field.host_offset,
            size: field.host_size,
        };
        Listing {
            name: loaded.name.to_string(),
            insns: what.program.insns().to_vec(),
            lines: source.map_or(&[][..], |source| source.lines()).iter().map(line).collect(),
            functions,
            fields: loaded.layout.fields.iter().map(field).collect(),
        }
    }

    /// The source line that an instruction belongs to.
    pub fn line(&self, at: InsnIdx) -> Option<&ListedLine> {
        self.lines.get(self.lines.partition_point(|line| line.insn <= at).checked_sub(1)?)
    }

    /// The function that an instruction belongs to.
    pub fn function(&self, at: InsnIdx) -> Option<&ListedFunction> {
        self.functions.get(self.functions.partition_point(|function| function.insn <= at).checked_sub(1)?)
    }
}
