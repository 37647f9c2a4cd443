//! Errors of reading and linking objects.
//!
//! One enum for each part that can be wrong (container, section, symbol, relocation, map, BTF, code, linking). Each
//! names the place in the object's own terms: section, symbol, byte offset, instruction. No variant except
//! [`ObjectError::Internal`] is a bug of this crate: a malformed file can produce all others.

use crate::line::SourceLine;
use bpf_isa::{DecodeError, InsnIdx};

/// A BPF object, or a request made of one, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The file is not an ELF relocatable for BPF, or its headers are broken.
    #[error("not a loadable BPF object: {0}")]
    Elf(ElfError),
    /// A section as a whole is wrong.
    #[error("section `{section}`: {problem}")]
    Section {
        /// Section name, or `#index` if the name is unusable.
        section: String,
        /// The kind of error.
        problem: SectionProblem,
    },
    /// A symbol does not fit its section.
    #[error("symbol `{symbol}` in section `{section}`: {problem}")]
    Symbol {
        /// Symbol name.
        symbol: String,
        /// Section name.
        section: String,
        /// The kind of error.
        problem: SymbolProblem,
    },
    /// A relocation cannot be applied.
    #[error("section `{section}`, relocation at byte {offset:#x} against `{symbol}`: {problem}")]
    Relocation {
        /// The section that is relocated.
        section: String,
        /// Byte offset in that section; for code, eight times the instruction's slot.
        offset: u64,
        /// The symbol that it refers to (its section's name for a section symbol).
        symbol: String,
        /// The kind of error.
        problem: RelocationProblem,
    },
    /// A map definition is wrong.
    #[error("map `{map}`: {problem}")]
    Map {
        /// Map name.
        map: String,
        /// The kind of error.
        problem: MapProblem,
    },
    /// A global variable cannot be set.
    #[error("global variable `{variable}`: {problem}")]
    Global {
        /// Variable name.
        variable: String,
        /// The kind of error.
        problem: GlobalProblem,
    },
    /// `.BTF` or `.BTF.ext` is malformed.
    #[error("section `{section}`, byte {offset:#x}: {problem}")]
    Btf {
        /// `.BTF` or `.BTF.ext`.
        section: &'static str,
        /// Byte offset in the section.
        offset: usize,
        /// The kind of error.
        problem: BtfProblem,
    },
    /// An instruction of a function does not decode.
    #[error("section `{section}`, function `{function}` (from slot {start}): {source}")]
    Decode {
        /// Section of the function.
        section: String,
        /// The function.
        function: String,
        /// The function's first slot in the section; `source` counts from it.
        start: u32,
        /// The instruction, relative to the function, and the reason.
        r#source: DecodeError,
    },
    /// A call or function address inside the object has no valid target.
    #[error("section `{section}`, function `{function}`, instruction {insn}: {problem}")]
    Call {
        /// Section of the calling function.
        section: String,
        /// The calling function.
        function: String,
        /// The instruction, counted from the function's first.
        insn: InsnIdx,
        /// The kind of error.
        problem: CallProblem,
    },
    /// The function that a program names as its exception callback (`btf_decl_tag("exception_callback:NAME")`) is
    /// unsuitable.
    #[error("program `{program}`, exception callback `{callback}`: {problem}")]
    ExceptionCallback {
        /// The program.
        program: String,
        /// The name.
        callback: String,
        /// The kind of error.
        problem: &'static str,
    },
    /// The object has no program with this name.
    #[error("no program `{name}` (the object has: {available})")]
    NoSuchProgram {
        /// The requested name.
        name: String,
        /// The existing names, comma separated.
        available: String,
    },
    /// The function with this name is not a program.
    #[error("`{}` in section `{}` is no program: {}", .function.name, .function.section, .function.reason)]
    LeftOut {
        /// The function.
        function: LeftOut,
    },
    /// The object has no map with this name.
    #[error("no map `{name}` (the object has: {available})")]
    NoSuchMap {
        /// The requested name.
        name: String,
        /// The existing names, comma separated.
        available: String,
    },
    /// A program with its subprograms exceeds the largest length of a program.
    #[error("program `{program}`: more than {max} instructions with its subprograms")]
    TooManyInsns {
        /// The program.
        program: String,
        /// The limit, [`bpf_isa::MAX_INSNS`].
        max: usize,
    },
    /// A program cannot be linked: an external object is missing.
    #[error("program `{program}`, instruction {insn}{}: {problem}", at(line))]
    Link {
        /// The program.
        program: String,
        /// The instruction of the linked program.
        insn: InsnIdx,
        /// Its source line, if the object has lines (`clang -g`).
        line: Option<Box<SourceLine<'static>>>,
        /// The missing object.
        problem: LinkProblem,
    },
    /// A bug of this crate; please report it.
    #[error("internal error in the object loader: {0}")]
    Internal(&'static str),
}

impl From<ElfError> for ObjectError {
    fn from(error: ElfError) -> ObjectError {
        ObjectError::Elf(error)
    }
}

/// The kinds of errors in the ELF container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// The first four bytes are not the ELF magic.
    #[error("no ELF header")]
    NoMagic,
    /// A 32-bit file.
    #[error("ELF class {0}, want ELFCLASS64 (2)")]
    Class(u8),
    /// A big-endian file.
    #[error("ELF data encoding {0}, want little endian (1): compile with -target bpfel")]
    Endian(u8),
    /// A file for another machine.
    #[error("ELF machine {0}, want EM_BPF (247)")]
    Machine(u16),
    /// Not a relocatable object.
    #[error("ELF type {0}, want ET_REL (1): pass the compiler's .o, not a linked file")]
    Type(u16),
    /// A header, table or section lies outside the file, or is inconsistent.
    #[error("malformed ELF: {0}")]
    Malformed(String),
    /// The sections together are longer than the file, so some overlap.
    #[error("sections overlap: they sum to {sum} bytes in a file of {file}")]
    SectionsOverlap {
        /// Sum of the sizes of all sections with contents.
        sum: u64,
        /// Size of the file.
        file: u64,
    },
    /// More global data than the loader accepts.
    #[error("{sum} bytes of global data, the limit is {max}")]
    TooMuchData {
        /// Sum of the sizes of the data sections.
        sum: u64,
        /// [`crate::MAX_GLOBAL_DATA`].
        max: u64,
    },
}

/// The kinds of errors in a section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SectionProblem {
    /// Code that is not a whole number of instructions.
    #[error("{0} bytes of code is not a multiple of 8")]
    CodeSize(u64),
    /// Code without a function symbol.
    #[error("code without any function symbol")]
    NoFunction,
    /// A section that has to be unique occurs twice.
    #[error("occurs twice")]
    Duplicate,
    /// The size does not match the contents.
    #[error("{got} bytes, want {want}")]
    Size {
        /// The size.
        got: u64,
        /// The required size.
        want: u64,
    },
    /// A string that is not UTF-8 or not terminated.
    #[error("not a NUL-terminated UTF-8 string")]
    NotText,
    /// SHT_RELA relocations, which no BPF compiler emits.
    #[error("relocations with addends (SHT_RELA) are not part of the BPF ABI")]
    Rela,
    /// The section requires BTF.
    #[error("needs BTF, and the object has no .BTF section: compile with -g")]
    NeedsBtf,
    /// Variables of an arena, in an object with no arena or several.
    #[error("holds variables of an arena, and the object has {0} arenas")]
    Arenas(usize),
    /// A legacy `maps` section whose size is not a multiple of its number of symbols.
    #[error("{size} bytes do not divide evenly into {symbols} map definitions of at least 20 bytes")]
    LegacyMaps {
        /// Section size.
        size: u64,
        /// Number of map symbols.
        symbols: usize,
    },
}

/// The kinds of errors in a symbol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolProblem {
    /// The symbol does not lie in its section.
    #[error("bytes {value:#x} to {end:#x} lie outside the section ({section_size:#x} bytes)")]
    OutOfSection {
        /// First byte.
        value: u64,
        /// One past the last byte (saturated).
        end: u64,
        /// Size of the section.
        section_size: u64,
    },
    /// A function that does not start and end at an instruction.
    #[error("function at byte {value:#x} of {size} bytes is not made of whole instructions")]
    Misaligned {
        /// First byte.
        value: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Two functions share instructions.
    #[error("overlaps `{0}`")]
    Overlap(String),
    /// Two programs have one name.
    #[error("a program of this name exists already")]
    Duplicate,
}

/// The kinds of errors in a relocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelocationProblem {
    /// A relocation type that is not allowed at this place.
    #[error("relocation type {0} is unknown here (known: 1 R_BPF_64_64, 2 ABS64, 3 ABS32, 4 NODYLD32, 10 R_BPF_64_32)")]
    UnknownType(u32),
    /// The symbol index is beyond the symbol table.
    #[error("there is no symbol {0}")]
    NoSymbol(u32),
    /// The relocation is outside of the section, or neither at an instruction nor at an entry of a jump table.
    #[error("not at an instruction of the section, or an entry of a jump table")]
    Offset,
    /// The instruction cannot be relocated by this type.
    #[error("the instruction there is neither a two-slot load (type 1) nor a call (type 10)")]
    Instruction,
    /// The symbol's value, or its sum with the addend, does not fit the 32-bit word.
    #[error("the symbol's value {0:#x} does not fit into the 32 bits of the word there")]
    Word(u64),
    /// Two relocations of one instruction or word.
    #[error("it is the second relocation of this place")]
    Duplicate,
    /// A call to something that is not a function.
    #[error("a call to something that is not a function")]
    CallTarget,
    /// The referenced address is not the start of a function.
    #[error("slot {0} of section `{1}` is not the start of a function")]
    NotAFunction(i64, String),
    /// The referenced address is not the start of a map.
    #[error("byte {0:#x} of section `{1}` is not the start of a map")]
    NotAMap(i64, String),
    /// The referenced address is not inside the global data.
    #[error("byte {0:#x} lies outside of section `{1}`")]
    OutOfData(i64, String),
    /// The symbol's section is not one that code can refer to.
    #[error("the symbol lies in section `{0}`, which holds no code, map or global data")]
    TargetSection(String),
    /// An offset into an external symbol, of which only the start has an address.
    #[error("byte {0} of an external symbol")]
    ExternAddend(i64),
    /// Absolute, common or other symbols without a section.
    #[error("the symbol has no section (index {0:#x})")]
    NoSection(u16),
    /// An offset that is not an element of the `values` of a map of maps or prog array.
    #[error("not an element of the `values` of a map of maps or prog array")]
    NotAnInitialValue,
    /// A jump table that is not a whole number of entries of its section.
    #[error("a jump table of {size} bytes here is no whole number of entries of eight bytes of the section")]
    TableExtent {
        /// The size of its symbol, in bytes.
        size: u64,
    },
    /// A jump table that shares entries with another one, or that another function uses.
    #[error("it has entries of the jump table `{0}`, of another function or extent")]
    TableShared(String),
    /// The address of a byte of a jump table that does not begin an entry.
    #[error("byte {0} of the jump table is no entry of it")]
    InsideTable(i64),
    /// An entry of a jump table that does not lead to an instruction of the function.
    #[error("the entry leads to byte {byte:#x} of section `{section}`, {why}")]
    JumpTarget {
        /// Byte in the section.
        byte: u64,
        /// The function's section.
        section: String,
        /// The position of that byte.
        why: &'static str,
    },
    /// An entry of a jump table that leads to another section than the function's.
    #[error("the entry leads out of section `{0}`, which has the function that jumps by the table")]
    OtherSection(String),
    /// An initial value of a prog array that is not a program.
    #[error("a prog array holds programs; `{0}` is not one")]
    NotAProgram(String),
}

/// The kinds of errors in a map definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapProblem {
    /// Two maps have one name.
    #[error("defined twice")]
    Duplicate,
    /// The variable in `.maps` is not a structure.
    #[error("its definition is not a struct")]
    NotAStruct,
    /// More fields than any definition can have.
    #[error("{0} fields in its definition")]
    TooManyFields(usize),
    /// A field that is not defined.
    #[error("unknown field `{0}` in its definition")]
    UnknownField(String),
    /// A field whose type does not encode a value.
    #[error("field `{0}` is not written with __uint, __ulong, __type or __array")]
    BadField(&'static str),
    /// `key` and `key_size` (or `value` and `value_size`) disagree.
    #[error("{field} is given as {first} and as {second} bytes")]
    Conflict {
        /// `key` or `value`.
        field: &'static str,
        /// The first size.
        first: u32,
        /// The second size.
        second: u32,
    },
    /// The definition has no map type.
    #[error("field `type` is missing")]
    NoType,
    /// `values` at a place where it is not allowed.
    #[error("`values` must be the last field, of a map of maps or a prog array, and not nested twice")]
    Values,
    /// A type without a size.
    #[error("the type of `{0}` has no size")]
    Unsized(&'static str),
    /// A legacy inner map index without a map.
    #[error("inner map {0} does not exist or is a map of maps itself")]
    Inner(u32),
    /// A legacy definition that is longer than all known dialects.
    #[error("a legacy definition of {0} bytes, of which those behind the known fields are not zero")]
    LegacySize(usize),
    /// A `struct_ops` variable that is outside its section, or overlaps the previous one.
    #[error("bytes {start} to {end} of its section are not there, or another variable's")]
    TablePlace {
        /// Its first byte.
        start: u64,
        /// The byte after its last.
        end: u64,
    },
    /// max_entries of a map that holds global data.
    #[error("it holds global data: its size is fixed at one entry")]
    FixedSize,
}

/// The reason why a global variable cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobalProblem {
    /// There is no variable with this name.
    #[error("no such variable in .data, .rodata or .bss")]
    Unknown,
    /// Several static variables share the name.
    #[error("several static variables have this name")]
    Ambiguous,
    /// The given bytes do not fill the variable exactly.
    #[error("{got} bytes given, it has {want}")]
    Size {
        /// Bytes given.
        got: usize,
        /// Size of the variable.
        want: usize,
    },
}

/// The kinds of errors in BTF.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BtfProblem {
    /// The section ends too early.
    #[error("truncated")]
    Truncated,
    /// The magic, the version or the header length is wrong.
    #[error("bad header: {0}")]
    Header(&'static str),
    /// An unknown kind of type.
    #[error("unknown type kind {0}")]
    Kind(u8),
    /// A reference to a type that does not exist.
    #[error("reference to type {0}, which does not exist")]
    TypeId(u32),
    /// A reference outside of the string section.
    #[error("reference to string {0:#x}, outside of the string section")]
    StringOffset(u32),
    /// A record size smaller than the record or not a multiple of four.
    #[error("record size {0}")]
    RecordSize(u32),
    /// An instruction offset that is not a multiple of eight.
    #[error("instruction offset {0:#x} is not a multiple of 8")]
    InsnOffset(u32),
    /// An unknown CO-RE relocation kind.
    #[error("unknown CO-RE relocation kind {0}")]
    CoreKind(u32),
    /// Records for a section the object does not have.
    #[error("records for section `{0}`, which does not exist")]
    NoSection(String),
}

/// The kinds of errors in a call inside the object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallProblem {
    /// The call leads outside of its section.
    #[error("leads to slot {0}, outside of its section")]
    OutOfSection(i64),
    /// The call leads into the middle of a function, or between functions.
    #[error("leads to slot {0} of its section, which is not the start of a function")]
    NotAFunction(i64),
}

/// The reasons why a program cannot be linked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkProblem {
    /// A host function that is not registered.
    #[error("host function `{0}` is not registered with the linker (declare it __weak if it is optional)")]
    NoHostFunction(String),
    /// An external variable, which user space does not have.
    #[error("external variable `{name}` ({section}) cannot be resolved: declare it __weak, or remove the reference")]
    Extern {
        /// The variable's name.
        name: String,
        /// `.ksyms`, `.kconfig`, or a description if the variable is in neither.
        section: String,
    },
    /// A CO-RE relocation that cannot be resolved.
    #[error("CO-RE relocation ({kind}) of `{type_name}{}{field}`: {why}", if .field.is_empty() { "" } else { "::" })]
    Core {
        /// Relocation kind, as BTF names it.
        kind: &'static str,
        /// Root type.
        type_name: String,
        /// The field or enumerator; empty if the relocation concerns the type.
        field: String,
        /// The reason.
        why: &'static str,
    },
    /// Global data that contains addresses.
    #[error("{0}")]
    PointerInData(Box<PointerInData>),
}

/// A pointer in global data, and the place where a program needs its section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}section `{section}` contains the address of `{symbol}` (byte {offset:#x}): pointers in global data are not \
     supported; {}take the address where it is needed",
    .variable.as_ref().map(|variable| format!("variable `{variable}` in ")).unwrap_or_default(),
    .line.as_ref().map(|line| format!("{line} uses the section: ")).unwrap_or_default()
)]
pub struct PointerInData {
    /// The data section.
    pub section: String,
    /// The variable that holds the pointer, if the symbol table names it.
    pub variable: Option<String>,
    /// File and line of the program's use of the section, if the object has line information.
    pub line: Option<String>,
    /// Offset of the pointer.
    pub offset: u64,
    /// The symbol that it points to.
    pub symbol: String,
}

/// A function that is not a program although nothing in the object calls it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The section of the function.
    pub section: String,
    /// The reason why it is not a program.
    pub reason: LeftOutReason,
}

/// The reason why a static function is not a program. Its text says what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftOutReason {
    /// Its section names no type of program.
    #[error(
        "it is static, and its section names no type of program (make the function global, or name the section after a type)"
    )]
    UnknownSection,
    /// Another function has its name, so the name is ambiguous.
    #[error("it is static, and another function has its name (rename one of them, or make one global)")]
    SharedName,
}

fn at(line: &Option<Box<SourceLine<'static>>>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!(", {line}"))
}
