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
    /// The engine's clock, as in [`Deadline`]: asked in each run that is given it.
    clock: u64,
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
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let clock = runs.runs().clock().number();
        Interrupter { runs, number, clock }
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
#[derive(Clone)]
pub struct RunLimits {
    /// What each program may spend.
    allowance: i64,
    /// The tick at which the run is to end.
    deadline: u64,
    /// The number of the interrupter that may end the run; 0: none.
    interrupter: u64,
    /// Whose clock's the deadline and the interrupter are; 0 if there is none.
    clock: u64,
    /// What a run is looked up for, in one look: [`Checks::bits`] that its programs must have, and what no run can
    /// have ([`RunLimits::NOTHING`], [`RunLimits::TWO_ENGINES`]).
    needed: u32,
    /// Keeps the engine that it belongs to.
    _keep: Option<Interrupter>,
}

impl Default for RunLimits {
    fn default() -> RunLimits {
        RunLimits { allowance: i64::MAX, deadline: NEVER, interrupter: 0, clock: 0, needed: 0, _keep: None }
    }
}

impl fmt::Debug for RunLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |is: bool, value: u64| is.then_some(value);
        f.debug_struct("RunLimits")
            .field("budget", &set(self.needed & Checks::BUDGET != 0, self.allowance.unsigned_abs()))
            .field("deadline", &set(self.deadline != NEVER, self.deadline))
            .field("interrupter", &set(self.interrupter != 0, self.interrupter))
            .finish_non_exhaustive()
    }
}

impl RunLimits {
    /// In `needed`: the budget is 0.
    const NOTHING: u32 = 1 << 1;
    /// In `needed`: deadline and interrupter are of two engines.
    const TWO_ENGINES: u32 = 1 << 2;

    /// None.
    pub fn new() -> RunLimits {
        RunLimits::default()
    }

    /// Stop the run after so many taken back-edges and calls together, at least 1. For a [`crate::Hook`]: each of its
    /// programs.
    pub fn budget(mut self, budget: u64) -> RunLimits {
        self.allowance = i64::try_from(budget).unwrap_or(i64::MAX);
        let nothing = if budget == 0 { Self::NOTHING } else { 0 };
        self.needed = self.needed & !Self::NOTHING | Checks::BUDGET | nothing;
        self
    }

    /// Stop the run at this time.
    pub fn deadline(mut self, deadline: Deadline) -> RunLimits {
        self.deadline = deadline.tick;
        self.stopped_by(deadline.clock)
    }

    /// Let this end the run.
    pub fn interrupter(mut self, interrupter: &Interrupter) -> RunLimits {
        self.interrupter = interrupter.number;
        self._keep = Some(interrupter.clone());
        self.stopped_by(interrupter.clock)
    }

    fn stopped_by(mut self, clock: u64) -> RunLimits {
        if self.clock != 0 && self.clock != clock {
            self.needed |= Self::TWO_ENGINES;
        }
        self.clock = clock;
        self.needed |= Checks::INTERRUPT;
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

impl Checks {
    /// All: those of no program, of which nothing is asked.
    pub(crate) const ALL: Checks = Checks { budget: true, interrupt: true };
    const BUDGET: u32 = 1;
    const INTERRUPT: u32 = 1 << 8;

    /// [`Checks::BUDGET`] and [`Checks::INTERRUPT`]: a byte each, as they lie in memory, so that this is one load.
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from_le_bytes([u8::from(self.budget), u8::from(self.interrupt), 0, 0])
    }

    /// Those of both.
    pub(crate) fn and(self, other: Checks) -> Checks {
        Checks { budget: self.budget && other.budget, interrupt: self.interrupt && other.interrupt }
    }
}

/// What a run begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// [`crate::abi::watch::word_of`] what it is a run of.
    pub(crate) of: u64,
    /// What it may spend.
    pub(crate) budget: i64,
}

/// [`RunLimits`] that were found to be possible: a pointer, so that a caller who is as short as a run need not keep
/// what they say in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'l>(&'l RunLimits);

impl<'l> Limits<'l> {
    /// None.
    pub(crate) const NONE: Limits<'static> =
        Limits(&RunLimits { allowance: i64::MAX, deadline: NEVER, interrupter: 0, clock: 0, needed: 0, _keep: None });

    /// These, for a run of programs that all have these checks; `named` says each with its own.
    #[inline(always)]
    pub(crate) fn new<'p, I: Iterator<Item = (&'p str, Checks)>>(
        limits: &'l RunLimits,
        runs: &Runs,
        checks: Checks,
        named: impl FnOnce() -> I,
    ) -> Result<Limits<'l>, Box<RunError>> {
        // Who has a clock needs the check: what needs none is not asked whose it is.
        let foreign = || limits.needed & Checks::INTERRUPT != 0 && limits.clock != runs.clock_number();
        if limits.needed & !checks.bits() != 0 || foreign() {
            return Err(impossible(limits.needed, foreign(), named));
        }
        Ok(Limits(limits))
    }

    /// What each program of the run may spend.
    #[inline(always)]
    pub(crate) fn allowance(self) -> i64 {
        self.0.allowance
    }

    /// The tick at which the run is to end.
    #[inline(always)]
    pub(crate) fn deadline(self) -> u64 {
        self.0.deadline
    }

    /// Whether more must be known of the run than what it is a run of.
    #[inline(always)]
    pub(crate) fn needs_watch(self) -> bool {
        self.0.needed & Checks::INTERRUPT != 0
    }

    /// What others must know of a run of this.
    #[inline(always)]
    pub(crate) fn watched(self, of: u64) -> Watched {
        Watched { of, deadline: self.0.deadline, interrupter: self.0.interrupter }
    }
}

/// Why a run cannot have the limits. The programs are named here, so that runs which can have them have no code for it.
#[cold]
#[inline(never)]
fn impossible<'p, I: Iterator<Item = (&'p str, Checks)>>(
    needed: u32,
    foreign: bool,
    named: impl FnOnce() -> I,
) -> Box<RunError> {
    if needed & RunLimits::NOTHING != 0 {
        return Box::new(RunError::NoBudget);
    }
    if foreign || needed & RunLimits::TWO_ENGINES != 0 {
        return Box::new(RunError::OtherEngine);
    }
    let Some((program, checks)) = named().find(|(_, checks)| needed & !checks.bits() != 0) else {
        return Box::new(RunError::Internal("a program lacks a check, and none does".into()));
    };
    let lacks = if needed & !checks.bits() & Checks::BUDGET != 0 {
        "count its work: load it with `Loader::budget`, or set `Config::budget`"
    } else {
        "look for interruptions: load it with `Loader::interruptible`, or set `Config::interruptible`"
    };
    Box::new(RunError::Unlimited { program: program.to_owned(), lacks })
}
