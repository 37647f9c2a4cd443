//! Linking: resolves a program's code against the host's functions and types.

use bpf_isa::{Imm64, Insn, InsnIdx};

use crate::co_re::{HostTypes, Unresolved, apply};
use crate::code::{Code, Reference, ReferenceKind};
use crate::error::{LinkProblem, ObjectError, PointerInData};
use crate::externs::HostFunction;
use crate::layout::build;
use crate::map::Variable;
use crate::object::{Object, Program};

/// A program all of whose references are resolved. The linker replaces the object's indices of maps and host
/// functions by its own, and gets a loaded program.
#[derive(Clone, Debug)]
pub struct LinkedCode {
    code: Code,
    unresolved: Vec<Unresolved>,
}

impl LinkedCode {
    /// The code.
    pub fn code(&self) -> &Code {
        &self.code
    }
    /// Returns the code.
    pub fn into_code(self) -> Code {
        self.code
    }
    /// The instructions whose CO-RE relocations have no value on this host, in order. Each was replaced by a call of
    /// [`crate::UNRESOLVED_CALL`], which must be unreachable.
    pub fn unresolved(&self) -> &[Unresolved] {
        &self.unresolved
    }
    /// The object's maps that this program refers to: sorted indices into [`Object::maps`].
    pub fn maps(&self) -> Vec<usize> {
        let mut maps: Vec<usize> = self
            .code
            .references
            .iter()
            .filter_map(|r| match r.kind {
                ReferenceKind::Map(map) | ReferenceKind::MapValue { map, .. } => Some(map),
                ReferenceKind::Table { .. }
                | ReferenceKind::HostCall(_)
                | ReferenceKind::HostAddress(_)
                | ReferenceKind::Extern(_) => None,
            })
            .collect();
        maps.sort_unstable();
        maps.dedup();
        maps
    }
}

impl Code {
    /// The error for an instruction that cannot be linked.
    pub fn refused(&self, insn: InsnIdx, problem: LinkProblem) -> ObjectError {
        let line = self.line(insn).map(|line| Box::new(line.into_owned()));
        ObjectError::Link { program: self.program.clone(), insn, line, problem }
    }
}

impl Object {
    /// Returns a program with its subprograms, for inspection: no external object needs to exist.
    ///
    /// # Errors
    /// A program of another object, an instruction that does not decode, a call without a valid target, or more than
    /// [`bpf_isa::MAX_INSNS`] instructions.
    pub fn code(&self, program: &Program) -> Result<Code, ObjectError> {
        self.check_own(program)?;
        build(self, program)
    }

    /// Returns a program with its subprograms, for loading. `has_host_function` says which host functions exist.
    ///
    /// A weak host function that does not exist has the address 0. A call of it stays in the code (as a
    /// [`bpf_isa::Callee::Host`]); the linker binds it to a function that ends the run.
    ///
    /// # Errors
    /// Returns the errors of [`Object::code`]. Other errors are a host function that is missing and not weak; a
    /// reference to an external variable that is not weak; a CO-RE relocation that needs a type; use of global data
    /// that contains addresses.
    pub fn link(
        &self,
        program: &Program,
        mut has_host_function: impl FnMut(&str) -> bool,
    ) -> Result<LinkedCode, ObjectError> {
        let by_name = |function: &HostFunction| has_host_function(&function.name);
        let linked = self.link_for(program, &HostTypes::new(&[]), by_name)?;
        match linked.unresolved.first() {
            None => Ok(linked),
            Some(Unresolved { insn, problem }) => Err(linked.code.refused(*insn, problem.clone())),
        }
    }

    /// Links for a host with these types, against which CO-RE relocations are resolved. One without a value is not an
    /// error here: see [`LinkedCode::unresolved`].
    ///
    /// # Errors
    /// Returns the errors of [`Object::link`], except for CO-RE relocations.
    pub fn link_for(
        &self,
        program: &Program,
        types: &HostTypes,
        mut has_host_function: impl FnMut(&HostFunction) -> bool,
    ) -> Result<LinkedCode, ObjectError> {
        let mut code = self.code(program)?;
        let fail = |code: &Code, insn, problem| Err(code.refused(insn, problem));
        let unresolved = apply(&mut code, types, self.target());
        for &Reference { insn, kind } in &code.references {
            match kind {
                ReferenceKind::Map(_) | ReferenceKind::Table { .. } => {}
                ReferenceKind::MapValue { map, .. } => {
                    let map = &self.maps()[map];
                    if let Some((offset, symbol)) = map.data.as_ref().and_then(|d| d.pointer.clone()) {
                        let section = map.section.clone();
                        let variables = map.data.iter().flat_map(|data| &data.variables);
                        let holds = |v: &&Variable| {
                            (v.offset.into()..u64::from(v.offset) + u64::from(v.size)).contains(&offset)
                        };
                        let variable = variables.clone().find(holds).map(|variable| variable.name.clone());
                        let line = code.line(insn).map(|line| format!("{}:{}", line.file, line.line));
                        let found = PointerInData { section, variable, line, offset, symbol };
                        return fail(&code, insn, LinkProblem::PointerInData(Box::new(found)));
                    }
                }
                ReferenceKind::HostCall(host) | ReferenceKind::HostAddress(host) => {
                    let function = &self.host_functions()[host];
                    let exists = has_host_function(function);
                    if !exists && !function.weak {
                        return fail(&code, insn, LinkProblem::NoHostFunction(function.name.clone()));
                    }
                    if kind == ReferenceKind::HostAddress(host)
                        && let Some(Insn::LoadImm64 { imm, .. }) = code.insns.get_mut(insn.index())
                    {
                        *imm = Imm64::Const(exists.into());
                    }
                }
                ReferenceKind::Extern(index) => {
                    let variable = &self.extern_variables()[index];
                    if !variable.weak {
                        let section = match variable.section.as_str() {
                            "" => "undefined symbol".to_owned(),
                            section => section.to_owned(),
                        };
                        return fail(&code, insn, LinkProblem::Extern { name: variable.name.clone(), section });
                    }
                }
            }
        }
        Ok(LinkedCode { code, unresolved })
    }
}
