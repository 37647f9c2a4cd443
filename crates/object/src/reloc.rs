//! Relocations: converts ELF's "symbol plus addend" to "this instruction refers to that object".
//!
//! BPF relocations carry no addend of their own (SHT_REL): the instruction holds it, in the units of that
//! instruction. The rules are those of the LLVM BPF ABI and of libbpf:
//! - type 1 (R_BPF_64_64) on a two-slot load: byte address `symbol + imm64` — a map, a byte of global data, the start
//!   of a function, a jump table ([`crate::jump_table`]), or an external symbol;
//! - type 10 (R_BPF_64_32) on a call: slot `symbol / 8 + imm + 1` — for a global symbol the compiler stores -1, for a
//!   static function it relocates against the section and stores the function's place;
//! - types 2 to 4 (ABS64, ABS32, NODYLD32) in data, `.maps` and BTF.
//!
//! Invariant: every recorded reference has been checked against its target.

use std::collections::{HashMap, HashSet};

use bpf_isa::{Callee, Imm64, Insn};

use crate::elf::{Elf, Place, R_ABS64, Rel, Symbol};
use crate::error::{ObjectError, RelocationProblem};
use crate::externs::Externs;
use crate::function::{FunctionId, Functions, SLOT, Target};
use crate::jump_table::JumpTables;
use crate::map::{InitialValue, MapDecl};
use bpf_uapi::MapType;

/// R_BPF_64_64: the immediate of a two-slot load.
const R_64_64: u32 = 1;
/// R_BPF_DATA_64 of binutils before 2.41: a 64-bit word of data.
const R_GNU_DATA_64: u32 = 12;
/// R_BPF_64_ABS32: a 32-bit word of data.
const R_ABS32: u32 = 3;
/// R_BPF_64_NODYLD32: a 32-bit word of BTF.
const R_NODYLD32: u32 = 4;
/// R_BPF_64_32: the immediate of a call.
const R_64_32: u32 = 10;

/// Finds the targets of addresses in the object.
pub(crate) struct Resolver<'a, 'e> {
    elf: &'a Elf<'e>,
    /// `(section, start, end, map)`, sorted, for maps and global data.
    places: Vec<(usize, u64, u64, usize)>,
}

impl<'a, 'e> Resolver<'a, 'e> {
    pub(crate) fn new(elf: &'a Elf<'e>, maps: &[MapDecl]) -> Resolver<'a, 'e> {
        let places = maps.iter().enumerate().filter(|(_, m)| m.place.section != 0);
        let mut places: Vec<_> = places.map(|(i, m)| (m.place.section, m.place.start, m.place.end, i)).collect();
        // An arena lies at its declaration, and at its variables.
        let variables = maps.iter().enumerate().filter(|(_, m)| m.place.variables != 0);
        places.extend(
            variables.filter_map(|(i, m)| Some((m.place.variables, 0, m.data.as_ref()?.bytes.len() as u64, i))),
        );
        places.sort_unstable();
        Resolver { elf, places }
    }

    /// The map that contains a byte of a section: `(map, offset in it)`.
    fn map_at(&self, section: usize, byte: i64) -> Option<(usize, u64)> {
        let byte = u64::try_from(byte).ok()?;
        let after = self.places.partition_point(|&(s, start, ..)| (s, start) <= (section, byte));
        let &(s, start, end, map) = self.places.get(after.checked_sub(1)?)?;
        (s == section && byte < end).then(|| (map, byte - start))
    }

    /// Records the targets of the relocated instructions of all functions.
    pub(crate) fn code(
        &self,
        functions: &mut Functions,
        maps: &[MapDecl],
        externs: &mut Externs<'_>,
        tables: &mut JumpTables<'_, 'e>,
    ) -> Result<(), ObjectError> {
        let mut found: Vec<Vec<(u32, Target)>> = vec![Vec::new(); functions.list.len()];
        for (index, section) in self.elf.sections.iter().enumerate().filter(|(_, s)| s.code) {
            for rel in self.elf.relocations_of(index) {
                let symbol = self.elf.relocation_symbol(index, rel)?;
                let fail = |problem| self.fail(index, rel, symbol, problem);
                if rel.ty != R_64_64 && rel.ty != R_64_32 {
                    return Err(fail(RelocationProblem::UnknownType(rel.ty)));
                }
                if rel.offset % SLOT != 0 || rel.offset >= section.size {
                    return Err(fail(RelocationProblem::Offset));
                }
                // Between functions: a weak function that a static linker replaced, so the code is unreachable.
                let Some((id, slot)) = functions.at(index, (rel.offset / SLOT) as i64) else { continue };
                let Ok(body) = &functions.get(id)?.body else { continue };
                let insn =
                    body.get(slot as usize).ok_or(ObjectError::Internal("an instruction outside its function"))?;
                let table = match (rel.ty, insn) {
                    (R_64_64, &Insn::LoadImm64 { imm: Imm64::Const(held), .. }) => {
                        tables.target(functions, id, symbol, self.elf.addend(symbol, held))?
                    }
                    _ => None,
                };
                let target = match table {
                    Some(table) => table,
                    None => self.target(functions, maps, externs, symbol, rel.ty, insn).map_err(fail)?,
                };
                found[id.0].push((slot, target));
            }
        }
        for (function, mut refs) in functions.list.iter_mut().zip(found) {
            refs.sort_by_key(|&(slot, _)| slot);
            if let Some(twice) = refs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(ObjectError::Relocation {
                    section: self.elf.sections[function.section].name.to_owned(),
                    offset: u64::from(function.start + twice[0].0) * SLOT,
                    symbol: function.name().to_owned(),
                    problem: RelocationProblem::Duplicate,
                });
            }
            function.refs = refs;
        }
        Ok(())
    }

    fn target(
        &self,
        functions: &Functions,
        maps: &[MapDecl],
        externs: &mut Externs<'_>,
        symbol: &Symbol<'e>,
        ty: u32,
        insn: &Insn,
    ) -> Result<Target, RelocationProblem> {
        match (ty, insn) {
            (R_64_32, &Insn::Call(Callee::Subprog(imm))) => match symbol.place {
                Place::Undefined => Ok(Target::HostCall(externs.host_function(symbol))),
                Place::Section(section) if self.elf.sections[section].code => {
                    // GNU's assembler adds the symbol's value in bytes to the call's own offset in slots.
                    let slots = self.elf.addend(symbol, (i64::from(imm) + 1) as u64) as i64;
                    let addend = slots.wrapping_mul(SLOT as i64);
                    self.function(functions, section, (symbol.value as i64).wrapping_add(addend))
                }
                Place::Section(_) | Place::Special(_) => Err(RelocationProblem::CallTarget),
            },
            (R_64_64, &Insn::LoadImm64 { imm: Imm64::Const(held), .. }) => match symbol.place {
                Place::Undefined => externs.address(symbol, held).ok_or(RelocationProblem::ExternAddend(held as i64)),
                Place::Special(index) => Err(RelocationProblem::NoSection(index)),
                Place::Section(section) => {
                    let addend = self.elf.addend(symbol, held);
                    self.address(functions, maps, section, symbol.value.wrapping_add(addend) as i64)
                }
            },
            _ => Err(RelocationProblem::Instruction),
        }
    }

    /// The function that starts at a byte of a code section.
    fn function(&self, functions: &Functions, section: usize, byte: i64) -> Result<Target, RelocationProblem> {
        let slot = byte.div_euclid(SLOT as i64);
        let id = functions.starting_at(section, slot).filter(|_| byte % SLOT as i64 == 0);
        let fail = || RelocationProblem::NotAFunction(slot, self.elf.sections[section].name.to_owned());
        id.map(Target::Function).ok_or_else(fail)
    }

    /// The target at address `byte` of a section.
    fn address(
        &self,
        functions: &Functions,
        maps: &[MapDecl],
        section: usize,
        byte: i64,
    ) -> Result<Target, RelocationProblem> {
        let target = &self.elf.sections[section];
        let name = || target.name.to_owned();
        if target.code {
            return self.function(functions, section, byte);
        }
        match self.map_at(section, byte) {
            Some((map, off)) if maps[map].holds_data_of(section) => {
                let off = u32::try_from(off).map_err(|_| RelocationProblem::OutOfData(byte, name()))?;
                Ok(Target::MapValue { map, off })
            }
            Some((map, 0)) => Ok(Target::Map(map)),
            Some(_) => Err(RelocationProblem::NotAMap(byte, name())),
            None if self.places.iter().any(|p| p.0 == section) => {
                match maps.iter().find(|m| [m.place.section, m.place.variables].contains(&section)) {
                    Some(map) if map.holds_data_of(section) => Err(RelocationProblem::OutOfData(byte, name())),
                    _ => Err(RelocationProblem::NotAMap(byte, name())),
                }
            }
            None => Err(RelocationProblem::TargetSection(name())),
        }
    }

    /// The initial values in `.maps`, and the programs in sections of `struct_ops`.
    pub(crate) fn initial_values(
        &self,
        section: usize,
        maps: &mut [MapDecl],
        functions: &Functions,
        programs: &HashMap<FunctionId, String>,
    ) -> Result<(), ObjectError> {
        let mut seen = HashSet::new();
        for rel in self.elf.relocations_of(section) {
            let symbol = self.elf.relocation_symbol(section, rel)?;
            let fail = |problem| self.fail(section, rel, symbol, problem);
            // Compilers before LLVM 13 wrote type 1 for every 64-bit word. GNU's assembler has another number for
            // them.
            if !matches!(rel.ty, R_64_64 | R_ABS64 | R_GNU_DATA_64) {
                return Err(fail(RelocationProblem::UnknownType(rel.ty)));
            }
            let offset = i64::try_from(rel.offset).map_err(|_| fail(RelocationProblem::Offset))?;
            let (map, inside) =
                self.map_at(section, offset).ok_or_else(|| fail(RelocationProblem::NotAnInitialValue))?;
            let slot = maps[map].place.values.and_then(|values| inside.checked_sub(values));
            let slot = slot.filter(|byte| byte % 8 == 0).and_then(|byte| u32::try_from(byte / 8).ok());
            let slot = slot.ok_or_else(|| fail(RelocationProblem::NotAnInitialValue))?;
            let Place::Section(target) = symbol.place else {
                return Err(fail(RelocationProblem::NotAnInitialValue));
            };
            // The addend is the stored word: zero for a named map or function, an offset for a static one.
            let start = usize::try_from(rel.offset).map_err(|_| fail(RelocationProblem::Offset))?;
            let word = self.elf.sections[section].data.get(start..).and_then(|d| d.first_chunk::<8>());
            let held = word.map(|w| u64::from_le_bytes(*w)).ok_or_else(|| fail(RelocationProblem::Offset))?;
            let addend = self.elf.addend(symbol, held);
            let byte = symbol.value.wrapping_add(addend) as i64;
            let value = match self.address(functions, maps, target, byte).map_err(fail)? {
                Target::Map(inner) if maps[map].map_type.is_map_of_maps() => InitialValue::Map(inner),
                Target::Function(id)
                    if maps[map].map_type == MapType::ProgArray || maps[map].map_type == MapType::StructOps =>
                {
                    let name = programs.get(&id);
                    let display = || self.elf.display_name(symbol).to_owned();
                    let name = name.ok_or_else(|| fail(RelocationProblem::NotAProgram(display())))?;
                    InitialValue::Program(name.clone())
                }
                Target::Map(_)
                | Target::Function(_)
                | Target::MapValue { .. }
                | Target::Table { .. }
                | Target::HostCall(_)
                | Target::HostAddress(_)
                | Target::Extern(_) => return Err(fail(RelocationProblem::NotAnInitialValue)),
            };
            if !seen.insert((map, slot)) {
                return Err(fail(RelocationProblem::Duplicate));
            }
            maps[map].initial.push((slot, value));
        }
        Ok(())
    }

    fn fail(&self, section: usize, rel: Rel, symbol: &Symbol<'_>, problem: RelocationProblem) -> ObjectError {
        ObjectError::Relocation {
            section: self.elf.sections[section].name.to_owned(),
            offset: rel.offset,
            symbol: self.elf.display_name(symbol).to_owned(),
            problem,
        }
    }
}

/// `.BTF` with the offsets of section variables filled in. Each is a 32-bit word in place plus a symbol's value;
/// compilers have marked them NODYLD32, ABS32 and, before LLVM 13, NONE.
pub(crate) fn relocated_btf(elf: &Elf<'_>, section: usize) -> Result<Vec<u8>, ObjectError> {
    let mut bytes = elf.sections[section].data.to_vec();
    for rel in elf.relocations_of(section) {
        let symbol = elf.relocation_symbol(section, rel)?;
        let fail = |problem| ObjectError::Relocation {
            section: ".BTF".to_owned(),
            offset: rel.offset,
            symbol: elf.display_name(symbol).to_owned(),
            problem,
        };
        if !matches!(rel.ty, 0 | R_ABS32 | R_NODYLD32) {
            return Err(fail(RelocationProblem::UnknownType(rel.ty)));
        }
        let start = usize::try_from(rel.offset).map_err(|_| fail(RelocationProblem::Offset))?;
        let word = bytes.get_mut(start..).and_then(|tail| tail.first_chunk_mut::<4>());
        let word = word.ok_or_else(|| fail(RelocationProblem::Offset))?;
        let sum =
            u64::from(u32::from_le_bytes(*word)).checked_add(symbol.value).and_then(|sum| u32::try_from(sum).ok());
        *word = sum.ok_or_else(|| fail(RelocationProblem::Word(symbol.value)))?.to_le_bytes();
    }
    Ok(bytes)
}
