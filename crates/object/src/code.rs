//! One program's instructions, complete: the program and every subprogram it reaches.
//!
//! [`Code`] is for inspection. A [`crate::LinkedCode`] exists only if all references of the program are resolved, so
//! a loader need not check again. `layout.rs` places and patches the functions.
//!
//! Invariants: every index is in range for the [`crate::Object`] it came from; at most [`bpf_isa::MAX_INSNS`] slots.

use std::sync::Arc;

use bpf_isa::{Insn, InsnIdx};

use crate::btf::{Btf, LineRecord, StrOffset, TypeId};
use crate::dwarf::Dwarf;
use crate::line::SourceLine;
use bpf_uapi::ProgramType;

/// A function inside a program's instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeFunction {
    /// Name.
    pub name: String,
    /// The ELF section it came from.
    pub section: Arc<str>,
    /// First slot in that section.
    pub section_slot: u32,
    /// First slot here.
    pub start: InsnIdx,
    /// Length in slots.
    pub len: u32,
    /// Whether it is global: verified by its prototype alone.
    pub global: bool,
    /// Its [`crate::btf::Type::Func`], if BTF has it.
    pub ty: Option<TypeId>,
}

/// The external object that an instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReferenceKind {
    /// A map, by index into [`crate::Object::maps`].
    Map(usize),
    /// A byte of a map's value.
    MapValue {
        /// Index into [`crate::Object::maps`].
        map: usize,
        /// Byte offset.
        off: u32,
    },
    /// An entry of a jump table.
    Table {
        /// Index into [`Code::jump_tables`].
        table: usize,
        /// Byte offset, of eight bytes an entry.
        off: u32,
    },
    /// A call of a host function, by index into [`crate::Object::host_functions`].
    HostCall(usize),
    /// The address of a host function, which only tests whether it exists.
    HostAddress(usize),
    /// An external variable, by index into [`crate::Object::extern_variables`].
    Extern(usize),
}

/// An instruction that refers to an external object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// The instruction.
    pub insn: InsnIdx,
    /// The object it refers to.
    pub kind: ReferenceKind,
}

/// A jump table of one function: the contents of a map of type `insn_array`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeTable {
    /// Its symbol.
    pub name: String,
    /// The target of each entry.
    pub targets: Vec<InsnIdx>,
}

/// The query of a CO-RE relocation (btf.rst, `enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CoreKind {
    /// Byte offset of a field.
    FieldByteOffset,
    /// Byte size of a field.
    FieldByteSize,
    /// Whether a field exists.
    FieldExists,
    /// Whether a field is signed.
    FieldSigned,
    /// Left shift to extract a bit field.
    FieldLshift,
    /// Right shift to extract a bit field.
    FieldRshift,
    /// Type id in the local BTF.
    TypeIdLocal,
    /// Type id in the target BTF.
    TypeIdTarget,
    /// Whether a type exists.
    TypeExists,
    /// Size of a type.
    TypeSize,
    /// Whether an enumerator exists.
    EnumvalExists,
    /// Value of an enumerator.
    EnumvalValue,
    /// Whether a type matches.
    TypeMatches,
}

impl CoreKind {
    /// Kinds by number, with the names LLVM and libbpf print.
    const ALL: [(CoreKind, &'static str); 13] = [
        (CoreKind::FieldByteOffset, "byte_off"),
        (CoreKind::FieldByteSize, "byte_sz"),
        (CoreKind::FieldExists, "field_exists"),
        (CoreKind::FieldSigned, "signed"),
        (CoreKind::FieldLshift, "lshift_u64"),
        (CoreKind::FieldRshift, "rshift_u64"),
        (CoreKind::TypeIdLocal, "local_type_id"),
        (CoreKind::TypeIdTarget, "target_type_id"),
        (CoreKind::TypeExists, "type_exists"),
        (CoreKind::TypeSize, "type_size"),
        (CoreKind::EnumvalExists, "enumval_exists"),
        (CoreKind::EnumvalValue, "enumval_value"),
        (CoreKind::TypeMatches, "type_matches"),
    ];

    pub(crate) fn new(number: u32) -> Option<CoreKind> {
        CoreKind::ALL.get(number as usize).map(|&(kind, _)| kind)
    }

    /// The name that LLVM and libbpf print.
    pub fn name(self) -> &'static str {
        CoreKind::ALL[self as usize].1
    }
}

/// A CO-RE relocation: the instruction's immediate or offset depends on a type's layout on the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreRelocation {
    /// The instruction.
    pub insn: InsnIdx,
    /// The query.
    pub kind: CoreKind,
    /// The root type in the object's BTF.
    pub ty: TypeId,
    /// Member, array or enumerator indices from the root. An offset and not a copy, because many relocations may
    /// share a long string.
    pub(crate) access: StrOffset,
}

/// A program with its subprograms, before it is linked.
#[derive(Clone, Debug)]
pub struct Code {
    pub(crate) program: String,
    pub(crate) kind: ProgramType,
    pub(crate) insns: Vec<Insn>,
    pub(crate) functions: Vec<CodeFunction>,
    pub(crate) references: Vec<Reference>,
    pub(crate) core: Vec<CoreRelocation>,
    pub(crate) lines: Vec<LineRecord>,
    pub(crate) btf: Option<Arc<Btf>>,
    pub(crate) dwarf: Option<Arc<Dwarf>>,
    pub(crate) exception: Option<InsnIdx>,
    pub(crate) tables: Vec<CodeTable>,
}

impl Code {
    /// The program's name.
    pub fn program(&self) -> &str {
        &self.program
    }
    /// The program's kind.
    pub fn kind(&self) -> ProgramType {
        self.kind
    }
    /// The instructions by slot: [`bpf_isa::Imm64::MapIdx`], [`bpf_isa::Imm64::MapIdxValue`] and
    /// [`bpf_isa::Callee::Host`] hold indices into the object's maps and host functions. Indices after the object's
    /// maps are the program's jump tables.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }
    /// An estimate of the memory that the program needs: the number of its instructions, source lines, CO-RE
    /// relocations (each of which may need as much memory as some instructions), jump tables (each at least a page)
    /// and edges of indirect jumps (each becomes a comparison in machine code).
    pub fn size(&self) -> usize {
        let tables: usize = self.tables.iter().map(|table| 512 + table.targets.len()).sum();
        let ways = self.indirect_ways();
        (self.insns.len() + self.lines.len() + 8 * self.core.len() + tables).saturating_add(ways)
    }
    /// Number of edges of indirect jumps: each has all targets in its function.
    fn indirect_ways(&self) -> usize {
        let mut targets: Vec<InsnIdx> = self.tables.iter().flat_map(|table| &table.targets).copied().collect();
        targets.sort_unstable();
        targets.dedup();
        let ways = |function: &CodeFunction| {
            let (start, end) = (function.start, InsnIdx(function.start.0 + function.len));
            let from = targets.partition_point(|target| *target < start);
            let each = targets.partition_point(|target| *target < end) - from;
            let jump = |insn: &&Insn| matches!(insn, Insn::JumpReg { .. });
            let insns = self.insns.get(start.index()..end.index()).unwrap_or_default();
            if each == 0 { 0 } else { insns.iter().filter(jump).count().saturating_mul(each) }
        };
        self.functions.iter().map(ways).fold(0, usize::saturating_add)
    }
    /// The functions in order; the first is the program.
    pub fn functions(&self) -> &[CodeFunction] {
        &self.functions
    }
    /// References to external objects, in instruction order.
    pub fn references(&self) -> &[Reference] {
        &self.references
    }
    /// The jump tables of indirect jumps, in the order of their first references. A loader creates a map for each.
    pub fn jump_tables(&self) -> &[CodeTable] {
        &self.tables
    }
    /// CO-RE relocations, in instruction order. Linking applies them.
    pub fn core_relocations(&self) -> &[CoreRelocation] {
        &self.core
    }
    /// The name of a relocation's root type, empty if anonymous, and the member, array or enumerator indices from it,
    /// `0:1:2`.
    pub fn core_names(&self, relocation: &CoreRelocation) -> (&str, &str) {
        self.btf.as_deref().map_or(("", ""), |btf| (btf.type_name(relocation.ty), btf.name(relocation.access)))
    }
    /// The function that contains an instruction.
    pub fn function_at(&self, insn: InsnIdx) -> Option<&CodeFunction> {
        let after = self.functions.partition_point(|f| f.start <= insn);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (insn.0 - function.start.0 < function.len).then_some(function)
    }
    /// The source line of an instruction.
    pub fn line(&self, insn: InsnIdx) -> Option<SourceLine<'_>> {
        let btf = self.btf.as_deref()?;
        let function = self.function_at(insn)?;
        let after = self.lines.partition_point(|l| l.slot <= insn.0);
        let record = self.lines.get(after.checked_sub(1)?).filter(|l| l.slot >= function.start.0)?;
        Some(SourceLine {
            file: btf.text(record.file),
            line: record.line,
            column: record.column,
            text: btf.text(record.text),
        })
    }
    /// The function that the program names as its exception callback (`btf_decl_tag("exception_callback:NAME")`). The
    /// program ends in an unreachable call of it and an exit.
    pub fn exception_callback(&self) -> Option<InsnIdx> {
        self.exception
    }
    /// The object's DWARF.
    pub fn dwarf(&self) -> Option<&Dwarf> {
        self.dwarf.as_deref()
    }
    /// The object's types.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.as_deref()
    }
}
