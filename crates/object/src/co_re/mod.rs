//! CO-RE: adapting instructions to the types of the host.
//!
//! Problem: a program compiled with `preserve_access_index` says "the offset of `data_end` in `struct xdp_md`" and
//! leaves the number to the loader. Approach: the rules of libbpf, on the BTF types of the object and of the host. The
//! access string of a relocation is walked through the object's types ([`spec`]); the types of the same name on the
//! host are its candidates ([`types`]); each candidate is walked by the names and indices found, with kinds compared on
//! the way ([`compat`]); the object's type and the candidate's give one decision ([`value`]), which is put into the
//! instruction ([`patch`]). As in libbpf, a missing type or field is no error by itself, because programs ask first
//! (`bpf_core_field_exists`), and the verifier does not walk the branch for an existing field where the answer is no.
//! The instruction becomes a call of a function that does not exist ([`UNRESOLVED_CALL`]), and the reason is kept for
//! the error of a program that reaches that call.
//!
//! Candidates: the host's types of that name in [`HostTypes`] if there are any, else those of the BTF given with
//! [`crate::Object::target_btf`]. A relocation that some candidates of a type satisfy rules out the others for the
//! whole program. Candidates that remain must agree on the decision; if they differ, the relocation is ambiguous, and
//! refused like a missing field.
//!
//! Types that are the same everywhere (headers of packets) are their own targets ([`wire`]).
//!
//! Invariants: the number of slots does not change; every relocation is applied or listed in
//! [`crate::LinkedCode::unresolved`]; [`Work`] bounds the work for one program, for all types.
//!
//! Source: kinds and access strings, Documentation/bpf/btf.rst and llvm_reloc.rst; the rules, libbpf 1.6
//! (`relo_core.c`).

mod compat;
mod name;
mod patch;
mod spec;
mod types;
mod value;

use std::collections::HashMap;

use bpf_isa::{Callee, Insn, InsnIdx};

use crate::btf::{Btf, StrOffset, Type, TypeId};
use crate::code::{Code, CoreKind, CoreRelocation};
use crate::error::LinkProblem;
use crate::wire;
use compat::Matcher;
pub(crate) use name::essential;
use spec::Spec;
pub(crate) use types::Types;
pub use types::{CoreField, CoreType, FieldType, HostTypes};
use value::Decision;

/// The helper that an instruction calls whose CO-RE relocation is unresolved. No linker may offer it.
pub const UNRESOLVED_CALL: u32 = (1 << 29) - 1;

/// An instruction whose CO-RE relocation could not be resolved. It calls [`UNRESOLVED_CALL`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unresolved {
    /// The instruction.
    pub insn: InsnIdx,
    /// The reason for which it has no value.
    pub problem: LinkProblem,
}

/// Why a relocation has no value.
type Why = &'static str;

const NO_TYPE: Why = "this host has no such type";
const NO_FIELD: Why = "the type has no such field here";
const NO_ELEMENT: Why = "the array has no such element here";
const NO_VALUE: Why = "the enumeration has no such value here";
const OTHER_KIND: Why = "the field is of another kind here (a number, a pointer, an array, a structure)";
const AMBIGUOUS: Why = "several types here have this name, and they differ in it";
const ANONYMOUS: Why = "an anonymous type cannot be looked for: give it a name";
const MALFORMED: Why = "the access string does not fit the type";
const TOO_DEEP: Why = "the types are nested too deeply";
const TOO_MUCH_WORK: Why = "the program's relocations ask for more types and members than are looked at";

/// Bytes of a name or a path in a message: a relocation takes 16 bytes of its object, and its names may take thousands.
const SHOWN: usize = 160;

/// A bound on the types and members that the relocations of one program look at. The largest programs known look at
/// less than a hundredth of it.
struct Work {
    left: u32,
}

impl Work {
    fn new() -> Work {
        Work { left: 1 << 24 }
    }

    /// Takes one step for each 32 bytes of a name that may be compared.
    fn step(&mut self, name: usize) -> Result<(), Why> {
        let cost = u32::try_from(1 + name / 32).unwrap_or(u32::MAX);
        self.left = self.left.checked_sub(cost).ok_or(TOO_MUCH_WORK)?;
        Ok(())
    }
}

/// A type of the host with the name of a type of the object.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    types: &'a Types,
    id: TypeId,
}

/// The candidates of a type of the object, and which of them no relocation has ruled out.
struct Root<'a> {
    candidates: Vec<Candidate<'a>>,
    live: Vec<bool>,
}

/// The key of a relocation: its type, access string and kind. Relocations with equal keys share one answer.
type Question = (TypeId, StrOffset, CoreKind);

/// The decision for each candidate that satisfies a question, with the candidate's index in [`Root::candidates`].
type Found = Vec<(usize, Result<Decision, Why>)>;

/// The answers to a question.
struct Answers {
    /// The candidates' answers; or the error of walking the object's own type.
    found: Result<Found, Why>,
    /// The reason, if no candidate satisfies the question.
    missing: Why,
}

/// Applies all relocations of a program, and returns the unresolved ones.
pub(crate) fn apply(code: &mut Code, host: &HostTypes, target: Option<&Types>) -> Vec<Unresolved> {
    let Some(btf) = code.btf.clone() else { return Vec::new() };
    let mut resolver =
        Resolver { btf: &btf, host, target, work: Work::new(), matcher: Matcher::default(), roots: HashMap::new() };
    let mut answers: HashMap<Question, Answers> = HashMap::new();
    // First all questions, since each may rule out candidates of the others.
    for relocation in code.core.iter().filter(|relocation| !is_own_target(&btf, relocation, host, target)) {
        let question = (relocation.ty, relocation.access, relocation.kind);
        answers.entry(question).or_insert_with(|| resolver.ask(relocation));
    }
    let mut unresolved = Vec::new();
    for relocation in &code.core {
        // Absent: a type that is its own target.
        let Some(answers) = answers.get(&(relocation.ty, relocation.access, relocation.kind)) else { continue };
        let at = relocation.insn.index();
        let decision = resolver.decide(relocation, answers);
        if let Err(why) = decision.and_then(|decision| patch::apply(&mut code.insns, at, &decision)) {
            // One reason is recorded per instruction, however many relocations it has.
            if unresolved.last().is_none_or(|last: &Unresolved| last.insn != relocation.insn) {
                let problem = LinkProblem::Core {
                    kind: relocation.kind.name(),
                    type_name: short(btf.type_name(relocation.ty)),
                    field: spec::shown(&btf, relocation),
                    why,
                };
                unresolved.push(Unresolved { insn: relocation.insn, problem });
            }
            // Both slots of a wide instruction.
            let slots = code.insns.get(at).map_or(1, |insn| insn.slots() as usize);
            for slot in code.insns.iter_mut().skip(at).take(slots) {
                *slot = Insn::Call(Callee::Helper(UNRESOLVED_CALL));
            }
        }
    }
    unresolved
}

/// A name or a path, as long as a message needs it.
fn short(name: &str) -> String {
    match name.char_indices().map(|(at, _)| at).find(|at| *at >= SHOWN) {
        Some(end) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Whether the object's own type is the target: then the compiler's numbers are correct.
fn is_own_target(btf: &Btf, relocation: &CoreRelocation, host: &HostTypes, target: Option<&Types>) -> bool {
    let root = btf.resolve(relocation.ty);
    let Type::Composite { .. } = btf.get(root) else { return false };
    let own = relocation.kind != CoreKind::TypeIdTarget && wire::is_fixed(essential(btf.type_name(root)));
    let here = |types: &Types| types.candidates(btf, root).next().is_some();
    own && !here(host.types()) && !target.is_some_and(here)
}

struct Resolver<'a> {
    btf: &'a Btf,
    host: &'a HostTypes,
    target: Option<&'a Types>,
    work: Work,
    matcher: Matcher,
    roots: HashMap<TypeId, Root<'a>>,
}

impl<'a> Resolver<'a> {
    /// Finds the candidates of a type: those of the host, else those of the target's BTF.
    fn candidates(&mut self, root: TypeId) -> Result<Root<'a>, Why> {
        let mut candidates = Vec::new();
        // The integers of C are in every BTF; the target's may have other sizes than ours.
        let is_int = matches!(self.btf.get(root), Type::Int { .. });
        let host = Some(self.host.types()).filter(|_| !is_int || self.target.is_none());
        for types in [host, self.target].into_iter().flatten() {
            for id in types.candidates(self.btf, root) {
                self.work.step(0)?;
                candidates.push(Candidate { types, id });
            }
            if !candidates.is_empty() {
                break;
            }
        }
        let live = vec![true; candidates.len()];
        Ok(Root { candidates, live })
    }

    /// Answers a relocation by every candidate that is not ruled out yet, and rules out the candidates that do not
    /// satisfy it, unless none does.
    fn ask(&mut self, relocation: &CoreRelocation) -> Answers {
        let mut missing = NO_TYPE;
        let found = self.answers(relocation, &mut missing);
        Answers { found, missing }
    }

    fn answers(&mut self, relocation: &CoreRelocation, missing: &mut Why) -> Result<Found, Why> {
        let local = Spec::parse(self.btf, relocation)?;
        if relocation.kind == CoreKind::TypeIdLocal {
            return Ok(Vec::new());
        }
        if self.btf.string_bytes(self.btf.name_offset(relocation.ty)).is_empty() {
            return Err(ANONYMOUS);
        }
        let own = value::of(relocation.kind, &local)?;
        let root = match self.roots.remove(&relocation.ty) {
            Some(root) => root,
            None => self.candidates(relocation.ty)?,
        };
        let mut found = Vec::new();
        let mut failed = None;
        for (index, candidate) in root.candidates.iter().enumerate().filter(|(index, _)| root.live[*index]) {
            match self.matching(relocation.kind, &local, candidate) {
                Ok(Ok(spec)) => {
                    let theirs = value::of(relocation.kind, &spec);
                    found.push((index, theirs.map(|theirs| Decision::new(&own, self.btf, &theirs, spec.btf))));
                }
                Ok(Err(why)) => *missing = why,
                Err(why) => failed = Some(why),
            }
        }
        let mut root = root;
        if !found.is_empty() {
            root.live.fill(false);
            found.iter().for_each(|(index, _)| root.live[*index] = true);
        }
        self.roots.insert(relocation.ty, root);
        failed.map_or(Ok(found), Err)
    }

    /// The candidate's side of a relocation; or why it has none. The outer error ends the search.
    fn matching(
        &mut self,
        kind: CoreKind,
        local: &Spec<'a>,
        candidate: &Candidate<'a>,
    ) -> Result<Result<Spec<'a>, Why>, Why> {
        let theirs = &candidate.types.btf;
        let fits = match kind {
            CoreKind::FieldByteOffset
            | CoreKind::FieldByteSize
            | CoreKind::FieldExists
            | CoreKind::FieldSigned
            | CoreKind::FieldLshift
            | CoreKind::FieldRshift => return local.find_field(candidate, &mut self.work),
            CoreKind::EnumvalExists | CoreKind::EnumvalValue => return local.find_value(candidate, &mut self.work),
            CoreKind::TypeMatches => {
                self.matcher.types_match(&mut self.work, self.btf, local.root, theirs, candidate.id)?
            }
            CoreKind::TypeIdLocal | CoreKind::TypeIdTarget | CoreKind::TypeExists | CoreKind::TypeSize => {
                compat::types_are_compatible(&mut self.work, (self.btf, local.root), (theirs, candidate.id))?
            }
        };
        Ok(if fits { Ok(Spec::of_type(theirs, candidate.id, candidate.types.numbered)) } else { Err(NO_TYPE) })
    }

    /// The decision on which the remaining candidates agree.
    fn decide(&self, relocation: &CoreRelocation, answers: &Answers) -> Result<Decision, Why> {
        let found = answers.found.as_ref().map_err(|why| *why)?;
        if relocation.kind == CoreKind::TypeIdLocal {
            return Ok(Decision::unchecked(relocation.ty.0.into()));
        }
        let root = self.roots.get(&relocation.ty);
        let is_live = |index: usize| root.is_some_and(|root| root.live.get(index) == Some(&true));
        let mut live = found.iter().filter(|(index, _)| is_live(*index)).map(|(_, decision)| decision);
        match live.next() {
            Some(first) if live.all(|other| other == first) => first.clone(),
            Some(_) => Err(AMBIGUOUS),
            None if value::is_zero_if_missing(relocation.kind) => Ok(Decision::unchecked(0)),
            None => Err(answers.missing),
        }
    }
}
