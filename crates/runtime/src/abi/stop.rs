//! Why a run was stopped.
//!
//! Emitted code leaves a reason and the number of the instruction in the [`RunCtx`](bpf_jit_code::RunCtx), and an
//! address in the code, by which [`Roots`] finds the program.
//!
//! Invariant: the functions of [`Run`] are called only at the end of a stopped run, inside its guard.

use crate::abi::critical::Critical;
use crate::abi::roots::{Roots, StoppedAt};
use crate::abi::run::{Run, word};
use crate::abi::watch::{INTERRUPTED, LATE};
use crate::error::RunError;
use bpf_isa::InsnIdx;
use bpf_jit_code::StopCode;
use bpf_quiesce::caught;

/// Does work of a host on the stack of a run, which does not wait meanwhile. Not inlined: see
/// [`crate::abi::critical::inside`].
#[inline(never)]
pub(crate) fn left<R>(work: impl FnOnce() -> R) -> R {
    let _left = Critical::leave();
    work()
}

/// Drops a value with code of a host, which may panic.
pub(crate) fn dropped_outside<T>(value: T) {
    left(|| {
        let _ = caught(|| drop(value));
    });
}

/// The message for a failed check that the verifier left to run time.
pub(crate) const OUT_OF_BOUNDS: &str = "memory access out of bounds, or an atomic one that is not aligned";

/// The message for an indirect jump or call whose register holds none of its targets.
const NO_TARGET: &str = "the register holds no target that the jump or call (gotox, callx) may have here";

impl Run {
    /// Returns why the run was stopped; `None` if it was not.
    #[inline]
    pub(crate) fn stopped(&mut self) -> Option<RunError> {
        if self.ctx.stop_code == 0 { None } else { Some(self.stop_reason()) }
    }

    /// Stops a run that waits and was asked to end, as a check in its code would.
    pub(crate) fn stop_asked(&mut self) {
        self.ctx.stop_code = StopCode::Interrupted as u32;
        self.ctx.stop_insn = u32::MAX;
        self.ctx.stop_pc = 0;
    }

    /// Returns whether this process is a forked child of the run's.
    pub(crate) fn is_forked(&self) -> bool {
        // SAFETY: null, or the engine's, which is there as long as the run (`Run::set`).
        unsafe { self.config.as_ref() }.is_some_and(|config| config.domain.is_forked())
    }

    /// Returns whether the run was asked to end.
    pub(crate) fn is_asked(&mut self) -> bool {
        // SAFETY: of a run that is there; others change it atomically.
        let word = unsafe { word(self) };
        // Relaxed: the poller of the run has seen the mark.
        word.load(std::sync::atomic::Ordering::Relaxed) & INTERRUPTED != 0
    }

    /// Returns whether the run was interrupted because its deadline had passed.
    pub(crate) fn is_late(&mut self) -> bool {
        // SAFETY: of a run that is there; others change it atomically.
        let word = unsafe { word(self) };
        // Relaxed: the bit is set in the same store as the cause of the stop.
        word.load(std::sync::atomic::Ordering::Relaxed) & LATE != 0
    }

    /// Returns why emitted code that was entered through `roots` was stopped.
    #[cold]
    #[inline(never)]
    pub(crate) fn stop_reason_in(&mut self, roots: &dyn Roots) -> RunError {
        let stack = std::mem::take(&mut self.stopped);
        let at =
            StoppedAt { pc: self.ctx.stop_pc, jumped: self.ctx.tail_calls != 0, stack, apart: !self.link.is_null() };
        roots.explain(self.stop_reason(), at)
    }

    #[cold]
    #[inline(never)]
    fn stop_reason(&mut self) -> RunError {
        self.release();
        let insn = (self.ctx.stop_insn != u32::MAX).then_some(InsnIdx(self.ctx.stop_insn));
        match StopCode::new(self.ctx.stop_code) {
            Some(StopCode::Budget) => RunError::Budget { insn, origin: None },
            Some(StopCode::Interrupted) if self.is_late() => RunError::Deadline { insn, origin: None },
            Some(StopCode::Interrupted) => RunError::Interrupted { insn, origin: None },
            Some(StopCode::Access) => RunError::Access { what: OUT_OF_BOUNDS.into(), insn, origin: None },
            Some(StopCode::Target) => RunError::Access { what: NO_TARGET.into(), insn, origin: None },
            Some(StopCode::Host) => match self.error.take() {
                Some(source) => RunError::Host { source: *source, insn, origin: None },
                None => RunError::Internal("a host function stopped the run without an error".into()),
            },
            None => RunError::Internal(format!("unknown stop code {}", self.ctx.stop_code)),
        }
    }
}
