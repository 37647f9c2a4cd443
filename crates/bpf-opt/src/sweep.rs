//! Removes ops and phis whose values are not needed, in SSA form.
//!
//! An op with an effect is needed, and so is every value that a needed op or phi reads. All others are removed, among
//! them phis that only read each other.
//!
//! A load is removed only if it cannot trap: either its region is known, or another load that stays reads the same
//! bytes ([`crate::ssa::Spare`]).

use crate::dead::is_pure;
use crate::ssa::{NO_VALUE, NONE, Phi, Ssa};
use bpf_lir::{BlockId, Func, Op, Region, VReg};

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    needed: Vec<bool>,
    spare: Vec<bool>,
    /// By value: the index of the op that defines it, in `defs`, or of the phi, in `phis`; [`NONE`] otherwise.
    defs: Vec<u32>,
    phis: Vec<u32>,
    work: Vec<VReg>,
    /// All phis, with their blocks.
    all: Vec<(BlockId, Phi)>,
}

impl Sweep {
    /// Runs the pass over `func`; returns how many ops and phis were removed.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &mut Ssa) -> u32 {
        let values = func.vregs as usize;
        for of in [&mut self.needed, &mut self.spare] {
            of.clear();
            of.resize(values, false);
        }
        for of in [&mut self.defs, &mut self.phis] {
            of.clear();
            of.resize(values, NONE);
        }
        for v in &ssa.spare.0 {
            self.spare[v.index()] = true;
        }
        let mut phis = core::mem::take(&mut self.all);
        phis.clear();
        phis.extend(ssa.all_phis());
        for ((_, phi), i) in phis.iter().zip(0..) {
            self.phis[phi.dst.index()] = i;
        }
        for block in &func.order {
            for i in func.range(*block) {
                let op = &func.ops[i];
                match op.def() {
                    Some(v) if self.may_go(op, v) => self.defs[v.index()] = crate::num::small(i),
                    Some(_) | None => op.for_each_use(|v| self.work.push(v)),
                }
            }
        }
        while let Some(v) = self.work.pop() {
            if core::mem::replace(&mut self.needed[v.index()], true) {
                continue;
            }
            if let Some(op) = func.ops.get(self.defs[v.index()] as usize) {
                op.for_each_use(|v| self.work.push(v));
            } else if let Some((block, phi)) = phis.get(self.phis[v.index()] as usize) {
                self.work.extend(ssa.args(*block, *phi));
            }
        }
        self.all = phis;
        let mut gone = ssa.retain_phis(|v| v != NO_VALUE && self.needed[v.index()]);
        for i in 0..func.order.len() {
            let block = func.order[i];
            let range = func.range(block);
            let mut kept = range.start;
            for at in range.clone() {
                let op = func.ops[at];
                if op.def().is_some_and(|v| self.defs[v.index()] == crate::num::small(at) && !self.needed[v.index()]) {
                    gone += 1;
                } else {
                    func.ops[kept] = op;
                    func.spans[kept] = func.spans[at];
                    kept += 1;
                }
            }
            func.blocks[block.index()].ops = crate::num::small(range.start)..crate::num::small(kept);
        }
        gone
    }

    fn may_go(&self, op: &Op, v: VReg) -> bool {
        match op {
            Op::Load { mem, .. } => mem.region != Region::Unknown || self.spare[v.index()],
            op => is_pure(op),
        }
    }
}
