//! One program's instructions, complete: the program and every subprogram it reaches.
//!
//! Functions are appended in the order they are first reached, the program itself first; calls and function addresses
//! between them become relative to their new places, map references become indices into the object's maps, and calls
//! of host functions indices into its host functions. Relative jumps inside a function move with it unchanged. A call
//! into the *same* function (assembly with local labels) is left as it is: the function is copied whole.
//!
//! Invariants: every index is in range for the [`Object`] it came from; at most [`MAX_INSNS`] slots.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bpf_isa::{Callee, Imm64, Insn, InsnIdx, MAX_INSNS};

use crate::btf::{Btf, LineRecord, TypeId};
use crate::error::{CallProblem, LinkProblem, ObjectError};
use crate::function::{Function, FunctionId, Target};
use crate::kind::ProgramKind;
use crate::object::{Object, Program};

/// A function inside a program's instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeFunction {
    /// Name.
    pub name: String,
    /// The ELF section it came from.
    pub section: Arc<str>,
    /// First slot in that section.
    pub section_slot: u32,
    /// First slot here.
    pub start: InsnIdx,
    /// Length in slots.
    pub len: u32,
    /// Global: to be verified by its prototype alone.
    pub global: bool,
    /// Its [`crate::btf::Type::Func`], when BTF has it.
    pub ty: Option<TypeId>,
}

/// What an instruction refers to outside of its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReferenceKind {
    /// A map, by index into [`Object::maps`].
    Map(usize),
    /// A byte of a map's value.
    MapValue {
        /// Index into [`Object::maps`].
        map: usize,
        /// Byte offset.
        off: u32,
    },
    /// A call of a host function, by index into [`Object::host_functions`].
    HostCall(usize),
    /// The address of a host function, which only tells whether it exists.
    HostAddress(usize),
    /// An external variable, by index into [`Object::extern_variables`].
    Extern(usize),
}

/// An instruction that refers to something outside of its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// The instruction.
    pub insn: InsnIdx,
    /// What it refers to.
    pub kind: ReferenceKind,
}

/// What a CO-RE relocation asks for (btf.rst, `enum bpf_core_relo_kind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CoreKind {
    /// Byte offset of a field.
    FieldByteOffset,
    /// Byte size of a field.
    FieldByteSize,
    /// Whether a field exists.
    FieldExists,
    /// Whether a field is signed.
    FieldSigned,
    /// Left shift to extract a bit field.
    FieldLshift,
    /// Right shift to extract a bit field.
    FieldRshift,
    /// Type id in the local BTF.
    TypeIdLocal,
    /// Type id in the target BTF.
    TypeIdTarget,
    /// Whether a type exists.
    TypeExists,
    /// Size of a type.
    TypeSize,
    /// Whether an enumerator exists.
    EnumvalExists,
    /// Value of an enumerator.
    EnumvalValue,
    /// Whether a type matches.
    TypeMatches,
}

impl CoreKind {
    /// Kinds by number, with the names LLVM and libbpf print.
    const ALL: [(CoreKind, &'static str); 13] = [
        (CoreKind::FieldByteOffset, "byte_off"),
        (CoreKind::FieldByteSize, "byte_sz"),
        (CoreKind::FieldExists, "field_exists"),
        (CoreKind::FieldSigned, "signed"),
        (CoreKind::FieldLshift, "lshift_u64"),
        (CoreKind::FieldRshift, "rshift_u64"),
        (CoreKind::TypeIdLocal, "local_type_id"),
        (CoreKind::TypeIdTarget, "target_type_id"),
        (CoreKind::TypeExists, "type_exists"),
        (CoreKind::TypeSize, "type_size"),
        (CoreKind::EnumvalExists, "enumval_exists"),
        (CoreKind::EnumvalValue, "enumval_value"),
        (CoreKind::TypeMatches, "type_matches"),
    ];

    pub(crate) fn new(number: u32) -> Option<CoreKind> {
        CoreKind::ALL.get(number as usize).map(|&(kind, _)| kind)
    }

    /// The name LLVM and libbpf print.
    pub fn name(self) -> &'static str {
        CoreKind::ALL[self as usize].1
    }
}

/// A CO-RE relocation: the instruction's immediate or offset depends on a type's layout on the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreRelocation {
    /// The instruction.
    pub insn: InsnIdx,
    /// What is asked for.
    pub kind: CoreKind,
    /// The root type in the object's BTF.
    pub ty: TypeId,
    /// Its name; empty if anonymous.
    pub type_name: String,
    /// Member, array or enumerator indices from the root, `0:1:2`.
    pub access: String,
}

/// The source line of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLine<'a> {
    /// File name.
    pub file: Cow<'a, str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
    /// The line's text; empty if the compiler could not read it.
    pub text: Cow<'a, str>,
}

/// A program with its subprograms, before it is linked with the outside.
#[derive(Clone, Debug)]
pub struct Code {
    program: String,
    kind: ProgramKind,
    insns: Vec<Insn>,
    functions: Vec<CodeFunction>,
    references: Vec<Reference>,
    core: Vec<CoreRelocation>,
    lines: Vec<LineRecord>,
    btf: Option<Arc<Btf>>,
}

impl Code {
    /// The program's name.
    pub fn program(&self) -> &str {
        &self.program
    }
    /// The program's kind.
    pub fn kind(&self) -> ProgramKind {
        self.kind
    }
    /// One instruction a slot: [`Imm64::MapIdx`], [`Imm64::MapIdxValue`] and [`Callee::Host`] hold indices into the
    /// object's maps and host functions.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }
    /// The functions in order; the first is the program.
    pub fn functions(&self) -> &[CodeFunction] {
        &self.functions
    }
    /// References to the outside, in instruction order.
    pub fn references(&self) -> &[Reference] {
        &self.references
    }
    /// CO-RE relocations, which nobody has applied, in instruction order.
    pub fn core_relocations(&self) -> &[CoreRelocation] {
        &self.core
    }
    /// The function an instruction belongs to.
    pub fn function_at(&self, insn: InsnIdx) -> Option<&CodeFunction> {
        let after = self.functions.partition_point(|f| f.start <= insn);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (insn.0 - function.start.0 < function.len).then_some(function)
    }
    /// The source line an instruction came from.
    pub fn line(&self, insn: InsnIdx) -> Option<SourceLine<'_>> {
        let btf = self.btf.as_deref()?;
        let function = self.function_at(insn)?;
        let after = self.lines.partition_point(|l| l.slot <= insn.0);
        let record = self.lines.get(after.checked_sub(1)?).filter(|l| l.slot >= function.start.0)?;
        Some(SourceLine {
            file: btf.text(record.file),
            line: record.line,
            column: record.column,
            text: btf.text(record.text),
        })
    }
    /// The object's types.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.as_deref()
    }
}

/// A program all of whose references are resolved: what a linker turns into a loaded program by putting its own map
/// and host function indices in place of the object's.
#[derive(Clone, Debug)]
pub struct LinkedCode(Code);

impl LinkedCode {
    /// The code.
    pub fn code(&self) -> &Code {
        &self.0
    }
    /// Gives up the code.
    pub fn into_code(self) -> Code {
        self.0
    }
    /// The object's maps this program refers to: sorted indices into [`Object::maps`].
    pub fn maps(&self) -> Vec<usize> {
        let mut maps: Vec<usize> = self
            .0
            .references
            .iter()
            .filter_map(|r| match r.kind {
                ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } => Some(map),
                ReferenceKind::HostCall(_) | ReferenceKind::HostAddress(_) | ReferenceKind::Extern(_) => None,
            })
            .collect();
        maps.sort_unstable();
        maps.dedup();
        maps
    }
}

impl Object {
    /// A program with its subprograms, for looking at: nothing outside of the object needs to exist.
    ///
    /// # Errors
    /// An instruction that does not decode, a call that leads nowhere, or more than [`MAX_INSNS`] instructions.
    pub fn code(&self, program: &Program) -> Result<Code, ObjectError> {
        Builder::new(self, program)?.build()
    }

    /// A program with its subprograms, for loading. `has_host_function` says which host functions exist.
    ///
    /// A weak host function that does not exist has the address 0; a call of it remains in the code (as a
    /// [`Callee::Host`]), for the linker to bind to something that ends the run.
    ///
    /// # Errors
    /// Those of [`Object::code`]; a host function that is missing and not weak; a reference to an external variable
    /// that is not weak; a CO-RE relocation; use of global data that contains addresses.
    pub fn link(
        &self,
        program: &Program,
        mut has_host_function: impl FnMut(&str) -> bool,
    ) -> Result<LinkedCode, ObjectError> {
        let mut code = self.code(program)?;
        let fail = |insn, problem| Err(ObjectError::Link { program: program.name().to_owned(), insn, problem });
        if let Some(core) = code.core.first() {
            let problem = LinkProblem::Core {
                kind: core.kind.name(),
                type_name: core.type_name.clone(),
                access: core.access.clone(),
            };
            return fail(core.insn, problem);
        }
        let exists: Vec<bool> = self.host_functions().iter().map(|f| has_host_function(&f.name)).collect();
        for &Reference { insn, kind } in &code.references {
            match kind {
                ReferenceKind::Map(_) => {}
                ReferenceKind::MapValue { map, .. } => {
                    let map = &self.maps()[map];
                    if let Some((offset, symbol)) = map.data.as_ref().and_then(|d| d.pointer.clone()) {
                        let section = map.section.clone();
                        return fail(insn, LinkProblem::PointerInData { section, offset, symbol });
                    }
                }
                ReferenceKind::HostCall(host) | ReferenceKind::HostAddress(host) => {
                    let function = &self.host_functions()[host];
                    if !exists[host] && !function.weak {
                        return fail(insn, LinkProblem::NoHostFunction(function.name.clone()));
                    }
                    if kind == ReferenceKind::HostAddress(host)
                        && let Some(Insn::LoadImm64 { imm, .. }) = code.insns.get_mut(insn.index())
                    {
                        *imm = Imm64::Const(exists[host].into());
                    }
                }
                ReferenceKind::Extern(index) => {
                    let variable = &self.extern_variables()[index];
                    if !variable.weak {
                        let section = match variable.section.as_str() {
                            "" => "undefined symbol".to_owned(),
                            section => section.to_owned(),
                        };
                        return fail(insn, LinkProblem::Extern { name: variable.name.clone(), section });
                    }
                }
            }
        }
        Ok(LinkedCode(code))
    }
}

/// Lays out the functions a program reaches, then copies and patches them one by one.
struct Builder<'a> {
    object: &'a Object,
    order: Vec<FunctionId>,
    starts: HashMap<FunctionId, u32>,
    /// Slots laid out so far.
    len: usize,
    code: Code,
}

impl<'a> Builder<'a> {
    fn new(object: &'a Object, program: &Program) -> Result<Builder<'a>, ObjectError> {
        let code = Code {
            program: program.name().to_owned(),
            kind: program.kind(),
            insns: Vec::new(),
            functions: Vec::new(),
            references: Vec::new(),
            core: Vec::new(),
            lines: Vec::new(),
            btf: object.btf.clone(),
        };
        let mut builder = Builder { object, order: Vec::new(), starts: HashMap::new(), len: 0, code };
        builder.place(program.function)?;
        Ok(builder)
    }

    /// Where a function starts; appends it if it is new.
    fn place(&mut self, id: FunctionId) -> Result<u32, ObjectError> {
        if let Some(&start) = self.starts.get(&id) {
            return Ok(start);
        }
        let start = self.len;
        self.len += self.object.functions.get(id)?.len as usize;
        if self.len > MAX_INSNS {
            return Err(ObjectError::TooManyInsns { program: self.code.program.clone(), max: MAX_INSNS });
        }
        // Fits: at most MAX_INSNS.
        let start = start as u32;
        self.starts.insert(id, start);
        self.order.push(id);
        Ok(start)
    }

    fn build(mut self) -> Result<Code, ObjectError> {
        let mut next = 0;
        while let Some(&id) = self.order.get(next) {
            self.copy(id)?;
            next += 1;
        }
        Ok(self.code)
    }

    fn copy(&mut self, id: FunctionId) -> Result<(), ObjectError> {
        let function = self.object.functions.get(id)?;
        let section = self.object.section_name(function.section)?;
        let body = function.body.as_ref().map_err(|source| ObjectError::Decode {
            section: section.as_ref().to_owned(),
            function: function.name().to_owned(),
            start: function.start,
            source: source.clone(),
        })?;
        let start = self.place(id)?;
        let mut refs = function.refs.iter().peekable();
        for (slot, &insn) in (0u32..).zip(body) {
            let here = InsnIdx(start + slot);
            let target = refs.next_if(|r| r.0 == slot).map(|r| r.1);
            let insn = match target {
                Some(target) => self.patch(here, insn, target)?,
                None => self.patch_internal(function, slot, here, insn)?,
            };
            self.code.insns.push(insn);
        }
        self.describe(function, start, section)
    }

    /// An instruction with a relocation.
    fn patch(&mut self, here: InsnIdx, insn: Insn, target: Target) -> Result<Insn, ObjectError> {
        let kind = match target {
            Target::Function(id) => {
                let target = self.place(id)?;
                return with_function(insn, here, target);
            }
            Target::Map(map) => ReferenceKind::Map(map),
            Target::MapValue { map, off } => ReferenceKind::MapValue { map, off },
            Target::HostCall(host) => ReferenceKind::HostCall(host),
            Target::HostAddress(host) => ReferenceKind::HostAddress(host),
            Target::Extern(index) => ReferenceKind::Extern(index),
        };
        self.code.references.push(Reference { insn: here, kind });
        // Indices fit: what they count takes more than a byte each in a file.
        Ok(match (insn, kind) {
            (Insn::LoadImm64 { dst, .. }, ReferenceKind::Map(map)) => {
                Insn::LoadImm64 { dst, imm: Imm64::MapIdx(map as i32) }
            }
            (Insn::LoadImm64 { dst, .. }, ReferenceKind::MapValue { map, off }) => {
                Insn::LoadImm64 { dst, imm: Imm64::MapIdxValue { map: map as i32, off } }
            }
            (Insn::LoadImm64 { dst, .. }, ReferenceKind::HostAddress(_) | ReferenceKind::Extern(_)) => {
                Insn::LoadImm64 { dst, imm: Imm64::Const(0) }
            }
            (Insn::Call(_), ReferenceKind::HostCall(host)) => Insn::Call(Callee::Host(host as i32)),
            _ => return Err(ObjectError::Internal("a relocation on the wrong instruction")),
        })
    }

    /// An instruction without one: calls and function addresses inside a section are relative already.
    fn patch_internal(
        &mut self,
        function: &Function,
        slot: u32,
        here: InsnIdx,
        insn: Insn,
    ) -> Result<Insn, ObjectError> {
        let offset = match insn {
            Insn::Call(Callee::Subprog(offset)) | Insn::LoadImm64 { imm: Imm64::Func(offset), .. } => offset,
            _ => return Ok(insn),
        };
        let inside = i64::from(slot) + 1 + i64::from(offset);
        if (0..i64::from(function.len)).contains(&inside) {
            return Ok(insn);
        }
        let target = i64::from(function.start) + inside;
        let found = self.object.functions.starting_at(function.section, target);
        let Some(id) = found else {
            let slots = self.object.section_slots(function.section);
            let problem = match (0..slots).contains(&target) {
                true => CallProblem::NotAFunction(target),
                false => CallProblem::OutOfSection(target),
            };
            return Err(ObjectError::Call {
                section: self.object.section_name(function.section)?.as_ref().to_owned(),
                function: function.name().to_owned(),
                insn: InsnIdx(slot),
                problem,
            });
        };
        let target = self.place(id)?;
        with_function(insn, here, target)
    }

    fn describe(&mut self, function: &Function, start: u32, section: &Arc<str>) -> Result<(), ObjectError> {
        let name = match start {
            0 => self.code.program.clone(), // A function of several names: the one asked for.
            _ => function.name().to_owned(),
        };
        self.code.functions.push(CodeFunction {
            name,
            section: section.clone(),
            section_slot: function.start,
            start: InsnIdx(start),
            len: function.len,
            global: function.names.iter().any(|n| n.exported),
            ty: function.ty,
        });
        self.code.lines.extend(function.lines.iter().map(|line| LineRecord { slot: line.slot + start, ..*line }));
        for record in &function.core {
            let (Some(kind), Some(btf)) = (CoreKind::new(record.kind), &self.code.btf) else {
                return Err(ObjectError::Internal("an unchecked CO-RE relocation"));
            };
            self.code.core.push(CoreRelocation {
                insn: InsnIdx(start + record.slot),
                kind,
                ty: record.ty,
                type_name: btf.type_name(record.ty).to_owned(),
                access: btf.name(record.access).to_owned(),
            });
        }
        Ok(())
    }
}

/// `insn`, at `here`, calling or loading the address of the function at `target`.
fn with_function(insn: Insn, here: InsnIdx, target: u32) -> Result<Insn, ObjectError> {
    // Both are at most MAX_INSNS.
    let offset = target as i32 - here.0 as i32 - 1;
    match insn {
        Insn::Call(_) => Ok(Insn::Call(Callee::Subprog(offset))),
        Insn::LoadImm64 { dst, .. } => Ok(Insn::LoadImm64 { dst, imm: Imm64::Func(offset) }),
        _ => Err(ObjectError::Internal("a function reference on the wrong instruction")),
    }
}
