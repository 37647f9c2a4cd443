//! Hooks: a list of programs run as one, and changed while it runs.
//!
//! Problem: a place in a service runs every program that is attached to it, in order, with a rule about their verdicts; programs are attached,
//! detached and replaced under traffic. Approach: as machine code the whole list is one image, a straight line of direct calls with verdict
//! tests between ([`bpf_dispatcher::Image::chain`]); a change builds a new one and publishes it by one store. Where a program is
//! interpreted, or programs are measured one by one, the list is walked by [`Hook::run`] instead; that is so as long as there is no
//! image. So statistics that are off cost nothing.
//!
//! Invariants: a run takes the image or the list once, inside its guard, so it sees the hook before a change or after it. What a change
//! took out is let go only after it was unpublished, and then lives until the runs begun before are over: code by itself, lists by a
//! deferred drop.

use crate::context::{Context, Parts};
use crate::engine::{Engine, Mode};
use crate::error::RunError;
use crate::loaded::{self, Loaded};
use crate::program::Program;
use crate::run::Run;
use bpf_dispatcher::{Image, LiveImage, Options, Policy};
use bpf_jit_code::Arch;
use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a hook was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The program belongs to another engine.
    #[error("the program belongs to another engine")]
    Engine,
    /// The program is attached already.
    #[error("the program is attached already")]
    Attached,
    /// The program is not attached.
    #[error("the program is not attached")]
    NotAttached,
    /// There are fewer programs.
    #[error("there is no position {position} in a list of {len} programs")]
    Position {
        /// The position asked for.
        position: usize,
        /// How many programs there are.
        len: usize,
    },
    /// The image could not be placed.
    #[error("executable memory: {0}")]
    Image(#[from] bpf_prog_pack::Error),
}

/// What a hook counted for one program while statistics were on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookStats {
    /// The program's name.
    pub program: String,
    /// Its runs.
    pub runs: u64,
    /// The wall-clock time they took.
    pub time: Duration,
}

/// A list of programs on context `C` with host state `H`, run as one.
///
/// To the programs it is one run: they share the budget, and an error in one ends it; each may take its own 33 tail calls. As machine code the
/// programs are called directly. The way from Rust into the image is itself an indirect call, one and well predicted: the hook saves those
/// *between* programs.
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
    /// Never null.
    list: AtomicPtr<List>,
    state: Mutex<State<C, H>>,
}

/// What a walk needs.
struct List(Vec<(Arc<Loaded>, Arc<Counters>)>);

#[derive(Default)]
struct Counters {
    runs: AtomicU64,
    nanoseconds: AtomicU64,
}

struct State<C, H> {
    attached: Vec<Attached<C, H>>,
    statistics: bool,
}

struct Attached<C, H> {
    program: Program<C, H>,
    counters: Arc<Counters>,
}

impl<C, H> Clone for Attached<C, H> {
    fn clone(&self) -> Self {
        Attached { program: self.program.clone(), counters: Arc::clone(&self.counters) }
    }
}

impl<C: Context, H: 'static> Attached<C, H> {
    fn new(program: &Program<C, H>) -> Self {
        Attached { program: program.clone(), counters: Arc::default() }
    }

    fn is(&self, program: &Program<C, H>) -> bool {
        Arc::ptr_eq(self.program.loaded(), program.loaded())
    }
}

impl<C, H> fmt::Debug for Hook<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Hook<C, H> {
    /// A hook without programs.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn new(engine: &Engine, policy: Policy) -> Result<Self, HookError> {
        let list = Box::into_raw(Box::new(List(Vec::new())));
        let hook = Hook {
            engine: engine.clone(),
            policy,
            image: LiveImage::new(&engine.0.packs),
            list: AtomicPtr::new(list),
            state: Mutex::new(State { attached: Vec::new(), statistics: false }),
        };
        hook.change(&mut hook.lock(), Vec::new(), false)?;
        Ok(hook)
    }

    /// Runs the programs once, in order: no lock, no allocation, no system call.
    ///
    /// # Errors
    /// [`RunError`]: a program ended without a result; those after it did not run.
    #[inline]
    pub fn run(&self, host: &mut H, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        let host = core::ptr::from_mut(host).cast();
        loaded::begin(&self.engine.0, host, parts, |run| {
            let image = self.image.entry();
            if image.is_null() {
                return self.walk(run, parts);
            }
            // SAFETY: an image of programs on `C` for host state `H`, loaded inside the run's guard, which keeps it and them;
            // `Context` promises parts that are valid while `data` is borrowed, which is to the end of this call.
            unsafe { loaded::run_code(image, run, parts) }
        })
    }

    /// The same without an image. `run` is the run of this thread, begun with these parts and a `&mut H`.
    fn walk(&self, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        // Acquire pairs with the swap in `change`: the list is initialised.
        let list = self.list.load(Ordering::Acquire);
        // SAFETY: never null; loaded inside the run's guard, and a list is dropped after a grace period only.
        let List(programs) = unsafe { &*list };
        let mut result = self.policy.of_empty();
        for (program, counters) in programs {
            let start = Instant::now();
            // SAFETY: the run is this thread's; nobody else uses its count of tail calls.
            unsafe { (*run).ctx.tail_calls = 0 };
            // SAFETY: a program on `C` for host state `H`, kept by the list; the parts are those of `Hook::run`.
            let verdict = unsafe { program.run_in(run, parts) };
            // Relaxed: statistics.
            counters.runs.fetch_add(1, Ordering::Relaxed);
            counters.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            let verdict = verdict?;
            match self.policy {
                Policy::FirstVerdict { pass } if verdict != pass => return Ok(verdict),
                Policy::FirstVerdict { .. } | Policy::RunAll { .. } => {}
                Policy::LastWins { .. } => result = verdict,
            }
        }
        Ok(result)
    }

    /// Adds a program behind the others.
    ///
    /// # Errors
    /// [`HookError`]; nothing has changed. So for all changes.
    pub fn attach(&self, program: &Program<C, H>) -> Result<(), HookError> {
        let mut state = self.lock();
        let position = state.attached.len();
        self.insert_into(&mut state, position, program)
    }

    /// Adds a program before the one at `position`; at the end if that is the number of programs.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn attach_at(&self, position: usize, program: &Program<C, H>) -> Result<(), HookError> {
        self.insert_into(&mut self.lock(), position, program)
    }

    /// Takes a program out. It may still be running when this returns, but no run that begins now reaches it.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn detach(&self, program: &Program<C, H>) -> Result<(), HookError> {
        let mut state = self.lock();
        let mut attached = state.attached.clone();
        attached.remove(position_of(&attached, program)?);
        let statistics = state.statistics;
        self.change(&mut state, attached, statistics)
    }

    /// Puts `new` in the place of `old`, in one step.
    ///
    /// # Errors
    /// [`HookError`].
    pub fn replace(&self, old: &Program<C, H>, new: &Program<C, H>) -> Result<(), HookError> {
        let mut state = self.lock();
        let mut attached = state.attached.clone();
        let position = position_of(&attached, old)?;
        self.check(&attached, new)?;
        attached[position] = Attached::new(new);
        let statistics = state.statistics;
        self.change(&mut state, attached, statistics)
    }

    /// The programs, in order.
    pub fn programs(&self) -> Vec<Program<C, H>> {
        self.lock().attached.iter().map(|attached| attached.program.clone()).collect()
    }

    /// Switches counting and timing of programs on or off. On, they are called one by one from Rust, with two readings of the clock each.
    ///
    /// # Errors
    /// [`HookError::Image`].
    pub fn set_statistics(&self, on: bool) -> Result<(), HookError> {
        let mut state = self.lock();
        let attached = state.attached.clone();
        self.change(&mut state, attached, on)
    }

    /// What was counted while statistics were on, by program, in order. Interpreted programs are always counted.
    pub fn statistics(&self) -> Vec<HookStats> {
        let state = self.lock();
        let stats = state.attached.iter().map(|Attached { program, counters }| HookStats {
            program: program.name().to_owned(),
            // Relaxed: statistics.
            runs: counters.runs.load(Ordering::Relaxed),
            time: Duration::from_nanos(counters.nanoseconds.load(Ordering::Relaxed)),
        });
        stats.collect()
    }

    fn insert_into(&self, state: &mut State<C, H>, position: usize, program: &Program<C, H>) -> Result<(), HookError> {
        let mut attached = state.attached.clone();
        self.check(&attached, program)?;
        let len = attached.len();
        if position > len {
            return Err(HookError::Position { position, len });
        }
        attached.insert(position, Attached::new(program));
        let statistics = state.statistics;
        self.change(state, attached, statistics)
    }

    /// Whether the program may be attached beside these.
    fn check(&self, attached: &[Attached<C, H>], program: &Program<C, H>) -> Result<(), HookError> {
        if !program.loaded().engine.same_as(&self.engine) {
            return Err(HookError::Engine);
        }
        if attached.iter().any(|known| known.is(program)) {
            return Err(HookError::Attached);
        }
        Ok(())
    }

    /// Publishes a new list, then lets go of the old one.
    fn change(
        &self,
        state: &mut State<C, H>,
        attached: Vec<Attached<C, H>>,
        statistics: bool,
    ) -> Result<(), HookError> {
        let compiled = attached.iter().all(|a| a.program.loaded().kind().mode == Mode::Jit);
        let arch = Arch::HOST.filter(|_| compiled && !statistics && self.engine.config().mode == Mode::Jit);
        let list = attached.iter().map(|a| (Arc::clone(a.program.loaded()), Arc::clone(&a.counters))).collect();
        let list = Box::into_raw(Box::new(List(list)));
        if let Some(arch) = arch {
            let programs: Vec<usize> = attached.iter().map(|a| a.program.loaded().slot_word() as usize).collect();
            let options = Options { hardening: self.engine.config().hardening, ..Options::default() };
            let image = Image::chain(arch, &programs, self.policy, &options);
            if let Err(error) = self.image.publish(&image) {
                // SAFETY: made above, and published nowhere.
                drop(unsafe { Box::from_raw(list) });
                return Err(error.into());
            }
        }
        // Release pairs with the acquire in `walk`, acquire with the release of the swap that stored the old one.
        let old = self.list.swap(list, Ordering::AcqRel);
        if arch.is_none() {
            self.image.withdraw();
        }
        // SAFETY: made by `Box::into_raw`, and unpublished now; the deferred drop keeps it for the runs that may be walking it.
        let old = unsafe { Box::from_raw(old) };
        self.engine.domain().defer(move || drop(old));
        *state = State { attached, statistics };
        Ok(())
    }

    /// Nothing that panics leaves the state half changed, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn position_of<C: Context, H: 'static>(
    attached: &[Attached<C, H>],
    program: &Program<C, H>,
) -> Result<usize, HookError> {
    attached.iter().position(|known| known.is(program)).ok_or(HookError::NotAttached)
}

impl<C, H> Drop for Hook<C, H> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, never null. Runs borrow the hook, so nobody walks it.
        drop(unsafe { Box::from_raw(*self.list.get_mut()) });
    }
}
