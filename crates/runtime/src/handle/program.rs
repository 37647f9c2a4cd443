//! The handle of a loaded program.

use crate::abi::limits::RunLimits;
use crate::call::over::Over;
use crate::call::state::{Host, Loan};
use crate::context::Context;
use crate::error::RunError;
use crate::exec::observed::{Observer, Observing};
use crate::exec::timers::TimerRuns;
use crate::handle::coverage::Coverage;
use crate::handle::kept::Kept;
use crate::handle::run_async::{Lent, RunAsync};
use crate::program::loaded::Loaded;
use core::marker::PhantomData;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded program on context `C` with host state `H`. Cheap to clone; may be run by any number of threads at once,
/// and dropped at any time, also by a host function while it runs.
pub struct Program<C, H: ?Sized = ()> {
    loaded: Arc<Loaded>,
    /// Keeps the prog arrays it jumps through filled, if there are any.
    kept: Option<Kept>,
    types: Over<(C, H)>,
}

impl<C, H: ?Sized> Clone for Program<C, H> {
    fn clone(&self) -> Self {
        Program { loaded: Arc::clone(&self.loaded), kept: self.kept.clone(), types: PhantomData }
    }
}

impl<C, H: ?Sized> Drop for Program<C, H> {
    fn drop(&mut self) {
        // A deferred drop may own the last handle of this program, which owns its engine: see `Drop` of `Engine`.
        self.loaded.engine.settle();
    }
}

impl<C, H: ?Sized> fmt::Debug for Program<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.loaded.name).finish_non_exhaustive()
    }
}

/// A program as errors and listings name it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProgramName {
    /// The name of the instance that the program belongs to, if it has one ([`crate::instances::Instantiate::name`]).
    pub instance: Option<String>,
    /// The program's own name.
    pub program: String,
}

impl ProgramName {
    pub(crate) fn of(loaded: &Loaded) -> ProgramName {
        ProgramName { instance: loaded.instance.as_deref().map(str::to_owned), program: loaded.name.to_string() }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instance {
            Some(instance) => write!(f, "`{}` in instance `{instance}`", self.program),
            None => write!(f, "`{}`", self.program),
        }
    }
}

/// Result and mean time of [`Program::test_run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TestRun {
    /// The result of the last run.
    pub result: u64,
    /// Mean wall-clock time of one run.
    pub mean: Duration,
}

impl<C: Context, H: Host + ?Sized> Program<C, H> {
    pub(crate) fn new(loaded: Arc<Loaded>, kept: Option<Kept>) -> Self {
        Program { loaded, kept, types: PhantomData }
    }

    pub(crate) fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }

    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// The name of the instance that it belongs to, if that has one ([`crate::instances::Instantiate::name`]).
    pub fn instance(&self) -> Option<&str> {
        self.loaded.instance.as_deref()
    }

    /// Runs it once: no lock, no allocation, no system call.
    ///
    /// ```no_run
    /// # fn f(filter: &bpf_runtime::Program<bpf_runtime::Raw, u32>) -> Result<(), bpf_runtime::RunError> {
    /// let mut packet = *b"\x45\x00\x00\x14...";
    /// let verdict = filter.run(&mut 7, &mut packet)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`RunError`]: the run ended without a result.
    #[inline(always)]
    pub fn run(&self, host: &mut H::State<'_>, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, which is to the end of this call,
        // and that agree with `C`'s layout, for which the program was loaded; `H` is the linker's.
        unsafe { self.loaded.run(Loan::<H>::new(host).pointer(), parts) }
    }

    /// Runs it once, as [`Program::run`], under limits of this run alone.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, RunLimits, isa::assemble};
    /// use std::time::Duration;
    ///
    /// let config = Config::new().interruptible(true);
    /// let engine = Engine::new(config)?;
    /// let length = Linker::<()>::new(&engine).loader::<Raw>().insns("length", assemble("r0 = r2\nexit")?)?;
    /// let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_secs(1))?);
    /// assert_eq!(length.run_with(&mut (), &mut [0; 7], &limits)?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RunError`]: the run ended without a result, or did not begin: [`RunError::Unlimited`] for a program that was
    /// loaded without the checks that the limits need, [`RunError::Deadline`] without an instruction if the deadline
    /// has passed, [`RunError::NoBudget`], [`RunError::OtherEngine`].
    #[inline(always)]
    pub fn run_with(
        &self,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let guard = self.loaded.engine.0.domain.enter_run()?;
        // SAFETY: as in `run`.
        unsafe { self.loaded.run_limited(guard, Loan::<H>::new(host).pointer(), parts, limits) }
    }

    /// Runs it once, as [`Program::run`], and shows each instruction to the observer before it is executed. If the
    /// observer ends the run, the run fails. The program must be interpreted, or keep its instructions
    /// ([`Loader::recordable`](crate::Loader::recordable)): it is interpreted then.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble, observe::{Observed, Observer}};
    ///
    /// struct Count(u32);
    /// impl Observer for Count {
    ///     fn step(&mut self, step: &Observed<'_>) -> bool {
    ///         self.0 += u32::from(step.regs()[0] == 0);
    ///         true
    ///     }
    /// }
    /// let linker = Linker::<()>::new(&Engine::new(Config::default())?);
    /// let program = linker.loader::<Raw>().recordable(true).insns("seven", assemble("r0 = 7\nexit")?)?;
    /// let mut count = Count(0);
    /// assert_eq!(program.run_observed(&mut (), &mut [], &mut count)?, 7);
    /// assert_eq!(count.0, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The run is interpreted. Machine code that was not verified may do what the interpreter refuses with
    /// [`RunError::Access`].
    ///
    /// # Errors
    /// As [`Program::run`]; and [`RunError::NotObserved`], [`RunError::Sleepable`].
    pub fn run_observed(
        &self,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        observer: &mut dyn Observer,
    ) -> Result<u64, RunError> {
        let Some(what) = self.loaded.instructions() else {
            let why = "does not keep its instructions: load it with `Loader::recordable`";
            return Err(RunError::NotObserved { program: self.loaded.name.to_string(), why: why.to_owned() });
        };
        if self.loaded.is_sleepable() {
            return Err(self.loaded.cannot_wait());
        }
        let (parts, mut observing) = (C::parts(&mut data), Observing::new(observer));
        // SAFETY: as in `run`.
        let run =
            || unsafe { self.loaded.run_watched(what, Loan::<H>::new(host).pointer(), parts, None, &mut observing) };
        // A subscriber that is told of the stop may panic, while the observer's panic is kept.
        let result = catch_unwind(AssertUnwindSafe(run));
        observing.finish(result)
    }

    /// Runs it once, as a future that gives its thread away while a host function waits
    /// ([`crate::Linker::func_async`]): between two polls, a run that waits holds no thread, no execution slot and no
    /// guard. It may be polled by one thread after the other. It runs any program; a sleepable one
    /// ([`crate::Loader::sleepable`]) can be run in no other way.
    ///
    /// A run may be interrupted while it waits: its future is woken and ends. After a wait the
    /// run has the rest of its budget. A deadline passes while the run waits ([`Program::run_async_with`]).
    ///
    /// ```
    /// use bpf_runtime::{AsyncCaller, Config, Engine, Linker, Raw, isa::assemble};
    /// use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    ///
    /// let mut linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// linker.func_async(1001, "double", async |_: AsyncCaller<'_, ()>, n: u64| -> u64 {
    ///     // A reply that takes its time.
    ///     let mut asked = false;
    ///     std::future::poll_fn(|cx| {
    ///         cx.waker().wake_by_ref();
    ///         if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }
    ///     })
    ///     .await;
    ///     2 * n
    /// })?;
    /// let insns = assemble("r1 = r2\ncall 1001\nexit")?;
    /// let program = linker.loader::<Raw>().sleepable(true).insns("program", insns)?;
    /// assert!(program.run_on(&mut [0; 4]).is_err());
    ///
    /// let (mut host, mut bytes) = ((), [0; 4]);
    /// let mut run = pin!(program.run_async(&mut host, &mut bytes));
    /// let mut cx = Context::from_waker(Waker::noop());
    /// assert!(run.as_mut().poll(&mut cx).is_pending());
    /// assert!(matches!(run.poll(&mut cx), Poll::Ready(Ok(8))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The future's: as for [`Program::run`], [`RunError::TooManyAsleep`], [`RunError::NoStack`],
    /// [`RunError::MemoryFull`] and, in a signal handler, [`RunError::Signal`].
    ///
    /// # Panics
    /// The future, when it is polled or dropped, resumes the panic of a host function's future. The run is over then.
    pub fn run_async<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
    ) -> RunAsync<'r, C::Data<'r, 'p>, H> {
        self.run_lent(Loan::new(host), data, None)
    }

    /// Runs it once, as [`Program::run_async`], under limits of this run alone. A run that waits ends at its deadline,
    /// and when its interrupter ends it: its future is woken, and the host function's future is dropped.
    ///
    /// # Errors
    /// The future's: as [`Program::run_async`] and [`Program::run_with`].
    ///
    /// # Panics
    /// As [`Program::run_async`].
    pub fn run_async_with<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
        limits: &RunLimits,
    ) -> RunAsync<'r, C::Data<'r, 'p>, H> {
        self.run_lent(Loan::new(host), data, Some(limits))
    }

    /// Runs it once, as [`Program::run_async`], with a state that was lent to its caller.
    pub(crate) fn run_lent<'r, 'p>(
        &self,
        host: Loan<'r, H>,
        data: C::Data<'r, 'p>,
        limits: Option<&RunLimits>,
    ) -> RunAsync<'r, C::Data<'r, 'p>, H> {
        // SAFETY: the program was loaded for `C` by a linker for `H`.
        unsafe { RunAsync::new(&self.loaded, self.kept.as_ref(), Lent::new(host, (data, C::parts)), limits) }
    }

    /// Runs the callbacks of the program's timers that are due (`bpf_timer_start`): on this thread, each once, with
    /// this host state. Nothing else runs them. A callback is a run that begins in the callback's function, with the
    /// program's budget. `data` is the context of helpers that take no context argument (`bpf_redirect`); the callback
    /// itself cannot read it.
    ///
    /// A service calls this between its packets, or in a thread of its own. [`TimerRuns::next`] is the time until the
    /// next timer is due, but other threads may set earlier ones, so call it at regular intervals, too. A timer that a
    /// callback starts again is left to the next call.
    ///
    /// ```no_run
    /// # fn f(program: &bpf_runtime::Program<bpf_runtime::Raw, ()>) -> Result<(), bpf_runtime::RunError> {
    /// loop {
    ///     let next = program.run_timers(&mut (), &mut [])?.next;
    ///     std::thread::sleep(next.unwrap_or_default().clamp(TICK, 10 * TICK));
    /// }
    /// # }
    /// # const TICK: std::time::Duration = std::time::Duration::from_millis(1);
    /// ```
    ///
    /// # Errors
    /// [`RunError`] of the first callback that fails. That timer is not due any more; the next call runs the others
    /// that are.
    pub fn run_timers(&self, host: &mut H::State<'_>, mut data: C::Data<'_, '_>) -> Result<TimerRuns, RunError> {
        let parts = C::parts(&mut data);
        // SAFETY: as in `run`; `data` stays borrowed over all runs.
        unsafe { self.loaded.run_timers(Loan::<H>::new(host).pointer(), parts) }
    }

    /// Ends the runs of this program that are in progress: each stops at its next taken back-edge or call, with
    /// [`RunError::Interrupted`], and so do the runs nested in them. Not ended: runs that begin later, runs of a
    /// [`crate::Hook`] that the program is attached to ([`crate::Hook::interrupt`]), and runs that entered it by a tail
    /// call. Only programs loaded with [`crate::Loader::interruptible`] stop.
    pub fn interrupt(&self) {
        self.loaded.engine.0.runs.interrupt_of(self.loaded.terms().of);
    }

    /// Runs it `repeat` times (at least once) on the same data, and measures the time. Each run sees the data as the
    /// run before left it.
    ///
    /// # Errors
    /// [`RunError`] of the first run that fails.
    pub fn test_run(
        &self,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        repeat: u32,
    ) -> Result<TestRun, RunError> {
        let parts = C::parts(&mut data);
        let host = Loan::<H>::new(host).pointer();
        let repeat = repeat.max(1);
        let mut result = 0;
        let start = Instant::now();
        for _ in 0..repeat {
            // SAFETY: as in `run`; `data` stays borrowed over all runs.
            result = unsafe { self.loaded.run(host, parts) }?;
        }
        Ok(TestRun { result, mean: start.elapsed() / repeat })
    }

    /// Returns a copy of the machine code, with the patches of this moment, and the address of its first byte; `None`
    /// when interpreted, and in a forked child, which does not have the code.
    pub fn machine_code(&self) -> Option<(Vec<u8>, u64)> {
        self.loaded.text()
    }

    /// Returns whether it was loaded with [`crate::OptLevel::Tiered`] and still has the code of its first tier: it was
    /// not seen running often yet, or could not be recompiled ([`crate::Engine::tier_stats`]).
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, OptLevel, Raw, isa::assemble};
    ///
    /// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
    /// let seven = linker.loader::<Raw>().opt_level(OptLevel::Tiered).insns("seven", assemble("r0 = 7\nexit")?)?;
    /// while seven.is_slow() {
    ///     assert_eq!(seven.run_on(&mut [])?, 7);
    /// }
    /// assert_eq!(seven.run_on(&mut [])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_slow(&self) -> bool {
        self.loaded.is_slow()
    }

    /// Returns how often its instructions and source lines were executed since it was loaded; `None` for machine code,
    /// and without [`crate::Config::coverage`]. Instances of one module count together.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Mode, Raw, isa::assemble};
    ///
    /// let config = Config::new().mode(Mode::Interpreter).coverage(true);
    /// let linker = Linker::<()>::new(&Engine::new(config)?);
    /// let insns = assemble("r0 = 0\nif r2 == 0 goto +1\nr0 = 1\nexit")?;
    /// let program = linker.loader::<Raw>().insns("some", insns)?;
    /// program.run_on(&mut [])?;
    /// assert_eq!(program.coverage().unwrap().insns, [1, 1, 0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn coverage(&self) -> Option<Coverage> {
        Coverage::of(&self.loaded)
    }

    /// Returns the upper bound on the machine stack of a run in bytes, as computed at load; 0 when interpreted.
    pub fn machine_stack_bytes(&self) -> u64 {
        self.loaded.machine_stack()
    }
}

impl<C: Context> Program<C> {
    /// Runs it once, as [`Program::run`], for a host without state.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Program, Raw, isa::assemble};
    ///
    /// let linker: Linker = Linker::new(&Engine::new(Config::new())?);
    /// let length: Program<Raw> = linker.loader().insns("length", assemble("r0 = r2\nexit")?)?;
    /// assert_eq!(length.run_on(&mut [0; 7])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Program::run`].
    #[inline(always)]
    pub fn run_on(&self, data: C::Data<'_, '_>) -> Result<u64, RunError> {
        self.run(&mut (), data)
    }
}
