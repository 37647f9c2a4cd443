//! Dispatchers: one of many programs, named by the caller, reached by a direct jump.
//!
//! Problem: a host that holds many programs and calls one of them for each event makes an indirect call with changing
//! targets. Approach: the caller passes a handle, and a compare tree ([`bpf_dispatcher::Dispatcher`]) compares the
//! program's address with those attached and jumps. The tree may be out of date at any time: for an address that it
//! does not contain it makes the indirect call itself. Where there is no tree to enter (interpreted programs; while
//! statistics are on) the program is run from Rust, so statistics that are off cost nothing.
//!
//! Invariants: the caller's handle keeps the program, and the run's guard keeps the tree. A guard keeps trees of its
//! own engine only, so programs of other engines are called without a tree. A change drops nothing under its lock (see
//! [`crate::attach::published`]).

use crate::abi::begin;
use crate::abi::limits::RunLimits;
use crate::abi::run::Run;
use crate::attach::published::{Counters, List, ListError, Listed, ProgramStats, Published, ReclaimOnDrop};
use crate::call::state::{Host, Loan};
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
    /// The program is sleepable, and a dispatcher's runs cannot wait.
    #[error("program {program} is sleepable and cannot be attached to a dispatcher: run it by `run_async`")]
    Sleepable {
        /// The program.
        program: ProgramName,
    },
    /// The program is not attached.
    #[error("program {program} is not attached")]
    NotAttached {
        /// The program.
        program: ProgramName,
    },
    /// The image could not be placed.
    #[error("executable memory: {0}")]
    Image(bpf_prog_pack::Error),
    /// There is no memory for the list of programs.
    #[error(transparent)]
    List(#[from] ListError),
    /// A run of [`Dispatcher::test_run`] ended without a result.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<bpf_prog_pack::Error> for DispatcherError {
    fn from(error: bpf_prog_pack::Error) -> DispatcherError {
        DispatcherError::Image(error)
    }
}

/// Options of a [`Dispatcher`]. The hardening of its code is the engine's ([`crate::Config::hardening`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherOptions {
    /// The most programs that are reached by a direct jump: the kernel's BPF_DISPATCHER_MAX by default, at most 8192.
    pub limit: usize,
    /// Whether the targets of the tree's own jumps are aligned to 16 bytes, as in the kernel.
    pub align: bool,
}

impl DispatcherOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        DispatcherOptions::default()
    }

    /// Sets [`DispatcherOptions::limit`].
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets [`DispatcherOptions::align`].
    #[must_use]
    pub fn align(mut self, align: bool) -> Self {
        self.align = align;
        self
    }
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        DispatcherOptions { limit: DEFAULT_LIMIT, align: true }
    }
}

/// Counts of a [`Dispatcher`]: [`Dispatcher::stats`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherStats {
    /// Programs attached.
    pub entries: usize,
    /// Attached programs that a direct jump reaches.
    pub direct: usize,
    /// Attached programs that no direct jump reaches: beyond the limit, out of reach of a compare, or interpreted.
    /// While statistics are on, all of them.
    pub fallback: usize,
    /// Images published.
    pub updates: u64,
    /// Bytes of executable memory of the current image.
    pub footprint: usize,
    /// Runs of each program and their time while statistics were on, in the order of attachment. Interpreted programs
    /// are always counted.
    pub programs: Vec<ProgramStats>,
    /// Runs of programs that were not attached, counted under the same conditions.
    pub unlisted: u64,
}

/// Programs on context `C` with host state `H`, called one at a time by handle: the counterpart of the kernel's
/// dispatcher for XDP.
///
/// Any program of the engine may be called, attached or not; for those attached the call is a few compares and a direct
/// jump. With [`Hardening::retpolines`](crate::code::Hardening), that is several times cheaper than the retpoline it
/// replaces; without, it pays only for few or hot programs. The way from Rust into the image is itself an indirect
/// call: one, always to the same place, and well predicted.
///
/// ```
/// use bpf_runtime::{Config, Dispatcher, Engine, Linker, Raw, isa::assemble};
///
/// let engine = Engine::new(Config::new())?;
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
pub struct Dispatcher<C, H: ?Sized = ()> {
    engine: Engine,
    /// Its entry is null while statistics are on.
    tree: bpf_dispatcher::Dispatcher,
    list: Published<List>,
    unlisted: Counters,
    state: Mutex<State<C, H>>,
    _reclaim: ReclaimOnDrop,
}

struct State<C, H: ?Sized> {
    attached: Vec<Attached<C, H>>,
    statistics: bool,
}

/// An attached program. The entry keeps the program, so that its address is not reused.
struct Attached<C, H: ?Sized> {
    program: Program<C, H>,
    references: usize,
    counters: Arc<Counters>,
}

impl<C, H: ?Sized> fmt::Debug for Dispatcher<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("tree", &self.tree).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Dispatcher<C, H> {
    /// A dispatcher without programs.
    ///
    /// # Errors
    /// [`DispatcherError::Image`].
    pub fn new(engine: &Engine) -> Result<Self, DispatcherError> {
        Dispatcher::with_options(engine, DispatcherOptions::default())
    }

    /// Makes a dispatcher without programs, with these options.
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
    pub fn call(
        &self,
        program: &Program<C, H>,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
    ) -> Result<u64, RunError> {
        let parts = C::parts(&mut data);
        // SAFETY: `Context` promises parts that are valid while `data` is borrowed, which is to the end of this call,
        // and that agree with `C`'s layout, for which the program was loaded; `H` is the linker's.
        unsafe { self.call_parts(program.loaded(), Loan::<H>::new(host).pointer(), parts) }
    }

    /// Runs this program once, as [`Dispatcher::call`], under limits of this run alone, by an indirect call.
    ///
    /// # Errors
    /// As [`Program::run_with`].
    pub fn call_with(
        &self,
        program: &Program<C, H>,
        host: &mut H::State<'_>,
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

    /// Runs the program from Rust instead of through the tree, and counts the run.
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
    /// [`DispatcherError::OtherDomain`], [`DispatcherError::Image`], [`DispatcherError::List`]; nothing has changed. A
    /// failed call of any method changes nothing.
    pub fn attach(&self, program: &Program<C, H>) -> Result<(), DispatcherError> {
        self.engine.domain().owns(&**program.loaded())?;
        if program.loaded().is_sleepable() {
            return Err(DispatcherError::Sleepable { program: ProgramName::of(program.loaded()) });
        }
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
                // Without the lock: a handle's drop runs deferred callbacks, which may change this dispatcher.
                drop(refused);
                Err(error)
            }
        }
    }

    /// Removes a reference, and with the last one the program. It may still be running when this returns.
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

    /// Rebuilds the tree, as [`Dispatcher::set_hits`], for the runs that were counted so far.
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

    /// Switches counting and timing of programs on or off. While on, programs are called from Rust, and each call reads
    /// the clock twice.
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

    /// Returns a copy of the counts. In a forked child, it has no programs if they were being changed at the fork.
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

    /// Runs the program `repeat` times (at least once) on the same data through the dispatcher, and measures the time.
    /// As in the kernel's BPF_PROG_TEST_RUN, the program is attached for the duration of the test. Each run sees the
    /// data as the run before left it.
    ///
    /// # Errors
    /// [`DispatcherError`].
    pub fn test_run(
        &self,
        program: &Program<C, H>,
        host: &mut H::State<'_>,
        mut data: C::Data<'_, '_>,
        repeat: u32,
    ) -> Result<TestRun, DispatcherError> {
        self.attach(program)?;
        let parts = C::parts(&mut data);
        let (host, repeat) = (Loan::<H>::new(host).pointer(), repeat.max(1));
        let start = Instant::now();
        let mut result = Ok(0);
        for _ in 0..repeat {
            // SAFETY: the program takes this host and these parts by its type; `data` stays borrowed over all runs.
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

    /// Refuses changes in a forked child, where the lock may be held for ever by a thread that only the parent has.
    fn may_change(&self) -> Result<(), DispatcherError> {
        if self.engine.domain().is_forked() { Err(bpf_prog_pack::Error::Forked.into()) } else { Ok(()) }
    }

    /// Nothing that panics leaves the state half changed, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a program of another engine. Such calls are rare, so this is kept out of line.
///
/// # Safety
/// As for [`Loaded::run`]; `context`, `packet` and `memory` are the parts of its buffers.
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

fn position_of<C: Context, H: Host + ?Sized>(attached: &[Attached<C, H>], program: &Program<C, H>) -> Option<usize> {
    attached.iter().position(|known| Arc::ptr_eq(known.program.loaded(), program.loaded()))
}

fn not_attached<C: Context, H: Host + ?Sized>(program: &Program<C, H>) -> DispatcherError {
    DispatcherError::NotAttached { program: ProgramName::of(program.loaded()) }
}
