//! An object: its programs, maps, externals and other contents, read from the bytes of a file.
//!
//! [`Object::parse`] has no side effects and needs only the bytes. It reads in the order of dependencies: sections
//! and symbols; BTF (with its own relocations); functions; maps; then the relocations, which connect them; then
//! programs and initial values.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::btf::{Btf, BtfExt, CoreRecord, LineRecord, SectionVar, StrOffset, Type};
use crate::co_re::Types;
use crate::code::CoreKind;
use crate::dwarf::Dwarf;
use crate::elf::{self, Elf};
use crate::error::{
    BtfProblem, GlobalProblem, LeftOut, LeftOutReason, MapProblem, ObjectError, SectionProblem, SymbolProblem,
};
use crate::externs::{ExternVariable, Externs, HostFunction};
use crate::function::{Function, FunctionId, Functions, SLOT, Target};
use crate::jump_table::{JumpTable, JumpTables};
use crate::map::{DataKind, MapDecl};
use crate::reloc::{Resolver, relocated_btf};
use crate::{global, map_btf, map_legacy, struct_ops};
use bpf_isa::{Callee, Imm64, Insn};
use bpf_uapi::ProgramType;

/// A program in an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    name: String,
    section: Arc<str>,
    kind: ProgramType,
    insn_count: u32,
    pub(crate) function: FunctionId,
    /// Its index in the object's list, by which another object's program is recognised.
    index: usize,
}

impl Program {
    /// Its function's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The ELF section that contains it.
    pub fn section(&self) -> &str {
        &self.section
    }
    /// The program's type.
    pub fn kind(&self) -> ProgramType {
        self.kind
    }
    /// Number of slots of its own function, without subprograms.
    pub fn insn_count(&self) -> u32 {
        self.insn_count
    }
}

/// A parsed BPF object.
///
/// ```no_run
/// let mut object = bpf_object::Object::parse(&std::fs::read("filter.o")?)?;
/// object.set_global("verbose", &1u32.to_le_bytes())?;
/// object.set_max_entries("flows", 4096)?;
/// for program in object.programs() {
///     println!("{} ({}): {} instructions", program.name(), program.kind(), program.insn_count());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Object {
    programs: Vec<Program>,
    left_out: Vec<LeftOut>,
    maps: Vec<MapDecl>,
    host_functions: Vec<HostFunction>,
    extern_variables: Vec<ExternVariable>,
    license: Option<String>,
    version: Option<u32>,
    pub(crate) functions: Functions,
    /// The jump tables of functions.
    pub(crate) jump_tables: Vec<JumpTable>,
    pub(crate) btf: Option<Arc<Btf>>,
    pub(crate) dwarf: Option<Arc<Dwarf>>,
    /// Types of the host that the object is linked for.
    target: Option<Arc<Types>>,
    /// Name and length in slots of every section, by ELF index.
    sections: Vec<(Arc<str>, i64)>,
    /// The contents of the section [`PROOFS`].
    proofs: Option<Arc<[u8]>>,
}

/// The section that holds proofs of the object's programs. It is not loaded, so programs do not see it.
pub const PROOFS: &str = ".bpf.proof";

impl Object {
    /// Takes the types of a host from its BTF: `/sys/kernel/btf/vmlinux` of a kernel whose structures programs get,
    /// or an ELF file with a section `.BTF`. Later links resolve CO-RE relocations against these types, after the
    /// context's own.
    ///
    /// ```no_run
    /// let mut object = bpf_object::Object::parse(&std::fs::read("program.o")?)?;
    /// object.target_btf(&std::fs::read("/sys/kernel/btf/vmlinux")?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Malformed BTF, or a file without BTF.
    pub fn target_btf(&mut self, bytes: &[u8]) -> Result<(), ObjectError> {
        let target = if bytes.starts_with(b"\x7fELF") {
            let bytes = &*elf::cleaned(bytes);
            let elf = Elf::parse(bytes)?;
            let section = elf.section_named(".BTF")?.filter(|section| elf.sections[*section].size != 0);
            let section = section.ok_or_else(|| ObjectError::Section {
                section: ".BTF".to_owned(),
                problem: SectionProblem::NeedsBtf,
            })?;
            Btf::parse(&relocated_btf(&elf, section)?)?
        } else {
            Btf::parse(bytes)?
        };
        self.target = Some(Arc::new(Types::new(target.with_pointers_of_long(), true)));
        Ok(())
    }

    pub(crate) fn target(&self) -> Option<&Types> {
        self.target.as_deref()
    }

    /// Parses the bytes of an ELF relocatable made for BPF.
    ///
    /// # Errors
    /// Any malformation, with its place. Errors that concern one program (an instruction that does not decode, a
    /// missing host function) are reported when that program is linked.
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        let bytes = &*elf::cleaned(bytes);
        let elf = Elf::parse(bytes)?;
        // A tool that strips types may leave an empty section.
        let filled = |section: &usize| elf.sections[*section].size != 0;
        let btf = match elf.section_named(".BTF")?.filter(filled) {
            Some(section) => Some(Arc::new(Btf::parse(&relocated_btf(&elf, section)?)?)),
            None => None,
        };
        let datasecs = btf.as_deref().map(datasecs).unwrap_or_default();
        let mut functions = Functions::parse(&elf, btf.as_deref())?;
        if let (Some(btf), Some(section)) = (&btf, elf.section_named(".BTF.ext")?.filter(filled)) {
            attach_ext(&elf, btf, &BtfExt::parse(elf.sections[section].data)?, &mut functions)?;
        }

        let map_section = elf.section_named(".maps")?.filter(|&s| elf.sections[s].size != 0);
        let mut maps = match (map_section, btf.as_deref()) {
            (None, _) => Vec::new(),
            (Some(section), Some(btf)) => {
                map_btf::parse(&elf, section, btf, datasecs.get(".maps").copied().unwrap_or(&[]))?
            }
            (Some(_), None) => {
                return Err(ObjectError::Section { section: ".maps".to_owned(), problem: SectionProblem::NeedsBtf });
            }
        };
        let legacy = elf.sections.iter().enumerate();
        let legacy: Vec<usize> = legacy
            .filter(|(_, s)| s.progbits && s.size != 0 && map_legacy::is_legacy(s.name))
            .map(|(i, _)| i)
            .collect();
        maps.append(&mut map_legacy::parse(&elf, &legacy)?);
        global::parse(&elf, btf.as_deref(), &datasecs, &mut maps)?;

        let mut externs = Externs::new(btf.as_deref(), &datasecs, maps.len());
        let resolver = Resolver::new(&elf, &maps);
        let mut jump_tables = JumpTables::new(&elf);
        resolver.code(&mut functions, &maps, &mut externs, &mut jump_tables)?;
        let jump_tables = jump_tables.finish();
        let (host_functions, extern_variables, kconfig) = externs.finish();
        let sections: Vec<(Arc<str>, i64)> =
            elf.sections.iter().map(|s| (Arc::from(s.name), (s.size / SLOT) as i64)).collect();
        let (programs, left_out) = programs(&sections, &functions)?;
        let (mut tables, table_sections) = struct_ops::parse(&elf, btf.as_deref(), &datasecs)?;
        if map_section.is_some() || !table_sections.is_empty() {
            let names = programs.iter().map(|p| (p.function, p.name.clone())).collect();
            if let Some(section) = map_section {
                resolver.initial_values(section, &mut maps, &functions, &names)?;
            }
            let resolver = Resolver::new(&elf, &tables);
            for section in table_sections {
                resolver.initial_values(section, &mut tables, &functions, &names)?;
            }
        }
        maps.extend(kconfig);
        // Last, in libbpf's order.
        maps.append(&mut tables);
        check_map_names(&maps)?;
        let proofs = elf.section_named(PROOFS)?.filter(filled).map(|section| Arc::from(elf.sections[section].data));
        Ok(Object {
            proofs,
            programs,
            left_out,
            maps,
            host_functions,
            extern_variables,
            license: license(&elf)?,
            version: version(&elf)?,
            functions,
            jump_tables,
            sections,
            btf,
            dwarf: Dwarf::parse(&elf).map(Arc::new),
            target: None,
        })
    }

    /// Returns the bytes of an object file with these contents in its section [`PROOFS`], which is added if it does
    /// not exist. All other sections are unchanged.
    ///
    /// # Errors
    /// The file is not an object, or has no room for another section.
    pub fn with_proofs(bytes: &[u8], proofs: &[u8]) -> Result<Vec<u8>, ObjectError> {
        elf::with_section(bytes, PROOFS, proofs)
    }

    /// The programs, by section and address.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The functions that are not programs although nothing calls them, by section and address, with the reasons.
    ///
    /// These are static functions outside of the sections of subprograms, as an object file cannot say whether such a
    /// function is meant to be a program. libbpf refuses an object with one (`-ENOTSUP`, "is static and not
    /// supported"). Here the object's other programs can be used, static functions in sections of a known type are
    /// programs, and only [`Object::program`] of a name in this list is refused. A global function in a section of no
    /// known type is a program for both: libbpf loads it once its user has set a type, this library on the context
    /// that its user names.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The program with this name.
    pub fn program(&self, name: &str) -> Result<&Program, ObjectError> {
        self.programs.iter().find(|p| p.name == name).ok_or_else(|| self.no_such_program(name))
    }

    /// The maps: those of `.maps`, legacy ones, global data, `.kconfig`.
    pub fn maps(&self) -> &[MapDecl] {
        &self.maps
    }

    /// The map with this name.
    pub fn map(&self, name: &str) -> Result<&MapDecl, ObjectError> {
        self.maps.iter().find(|m| m.name == name).ok_or_else(|| self.no_such_map(name))
    }

    /// The host functions that the object calls.
    pub fn host_functions(&self) -> &[HostFunction] {
        &self.host_functions
    }

    /// The external variables without a value that the object refers to.
    pub fn extern_variables(&self) -> &[ExternVariable] {
        &self.extern_variables
    }

    /// The licence the object declares.
    pub fn license(&self) -> Option<&str> {
        self.license.as_deref()
    }

    /// The kernel version that the object was made for, which only probes of old kernels need.
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// Returns the contents of the section [`PROOFS`], if there is one. Their origin is unknown, and nothing is
    /// checked.
    pub fn proofs(&self) -> Option<&[u8]> {
        self.proofs.as_deref()
    }

    /// The object's types.
    pub fn btf(&self) -> Option<&Arc<Btf>> {
        self.btf.as_ref()
    }

    /// Sets the initial value of a global variable, in `.rodata`, `.data`, `.bss`, `.kconfig` or an arena.
    ///
    /// # Errors
    /// No variable with that name, several static ones, or a value whose length is not the variable's.
    pub fn set_global(&mut self, name: &str, value: &[u8]) -> Result<(), ObjectError> {
        let fail = |problem| ObjectError::Global { variable: name.to_owned(), problem };
        let mut found = None;
        for (index, data) in self.maps.iter().enumerate().filter_map(|(i, m)| Some((i, m.data.as_ref()?))) {
            for variable in data.variables.iter().filter(|v| v.name == name) {
                if found.replace((index, variable.offset as usize, variable.size as usize)).is_some() {
                    return Err(fail(GlobalProblem::Ambiguous));
                }
            }
        }
        let (map, offset, want) = found.ok_or_else(|| fail(GlobalProblem::Unknown))?;
        if value.len() != want {
            return Err(fail(GlobalProblem::Size { got: value.len(), want }));
        }
        let data = self.maps[map].data.as_mut().and_then(|d| d.bytes.get_mut(offset..offset + want));
        data.ok_or(ObjectError::Internal("a variable outside of its section"))?.copy_from_slice(value);
        Ok(())
    }

    /// Sets the size of a map.
    ///
    /// # Errors
    /// No map with that name, or one that holds global data and is not an arena.
    pub fn set_max_entries(&mut self, name: &str, max_entries: u32) -> Result<(), ObjectError> {
        let Some(map) = self.maps.iter_mut().find(|m| m.name == name) else {
            return Err(self.no_such_map(name));
        };
        if map.data.as_ref().is_some_and(|data| data.kind != DataKind::Arena) {
            return Err(ObjectError::Map { map: name.to_owned(), problem: MapProblem::FixedSize });
        }
        map.max_entries = max_entries;
        Ok(())
    }

    /// Fails unless the program belongs to this object.
    pub(crate) fn check_own(&self, program: &Program) -> Result<(), ObjectError> {
        match self.programs.get(program.index) {
            Some(own) if own == program => Ok(()),
            _ => Err(self.no_such_program(&program.name)),
        }
    }

    fn no_such_program(&self, name: &str) -> ObjectError {
        if let Some(left_out) = self.left_out.iter().find(|function| function.name == name) {
            return ObjectError::LeftOut { function: left_out.clone() };
        }
        let available = join(self.programs.iter().map(|p| p.name.as_str()));
        ObjectError::NoSuchProgram { name: name.to_owned(), available }
    }

    fn no_such_map(&self, name: &str) -> ObjectError {
        let available = join(self.maps.iter().map(|m| m.name.as_str()));
        ObjectError::NoSuchMap { name: name.to_owned(), available }
    }

    pub(crate) fn section_name(&self, index: usize) -> Result<&Arc<str>, ObjectError> {
        let section = self.sections.get(index).map(|(name, _)| name);
        section.ok_or(ObjectError::Internal("a function in a section that does not exist"))
    }

    pub(crate) fn section_slots(&self, index: usize) -> i64 {
        self.sections.get(index).map_or(0, |&(_, slots)| slots)
    }
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The variables of every section that BTF describes; the first description of a section counts.
fn datasecs(btf: &Btf) -> HashMap<&str, &[SectionVar]> {
    let mut sections = HashMap::new();
    for (_, ty) in btf.types() {
        if let Type::DataSec { name, vars } = ty {
            sections.entry(btf.name(*name)).or_insert(&vars[..]);
        }
    }
    sections
}

/// Whether a code section holds only subprograms, unless the object has no other.
fn is_text(section: &str) -> bool {
    section == ".text" || section.starts_with(".text.")
}

/// The functions that instructions of the object call, or take the address of.
fn referred_to(functions: &Functions) -> HashSet<FunctionId> {
    let mut found = HashSet::new();
    for function in &functions.list {
        for (_, target) in &function.refs {
            if let Target::Function(id) = target {
                found.insert(*id);
            }
        }
        // Inside a section, calls are relative already.
        for (slot, insn) in (0u32..).zip(function.body.iter().flatten()) {
            let offset = match *insn {
                Insn::Call(Callee::Subprog(offset)) | Insn::LoadImm64 { imm: Imm64::Func(offset), .. } => offset,
                _ => continue,
            };
            let target = i64::from(function.start) + i64::from(slot) + 1 + i64::from(offset);
            found.extend(functions.starting_at(function.section, target));
        }
    }
    found
}

/// Selects the programs: exported functions outside of the sections of subprograms, or in them if there are no
/// others; and static functions in a section of a known program type that nothing in the object calls, if no other
/// function has the name. Also returns the other static functions outside of the sections of subprograms that nothing
/// calls.
fn programs(sections: &[(Arc<str>, i64)], functions: &Functions) -> Result<(Vec<Program>, Vec<LeftOut>), ObjectError> {
    let offered = |text: bool| {
        let list = functions.list.iter().enumerate();
        let list = list.filter(move |(_, f)| is_text(&sections[f.section].0) == text);
        list.flat_map(|(id, f)| f.names.iter().filter(|n| n.exported).map(move |name| (id, f, name)))
    };
    let called = referred_to(functions);
    let is_static = |(id, f): &(usize, &Function)| {
        !called.contains(&FunctionId(*id))
            && f.names.iter().all(|name| !name.exported)
            && !is_text(&sections[f.section].0)
    };
    let uncalled = functions.list.iter().enumerate().filter(is_static);
    let uncalled = uncalled.flat_map(|(id, f)| f.names.first().map(|name| (id, f, name)));
    let is_known =
        |(_, f, _): &(_, &Function, _)| ProgramType::from_section(&sections[f.section].0) != ProgramType::Unknown;
    let statics = uncalled.clone().filter(is_known);
    let mut programs = Vec::new();
    let mut names = HashSet::new();
    let text_only = offered(false).next().is_none() && statics.clone().next().is_none();
    // A static function may have the name of another function; then the name would be ambiguous.
    let mut times: HashMap<&str, u32> = HashMap::new();
    for (_, _, name) in offered(text_only).chain(statics.clone()) {
        *times.entry(&name.name).or_default() += 1;
    }
    let is_shared = |name: &str| times.get(name) != Some(&1);
    let left_out = uncalled.filter_map(|entry| {
        let (_, f, name) = entry;
        let reason = match is_known(&entry) {
            false => LeftOutReason::UnknownSection,
            true if is_shared(&name.name) => LeftOutReason::SharedName,
            true => return None,
        };
        Some(LeftOut { name: name.name.clone(), section: sections[f.section].0.to_string(), reason })
    });
    let left_out = left_out.collect();
    let statics = statics.filter(|(_, _, name)| !is_shared(&name.name));
    let mut list: Vec<_> = offered(text_only).chain(statics).collect();
    list.sort_by_key(|(id, ..)| *id);
    for (id, function, name) in list {
        let section = &sections[function.section].0;
        if !names.insert(name.name.as_str()) {
            let (symbol, section) = (name.name.clone(), section.as_ref().to_owned());
            return Err(ObjectError::Symbol { symbol, section, problem: SymbolProblem::Duplicate });
        }
        programs.push(Program {
            name: name.name.clone(),
            section: section.clone(),
            kind: ProgramType::from_section(section),
            insn_count: function.len,
            function: FunctionId(id),
            index: programs.len(),
        });
    }
    Ok((programs, left_out))
}

fn check_map_names(maps: &[MapDecl]) -> Result<(), ObjectError> {
    let mut names = HashSet::new();
    match maps.iter().find(|m| !names.insert(m.name.as_str())) {
        Some(map) => Err(ObjectError::Map { map: map.name.clone(), problem: MapProblem::Duplicate }),
        None => Ok(()),
    }
}

fn license(elf: &Elf<'_>) -> Result<Option<String>, ObjectError> {
    let Some(section) = elf.section_named("license")? else { return Ok(None) };
    let data = elf.sections[section].data;
    let text = data.split(|&b| b == 0).next().unwrap_or(&[]);
    let fail = ObjectError::Section { section: "license".to_owned(), problem: SectionProblem::NotText };
    if text.len() == data.len() && !data.is_empty() {
        return Err(fail);
    }
    let mut text = text.to_vec();
    crate::text::clean(&mut text);
    String::from_utf8(text).map(Some).map_err(|_| fail)
}

fn version(elf: &Elf<'_>) -> Result<Option<u32>, ObjectError> {
    let Some(section) = elf.section_named("version")? else { return Ok(None) };
    let data = elf.sections[section].data;
    match data.try_into() {
        Ok(word) => Ok(Some(u32::from_le_bytes(word))),
        Err(_) => Err(ObjectError::Section {
            section: "version".to_owned(),
            problem: SectionProblem::Size { got: data.len() as u64, want: 4 },
        }),
    }
}

/// Attaches the records of `.BTF.ext` to the functions they describe. Records between functions are dropped.
fn attach_ext(elf: &Elf<'_>, btf: &Btf, ext: &BtfExt, functions: &mut Functions) -> Result<(), ObjectError> {
    let fail = |offset, problem| ObjectError::Btf { section: ".BTF.ext", offset, problem };
    let mut sections: HashMap<&str, usize> = HashMap::new();
    for (index, section) in elf.sections.iter().enumerate().filter(|(_, s)| s.code) {
        // If several code sections have one name, the first counts: BTF cannot distinguish them.
        sections.entry(section.name).or_insert(index);
    }
    let find = |offset, name: StrOffset| {
        btf.check_string(name).map_err(|problem| fail(offset, problem))?;
        let name = btf.name(name);
        sections.get(name).copied().ok_or_else(|| fail(offset, BtfProblem::NoSection(name.to_owned())))
    };
    for block in &ext.funcs {
        let section = find(block.offset, block.section)?;
        for (offset, record) in block.iter() {
            if !matches!(btf.get(record.ty), Type::Func { .. }) {
                return Err(fail(offset, BtfProblem::TypeId(record.ty.0)));
            }
            if let Some(FunctionId(id)) = functions.starting_at(section, record.slot.into()) {
                functions.list[id].ty = Some(record.ty);
            }
        }
    }
    for block in &ext.lines {
        let section = find(block.offset, block.section)?;
        for (offset, record) in block.iter() {
            btf.check_string(record.file).and(btf.check_string(record.text)).map_err(|p| fail(offset, p))?;
            if let Some((FunctionId(id), slot)) = functions.at(section, record.slot.into()) {
                functions.list[id].lines.push(LineRecord { slot, ..*record });
            }
        }
    }
    for block in &ext.core {
        let section = find(block.offset, block.section)?;
        for (offset, record) in block.iter() {
            btf.check_string(record.access).map_err(|p| fail(offset, p))?;
            if CoreKind::new(record.kind).is_none() {
                return Err(fail(offset, BtfProblem::CoreKind(record.kind)));
            }
            if btf.types().len() <= record.ty.0 as usize {
                return Err(fail(offset, BtfProblem::TypeId(record.ty.0)));
            }
            if let Some((FunctionId(id), slot)) = functions.at(section, record.slot.into()) {
                functions.list[id].core.push(CoreRecord { slot, ..*record });
            }
        }
    }
    for function in &mut functions.list {
        function.lines.sort_by_key(|r| r.slot);
        function.core.sort_by_key(|r| r.slot);
    }
    Ok(())
}
