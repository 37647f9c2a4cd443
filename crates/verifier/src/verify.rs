//! The entry point: [`Verifier`] turns a [`Program`] into a [`Verified`], or returns the reason of a refusal.

use std::time::Instant;

use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};

use crate::certify::{self, Accepted, Outcome, Within};
use crate::course::{Course, Mode};
use crate::env::Env;
use crate::error::{Reason, VerifyError};
use crate::fuel;
use crate::kept;
use crate::states::States;
use crate::walk::{MEMORY_SLACK, Scratch, Stats, Walk, forget_answers, has_memory};
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
        let ways = Ways::only(&program, env, way)?;
        let course = ways.course();
        self.scratch.needs.begin();
        if let Some(within) = ways.certifies(self.scratch.deadline) {
            let outcome = self.certify(&program, env, within);
            let reason = Reason::Unsupported("no certificate is found");
            return Some(match self.certified(outcome, env) {
                Some(found) => Ok(found.of(program)),
                None => Err(self.refusal(&program, env, reason)),
            });
        }
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
            return Err(self.refusal(&program, env, reason));
        }
        let mut ways = Ways::new(&program, env);
        self.scratch.needs.begin();
        loop {
            let course = ways.course();
            if let Some(within) = ways.certifies(self.scratch.deadline) {
                let outcome = self.certify(&program, env, within);
                let late = matches!(outcome, Outcome::Late);
                if let Some(found) = self.certified(outcome, env) {
                    return Ok(found.of(program));
                }
                let unwalked = || self.refusal(&program, env, Reason::Internal("a search before any walk"));
                ways = ways.not_certified(late, unwalked).map_err(|e| self.explained(e, &program, env))?;
                continue;
            }
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
                    Err(e) if course.mode == Mode::Hybrid => return Err(e),
                    Err(e) => return Err(self.explained(e, &program, env)),
                },
            };
        }
    }

    /// A refusal without a walk.
    fn refusal(&mut self, program: &Program, env: &Env<'_>, reason: Reason) -> Box<VerifyError> {
        Walk::new(env, program, &mut self.scratch, Course::new(Mode::Plain, env)).describe(reason)
    }

    /// Looks for a certificate of a program that the walks have refused, if the system has memory for the search.
    fn certify(&mut self, program: &Program, env: &Env<'_>, within: Within) -> Outcome {
        self.scratch.make_room(env.limits.memory);
        // States that wait are counted by the core, all else by the search. Allocations that are smaller cannot fail as
        // long as this block can be had.
        if !has_memory(2 * within.memory) {
            return Outcome::Unproven;
        }
        let mut limits = env.limits;
        limits.memory = within.memory;
        certify::accept(program, &Env { limits, ..*env }, within)
    }

    /// The facts of a certificate that the trusted core has accepted.
    fn certified(&self, outcome: Outcome, env: &Env<'_>) -> Option<Found> {
        let Outcome::Accepted(accepted) = outcome else { return None };
        let Accepted { facts, recorded, steps, points } = *accepted;
        let peak_bytes = self.scratch.memory.peak();
        let stats =
            Stats { steps, fuel: fuel::spent(), states: points, peak_bytes, certified: true, ..Stats::default() };
        let line = || format!("accepted by a certificate with {points} kept points, after {steps} steps of its check");
        let log = if env.log { vec![line()] } else { Vec::new() };
        Some(Found { facts, stats, log, recorded })
    }

    /// The refusal, with the answer whether run-time checks would help.
    fn explained(&mut self, mut e: Box<VerifyError>, program: &Program, env: &Env<'_>) -> Box<VerifyError> {
        e.checkable = e.reason.may_be_checked() && self.accepts_with_checks(program, env);
        e
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

/// The result of a check by the core: all of a [`Verified`] but the program.
struct Found {
    facts: Facts,
    stats: Stats,
    log: Vec<String>,
    recorded: States,
}

impl Found {
    fn of(self, program: Program) -> Verified {
        let Found { facts, stats, log, recorded } = self;
        Verified { program, facts, stats, log, recorded }
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
