//! How long values may live that are found again.
//!
//! Problem: what is read again at the other end of a long function lives all the way there, and whoever allocates
//! registers writes down for each op what lives across it: a program of n sums that come twice would take n times n.
//! Approach: what a value lives longer by is taken from a stock, linear in the ops; when that is used up, it is
//! computed again.
//!
//! Invariant: what was taken from the stock is no less than what values live longer, in ops.

use super::Pass;
use crate::ssa::{NONE, Ssa};
use bpf_lir::{Func, VReg};

/// The stock: so many ops, and so many times the function's own.
const MAX_REACH: (u64, u64) = (1 << 22, 16);

#[derive(Debug, Default)]
pub(super) struct Reach {
    /// By value: the place among the ops up to which it lives, as far as it was found again; [`NONE`] if anywhere.
    ends: Vec<u32>,
    /// By block: how many loops begin up to here, in reverse postorder.
    loops: Vec<u32>,
    /// How many ops there were.
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

    /// One value more.
    pub(super) fn push(&mut self) {
        self.ends.push(0);
    }

    /// A value is defined by the op at this place.
    pub(super) fn define(&mut self, v: VReg, at: u32) {
        self.ends[v.index()] = at;
    }
}

impl Pass<'_> {
    /// Lets a value live up to here, if that is not too much.
    ///
    /// Where no loop begins after its definition, all ways here lead forward, through ops that were emitted since then.
    /// Else it may live in all of a loop, wherever that ends.
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
