//! In which program a run was stopped.
//!
//! Problem: emitted code knows its instructions by number, and after a tail call, or in a hook's image, the runtime
//! does not know of which program. Approach: code that stops a run leaves an address in itself
//! ([`bpf_jit_code::RunCtx::stop_pc`]), and of a host function that stops one the process's unwinder says where it was
//! called; the program whose code that is in is looked for from those that the run began
//! with, through the prog arrays they jump through. So nothing is registered when programs are loaded, and nothing is
//! noted when they are called.
//!
//! Invariant: only the end of a stopped run comes here, inside its guard. A program that was taken out of its array
//! while the run was in it is not found: the error then names the instruction only.

use crate::abi::roots::{Roots, StoppedAt};
use crate::error::RunError;
use crate::program::loaded::Loaded;
use crate::program::table::ProgTable;
use std::collections::HashSet;
use std::sync::Arc;

impl Roots for Loaded {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        match at {
            // A host function stopped it: that was called by the program, unless that has jumped to another.
            StoppedAt { pc: 0, jumped: false } => self.locate(error, 0),
            _ => locate(std::iter::once(self), error, at),
        }
    }

    fn code_stack(&self) -> u64 {
        Loaded::code_stack(self)
    }
}

/// Says of an error in which program it is, of these and those that they may have jumped to: the one with this address
/// in its code. Where the unwinder has not found the call of a host function, nothing is known.
pub(crate) fn locate<'p>(
    mut programs: impl Iterator<Item = &'p Loaded>,
    error: RunError,
    StoppedAt { pc, .. }: StoppedAt,
) -> RunError {
    if pc == 0 {
        return error;
    }
    let mut error = Some(error);
    let mut tables: Vec<Arc<ProgTable>> = Vec::new();
    let mut visit = |program: &Loaded, tables: &mut Vec<Arc<ProgTable>>| {
        if program.has_code_at(pc) {
            error = error.take().map(|error| program.locate(error, pc));
            return true;
        }
        let new = |table: &&Arc<ProgTable>| tables.iter().all(|known| !Arc::ptr_eq(known, table));
        let new: Vec<_> = program.tables().filter(new).cloned().collect();
        tables.extend(new);
        false
    };
    if !programs.any(|program| visit(program, &mut tables)) {
        let (mut next, mut seen) = (0, HashSet::new());
        while let Some(table) = tables.get(next).cloned() {
            next += 1;
            let programs = table.programs(&mut seen).into_iter().filter_map(Loaded::of_member);
            if programs.into_iter().any(|program| visit(&program, &mut tables)) {
                break;
            }
        }
    }
    error.unwrap_or_else(|| RunError::Internal("an error was lost".into()))
}
