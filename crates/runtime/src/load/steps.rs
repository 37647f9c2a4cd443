//! The steps by which one program is loaded.
//!
//! Addresses are bound, the program is verified or admitted without proof, and compiled: each step takes the result of
//! the step before. The last result is lent to the caller: a load places it, a module keeps a copy. Until then nothing
//! is visible to others, so a refused load leaves everything as it was; the caller then ties the loaded programs to the
//! prog arrays that they jump through.

use crate::abi::limits::Checks;
use crate::call::state::Host;
use crate::context::ContextLayout;
use crate::engine::config::Mode;
use crate::engine::trace;
use crate::error::LoadError;
use crate::load::layout::{self, OwnStruct};
use crate::load::linker::Linker;
use crate::load::owned::holds_objects;
use crate::load::verify::{self, Carried, Checked, Proofs, Subject, bind_formats, verify};
use crate::program::interpreted::Interpreted;
use crate::program::name::Name;
use crate::program::references::{NO_REFERENCES, References};
use crate::program::source::Source;
use crate::program::table::HostType;
#[cfg(native)]
use crate::program::unit::Target;
use crate::program::unit::{Ready, Unit};
use bpf_analysis::{Facts, HeaderPlaces};
use bpf_isa::{InsnIdx, Program, Reg};
use bpf_jit_code::OptLevel;
use bpf_verifier::{Proof, ProofError, Reason, SourceLine, Unproven};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Options of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) trust: Trust,
    /// Whether the verifier lets the program show addresses.
    pub(super) privileged: bool,
    pub(super) opt_level: OptLevel,
    /// The budget of a run; `None`: that of the engine's configuration.
    pub(super) budget: Option<u64>,
    pub(super) interruptible: bool,
    /// The programs may wait.
    pub(super) sleepable: bool,
    /// The programs, which may wait, yield.
    pub(super) yields: bool,
    /// Whether programs in machine code keep their instructions, so that runs can be recorded.
    pub(super) recordable: bool,
    /// Whether the code bounds each access once more, at run time.
    pub(super) contained: bool,
    /// Whether a load checks the proofs that objects carry.
    pub(super) proofs: Proofs,
    /// Whether the programs are loaded for an interface, whose methods may return nothing.
    pub(super) interface: bool,
}

impl How {
    /// Returns the options for the verifier.
    pub(super) fn verify(&self, log: bool) -> verify::Options {
        let hybrid = self.trust == Trust::Hybrid;
        let How { privileged, contained, sleepable, yields, proofs, interface, .. } = *self;
        verify::Options { log, hybrid, privileged, contained, sleepable, yields, proofs, interface, values: false }
    }

    /// Returns the settings for a program with these references, in a section of this name.
    pub(super) fn of(mut self, section: Option<&str>, references: &References) -> How {
        // As libbpf has it: `uprobe.s/...`.
        let says_so = |section: &str| section.split('/').next().is_some_and(|kind| kind.ends_with(".s"));
        self.sleepable |= section.is_some_and(says_so) && references.sleeping().is_some();
        self
    }
}

/// The authority for the safety of a loaded program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// The verifier.
    Verifier,
    /// The verifier, with checks at run time where its proof fails.
    Hybrid,
    /// The interpreter checks every access.
    Interpreter,
    /// The caller.
    Caller,
}

/// A program that is being loaded.
pub(super) struct Loading<'a, H: ?Sized> {
    pub(super) linker: &'a Linker<H>,
    pub(super) name: &'a str,
    pub(super) layout: &'static ContextLayout,
    /// The program's code in its object.
    pub(super) code: Option<&'a bpf_object::Code>,
    /// [`Context::own_struct`](crate::Context::own_struct), to be compared with the object's structure; `None`: the two
    /// are assumed to agree.
    pub(super) own_struct: Option<OwnStruct>,
    /// Whether the compiled program is kept for many instances.
    pub(super) shared: bool,
    /// The proof that its object carries of it.
    pub(super) proof: &'a Carried<'a>,
}

/// The proof of a program that comes in no object.
pub(super) static NO_PROOF: Carried<'static> = Err(ProofError::Missing);

/// Facts about an admitted program.
struct Known {
    /// Facts that the verifier proved; `None` without verification.
    facts: Option<Facts>,
    lines: Vec<SourceLine>,
}

/// Facts about an unverified program: [`Facts::default`], as a static, so that a load does not construct one.
static NO_FACTS: Facts = Facts {
    stack_bytes: Vec::new(),
    private: Vec::new(),
    tail_calls: Vec::new(),
    insns: Vec::new(),
    map_calls: Vec::new(),
    formats: Vec::new(),
    context_accesses: Vec::new(),
    checks: Vec::new(),
    regions: Vec::new(),
    zeroed: Vec::new(),
    needs_budget: false,
    yields: Vec::new(),
    values: Vec::new(),
    loops: Vec::new(),
    arena: None,
    headers: HeaderPlaces::LinkFirst,
    throws: Vec::new(),
    exception: None,
    contained: None,
};

impl<H: Host + ?Sized> Loading<'_, H> {
    /// Takes all steps, counts the load and reports it to listeners: `then` gets the compiled program, and `bytes`
    /// returns the bytes of code of the result of `then`.
    pub(super) fn load<R>(
        &self,
        how: How,
        program: Program,
        references: Option<Box<References>>,
        then: impl FnOnce(&Unit, Ready<'_>) -> Result<R, LoadError>,
        bytes: impl FnOnce(&R) -> usize,
    ) -> Result<R, LoadError> {
        let _span = trace::load(self.name);
        let metrics = &self.linker.engine.0.metrics;
        let loaded = self.load_quietly(how, program, references, then);
        // Relaxed: statistics. Counted before the report, since a subscriber may panic.
        match &loaded {
            Ok(loaded) => {
                metrics.loads.fetch_add(u64::from(!self.shared), Ordering::Relaxed);
                trace::loaded(bytes(loaded));
            }
            Err(error) => {
                metrics.refusals.fetch_add(1, Ordering::Relaxed);
                trace::refused(error);
            }
        }
        loaded
    }

    fn load_quietly<R>(
        &self,
        how: How,
        mut program: Program,
        mut references: Option<Box<References>>,
        then: impl FnOnce(&Unit, Ready<'_>) -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        if how.budget == Some(0) {
            return Err(LoadError::NoBudget);
        }
        if how.contained && how.privileged {
            return Err(LoadError::PrivilegedContained { program: self.name.to_owned() });
        }
        // If nothing is to be settled, the program is not moved: a move copies a dozen cache lines.
        if let Some(references) = &mut references {
            program = references.bind_places(self.name, program)?;
        }
        references = references.filter(|references| !references.is_empty());
        let known = match how.trust {
            Trust::Verifier | Trust::Hybrid => {
                let options = how.verify(false);
                let referred = references.as_deref().unwrap_or(&NO_REFERENCES);
                let Checked { program: checked, facts, lines, .. } = self.verify(program, referred, options)?;
                program = checked;
                if let (false, Some(references)) = (facts.formats.is_empty(), &mut references) {
                    program = bind_formats(self.name, program, &facts, self.layout, references)?;
                }
                Known { facts: Some(facts), lines }
            }
            Trust::Caller if how.contained => {
                return Err(LoadError::UnverifiedContained { program: self.name.to_owned() });
            }
            Trust::Interpreter | Trust::Caller => {
                let referred = references.as_deref().unwrap_or(&NO_REFERENCES);
                let calls = referred.sleeping().map(|bound| format!("calls `{}`, which may sleep", bound.proto.name));
                if let Some(what) = calls.or(how.sleepable.then(|| "is sleepable".to_owned())) {
                    return Err(LoadError::SleepNeedsVerifier { program: self.name.to_owned(), what });
                }
                self.admit_unverified(how.trust, &program, references.as_deref().unwrap_or(&NO_REFERENCES))?;
                if let (Some(code), Some(own)) = (self.code, self.own_struct) {
                    layout::check_whole(self.name, own, code)?;
                }
                Known { facts: None, lines: self.code.map(verify::lines).unwrap_or_default() }
            }
        };
        let mode = match how.trust {
            Trust::Interpreter => Mode::Interpreter,
            Trust::Verifier | Trust::Hybrid | Trust::Caller => self.linker.engine.config().mode,
        };
        self.make(mode, how, program, known, references, then)
    }

    /// Refuses programs whose safety only the verifier can decide.
    fn admit_unverified(&self, trust: Trust, program: &Program, references: &References) -> Result<(), LoadError> {
        if let Some(missing) = references.missing.first() {
            return Err(self.unknown_helper(missing));
        }
        // The verifier determines which calls may throw.
        if references.throws(program) {
            return Err(LoadError::ThrowNeedsVerifier { program: self.name.to_owned() });
        }
        // The verifier determines which accesses go to an arena.
        if program.contents().casts || references.arena().is_some() {
            let arena = references.arena().map(|map| map.name().to_owned());
            return Err(LoadError::ArenaNeedsVerifier { program: self.name.to_owned(), arena });
        }
        let needs_verifier = |context| Err(LoadError::NeedsVerifier { program: self.name.to_owned(), context });
        if self.layout.points_elsewhere() {
            return needs_verifier(self.layout.name.to_string());
        }
        if let (Trust::Interpreter, Some(map)) = (trust, holds_objects(references)) {
            return needs_verifier(format!("values of map `{map}`, which hold objects,"));
        }
        Ok(())
    }

    /// Verifies the program. A call of a helper that does not exist is allowed only in unreachable code.
    pub(super) fn verify(
        &self,
        program: Program,
        references: &References,
        options: verify::Options,
    ) -> Result<Checked, LoadError> {
        let Loading { linker, name, layout, code, own_struct, proof, .. } = *self;
        let subject = Subject { name, references, layout, helpers: &linker.prototypes(layout), code, proof };
        let missing = &references.missing;
        let checked = verify(&linker.engine, &subject, program, options).map_err(|error| match &error {
            // Nothing sets r0 in a function that returns nothing.
            LoadError::Verifier { source, .. }
                if matches!(source.reason, Reason::Uninit(Reg::R0, _) | Reason::Leak(Reg::R0, ..))
                    && source.disassembly == "exit"
                    && code.is_some_and(verify::is_void) =>
            {
                LoadError::NoResult { program: name.to_owned() }
            }
            LoadError::Verifier { source, .. } => {
                missing.iter().find(|call| call.0 == source.insn).map_or(error, |call| self.unknown_helper(call))
            }
            _ => error,
        })?;
        if let Some(call) = missing.iter().find(|call| !checked.facts.insn(call.0).dead) {
            return Err(self.unknown_helper(call));
        }
        if let (Some(code), Some(own)) = (code, own_struct) {
            layout::check(name, own, code, &checked.facts.context_accesses)?;
        }
        Ok(checked)
    }

    /// Looks for a proof of the program.
    pub(super) fn prove(
        &self,
        how: How,
        program: Program,
        references: &References,
        fuel: u64,
    ) -> Result<Proof, Unproven> {
        let Loading { linker, name, layout, code, proof, .. } = *self;
        let subject = Subject { name, references, layout, helpers: &linker.prototypes(layout), code, proof };
        let How { sleepable, yields, .. } = how;
        let options = verify::Options { sleepable, yields, interface: true, ..verify::Options::default() };
        verify::prove(&linker.engine, &subject, program, options, fuel)
    }

    /// Compiles the program for the engine's mode.
    fn make<R>(
        &self,
        mode: Mode,
        how: How,
        program: Program,
        Known { facts, lines }: Known,
        references: Option<Box<References>>,
        then: impl FnOnce(&Unit, Ready<'_>) -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        let Loading { linker, name, layout, code, .. } = *self;
        let config = linker.engine.config();
        let facts = facts.as_ref().unwrap_or(&NO_FACTS);
        let sink = match (mode, &facts.contained) {
            #[cfg(native)]
            (Mode::Jit, Some(contained)) => {
                if !facts.tail_calls.is_empty() && !linker.engine.has_tiers() {
                    return Err(LoadError::ContainedTailCalls { program: name.to_owned() });
                }
                Some(contained.sink_bytes())
            }
            _ => None,
        };
        let budget = how.budget.unwrap_or_else(|| match how.yields && !how.contained && !facts.needs_budget {
            // Counted so that it yields; the verifier has proven that it ends.
            true => config.budget.unwrap_or(u64::MAX),
            false => config.run_budget(),
        });
        let unit = Unit {
            name: Name::new(name),
            layout,
            host: HostType::of::<H>(),
            references: references.map(Arc::from),
            source: code.map(|code| Arc::new(Source::new(code, lines))),
            void: how.interface && code.is_some_and(verify::is_void),
            budget: i64::try_from(budget).unwrap_or(i64::MAX),
            checks: Checks {
                budget: how.budget.is_some()
                    || config.budget.is_some()
                    || facts.needs_budget
                    || how.contained
                    || how.yields,
                interrupt: how.interruptible,
                yields: how.yields,
            },
            sleepable: how.sleepable,
            sink,
            recordable: (how.recordable && mode == Mode::Jit).then(|| {
                Arc::new(Interpreted::new(program.clone(), facts, layout, false).with_addresses(how.privileged))
            }),
        };
        match mode {
            Mode::Interpreter => {
                let what = Arc::new(Interpreted::new(program, facts, unit.layout, config.coverage));
                then(&unit, Ready::Interpreted(&what))
            }
            #[cfg(not(native))]
            Mode::Jit => Err(LoadError::Internal("an engine compiles that has no backend".into())),
            #[cfg(native)]
            Mode::Jit => {
                // Only the optimising compiler confines accesses.
                // And the code of a run that waits must not be exchanged: no guard keeps it.
                // And only it calls a function between two instructions, as a program that yields does.
                let once = how.contained || how.yields || how.sleepable && how.opt_level == OptLevel::Tiered;
                let opt_level = if once { OptLevel::Speed } else { how.opt_level };
                let to = Target { program: &program, facts, opt_level, source: code, shared: self.shared };
                unit.compile(&linker.engine, to, |ready| then(&unit, ready))
            }
        }
    }

    /// A call of a helper that does not exist.
    fn unknown_helper(&self, &(insn, id): &(InsnIdx, u32)) -> LoadError {
        let line = self.code.and_then(|code| code.line(insn));
        let line = line.map(|line| format!("{}:{}: `{}`", line.file, line.line, line.text.trim()));
        LoadError::UnknownHelper { program: self.name.to_owned(), insn, id, line }
    }
}
