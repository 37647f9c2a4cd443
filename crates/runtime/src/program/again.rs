//! The inputs from which a program in its first tier is compiled again with optimisation: for itself if it was loaded
//! alone, or once for all instances of a module.

use crate::abi::limits::Checks;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::program::code::{Emitted, Shape, Subject, Told};
use crate::program::name::Name;
use crate::program::references::{NO_REFERENCES, References};
use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_jit_code::{Code, OptLevel};
use bpf_verifier::ContextLayout;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The inputs of a second compilation of a program.
pub(crate) struct Again {
    name: Name,
    layout: &'static ContextLayout,
    checks: Checks,
    program: Program,
    facts: Facts,
    references: Option<Arc<References>>,
    /// The linked program, for debuggers.
    source: Option<bpf_object::Code>,
    /// The number that runs of the slow code note. It is odd, so it is no address of counters.
    number: u64,
    /// Whether other instances may exist, so that the fast code is kept for them.
    shared: bool,
    fast: OnceLock<Result<(Code, Shape), String>>,
}

/// Returns a number that no other program notes.
pub(super) fn numbered() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(2, Ordering::Relaxed)
}

impl Again {
    pub(super) fn new(
        subject: &Subject<'_>,
        references: Option<Arc<References>>,
        source: Option<&bpf_object::Code>,
        number: u64,
        shared: bool,
    ) -> Again {
        let Subject { engine, name, layout, checks, program, facts, .. } = *subject;
        Again {
            name: Name::new(name),
            layout,
            checks,
            program: program.clone(),
            facts: facts.clone(),
            references,
            source: source.filter(|_| engine.0.debug.is_some()).cloned(),
            number,
            shared,
            fast: OnceLock::new(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes to count for a program that keeps these inputs for itself; 0 if instances share them.
    pub(super) fn bytes(&self) -> usize {
        if self.shared { 0 } else { size_of_val(self.program.insns()) }
    }

    /// The fast code, if it was compiled for another instance.
    pub(super) fn fast(&self, engine: &Engine) -> Option<Emitted<'_>> {
        let (code, shape) = self.fast.get()?.as_ref().ok()?;
        Some(Emitted { code, shape, told: self.told(engine) })
    }

    /// The information for debuggers, if one is served.
    fn told(&self, engine: &Engine) -> Told<'_> {
        engine.0.debug.is_some().then_some((&self.program, self.source.as_ref()))
    }

    /// Compiles the fast code within `machine_stack` bytes of machine stack, unless another instance has done so, and
    /// passes it to `place`.
    pub(super) fn make_fast<R>(
        &self,
        engine: &Engine,
        machine_stack: u64,
        place: impl FnOnce(Emitted<'_>) -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        let Again { name, layout, checks, program, facts, references, .. } = self;
        let references = references.as_deref().unwrap_or(&NO_REFERENCES);
        let subject = Subject { engine, name, layout, checks: *checks, program, facts, references };
        let told = self.told(engine);
        if !self.shared {
            return subject.compile(OptLevel::Speed, None, machine_stack, |code, shape| {
                engine.0.tiers.count_compiled();
                place(Emitted { code, shape, told })
            });
        }
        let mut failed = None;
        let fast = self.fast.get_or_init(|| {
            let keep = |code: &Code, shape: &Shape| {
                engine.0.tiers.count_compiled();
                Ok((code.clone(), shape.clone()))
            };
            subject.compile(OptLevel::Speed, None, machine_stack, keep).map_err(|error| {
                let why = error.to_string();
                failed = Some(error);
                why
            })
        });
        match fast {
            Ok((code, shape)) => place(Emitted { code, shape, told }),
            Err(why) => Err(failed.unwrap_or_else(|| LoadError::Internal(why.clone()))),
        }
    }
}
