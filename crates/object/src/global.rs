//! Global data: `.data*`, `.rodata*` and `.bss*` as maps of one value.
//!
//! A section becomes an array map of one element; a load of a variable's address becomes "value of that map plus an
//! offset". Variables come from the symbol table, which has the static ones too; their types come from BTF. Variables
//! of an arena (`.addr_space.1`) lie at its start, and their section belongs to that map.

use std::collections::HashMap;

use crate::btf::{Btf, SectionVar, TypeId};
use crate::elf::{Elf, SymbolType};
use crate::error::{ElfError, ObjectError, SectionProblem};
use bpf_uapi::{MapType, flags};

use crate::map::{DataKind, GlobalData, MapDecl, Place, Variable};

/// Largest size of the global data of one object, in bytes. A limit of this crate: a `.bss` costs its file nothing,
/// but costs memory.
pub const MAX_GLOBAL_DATA: u64 = 64 << 20;

/// The section in which compilers put variables of address space 1.
const ARENA_SECTION: &str = ".addr_space.1";

/// The kind of global data in a section, if any.
pub(crate) fn data_kind(name: &str, nobits: bool) -> Option<DataKind> {
    let is = |base: &str| name.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match (nobits, is(".data"), is(".rodata"), is(".bss")) {
        (false, true, _, _) => Some(DataKind::Data),
        (false, _, true, _) => Some(DataKind::Rodata),
        (true, _, _, true) => Some(DataKind::Bss),
        _ => None,
    }
}

/// An array map of one value, with these contents.
pub(crate) fn data_map(section: &str, data: GlobalData, value_size: u32) -> MapDecl {
    let mut map = MapDecl::new(section.to_owned(), section);
    map.map_type = MapType::Array.into();
    map.key_size = 4;
    map.value_size = value_size;
    map.max_entries = 1;
    map.flags = match data.kind {
        DataKind::Rodata | DataKind::Kconfig => flags::create::RDONLY_PROG,
        DataKind::Data | DataKind::Bss | DataKind::Arena => 0,
    };
    map.data = Some(data);
    map
}

/// Adds the non-empty data sections as maps, in section order; variables of an arena are added to its map.
pub(crate) fn parse(
    elf: &Elf<'_>,
    btf: Option<&Btf>,
    datasecs: &HashMap<&str, &[SectionVar]>,
    maps: &mut Vec<MapDecl>,
) -> Result<(), ObjectError> {
    let mut sum: u64 = 0;
    let mut parsed = Vec::new();
    for (index, section) in elf.sections.iter().enumerate() {
        let progbits = section.progbits && !section.code;
        let kind = match section.name {
            ARENA_SECTION => Some(DataKind::Arena),
            name => data_kind(name, section.nobits),
        };
        let Some(kind) = kind.filter(|_| progbits || section.nobits) else { continue };
        if section.size == 0 {
            continue;
        }
        sum = sum.saturating_add(section.size);
        let value_size = u32::try_from(section.size).ok().filter(|_| sum <= MAX_GLOBAL_DATA);
        let value_size = value_size.ok_or(ElfError::TooMuchData { sum, max: MAX_GLOBAL_DATA })?;
        let bytes = if section.nobits { vec![0; value_size as usize] } else { section.data.to_vec() };
        let pointer = match elf.relocations_of(index).next() {
            Some(rel) => Some((rel.offset, elf.display_name(elf.relocation_symbol(index, rel)?).to_owned())),
            None => None,
        };
        let types = variable_types(btf, datasecs.get(section.name).copied().unwrap_or(&[]));
        let variables = variables(elf, index, &types)?;
        let data = GlobalData { kind, bytes, variables, pointer };
        if kind == DataKind::Arena {
            put_into_arena(maps, index, section.name, data)?;
            continue;
        }
        let mut map = data_map(section.name, data, value_size);
        map.place = Place { section: index, end: section.size, ..Place::default() };
        parsed.push(map);
    }
    maps.append(&mut parsed);
    Ok(())
}

/// Puts the variables at the start of the object's only arena.
fn put_into_arena(maps: &mut [MapDecl], index: usize, section: &str, data: GlobalData) -> Result<(), ObjectError> {
    let arenas = maps.iter().filter(|map| map.map_type == MapType::Arena).count();
    let mut unused = maps.iter_mut().filter(|map| map.map_type == MapType::Arena && map.data.is_none());
    match (unused.next(), arenas) {
        (Some(map), 1) => {
            map.data = Some(data);
            map.place.variables = index;
            Ok(())
        }
        (Some(_), _) | (None, 0) => {
            Err(ObjectError::Section { section: section.to_owned(), problem: SectionProblem::Arenas(arenas) })
        }
        (None, _) => Err(ObjectError::Section { section: section.to_owned(), problem: SectionProblem::Duplicate }),
    }
}

type VariableTypes<'a> = HashMap<(&'a str, u32), TypeId>;

fn variable_types<'a>(btf: Option<&'a Btf>, vars: &[SectionVar]) -> VariableTypes<'a> {
    btf.map(|btf| vars.iter().map(|var| ((btf.type_name(var.ty), var.offset), var.ty)).collect()).unwrap_or_default()
}

fn variables(elf: &Elf<'_>, section: usize, types: &VariableTypes<'_>) -> Result<Vec<Variable>, ObjectError> {
    let symbols = elf.symbols_of(section).filter(|s| s.ty == SymbolType::Object && !s.name.is_empty());
    symbols
        .map(|symbol| {
            elf.check_extent(section, symbol)?;
            let fits =
                |number| u32::try_from(number).map_err(|_| ObjectError::Internal("a variable outside of its section"));
            let (offset, size) = (fits(symbol.value)?, fits(symbol.size)?);
            let ty = types.get(&(symbol.name, offset)).copied();
            Ok(Variable { name: symbol.name.to_owned(), offset, size, ty })
        })
        .collect()
}
