//! The state of one run.
//!
//! A [`Run`] lives on the stack of the thread that runs the program. Its first field is the [`RunCtx`] that emitted code sees, so
//! that a host function gets from the hidden argument back to the run.

use crate::error::{HelperError, RunError};
use bpf_isa::InsnIdx;
use bpf_jit_code::{RunCtx, StopCode};
use std::cell::Cell;

/// What is wrong when a check fails that the verifier left to run time.
pub(crate) const OUT_OF_BOUNDS: &str = "memory access out of bounds";

/// One run. `repr(C)`: the hidden argument of emitted code is the address of the first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) ctx: RunCtx,
    /// The `&mut H` that the run was given.
    pub(crate) host: *mut (),
    /// The context that the run was given.
    pub(crate) context: *mut u8,
    /// The engine, which outlives the run.
    pub(crate) engine: *const crate::engine::EngineInner,
    /// What a host function failed with.
    pub(crate) error: Option<Box<HelperError>>,
}

impl Run {
    /// A run that shares slot, host and engine with this one, for a helper that calls back through the interpreter.
    pub(crate) fn view(&self) -> Run {
        let ctx = RunCtx {
            tail_calls: 0,
            stop_code: 0,
            stop_insn: 0,
            interrupt: 0,
            budget: i64::MAX,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0,
            packet_len: 0,
            host_env: 0,
            slot: self.ctx.slot,
            context: self.ctx.context,
        };
        Run { ctx, host: self.host, context: self.context, engine: self.engine, error: None }
    }

    /// Ends the run with a host function's error. The first one stays.
    pub(crate) fn fail(&mut self, error: HelperError) {
        if self.ctx.stop_code == 0 {
            self.ctx.stop_code = StopCode::Host as u32;
            self.ctx.stop_insn = u32::MAX;
            self.error = Some(Box::new(error));
        }
    }

    /// Why the run was stopped; `None` if it was not.
    #[inline]
    pub(crate) fn stopped(&mut self) -> Option<RunError> {
        if self.ctx.stop_code == 0 { None } else { Some(self.stop_reason()) }
    }

    #[cold]
    fn stop_reason(&mut self) -> RunError {
        let insn = (self.ctx.stop_insn != u32::MAX).then_some(InsnIdx(self.ctx.stop_insn));
        match StopCode::new(self.ctx.stop_code) {
            Some(StopCode::Budget) => RunError::Budget { insn, origin: None },
            Some(StopCode::Interrupted) => RunError::Interrupted { insn, origin: None },
            Some(StopCode::Access) => RunError::Access { what: OUT_OF_BOUNDS.into(), insn, origin: None },
            Some(StopCode::Host) => match self.error.take() {
                Some(source) => RunError::Host { source: *source, insn, origin: None },
                None => RunError::Internal("a host function stopped the run without an error".into()),
            },
            None => RunError::Internal(format!("unknown stop code {}", self.ctx.stop_code)),
        }
    }
}

thread_local! {
    /// Runs of this thread that are on the stack.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Counts one run of this thread while it lives.
pub(crate) struct Nesting(());

impl Nesting {
    #[inline]
    pub(crate) fn enter(limit: u32) -> Result<Nesting, RunError> {
        DEPTH.with(|depth| {
            if depth.get() >= limit {
                return Err(RunError::TooDeep { limit });
            }
            depth.set(depth.get() + 1);
            Ok(Nesting(()))
        })
    }
}

impl Drop for Nesting {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}
