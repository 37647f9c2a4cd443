//! Hooks: a list of programs run as one, and changed while it runs.
//!
//! Problem: a place in a service runs every program that is attached to it, in order, with a rule about their verdicts;
//! programs are attached, detached and replaced under traffic. Approach: as machine code the whole list is one image, a
//! straight line of direct calls with verdict tests between ([`bpf_dispatcher::Image::chain`]); a change builds a new
//! one and publishes it by one store. Where a program is interpreted, or programs are measured one by one, the list is
//! walked by [`Hook::run`] instead; that is so as long as there is no image. So statistics that are off cost nothing.
//!
//! Invariants: a run takes the image or the list once, inside its guard, so it sees the hook before a change or after
//! it. What a change took out is let go only after it was unpublished, and then lives until the runs begun before are
//! over: code by itself, lists by a deferred drop.

use crate::abi::begin;
use crate::abi::limits::{Limits, RunLimits, Terms};
use crate::abi::machine_stack::INTERPRETER;
use crate::abi::roots::{Roots, StoppedAt};
use crate::abi::run::Run;
use crate::abi::watch::word_of;
use crate::attach::published::{Counters, List, ListError, Listed, ProgramStats, Published, ReclaimOnDrop};
use crate::context::{Context, Parts};
use crate::engine::BACKEND;
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::engine::debug;
use crate::engine::trace;
use crate::error::RunError;
use crate::handle::program::{Program, ProgramName};
use crate::program::loaded::Loaded;
use crate::program::locate::locate;
use bpf_dispatcher::{Image, Link, LiveImage, MAX_LIMIT, Options, Policy, StagedImage, Verdicts};
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
    /// The program is attached already.
    #[error("program {program} is attached already")]
    Attached {
        /// Which.
        program: ProgramName,
    },
    /// The program is not attached.
    #[error("program {program} is not attached")]
    NotAttached {
        /// Which.
        program: ProgramName,
    },
    /// There are fewer programs.
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
        /// How many that is.
        max: usize,
    },
    /// Verdicts to continue on were given for a policy other than [`Policy::FirstVerdict`].
    #[error("the hook's policy does not look at verdicts")]
    Verdicts,
    /// The image could not be placed.
    #[error("executable memory: {0}")]
    Image(#[from] bpf_prog_pack::Error),
    /// There is no memory for the list of programs.
    #[error(transparent)]
    List(#[from] ListError),
}

/// How a program is attached: what libxdp keeps beside each program of its dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attachment {
    /// Programs of lower priority run first; among equals, those that were attached first.
    pub priority: i32,
    /// On which of its verdicts the next program runs, if not on the `pass` of [`Policy::FirstVerdict`]. Other
    /// policies have no such verdicts.
    pub continue_on: Option<Verdicts>,
}

impl Default for Attachment {
    /// libxdp's: priority 50, following the policy.
    fn default() -> Self {
        Attachment { priority: 50, continue_on: None }
    }
}

impl Attachment {
    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Continuing on these verdicts instead of the policy's.
    #[must_use]
    pub fn continue_on(mut self, verdicts: Verdicts) -> Self {
        self.continue_on = Some(verdicts);
        self
    }
}

/// A list of programs on context `C` with host state `H`, run as one.
///
/// To the programs it is one run: an error in one ends it. Each has its budget to itself ([`crate::Loader::budget`]),
/// and may take its own 33 tail calls. As machine code the programs are called directly. The way from Rust into the
/// image is itself an indirect call, one and well predicted: the hook saves those *between* programs.
///
/// ```
/// use bpf_runtime::{Config, Engine, Hook, Linker, Policy, Raw, assemble};
///
/// let engine = Engine::new(Config::default())?;
/// let linker = Linker::<()>::new(&engine);
/// let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
/// const PASS: u64 = 2;
///
/// let hook = Hook::<Raw, ()>::new(&engine, Policy::FirstVerdict { pass: PASS })?;
/// assert_eq!(hook.run(&mut (), &mut [1])?, PASS);
///
/// let short = load("short", "r0 = 1\nif r2 < 4 goto +1\nr0 = 2\nexit")?;
/// let deny = load("deny", "r0 = 7\nexit")?;
/// hook.attach(&short)?;
/// hook.attach(&deny)?;
/// assert_eq!(hook.run(&mut (), &mut [1])?, 1);
/// assert_eq!(hook.run(&mut (), &mut [1; 4])?, 7);
///
/// // Under traffic: every run sees the list before the change or after it.
/// let allow = load("allow", "r0 = 2\nexit")?;
/// hook.replace(&deny, &allow)?;
/// assert_eq!(hook.run(&mut (), &mut [1; 4])?, PASS);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hook<C, H> {
    engine: Engine,
    policy: Policy,
    /// None: the list is walked.
    image: LiveImage,
    list: Published<Arc<List>>,
    /// The largest machine stack, in bytes, of all programs ever attached. Detached ones count, too: a run may still
    /// be about to enter one.
    code_stack: AtomicU64,
    state: Mutex<State<C, H>>,
    _reclaim: ReclaimOnDrop,
}

/// What a hook is, for those who change it.
pub(super) struct State<C, H> {
    attached: Vec<Attached<C, H>>,
    /// What is published of them.
    list: Weak<List>,
    statistics: bool,
    /// Changes so far.
    version: u64,
    /// The version that has made the list what it is: that of the change which made it so first, if it was put back.
    made: u64,
    /// What the edits have taken out, while it is being made: dropping a handle may run deferred drops.
    gone: Vec<Attached<C, H>>,
}

/// A change of the list.
pub(super) enum Edit<C, H> {
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

/// A change that needs only to be published.
pub(super) struct Prepared<C, H> {
    next: State<C, H>,
    /// `None`: the list is walked.
    image: Option<StagedImage>,
    list: List,
    /// The version that has made the list from which this was made.
    from: u64,
}

impl<C, H> Prepared<C, H> {
    /// The version that has made the list from which this was made.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Whether nobody has changed the hook since.
    pub(super) fn is_for(&self, state: &State<C, H>) -> bool {
        state.version == self.next.version - 1
    }
}

/// Why a change was not made, and the list that it would have made, to be dropped without the hook's lock.
type Unready<C, H> = Box<(HookError, State<C, H>)>;

/// What a change has replaced. To be dropped without the hook's lock: programs may have a `Drop` that changes it.
#[must_use = "a change is told of when it is finished"]
pub(super) struct Replacing<C, H> {
    old: State<C, H>,
    gone: Vec<Attached<C, H>>,
    made: u64,
}

impl<C: Context, H: 'static> Replacing<C, H> {
    /// Tells of the change and lets go of what it took out, without the lock. Returns what puts the list back, and the
    /// version that has made what there is now.
    pub(super) fn finish(self, hook: &Hook<C, H>, finish: &mut Finish) -> (Edit<C, H>, u64) {
        // The first list, with nothing in it, is made with the hook: that is no change of it.
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

pub(super) struct Attached<C, H> {
    program: Program<C, H>,
    attachment: Attachment,
    counters: Arc<Counters>,
}

impl<C, H> Clone for Attached<C, H> {
    fn clone(&self) -> Self {
        Attached { program: self.program.clone(), attachment: self.attachment, counters: Arc::clone(&self.counters) }
    }
}

impl<C: Context, H: 'static> Attached<C, H> {
    fn new(program: &Program<C, H>, attachment: Attachment) -> Self {
        Attached { program: program.clone(), attachment, counters: Arc::default() }
    }

    fn is(&self, program: &Program<C, H>) -> bool {
        Arc::ptr_eq(self.program.loaded(), program.loaded())
    }

    /// As a link of a chain; `None` if it is interpreted.
    fn link(&self) -> Option<Link> {
        let begin::Entry { code, needs, .. } = self.program.loaded().entry()?;
        let loaded = self.program.loaded();
        // What it jumps to may count, though it does not, and must not find what the program before has left.
        let counts = loaded.checks.budget || loaded.tables().next().is_some();
        let budget = counts.then_some(loaded.budget);
        Some(Link { address: code as usize, continue_on: self.attachment.continue_on, needs, budget })
    }
}

impl<C, H> fmt::Debug for Hook<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// An image has been left from one of the programs on the list, or from one that it has jumped to.
impl<C, H> Roots for Hook<C, H> {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        // SAFETY: inside the run's guard.
        let list = unsafe { self.list.get() };
        // The run may have begun with one that was replaced while it went on.
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

/// A run of this very list of the hook, whatever it is by the time at which a program of it fails.
struct RunOf<'l, C, H> {
    hook: &'l Hook<C, H>,
    list: &'l List,
}

impl<C, H> Roots for RunOf<'_, C, H> {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        locate(self.list.iter().map(|listed| &*listed.program), error, &at)
    }

    fn code_stack(&self) -> u64 {
        Roots::code_stack(self.hook)
    }
}

impl<C: Context, H: 'static> Hook<C, H> {
    /// A hook without programs.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn new(engine: &Engine, policy: Policy) -> Result<Self, HookError> {
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
    pub fn run(&self, host: &mut H, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let host = core::ptr::from_mut(host).cast();
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
    /// The guard must be of the engine's domain, `host` a `&mut H`, and `parts` valid for the run and for `C`.
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

    /// The same under limits.
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
        // The image first: what is current inside the guard keeps its address to the guard's end. A list that was found
        // before may be of one that is gone, and another one at its address.
        let image = self.image.current();
        // SAFETY: inside the guard.
        let list = unsafe { self.list.get() };
        let named = || list.iter().map(|listed| listed.program.limited());
        let limits = Limits::new(limits, runs, list.checks(), named).map_err(|error| *error)?;
        let (code, roots) = (image.entry(), RunOf { hook: self, list });
        // The limits are for this very list. While it is being replaced, the image may be of another one.
        if code.is_null() || !list.is_of(code) {
            return begin::begin_limited(runs, guard, host, parts, (terms, limits), &roots, |run, parts| {
                self.walk(list, run, parts)
            });
        }
        // SAFETY: as in `run_under`.
        unsafe {
            let entry = begin::Entry { code, callee: code, needs: image.needs() };
            begin::run_code_limited(runs, guard, entry, host, parts, (terms, limits), true, &roots)
        }
    }

    /// What a run begins with: its programs' budgets are theirs.
    #[inline]
    fn terms(&self) -> Terms {
        Terms { of: word_of(self), budget: i64::MAX }
    }

    /// The same as [`Hook::run`] under limits of this run alone. The budget is that of each program.
    ///
    /// # Errors
    /// Those of [`Hook::run`] and of [`Program::run_with`].
    pub fn run_with(&self, host: &mut H, mut data: C::Data<'_, '_>, limits: &RunLimits) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let guard = self.engine.0.domain.enter_run()?;
        // SAFETY: as in `run`.
        unsafe { self.run_limited(guard, core::ptr::from_mut(host).cast(), parts, limits) }
    }

    /// Ends the runs of it that are going on: each stops at its next taken back-edge or call, with
    /// [`RunError::Interrupted`], and so do the runs inside them. Runs that begin later are not concerned. For programs
    /// that were loaded so: [`crate::Loader::interruptible`].
    pub fn interrupt(&self) {
        self.engine.0.runs.interrupt_of(self.terms().of);
    }

    /// The same without an image, for this list. `run` is the run of this thread, begun with these parts and a
    /// `&mut H`.
    fn walk(&self, list: &List, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        // Once more: the list may be a newer one than that for which the run began.
        self.engine.0.runs.config.stack.check(self, INTERPRETER).map_err(|error| *error)?;
        let mut result = self.policy.of_empty();
        for Listed { program, continue_on, counters, .. } in &**list {
            // SAFETY: the run is this thread's; nobody else uses its count of tail calls.
            unsafe { (*run).ctx.tail_calls = 0 };
            // SAFETY: the run is this thread's.
            let allowance = unsafe { (*run).ctx.allowance };
            // SAFETY: the run is this thread's; nobody else uses what it may spend.
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

    /// Adds a program with the default [`Attachment`]: behind those attached so before.
    ///
    /// # Errors
    /// [`HookError`]; nothing has changed. So for all changes.
    pub fn attach(&self, program: &Program<C, H>) -> Result<(), HookError> {
        self.attach_with(program, Attachment::default())
    }

    /// Adds a program behind the last one whose priority is not higher.
    ///
    /// ```
    /// # use bpf_runtime::{Attachment, Config, Engine, Hook, Linker, Policy, Raw, Verdicts, assemble};
    /// # let engine = Engine::new(Config::default())?;
    /// # let linker = Linker::<()>::new(&engine);
    /// # let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
    /// let hook = Hook::<Raw, ()>::new(&engine, Policy::FirstVerdict { pass: 2 })?;
    /// hook.attach(&load("second", "r0 = 4\nexit")?)?;
    /// // Before it; and it runs even if this one says 3.
    /// let first = Attachment::default().priority(10).continue_on(Verdicts::Set(1 << 2 | 1 << 3));
    /// hook.attach_with(&load("first", "r0 = 3\nexit")?, first)?;
    /// assert_eq!(hook.run(&mut (), &mut [])?, 4);
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

    /// Takes a program out. It may still be running when this returns, but no run that begins now reaches it.
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

    /// The programs, in order. In a forked child, none if they were being changed at the fork.
    pub fn programs(&self) -> Vec<Program<C, H>> {
        self.attached(|attached| attached.program.clone())
    }

    /// Switches counting and timing of programs on or off. On, they are called one by one from Rust, with two readings
    /// of the clock each.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn set_statistics(&self, on: bool) -> Result<(), HookError> {
        self.change(|state| {
            state.statistics = on;
            Ok(())
        })
    }

    /// What was counted while statistics were on, by program, in order. Interpreted programs are always counted. In a
    /// forked child, nothing if the programs were being changed at the fork.
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

    /// What the edit makes of a list that is not published.
    fn apply(&self, state: &mut State<C, H>, edit: &Edit<C, H>) -> Result<(), HookError> {
        let State { attached, gone, made, version, .. } = state;
        *made = *version;
        match edit {
            Edit::Attach(program, attachment) => {
                if attachment.continue_on.is_some() && !matches!(self.policy, Policy::FirstVerdict { .. }) {
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

    /// Whether the program may be attached beside these.
    fn check(&self, attached: &[Attached<C, H>], program: &Program<C, H>) -> Result<(), HookError> {
        self.engine.domain().owns(&**program.loaded())?;
        if attached.iter().any(|known| known.is(program)) {
            return Err(HookError::Attached { program: ProgramName::of(program.loaded()) });
        }
        Ok(())
    }

    /// Publishes what `edit` makes of the list, then lets go of the old one.
    fn change(&self, edit: impl FnOnce(&mut State<C, H>) -> Result<(), HookError>) -> Result<(), HookError> {
        self.may_change()?;
        let mut state = self.lock();
        let mut next = state.next();
        let from = next.made;
        // A list that was not published goes without the lock, with its last handles of programs.
        let prepared = match edit(&mut next) {
            Ok(()) => self.ready(next, from),
            Err(error) => Err(Box::new((error, next))),
        };
        match prepared {
            Ok(prepared) => {
                let replaced = self.publish(&mut state, prepared);
                drop(state);
                // From here on without the lock: what is dropped may have a `Drop` that changes this hook.
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

    /// What these edits make of the list as it is now, all or none.
    pub(super) fn prepare(&self, edits: &[Edit<C, H>]) -> Result<Prepared<C, H>, HookError> {
        self.may_change()?;
        let mut next = self.lock().next();
        let from = next.made;
        edits.iter().try_for_each(|edit| self.apply(&mut next, edit))?;
        self.ready(next, from).map_err(|refused| refused.0)
    }

    /// List and image of this state, which was made from the list that the version `from` has made.
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

    /// Publishes what was made from this very state.
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

    /// Not in a forked child: the lock may be held for ever by a thread that it does not have.
    fn may_change(&self) -> Result<(), HookError> {
        if self.engine.domain().is_forked() { Err(bpf_prog_pack::Error::Forked.into()) } else { Ok(()) }
    }

    /// Nothing that panics leaves the state half changed, so poison means nothing.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Context, H: 'static> State<C, H> {
    /// A copy that may become the next one.
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

fn position_of<C: Context, H: 'static>(
    attached: &[Attached<C, H>],
    program: &Program<C, H>,
) -> Result<usize, HookError> {
    attached
        .iter()
        .position(|known| known.is(program))
        .ok_or_else(|| HookError::NotAttached { program: ProgramName::of(program.loaded()) })
}
