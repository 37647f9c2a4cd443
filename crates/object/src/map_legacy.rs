//! Maps defined by value in the legacy sections `maps` and `maps/<name>`.
//!
//! The section is an array of structures, one per symbol, whose size differs between loaders. All begin with five
//! u32: type, key size, value size, max entries, flags. The size tells the dialect: the kernel's samples add an inner
//! map's index and a NUMA node (28 bytes); iproute2 adds id, pinning, inner id and inner index (36 bytes). Bytes
//! beyond a known dialect must be zero, as libbpf before 1.0 required.

use std::collections::HashMap;

use crate::elf::{Elf, SymbolType};
use crate::error::{MapProblem, ObjectError, SectionProblem};
use crate::map::{MapDecl, MapTypeNumber, Pinning, Place};

/// Whether a section with this name holds legacy definitions.
pub(crate) fn is_legacy(section: &str) -> bool {
    section == "maps" || section.starts_with("maps/")
}

/// Size of the five fields that every dialect has, in bytes.
const BASE: usize = 20;
/// The kernel samples' structure: `inner_map_idx`, `numa_node`.
const SAMPLES: usize = 28;
/// iproute2's `struct bpf_elf_map`: `id`, `pinning`, `inner_id`, `inner_idx`.
const IPROUTE2: usize = 36;
/// BPF_F_NUMA_NODE: without it the node field is ignored.
const NUMA_NODE: u32 = 1 << 2;

/// How a definition names its inner map.
enum Inner {
    /// The object's legacy map with this index.
    Index(u32),
    /// The map with this id of iproute2's.
    Id(u32),
}

struct Legacy {
    map: MapDecl,
    id: u32,
    inner: Inner,
}

/// The maps of the legacy sections, in section order and then by address.
pub(crate) fn parse(elf: &Elf<'_>, sections: &[usize]) -> Result<Vec<MapDecl>, ObjectError> {
    let mut found = Vec::new();
    for &section in sections {
        parse_section(elf, section, &mut found)?;
    }
    // Id 0 means none; if several have one id, the first counts.
    let by_id: HashMap<u32, usize> =
        found.iter().enumerate().rev().filter(|(_, l)| l.id != 0).map(|(i, l)| (l.id, i)).collect();
    let mut maps: Vec<MapDecl> = found.iter().map(|legacy| legacy.map.clone()).collect();
    for (map, legacy) in maps.iter_mut().zip(&found) {
        if !map.map_type.is_map_of_maps() {
            continue;
        }
        let (number, inner) = match legacy.inner {
            Inner::Index(index) => (index, found.get(index as usize)),
            Inner::Id(id) => (id, by_id.get(&id).map(|&index| &found[index])),
        };
        let inner = inner.filter(|inner| !inner.map.map_type.is_map_of_maps());
        let inner =
            inner.ok_or_else(|| ObjectError::Map { map: map.name.clone(), problem: MapProblem::Inner(number) })?;
        map.inner = Some(Box::new(inner.map.clone()));
    }
    Ok(maps)
}

fn parse_section(elf: &Elf<'_>, section: usize, found: &mut Vec<Legacy>) -> Result<(), ObjectError> {
    let data = elf.sections[section].data;
    let name = elf.sections[section].name;
    let symbols: Vec<_> =
        elf.symbols_of(section).filter(|s| s.ty != SymbolType::Section && !s.name.is_empty()).collect();
    let size = data.len().checked_div(symbols.len()).unwrap_or(0);
    let evenly = symbols.iter().zip(0u64..).all(|(symbol, index)| symbol.value == index * size as u64);
    if size < BASE || size % 4 != 0 || size * symbols.len() != data.len() || !evenly {
        let problem = SectionProblem::LegacyMaps { size: data.len() as u64, symbols: symbols.len() };
        return Err(ObjectError::Section { section: name.to_owned(), problem });
    }
    for (index, symbol) in symbols.into_iter().enumerate() {
        let fail = |problem| ObjectError::Map { map: symbol.name.to_owned(), problem };
        let start = index * size;
        let (fields, _) = data[start..start + size].as_chunks::<4>();
        let field = |i: usize| fields.get(i).map_or(0, |b| u32::from_le_bytes(*b));
        let known = match size {
            IPROUTE2 => IPROUTE2,
            _ => size.min(SAMPLES),
        };
        if fields[known / 4..].as_flattened().iter().any(|&b| b != 0) {
            return Err(fail(MapProblem::LegacySize(size)));
        }
        let mut map = MapDecl::new(symbol.name.to_owned(), name);
        map.map_type = MapTypeNumber(field(0));
        map.key_size = field(1);
        map.value_size = field(2);
        map.max_entries = field(3);
        map.flags = field(4);
        map.place = Place { section, start: start as u64, end: (start + size) as u64, ..Place::default() };
        if map.map_type.0 == 0 {
            return Err(fail(MapProblem::NoType));
        }
        let (id, inner) = if size == IPROUTE2 {
            // PIN_NONE 0, PIN_OBJECT_NS 1, PIN_GLOBAL_NS 2: the latter two share by name.
            map.pinning = match field(6) {
                0 => Pinning::None,
                1 | 2 => Pinning::ByName,
                other => Pinning::Other(other),
            };
            (field(5), Inner::Id(field(7)))
        } else {
            map.numa_node = (map.flags & NUMA_NODE != 0).then(|| field(6));
            (0, Inner::Index(field(5)))
        };
        found.push(Legacy { map, id, inner });
    }
    Ok(())
}
