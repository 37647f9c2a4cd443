//! The entry point: [`Verifier`] turns a [`Program`] into a [`Verified`], or says why not.

use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};

use crate::env::Env;
use crate::error::VerifyError;
use crate::value::{Ty, Value};
use crate::walk::{Mode, Scratch, Stats, Walk};

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

/// The abstract states that were recorded of a program ([`Env::record_states`]): what its registers may hold before
/// each instruction.
#[derive(Debug, Default)]
pub struct States {
    /// In the order of the walk.
    states: Vec<(InsnIdx, [Value; 11])>,
    /// Into `states`, ascending by instruction.
    order: Vec<u32>,
    /// Where those of each instruction start in `order`; one more for the end.
    starts: Vec<u32>,
}

impl States {
    fn new(states: Vec<(InsnIdx, [Value; 11])>, insns: usize) -> States {
        if states.is_empty() {
            return States::default();
        }
        // Counted and placed: a state is too large to be moved about.
        let mut starts = vec![0u32; insns + 1];
        for (at, _) in &states {
            starts[at.index()] += 1;
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let mut order = vec![0; states.len()];
        for (i, (at, _)) in states.iter().enumerate().rev() {
            starts[at.index()] -= 1;
            order[starts[at.index()] as usize] = i as u32;
        }
        States { states, order, starts }
    }

    /// See [`Verified::admits`].
    pub fn admit(&self, at: InsnIdx, regs: &[u64; 11]) -> bool {
        let (Some(&from), Some(&to)) = (self.starts.get(at.index()), self.starts.get(at.index() + 1)) else {
            return false;
        };
        self.order[from as usize..to as usize].iter().any(|i| {
            let abstracts = &self.states[*i as usize].1;
            abstracts.iter().zip(regs).all(|(v, &concrete)| match v.ty {
                Ty::Uninit(_) => true,
                Ty::Scalar => v.n.contains(concrete),
                // An empty region may be anywhere, at null too.
                Ty::Packet { .. } | Ty::PacketEnd { .. } => true,
                Ty::Half { .. } => concrete <= u64::from(u32::MAX),
                Ty::Ctx
                | Ty::Stack { .. }
                | Ty::Map { .. }
                | Ty::MapValue { .. }
                | Ty::Mem { .. }
                | Ty::Host { .. }
                | Ty::Func { .. } => v.null || concrete != 0,
            })
        })
    }
}

impl Verifier {
    /// Bytes of working memory that a verifier keeps at most from one program to the next.
    pub const MAX_KEPT: usize = 4 << 20;

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
        let mut walk = Walk::new(env, &program, &mut self.scratch, Mode::Accelerated);
        let mut result = walk.run();
        // Guesses may cost more than they save: what can be walked round by round is.
        if walk.guessed() && result.as_ref().is_err_and(|e| e.reason.is_limit()) {
            let log = result.err().map(|e| e.log).unwrap_or_default();
            walk = Walk::new(env, &program, &mut self.scratch, Mode::Plain);
            walk.log = log;
            result = walk.run();
        }
        // Forgetting may have been too much: the last word has a walk that does not.
        if walk.generalised && result.as_ref().is_err_and(|e| e.reason.is_about_values()) {
            let mode = walk.mode();
            walk = Walk::new(env, &program, &mut self.scratch, mode);
            walk.generalises = false;
            result = walk.run();
        }
        match result {
            // A proof is better than a check: only what has none is walked again with checks allowed.
            Err(e) if env.hybrid && e.reason.may_be_checked() => {
                walk = Walk::new(env, &program, &mut self.scratch, Mode::Hybrid);
                walk.run()?;
            }
            result => result?,
        }
        let (stats, log) = (walk.stats, std::mem::take(&mut walk.log));
        let recorded = States::new(std::mem::take(&mut walk.recorded), program.insns().len());
        let facts = walk.facts();
        Ok(Verified { program, facts, stats, log, recorded })
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
