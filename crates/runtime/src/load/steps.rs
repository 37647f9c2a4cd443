//! The steps by which one program is loaded.
//!
//! Addresses are bound, the program is proven or taken on trust, and made to run: each step takes what the one before
//! it left. None is seen by others, so a refused load leaves everything as it was; who asked ties what is loaded
//! together to the prog arrays it jumps through.

use crate::abi::limits::Checks;
use crate::context::ContextLayout;
use crate::engine::config::Mode;
use crate::engine::trace;
use crate::engine::usage::Account;
use crate::error::LoadError;
use crate::load::linker::Linker;
use crate::load::owned::holds_objects;
use crate::load::verify::{self, Checked, Subject, bind_formats, verify};
use crate::program::bindings::{Bindings, NO_BINDINGS};
use crate::program::loaded::{Draft, Loaded};
use crate::program::source::Source;
use crate::program::table::HostType;
use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};
use bpf_jit_code::OptLevel;
use bpf_verifier::SourceLine;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How to load.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) trust: Trust,
    pub(super) opt_level: OptLevel,
    /// What a run may spend, if not what the engine's configuration says.
    pub(super) budget: Option<u64>,
    pub(super) interruptible: bool,
}

/// Who says that a program is harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// The verifier.
    Verifier,
    /// The verifier, with checks at run time where it has no proof.
    Hybrid,
    /// The interpreter checks every access.
    Interpreter,
    /// The caller.
    Caller,
}

/// A program that is being loaded.
pub(super) struct Loading<'a, H> {
    pub(super) linker: &'a Linker<H>,
    pub(super) name: &'a str,
    pub(super) layout: &'static ContextLayout,
    /// Where it comes from in its object, for messages.
    pub(super) code: Option<&'a bpf_object::Code>,
    /// What its memory is counted in.
    pub(super) account: Option<&'a Account>,
}

/// A program that may run, and what is known of it.
struct Admitted {
    program: Program,
    facts: Facts,
    lines: Vec<SourceLine>,
}

impl<H: 'static> Loading<'_, H> {
    /// All steps, counted and told of.
    pub(super) fn load(
        &self,
        how: How,
        program: Program,
        references: Option<Box<Bindings>>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let _span = trace::load(self.name);
        let metrics = &self.linker.engine.0.metrics;
        let loaded = self.load_quietly(how, program, references);
        let counter = match &loaded {
            Ok(loaded) => {
                trace::loaded(loaded.code_bytes());
                &metrics.loads
            }
            Err(error) => {
                trace::refused(error);
                &metrics.refusals
            }
        };
        // Relaxed: a statistic.
        counter.fetch_add(1, Ordering::Relaxed);
        loaded
    }

    fn load_quietly(
        &self,
        how: How,
        program: Program,
        references: Option<Box<Bindings>>,
    ) -> Result<Arc<Loaded>, LoadError> {
        if how.budget == Some(0) {
            return Err(LoadError::NoBudget);
        }
        let (program, mut references) = self.bind_addresses(program, references)?;
        let mut admitted = self.admit(how.trust, program, references.as_deref().unwrap_or(&NO_BINDINGS))?;
        if let (false, Some(bindings)) = (admitted.facts.formats.is_empty(), &mut references) {
            admitted.program = bind_formats(self.name, admitted.program, &admitted.facts, bindings)?;
        }
        let mode = match how.trust {
            Trust::Interpreter => Mode::Interpreter,
            Trust::Verifier | Trust::Hybrid | Trust::Caller => self.linker.engine.config().mode,
        };
        self.make(mode, how, admitted, references)
    }

    /// Settles all that instructions refer to, jumps too; `None` if that is nothing.
    fn bind_addresses(
        &self,
        program: Program,
        mut references: Option<Box<Bindings>>,
    ) -> Result<(Program, Option<Box<Bindings>>), LoadError> {
        let program = match &mut references {
            Some(bindings) => bindings.bind_addresses(self.name, program)?,
            None => program,
        };
        Ok((program, references.filter(|bindings| !bindings.is_empty())))
    }

    /// Asks whoever is to say that the program is harmless.
    fn admit(&self, trust: Trust, program: Program, bindings: &Bindings) -> Result<Admitted, LoadError> {
        let layout = self.layout;
        match trust {
            Trust::Verifier | Trust::Hybrid => {
                let options = verify::Options { log: false, hybrid: trust == Trust::Hybrid };
                let Checked { program, facts, lines, .. } = self.verify(program, bindings, options)?;
                Ok(Admitted { program, facts, lines })
            }
            Trust::Interpreter | Trust::Caller if !bindings.missing.is_empty() => {
                Err(self.unknown_helper(&bindings.missing[0]))
            }
            // Which calls may throw, the verifier finds out.
            Trust::Interpreter | Trust::Caller if bindings.throws(&program) => {
                Err(LoadError::ThrowNeedsVerifier { program: self.name.to_owned() })
            }
            // Which accesses are made in it, the verifier finds out.
            Trust::Interpreter | Trust::Caller if program.contents().casts || bindings.arena().is_some() => {
                let arena = bindings.arena().map(|map| map.name().to_owned());
                Err(LoadError::ArenaNeedsVerifier { program: self.name.to_owned(), arena })
            }
            Trust::Interpreter | Trust::Caller if layout.points_elsewhere() => {
                Err(LoadError::NeedsVerifier { program: self.name.to_owned(), context: layout.name.to_string() })
            }
            Trust::Interpreter | Trust::Caller => {
                if let (Trust::Interpreter, Some(map)) = (trust, holds_objects(bindings)) {
                    let context = format!("values of map `{map}`, which hold objects,");
                    return Err(LoadError::NeedsVerifier { program: self.name.to_owned(), context });
                }
                let lines = self.code.map(verify::lines).unwrap_or_default();
                Ok(Admitted { program, facts: Facts::default(), lines })
            }
        }
    }

    /// Verifies the program. A helper that does not exist may only be called where no run comes to.
    pub(super) fn verify(
        &self,
        program: Program,
        bindings: &Bindings,
        options: verify::Options,
    ) -> Result<Checked, LoadError> {
        let Loading { linker, name, layout, code, .. } = *self;
        let subject = Subject { name, bindings, layout, helpers: &linker.prototypes(layout), code };
        let missing = &bindings.missing;
        let checked = verify(&linker.engine, &subject, program, options).map_err(|error| match &error {
            LoadError::Verifier { source, .. } => {
                missing.iter().find(|call| call.0 == source.insn).map_or(error, |call| self.unknown_helper(call))
            }
            _ => error,
        })?;
        match missing.iter().find(|call| !checked.facts.insn(call.0).dead) {
            Some(call) => Err(self.unknown_helper(call)),
            None => Ok(checked),
        }
    }

    /// Makes it run in this mode.
    fn make(
        &self,
        mode: Mode,
        how: How,
        Admitted { program, facts, lines }: Admitted,
        mut references: Option<Box<Bindings>>,
    ) -> Result<Arc<Loaded>, LoadError> {
        let Loading { linker, name, layout, code, account } = *self;
        let config = linker.engine.config();
        if let Some(counted) = linker.engine.0.metrics.program(account.map(Account::memory), name) {
            references.get_or_insert_default().counted = Some(counted);
        }
        let budget = how.budget.unwrap_or_else(|| config.run_budget());
        let source = code.map(|code| Source::new(code, lines)).unwrap_or_default();
        let draft = Draft {
            engine: &linker.engine,
            name,
            layout,
            host: HostType::of::<H>(),
            facts: &facts,
            source,
            budget: i64::try_from(budget).unwrap_or(i64::MAX),
            checks: Checks {
                budget: how.budget.is_some() || config.budget.is_some() || facts.needs_budget,
                interrupt: how.interruptible,
            },
            account,
        };
        match mode {
            Mode::Interpreter => Loaded::interpret(draft, program, references),
            #[cfg(not(native))]
            Mode::Jit => Err(LoadError::Internal("an engine compiles that has no backend".into())),
            #[cfg(native)]
            Mode::Jit => Loaded::compile(draft, &program, references, how.opt_level, code),
        }
    }

    /// A call of a helper that does not exist.
    fn unknown_helper(&self, &(insn, id): &(InsnIdx, u32)) -> LoadError {
        let line = self.code.and_then(|code| code.line(insn));
        let line = line.map(|line| format!("{}:{}: `{}`", line.file, line.line, line.text.trim()));
        LoadError::UnknownHelper { program: self.name.to_owned(), insn, id, line }
    }
}
