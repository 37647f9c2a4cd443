//! What one run may take: limits of its own, beside those that its program was loaded with.

use crate::abi::slots::Runs;
use crate::abi::watch::{NEVER, Watched};
use crate::error::RunError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A point in time at which runs end. Made by [`crate::Engine::deadline`]; one serves any number of runs, of programs
/// of its engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    tick: u64,
    /// The engine's clock, by a number that no other has: the address of one that is gone may be another's.
    clock: u64,
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline").field("tick", &self.tick).finish_non_exhaustive()
    }
}

impl Deadline {
    pub(crate) fn new(tick: u64, runs: &Runs) -> Deadline {
        Deadline { tick, clock: runs.clock().number() }
    }
}

/// Ends the runs that were given it ([`RunLimits::interrupter`]): those of one thread, one request, one tenant. Cheap
/// to clone; clones end the same runs. Made by [`crate::Engine::interrupter`].
#[derive(Clone)]
pub struct Interrupter {
    runs: Arc<dyn Interruptible>,
    number: u64,
}

/// What an [`Interrupter`] knows of its engine.
pub(crate) trait Interruptible: Send + Sync {
    /// Its runs.
    fn runs(&self) -> &Runs;
}

impl fmt::Debug for Interrupter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Interrupter {
    pub(crate) fn new(runs: Arc<dyn Interruptible>) -> Interrupter {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only uniqueness matters.
        Interrupter { runs, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Ends the runs that are going on under it: each stops at its next taken back-edge or call, with
    /// [`RunError::Interrupted`], and so do the runs inside them. Runs that begin later are not concerned.
    pub fn interrupt(&self) {
        self.runs.runs().interrupt_under(self.number);
    }
}

/// What one run may take, in addition to what its program may ([`crate::Loader::budget`]): the smaller budget holds. No
/// limits by default.
///
/// A limit needs the check in the program's code that it is enforced by. A program that was loaded without it is
/// refused ([`RunError::Unlimited`]). Programs that it tail-calls run on under
/// its limits, as far as they were loaded with the checks.
///
/// ```
/// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, RunLimits, assemble};
/// use std::time::Duration;
///
/// let engine = Engine::new(Config::default())?;
/// let linker = Linker::<()>::new(&engine);
/// let endless = assemble("r0 = 0\nr0 += 1\ngoto -2")?;
/// let endless = linker.loader::<Raw>().hybrid().budget(u64::MAX).interruptible(true).insns("endless", endless)?;
///
/// let limits = RunLimits::new().budget(1000);
/// assert!(matches!(endless.run_with(&mut (), &mut [], &limits), Err(RunError::Budget { .. })));
///
/// let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(5))?);
/// assert!(matches!(endless.run_with(&mut (), &mut [], &limits), Err(RunError::Deadline { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunLimits {
    budget: Option<u64>,
    deadline: Option<Deadline>,
    interrupter: Option<Interrupter>,
}

impl RunLimits {
    /// None.
    pub fn new() -> RunLimits {
        RunLimits::default()
    }

    /// Stop the run after so many taken back-edges and calls together, at least 1. For a [`crate::Hook`]: each of its
    /// programs.
    pub fn budget(mut self, budget: u64) -> RunLimits {
        self.budget = Some(budget);
        self
    }

    /// Stop the run at this time.
    pub fn deadline(mut self, deadline: Deadline) -> RunLimits {
        self.deadline = Some(deadline);
        self
    }

    /// Let this end the run.
    pub fn interrupter(mut self, interrupter: &Interrupter) -> RunLimits {
        self.interrupter = Some(interrupter.clone());
        self
    }
}

/// Which checks code has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checks {
    /// It counts against a budget.
    pub(crate) budget: bool,
    /// It looks for an interruption.
    pub(crate) interrupt: bool,
}

/// What a run begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// [`crate::abi::watch::word_of`] what it is a run of.
    pub(crate) of: u64,
    /// What it may spend.
    pub(crate) budget: i64,
}

/// [`RunLimits`] that were found to be possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What each program of the run may spend.
    pub(crate) allowance: i64,
    pub(crate) watched: Watched,
}

impl Limits {
    /// None.
    pub(crate) fn none(terms: Terms) -> Limits {
        Limits { allowance: i64::MAX, watched: Watched { of: terms.of, deadline: NEVER, interrupter: 0 } }
    }

    /// These, for a run of programs with these checks, of which `named` says the first that lacks one.
    pub(crate) fn new<'p>(
        limits: &RunLimits,
        terms: Terms,
        runs: &Runs,
        programs: impl Iterator<Item = (&'p str, Checks)>,
    ) -> Result<Limits, RunError> {
        let RunLimits { budget, deadline, interrupter } = limits;
        if *budget == Some(0) {
            return Err(RunError::NoBudget);
        }
        let foreign = deadline.is_some_and(|d| d.clock != runs.clock().number())
            || interrupter.as_ref().is_some_and(|i| !core::ptr::eq(i.runs.runs(), runs));
        if foreign {
            return Err(RunError::OtherEngine);
        }
        let stopped = deadline.is_some() || interrupter.is_some();
        for (program, checks) in programs {
            let lacks = |lacks| Err(RunError::Unlimited { program: program.to_owned(), lacks });
            if budget.is_some() && !checks.budget {
                return lacks("count its work: load it with `Loader::budget`, or set `Config::budget`");
            }
            if stopped && !checks.interrupt {
                return lacks(
                    "look for interruptions: load it with `Loader::interruptible`, or set `Config::interruptible`",
                );
            }
        }
        Ok(Limits {
            allowance: budget.and_then(|budget| i64::try_from(budget).ok()).unwrap_or(i64::MAX),
            watched: Watched {
                of: terms.of,
                deadline: deadline.map_or(NEVER, |deadline| deadline.tick),
                interrupter: interrupter.as_ref().map_or(0, |interrupter| interrupter.number),
            },
        })
    }
}
