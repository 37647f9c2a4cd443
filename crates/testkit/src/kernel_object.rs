//! An object in the kernel: its programs loaded, its maps created and filled.
//!
//! Loads objects into the kernel as libbpf would, with our parser. No BTF is given to the kernel, so programs that need
//! it there (callbacks, locks, timers) cannot be loaded. Maps of which a value is more than its bytes
//! (arenas, tables of `struct_ops`) are refused.

use crate::kernel::{Map, MapType, Program, ProgramType};
use bpf_isa::{Imm64, Insn};
use bpf_object::{InitialValue, MapDecl, Object};
use bpf_uapi::flags::create;

/// A loaded object.
#[derive(Debug)]
pub struct KernelObject {
    programs: Vec<(String, Program)>,
    maps: Vec<(String, Map)>,
    /// Templates of the inner maps of maps of maps.
    _inner: Vec<Map>,
}

impl KernelObject {
    /// Loads all programs of the object, as programs of this type.
    pub fn load(object: &[u8], kind: ProgramType) -> Result<KernelObject, String> {
        let object = Object::parse(object).map_err(|e| e.to_string())?;
        let names: Vec<&str> = object.programs().iter().map(bpf_object::Program::name).collect();
        KernelObject::load_programs(&object, &names, kind)
    }

    /// Loads these programs of the object, as programs of this type.
    pub fn load_programs(object: &Object, names: &[&str], kind: ProgramType) -> Result<KernelObject, String> {
        let mut inner = Vec::new();
        let mut maps = Vec::new();
        for decl in object.maps() {
            maps.push((decl.name.clone(), made(decl, &mut inner)?));
        }
        let mut programs = Vec::new();
        for name in names {
            let code = object.program(name).and_then(|program| object.code(program)).map_err(|e| e.to_string())?;
            let insns: Vec<Insn> = code.insns().iter().map(|insn| with_descriptor(*insn, &maps)).collect();
            let bytes = bpf_isa::encode(&insns).map_err(|e| e.to_string())?;
            let loaded = Program::load(kind, &bytes).map_err(|e| format!("{name}: {e}"))?;
            programs.push(((*name).to_owned(), loaded));
        }
        let loaded = KernelObject { programs, maps, _inner: inner };
        for (def, (_, map)) in object.maps().iter().zip(&loaded.maps) {
            for (slot, value) in &def.initial {
                let descriptor = match value {
                    InitialValue::Program(name) => match loaded.program(name) {
                        Ok(program) => program.fd(),
                        // The program was not requested: the slot stays empty.
                        Err(_) => continue,
                    },
                    InitialValue::Map(index) => loaded.maps[*index].1.fd(),
                };
                map.update(&slot.to_ne_bytes(), &descriptor.to_ne_bytes()).map_err(|e| e.to_string())?;
            }
        }
        Ok(loaded)
    }

    /// A program by its function's name.
    pub fn program(&self, name: &str) -> Result<&Program, String> {
        let found = self.programs.iter().find(|(other, _)| other == name);
        found.map(|(_, program)| program).ok_or_else(|| format!("no program `{name}`"))
    }

    /// A map by its name.
    pub fn map(&self, name: &str) -> Option<&Map> {
        self.maps.iter().find(|(other, _)| other == name).map(|(_, map)| map)
    }
}

/// Creates a map as an object declares it, with the contents of global data.
fn made(decl: &MapDecl, inner: &mut Vec<Map>) -> Result<Map, String> {
    let kind =
        MapType::from_number(decl.map_type.0).ok_or_else(|| format!("{}: map type {}", decl.name, decl.map_type))?;
    if matches!(kind, MapType::Arena | MapType::StructOps) {
        return Err(format!("{}: a map of type {kind}", decl.name));
    }
    let template = match &decl.inner {
        Some(of) => {
            let made = made(of, inner)?;
            inner.push(made);
            inner.last()
        }
        None => None,
    };
    // As libbpf does: an event array has an entry for each CPU.
    let entries = if kind == MapType::PerfEventArray && decl.max_entries == 0 { 1 } else { decl.max_entries };
    let sizes = [decl.key_size, decl.value_size, entries];
    let flags = decl.flags & !create::NUMA_NODE;
    let map = Map::create_raw(kind.number(), sizes, flags, template).map_err(|e| format!("{}: {e}", decl.name))?;
    if let Some(data) = &decl.data {
        map.update(&0u32.to_ne_bytes(), &data.bytes).map_err(|e| format!("{}: {e}", decl.name))?;
        if flags & create::RDONLY_PROG != 0 {
            map.freeze().map_err(|e| format!("{}: {e}", decl.name))?;
        }
    }
    Ok(map)
}

/// The instruction with a map's descriptor in the place of its index.
fn with_descriptor(insn: Insn, maps: &[(String, Map)]) -> Insn {
    let Insn::LoadImm64 { dst, imm } = insn else { return insn };
    let fd = |index: i32| maps.get(index as usize).map(|(_, map)| map.fd());
    let imm = match imm {
        Imm64::MapIdx(index) => fd(index).map_or(imm, Imm64::Map),
        Imm64::MapIdxValue { map, off } => fd(map).map_or(imm, |map| Imm64::MapValue { map, off }),
        Imm64::Const(_) | Imm64::Map(_) | Imm64::MapValue { .. } | Imm64::Var(_) | Imm64::Func(_) => imm,
    };
    Insn::LoadImm64 { dst, imm }
}
