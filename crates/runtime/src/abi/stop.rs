//! Why a run was stopped, and where: instruction, program, source line.
//!
//! Problem: emitted code knows its instructions by number, and after a tail call, or in a hook's image, the runtime
//! does not know of which program. Approach: code that stops a run leaves an address in itself
//! ([`bpf_jit_code::RunCtx::stop_pc`]); the program whose code that is in is looked for from those that the run began
//! with, through the prog arrays they jump through. So nothing is registered when programs are loaded, and nothing is
//! noted when they are called.
//!
//! Invariant: only the end of a stopped run comes here, inside its guard. A program that was taken out of its array
//! while the run was in it is not found: the error then names the instruction only.

use crate::abi::run::{OUT_OF_BOUNDS, Run};
use crate::error::RunError;
use crate::program::loaded::Loaded;
use crate::program::table::ProgTable;
use bpf_isa::InsnIdx;
use bpf_jit_code::StopCode;
use std::collections::HashSet;
use std::sync::Arc;

/// What a run of emitted code may have begun with.
pub(crate) trait Roots {
    /// Shows the programs to `f`, until it says `true`. Whether it did. Called inside the run's guard.
    fn any(&self, f: &mut dyn FnMut(&Loaded) -> bool) -> bool;

    /// The program, if there can be only one.
    fn only(&self) -> Option<&Loaded>;

    /// Worst machine stack of a run of them, in bytes ([`Loaded::code_stack`]). Called inside the run's guard, behind
    /// the load of what is run.
    fn code_stack(&self) -> u64;
}

impl Roots for Loaded {
    fn any(&self, f: &mut dyn FnMut(&Loaded) -> bool) -> bool {
        f(self)
    }

    fn only(&self) -> Option<&Loaded> {
        Some(self)
    }

    fn code_stack(&self) -> u64 {
        Loaded::code_stack(self)
    }
}

impl Run {
    /// Why the run was stopped; `None` if it was not.
    #[inline]
    pub(crate) fn stopped(&mut self) -> Option<RunError> {
        if self.ctx.stop_code == 0 { None } else { Some(self.stop_reason()) }
    }

    /// Why emitted code was stopped that was entered through `roots`.
    #[cold]
    pub(crate) fn stop_reason_in(&mut self, roots: &dyn Roots) -> RunError {
        let error = self.stop_reason();
        match (self.ctx.stop_pc, roots.only()) {
            // A host function stopped it: that was called by the program, unless that has jumped to another.
            (0, Some(program)) if self.ctx.tail_calls == 0 => program.locate(error),
            (0, _) => error,
            (pc, _) => locate(pc, roots, error),
        }
    }

    #[cold]
    fn stop_reason(&mut self) -> RunError {
        self.release();
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

/// Says of an error in which program it is: the one with this address in its code.
fn locate(pc: u64, roots: &dyn Roots, error: RunError) -> RunError {
    let mut error = Some(error);
    let mut tables: Vec<Arc<ProgTable>> = Vec::new();
    let mut visit = |program: &Loaded, tables: &mut Vec<Arc<ProgTable>>| {
        if program.has_code_at(pc) {
            error = error.take().map(|error| program.locate(error));
            return true;
        }
        let new = |table: &&Arc<ProgTable>| tables.iter().all(|known| !Arc::ptr_eq(known, table));
        let new: Vec<_> = program.tables().filter(new).cloned().collect();
        tables.extend(new);
        false
    };
    if !roots.any(&mut |program| visit(program, &mut tables)) {
        let (mut next, mut seen) = (0, HashSet::new());
        while let Some(table) = tables.get(next).cloned() {
            next += 1;
            if table.programs(&mut seen).iter().any(|program| visit(program, &mut tables)) {
                break;
            }
        }
    }
    error.unwrap_or_else(|| RunError::Internal("an error was lost".into()))
}
