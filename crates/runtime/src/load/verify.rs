//! From an object's program to a verified one.
//!
//! The verifier takes plain data: the maps' shapes, the functions' prototypes, signatures of global functions from BTF,
//! source lines for its messages. This module gathers that data, and rewrites context accesses by the verifier's facts:
//! a load of `data` from a `struct xdp_md` becomes a load of a 64-bit pointer from our own structure, in the
//! instructions themselves, so that interpreter and JIT need to know nothing about contexts.

use crate::call::helpers::kfuncs::at_site as kfunc_at_site;
use crate::call::helpers::print::at_site;
use crate::call::helpers::probe;
use crate::context::ContextLayout;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::load::owned::Types;
use crate::program::bound::Bound;
use crate::program::references::{Called, Declared, References};
use bpf_analysis::{Facts, FormatCall};
use bpf_isa::{Callee, Insn, Program, Size, Src};
use bpf_maps::{MapType, flags};
use bpf_object::btf::{ArgKind, ArgTags, Btf, Type, TypeId};
use bpf_uapi::{Helper, Kfunc};
use bpf_verifier::{
    Access, Env, GlobalArg, GlobalFunc, HelperProto, Helpers, KnownArena, KnownMap, Proof, ProofError, SourceLine,
    Verifier, VerifyError,
};
use std::collections::HashMap;

/// The input of a verification besides the program itself.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    pub(crate) references: &'a References,
    pub(crate) layout: &'static ContextLayout,
    pub(crate) helpers: &'a Helpers,
    /// The object's view of the program: functions, types, lines.
    pub(crate) code: Option<&'a bpf_object::Code>,
    /// The program's proof in the object.
    pub(crate) proof: &'a Carried<'a>,
}

/// The bytes of a program's proof in its object, or why there is none.
pub(crate) type Carried<'a> = Result<&'a [u8], ProofError>;

/// The use that a load makes of proofs that an object carries of its programs (`bpf prove`). Set by
/// [`crate::Loader::proofs`].
///
/// A proof of any origin need not be trusted: it is checked for the program, maps and context at hand. If the proof
/// holds, the compiler relies on the facts of the check. These lack the ranges of numbers and bounds of loops that the
/// verifier finds, so the machine code may be slower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Proofs {
    /// Check a proof that is there. A program without one, or whose proof does not hold, is verified by search. Both
    /// the verifier and the trusted core must then be right for every object.
    Check,
    /// Refuse programs that have no proof or whose proof does not hold ([`LoadError::Proof`]).
    Require,
    /// Verify every program by search, as if objects carried no proofs.
    #[default]
    Ignore,
}

/// A verified program, its context accesses rewritten, with the facts about it.
pub(crate) struct Checked {
    pub(crate) program: Program,
    pub(crate) facts: Facts,
    /// The source lines of the instructions.
    pub(crate) lines: Vec<SourceLine>,
    /// The verifier's walk; empty unless requested.
    pub(crate) log: Vec<String>,
    pub(crate) stats: bpf_verifier::Stats,
    /// Whether the program's proof holds; `None` if it was not checked.
    pub(crate) proof: Option<Result<(), ProofError>>,
}

/// Options of a verification.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Record the walk.
    pub(crate) log: bool,
    /// Leave unproven conditions that can be checked to run time.
    pub(crate) hybrid: bool,
    /// Let the program expose addresses.
    pub(crate) privileged: bool,
    /// Let the program sleep.
    pub(crate) sleepable: bool,
    /// Let the program sleep where its loops begin a round.
    pub(crate) yields: bool,
    /// Determine the object that each access is confined to, or refuse the program.
    pub(crate) contained: bool,
    /// Record the ranges of numbers.
    pub(crate) values: bool,
    /// Whether proofs are checked.
    pub(crate) proofs: Proofs,
    /// Whether the program is a method without a result, whose r0 is not read and may be anything.
    pub(crate) interface: bool,
}

/// Verifies a program.
pub(crate) fn verify(
    engine: &Engine,
    subject: &Subject<'_>,
    program: Program,
    options: Options,
) -> Result<Checked, LoadError> {
    let lines = subject.code.map(lines).unwrap_or_default();
    let checked = with_env(engine, subject, &lines, program, options, |program, env| {
        verdict(engine, subject, program, env, options)
    })?;
    Ok(Checked { lines, ..checked })
}

/// Looks for a proof of a program, with `fuel` for each pass of the search.
pub(crate) fn prove(
    engine: &Engine,
    subject: &Subject<'_>,
    program: Program,
    options: Options,
    fuel: u64,
) -> Result<Proof, bpf_verifier::Unproven> {
    with_env(engine, subject, &[], program, options, |program, env| Proof::search(&program, env, fuel))
}

/// Calls a function with a program and the environment that it is verified against.
fn with_env<R>(
    engine: &Engine,
    subject: &Subject<'_>,
    lines: &[SourceLine],
    program: Program,
    Options { log, hybrid, privileged, sleepable, yields, values, interface, .. }: Options,
    f: impl FnOnce(Program, &Env<'_>) -> R,
) -> R {
    let config = engine.config();
    let mut types = Types::default();
    let maps: Vec<KnownMap> = subject.references.maps.iter().map(|map| known_map(map, &mut types)).collect();
    let local_types = types.local(subject.references);
    let host: Vec<HelperProto> = subject
        .references
        .functions
        .host
        .iter()
        .enumerate()
        .map(|(i, bound)| match bound {
            Some(bound) => bound.proto.clone(),
            // Calling it ends the run.
            None => HelperProto::new(crate::num::small(i), "missing weak function", &[], bpf_verifier::Ret::Never),
        })
        .collect();
    let globals = subject.code.map(|code| global_functions(code, &program, subject.layout)).unwrap_or_default();
    #[cfg(feature = "oracle")]
    let globals = crate::oracle::globals().unwrap_or(globals);
    let env = Env {
        maps: &maps,
        types: &types.types,
        local_types: &local_types,
        host_functions: &host,
        global_functions: &globals,
        lines,
        frame_bytes: config.frame_bytes,
        limits: config.limits,
        log,
        hybrid,
        privileged,
        sleepable,
        yields,
        values,
        void: interface && subject.code.is_some_and(is_void),
        exception: subject.code.and_then(|code| program.subprog_starting_at(code.exception_callback()?)),
        #[cfg(feature = "oracle")]
        record_states: crate::oracle::recording(),
        #[cfg(feature = "oracle")]
        merge_after: crate::oracle::merge_after(&program),
        ..Env::new(subject.layout, subject.helpers)
    };
    f(program, &env)
}

/// Verifies a program in its environment; the result has no source lines yet.
fn verdict(
    engine: &Engine,
    subject: &Subject<'_>,
    program: Program,
    env: &Env<'_>,
    Options { contained, proofs, .. }: Options,
) -> Result<Checked, LoadError> {
    #[cfg(feature = "oracle")]
    if let Some((mut facts, stats)) = crate::oracle::kept(&program, subject.layout, env) {
        if contained {
            contain(subject.name, &program, env, &mut facts)?;
        }
        let program = rewrite(subject.name, program, &facts)?;
        return Ok(Checked { program, facts, lines: Vec::new(), log: Vec::new(), stats, proof: None });
    }
    #[cfg(feature = "oracle")]
    if contained && crate::oracle::is_believing() {
        let mut facts = Facts::default();
        contain(subject.name, &program, env, &mut facts)?;
        let program = rewrite(subject.name, program, &facts)?;
        let stats = bpf_verifier::Stats::default();
        return Ok(Checked { program, facts, lines: Vec::new(), log: Vec::new(), stats, proof: None });
    }
    let carried = || Proof::from_bytes_within(subject.proof.clone()?, env.limits.memory)?.check(&program, env);
    let proof = match proofs {
        Proofs::Ignore => None,
        Proofs::Check | Proofs::Require => match carried() {
            Ok(mut facts) => {
                if contained {
                    contain(subject.name, &program, env, &mut facts)?;
                }
                let program = rewrite(subject.name, program, &facts)?;
                let stats = bpf_verifier::Stats::default();
                let (lines, proof) = (Vec::new(), Some(Ok(())));
                return Ok(Checked { program, facts, lines, log: Vec::new(), stats, proof });
            }
            Err(source) if proofs == Proofs::Require => {
                return Err(LoadError::Proof { program: subject.name.to_owned(), source });
            }
            Err(source) => Some(source),
        },
    };
    let fail = |source: Box<VerifyError>| {
        let program = subject.name.to_owned();
        match source.verdict_is_unknown() {
            true => LoadError::VerdictUnknown { program, source },
            false => LoadError::Verifier { program, source },
        }
    };
    let verify = |verifier: &mut Verifier| {
        #[cfg(feature = "oracle")]
        if let Some(verified) = crate::oracle::the_way().and_then(|way| verifier.verify_by(program.clone(), env, way)) {
            return verified;
        }
        verifier.verify(program, env)
    };
    let verified = engine.0.verifiers.lend(verify).map_err(fail)?;
    #[cfg(feature = "oracle")]
    let verified = {
        let mut verified = verified;
        crate::oracle::keep(&mut verified, subject.layout, env);
        verified
    };
    let (stats, log) = (verified.stats(), verified.log().to_vec());
    let (program, mut facts) = verified.into_parts();
    if contained {
        contain(subject.name, &program, env, &mut facts)?;
    }
    let program = rewrite(subject.name, program, &facts)?;
    Ok(Checked { program, facts, lines: Vec::new(), log, stats, proof: proof.map(Err) })
}

/// Determines the object that each access is confined to.
fn contain(name: &str, program: &Program, env: &Env<'_>, facts: &mut Facts) -> Result<(), LoadError> {
    bpf_verifier::contain(program, env, facts).map_err(|source| {
        let line = env.lines.iter().rev().find(|line| line.insn <= source.insn.0);
        let line = line.map(|line| format!("{}:{}: `{}`", line.file, line.line, line.text.trim()));
        LoadError::Uncontained { program: name.to_owned(), line, source }
    })
}

/// Returns whether the program is a method of an interface that returns nothing.
pub(crate) fn is_void(code: &bpf_object::Code) -> bool {
    let returned = || {
        let (btf, main) = (code.btf()?, code.functions().first()?);
        let Type::Func { proto, .. } = *btf.get(main.ty?) else { return None };
        let Type::FuncProto { ret, .. } = *btf.get(proto) else { return None };
        Some(btf.resolve(ret))
    };
    code.kind() == bpf_object::ProgramType::StructOps && returned() == Some(TypeId(0))
}

fn known_map(map: &Declared, types: &mut Types) -> KnownMap {
    match map.def() {
        None => KnownMap::new(map.name(), MapType::ProgArray, 4, 4, map.slots().unwrap_or(1)),
        // A map whose targets may still change is not used: a load refuses programs that refer to one.
        Some(def) if def.map_type == MapType::InsnArray => match map.targets() {
            Some(targets) => KnownMap { targets, ..known_data_map(def, types) },
            None => KnownMap::new("(not used)", MapType::Array, 4, 1, 1),
        },
        Some(def) => KnownMap { frozen: map.constants(), ..known_data_map(def, types) },
    }
}

fn known_data_map(def: &bpf_maps::MapDef, types: &mut Types) -> KnownMap {
    let access = match def.program_rights() {
        (_, false) => Access::Read,
        (false, true) => Access::Write,
        (true, true) => Access::ReadWrite,
    };
    KnownMap {
        access,
        spin_lock: def.spin_lock,
        resilient_lock: def.resilient_lock,
        timer: def.timer,
        work: def.work,
        arena: def.arena().map(|shape| KnownArena { bytes: shape.bytes, window: shape.window, user: shape.user }),
        fields: types.fields(def),
        inner: def.inner.as_deref().map(|inner| Box::new(known_inner_map(inner, types))),
        ..KnownMap::new(&def.name, def.map_type, def.key_size, def.value_size, def.max_entries)
    }
}

/// Returns the shape of the inner maps of a map of maps. If inner arrays may have any length, only the first element is
/// sure to exist.
fn known_inner_map(def: &bpf_maps::MapDef, types: &mut Types) -> KnownMap {
    let any_length = def.flags & flags::INNER_MAP != 0;
    let shape = known_data_map(def, types);
    KnownMap { max_entries: if any_length { 1 } else { shape.max_entries }, ..shape }
}

/// The source lines, each at its first instruction.
pub(crate) fn lines(code: &bpf_object::Code) -> Vec<SourceLine> {
    let mut lines: Vec<SourceLine> = Vec::new();
    for insn in 0..crate::num::small(code.insns().len()) {
        let Some(line) = code.line(bpf_isa::InsnIdx(insn)) else { continue };
        let same = lines.last().is_some_and(|l| l.line == line.line && l.file == line.file);
        if !same {
            let (file, text) = (line.file.into_owned(), line.text.into_owned());
            lines.push(SourceLine { insn, file, line: line.line, text });
        }
    }
    lines
}

/// The signatures of global functions, by subprogram.
fn global_functions(code: &bpf_object::Code, program: &Program, layout: &ContextLayout) -> Vec<Option<GlobalFunc>> {
    let Some(btf) = code.btf() else { return Vec::new() };
    let by_start: HashMap<u32, &bpf_object::CodeFunction> =
        code.functions().iter().filter(|f| f.global).map(|f| (f.start.0, f)).collect();
    let signature = |(i, sub): (usize, &bpf_isa::Subprog)| {
        let function = by_start.get(&sub.start).filter(|_| i > 0)?;
        // The exception callback is verified separately, too, but as an end of the program.
        if code.exception_callback() == Some(function.start) {
            return None;
        }
        let (_, args) = btf.prototype(function.ty?)?;
        let tags = btf.arg_tags(function.ty?);
        let arg = |(i, arg): (usize, &ArgKind)| global_arg(btf, arg, tags.get(i).copied().unwrap_or_default(), layout);
        let args = args.iter().enumerate().map(arg).collect::<Option<Vec<_>>>()?;
        Some(GlobalFunc { name: function.name.clone(), args })
    };
    program.subprogs().iter().enumerate().map(signature).collect()
}

/// Returns how an argument of a global function is verified. `None` if it is not supported: the function is then walked
/// in the context of each call, like a static function.
///
/// Not supported are trusted pointers, since there are no kernel objects for them to lead to, and pointers into an
/// arena, which may be any number.
fn global_arg(btf: &Btf, arg: &ArgKind, tags: ArgTags, layout: &ContextLayout) -> Option<GlobalArg> {
    match *arg {
        ArgKind::Scalar { .. } => Some(GlobalArg::Scalar),
        ArgKind::Pointer { .. } if tags.ctx => Some(GlobalArg::Ctx),
        ArgKind::Pointer { .. } if tags.trusted || tags.arena => None,
        ArgKind::Pointer { to, .. } if btf.type_name(to) == layout.name => Some(GlobalArg::Ctx),
        ArgKind::Pointer { size, .. } if tags.nonnull => size.map(GlobalArg::NonNull),
        ArgKind::Pointer { size, .. } => size.map(GlobalArg::Mem),
        ArgKind::Other => None,
    }
}

/// The byte offset of a structure of this name in a value of this type, say a `struct bpf_spin_lock`.
pub(crate) fn field_offset(btf: &Btf, value: TypeId, name: &str) -> Option<u32> {
    let Type::Composite { members, .. } = btf.get(btf.resolve(value)) else { return None };
    let field = members.iter().find(|m| btf.type_name(btf.resolve(m.ty)) == name)?;
    Some(field.bit_offset / 8)
}

/// Replaces each access of the program's view of the context by one of the host's structure.
fn rewrite(name: &str, program: Program, facts: &Facts) -> Result<Program, LoadError> {
    if facts.context_accesses.is_empty() {
        return Ok(program);
    }
    let (mut insns, targets) = program.into_parts();
    for access in &facts.context_accesses {
        let fail =
            || LoadError::Internal(format!("program `{name}`: context access at {} cannot be rewritten", access.insn));
        let new_off = i16::try_from(access.off).map_err(|_| fail())?;
        let new_size = match access.size {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            8 => Size::DW,
            _ => return Err(fail()),
        };
        match insns.get_mut(access.insn.index()) {
            Some(Insn::Load { size, sign, off, .. }) => {
                // Sign-extending loads are of scalar fields, whose size does not change.
                *sign &= *size == new_size;
                (*size, *off) = (new_size, new_off);
            }
            Some(Insn::Store { size, off, src: Src::Reg(_) | Src::Imm(_), .. })
            | Some(Insn::LoadAcquire { size, off, .. } | Insn::StoreRelease { size, off, .. }) => {
                (*size, *off) = (new_size, new_off);
            }
            Some(_) | None => return Err(fail()),
        }
    }
    Program::with_targets(insns, targets).map_err(LoadError::structure(name))
}

/// Binds calls that read through pointers without a length argument to functions specialised for the bytes that are
/// proven readable at each call.
pub(crate) fn bind_formats(
    name: &str,
    program: Program,
    facts: &Facts,
    layout: &ContextLayout,
    references: &mut References,
) -> Result<Program, LoadError> {
    let (mut insns, targets) = program.into_parts();
    for call in &facts.formats {
        let fail = || LoadError::Internal(format!("program `{name}`: the call at {} prints by no format", call.insn));
        let Some(Insn::Call(callee)) = insns.get_mut(call.insn.index()) else { return Err(fail()) };
        let called = match *callee {
            Callee::Helper(id) => Called::Helper(id),
            Callee::Host(index) => Called::Host(index),
            Callee::Subprog(_) | Callee::Reg(_) => return Err(fail()),
        };
        *callee = Callee::Host(bind_site(called, call, layout, references).ok_or_else(fail)?);
    }
    Program::with_targets(insns, targets).map_err(LoadError::structure(name))
}

/// Adds the function specialised for the facts proven at a call, and returns its index.
pub(crate) fn bind_site(
    called: Called,
    call: &FormatCall,
    layout: &ContextLayout,
    references: &mut References,
) -> Option<i32> {
    let bound = match called {
        Called::Helper(id) => references.helper(id),
        Called::Host(index) => references.host(index),
    };
    let Bound { proto, func: of } = bound.cloned()?;
    let helper = Helper::from_id(proto.id)
        .and_then(|helper| at_site(helper, &call.known, &of).or_else(|| probe::at_site(helper, call, layout)));
    let func = helper.or_else(|| kfunc_at_site(Kfunc::from_id(proto.id)?, &call.known))?;
    let index = i32::try_from(references.functions.host.len()).ok()?;
    references.sites.push((called, *call));
    references.functions.host.push(Some(Bound { proto, func }));
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_maps::MapType;

    /// A look-up at a constant index needs no null check only where that index exists in every inner map.
    #[test]
    fn inner_arrays_of_any_length_promise_one_element() {
        for (flags, promised) in [(0, 8), (flags::INNER_MAP, 1)] {
            let inner = bpf_maps::MapDef::new("inner", MapType::Array, 4, 8, 8).flags(flags);
            let outer = bpf_maps::MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 2).inner(inner);
            assert_eq!(known_data_map(&outer, &mut Types::default()).inner.unwrap().max_entries, promised);
        }
    }
}
