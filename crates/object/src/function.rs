//! The functions of an object: names, places, and instructions before linking.
//!
//! Code sections are cut at function symbols. Two functions may not share an instruction, except that a symbol may be
//! another name of a function: then the body exists once. A function that does not decode is an error only for the
//! programs that reach it, so one bad function leaves the others usable.
//!
//! Invariants: [`Functions::list`] is sorted by section and start, without overlaps, so looking up the function at a
//! slot is a binary search, and all bodies together are no longer than the file's code.

use bpf_isa::{DecodeError, Insn};

use crate::btf::{Btf, CoreRecord, LineRecord, TypeId};
use crate::elf::{Binding, Elf, Symbol, SymbolType};
use crate::error::{ObjectError, SectionProblem, SymbolProblem};

/// Bytes of a slot.
pub(crate) const SLOT: u64 = 8;

/// Index into [`Functions::list`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FunctionId(pub(crate) usize);

/// The object that a relocated instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A function of the object, called or its address taken.
    Function(FunctionId),
    /// A map, by index into the object's maps.
    Map(usize),
    /// A byte of global data.
    MapValue { map: usize, off: u32 },
    /// A byte of a jump table, by index into the object's jump tables.
    Table { table: usize, off: u32 },
    /// A call of a host function, by index into the object's host functions.
    HostCall(usize),
    /// A test whether a host function exists.
    HostAddress(usize),
    /// An external variable without a value, by index into the object's externs.
    Extern(usize),
}

/// A name of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    /// Whether the name is global or weak, so that the function can be a program.
    pub(crate) exported: bool,
}

/// A function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The function's names, at least one.
    pub(crate) names: Vec<Name>,
    pub(crate) section: usize,
    /// First slot in the section.
    pub(crate) start: u32,
    /// Length in slots.
    pub(crate) len: u32,
    pub(crate) body: Result<Vec<Insn>, DecodeError>,
    /// Relocated instructions: `(slot in the function, target)`, sorted, at most one a slot.
    pub(crate) refs: Vec<(u32, Target)>,
    /// Its BTF function.
    pub(crate) ty: Option<TypeId>,
    /// Slots in the function, sorted.
    pub(crate) lines: Vec<LineRecord>,
    /// Slots in the function, sorted.
    pub(crate) core: Vec<CoreRecord>,
}

impl Function {
    /// The name for messages.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", |n| &n.name)
    }
}

/// All functions of an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    pub(crate) list: Vec<Function>,
}

impl Functions {
    /// Finds and decodes the functions of all code sections.
    pub(crate) fn parse(elf: &Elf<'_>, btf: Option<&Btf>) -> Result<Functions, ObjectError> {
        let mut list = Vec::new();
        for (index, section) in elf.sections.iter().enumerate().filter(|(_, s)| s.code) {
            if section.size % SLOT != 0 {
                let problem = SectionProblem::CodeSize(section.size);
                return Err(ObjectError::Section { section: section.name.to_owned(), problem });
            }
            let before = list.len();
            parse_section(elf, index, &mut list)?;
            if section.size != 0 && list.len() == before {
                let problem = SectionProblem::NoFunction;
                return Err(ObjectError::Section { section: section.name.to_owned(), problem });
            }
        }
        let mut functions = Functions { list };
        if let Some(btf) = btf {
            functions.name_types(btf);
        }
        Ok(functions)
    }

    /// The function that contains a slot, and the slot's index in the function.
    pub(crate) fn at(&self, section: usize, slot: i64) -> Option<(FunctionId, u32)> {
        let slot = u32::try_from(slot).ok()?;
        let after = self.list.partition_point(|f| (f.section, f.start) <= (section, slot));
        let id = after.checked_sub(1)?;
        let function = self.list.get(id)?;
        let inside = slot.checked_sub(function.start).filter(|&i| function.section == section && i < function.len)?;
        Some((FunctionId(id), inside))
    }

    /// The function that starts at a slot.
    pub(crate) fn starting_at(&self, section: usize, slot: i64) -> Option<FunctionId> {
        self.at(section, slot).and_then(|(id, inside)| (inside == 0).then_some(id))
    }

    /// The function with this name.
    pub(crate) fn named(&self, name: &str) -> Option<FunctionId> {
        self.list.iter().position(|f| f.names.iter().any(|n| n.name == name)).map(FunctionId)
    }

    pub(crate) fn get(&self, id: FunctionId) -> Result<&Function, ObjectError> {
        self.list.get(id.0).ok_or(ObjectError::Internal("a function that does not exist"))
    }

    /// Finds the BTF types of functions without func_info (assembler, old compilers) by name, if it is unique.
    fn name_types(&mut self, btf: &Btf) {
        let mut by_name = std::collections::HashMap::new();
        for (id, ty) in btf.types() {
            if let crate::btf::Type::Func { .. } = ty {
                by_name.entry(btf.type_name(id)).and_modify(|t| *t = None).or_insert(Some(id));
            }
        }
        for function in &mut self.list {
            function.ty = by_name.get(function.name()).copied().flatten();
        }
    }
}

/// Whether a symbol of a code section names a function: all typed ones, and exported labels, which assembly without
/// `.type` directives produces.
fn is_function(symbol: &Symbol<'_>) -> bool {
    match symbol.ty {
        SymbolType::Function => true,
        SymbolType::Other => symbol.binding != Binding::Local && !symbol.name.is_empty(),
        SymbolType::Section | SymbolType::Object => false,
    }
}

fn parse_section(elf: &Elf<'_>, index: usize, list: &mut Vec<Function>) -> Result<(), ObjectError> {
    let section = &elf.sections[index];
    let symbols: Vec<&Symbol<'_>> = elf.symbols_of(index).filter(|s| is_function(s)).collect();
    // An untyped label has no size: it extends to the next function that starts after it, or to the section's end.
    let mut ends = vec![section.size; symbols.len()];
    for i in (1..symbols.len()).rev() {
        let (here, next) = (symbols[i - 1].value, symbols[i].value);
        ends[i - 1] = if next > here { next } else { ends[i] };
    }
    let first = list.len();
    for (symbol, label_end) in symbols.into_iter().zip(ends) {
        let fail =
            |problem| ObjectError::Symbol { symbol: symbol.name.to_owned(), section: section.name.to_owned(), problem };
        elf.check_extent(index, symbol)?;
        let size = if symbol.size == 0 { label_end.min(section.size) - symbol.value } else { symbol.size };
        let end = symbol.value + size;
        if symbol.value % SLOT != 0 || size % SLOT != 0 {
            return Err(fail(SymbolProblem::Misaligned { value: symbol.value, size }));
        }
        if size == 0 {
            let problem = SymbolProblem::OutOfSection { value: symbol.value, end, section_size: section.size };
            return Err(fail(problem));
        }
        // Fits: a slot takes eight bytes of the section's contents, and files do not reach 32 GiB in memory.
        let slot =
            |byte: u64| u32::try_from(byte / SLOT).map_err(|_| fail(SymbolProblem::Misaligned { value: byte, size }));
        let (start, len) = (slot(symbol.value)?, slot(size)?);
        let name = Name { name: symbol.name.to_owned(), exported: symbol.binding != Binding::Local };
        if let Some(previous) = list[first..].last_mut() {
            if (previous.start, previous.len) == (start, len) {
                previous.names.push(name);
                continue;
            }
            if previous.start + previous.len > start {
                return Err(fail(SymbolProblem::Overlap(previous.name().to_owned())));
            }
        }
        let range = usize::try_from(symbol.value).ok().zip(usize::try_from(end).ok());
        let code = range.and_then(|(start, end)| section.data.get(start..end));
        let code = code.ok_or(ObjectError::Internal("a function outside of its section"))?;
        list.push(Function {
            names: vec![name],
            section: index,
            start,
            len,
            body: bpf_isa::decode(code),
            refs: Vec::new(),
            ty: None,
            lines: Vec::new(),
            core: Vec::new(),
        });
    }
    Ok(())
}
