//! Limits how much longer values live because they are reused.
//!
//! Problem: a value that is reused at the other end of a long function lives all the way there, and the register
//! allocator records for each op the values that live across it. A program of n sums that each occur twice would take n
//! times n steps. Approach: the ops by which reuse extends lifetimes are charged to a budget that is linear in the
//! function's ops. Once the budget is used up, values are computed again.
//!
//! Invariant: the ops charged are no fewer than the ops by which lifetimes grow.

use super::Pass;
use crate::ssa::{NONE, Ssa};
use bpf_lir::{Func, VReg};

/// The budget in ops: the first number, plus the second times the ops of the function.
const MAX_REACH: (u64, u64) = (1 << 22, 16);

#[derive(Debug, Default)]
pub(super) struct Reach {
    /// By value: the op index up to which it is charged to live; [`NONE`] if it is charged for the whole function.
    ends: Vec<u32>,
    /// By block: how many loop heads there are up to and including it, in reverse postorder.
    loops: Vec<u32>,
    /// Number of ops of the function.
    all: u64,
    left: u64,
}

impl Reach {
    pub(super) fn prepare(&mut self, func: &Func, ssa: &Ssa) {
        self.ends.clear();
        self.ends.resize(func.vregs as usize, 0);
        self.all = func.ops.len() as u64;
        self.left = MAX_REACH.0 + MAX_REACH.1 * self.all;
        self.loops.clear();
        self.loops.resize(func.blocks.len(), 0);
        for block in ssa.cfg.rpo() {
            for succ in ssa.cfg.succs(*block) {
                if ssa.cfg.leads_back(*block, succ) {
                    self.loops[succ.index()] = 1;
                }
            }
        }
        let mut sum = 0;
        for block in ssa.cfg.rpo() {
            sum += self.loops[block.index()];
            self.loops[block.index()] = sum;
        }
    }

    /// Adds an entry for a new value.
    pub(super) fn push(&mut self) {
        self.ends.push(0);
    }

    /// Records that `v` is defined by the op at index `at`.
    pub(super) fn define(&mut self, v: VReg, at: u32) {
        self.ends[v.index()] = at;
    }
}

impl Pass<'_> {
    /// Extends the lifetime of a value up to here, if the budget suffices; returns whether it does.
    ///
    /// Where no loop begins after the value's definition, all paths here lead forward, through ops that were emitted
    /// since then. Otherwise the value may live throughout a loop, so the whole function is charged.
    pub(super) fn may_live(&mut self, v: VReg) -> bool {
        let now = crate::num::small(self.s.ops.len());
        let (from, reach) = (self.s.blocks[v.index()], &mut self.s.reach);
        let end = &mut reach.ends[v.index()];
        let (cost, new) = if *end == NONE {
            (0, NONE)
        } else if reach.loops[self.block.index()] == reach.loops[from.index()] {
            (now.saturating_sub(*end).into(), now)
        } else {
            (reach.all, NONE)
        };
        if cost > reach.left {
            return false;
        }
        reach.left -= cost;
        *end = new;
        true
    }
}
