//! An object's DWARF, for debuggers: the sections with their relocations applied.
//!
//! Problem: in a relocatable object, addresses in DWARF are offsets in sections, and the section is known only to the
//! relocation. Approach: an address is the offset in the section's low 32 bits, and above them the section's index
//! plus one. Nothing here reads DWARF: the sections are bytes of a stranger, for a reader that expects the worst.
//!
//! Invariants: the work is linear in the file, and the copies have at most [`MAX_DWARF`] bytes: a larger object has no
//! DWARF here.

use std::collections::HashMap;
use std::sync::Arc;

use crate::elf::{Elf, Place, R_ABS64};

/// Most bytes of all sections. Objects of the Linux selftests have up to 2 MiB.
const MAX_DWARF: usize = 16 << 20;

/// The sections that describe variables and their places. Line tables are named by each compilation unit, so a reader
/// expects them.
const SECTIONS: [&str; 12] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];

/// R_BPF_64_ABS32 and R_BPF_64_NODYLD32: a relocated 32-bit word.
const R_WORDS: [u32; 2] = [3, 4];

/// An object's DWARF.
#[derive(Debug)]
pub struct Dwarf {
    sections: Vec<(&'static str, Arc<[u8]>)>,
    /// The upper half of addresses, by section of code.
    code: HashMap<Arc<str>, u64>,
}

impl Dwarf {
    /// Returns the DWARF, if there is any.
    pub(crate) fn parse(elf: &Elf<'_>) -> Option<Dwarf> {
        let found = |name: &str| elf.sections.iter().position(|section| section.name == name && !section.nobits);
        let sections: Vec<_> = SECTIONS.into_iter().filter_map(|name| Some((name, found(name)?))).collect();
        let size = sections.iter().map(|(_, section)| elf.sections[*section].data.len()).sum::<usize>();
        if found(".debug_info").is_none() || size > MAX_DWARF {
            return None;
        }
        let sections = sections.into_iter().map(|(name, section)| (name, relocated(elf, section).into())).collect();
        let code = elf.sections.iter().enumerate().filter(|(_, section)| section.code);
        let code = code.map(|(index, section)| (Arc::from(section.name), half(index))).collect();
        Some(Dwarf { sections, code })
    }

    /// The sections by name.
    pub fn sections(&self) -> &[(&'static str, Arc<[u8]>)] {
        &self.sections
    }

    /// The address of an instruction, as the sections have it: of the slot with this number in a section of code.
    pub fn address(&self, section: &str, slot: u32) -> Option<u64> {
        Some(self.code.get(section)? | u64::from(slot.checked_mul(8)?))
    }
}

/// The upper half of the addresses in a section.
fn half(section: usize) -> u64 {
    (section as u64 + 1) << 32
}

/// A section's bytes with its relocations applied. Relocations of other kinds, and those outside of the section, are
/// left out.
fn relocated(elf: &Elf<'_>, section: usize) -> Vec<u8> {
    let mut data = elf.sections[section].data.to_vec();
    for rel in elf.relocations_of(section) {
        let Ok(symbol) = elf.relocation_symbol(section, rel) else { continue };
        let Some(tail) = usize::try_from(rel.offset).ok().and_then(|at| data.get_mut(at..)) else { continue };
        if rel.ty == R_ABS64 {
            let Some(place) = tail.first_chunk_mut::<8>() else { continue };
            let value = elf.addend(symbol, u64::from_le_bytes(*place)).wrapping_add(symbol.value);
            let upper = match symbol.place {
                Place::Section(index) if elf.sections[index].code => half(index),
                Place::Section(_) | Place::Undefined | Place::Special(_) => 0,
            };
            *place = value.wrapping_add(upper).to_le_bytes();
        } else if R_WORDS.contains(&rel.ty) {
            let Some(place) = tail.first_chunk_mut::<4>() else { continue };
            let value = elf.addend(symbol, u32::from_le_bytes(*place).into()).wrapping_add(symbol.value);
            let [a, b, c, d, ..] = value.to_le_bytes();
            *place = [a, b, c, d];
        }
    }
    data
}
