//! The entry point: [`Verifier`] turns a [`Program`] into a [`Verified`], or returns the reason of a refusal.

use std::time::Instant;

use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};

use crate::course::{Course, Mode};
use crate::env::Env;
use crate::error::VerifyError;
use crate::fuel;
use crate::kept;
use crate::states::States;
use crate::walk::{MEMORY_SLACK, Scratch, Stats, Walk, forget_answers};
use crate::ways::Ways;

/// Steps that the verifier spends to find out whether a refused program would be accepted with run-time checks. The
/// answer serves the message only.
const HINT_STEPS: u64 = 10_000;
/// Fuel for the same purpose.
const HINT_FUEL: u64 = 50_000_000;

/// Verifies programs. Keeps its working memory from one to the next.
#[derive(Debug, Default)]
pub struct Verifier {
    scratch: Scratch,
}

/// A program proven safe in its environment. Only [`Verifier::verify`] makes one.
#[derive(Debug)]
pub struct Verified {
    program: Program,
    facts: Facts,
    stats: Stats,
    log: Vec<String>,
    recorded: States,
}

impl Verifier {
    /// The most bytes of working memory that a verifier keeps from one program to the next.
    pub const MAX_KEPT: usize = kept::MAX_KEPT;
    /// Bytes that a verification may briefly hold beyond [`crate::Limits::memory`].
    pub const MEMORY_SLACK: usize = MEMORY_SLACK;

    /// A verifier with no memory yet.
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Proves that `program` is safe in `env`.
    ///
    /// The first operation that is not proven safe, or the limit that was reached first.
    pub fn verify(&mut self, program: Program, env: &Env<'_>) -> Result<Verified, Box<VerifyError>> {
        self.begin(env, &program);
        let result = self.walk(program, env);
        self.scratch.trim();
        forget_answers();
        result
    }

    /// Starts the accounts of one verification: fuel, effort, and the deadline if there is a limit on time.
    fn begin(&mut self, env: &Env<'_>, program: &Program) {
        fuel::begin();
        self.scratch.begin(env, program);
        self.scratch.effort.begin();
        self.scratch.deadline = env.limits.time.and_then(|time| Instant::now().checked_add(time));
    }

    /// Verifies with one strategy of the portfolio alone (`ways`), for tests: each strategy must be sound by itself,
    /// and most programs are accepted before the last ones are tried. `None` if there is no strategy of this name.
    #[doc(hidden)]
    pub fn verify_by(
        &mut self,
        program: Program,
        env: &Env<'_>,
        way: &str,
    ) -> Option<Result<Verified, Box<VerifyError>>> {
        self.begin(env, &program);
        let course = Ways::only(&program, env, way)?.course();
        self.scratch.needs.begin();
        let mut walk = Walk::new(env, &program, &mut self.scratch, course);
        let result = walk.run().map(|()| {
            let (stats, log) = (walk.stats, walk.log.take());
            let recorded = std::mem::take(&mut walk.recorded).sorted(program.insns().len());
            let facts = walk.facts();
            (stats, log, recorded, facts)
        });
        self.scratch.trim();
        forget_answers();
        Some(result.map(|(stats, log, recorded, facts)| Verified { program, facts, stats, log, recorded }))
    }

    fn walk(&mut self, program: Program, env: &Env<'_>) -> Result<Verified, Box<VerifyError>> {
        // This check comes before tables as long as the program are allocated.
        if let Err(reason) = self.scratch.memory.admits(env.limits.memory) {
            let course = Course::new(Mode::Plain, env);
            return Err(Walk::new(env, &program, &mut self.scratch, course).describe(reason));
        }
        let mut ways = Ways::new(&program, env);
        self.scratch.needs.begin();
        loop {
            let course = ways.course();
            let mut walk = Walk::new(env, &program, &mut self.scratch, course);
            ways = match walk.run() {
                Ok(()) => {
                    let (stats, log) = (walk.stats, walk.log.take());
                    let recorded = std::mem::take(&mut walk.recorded).sorted(program.insns().len());
                    let facts = walk.facts();
                    return Ok(Verified { program, facts, stats, log, recorded });
                }
                Err(e) => match ways.refused(walk, e) {
                    Ok(ways) => ways,
                    Err(mut e) => {
                        let checked = course.mode == Mode::Hybrid;
                        e.checkable = !checked && e.reason.may_be_checked() && self.accepts_with_checks(&program, env);
                        return Err(e);
                    }
                },
            };
        }
    }

    /// Whether a refused program is accepted with run-time checks, if little work suffices to show it.
    fn accepts_with_checks(&mut self, program: &Program, env: &Env<'_>) -> bool {
        let mut limits = env.limits;
        limits.steps = limits.steps.min(HINT_STEPS);
        let env = Env { limits, log: false, ..*env };
        let course = Course { fuel: fuel::spent().saturating_add(HINT_FUEL), ..Course::new(Mode::Hybrid, &env) };
        Walk::new(&env, program, &mut self.scratch, course).run().is_ok()
    }
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The facts about the program.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The work that the verification took.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The log of the walk, one line for each step, if [`Env::log`] was set.
    pub fn log(&self) -> &[String] {
        &self.log
    }

    /// Takes the recorded states out, for later queries ([`States::admit`]).
    pub fn take_states(&mut self) -> States {
        std::mem::take(&mut self.recorded)
    }

    /// The program and its facts, for a compiler.
    pub fn into_parts(self) -> (Program, Facts) {
        (self.program, self.facts)
    }

    /// Whether some abstract state recorded for the instruction ([`Env::record_states`]) admits these register values.
    /// Numbers are compared with their bounds; for pointers, only nullness is compared. For tests of the verifier's
    /// soundness.
    pub fn admits(&self, at: InsnIdx, regs: &[u64; 11]) -> bool {
        self.recorded.admit(at, regs)
    }
}
