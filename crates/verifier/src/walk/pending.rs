//! Pending branches: the newest is walked first, from its state.

use bpf_isa::{InsnIdx, Reg};

use super::memory::Size;
use super::trail::Mark;
use super::{PathNode, Res, Walk};
use crate::error::Decision;
use crate::faults::planted;
use crate::state::State;

/// A branch to walk later.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) at: InsnIdx,
    /// Whether it begins with an early return from the function, whatever the instruction is.
    pub(super) returns: bool,
    pub(super) state: State,
    pub(super) size: Size,
    pub(super) path: u32,
    pub(super) epoch: u32,
    /// The trail's length at the branch.
    pub(super) mark: Mark,
    /// A register that is equal to a constant on this side, and whether only its lower half was compared.
    pub(super) equal: Option<(Reg, bool)>,
    /// Whether it is a candidate for the loop with this head, which has not come round.
    resumes: bool,
}

impl Walk<'_> {
    /// Queues `state` to be walked from `at`.
    pub(super) fn push(&mut self, at: InsnIdx, state: State, decision: Option<Decision>, epoch: u32) -> Res<()> {
        let path = match decision {
            Some(d) => self.extend_path(d),
            None => self.path,
        };
        self.leave(at, false, state, path, epoch)
    }

    /// Queues an early return from the running function, with `state` as if at its exit. It is a path of its own, since
    /// it leads to callers and further rounds that are no part of the current path.
    pub(super) fn push_return(&mut self, state: State) -> Res<()> {
        self.leave(self.pc, true, state, self.path, self.epoch)
    }

    /// Queues a candidate for the loop with this head.
    pub(super) fn leave_at_head(&mut self, at: InsnIdx, state: State, path: u32, epoch: u32) -> Res<()> {
        self.leave_as(at, false, true, state, path, epoch)
    }

    pub(super) fn leave(&mut self, at: InsnIdx, returns: bool, state: State, path: u32, epoch: u32) -> Res<()> {
        self.leave_as(at, returns, false, state, path, epoch)
    }

    fn leave_as(&mut self, at: InsnIdx, returns: bool, resumes: bool, state: State, path: u32, epoch: u32) -> Res<()> {
        self.choices += 1;
        let size = Size::of(&state);
        let mark = self.trail_mark();
        self.scratch.pending.push(Pending { at, returns, state, size, path, epoch, mark, equal: None, resumes });
        self.stored(size)
    }

    pub(super) fn extend_path(&mut self, d: Decision) -> u32 {
        self.scratch.paths.push(PathNode { parent: self.path, insn: d.insn, taken: d.taken });
        crate::num::small(self.scratch.paths.len()) - 1
    }

    /// Continues with the newest pending branch, if there is one. Returns whether it begins with a return.
    pub(super) fn pop(&mut self) -> Option<bool> {
        let p = self.scratch.pending.pop()?;
        debug_assert!(self.scratch.prune.opened_before(self.scratch.pending.len()));
        self.scratch.memory.remove(p.size);
        let old = std::mem::replace(&mut self.state, p.state);
        if planted!(SiblingKnowsRanges) {
            self.state.know_as(&old);
        }
        // A state that came back in a havocked iteration belongs to the candidate.
        if !old.frames.is_empty() {
            self.scratch.pool.push(old);
        }
        (self.pc, self.path, self.epoch) = (p.at, p.path, p.epoch);
        self.loops.resumed = p.resumes;
        if let Some((reg, half)) = p.equal {
            self.trail_equal(reg, half);
        }
        Some(p.returns)
    }
}
