//! Into SSA form.
//!
//! Problem: lowering writes BPF registers again and again, so that nothing can be said of a register, only of a
//! register at a place. In SSA form each value has one definition, which comes before all uses on every way, and where
//! ways meet with different values a phi chooses by the way that was taken. Approach: values with one definition stay
//! as they are. Every other value that is live into a block with several predecessors gets a phi there; one walk in
//! reverse postorder renames; phis all of whose arguments are the same are then taken out again.
//!
//! Phis lie beside the function, which is otherwise an ordinary one: [`Ssa::phis`] by block, with one argument a
//! predecessor, in the order of [`Cfg::preds`]. Control flow does not change while a function is in this form.
//!
//! Invariants: a branch never leads to the block it would fall into; the entry has no predecessor; a block that control
//! cannot come to is not in the order. Linear in ops and in the values live into blocks, times their predecessors;
//! above a limit of those a function is left as it is.

use bpf_lir::{BlockId, Cfg, Func, Liveness, Op, VReg};

/// No value, no block, no place.
pub(crate) const NONE: u32 = u32::MAX;
pub(crate) const NO_VALUE: VReg = VReg(NONE);

/// The most arguments of phis that a function may need before they are simplified. A function of 100,000 instructions
/// with jumps everywhere stays far below it.
const MAX_ARGS: usize = 4 << 20;

/// How often phis are looked at again after others went. What would need more stays, and is right.
const MAX_ROUNDS: usize = 8;

/// The choice of a value where ways meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phi {
    /// The value it makes; [`NO_VALUE`] once it is gone.
    pub(crate) dst: VReg,
    /// Where its arguments begin.
    args: u32,
}

/// The values of loads that may go if nobody reads them.
#[derive(Debug, Default)]
pub(crate) struct Spare(pub(crate) Vec<VReg>);

impl Spare {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn insert(&mut self, v: VReg) {
        self.0.push(v);
    }
}

/// What SSA form adds to a function.
#[derive(Debug, Default)]
pub(crate) struct Ssa {
    pub(crate) cfg: Cfg,
    pub(crate) tree: Tree,
    pub(crate) liveness: Liveness,
    /// `phis[phi_starts[b] .. phi_starts[b + 1]]` are those of block b.
    phi_starts: Vec<u32>,
    phis: Vec<Phi>,
    args: Vec<VReg>,
    /// By value, while renaming: what it is now.
    now: Vec<VReg>,
    /// By value: whether it has several definitions.
    several: Vec<bool>,
    /// The values with several definitions that are live into block b: `live[live_starts[b] .. live_starts[b + 1]]`.
    live_starts: Vec<u32>,
    live: Vec<VReg>,
    /// What each of them is there.
    values: Vec<VReg>,
    /// By block and successor: which of the successor's predecessors it is.
    edges: Vec<[u32; 2]>,
    /// By value: the block that last saw it live.
    seen: Vec<u32>,
    /// By value: what it is replaced by, or itself.
    pub(crate) same: Same,
    /// Loads whose bytes another load finds.
    pub(crate) spare: Spare,
}

impl Ssa {
    /// Brings `func` into SSA form; false if it is too large, and then it is as good as before.
    pub(crate) fn construct(&mut self, func: &mut Func) -> bool {
        tidy(func, &mut self.cfg);
        self.liveness.build(func);
        self.spare.clear();
        self.find_several(func);
        if !self.find_live(func) {
            return false;
        }
        self.tree.build(func, &self.cfg);
        self.place_phis(func);
        self.rename(func);
        self.simplify(func);
        true
    }

    /// The phis of a block.
    pub(crate) fn phis(&self, block: BlockId) -> impl Iterator<Item = Phi> + '_ {
        let range = self.phi_starts[block.index()] as usize..self.phi_starts[block.index() + 1] as usize;
        self.phis[range].iter().copied().filter(|phi| phi.dst != NO_VALUE)
    }

    /// A phi's arguments, by predecessor.
    pub(crate) fn args(&self, block: BlockId, phi: Phi) -> &[VReg] {
        &self.args[phi.args as usize..phi.args as usize + self.cfg.preds(block).len()]
    }

    /// Which of the predecessors of `to` the block `from` is.
    pub(crate) fn pred(&self, from: BlockId, to: BlockId) -> Option<usize> {
        let slot = self.cfg.succs(from).position(|succ| succ == to)?;
        Some(self.edges[from.index()][slot] as usize)
    }

    /// All phis that are left, with their blocks.
    pub(crate) fn all_phis(&self) -> impl Iterator<Item = (BlockId, Phi)> + '_ {
        self.cfg.rpo().iter().flat_map(|block| self.phis(*block).map(|phi| (*block, phi)))
    }

    /// Replaces arguments of phis by what they were found to be.
    pub(crate) fn resolve_args(&mut self) {
        for arg in &mut self.args {
            if *arg != NO_VALUE {
                *arg = self.same.find(*arg);
            }
        }
    }

    /// Takes out the phis whose value `keep` does not want.
    pub(crate) fn retain_phis(&mut self, keep: impl Fn(VReg) -> bool) -> u32 {
        let mut gone = 0;
        for phi in &mut self.phis {
            if phi.dst != NO_VALUE && !keep(phi.dst) {
                phi.dst = NO_VALUE;
                gone += 1;
            }
        }
        gone
    }

    fn find_several(&mut self, func: &Func) {
        self.several.clear();
        self.several.resize(func.vregs as usize, false);
        // Borrowed as a set of those that are defined at all.
        self.seen.clear();
        self.seen.resize(func.vregs as usize, NONE);
        for v in func.entry_values().chain(func.all_ops().filter_map(Op::def)) {
            if core::mem::replace(&mut self.seen[v.index()], 0) == 0 {
                self.several[v.index()] = true;
            }
        }
    }

    /// Finds the values with several definitions that are live into each block.
    fn find_live(&mut self, func: &Func) -> bool {
        self.seen.fill(NONE);
        self.live_starts.clear();
        self.live_starts.resize(func.blocks.len() + 1, 0);
        self.live.clear();
        let mut args = 0;
        // By number, so that each block's list ends where the next one's begins.
        for block in (0..crate::small(func.blocks.len())).map(BlockId) {
            let start = self.live.len();
            self.live_starts[block.index()] = crate::small(start);
            if self.cfg.is_reachable(block) {
                // A value is in the list if `seen` says so; one that is written before it is read leaves a gap.
                for v in self.liveness.live_out(block) {
                    if self.several[v.index()] {
                        self.seen[v.index()] = block.0;
                        self.live.push(*v);
                    }
                }
                for op in func.block_ops(block).iter().rev() {
                    if let Some(v) = op.def()
                        && self.several[v.index()]
                    {
                        self.seen[v.index()] = NONE;
                    }
                    op.for_each_use(|v| {
                        if self.several[v.index()] && self.seen[v.index()] != block.0 {
                            self.seen[v.index()] = block.0;
                            self.live.push(v);
                        }
                    });
                }
                let mut kept = start;
                for i in start..self.live.len() {
                    let v = self.live[i];
                    // Each once.
                    if core::mem::replace(&mut self.seen[v.index()], NONE) == block.0 {
                        self.live[kept] = v;
                        kept += 1;
                    }
                }
                self.live.truncate(kept);
                args += (kept - start) * self.cfg.preds(block).len();
            }
            if args > MAX_ARGS || self.live.len() > MAX_ARGS {
                return false;
            }
        }
        self.live_starts[func.blocks.len()] = crate::small(self.live.len());
        true
    }

    fn live(&self, block: BlockId) -> core::ops::Range<usize> {
        self.live_starts[block.index()] as usize..self.live_starts[block.index() + 1] as usize
    }

    fn place_phis(&mut self, func: &mut Func) {
        self.phis.clear();
        self.args.clear();
        self.phi_starts.clear();
        self.values.clear();
        self.values.resize(self.live.len(), NO_VALUE);
        self.edges.clear();
        self.edges.resize(func.blocks.len(), [NONE; 2]);
        for block in (0..crate::small(func.blocks.len())).map(BlockId) {
            self.phi_starts.push(crate::small(self.phis.len()));
            let preds = self.cfg.preds(block).len();
            for (pred, i) in self.cfg.preds(block).iter().zip(0..) {
                let slot = usize::from(self.cfg.succs(*pred).next() != Some(block));
                self.edges[pred.index()][slot] = i;
            }
            if preds > 1 {
                for i in self.live(block) {
                    let dst = func.new_vreg();
                    self.values[i] = dst;
                    self.phis.push(Phi { dst, args: crate::small(self.args.len()) });
                    self.args.resize(self.args.len() + preds, NO_VALUE);
                }
            }
        }
        self.phi_starts.push(crate::small(self.phis.len()));
    }

    fn rename(&mut self, func: &mut Func) {
        let entry = func.order[0];
        self.now.clear();
        self.now.extend((0..crate::small(self.several.len())).map(VReg));
        for i in self.live(entry) {
            self.values[i] = self.live[i];
        }
        for at in 0..self.cfg.rpo().len() {
            let block = self.cfg.rpo()[at];
            for i in self.live(block) {
                self.now[self.live[i].index()] = self.values[i];
            }
            for at in func.range(block) {
                func.ops[at].for_each_use_mut(|v| {
                    if self.several[v.index()] {
                        *v = self.now[v.index()];
                    }
                });
                if let Some(v) = func.ops[at].def()
                    && self.several[v.index()]
                {
                    let new = func.new_vreg();
                    self.now[v.index()] = new;
                    if let Some(dst) = func.ops[at].def_mut() {
                        *dst = new;
                    }
                }
            }
            for (slot, succ) in self.cfg.succs(block).enumerate() {
                let preds = self.cfg.preds(succ).len();
                for (i, k) in self.live(succ).zip(0..) {
                    let value = self.now[self.live[i].index()];
                    if preds == 1 {
                        self.values[i] = value;
                    } else {
                        let phi = self.phis[self.phi_starts[succ.index()] as usize + k];
                        self.args[phi.args as usize + self.edges[block.index()][slot] as usize] = value;
                    }
                }
            }
        }
    }

    /// Takes out phis that choose between one value and themselves.
    fn simplify(&mut self, func: &mut Func) {
        self.same.reset(func.vregs);
        let (mut changed, mut round) = (true, 0);
        while changed && round < MAX_ROUNDS {
            (changed, round) = (false, round + 1);
            for at in 0..self.cfg.rpo().len() {
                let block = self.cfg.rpo()[at];
                let preds = self.cfg.preds(block).len();
                for i in self.phi_starts[block.index()]..self.phi_starts[block.index() + 1] {
                    let Phi { dst, args } = self.phis[i as usize];
                    if dst == NO_VALUE {
                        continue;
                    }
                    let mut only = dst;
                    let mut one = true;
                    for arg in &self.args[args as usize..args as usize + preds] {
                        let arg = self.same.find(*arg);
                        one &= arg == dst || only == dst || arg == only;
                        if arg != dst {
                            only = arg;
                        }
                    }
                    if one && only != dst {
                        self.same.set(dst, only);
                        self.phis[i as usize].dst = NO_VALUE;
                        changed = true;
                    }
                }
            }
        }
        for op in &mut func.ops {
            op.for_each_use_mut(|v| *v = self.same.find(*v));
        }
        self.resolve_args();
    }
}

/// Values that were found to be others.
#[derive(Debug, Default)]
pub(crate) struct Same(Vec<VReg>);

impl Same {
    pub(crate) fn reset(&mut self, vregs: u32) {
        self.0.clear();
        self.0.extend((0..vregs).map(VReg));
    }

    /// A new value, itself.
    pub(crate) fn push(&mut self) {
        self.0.push(VReg(crate::small(self.0.len())));
    }

    pub(crate) fn set(&mut self, v: VReg, is: VReg) {
        self.0[v.index()] = is;
    }

    pub(crate) fn find(&mut self, mut v: VReg) -> VReg {
        while self.0[v.index()] != v {
            let next = self.0[v.index()];
            self.0[v.index()] = self.0[next.index()];
            v = next;
        }
        v
    }
}

/// Takes out what control cannot come to and branches that lead where they would fall, and gives the entry a block of
/// its own if something leads back to it.
pub(crate) fn tidy(func: &mut Func, cfg: &mut Cfg) {
    cfg.build(func);
    if cfg.rpo().len() < func.order.len() {
        func.order.retain(|block| cfg.is_reachable(*block));
    }
    for i in 1..func.order.len() {
        let (block, next) = (func.order[i - 1], func.order[i]);
        if let Some(Op::Branch { target, .. }) = func.block_ops(block).last()
            && *target == next
        {
            func.blocks[block.index()].ops.end -= 1;
        }
    }
    if !cfg.preds(func.order[0]).is_empty() {
        let entry = func.new_block([]);
        func.order.insert(0, entry);
    }
    cfg.build(func);
}

/// The dominator tree, to be asked at once.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By block: when a walk of the tree enters and leaves it; [`NONE`] of blocks that control cannot come to.
    times: Vec<[u32; 2]>,
    /// By block: its first child and its next sibling.
    links: Vec<[u32; 2]>,
    idom: Vec<u32>,
    stack: Vec<u32>,
}

impl Tree {
    fn build(&mut self, func: &Func, cfg: &Cfg) {
        cfg.dominate(&mut self.idom);
        self.times.clear();
        self.times.resize(func.blocks.len(), [NONE; 2]);
        self.links.clear();
        self.links.resize(func.blocks.len(), [NONE; 2]);
        // The entry dominates itself.
        for (block, idom) in cfg.rpo().iter().zip(&self.idom).skip(1) {
            if let Some(parent) = cfg.rpo().get(*idom as usize) {
                let first = core::mem::replace(&mut self.links[parent.index()][0], block.0);
                self.links[block.index()][1] = first;
            }
        }
        let mut clock = 0;
        self.stack.clear();
        self.stack.push(func.order[0].0);
        while let Some(&block) = self.stack.last() {
            let [child, _] = self.links[block as usize];
            if self.times[block as usize][0] == NONE {
                self.times[block as usize][0] = clock;
                clock += 1;
            }
            if child == NONE {
                self.times[block as usize][1] = clock;
                self.stack.pop();
            } else {
                self.links[block as usize][0] = self.links[child as usize][1];
                self.stack.push(child);
            }
        }
    }

    /// Whether every way to `b` leads through `a`; a block dominates itself.
    pub(crate) fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let ([start, end], [at, _]) = (self.times[a.index()], self.times[b.index()]);
        start <= at && at < end
    }
}
