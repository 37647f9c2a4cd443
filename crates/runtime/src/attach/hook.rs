//! Hooks: a list of programs run as one, and changed while it runs.
//!
//! Problem: a place in a service runs every program that is attached to it, in order, with a rule about their verdicts;
//! programs are attached, detached and replaced under traffic. Approach: as machine code the whole list is one image, a
//! straight line of direct calls with verdict tests between ([`bpf_dispatcher::Image::chain`]); a change builds a new
//! image and publishes it by one store. If a program is interpreted, or while statistics are on, there is no image, and
//! [`Hook::run`] walks the list instead. Statistics that are off cost nothing.
//!
//! Invariants: a run takes the image or the list once, inside its guard, so it sees the hook before a change or after
//! it. A change drops replaced programs, lists and images only after they were unpublished, and their memory lives
//! until the runs begun before are over: executable memory by its own grace period, lists by a deferred drop.

use crate::abi::begin;
use crate::abi::limits::{Limits, RunLimits, Terms};
use crate::abi::machine_stack::INTERPRETER;
use crate::abi::roots::{Roots, StoppedAt};
use crate::abi::run::Run;
use crate::abi::watch::word_of;
use crate::abi::whole::Ends;
use crate::attach::hook_async::HookRunAsync;
use crate::attach::published::{Counters, List, ListError, Listed, ProgramStats, Published, ReclaimOnDrop};
use crate::call::state::{Host, Loan};
use crate::context::{Context, Parts};
use crate::engine::BACKEND;
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::engine::debug;
use crate::engine::trace;
use crate::error::RunError;
use crate::handle::program::{Program, ProgramName};
use crate::handle::run_async::Lent;
use crate::program::loaded::Loaded;
use crate::program::locate::locate;
use bpf_dispatcher::{HookPolicy, Image, Link, LiveImage, MAX_LIMIT, Options, StagedImage, Verdicts};
use bpf_quiesce::{Finish, Guard, OtherDomain};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Why a hook was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The program belongs to another engine.
    #[error(transparent)]
    OtherDomain(#[from] OtherDomain),
    /// The program is sleepable, and the hook's runs cannot wait.
    #[error("program {program} is sleepable, and the hook is not: make it by `Hook::sleepable`")]
    Sleepable {
        /// The program.
        program: ProgramName,
    },
    /// The program is attached already.
    #[error("program {program} is attached already")]
    Attached {
        /// The program.
        program: ProgramName,
    },
    /// The program is not attached.
    #[error("program {program} is not attached")]
    NotAttached {
        /// The program.
        program: ProgramName,
    },
    /// The position is beyond the end of the list.
    #[error("there is no position {position} in a list of {len} programs")]
    Position {
        /// The position asked for.
        position: usize,
        /// How many programs there are.
        len: usize,
    },
    /// The hook has as many programs as one may have.
    #[error("no more than {max} programs")]
    Full {
        /// The most programs that a hook may have.
        max: usize,
    },
    /// Verdicts to continue on were given for a policy other than [`HookPolicy::FirstVerdict`].
    #[error("the hook's policy does not look at verdicts")]
    Verdicts,
    /// The image could not be placed.
    #[error("executable memory: {0}")]
    Image(bpf_prog_pack::Error),
    /// There is no memory for the list of programs.
    #[error(transparent)]
    List(#[from] ListError),
}

impl From<bpf_prog_pack::Error> for HookError {
    fn from(error: bpf_prog_pack::Error) -> HookError {
        HookError::Image(error)
    }
}

/// Priority and verdicts of an attached program, as libxdp has them for each program of its dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attachment {
    /// Programs of lower priority run first; among equals, the program that was attached first.
    pub priority: i32,
    /// The verdicts after which the next program runs, in place of the `pass` of [`HookPolicy::FirstVerdict`]. Other
    /// policies refuse it ([`HookError::Verdicts`]).
    pub continue_on: Option<Verdicts>,
}

impl Default for Attachment {
    /// Returns libxdp's default: priority 50, verdicts of the policy.
    fn default() -> Self {
        Attachment { priority: 50, continue_on: None }
    }
}

impl Attachment {
    /// Sets the priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the verdicts after which the next program runs, instead of the policy's.
    #[must_use]
    pub fn continue_on(mut self, verdicts: Verdicts) -> Self {
        self.continue_on = Some(verdicts);
        self
    }
}

/// A list of programs on context `C` with host state `H`, run as one.
///
/// A run of the hook is one run of all its programs: an error in one ends it. Each program has its own budget
/// ([`crate::Loader::budget`]) and its own 33 tail calls. As machine code the programs are called directly. The call
/// from Rust into the image is itself an indirect call, one and well predicted: the hook saves the calls *between*
/// programs.
///
/// ```
/// use bpf_runtime::{Config, Engine, Hook, HookPolicy, Linker, Raw, isa::assemble};
///
/// let engine = Engine::new(Config::new())?;
/// let linker = Linker::<()>::new(&engine);
/// let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
/// const PASS: u64 = 2;
///
/// let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::FirstVerdict { pass: PASS })?;
/// assert_eq!(hook.run_on(&mut [1])?, PASS);
///
/// let short = load("short", "r0 = 1\nif r2 < 4 goto +1\nr0 = 2\nexit")?;
/// let deny = load("deny", "r0 = 7\nexit")?;
/// hook.attach(&short)?;
/// hook.attach(&deny)?;
/// assert_eq!(hook.run_on(&mut [1])?, 1);
/// assert_eq!(hook.run_on(&mut [1; 4])?, 7);
///
/// // Under traffic: every run sees the list before the change or after it.
/// let allow = load("allow", "r0 = 2\nexit")?;
/// hook.replace(&deny, &allow)?;
/// assert_eq!(hook.run_on(&mut [1; 4])?, PASS);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hook<C, H: ?Sized = ()> {
    engine: Engine,
    policy: HookPolicy,
    /// Whether its programs may be sleepable.
    sleepable: bool,
    /// Identifies the hook to its runs that may wait, which keep it: the address of a dropped hook may be reused.
    identity: Ends,
    /// Without an image, the list is walked.
    image: LiveImage,
    list: Published<Arc<List>>,
    /// The largest machine stack, in bytes, of all programs ever attached. Detached ones count, too: a run may still
    /// be about to enter one.
    code_stack: AtomicU64,
    state: Mutex<State<C, H>>,
    _reclaim: ReclaimOnDrop,
}

/// The state of a hook that changes read and write, under its lock.
pub(super) struct State<C, H: ?Sized> {
    attached: Vec<Attached<C, H>>,
    /// The published list of `attached`.
    list: Weak<List>,
    statistics: bool,
    /// The number of changes.
    version: u64,
    /// The version of the change that first made the list what it is. A list that a rollback put back has its former
    /// value.
    made: u64,
    /// The programs that the edits removed, kept until the lock is released: dropping a handle may run deferred drops.
    gone: Vec<Attached<C, H>>,
}

/// A change of the list.
pub(super) enum Edit<C, H: ?Sized> {
    /// As [`Hook::attach_with`].
    Attach(Program<C, H>, Attachment),
    /// As [`Hook::attach_at`].
    AttachAt(usize, Program<C, H>),
    /// As [`Hook::detach`].
    Detach(Program<C, H>),
    /// As [`Hook::replace`].
    Replace(Program<C, H>, Program<C, H>),
    /// The whole list as the version has made it.
    Restore(Vec<Attached<C, H>>, u64),
}

/// A list and its image, built and not published yet.
pub(super) struct Prepared<C, H: ?Sized> {
    next: State<C, H>,
    /// `None`: the list is walked.
    image: Option<StagedImage>,
    list: List,
    /// The version that has made the list from which this was made.
    from: u64,
}

impl<C, H: ?Sized> Prepared<C, H> {
    /// The version that has made the list from which this was made.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Returns whether the hook is unchanged since.
    pub(super) fn is_for(&self, state: &State<C, H>) -> bool {
        state.version == self.next.version - 1
    }
}

/// The error of a refused change, and the state that it would have published, to be dropped without the hook's lock.
type Unready<C, H> = Box<(HookError, State<C, H>)>;

/// The state that a change has replaced. To be dropped without the hook's lock: programs may own host closures whose
/// `Drop` changes the hook.
#[must_use = "a change is told of when it is finished"]
pub(super) struct Replacing<C, H: ?Sized> {
    old: State<C, H>,
    gone: Vec<Attached<C, H>>,
    made: u64,
}

impl<C: Context, H: Host + ?Sized> Replacing<C, H> {
    /// Reports the change and drops the programs that it removed, without the lock. Returns the edit that restores the
    /// list, and the version that made the current list.
    pub(super) fn finish(self, hook: &Hook<C, H>, finish: &mut Finish) -> (Edit<C, H>, u64) {
        // The first, empty list is published when the hook is made, which is not reported as a change.
        if self.old.version > 0 {
            // Relaxed: a statistic.
            hook.engine.0.metrics.changes.fetch_add(1, Ordering::Relaxed);
            if cfg!(feature = "tracing") {
                let after = hook.programs();
                let name = |program: &Program<C, H>| program.loaded().path();
                let before: Vec<_> = self.old.attached.iter().map(|attached| name(&attached.program)).collect();
                finish.step(|| trace::changed(&before, &after.iter().map(name).collect::<Vec<_>>()));
                finish.step(|| drop(after));
            }
        }
        finish.step(|| drop(self.gone));
        finish.step(|| hook.engine.domain().tend());
        (Edit::Restore(self.old.attached, self.old.made), self.made)
    }
}

pub(super) struct Attached<C, H: ?Sized> {
    program: Program<C, H>,
    attachment: Attachment,
    counters: Arc<Counters>,
}

impl<C, H: ?Sized> Clone for Attached<C, H> {
    fn clone(&self) -> Self {
        Attached { program: self.program.clone(), attachment: self.attachment, counters: Arc::clone(&self.counters) }
    }
}

impl<C: Context, H: Host + ?Sized> Attached<C, H> {
    fn new(program: &Program<C, H>, attachment: Attachment) -> Self {
        Attached { program: program.clone(), attachment, counters: Arc::default() }
    }

    fn is(&self, program: &Program<C, H>) -> bool {
        Arc::ptr_eq(self.program.loaded(), program.loaded())
    }

    /// Returns the program as a link of a chain; `None` if it is interpreted.
    fn link(&self) -> Option<Link> {
        let begin::Entry { code, needs, .. } = self.program.loaded().entry()?;
        let loaded = self.program.loaded();
        // Targets of its tail calls may count against a budget even if the program does not, and must not find the
        // remainder of the program before.
        let counts = loaded.checks.budget || loaded.tables().next().is_some();
        let budget = counts.then_some(loaded.budget);
        Some(Link { address: code as usize, continue_on: self.attachment.continue_on, needs, budget })
    }
}

impl<C, H: ?Sized> fmt::Debug for Hook<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// A run of an image is stopped in one of the programs on the list, or in the target of a tail call of one.
impl<C, H: ?Sized> Roots for Hook<C, H> {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        // SAFETY: inside the run's guard.
        let list = unsafe { self.list.get() };
        // The run may have begun with a list that was replaced since.
        let lists = list.and_before();
        let mut seen = HashSet::new();
        let programs = lists.iter().flat_map(|list| list.iter()).map(|listed| &*listed.program);
        let programs: Vec<&Loaded> = programs.filter(|program| seen.insert(core::ptr::from_ref(*program))).collect();
        locate(programs.iter().copied(), error, &at)
    }

    fn code_stack(&self) -> u64 {
        // Relaxed: the caller has loaded, with Acquire, what was published after this.
        self.code_stack.load(Ordering::Relaxed)
    }
}

/// A run of this list of the hook. The hook may have another list when a program fails.
struct RunOf<'l, C, H: ?Sized> {
    hook: &'l Hook<C, H>,
    list: &'l List,
}

impl<C, H: ?Sized> Roots for RunOf<'_, C, H> {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        locate(self.list.iter().map(|listed| &*listed.program), error, &at)
    }

    fn code_stack(&self) -> u64 {
        Roots::code_stack(self.hook)
    }
}

impl<C: Context, H: Host + ?Sized> Hook<C, H> {
    /// A hook without programs.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn new(engine: &Engine, policy: HookPolicy) -> Result<Self, HookError> {
        Self::made(engine, policy, false)
    }

    /// A hook without programs, to which sleepable programs ([`crate::Loader::sleepable`]) may be attached as well.
    /// While one is attached, only [`Hook::run_async`] runs the hook.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn sleepable(engine: &Engine, policy: HookPolicy) -> Result<Self, HookError> {
        Self::made(engine, policy, true)
    }

    fn made(engine: &Engine, policy: HookPolicy, sleepable: bool) -> Result<Self, HookError> {
        let list = Arc::new(List::new(engine, 0, std::iter::empty())?);
        let state = State {
            attached: Vec::new(),
            list: Arc::downgrade(&list),
            statistics: false,
            version: 0,
            made: 0,
            gone: Vec::new(),
        };
        let hook = Hook {
            engine: engine.clone(),
            policy,
            sleepable,
            identity: Ends::default(),
            image: LiveImage::observed(&engine.0.packs, debug::observer(engine, "<hook>")),
            list: Published::new(list),
            code_stack: AtomicU64::new(0),
            state: Mutex::new(state),
            _reclaim: ReclaimOnDrop(engine.clone()),
        };
        hook.change(|_| Ok(()))?;
        Ok(hook)
    }

    /// Runs the programs once, in order: no lock, no allocation, no system call.
    ///
    /// # Errors
    /// [`RunError`]: a program ended without a result; those after it did not run.
    #[inline(always)]
    pub fn run(&self, host: &mut H::State<'_>, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let host = Loan::<H>::new(host).pointer();
        let engine = &*self.engine.0;
        let guard = engine.domain.enter_run()?;
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, which is to the end of this call.
        unsafe { self.run_under(guard, host, parts) }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs them once under a guard, or a borrow of one.
    ///
    /// # Safety
    /// The guard must be of the engine's domain, `host` a `&mut H::State`, and `parts` valid for the run and for `C`.
    #[inline(always)]
    pub(crate) unsafe fn run_under<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
    ) -> Result<u64, RunError> {
        let runs = &self.engine.0.runs;
        let image = self.image.current();
        let code = image.entry();
        if code.is_null() {
            return begin::begin(runs, guard, host, parts, self.terms(), self, |run, parts| {
                // SAFETY: inside the run's guard.
                self.walk(unsafe { self.list.get() }, run, parts)
            });
        }
        // SAFETY: an image of programs on `C` for host state `H`, loaded inside the guard, which keeps it and them; the
        // rest is the caller's contract.
        unsafe {
            let entry = begin::Entry { code, callee: code, needs: image.needs() };
            begin::run_code(runs, guard, entry, host, parts, self.terms(), self)
        }
    }

    /// Runs the programs once, as [`Hook::run_under`], under limits.
    ///
    /// # Safety
    /// As for [`Hook::run_under`].
    pub(crate) unsafe fn run_limited<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        let (runs, terms) = (&self.engine.0.runs, self.terms());
        // The image is loaded before the list: an image that is current inside the guard keeps its address to the
        // guard's end. A list loaded first may be of an image that was freed, and another image may have its address.
        let image = self.image.current();
        // SAFETY: inside the guard.
        let list = unsafe { self.list.get() };
        let named = || list.iter().map(|listed| listed.program.limited());
        let limits = Limits::new(limits, runs, list.checks(), named).map_err(|error| *error)?;
        let (code, roots) = (image.entry(), RunOf { hook: self, list });
        // The limits were checked for this list. During a replacement the image may be of another list.
        if code.is_null() || !list.is_of(code) {
            return begin::begin_limited(runs, guard, host, parts, (terms, limits), &roots, |run, parts| {
                self.walk(list, run, parts)
            });
        }
        // SAFETY: an image of programs on `C` for host state `H`, loaded inside the guard, which keeps it and them; the
        // rest is the caller's contract.
        unsafe {
            let entry = begin::Entry { code, callee: code, needs: image.needs() };
            begin::run_code_limited(runs, guard, entry, host, parts, (terms, limits), true, &roots)
        }
    }

    /// Returns the terms of a run of the hook. It has no budget of its own, since each program has one.
    #[inline]
    fn terms(&self) -> Terms {
        Terms { of: word_of(self), budget: i64::MAX }
    }

    /// Runs the programs once, as [`Hook::run`], under limits of this run alone. The budget holds for each program.
    ///
    /// # Errors
    /// As [`Hook::run`] and [`Program::run_with`].
    pub fn run_with(
        &self,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let guard = self.engine.0.domain.enter_run()?;
        // SAFETY: the guard is of the engine's domain, `host` a `&mut H::State`, and `data` stays borrowed to the end
        // of this call.
        unsafe { self.run_limited(guard, Loan::<H>::new(host).pointer(), parts, limits) }
    }

    /// Runs the programs once, in order, as a future that gives its thread away while a host function waits
    /// ([`crate::Linker::func_async`]). The run has the programs that are attached when the future is made: it goes on
    /// with them after a change, and the code of detached programs is freed when the run is over. Statistics do not
    /// count it.
    ///
    /// ```
    /// use bpf_runtime::{AsyncCaller, Config, Engine, Hook, HookPolicy, Linker, Raw, isa::assemble};
    /// use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    ///
    /// let engine = Engine::new(Config::new())?;
    /// let mut linker = Linker::<()>::new(&engine);
    /// linker.func_async(1001, "score", async |_: AsyncCaller<'_, ()>, n: u64| -> u64 { n + 1 })?;
    /// let load = |name, text| linker.loader::<Raw>().sleepable(true).insns(name, assemble(text).unwrap());
    /// let hook = Hook::<Raw, ()>::sleepable(&engine, HookPolicy::LastWins { empty: 0 })?;
    /// hook.attach(&load("first", "r0 = 3\nexit")?)?;
    /// hook.attach(&load("second", "r1 = 6\ncall 1001\nexit")?)?;
    /// assert!(hook.run_on(&mut []).is_err());
    ///
    /// let mut host = ();
    /// let run = pin!(hook.run_async(&mut host, &mut []));
    /// assert!(matches!(run.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(7))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The future's: as for [`crate::Program::run_async`].
    ///
    /// # Panics
    /// As for [`crate::Program::run_async`].
    pub fn run_async<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
    ) -> HookRunAsync<'r, C::Data<'r, 'p>, H> {
        self.begin_async(host, data, None)
    }

    /// Runs the programs once, as [`Hook::run_async`], under limits of this run alone. The budget holds for each
    /// program, the deadline for all of them together.
    ///
    /// # Errors
    /// The future's: as [`Hook::run_async`] and [`Program::run_with`].
    ///
    /// # Panics
    /// As for [`crate::Program::run_async`].
    pub fn run_async_with<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
        limits: &RunLimits,
    ) -> HookRunAsync<'r, C::Data<'r, 'p>, H> {
        self.begin_async(host, data, Some(limits))
    }

    fn begin_async<'r, 'p>(
        &self,
        host: &'r mut H::State<'_>,
        data: C::Data<'r, 'p>,
        limits: Option<&RunLimits>,
    ) -> HookRunAsync<'r, C::Data<'r, 'p>, H> {
        let guard = self.engine.0.domain.enter_run().map_err(RunError::from);
        // SAFETY: inside the guard.
        let list = guard.map(|_guard| Arc::clone(unsafe { self.list.get() }));
        let lent = Lent::new(Loan::new(host), (data, C::parts));
        // SAFETY: programs on `C` for host state `H` are attached only.
        unsafe { HookRunAsync::new(&self.engine, list, (self.policy, &self.identity), lent, limits) }
    }

    /// Ends the runs of this hook that are in progress: each stops at its next taken back-edge or call, with
    /// [`RunError::Interrupted`], and so do the runs nested in them. Runs that begin later are not ended. Only programs
    /// loaded with [`crate::Loader::interruptible`] stop.
    pub fn interrupt(&self) {
        let runs = &self.engine.0.runs;
        self.identity.count();
        runs.interrupt_of(self.terms().of);
        runs.interrupt_of(word_of(self.identity.identity()));
    }

    /// Runs the programs of this list once, without an image. `run` is the run of this thread, begun with these parts
    /// and a `&mut H::State<'_>`.
    fn walk(&self, list: &List, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        // Checked again: the list may be newer than the one for which the run was begun.
        self.engine.0.runs.config.stack.check(self, INTERPRETER).map_err(|error| *error)?;
        if let Some(Listed { program, .. }) = list.iter().find(|listed| listed.program.is_sleepable()) {
            return Err(program.cannot_wait());
        }
        let mut result = self.policy.of_empty();
        for Listed { program, continue_on, counters, .. } in &**list {
            // SAFETY: the run is this thread's; nobody else uses its count of tail calls.
            unsafe { (*run).ctx.tail_calls = 0 };
            // SAFETY: the run is this thread's.
            let allowance = unsafe { (*run).ctx.allowance };
            // SAFETY: the run is this thread's, and only this thread accesses its budget.
            unsafe { (*run).ctx.budget = program.budget.min(allowance) };
            // SAFETY: a program on `C` for host state `H`, kept by the list; the parts are those of `Hook::run`.
            let verdict = unsafe { counters.run(program, run, parts) }?;
            match self.policy.after(result, verdict, *continue_on) {
                ControlFlow::Continue(so_far) => result = so_far,
                ControlFlow::Break(result) => return Ok(result),
            }
        }
        Ok(result)
    }

    /// Adds a program with the default [`Attachment`]: behind the programs of the same or a lower priority value.
    ///
    /// # Errors
    /// [`HookError`]; nothing has changed. A failed call of any method changes nothing.
    pub fn attach(&self, program: &Program<C, H>) -> Result<(), HookError> {
        self.attach_with(program, Attachment::default())
    }

    /// Adds a program behind the last one whose priority is not higher.
    ///
    /// ```
    /// # use bpf_runtime::{
    /// #     Config, Engine, Hook, HookPolicy, Linker, Raw, hook::{Attachment, Verdicts}, isa::assemble,
    /// # };
    /// # let engine = Engine::new(Config::new())?;
    /// # let linker = Linker::<()>::new(&engine);
    /// # let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
    /// let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::FirstVerdict { pass: 2 })?;
    /// hook.attach(&load("second", "r0 = 4\nexit")?)?;
    /// // Before it; and it runs even if this one says 3.
    /// let first = Attachment::default().priority(10).continue_on(Verdicts::Set(1 << 2 | 1 << 3));
    /// hook.attach_with(&load("first", "r0 = 3\nexit")?, first)?;
    /// assert_eq!(hook.run_on(&mut [])?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError`].
    pub fn attach_with(&self, program: &Program<C, H>, attachment: Attachment) -> Result<(), HookError> {
        self.edit(&Edit::Attach(program.clone(), attachment))
    }

    /// Adds a program before the one at `position`, whatever its priority; at the end if that is the number of
    /// programs.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn attach_at(&self, position: usize, program: &Program<C, H>) -> Result<(), HookError> {
        self.edit(&Edit::AttachAt(position, program.clone()))
    }

    /// Removes a program. It may still be running when this returns, but no run that begins now reaches it.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn detach(&self, program: &Program<C, H>) -> Result<(), HookError> {
        self.edit(&Edit::Detach(program.clone()))
    }

    /// Puts `new` in the place of `old`, with its priority and verdicts, in one step.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn replace(&self, old: &Program<C, H>, new: &Program<C, H>) -> Result<(), HookError> {
        self.edit(&Edit::Replace(old.clone(), new.clone()))
    }

    /// Returns the programs, in order; in a forked child, none if they were being changed at the fork.
    pub fn programs(&self) -> Vec<Program<C, H>> {
        self.attached(|attached| attached.program.clone())
    }

    /// Switches counting and timing of programs on or off. While on, programs are called one by one from Rust, and each
    /// call reads the clock twice.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn set_statistics(&self, on: bool) -> Result<(), HookError> {
        self.change(|state| {
            state.statistics = on;
            Ok(())
        })
    }

    /// Returns the runs of each program and their time while statistics were on, in the order of the list. Programs of
    /// a hook with an interpreted program are always counted. In a forked child, empty if the programs were being
    /// changed at the fork.
    pub fn statistics(&self) -> Vec<ProgramStats> {
        self.attached(|attached| attached.counters.stats(attached.program.loaded()))
    }

    fn attached<T>(&self, of_each: impl Fn(&Attached<C, H>) -> T) -> Vec<T> {
        let state = self.engine.domain().lock_to_read(&self.state);
        state.map_or_else(Vec::new, |state| state.attached.iter().map(of_each).collect())
    }

    fn edit(&self, edit: &Edit<C, H>) -> Result<(), HookError> {
        self.change(|state| self.apply(state, edit))
    }

    /// Applies the edit to a state that is not published.
    fn apply(&self, state: &mut State<C, H>, edit: &Edit<C, H>) -> Result<(), HookError> {
        let State { attached, gone, made, version, .. } = state;
        *made = *version;
        match edit {
            Edit::Attach(program, attachment) => {
                if attachment.continue_on.is_some() && !matches!(self.policy, HookPolicy::FirstVerdict { .. }) {
                    return Err(HookError::Verdicts);
                }
                let before = attached.iter().rposition(|a| a.attachment.priority <= attachment.priority);
                self.insert(attached, before.map_or(0, |last| last + 1), program, *attachment)
            }
            Edit::AttachAt(position, program) => {
                self.check(attached, program)?;
                match attached.len() {
                    len if *position > len => Err(HookError::Position { position: *position, len }),
                    _ => self.insert(attached, *position, program, Attachment::default()),
                }
            }
            Edit::Detach(program) => {
                gone.push(attached.remove(position_of(attached, program)?));
                Ok(())
            }
            Edit::Replace(old, new) => {
                let position = position_of(attached, old)?;
                self.check(attached, new)?;
                let attachment = attached[position].attachment;
                gone.push(std::mem::replace(&mut attached[position], Attached::new(new, attachment)));
                Ok(())
            }
            Edit::Restore(before, by) => {
                gone.append(&mut std::mem::replace(attached, before.clone()));
                *made = *by;
                Ok(())
            }
        }
    }

    fn insert(
        &self,
        attached: &mut Vec<Attached<C, H>>,
        position: usize,
        program: &Program<C, H>,
        attachment: Attachment,
    ) -> Result<(), HookError> {
        self.check(attached, program)?;
        if attached.len() >= MAX_LIMIT {
            return Err(HookError::Full { max: MAX_LIMIT });
        }
        attached.insert(position, Attached::new(program, attachment));
        Ok(())
    }

    /// Checks that the program may be attached beside these.
    fn check(&self, attached: &[Attached<C, H>], program: &Program<C, H>) -> Result<(), HookError> {
        self.engine.domain().owns(&**program.loaded())?;
        if program.loaded().is_sleepable() && !self.sleepable {
            return Err(HookError::Sleepable { program: ProgramName::of(program.loaded()) });
        }
        if attached.iter().any(|known| known.is(program)) {
            return Err(HookError::Attached { program: ProgramName::of(program.loaded()) });
        }
        Ok(())
    }

    /// Publishes the list changed by `edit`, then drops the old one.
    fn change(&self, edit: impl FnOnce(&mut State<C, H>) -> Result<(), HookError>) -> Result<(), HookError> {
        self.may_change()?;
        let mut state = self.lock();
        let mut next = state.next();
        let from = next.made;
        // A refused state is dropped without the lock, with its last handles of programs.
        let prepared = match edit(&mut next) {
            Ok(()) => self.ready(next, from),
            Err(error) => Err(Box::new((error, next))),
        };
        match prepared {
            Ok(prepared) => {
                let replaced = self.publish(&mut state, prepared);
                drop(state);
                // From here on without the lock: a dropped value may have a `Drop` that changes this hook.
                let mut finish = Finish::default();
                let (back, _) = replaced.finish(self, &mut finish);
                finish.step(|| drop(back));
                Ok(())
            }
            Err(refused) => {
                drop(state);
                let (error, next) = *refused;
                drop(next);
                Err(error)
            }
        }
    }

    /// Builds the list that these edits make of the current one, all or none, without publishing it.
    pub(super) fn prepare(&self, edits: &[Edit<C, H>]) -> Result<Prepared<C, H>, HookError> {
        self.may_change()?;
        let mut next = self.lock().next();
        let from = next.made;
        edits.iter().try_for_each(|edit| self.apply(&mut next, edit))?;
        self.ready(next, from).map_err(|refused| refused.0)
    }

    /// Builds list and image of this state, which was derived from the list of version `from`.
    fn ready(&self, next: State<C, H>, from: u64) -> Result<Prepared<C, H>, Unready<C, H>> {
        match self.ready_parts(&next) {
            Ok((image, list)) => Ok(Prepared { next, image, list, from }),
            Err(error) => Err(Box::new((error, next))),
        }
    }

    fn ready_parts(&self, state: &State<C, H>) -> Result<(Option<StagedImage>, List), HookError> {
        for attached in &state.attached {
            // Relaxed: the publications are releases. `fetch_max` would do, but ThreadSanitizer does not see it.
            let stack = attached.program.loaded().code_stack();
            let raised = |now| (now < stack).then_some(stack);
            let _ = self.code_stack.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raised);
        }
        let list = state.attached.iter().map(|a| Listed {
            program: Arc::clone(a.program.loaded()),
            _kept: a.program.kept().cloned(),
            continue_on: a.attachment.continue_on,
            counters: Arc::clone(&a.counters),
        });
        let list = List::new(&self.engine, size_of::<Attached<C, H>>(), list)?;
        let links: Option<Vec<Link>> = state.attached.iter().map(Attached::link).collect();
        let links = links.filter(|_| !state.statistics && self.engine.config().mode == Mode::Jit);
        let image = match (BACKEND, links) {
            (Some(arch), Some(links)) => {
                let options = Options { hardening: self.engine.config().hardening, ..Options::default() };
                Some(self.image.stage(&Image::chain(arch, &links, self.policy, &options))?)
            }
            _ => None,
        };
        let list = list.with_image(image.as_ref().map_or(core::ptr::null(), StagedImage::entry));
        Ok((image, list))
    }

    /// Publishes a change that was prepared from this state.
    pub(super) fn publish(&self, state: &mut State<C, H>, prepared: Prepared<C, H>) -> Replacing<C, H> {
        let Prepared { mut next, image, list, .. } = prepared;
        match image {
            Some(image) => self.image.publish_staged(image),
            // A run that begins before the list below is replaced walks the old one.
            None => self.image.withdraw(),
        }
        let (made, gone) = (next.made, std::mem::take(&mut next.gone));
        let list = Arc::new(list.instead_of(std::mem::take(&mut next.list)));
        next.list = Arc::downgrade(&list);
        self.list.replace(list, self.engine.domain());
        Replacing { old: std::mem::replace(state, next), gone, made }
    }

    /// Refuses changes in a forked child, where the lock may be held for ever by a thread that only the parent has.
    fn may_change(&self) -> Result<(), HookError> {
        if self.engine.domain().is_forked() { Err(bpf_prog_pack::Error::Forked.into()) } else { Ok(()) }
    }

    /// Nothing that panics leaves the state half changed, so poison means nothing.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Context> Hook<C> {
    /// Runs the programs once, in order, as [`Hook::run`], for a host without state.
    ///
    /// # Errors
    /// As [`Hook::run`].
    #[inline(always)]
    pub fn run_on(&self, data: C::Data<'_, '_>) -> Result<u64, RunError> {
        self.run(&mut (), data)
    }
}

impl<C: Context, H: Host + ?Sized> State<C, H> {
    /// Returns a copy for edits, of the next version.
    fn next(&self) -> Self {
        let State { attached, list, statistics, version, made, gone: _ } = self;
        State {
            attached: attached.clone(),
            list: Weak::clone(list),
            statistics: *statistics,
            version: version + 1,
            made: *made,
            gone: Vec::new(),
        }
    }
}

fn position_of<C: Context, H: Host + ?Sized>(
    attached: &[Attached<C, H>],
    program: &Program<C, H>,
) -> Result<usize, HookError> {
    attached
        .iter()
        .position(|known| known.is(program))
        .ok_or_else(|| HookError::NotAttached { program: ProgramName::of(program.loaded()) })
}
