//! The ELF container, reduced to the parts that a BPF object needs.
//!
//! Problem: the file is hostile input, and its tables can alias each other, so that work or memory grows with the
//! product of two of its sizes. Approach: read headers with the `object` crate, then check once that the sections
//! with contents do not add up to more than the file. After that, work that is linear in the sections is linear in
//! the file. Names are looked up in the raw string tables and have at most [`MAX_NAME`] bytes, because in a table
//! without NULs every look-up would scan the whole file.
//!
//! Invariants: borrowed from the input, no copies; a [`Section`]'s `data` is empty for NOBITS; `symbols_of` lists
//! every symbol of a section exactly once, in address order.

use std::borrow::Cow;
use std::ops::Range;

use object::LittleEndian as LE;
use object::U32;
use object::elf::{self, FileHeader64, Rel64, SectionHeader64, Sym64};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::error::{ElfError, ObjectError, RelocationProblem, SectionProblem, SymbolProblem};
use crate::text;

/// Longest name of a section or symbol, in bytes. Long enough for mangled names, and short enough to keep work
/// linear.
pub(crate) const MAX_NAME: usize = 1024;

/// The section of jump tables.
pub(crate) const JUMP_TABLES: &str = ".jumptables";

/// The first reserved section index (System V ABI, chapter 4).
const SHN_LORESERVE: u16 = 0xff00;
/// The value that says that the index is in SHT_SYMTAB_SHNDX.
const SHN_XINDEX: u16 = 0xffff;

/// R_BPF_64_ABS64: a relocated 64-bit word of data.
pub(crate) const R_ABS64: u32 = 2;

/// A section header with its contents.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) data: &'a [u8],
    /// Size in memory; equals `data.len()` if the section has contents.
    pub(crate) size: u64,
    pub(crate) code: bool,
    pub(crate) nobits: bool,
    pub(crate) progbits: bool,
    /// The relocation tables that apply to this section.
    rels: Vec<&'a [Rel64<LE>]>,
}

/// Where a symbol is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not in this object.
    Undefined,
    /// In the section with this index.
    Section(usize),
    /// Absolute, common, or another reserved index.
    Special(u16),
}

/// The kind of object that a symbol names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SymbolType {
    Section,
    Function,
    Object,
    /// Labels, files, thread-local data, and all others.
    Other,
}

/// Linkage of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    Local,
    Global,
    Weak,
}

/// A symbol.
#[derive(Debug)]
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) place: Place,
    pub(crate) ty: SymbolType,
    pub(crate) binding: Binding,
}

/// A relocation entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rel {
    pub(crate) offset: u64,
    pub(crate) symbol: u32,
    pub(crate) ty: u32,
}

/// The object's sections and symbols.
#[derive(Debug)]
pub(crate) struct Elf<'a> {
    pub(crate) sections: Vec<Section<'a>>,
    pub(crate) symbols: Vec<Symbol<'a>>,
    by_section: Vec<Vec<u32>>,
    /// Whether relocated words and immediates already contain the symbol's value, as written by GNU's assembler.
    pub(crate) values_in_place: bool,
}

fn malformed(error: object::read::Error) -> ObjectError {
    ElfError::Malformed(error.to_string()).into()
}

/// The string at `offset`: UTF-8, NUL-terminated, at most [`MAX_NAME`] bytes.
fn string(table: &[u8], offset: u32) -> Option<&str> {
    let tail = table.get(offset as usize..)?;
    let window = &tail[..tail.len().min(MAX_NAME + 1)];
    let len = window.iter().position(|&b| b == 0)?;
    std::str::from_utf8(&window[..len]).ok()
}

/// The file with its names cleaned ([`text`]), which changes only files of malicious authors. A file that cannot be
/// read is returned unchanged, for [`Elf::parse`] to refuse.
pub(crate) fn cleaned(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut cleaned = Cow::Borrowed(bytes);
    for table in name_tables(bytes).into_iter().flatten().filter(|table| !text::is_clean(&bytes[table.clone()])) {
        text::clean(&mut cleaned.to_mut()[table]);
    }
    cleaned
}

/// The ranges of the name tables of sections and symbols in the file.
fn name_tables(bytes: &[u8]) -> Option<[Range<usize>; 2]> {
    let header = parse_header(bytes).ok()?;
    let headers = header.section_headers(LE, bytes).ok()?;
    let sections = header.shstrndx(LE, bytes).ok()?;
    let symbols = headers.iter().find(|s| s.sh_type(LE) == elf::SHT_SYMTAB).map_or(0, |s| s.sh_link(LE));
    let range = |index: u32| {
        let (start, len) = headers.get(index as usize)?.file_range(LE)?;
        let (start, end) = (usize::try_from(start).ok()?, usize::try_from(start.checked_add(len)?).ok()?);
        bytes.get(start..end).map(|_| start..end)
    };
    Some([sections, symbols].map(|index| range(index).unwrap_or_default()))
}

impl<'a> Elf<'a> {
    /// Reads the headers, symbols and relocation tables of a BPF relocatable.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ObjectError> {
        let header = parse_header(bytes)?;
        let headers = header.section_headers(LE, bytes).map_err(malformed)?;
        check_no_overlap(headers, bytes)?;
        let names = match header.shstrndx(LE, bytes).map_err(malformed)? {
            0 => &[][..],
            index => contents(headers, index as usize, bytes)?,
        };

        let mut sections = Vec::with_capacity(headers.len());
        for (index, section) in headers.iter().enumerate() {
            let ty = section.sh_type(LE);
            let name = if ty == elf::SHT_NULL {
                ""
            } else {
                string(names, section.sh_name(LE)).ok_or_else(|| ObjectError::Section {
                    section: format!("#{index}"),
                    problem: SectionProblem::NotText,
                })?
            };
            let nobits = ty == elf::SHT_NOBITS;
            sections.push(Section {
                name,
                data: section.data(LE, bytes).map_err(malformed)?,
                size: section.sh_size(LE),
                code: ty == elf::SHT_PROGBITS && section.sh_flags(LE).contains(elf::SHF_EXECINSTR),
                nobits,
                progbits: ty == elf::SHT_PROGBITS,
                rels: Vec::new(),
            });
        }

        let mut symtab = None;
        for (index, section) in headers.iter().enumerate() {
            let ty = section.sh_type(LE);
            let target = section.sh_info(LE) as usize;
            if ty == elf::SHT_SYMTAB {
                if symtab.replace(section).is_some() {
                    let section = sections[index].name.to_owned();
                    return Err(ObjectError::Section { section, problem: SectionProblem::Duplicate });
                }
            } else if ty == elf::SHT_REL {
                let (rels, _) = section
                    .rel(LE, bytes)
                    .map_err(malformed)?
                    .ok_or(ObjectError::Internal("an SHT_REL section that is none"))?;
                match sections.get_mut(target) {
                    Some(section) => section.rels.push(rels),
                    None => return Err(ElfError::Malformed(format!("relocations for section #{target}")).into()),
                }
            } else if ty == elf::SHT_RELA && sections.get(target).is_some_and(|s| s.code || s.name == JUMP_TABLES) {
                let section = sections[index].name.to_owned();
                return Err(ObjectError::Section { section, problem: SectionProblem::Rela });
            }
        }

        let mut symbols = Vec::new();
        if let Some(symtab) = symtab {
            let table: &[Sym64<LE>] = symtab.data_as_array(LE, bytes).map_err(malformed)?;
            let strings = contents(headers, symtab.sh_link(LE) as usize, bytes)?;
            let indices = section_indices(headers, symtab, bytes)?;
            symbols.reserve_exact(table.len());
            for (index, sym) in table.iter().enumerate() {
                let section = match sym.st_shndx(LE).0 {
                    SHN_XINDEX => indices.get(index).map(|index| index.get(LE)),
                    section => Some(section.into()),
                };
                symbols.push(parse_symbol(index, sym, section, strings, sections.len())?);
            }
        }
        let from_gnu = |section: &Section<'_>| {
            section.name == ".comment" && section.data.split(|byte| *byte == 0).any(|text| text.starts_with(b"GCC: "))
        };
        let values_in_place = sections.iter().any(from_gnu);
        let mut elf = Elf { by_section: vec![Vec::new(); sections.len()], sections, symbols, values_in_place };
        for (index, symbol) in elf.symbols.iter().enumerate() {
            if let Place::Section(section) = symbol.place {
                // Relocations have 32 bits for a symbol's index.
                let index = u32::try_from(index).map_err(|_| ElfError::Malformed("too many symbols".to_owned()))?;
                elf.by_section[section].push(index);
            }
        }
        for list in &mut elf.by_section {
            list.sort_by_key(|&i| elf.symbols[i as usize].value);
        }
        Ok(elf)
    }

    /// The symbols defined in a section, in address order.
    pub(crate) fn symbols_of(&self, section: usize) -> impl Iterator<Item = &Symbol<'a>> {
        self.by_section[section].iter().map(|&i| &self.symbols[i as usize])
    }

    /// The relocations that apply to a section, in file order.
    pub(crate) fn relocations_of(&self, section: usize) -> impl Iterator<Item = Rel> + '_ {
        self.sections[section].rels.iter().flat_map(|rels| rels.iter()).map(|rel| Rel {
            offset: rel.r_offset.get(LE),
            symbol: rel.r_sym(LE),
            ty: rel.r_type(LE).0,
        })
    }

    /// The symbol that a relocation of `section` refers to.
    pub(crate) fn relocation_symbol(&self, section: usize, rel: Rel) -> Result<&Symbol<'a>, ObjectError> {
        self.symbols.get(rel.symbol as usize).ok_or_else(|| ObjectError::Relocation {
            section: self.sections[section].name.to_owned(),
            offset: rel.offset,
            symbol: format!("#{}", rel.symbol),
            problem: RelocationProblem::NoSymbol(rel.symbol),
        })
    }

    /// The addend at a relocated place that holds `held`.
    pub(crate) fn addend(&self, symbol: &Symbol<'a>, held: u64) -> u64 {
        if self.values_in_place { held.wrapping_sub(symbol.value) } else { held }
    }

    /// A name for messages: the symbol's, or its section's if it has none.
    pub(crate) fn display_name(&self, symbol: &Symbol<'a>) -> &'a str {
        match symbol.place {
            Place::Section(section) if symbol.name.is_empty() => self.sections[section].name,
            Place::Section(_) | Place::Undefined | Place::Special(_) => symbol.name,
        }
    }

    /// The only section of this name.
    pub(crate) fn section_named(&self, name: &str) -> Result<Option<usize>, ObjectError> {
        let mut found = self.sections.iter().enumerate().filter(|(_, s)| s.name == name).map(|(i, _)| i);
        let first = found.next();
        if found.next().is_some() {
            return Err(ObjectError::Section { section: name.to_owned(), problem: SectionProblem::Duplicate });
        }
        Ok(first)
    }

    /// Fails unless the symbol lies inside its section.
    pub(crate) fn check_extent(&self, section: usize, symbol: &Symbol<'a>) -> Result<(), ObjectError> {
        let section_size = self.sections[section].size;
        let end = symbol.value.saturating_add(symbol.size);
        if end <= section_size {
            return Ok(());
        }
        Err(ObjectError::Symbol {
            symbol: self.display_name(symbol).to_owned(),
            section: self.sections[section].name.to_owned(),
            problem: SymbolProblem::OutOfSection { value: symbol.value, end, section_size },
        })
    }
}

/// Bytes of a section header, and the offsets of its fields (System V ABI, chapter 4).
const SECTION_HEADER: usize = 64;
const SH_NAME: usize = 0x00;
const SH_TYPE: usize = 0x04;
const SH_OFFSET: usize = 0x18;
const SH_SIZE: usize = 0x20;
const SH_ADDRALIGN: usize = 0x30;
/// Offsets of the fields in the file header that hold the place and number of the section headers.
const E_SHOFF: usize = 0x28;
const E_SHNUM: usize = 0x3c;

/// Returns the file with a section of this name and contents, appended at the end. The section is not loaded, so
/// programs do not see it.
pub(crate) fn with_section(bytes: &[u8], name: &str, contents: &[u8]) -> Result<Vec<u8>, ObjectError> {
    let broken = |what: &str| ObjectError::from(ElfError::Malformed(what.to_owned()));
    let header = parse_header(bytes)?;
    let headers = header.section_headers(LE, bytes).map_err(malformed)?;
    let names = header.shstrndx(LE, bytes).map_err(malformed)? as usize;
    let strings = self::contents(headers, names, bytes)?;
    let found = headers.iter().position(|section| string(strings, section.sh_name(LE)) == Some(name));
    let mut table = object::pod::bytes_of_slice(headers).to_vec();
    let mut file = bytes.to_vec();
    let append = |file: &mut Vec<u8>, part: &[u8]| {
        file.resize(file.len().next_multiple_of(8), 0);
        let start = file.len() as u64;
        file.extend_from_slice(part);
        start
    };
    let set = |table: &mut Vec<u8>, index: usize, field: usize, value: &[u8]| {
        let at = index * SECTION_HEADER + field;
        let place = table.get_mut(at..at + value.len()).ok_or_else(|| broken("no such section"))?;
        place.copy_from_slice(value);
        Ok::<(), ObjectError>(())
    };
    let index = match found {
        Some(index) => index,
        None => {
            let name_at = u32::try_from(strings.len()).map_err(|_| broken("names of sections beyond 4 GiB"))?;
            let strings = [strings, name.as_bytes(), b"\0"].concat();
            let start = append(&mut file, &strings);
            set(&mut table, names, SH_OFFSET, &start.to_le_bytes())?;
            set(&mut table, names, SH_SIZE, &(strings.len() as u64).to_le_bytes())?;
            let index = table.len() / SECTION_HEADER;
            table.extend_from_slice(&[0; SECTION_HEADER]);
            set(&mut table, index, SH_NAME, &name_at.to_le_bytes())?;
            set(&mut table, index, SH_TYPE, &elf::SHT_PROGBITS.0.to_le_bytes())?;
            set(&mut table, index, SH_ADDRALIGN, &1u64.to_le_bytes())?;
            index
        }
    };
    let start = append(&mut file, contents);
    set(&mut table, index, SH_OFFSET, &start.to_le_bytes())?;
    set(&mut table, index, SH_SIZE, &(contents.len() as u64).to_le_bytes())?;
    let start = append(&mut file, &table);
    let count = u16::try_from(table.len() / SECTION_HEADER).ok().filter(|count| *count < SHN_LORESERVE);
    let count = count.ok_or_else(|| broken("no room for another section"))?;
    for (at, value) in [(E_SHOFF, &start.to_le_bytes()[..]), (E_SHNUM, &count.to_le_bytes())] {
        file.get_mut(at..at + value.len()).ok_or_else(|| broken("no header"))?.copy_from_slice(value);
    }
    Ok(file)
}

fn parse_header(bytes: &[u8]) -> Result<&FileHeader64<LE>, ObjectError> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(ElfError::NoMagic.into());
    }
    // e_ident: class at byte 4, data encoding at byte 5 (System V ABI, chapter 4).
    match bytes.get(4) {
        Some(2) => {}
        class => return Err(ElfError::Class(class.copied().unwrap_or(0)).into()),
    }
    match bytes.get(5) {
        Some(1) => {}
        encoding => return Err(ElfError::Endian(encoding.copied().unwrap_or(0)).into()),
    }
    let header = FileHeader64::<LE>::parse(bytes).map_err(malformed)?;
    let machine = header.e_machine(LE);
    if machine != elf::EM_BPF {
        return Err(ElfError::Machine(machine.0).into());
    }
    let ty = header.e_type(LE);
    if ty != elf::ET_REL {
        return Err(ElfError::Type(ty.0).into());
    }
    Ok(header)
}

/// Keeps all later work linear in the file: see the file comment.
fn check_no_overlap(headers: &[SectionHeader64<LE>], bytes: &[u8]) -> Result<(), ObjectError> {
    let file = bytes.len() as u64;
    let sum = headers
        .iter()
        .filter(|s| s.sh_type(LE) != elf::SHT_NOBITS && s.sh_type(LE) != elf::SHT_NULL)
        .fold(0u64, |sum, s| sum.saturating_add(s.sh_size(LE)));
    if sum > file { Err(ElfError::SectionsOverlap { sum, file }.into()) } else { Ok(()) }
}

fn contents<'a>(headers: &[SectionHeader64<LE>], index: usize, bytes: &'a [u8]) -> Result<&'a [u8], ObjectError> {
    let section = headers.get(index).ok_or_else(|| ElfError::Malformed(format!("string table #{index}")))?;
    section.data(LE, bytes).map_err(malformed)
}

/// The section indices of symbols that do not fit the symbols' own 16 bits: SHT_SYMTAB_SHNDX, one word per symbol.
/// Empty if the file has no such table.
fn section_indices<'a>(
    headers: &[SectionHeader64<LE>],
    symtab: &SectionHeader64<LE>,
    bytes: &'a [u8],
) -> Result<&'a [U32<LE>], ObjectError> {
    let is_symtab = |link: u32| headers.get(link as usize).is_some_and(|header| std::ptr::eq(header, symtab));
    let mut tables = headers.iter().filter(|s| s.sh_type(LE) == elf::SHT_SYMTAB_SHNDX && is_symtab(s.sh_link(LE)));
    match tables.next() {
        Some(table) => table.data_as_array(LE, bytes).map_err(malformed),
        None => Ok(&[]),
    }
}

/// Parses a symbol. `section` is the index of its section, or a reserved one.
fn parse_symbol<'a>(
    index: usize,
    sym: &Sym64<LE>,
    section: Option<u32>,
    strings: &'a [u8],
    sections: usize,
) -> Result<Symbol<'a>, ObjectError> {
    let bad = |what: &str| ObjectError::from(ElfError::Malformed(format!("symbol #{index}: {what}")));
    let name = match sym.st_name(LE) {
        0 => "",
        offset => string(strings, offset).ok_or_else(|| bad("name"))?,
    };
    let section = section.ok_or_else(|| bad("no entry in the table of section indices"))?;
    let place = match (sym.st_shndx(LE).0, usize::try_from(section)) {
        // SHN_UNDEF.
        (0, _) => Place::Undefined,
        (reserved @ SHN_LORESERVE.., _) if reserved != SHN_XINDEX => Place::Special(reserved),
        (_, Ok(index)) if index < sections => Place::Section(index),
        _ => return Err(bad("section index out of range")),
    };
    let ty = match sym.st_type() {
        elf::STT_SECTION => SymbolType::Section,
        elf::STT_FUNC => SymbolType::Function,
        elf::STT_OBJECT => SymbolType::Object,
        _ => SymbolType::Other,
    };
    let binding = match sym.st_bind() {
        elf::STB_GLOBAL => Binding::Global,
        elf::STB_WEAK => Binding::Weak,
        _ => Binding::Local,
    };
    Ok(Symbol { name, value: sym.st_value(LE), size: sym.st_size(LE), place, ty, binding })
}
