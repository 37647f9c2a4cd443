//! Finds the program in which a run was stopped, and the calls that led there.
//!
//! Problem: emitted code knows its instructions by number, and after a tail call, or in a hook's image, the runtime
//! does not know of which program. Approach: code that stops a run leaves an address in itself
//! ([`bpf_jit_code::RunCtx::stop_pc`]), and if a host function stops it, the process's unwinder finds the address of
//! the call. The program that contains the address is searched for among the programs that the run began with and the
//! prog arrays that they jump through. Therefore, loads register nothing, and calls record nothing. The return address
//! has a known place in the program's frame and lies in the caller's code, and so on up.
//!
//! Invariant: only the end of a stopped run comes here, inside its guard, or kept by its owner while it waits. A
//! program that was taken out of its array while the run was in it is not found: the error then names the instruction
//! only, or the calls up to it.

use crate::abi::roots::{Roots, StoppedAt};
use crate::abi::stack::Stack;
use crate::error::{CalledAt, RunError};
use crate::program::loaded::Loaded;
use crate::program::table::ProgTable;
use std::collections::HashSet;
use std::sync::Arc;

impl Roots for Loaded {
    fn explain(&self, error: RunError, at: StoppedAt) -> RunError {
        match at {
            // A host function stopped it: that was called by the program, unless that has jumped to another.
            StoppedAt { pc: 0, jumped: false, apart, .. } => self.locate(error, 0, Vec::new(), apart),
            at => locate(std::iter::once(self), error, &at),
        }
    }

    fn code_stack(&self) -> u64 {
        Loaded::code_stack(self)
    }
}

/// Adds to an error its program, among `programs` and the programs that they may have jumped to: the one whose code
/// contains this address. Without an address (the unwinder did not find the call of a host function) the program is
/// unknown.
pub(crate) fn locate<'p>(
    programs: impl Iterator<Item = &'p Loaded> + Clone,
    error: RunError,
    StoppedAt { pc, stack, apart, .. }: &StoppedAt,
) -> RunError {
    if *pc == 0 {
        return error;
    }
    let callers = callers(programs.clone(), stack);
    let mut error = Some((error, callers));
    let located = with_code_at(programs, *pc, |program| {
        error.take().map(|(error, callers)| program.locate(error, *pc, callers, *apart))
    });
    match (located, error) {
        (Some(error), _) | (None, Some((error, _))) => error,
        (None, None) => RunError::Internal("an error was lost".into()),
    }
}

/// Returns the calls of the frames of a stopped run, innermost first. The innermost function is left out, since the
/// error itself names it.
fn callers<'p>(programs: impl Iterator<Item = &'p Loaded> + Clone, stack: &[Stack]) -> Vec<CalledAt> {
    /// Calls are at most [`bpf_isa::MAX_CALL_DEPTH`] deep, in each of the programs of a chain of tail calls.
    const MAX: usize = bpf_isa::MAX_CALL_DEPTH as usize * (1 + bpf_jit_code::TAIL_CALL_LIMIT as usize);
    let mut callers = Vec::new();
    for (entry, Stack { pc, link, words }) in stack.iter().enumerate() {
        let (mut pc, mut sp) = (*pc, 0);
        for depth in 0..MAX {
            let found = with_code_at(programs.clone(), pc, |program| program.frame_at(pc));
            let Some((called, frame)) = found else { break };
            if entry > 0 || depth > 0 {
                callers.push(called);
            }
            let stored = |offset: u32| words.get(sp + offset as usize / 8).copied();
            let Some(back) = frame.return_address.map_or(Some(*link), stored) else { break };
            sp += frame.below_caller as usize / 8;
            // An address in the call. Where return addresses are signed, the signature is above.
            pc = (back & ADDRESS).wrapping_sub(1);
        }
    }
    callers
}

/// The bits of an address of code, which is never in the upper half.
const ADDRESS: u64 = if cfg!(target_arch = "aarch64") { (1 << 48) - 1 } else { u64::MAX };

/// Calls `ask` with the program whose code contains this address, among `programs` and the programs that they may have
/// jumped to.
fn with_code_at<'p, R>(
    mut programs: impl Iterator<Item = &'p Loaded>,
    pc: u64,
    ask: impl FnOnce(&Loaded) -> Option<R>,
) -> Option<R> {
    let mut ask = Some(ask);
    let mut tables: Vec<Arc<ProgTable>> = Vec::new();
    let mut visit = |program: &Loaded, tables: &mut Vec<Arc<ProgTable>>| {
        if program.has_code_at(pc) {
            return Some(ask.take().and_then(|ask| ask(program)));
        }
        let new = |table: &&Arc<ProgTable>| tables.iter().all(|known| !Arc::ptr_eq(known, table));
        let new: Vec<_> = program.tables().filter(new).cloned().collect();
        tables.extend(new);
        None
    };
    if let Some(answer) = programs.find_map(|program| visit(program, &mut tables)) {
        return answer;
    }
    let (mut next, mut seen) = (0, HashSet::new());
    while let Some(table) = tables.get(next).cloned() {
        next += 1;
        let programs = table.programs(&mut seen).into_iter().filter_map(Loaded::of_member);
        if let Some(answer) = programs.into_iter().find_map(|program| visit(&program, &mut tables)) {
            return answer;
        }
    }
    None
}
