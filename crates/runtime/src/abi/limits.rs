//! Limits of one run, beside the limits that its program was loaded with.

use crate::abi::critical::Critical;
use crate::abi::slots::Runs;
use crate::abi::watch::{NEVER, Watched};
use crate::abi::whole::{Ends, Whole};
use crate::error::RunError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A point in time at which runs end. Made by [`crate::Engine::deadline`]; one serves any number of runs, of programs
/// of its engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    tick: u64,
    /// The number of the engine's clock. A number is unique; the address of a dropped clock may be reused.
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

/// Ends the runs that it was given to ([`RunLimits::interrupter`]), for example all runs of a thread, a request or a
/// tenant. Cheap to clone; clones end the same runs. Made by [`crate::Engine::interrupter`].
#[derive(Clone)]
pub struct Interrupter {
    runs: Arc<dyn Interruptible>,
    number: u64,
    /// The number of the engine's clock, as in [`Deadline`], checked in each run that is given the interrupter.
    clock: u64,
    /// How often it has ended runs.
    ends: Ends,
}

/// The part of an engine that an [`Interrupter`] uses.
pub(crate) trait Interruptible: Send + Sync {
    /// Returns the engine's runs.
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
        Interrupter { runs, number, clock, ends: Ends::default() }
    }

    /// Ends the runs in progress that were given it: each stops at its next taken back-edge or call, with
    /// [`RunError::Interrupted`], and so do the runs nested in them. Runs that begin later are not ended.
    pub fn interrupt(&self) {
        self.ends.count();
        self.runs.runs().interrupt_under(self.number);
    }
}

/// Limits of one run, beside those of its program ([`crate::Loader::budget`]): the smaller budget holds. No limits by
/// default.
///
/// A limit is enforced by a check in the program's code. A run of a program that was loaded without the check is
/// refused ([`RunError::Unlimited`]). Programs that the run tail-calls are under its limits, too, as far as they were
/// loaded with the checks.
///
/// ```
/// use bpf_runtime::{Config, Engine, Linker, Raw, RunError, RunLimits, isa::assemble};
/// use std::time::Duration;
///
/// let engine = Engine::new(Config::new())?;
/// let linker = Linker::<()>::new(&engine);
/// let endless = assemble("r0 = 0\nr0 += 1\ngoto -2")?;
/// let endless = linker.loader::<Raw>().hybrid(true).budget(u64::MAX).interruptible(true).insns("endless", endless)?;
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
    /// The budget of each program, in taken back-edges and calls.
    allowance: i64,
    /// The tick at which the run is to end; [`NEVER`] without a deadline.
    deadline: u64,
    /// The number of the interrupter that may end the run; 0: none.
    interrupter: u64,
    /// The number of the clock of the deadline and the interrupter; 0 without either.
    clock: u64,
    /// Conditions that are tested at once: the [`Checks::bits`] that the run's programs must have, and bits that no
    /// program has, for impossible limits ([`RunLimits::NOTHING`], [`RunLimits::TWO_ENGINES`]).
    needed: u32,
    /// Whether the time that a sleepable run waits counts against the deadline.
    waits_count: bool,
    /// The part of the budget after which a run yields.
    slice: i64,
    /// The run of several programs that the run is a part of.
    whole: Option<Arc<Whole>>,
    /// Keeps the interrupter's engine.
    by: Option<Interrupter>,
}

impl RunLimits {
    /// Lets the run of several programs go, of which no run is a part any more.
    pub(crate) fn end_whole(&mut self) {
        let _critical = Critical::enter();
        self.whole = None;
    }
}

impl Default for RunLimits {
    fn default() -> RunLimits {
        RunLimits {
            allowance: i64::MAX,
            deadline: NEVER,
            interrupter: 0,
            clock: 0,
            needed: 0,
            waits_count: true,
            slice: i64::MAX,
            whole: None,
            by: None,
        }
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

    /// Returns no limits.
    pub fn new() -> RunLimits {
        RunLimits::default()
    }

    /// Stops the run after this number of taken back-edges and calls together, at least 1. In a [`crate::Hook`], the
    /// budget is that of each program.
    pub fn budget(mut self, budget: u64) -> RunLimits {
        self.allowance = i64::try_from(budget).unwrap_or(i64::MAX);
        let nothing = if budget == 0 { Self::NOTHING } else { 0 };
        self.needed = self.needed & !Self::NOTHING | Checks::BUDGET | nothing;
        self
    }

    /// Stops the run at this time.
    pub fn deadline(mut self, deadline: Deadline) -> RunLimits {
        self.deadline = deadline.tick;
        self.stopped_by(deadline.clock)
    }

    /// Sets whether the time that a sleepable run ([`crate::Program::run_async_with`]) waits for host functions counts
    /// against its deadline. By default it does, and a run that waits ends at its deadline. With `false` the deadline
    /// moves by the time that the run waits, rounded up to ticks: the run is stopped after it has computed for too
    /// long, and may wait for any time.
    pub fn waits_count(mut self, count: bool) -> RunLimits {
        self.waits_count = count;
        self
    }

    /// Lets the run yield each time that it has taken this number of back-edges and calls together (0 counts as 1): its
    /// future wakes its poller and is pending, so that the executor serves others, and goes on when it is polled next.
    /// The run yields where a loop begins a round; where it may not sleep, it goes on to the next such place. Programs
    /// that were loaded without [`crate::Loader::yields`] refuse the limit.
    pub fn yield_every(mut self, ticks: u64) -> RunLimits {
        self.slice = i64::try_from(ticks.max(1)).unwrap_or(i64::MAX);
        self.needed |= Checks::YIELDS;
        self
    }

    /// Replaces the deadline by one that waits have moved, for the programs of a hook that follow.
    pub(crate) fn move_deadline(&mut self, tick: u64) {
        self.deadline = tick;
    }

    /// Makes the runs under these limits parts of one, which begins now and ends if one of these counts changes, or the
    /// count of the interrupter.
    pub(crate) fn begin_whole(&mut self, hook: &Ends, engine: &Ends) {
        let by = self.by.as_ref().map(|interrupter| &interrupter.ends);
        self.whole = Some(Arc::new(Whole::begin([Some(hook), Some(engine), by])));
    }

    /// Lets this interrupter end the run.
    pub fn interrupter(mut self, interrupter: &Interrupter) -> RunLimits {
        self.interrupter = interrupter.number;
        self.by = Some(interrupter.clone());
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

/// The checks that code was compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checks {
    /// The code counts taken back-edges and calls against a budget.
    pub(crate) budget: bool,
    /// The code tests for an interruption.
    pub(crate) interrupt: bool,
    /// Where the budget is spent, the code asks whether the run is to yield.
    pub(crate) yields: bool,
}

impl Checks {
    /// All checks: the intersection over no programs.
    pub(crate) const ALL: Checks = Checks { budget: true, interrupt: true, yields: true };
    const BUDGET: u32 = 1;
    const INTERRUPT: u32 = 1 << 8;
    const YIELDS: u32 = 1 << 16;

    /// [`Checks::BUDGET`], [`Checks::INTERRUPT`] and [`Checks::YIELDS`]: one byte each, in the layout of the structure,
    /// so that this compiles to one load.
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from_le_bytes([u8::from(self.budget), u8::from(self.interrupt), u8::from(self.yields), 0])
    }

    /// Returns the checks that both have.
    pub(crate) fn and(self, other: Checks) -> Checks {
        Checks {
            budget: self.budget && other.budget,
            interrupt: self.interrupt && other.interrupt,
            yields: self.yields && other.yields,
        }
    }
}

/// The identity and the budget of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The [`crate::abi::watch::word_of`] the program, hook or dispatcher that is run.
    pub(crate) of: u64,
    /// The budget, in taken back-edges and calls.
    pub(crate) budget: i64,
}

/// [`RunLimits`] that were checked. A pointer, so that the short path of a run needs one register for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'l>(&'l RunLimits);

impl<'l> Limits<'l> {
    /// No limits.
    pub(crate) const NONE: Limits<'static> = Limits(&RunLimits {
        allowance: i64::MAX,
        deadline: NEVER,
        interrupter: 0,
        clock: 0,
        needed: 0,
        waits_count: true,
        slice: i64::MAX,
        whole: None,
        by: None,
    });

    /// Checks that a run of programs that all have these `checks` can have these limits. `named` lists each program
    /// with its checks, for the error.
    #[inline(always)]
    pub(crate) fn new<'p, I: Iterator<Item = (&'p str, Checks)>>(
        limits: &'l RunLimits,
        runs: &Runs,
        checks: Checks,
        named: impl FnOnce() -> I,
    ) -> Result<Limits<'l>, Box<RunError>> {
        // Only limits that need the interrupt check have a clock, so the clock is compared only for those.
        let foreign = || limits.needed & Checks::INTERRUPT != 0 && limits.clock != runs.clock_number();
        if limits.needed & !checks.bits() != 0 || foreign() {
            return Err(impossible(limits.needed, foreign(), named));
        }
        Ok(Limits(limits))
    }

    /// Returns the budget of each program of the run.
    #[inline(always)]
    pub(crate) fn allowance(self) -> i64 {
        self.0.allowance
    }

    /// The tick at which the run is to end.
    #[inline(always)]
    pub(crate) fn deadline(self) -> u64 {
        self.0.deadline
    }

    /// Returns whether the run is to end before its first instruction: its deadline has passed, or the run that it is a
    /// part of was ended. The clock never reaches [`NEVER`]. Asked when the run's word is stored: see
    /// [`crate::abi::clock`] and [`crate::abi::whole`].
    #[inline(always)]
    pub(crate) fn is_over(self, runs: &Runs) -> bool {
        runs.clock().now() >= self.0.deadline || self.0.whole.is_some() && self.is_ended()
    }

    #[inline(never)]
    fn is_ended(self) -> bool {
        self.0.whole.as_ref().is_some_and(|whole| whole.is_ended())
    }

    /// Returns the error of a run that [`Limits::is_over`].
    #[cold]
    #[inline(never)]
    pub(crate) fn over(self) -> Box<RunError> {
        Box::new(match self.is_ended() {
            true => RunError::Interrupted { insn: None, origin: None },
            false => RunError::Deadline { insn: None, origin: None },
        })
    }

    /// Returns whether the time that a sleepable run waits counts against the deadline.
    pub(crate) fn waits_count(self) -> bool {
        self.0.waits_count
    }

    /// Returns the part of the budget after which the run yields.
    pub(crate) fn slice(self) -> i64 {
        self.0.slice
    }

    /// Returns whether the run needs a [`crate::abi::watch::Watch`]: its word alone does not describe it.
    #[inline(always)]
    pub(crate) fn needs_watch(self) -> bool {
        self.0.needed & Checks::INTERRUPT != 0 || self.0.whole.is_some()
    }

    /// Returns the description of a run of `of` under these limits, for threads that end runs.
    #[inline(always)]
    pub(crate) fn watched(self, of: u64) -> Watched {
        Watched { of, deadline: self.0.deadline, interrupter: self.0.interrupter }
    }
}

/// Returns why a run cannot have the limits. A function of its own, so that the code that names programs is out of
/// line.
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
    } else if needed & !checks.bits() & Checks::YIELDS != 0 {
        "yield: load it with `Loader::yields`"
    } else {
        "look for interruptions: load it with `Loader::interruptible`, or set `Config::interruptible`"
    };
    Box::new(RunError::Unlimited { program: program.to_owned(), lacks })
}
