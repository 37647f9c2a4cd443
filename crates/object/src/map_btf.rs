//! Maps defined in `.maps` by the type of a variable.
//!
//! The conventions (libbpf's `__uint`, `__type`, `__array`, `__ulong`) encode numbers in types: `int (*name)[N]` is
//! the number N, `T *name` the type T, `T *name[]` initial values, and an enumeration of one value a 64-bit number.
//! The variable's bytes contain only relocations: the initial values of maps of maps and prog arrays.

use std::collections::{HashMap, HashSet};

use crate::btf::{Btf, Linkage, Member, SectionVar, Type, TypeId};
use crate::elf::Elf;
use crate::error::{MapProblem, ObjectError};
use crate::map::{MapDecl, MapTypeNumber, Pinning, Place};
use bpf_uapi::MapType;

/// Largest number of fields, above the number of defined names. Without a limit, many variables of one huge type
/// would take quadratic work.
const MAX_FIELDS: usize = 32;

/// The maps of `.maps`, in BTF order.
pub(crate) fn parse(
    elf: &Elf<'_>,
    section: usize,
    btf: &Btf,
    vars: &[SectionVar],
) -> Result<Vec<MapDecl>, ObjectError> {
    let sizes: HashMap<&str, (u64, u64)> =
        elf.symbols_of(section).filter(|s| !s.name.is_empty()).map(|s| (s.name, (s.value, s.size))).collect();
    let mut names = HashSet::new();
    let mut maps = Vec::with_capacity(vars.len());
    for var in vars {
        let Type::Var { name, ty, linkage } = *btf.get(var.ty) else { continue };
        let name = btf.name(name);
        let fail = |problem| ObjectError::Map { map: name.to_owned(), problem };
        if linkage == Linkage::Extern {
            continue; // Defined in another object: a reference to it is an undefined symbol and refused there.
        }
        if !names.insert(name) {
            return Err(fail(MapProblem::Duplicate));
        }
        let mut map = MapDecl::new(name.to_owned(), elf.sections[section].name);
        // The symbol is authoritative; BTF's offsets are relocations too, and its sizes exclude flexible arrays.
        let (start, size) = sizes.get(name).copied().unwrap_or((var.offset.into(), var.size.into()));
        let end = start.saturating_add(size);
        let values = define(btf, ty, &mut map, false).map_err(fail)?;
        map.place = Place { section, start, end, values, variables: 0 };
        maps.push(map);
    }
    Ok(maps)
}

/// Fills in the definition from the structure type `ty`. Returns the byte offset of `values`, if present.
fn define(btf: &Btf, ty: TypeId, map: &mut MapDecl, inner: bool) -> Result<Option<u64>, MapProblem> {
    let Type::Composite { members, union: false, .. } = btf.get(btf.resolve(ty)) else {
        return Err(MapProblem::NotAStruct);
    };
    if members.len() > MAX_FIELDS {
        return Err(MapProblem::TooManyFields(members.len()));
    }
    let mut sizes = Sizes::default();
    let mut values = None;
    for (index, member) in members.iter().enumerate() {
        match btf.name(member.name) {
            "type" => map.map_type = MapTypeNumber(number(btf, member, "type")?),
            "max_entries" => map.max_entries = number(btf, member, "max_entries")?,
            "map_flags" => map.flags = number(btf, member, "map_flags")?,
            "numa_node" => map.numa_node = Some(number(btf, member, "numa_node")?),
            "map_extra" => map.map_extra = long(btf, member, "map_extra")?,
            "key_size" => sizes.key("key_size", number(btf, member, "key_size")?)?,
            "value_size" => sizes.value("value_size", number(btf, member, "value_size")?)?,
            "key" => {
                let ty = pointee(btf, member, "key")?;
                sizes.key("key", btf.size_of(ty).ok_or(MapProblem::Unsized("key"))?)?;
                map.key_type = Some(ty);
            }
            "value" => {
                let ty = pointee(btf, member, "value")?;
                sizes.value("value", btf.size_of(ty).ok_or(MapProblem::Unsized("value"))?)?;
                map.value_type = Some(ty);
            }
            "pinning" if !inner => {
                map.pinning = match number(btf, member, "pinning")? {
                    0 => Pinning::None,
                    1 => Pinning::ByName,
                    other => Pinning::Other(other),
                }
            }
            "values" if !inner && index + 1 == members.len() => {
                values = Some(u64::from(member.bit_offset / 8));
                inner_definition(btf, member, map)?;
                // The value of such a map is a 32-bit handle (libbpf sets this size too).
                sizes.value("values", 4)?;
            }
            "values" => return Err(MapProblem::Values),
            other => return Err(MapProblem::UnknownField(other.to_owned())),
        }
    }
    if map.map_type.0 == 0 {
        return Err(MapProblem::NoType);
    }
    map.key_size = sizes.key.unwrap_or(0);
    map.value_size = sizes.value.unwrap_or(0);
    Ok(values)
}

/// Parses `values`: an array of pointers to the inner map's structure, or to functions.
fn inner_definition(btf: &Btf, member: &Member, map: &mut MapDecl) -> Result<(), MapProblem> {
    let Type::Array { elem, .. } = *btf.get(btf.resolve(member.ty)) else {
        return Err(MapProblem::BadField("values"));
    };
    let Type::Ptr { to } = *btf.get(btf.resolve(elem)) else {
        return Err(MapProblem::BadField("values"));
    };
    if map.map_type == MapType::ProgArray {
        return match btf.get(btf.resolve(to)) {
            Type::FuncProto { .. } => Ok(()),
            _ => Err(MapProblem::BadField("values")),
        };
    }
    if !map.map_type.is_map_of_maps() {
        return Err(MapProblem::Values);
    }
    let mut inner = MapDecl::new(format!("{}.inner", map.name), &map.section);
    define(btf, to, &mut inner, true)?;
    map.inner = Some(Box::new(inner));
    Ok(())
}

/// Key and value sizes, each of which can be given in two ways.
#[derive(Default)]
struct Sizes {
    key: Option<u32>,
    value: Option<u32>,
}

impl Sizes {
    fn key(&mut self, field: &'static str, size: u32) -> Result<(), MapProblem> {
        Sizes::set(&mut self.key, field, size)
    }
    fn value(&mut self, field: &'static str, size: u32) -> Result<(), MapProblem> {
        Sizes::set(&mut self.value, field, size)
    }
    fn set(slot: &mut Option<u32>, field: &'static str, second: u32) -> Result<(), MapProblem> {
        match slot.replace(second) {
            Some(first) if first != second => Err(MapProblem::Conflict { field, first, second }),
            _ => Ok(()),
        }
    }
}

/// `__uint(name, N)`: `int (*name)[N]`.
fn number(btf: &Btf, member: &Member, field: &'static str) -> Result<u32, MapProblem> {
    let Type::Ptr { to } = *btf.get(btf.resolve(member.ty)) else { return Err(MapProblem::BadField(field)) };
    match *btf.get(btf.resolve(to)) {
        Type::Array { len, .. } => Ok(len),
        _ => Err(MapProblem::BadField(field)),
    }
}

/// `__ulong(name, N)`: an enumeration whose only value is N; or `__uint`.
fn long(btf: &Btf, member: &Member, field: &'static str) -> Result<u64, MapProblem> {
    let resolved = btf.get(btf.resolve(member.ty));
    let enumeration = match resolved {
        Type::Ptr { to } => btf.get(btf.resolve(*to)),
        other => other,
    };
    match enumeration {
        Type::Enum { values, .. } if values.len() == 1 => Ok(values[0].1 as u64),
        _ => number(btf, member, field).map(u64::from),
    }
}

/// `__type(name, T)`: `T *name`.
fn pointee(btf: &Btf, member: &Member, field: &'static str) -> Result<TypeId, MapProblem> {
    match *btf.get(btf.resolve(member.ty)) {
        Type::Ptr { to } => Ok(to),
        _ => Err(MapProblem::BadField(field)),
    }
}
