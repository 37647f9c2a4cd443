//! Many runs under one guard.
//!
//! Problem: a service that takes packets in batches enters and leaves a run guard for each of them, which takes a third
//! of the time of a run of a small program. Approach: a [`Runner`] holds the guard for as long as it lives. Everything
//! else of a run is done for each run, so a run through it and one without differ in nothing that the program could
//! see.

use crate::abi::limits::RunLimits;
use crate::attach::hook::Hook;
use crate::call::state::{Host, Loan};
use crate::context::{Context, Parts};
use crate::error::RunError;
use crate::handle::program::Program;
use crate::program::loaded::Loaded;
use bpf_quiesce::RunGuard;
use std::fmt;

/// Runs a program or hook many times: made by [`Program::runner`](crate::Program::runner) or [`Hook::runner`].
///
/// While it lives, its thread keeps an execution slot and is inside a run guard. So make one for a batch and drop it
/// before waiting for the next: objects that other threads replace or drop are freed only afterwards, and waiting for a
/// grace period ([`bpf_quiesce::Domain::synchronize`]) is refused in this thread. Programs attached to a hook meanwhile
/// run from the next run on.
#[must_use = "it holds a run guard until it is dropped"]
pub struct Runner<'r, C, H: ?Sized = ()> {
    target: Target<'r, C, H>,
    guard: RunGuard<'r>,
    host: Loan<'r, H>,
    limits: Option<RunLimits>,
}

enum Target<'r, C, H: ?Sized> {
    /// A program loaded for `C` and `H`.
    Program(&'r Loaded),
    Hook(&'r Hook<C, H>),
}

impl<C, H: ?Sized> fmt::Debug for Runner<'_, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Program<C, H> {
    /// For many runs under one run guard: each costs less.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let engine = Engine::new(Config::new())?;
    /// let filter = Linker::<u32>::new(&engine).loader::<Raw>().insns("length", assemble("r0 = r2\nexit")?)?;
    /// let mut batch = [vec![0; 60], vec![0; 1500]];
    /// let mut bytes = 0;
    /// let mut state = 7;
    /// let mut runner = filter.runner(&mut state)?;
    /// for packet in &mut batch {
    ///     bytes += runner.run(packet)?;
    /// }
    /// drop(runner); // before waiting for the next batch
    /// assert_eq!(bytes, 1560);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RunError`] if no execution slot is free.
    pub fn runner<'r>(&'r self, host: &'r mut H::State<'_>) -> Result<Runner<'r, C, H>, RunError> {
        let program = &**self.loaded();
        let guard = program.engine.0.domain.enter_run()?;
        Ok(Runner { target: Target::Program(program), guard, host: Loan::new(host), limits: None })
    }
}

impl<C: Context, H: Host + ?Sized> Hook<C, H> {
    /// For many runs under one run guard: each costs less. See [`Program::runner`].
    ///
    /// # Errors
    /// [`RunError`] if no execution slot is free.
    pub fn runner<'r>(&'r self, host: &'r mut H::State<'_>) -> Result<Runner<'r, C, H>, RunError> {
        let guard = self.engine().0.domain.enter_run()?;
        Ok(Runner { target: Target::Hook(self), guard, host: Loan::new(host), limits: None })
    }
}

impl<C: Context, H: Host + ?Sized> Runner<'_, C, H> {
    /// Runs it once.
    ///
    /// # Errors
    /// [`RunError`]: the run ended without a result. The runner may be used further.
    #[inline(always)]
    pub fn run(&mut self, mut data: C::Data<'_, '_>) -> Result<u64, RunError> {
        // Entering a domain refuses in a forked child; this guard may have come along from the parent.
        self.guard.check()?;
        let parts = C::parts(&mut data);
        let host = self.host.pointer();
        if let Some(limits) = &self.limits {
            // In words, so that the parts need not lie in memory for the runs without limits.
            let (context, packet, memory) = parts.slices();
            // SAFETY: the parts are valid while `data` is borrowed, to the end of this call, and agree with `C`.
            return unsafe { self.run_limited(host, context, packet, memory, limits) };
        }
        match self.target {
            // SAFETY: `Context` promises parts that are valid while `data` is borrowed, which is to the end of this
            // call, and that agree with `C`'s layout, for which the program was loaded; `H` is its
            // linker's.
            Target::Program(program) => unsafe { program.run_under(&*self.guard, host, parts) },
            // SAFETY: `parts` are valid while `data` is borrowed, to the end of this call, and agree with `C`, the
            // hook's context; the guard is of the hook's engine, and `H` its programs' host.
            Target::Hook(hook) => unsafe { hook.run_under(&*self.guard, host, parts) },
        }
    }

    /// # Safety
    /// `host` must be the runner's, and context, packet and memory the parts of a `C::Data` that is valid for the run.
    #[cold]
    #[inline(never)]
    unsafe fn run_limited(
        &self,
        host: *mut (),
        context: *mut [u8],
        packet: *mut [u8],
        memory: *mut [u8],
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        let parts = Parts::of_slices(context, packet, memory);
        match self.target {
            // SAFETY: the caller's contract; the guard is of the program's engine.
            Target::Program(program) => unsafe { program.run_limited(&*self.guard, host, parts, limits) },
            // SAFETY: the caller's contract; the guard is of the hook's engine.
            Target::Hook(hook) => unsafe { hook.run_limited(&*self.guard, host, parts, limits) },
        }
    }

    /// Limits of each run from the next one on: the budget is each run's own.
    pub fn set_limits(&mut self, limits: &RunLimits) {
        self.limits = Some(limits.clone());
    }

    /// Calls a function with the host state that the runs are given, also if it borrows ([`crate::host::Borrowed`]).
    pub fn with_host<R>(&mut self, f: impl for<'s, 'a> FnOnce(&'s mut H::State<'a>) -> R) -> R {
        self.host.with(f)
    }
}

impl<C: Context, H: 'static> Runner<'_, C, H> {
    /// The host state that the runs are given.
    pub fn host(&mut self) -> &mut H {
        self.host.get()
    }
}
