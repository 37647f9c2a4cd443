//! Tables of programs: the variables of `.struct_ops` and `.struct_ops.link`.
//!
//! The variable is a C structure whose function pointers are programs of the object, and whose other members are
//! settings for the host that calls them. As in libbpf, each is a map of type `struct_ops` with one value, the
//! structure. Its programs are initial values, by the index of their eight-byte word; its contents are as compiled,
//! with zeros for the programs. A question mark before the section's name marks programs that are loaded only on
//! request; here the host decides that.

use crate::btf::{Btf, SectionVar, Type};
use crate::elf::Elf;
use crate::error::{MapProblem, ObjectError, SectionProblem};
use crate::map::{MapDecl, Place};
use bpf_uapi::{MapType, flags};
use std::collections::HashMap;

/// Whether a section holds such tables (`Some`), and whether they are attached by links.
fn is_linked(section: &str) -> Option<bool> {
    match section.strip_prefix('?').unwrap_or(section) {
        ".struct_ops" => Some(false),
        ".struct_ops.link" => Some(true),
        _ => None,
    }
}

/// The tables of all such sections, with the sections' indices.
pub(crate) fn parse(
    elf: &Elf<'_>,
    btf: Option<&Btf>,
    datasecs: &HashMap<&str, &[SectionVar]>,
) -> Result<(Vec<MapDecl>, Vec<usize>), ObjectError> {
    let (mut maps, mut sections) = (Vec::new(), Vec::<usize>::new());
    for (index, section) in elf.sections.iter().enumerate() {
        let Some(linked) = is_linked(section.name).filter(|_| section.progbits && section.size != 0) else { continue };
        let Some(btf) = btf else {
            let problem = SectionProblem::NeedsBtf;
            return Err(ObjectError::Section { section: section.name.to_owned(), problem });
        };
        // Otherwise each section would get all variables of the name, as many times as a file may have sections.
        if sections.iter().any(|&known| elf.sections[known].name == section.name) {
            let problem = SectionProblem::Duplicate;
            return Err(ObjectError::Section { section: section.name.to_owned(), problem });
        }
        sections.push(index);
        // Overlapping tables could be many times the section's bytes.
        let mut free = 0;
        for var in datasecs.get(section.name).copied().unwrap_or(&[]) {
            let Type::Var { name, ty, .. } = *btf.get(var.ty) else { continue };
            let name = btf.name(name);
            let fail = |problem| ObjectError::Map { map: name.to_owned(), problem };
            let ty = btf.resolve(ty);
            let Type::Composite { union: false, .. } = btf.get(ty) else { return Err(fail(MapProblem::NotAStruct)) };
            let size = btf.size_of(ty).ok_or_else(|| fail(MapProblem::Unsized("value")))?;
            let (start, end) = (u64::from(var.offset), u64::from(var.offset) + u64::from(size));
            let bytes = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            let bytes = bytes.filter(|_| start >= free).and_then(|(start, end)| section.data.get(start..end));
            let bytes = bytes.ok_or_else(|| fail(MapProblem::TablePlace { start, end }))?;
            free = end;
            let mut map = MapDecl::new(name.to_owned(), section.name);
            map.map_type = MapType::StructOps.into();
            (map.key_size, map.value_size, map.max_entries) = (4, size, 1);
            map.flags = if linked { flags::create::LINK } else { 0 };
            map.value_type = Some(ty);
            map.table = Some(bytes.to_vec());
            map.place = Place { section: index, start, end, values: Some(0), variables: 0 };
            maps.push(map);
        }
    }
    Ok((maps, sections))
}
