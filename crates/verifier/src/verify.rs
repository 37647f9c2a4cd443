//! The entry point: [`Verifier`] turns a [`Program`] into a [`Verified`], or says why not.

use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};

use crate::env::{Env, Limits};
use crate::error::{Reason, VerifyError};
use crate::kept;
use crate::states::States;
use crate::walk::{Mode, Scratch, Stats, Walk};

/// Steps after which it is not known whether a refused program would be accepted with checks at run time: that is only
/// for the message.
const HINT_STEPS: u64 = 10_000;

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
    /// Bytes of working memory that a verifier keeps at most from one program to the next.
    pub const MAX_KEPT: usize = kept::MAX_KEPT;

    /// A verifier with no memory yet.
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Proves that `program` is safe in `env`.
    ///
    /// # Errors
    /// The first way found in which it may not be, or a limit that was reached first.
    pub fn verify(&mut self, program: Program, env: &Env<'_>) -> Result<Verified, Box<VerifyError>> {
        let result = self.walk(program, env);
        self.scratch.trim();
        result
    }

    fn walk(&mut self, program: Program, env: &Env<'_>) -> Result<Verified, Box<VerifyError>> {
        let mut values = env.values;
        let gives_up = |result: &Result<(), Box<VerifyError>>| {
            result.as_ref().is_err_and(|e| e.reason.is_limit() || matches!(e.reason, Reason::Time(_)))
        };
        let loops = program.flow().iter().any(|f| f.target.is_some_and(|target| target <= f.at));
        // A short loop ends soon, and where nothing is guessed, paths that differ in numbers are dropped. But where
        // what is known of numbers is asked for, that is what holds in each round, and how many there are.
        let plainly = loops && !values && !env.exhaustive;
        let first = if plainly { Mode::Plain } else { Mode::Accelerated };
        let mut walk = Walk::new(env, &program, &mut self.scratch, first, values);
        let mut result = Ok(());
        if plainly {
            walk.shorten_first();
            result = walk.run();
        }
        if !plainly || result.is_err() {
            let started = walk.started;
            if plainly {
                walk = Walk::new(env, &program, &mut self.scratch, Mode::Accelerated, values);
            }
            if values || loops {
                walk.shorten();
                walk.share_time(started, 1);
            }
            result = walk.run();
            if result.is_err() && !gives_up(&result) && walk.assumed_within() {
                // What was assumed of accesses has found guesses that hold, and others would have been enough.
                let started = walk.started;
                let short = walk.is_short();
                walk = Walk::new(env, &program, &mut self.scratch, Mode::Accelerated, values);
                if short {
                    walk.shorten();
                    walk.share_time(started, 2);
                }
                walk.assume_no_access();
                let again = walk.run();
                if again.is_ok() {
                    result = again;
                }
            }
        }
        // What is known of numbers, and guesses about loops, are worth some steps, not all: with them, paths that
        // differ in numbers are not dropped.
        if walk.is_short() && gives_up(&result) {
            let assumed = walk.assumed_within();
            values = false;
            let mode = if loops { Mode::Plain } else { Mode::Accelerated };
            // It has all of the time: others have had a quarter, and get what it leaves.
            walk = Walk::new(env, &program, &mut self.scratch, mode, values);
            result = walk.run();
            if let (true, Err(refused)) = (loops, &mut result) {
                let started = walk.started;
                walk = Walk::new(env, &program, &mut self.scratch, Mode::Accelerated, values);
                walk.shorten_again();
                if assumed {
                    walk.assume_no_access();
                }
                walk.share_time(started, 4);
                match walk.run() {
                    // What the loops were guessed to do says more than where a walk of their rounds ended; but that
                    // is where it ended, and not at the few steps of a walk that guesses.
                    again if gives_up(&again) => refused.loops = again.err().map(|e| e.loops).unwrap_or_default(),
                    again => result = again,
                }
            }
        } else if walk.guessed() && gives_up(&result) {
            // Guesses may cost more than they save: what can be walked round by round is.
            let started = walk.started;
            let (log, loops) = result.err().map(|e| (e.log, e.loops)).unwrap_or_default();
            walk = Walk::new(env, &program, &mut self.scratch, Mode::Plain, values);
            walk.share_time(started, 4);
            log.into_iter().for_each(|line| walk.log.push(env.limits.log_lines, line));
            result = walk.run();
            if let Err(e) = &mut result {
                e.loops = loops;
            }
        }
        match result {
            // A proof is better than a check: only what has none is walked again with checks allowed.
            Err(e) if env.hybrid && e.reason.may_be_checked() => {
                walk = Walk::new(env, &program, &mut self.scratch, Mode::Hybrid, values);
                walk.run()?;
            }
            Err(mut e) => {
                e.checkable = e.reason.may_be_checked() && self.accepts_with_checks(&program, env);
                return Err(e);
            }
            Ok(()) => {}
        }
        let (stats, log) = (walk.stats, walk.log.take());
        let recorded = std::mem::take(&mut walk.recorded).sorted(program.insns().len());
        let facts = walk.facts();
        Ok(Verified { program, facts, stats, log, recorded })
    }

    /// Whether a refused program is accepted with checks at run time, as far as little work shows it.
    fn accepts_with_checks(&mut self, program: &Program, env: &Env<'_>) -> bool {
        let limits = Limits { steps: env.limits.steps.min(HINT_STEPS), ..env.limits };
        let env = Env { limits, log: false, ..*env };
        Walk::new(&env, program, &mut self.scratch, Mode::Hybrid, env.values).run().is_ok()
    }
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What is known about it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The work it took.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The walk, a line a step, if [`Env::log`] was set.
    pub fn log(&self) -> &[String] {
        &self.log
    }

    /// The recorded states, to be asked later ([`States::admit`]). Nothing stays recorded here.
    pub fn take_states(&mut self) -> States {
        std::mem::take(&mut self.recorded)
    }

    /// The program and its facts, for those who compile it.
    pub fn into_parts(self) -> (Program, Facts) {
        (self.program, self.facts)
    }

    /// Whether some abstract state recorded for the instruction ([`Env::record_states`]) admits these register values.
    /// Numbers are compared; of pointers, only whether they are null. For tests of the verifier's soundness.
    pub fn admits(&self, at: InsnIdx, regs: &[u64; 11]) -> bool {
        self.recorded.admit(at, regs)
    }
}
