//! Dispatchers: one of many programs, named by the caller, reached by a direct jump.
//!
//! Problem: a host that holds many programs and calls the right one for each event makes an indirect call with changing
//! targets. Approach: the handle names the program, a compare tree ([`bpf_dispatcher::Dispatcher`]) compares its
//! address with those attached and jumps. The tree may be out of date at any time: it jumps to the program that was
//! named or, where it does not know it, makes the indirect call itself. Where there is no tree to enter (interpreted
//! programs; while programs are measured) the program is run from Rust, so statistics that are off cost nothing.
//!
//! Invariants: the caller's handle keeps the program, the run's guard keeps the tree; so a tree is only used for
//! programs of its own engine, whose guards those are. A change drops nothing under its lock
//! (see [`crate::attach::published`]).

use crate::abi::begin;
use crate::abi::limits::RunLimits;
use crate::abi::run::Run;
use crate::attach::published::{Counters, List, ListError, Listed, ProgramStats, Published, ReclaimOnDrop};
use crate::context::{Context, Parts};
use crate::engine::Engine;
use crate::engine::debug;
use crate::error::RunError;
use crate::handle::program::{Program, ProgramName, TestRun};
use crate::program::loaded::Loaded;
use bpf_dispatcher::{DEFAULT_LIMIT, DetachError, Options};
use bpf_quiesce::{Finish, OtherDomain};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why a dispatcher was not changed, or a test run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatcherError {
    /// The program belongs to another engine.
    #[error(transparent)]
    OtherDomain(#[from] OtherDomain),
    /// The program is not attached.
    #[error("program {program} is not attached")]
    NotAttached {
        /// Which.
        program: ProgramName,
    },
    /// The image could not be placed.
    #[error("executable memory: {0}")]
    Image(#[from] bpf_prog_pack::Error),
    /// There is no memory for the list of programs.
    #[error(transparent)]
    List(#[from] ListError),
    /// A run of [`Dispatcher::test_run`] ended without a result.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// How a [`Dispatcher`] is built. Its hardening is the engine's ([`crate::Config::hardening`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherOptions {
    /// Programs that are reached by a direct jump at most; the kernel's BPF_DISPATCHER_MAX by default, 8192 at most.
    pub limit: usize,
    /// Align the targets of the tree's own jumps to 16 bytes, as the kernel does.
    pub align: bool,
}

impl DispatcherOptions {
    /// The same with another limit of direct jumps.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The same, with the targets of the tree's own jumps aligned or not.
    #[must_use]
    pub fn with_align(mut self, align: bool) -> Self {
        self.align = align;
        self
    }
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        DispatcherOptions { limit: DEFAULT_LIMIT, align: true }
    }
}

/// What a [`Dispatcher`] tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherStats {
    /// Programs attached.
    pub entries: usize,
    /// Of these, how many are reached by a direct jump.
    pub direct: usize,
    /// How many are not: beyond the limit, out of reach of a compare, or interpreted. While statistics are on, all.
    pub fallback: usize,
    /// Images published.
    pub updates: u64,
    /// Bytes of executable memory of the current image.
    pub footprint: usize,
    /// What was counted while statistics were on, by program, in the order they were attached. Interpreted programs
    /// are always counted.
    pub programs: Vec<ProgramStats>,
    /// Runs of programs that were not attached, counted likewise.
    pub unlisted: u64,
}

/// Programs on context `C` with host state `H`, called one at a time by handle: the counterpart of the kernel's
/// dispatcher for XDP.
///
/// Any program of the engine may be called, attached or not; for those attached the call is a few compares and a direct
/// jump. With [`Hardening::retpolines`](crate::Hardening), that is several times cheaper than the retpoline it
/// replaces; without, it is worth while for few or hot programs only. The way from Rust into the image is itself an
/// indirect call: one, always to the same place, and well predicted.
///
/// ```
/// use bpf_runtime::{Config, Dispatcher, Engine, Linker, Raw, assemble};
///
/// let engine = Engine::new(Config::default())?;
/// let linker = Linker::<()>::new(&engine);
/// let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
/// let (tcp, udp) = (load("tcp", "r0 = 6\nexit")?, load("udp", "r0 = 17\nexit")?);
///
/// let dispatcher = Dispatcher::<Raw, ()>::new(&engine)?;
/// dispatcher.attach(&tcp)?;
/// dispatcher.attach(&udp)?;
/// assert_eq!(dispatcher.call(&udp, &mut (), &mut [])?, 17);
/// dispatcher.detach(&udp)?;
/// assert_eq!(dispatcher.call(&udp, &mut (), &mut [])?, 17, "by an indirect call");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dispatcher<C, H> {
    engine: Engine,
    /// Its entry is null while statistics are on.
    tree: bpf_dispatcher::Dispatcher,
    list: Published<List>,
    unlisted: Counters,
    state: Mutex<State<C, H>>,
    _reclaim: ReclaimOnDrop,
}

struct State<C, H> {
    attached: Vec<Attached<C, H>>,
    statistics: bool,
}

/// An entry keeps its program, so that its address means that program.
struct Attached<C, H> {
    program: Program<C, H>,
    references: usize,
    counters: Arc<Counters>,
}

impl<C, H> fmt::Debug for Dispatcher<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("tree", &self.tree).finish_non_exhaustive()
    }
}

impl<C: Context, H: 'static> Dispatcher<C, H> {
    /// A dispatcher without programs.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn new(engine: &Engine) -> Result<Self, DispatcherError> {
        Dispatcher::with_options(engine, DispatcherOptions::default())
    }

    /// The same with a limit and an alignment of one's own.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn with_options(engine: &Engine, options: DispatcherOptions) -> Result<Self, DispatcherError> {
        let DispatcherOptions { limit, align } = options;
        let options = Options { limit, align, hardening: engine.config().hardening };
        let observer = debug::observer(engine, "<dispatcher>");
        Ok(Dispatcher {
            engine: engine.clone(),
            tree: bpf_dispatcher::Dispatcher::observed(&engine.0.packs, options, observer)?,
            list: Published::new(List::new(engine, 0, std::iter::empty())?),
            unlisted: Counters::default(),
            state: Mutex::new(State { attached: Vec::new(), statistics: false }),
            _reclaim: ReclaimOnDrop(engine.clone()),
        })
    }

    /// Runs this program once, attached or not: no lock, no allocation, no system call.
    ///
    /// # Errors
    /// [`RunError`]: the run ended without a result.
    #[inline(always)]
    pub fn call(&self, program: &Program<C, H>, host: &mut H, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, which is to the end of this call,
        // and that agree with `C`'s layout, for which the program was loaded; `H` is the linker's.
        unsafe { self.call_parts(program.loaded(), core::ptr::from_mut(host).cast(), parts) }
    }

    /// The same under limits of this run alone, by an indirect call.
    ///
    /// # Errors
    /// Those of [`Program::run_with`].
    pub fn call_with(
        &self,
        program: &Program<C, H>,
        host: &mut H,
        data: C::Data<'_, '_>,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        program.run_with(host, data, limits)
    }

    /// # Safety
    /// As for [`Loaded::run`].
    #[inline(always)]
    unsafe fn call_parts(&self, program: &Loaded, host: *mut (), parts: Parts) -> Result<u64, RunError> {
        if !Arc::ptr_eq(&self.engine.0, &program.engine.0) {
            // The tree is kept by guards of its own engine, which the runs of another one's programs do not have.
            let (context, packet, memory) = parts.slices();
            // SAFETY: the caller's contract.
            return unsafe { call_foreign(program, host, context, packet, memory) }.map_err(|error| *error);
        }
        let engine = &*self.engine.0;
        let guard = engine.domain.enter_run()?;
        let tree = self.tree.entry();
        match program.entry() {
            // SAFETY: the entry is that of code for this host, kept by `program`; the tree was loaded inside the guard,
            // which keeps it; the caller vouches for host and parts.
            Some(entry) if !tree.is_null() => unsafe {
                begin::run_code(
                    &engine.runs,
                    guard,
                    begin::Entry { code: tree, ..entry },
                    host,
                    parts,
                    program.terms(),
                    program,
                )
            },
            _ => begin::begin(&engine.runs, guard, host, parts, program.terms(), program, |run, parts| {
                // SAFETY: the caller's contract; `run` was begun with this host.
                unsafe { self.count(program, run, parts) }
            }),
        }
    }

    /// The same without a tree, counted.
    ///
    /// # Safety
    /// As for [`Loaded::run_in`]; `run` must have been begun on this dispatcher's engine.
    unsafe fn count(&self, program: &Loaded, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        // SAFETY: inside the run's guard.
        let list = unsafe { self.list.get() };
        let listed = list.iter().find(|listed| core::ptr::eq(&*listed.program, program));
        let counters = listed.map_or(&self.unlisted, |listed| &*listed.counters);
        // SAFETY: the caller's contract.
        unsafe { counters.run(program, run, parts) }
    }

    /// Adds a program; or, if it is attached already, a reference to it.
    ///
    /// # Errors
    /// [`DispatcherError::OtherDomain`], [`DispatcherError::Image`], [`DispatcherError::List`]; nothing has changed. So
    /// for all changes.
    pub fn attach(&self, program: &Program<C, H>) -> Result<(), DispatcherError> {
        self.engine.domain().owns(&**program.loaded())?;
        self.may_change()?;
        let mut state = self.lock();
        if let Some(at) = position_of(&state.attached, program) {
            state.attached[at].references += 1;
            return Ok(());
        }
        state.attached.push(Attached { program: program.clone(), references: 1, counters: Arc::default() });
        let in_tree = |program: &Program<C, H>| match program.loaded().entry() {
            Some(entry) => self.tree.attach(entry.code as usize),
            None => Ok(()),
        };
        let listed = self.list_of(&state.attached).map_err(DispatcherError::from);
        match listed.and_then(|list| in_tree(program).map(|()| list).map_err(DispatcherError::from)) {
            Ok(list) => {
                self.relist(state, list, None);
                Ok(())
            }
            Err(error) => {
                let refused = state.attached.pop();
                drop(state);
                // Without the lock: a handle's drop runs what was deferred, which may have a `Drop` that changes this
                // dispatcher.
                drop(refused);
                Err(error)
            }
        }
    }

    /// Takes a reference away, and with the last one the program. It may still be running when this returns.
    ///
    /// # Errors
    /// [`DispatcherError::NotAttached`], [`DispatcherError::Image`].
    pub fn detach(&self, program: &Program<C, H>) -> Result<(), DispatcherError> {
        self.may_change()?;
        let mut state = self.lock();
        let at = position_of(&state.attached, program).ok_or_else(|| not_attached(program))?;
        if state.attached[at].references > 1 {
            state.attached[at].references -= 1;
            return Ok(());
        }
        let gone = state.attached.remove(at);
        let in_tree = |program: &Program<C, H>| match program.loaded().entry() {
            Some(entry) => self.tree.detach(entry.code as usize).map_err(|error| match error {
                DetachError::NotAttached => not_attached(program),
                DetachError::Image(error) => DispatcherError::Image(error),
            }),
            None => Ok(()),
        };
        let listed = self.list_of(&state.attached).map_err(DispatcherError::from);
        match listed.and_then(|list| in_tree(program).map(|()| list)) {
            Ok(list) => {
                self.relist(state, list, Some(gone));
                Ok(())
            }
            Err(error) => {
                state.attached.insert(at, gone);
                Err(error)
            }
        }
    }

    /// Rebuilds the tree for these counts of calls, so that those with the most are found after the fewest compares.
    /// Programs that are not named have none, and programs that are not attached are ignored.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn set_hits(&self, hits: &[(&Program<C, H>, u64)]) -> Result<(), DispatcherError> {
        self.may_change()?;
        let address = |program: &Program<C, H>| Some(program.loaded().entry()?.code as usize);
        let hits: Vec<_> = hits.iter().filter_map(|(program, hits)| Some((address(program)?, *hits))).collect();
        Ok(self.tree.set_hits(&hits)?)
    }

    /// The same with the runs that were counted so far.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn optimize(&self) -> Result<(), DispatcherError> {
        self.may_change()?;
        let state = self.lock();
        let counted = |a: &Attached<C, H>| Some((a.program.loaded().entry()?.code as usize, a.counters.runs()));
        let hits: Vec<_> = state.attached.iter().filter_map(counted).collect();
        Ok(self.tree.set_hits(&hits)?)
    }

    /// Switches counting and timing of programs on or off. On, they are called from Rust, with two readings of the
    /// clock each.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn set_statistics(&self, on: bool) -> Result<(), DispatcherError> {
        self.may_change()?;
        let mut state = self.lock();
        if state.statistics != on {
            self.tree.set_enabled(!on)?;
            state.statistics = on;
        }
        Ok(())
    }

    /// A snapshot. In a forked child, without programs if they were being changed at the fork.
    pub fn stats(&self) -> DispatcherStats {
        let state = self.engine.domain().lock_to_read(&self.state);
        let attached = state.as_ref().map_or(&[][..], |state| &state.attached);
        let (tree, entries) = (self.tree.stats(), attached.len());
        DispatcherStats {
            entries,
            direct: tree.direct,
            fallback: entries.saturating_sub(tree.direct),
            updates: tree.updates,
            footprint: tree.footprint,
            programs: attached.iter().map(|a| a.counters.stats(a.program.loaded())).collect(),
            unlisted: self.unlisted.runs(),
        }
    }

    /// Runs the program `repeat` times (at least once) on the same data through the dispatcher, and measures: as the
    /// kernel's BPF_PROG_TEST_RUN does, the program is attached for the time. What the runs wrote stays in the
    /// data.
    ///
    /// # Errors
    /// [`DispatcherError`].
    pub fn test_run(
        &self,
        program: &Program<C, H>,
        host: &mut H,
        mut data: C::Data<'_, '_>,
        repeat: u32,
    ) -> Result<TestRun, DispatcherError> {
        self.attach(program)?;
        let parts = C::parts(&mut data);
        let (host, repeat) = (core::ptr::from_mut(host).cast(), repeat.max(1));
        let start = Instant::now();
        let mut result = Ok(0);
        for _ in 0..repeat {
            // SAFETY: as in `call`; `data` stays borrowed over all runs.
            result = unsafe { self.call_parts(program.loaded(), host, parts) };
            if result.is_err() {
                break;
            }
        }
        let mean = start.elapsed() / repeat;
        self.detach(program)?;
        Ok(TestRun { result: result?, mean })
    }

    /// The attached programs.
    fn list_of(&self, attached: &[Attached<C, H>]) -> Result<List, ListError> {
        let listed = attached.iter().map(|a| Listed {
            program: Arc::clone(a.program.loaded()),
            _kept: None,
            continue_on: None,
            counters: Arc::clone(&a.counters),
        });
        List::new(&self.engine, size_of::<Attached<C, H>>(), listed)
    }

    /// Publishes the list of attached programs, and releases the lock before the `gone` programs are dropped.
    fn relist(&self, state: MutexGuard<'_, State<C, H>>, list: List, gone: Option<Attached<C, H>>) {
        self.list.replace(list, self.engine.domain());
        drop(state);
        let mut finish = Finish::default();
        finish.step(|| drop(gone));
        finish.step(|| self.engine.domain().tend());
    }

    /// Not in a forked child: the lock may be held for ever by a thread that it does not have.
    fn may_change(&self) -> Result<(), DispatcherError> {
        if self.engine.domain().is_forked() { Err(bpf_prog_pack::Error::Forked.into()) } else { Ok(()) }
    }

    /// Nothing that panics leaves the state half changed, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a program of another engine. Seldom: so nothing of it is where the others are called.
///
/// # Safety
/// As for [`Loaded::run`], of which these are the parts.
#[cold]
#[inline(never)]
unsafe fn call_foreign(
    program: &Loaded,
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    memory: *mut [u8],
) -> Result<u64, Box<RunError>> {
    // SAFETY: the caller's contract.
    unsafe { program.run(host, Parts::of_slices(context, packet, memory)) }.map_err(Box::new)
}

fn position_of<C: Context, H: 'static>(attached: &[Attached<C, H>], program: &Program<C, H>) -> Option<usize> {
    attached.iter().position(|known| Arc::ptr_eq(known.program.loaded(), program.loaded()))
}

fn not_attached<C: Context, H: 'static>(program: &Program<C, H>) -> DispatcherError {
    DispatcherError::NotAttached { program: ProgramName::of(program.loaded()) }
}
