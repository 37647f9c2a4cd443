//! Running a loaded program: its machine code, or its instructions by the interpreter.

use crate::abi::begin;
use crate::abi::critical;
use crate::abi::limits::{Limits, RunLimits, Terms};
use crate::abi::run::Run;
use crate::context::Parts;
use crate::error::RunError;
use crate::exec::interp::{self, Start};
use crate::exec::watch::Watch;
use crate::program::interpreted::Interpreted;
use crate::program::loaded::{Form, Loaded};
use bpf_quiesce::Guard;
use std::borrow::Borrow;
use std::sync::Arc;

impl Loaded {
    /// Runs it once.
    ///
    /// # Safety
    /// `parts` must be valid for the run and agree with the program's layout; `host` must be a `&mut H::State` for the
    /// `H` of the linker that loaded the program.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, host: *mut (), parts: Parts) -> Result<u64, RunError> {
        let guard = self.engine.0.domain.enter_run()?;
        // SAFETY: the caller's contract.
        unsafe { self.run_under(guard, host, parts) }
    }

    /// Runs it once under a guard of its engine's domain, or a borrow of one.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_under<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
    ) -> Result<u64, RunError> {
        let runs = &self.engine.0.runs;
        match &self.form {
            // SAFETY: the entry is that of code compiled for this host, kept by `self`; the caller vouches for the
            // rest.
            Form::Native(native) => unsafe {
                begin::run_code(runs, guard, native.entry, host, parts, self.terms(), self)
            },
            Form::Interpreted(what) => begin::begin(runs, guard, host, parts, self.terms(), self, |run, parts| {
                // SAFETY: the caller vouches for the parts; the run is one of this thread.
                unsafe { interp::run(self, what, run, parts, Start::Program) }
            }),
            Form::Sleepable(_) => Err(self.cannot_wait()),
        }
    }

    /// Runs it once under a guard of its engine's domain, or a borrow of one, and limits.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_limited<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        // SAFETY: the caller's contract.
        unsafe { self.run_limited_as(guard, host, parts, self.terms(), limits) }
    }

    /// Runs it once, as [`Loaded::run_limited`], on these terms.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    #[inline(always)]
    pub(crate) unsafe fn run_limited_as<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        host: *mut (),
        parts: Parts,
        terms: Terms,
        limits: &RunLimits,
    ) -> Result<u64, RunError> {
        let runs = &self.engine.0.runs;
        let named = || std::iter::once(self.limited());
        let limits = Limits::new(limits, runs, self.checks, named).map_err(|error| *error)?;
        match &self.form {
            // SAFETY: as in `run_under`.
            Form::Native(native) => unsafe {
                begin::run_code_limited(runs, guard, native.entry, host, parts, (terms, limits), false, self)
            },
            // SAFETY: the caller's contract.
            Form::Interpreted(what) => unsafe {
                let (context, packet, memory) = parts.slices();
                self.interpret_limited(guard, what, host, context, packet, memory, (terms, limits))
            }
            .map_err(|error| *error),
            Form::Sleepable(_) => Err(self.cannot_wait()),
        }
    }

    /// # Safety
    /// As for [`Loaded::run_limited`].
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "words of its caller's, which are not to be put into memory")]
    unsafe fn interpret_limited<'e>(
        &'e self,
        guard: impl Borrow<Guard<'e>>,
        what: &Arc<Interpreted>,
        host: *mut (),
        context: *mut [u8],
        packet: *mut [u8],
        memory: *mut [u8],
        (terms, limits): (Terms, Limits<'_>),
    ) -> Result<u64, Box<RunError>> {
        let runs = &self.engine.0.runs;
        let parts = Parts::of_slices(context, packet, memory);
        begin::begin_limited(runs, guard, host, parts, (terms, limits), self, |run, parts| {
            // SAFETY: the caller vouches for the parts; the run is one of this thread.
            unsafe { interp::run(self, what, run, parts, Start::Program) }
        })
        .map_err(Box::new)
    }

    /// Interprets it once, under these limits if there are any, and tells `watch` of the run. `what` has its
    /// instructions.
    ///
    /// # Safety
    /// As for [`Loaded::run`].
    pub(crate) unsafe fn run_watched<W: Watch>(
        &self,
        what: &Arc<Interpreted>,
        host: *mut (),
        parts: Parts,
        limits: Option<&RunLimits>,
        watch: W,
    ) -> Result<u64, RunError> {
        let guard = self.engine.0.domain.enter_run()?;
        let runs = &self.engine.0.runs;
        let code = |run, parts| {
            // SAFETY: the caller vouches for the parts; the run is one of this thread.
            unsafe { interp::run_watched(self, what, run, parts, Start::Program, watch) }
        };
        let Some(limits) = limits else { return begin::begin(runs, guard, host, parts, self.terms(), self, code) };
        let named = || std::iter::once(self.limited());
        let limits = Limits::new(limits, runs, self.checks, named).map_err(|error| *error)?;
        begin::begin_limited(runs, guard, host, parts, (self.terms(), limits), self, code)
    }

    /// Runs it as a part of `run`.
    ///
    /// # Safety
    /// As for [`Loaded::run`], with the host that `run` was begun with. The program must be kept for the call.
    pub(crate) unsafe fn run_in(&self, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        // SAFETY: the caller's contract.
        if self.is_sleepable() { Err(self.cannot_wait()) } else { unsafe { self.run_any_in(run, parts) } }
    }

    /// Runs it as [`Loaded::run_in`] does, and sleepable programs as well.
    ///
    /// # Safety
    /// As for [`Loaded::run_in`]; the run of a sleepable program must be on a stack of its own, and the thread in a
    /// section.
    pub(crate) unsafe fn run_any_in(&self, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        match self.form.executed() {
            // SAFETY: as below.
            Form::Native(native) if self.is_sleepable() => unsafe {
                begin::call_asleep(native.entry, run, parts, self)
            },
            // SAFETY: the entry is that of code compiled for this host, kept by `self`; the caller vouches for the
            // rest.
            Form::Native(native) => unsafe { begin::call(native.entry, run, parts, self) },
            Form::Interpreted(what) if self.is_sleepable() => {
                critical::outside();
                // SAFETY: as below.
                let result = unsafe { interp::run(self, what, run, parts, Start::Program) };
                critical::inside();
                result
            }
            // SAFETY: the caller vouches for the parts; `run` is the run of this thread.
            Form::Interpreted(what) => unsafe { interp::run(self, what, run, parts, Start::Program) },
            Form::Sleepable(_) => Err(RunError::Internal("a sleepable program in another".into())),
        }
    }
}
