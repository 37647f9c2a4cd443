//! An object in the kernel: its programs loaded, its prog arrays created and filled.
//!
//! What libbpf would do, for the few objects that are compared with it; the parser is ours. Maps of other types are
//! refused.

use crate::kernel::{Map, MapType, Program, ProgramType};
use bpf_isa::{Imm64, Insn};
use bpf_object::{InitialValue, Object};

/// A loaded object.
#[derive(Debug)]
pub struct KernelObject {
    programs: Vec<(String, Program)>,
    /// They hold the programs that are jumped to.
    _maps: Vec<Map>,
}

impl KernelObject {
    /// Loads all programs of the object, as programs of this type.
    pub fn load(object: &[u8], kind: ProgramType) -> Result<KernelObject, String> {
        let object = Object::parse(object).map_err(|e| e.to_string())?;
        let maps: Vec<Map> = object
            .maps()
            .iter()
            .map(|map| {
                if map.map_type != MapType::ProgArray {
                    return Err(format!("{}: a map of type {}", map.name, map.map_type));
                }
                Map::create(MapType::ProgArray, map.key_size, map.value_size, map.max_entries)
                    .map_err(|e| format!("{}: {e}", map.name))
            })
            .collect::<Result<_, _>>()?;
        let mut programs = Vec::new();
        for program in object.programs() {
            let code = object.code(program).map_err(|e| e.to_string())?;
            let insns: Vec<Insn> = code.insns().iter().map(|insn| with_descriptor(*insn, &maps)).collect();
            let bytes = bpf_isa::encode(&insns).map_err(|e| e.to_string())?;
            let loaded = Program::load(kind, &bytes).map_err(|e| format!("{}: {e}", program.name()))?;
            programs.push((program.name().to_owned(), loaded));
        }
        let loaded = KernelObject { programs, _maps: maps };
        for (def, map) in object.maps().iter().zip(&loaded._maps) {
            for (slot, value) in &def.initial {
                if let InitialValue::Program(name) = value {
                    let descriptor = loaded.program(name)?.fd();
                    map.update(&slot.to_ne_bytes(), &descriptor.to_ne_bytes()).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(loaded)
    }

    /// A program by its function's name.
    pub fn program(&self, name: &str) -> Result<&Program, String> {
        let found = self.programs.iter().find(|(other, _)| other == name);
        found.map(|(_, program)| program).ok_or_else(|| format!("no program `{name}`"))
    }
}

/// The instruction with a map's descriptor in the place of its index.
fn with_descriptor(insn: Insn, maps: &[Map]) -> Insn {
    if let Insn::LoadImm64 { dst, imm: Imm64::MapIdx(index) } = insn
        && let Some(map) = maps.get(index as usize)
    {
        return Insn::LoadImm64 { dst, imm: Imm64::Map(map.fd()) };
    }
    insn
}
