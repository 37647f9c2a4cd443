//! Into SSA form.
//!
//! Problem: lowering writes BPF registers again and again, so that nothing can be said of a register, only of a
//! register at a place. In SSA form each value has one definition, which comes before all uses on every way, and where
//! ways meet with different values a phi chooses by the way that was taken. Approach: values with one definition stay
//! as they are, and so do, but for their names, those that are only read behind a definition in the same block. Every
//! other value gets a phi where ways from different definitions of it first meet, in the iterated dominance frontiers
//! of its definitions (Cytron and others, "Efficiently Computing Static Single Assignment Form and the Control
//! Dependence Graph"); one walk of the dominator tree renames; phis that no op reads in the end are taken out again.
//! Nobody asks what is live.
//!
//! Phis lie beside the function, which is otherwise an ordinary one: [`Ssa::phis`] by block, with one argument a
//! predecessor, in the order of [`Cfg::preds`]. Control flow does not change while a function is in this form.
//!
//! Invariants: a branch never leads to the block it would fall into; the entry has no predecessor; a block that control
//! cannot come to is not in the order. Linear in ops, in dominance frontiers and in the arguments of phis; above a
//! limit of those a function is left as it is.

use bpf_lir::{BlockId, Cfg, Dominance, Func, Op, Span, VReg};

/// No value, no block, no place.
pub(crate) const NONE: u32 = u32::MAX;
pub(crate) const NO_VALUE: VReg = VReg(NONE);

/// The most arguments of phis that a function may have. A function of 100,000 instructions with jumps everywhere stays
/// far below it.
const MAX_ARGS: usize = 4 << 20;
/// The most blocks in dominance frontiers, by how many blocks a function has, and for any function. A block in a nest
/// of loops has each of their heads in its frontier, so that a deep nest has as many as the square of its depth.
const MAX_FRONTIER_A_BLOCK: usize = 64;
const MAX_FRONTIER: usize = 1 << 16;

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
    /// `phis[phi_starts[b] .. phi_starts[b + 1]]` are those of block b.
    phi_starts: Vec<u32>,
    phis: Vec<Phi>,
    args: Vec<VReg>,
    /// By block and successor: which of the successor's predecessors it is.
    edges: Vec<[u32; 2]>,
    /// By value: what it is replaced by, or itself.
    pub(crate) same: Same,
    /// Loads whose bytes another load finds.
    pub(crate) spare: Spare,
    variables: Variables,
    /// By place in the reverse postorder: the head of the list of its dominance frontier, in `frontier`, and the place
    /// that was put there last.
    frontiers: Vec<[u32; 2]>,
    frontier: Vec<Link>,
    /// By block: the value that it last got a phi for, and the one whose definitions it was last found among.
    marks: Vec<[u32; 2]>,
    work: Vec<BlockId>,
    /// Where phis are to be, and of which values.
    found: Vec<(BlockId, VReg)>,
    /// By phi: the value that it was before renaming, and whether an op or such a phi reads it.
    phi_of: Vec<VReg>,
    needed: Vec<bool>,
    reads: Vec<u32>,
    /// By value, while renaming: what it is now, ...
    now: Vec<VReg>,
    /// For each definition since the entry: its register and the value that this had before; ...
    before: Vec<(VReg, VReg)>,
    /// ... and the blocks that dominate the current one, each with the length of `before` when it was entered.
    open: Vec<(BlockId, usize)>,
}

/// An element of a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// A block, or its place.
    to: u32,
    next: u32,
}

/// The values that need other names.
#[derive(Debug, Default)]
struct Variables {
    /// By value: how many definitions there are, at most two.
    defs: Vec<u8>,
    /// By value with several definitions: the block that was last seen to write it, and the head of the list of all
    /// that do, in `writes`.
    written: Vec<[u32; 2]>,
    writes: Vec<Link>,
    /// Registers with several definitions that some block reads before it writes them: candidates for phis.
    global: Vec<VReg>,
    is_global: Vec<bool>,
}

impl Variables {
    fn find(&mut self, func: &Func) {
        let values = func.vregs as usize;
        self.defs.clear();
        self.defs.resize(values, 0);
        for v in func.entry_values().chain(func.all_ops().filter_map(Op::def)) {
            let defs = &mut self.defs[v.index()];
            *defs = (*defs + 1).min(2);
        }
        self.written.clear();
        self.written.resize(values, [NONE; 2]);
        self.is_global.clear();
        self.is_global.resize(values, false);
        self.writes.clear();
        self.global.clear();
        func.entry_values().for_each(|v| self.write(v, func.order[0]));
        for (block, ops) in func.in_order() {
            for op in ops {
                op.for_each_use(|v| {
                    if self.several(v)
                        && self.written[v.index()][0] != block.0
                        && !core::mem::replace(&mut self.is_global[v.index()], true)
                    {
                        self.global.push(v);
                    }
                });
                op.def().into_iter().for_each(|v| self.write(v, block));
            }
        }
    }

    fn several(&self, v: VReg) -> bool {
        self.defs[v.index()] > 1
    }

    fn write(&mut self, v: VReg, block: BlockId) {
        let [last, head] = &mut self.written[v.index()];
        if self.defs[v.index()] > 1 && core::mem::replace(last, block.0) != block.0 {
            let next = core::mem::replace(head, crate::num::small(self.writes.len()));
            self.writes.push(Link { to: block.0, next });
        }
    }

    /// The blocks that write a value.
    fn writers(&self, v: VReg) -> impl Iterator<Item = BlockId> + '_ {
        list(&self.writes, self.written[v.index()][1]).map(BlockId)
    }
}

/// What the elements of a list lead to, from this one on.
fn list(all: &[Link], head: u32) -> impl Iterator<Item = u32> + '_ {
    core::iter::successors(all.get(head as usize), |link| all.get(link.next as usize)).map(|link| link.to)
}

impl Ssa {
    /// Brings `func` into SSA form; false if it is too large, and then it is as good as before.
    pub(crate) fn construct(&mut self, func: &mut Func) -> bool {
        tidy(func, &mut self.cfg);
        self.spare.clear();
        self.variables.find(func);
        self.tree.build(func, &self.cfg);
        self.number_edges(func);
        if !self.find_frontiers() || !self.find_phis(func) {
            return false;
        }
        self.place_phis(func);
        self.rename(func);
        self.prune();
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

    /// A phi's arguments, each with its place for [`Ssa::arg`] and [`Ssa::set_arg`], and the predecessor that it comes
    /// from.
    pub(crate) fn args_at(&self, block: BlockId, phi: Phi) -> impl Iterator<Item = (usize, VReg, BlockId)> + '_ {
        let args = phi.args as usize..;
        args.zip(self.args(block, phi)).zip(self.cfg.preds(block)).map(|((at, arg), pred)| (at, *arg, *pred))
    }

    /// One argument of a phi.
    pub(crate) fn arg(&self, at: usize) -> VReg {
        self.args[at]
    }

    /// Replaces one argument of a phi.
    pub(crate) fn set_arg(&mut self, at: usize, v: VReg) {
        self.args[at] = v;
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

    fn number_edges(&mut self, func: &Func) {
        self.edges.clear();
        self.edges.resize(func.blocks.len(), [NONE; 2]);
        for block in self.cfg.rpo() {
            for (pred, i) in self.cfg.preds(*block).iter().zip(0..) {
                let slot = usize::from(self.cfg.succs(*pred).next() != Some(*block));
                self.edges[pred.index()][slot] = i;
            }
        }
    }

    /// Finds the blocks where each block's dominance ends; false if those are too many.
    fn find_frontiers(&mut self) -> bool {
        self.frontiers.clear();
        self.frontiers.resize(self.cfg.rpo().len(), [NONE; 2]);
        self.frontier.clear();
        let most = self.cfg.rpo().len().saturating_mul(MAX_FRONTIER_A_BLOCK).saturating_add(MAX_FRONTIER);
        for (block, at) in self.cfg.rpo().iter().zip(0..) {
            let preds = self.cfg.preds(*block);
            if preds.len() < 2 {
                continue;
            }
            for pred in preds {
                let mut up = self.cfg.place(*pred);
                // Where this block was put before, it was put into all above, too.
                while up != self.tree.dominance.idom()[at as usize] && self.frontiers[up as usize][1] != at {
                    let next = self.frontiers[up as usize][0];
                    self.frontiers[up as usize] = [crate::num::small(self.frontier.len()), at];
                    self.frontier.push(Link { to: at, next });
                    up = self.tree.dominance.idom()[up as usize];
                }
            }
            if self.frontier.len() > most {
                return false;
            }
        }
        true
    }

    /// Finds where phis are to be; false if they have too many arguments.
    fn find_phis(&mut self, func: &Func) -> bool {
        self.marks.clear();
        self.marks.resize(func.blocks.len(), [NONE; 2]);
        self.found.clear();
        let mut args = 0;
        for v in &self.variables.global {
            self.work.clear();
            for block in self.variables.writers(*v) {
                self.marks[block.index()][1] = v.0;
                self.work.push(block);
            }
            while let Some(block) = self.work.pop() {
                let [head, _] = self.frontiers[self.cfg.place(block) as usize];
                for place in list(&self.frontier, head) {
                    let meet = self.cfg.rpo()[place as usize];
                    let [phi, written] = &mut self.marks[meet.index()];
                    if core::mem::replace(phi, v.0) == v.0 {
                        continue;
                    }
                    self.found.push((meet, *v));
                    args += self.cfg.preds(meet).len();
                    // A phi is a definition.
                    if core::mem::replace(written, v.0) != v.0 {
                        self.work.push(meet);
                    }
                }
            }
            if args > MAX_ARGS {
                return false;
            }
        }
        true
    }

    /// Makes the phis that were found, by block.
    fn place_phis(&mut self, func: &mut Func) {
        let first = func.vregs;
        let count = self.found.len();
        func.vregs += crate::num::small(count);
        self.phi_starts.clear();
        self.phi_starts.resize(func.blocks.len() + 1, 0);
        for (block, _) in &self.found {
            self.phi_starts[block.index()] += 1;
        }
        let mut sum = 0;
        for start in &mut self.phi_starts {
            sum += *start;
            *start = sum;
        }
        self.phi_of.clear();
        self.phi_of.resize(count, NO_VALUE);
        self.phis.clear();
        self.phis.resize(count, Phi { dst: NO_VALUE, args: 0 });
        for (block, v) in self.found.iter().rev() {
            let start = &mut self.phi_starts[block.index()];
            *start -= 1;
            self.phi_of[*start as usize] = *v;
        }
        let mut args = 0;
        for block in (0..crate::num::small(func.blocks.len())).map(BlockId) {
            for i in self.phis_at(block) {
                self.phis[i] = Phi { dst: VReg(first + crate::num::small(i)), args };
                args += crate::num::small(self.cfg.preds(block).len());
            }
        }
        self.args.clear();
        self.args.resize(args as usize, NO_VALUE);
        self.needed.clear();
        self.needed.resize(count, false);
        self.reads.clear();
    }

    fn phis_at(&self, block: BlockId) -> core::ops::Range<usize> {
        self.phi_starts[block.index()] as usize..self.phi_starts[block.index() + 1] as usize
    }

    fn rename(&mut self, func: &mut Func) {
        let values = crate::num::small(self.variables.defs.len());
        self.now.clear();
        self.now.extend((0..values).map(VReg));
        self.before.clear();
        self.open.clear();
        for at in 0..self.tree.order.len() {
            let block = self.tree.order[at];
            // What other blocks have defined that do not dominate this one is not seen here.
            while let Some(&(above, defined)) = self.open.last() {
                if self.tree.dominates(above, block) {
                    break;
                }
                while self.before.len() > defined {
                    let Some((v, was)) = self.before.pop() else { break };
                    self.now[v.index()] = was;
                }
                self.open.pop();
            }
            self.open.push((block, self.before.len()));
            for i in self.phis_at(block) {
                self.rename_to(self.phi_of[i], self.phis[i].dst);
            }
            for at in func.range(block) {
                let Variables { defs, .. } = &self.variables;
                func.ops[at].for_each_use_mut(|v| {
                    if defs[v.index()] > 1 {
                        *v = self.now[v.index()];
                        let phi = v.0.wrapping_sub(values);
                        if let Some(needed) = self.needed.get_mut(phi as usize)
                            && !core::mem::replace(needed, true)
                        {
                            self.reads.push(phi);
                        }
                    }
                });
                if let Some(v) = func.ops[at].def()
                    && self.variables.several(v)
                {
                    let new = func.new_vreg();
                    self.rename_to(v, new);
                    if let Some(dst) = func.ops[at].def_mut() {
                        *dst = new;
                    }
                }
            }
            for (slot, succ) in self.cfg.succs(block).enumerate() {
                for i in self.phis_at(succ) {
                    let arg = self.phis[i].args + self.edges[block.index()][slot];
                    self.args[arg as usize] = self.now[self.phi_of[i].index()];
                }
            }
        }
    }

    fn rename_to(&mut self, v: VReg, new: VReg) {
        let was = core::mem::replace(&mut self.now[v.index()], new);
        self.before.push((v, was));
    }

    /// Takes out the phis that nothing reads but such phis.
    fn prune(&mut self) {
        let first = crate::num::small(self.variables.defs.len());
        while let Some(phi) = self.reads.pop() {
            let args = self.phis[phi as usize].args as usize;
            let end = self.phis.get(phi as usize + 1);
            for arg in &self.args[args..end.map_or(self.args.len(), |next| next.args as usize)] {
                let phi = arg.0.wrapping_sub(first);
                if let Some(needed) = self.needed.get_mut(phi as usize)
                    && !core::mem::replace(needed, true)
                {
                    self.reads.push(phi);
                }
            }
        }
        for (phi, needed) in self.phis.iter_mut().zip(&self.needed) {
            if !needed {
                phi.dst = NO_VALUE;
            }
        }
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
        self.0.push(VReg(crate::num::small(self.0.len())));
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

/// Takes out what control cannot come to and branches that lead where they would fall, gives the entry a block of its
/// own if something leads back to it, and makes blocks that only follow each other one: what became of a branch that
/// was converted is no reason to look at what is around it apart. Each loop that there are several ways into, or a
/// branch, gets a block before it.
pub(crate) fn tidy(func: &mut Func, cfg: &mut Cfg) {
    cfg.build(func);
    let mut changed = cfg.rpo().len() < func.order.len();
    if changed {
        func.order.retain(|block| cfg.is_reachable(*block));
    }
    for i in 1..func.order.len() {
        let (block, next) = (func.order[i - 1], func.order[i]);
        if let Some(Op::Branch { target, .. }) = func.block_ops(block).last()
            && *target == next
        {
            func.blocks[block.index()].ops.end -= 1;
            changed = true;
        }
    }
    if !cfg.preds(func.order[0]).is_empty() {
        let entry = func.new_block([]);
        func.order.insert(0, entry);
        changed = true;
    }
    if changed {
        cfg.build(func);
    }
    if merge(func, cfg) {
        cfg.build(func);
    }
    if lead_in(func, cfg) {
        cfg.build(func);
    }
}

/// Gives the heads of loops a block before them; says whether there are some that had none.
fn lead_in(func: &mut Func, cfg: &Cfg) -> bool {
    let is_in = |pred: &&BlockId, head: BlockId| !cfg.leads_back(**pred, head);
    let wants = |head: BlockId| {
        let preds = cfg.preds(head);
        let mut ways_in = preds.iter().filter(|pred| is_in(pred, head));
        let first = ways_in.next();
        let alone = first.is_some_and(|pred| cfg.succs(*pred).count() == 1) && ways_in.next().is_none();
        first.is_some() && !alone && preds.iter().any(|pred| cfg.leads_back(*pred, head))
    };
    if !cfg.rpo().iter().any(|block| wants(*block)) {
        return false;
    }
    let order = core::mem::take(&mut func.order);
    let mut outside = Vec::new();
    func.order.reserve(order.len() + 1);
    for (i, head) in order.iter().copied().enumerate() {
        if wants(head) {
            let before = func.new_block([]);
            for pred in cfg.preds(head).iter().filter(|pred| is_in(pred, head)) {
                let last = func.range(*pred).last();
                if let Some(Op::Jump { target } | Op::Branch { target, .. }) = last.map(|last| &mut func.ops[last])
                    && *target == head
                {
                    *target = before;
                }
            }
            let round = i.checked_sub(1).map(|i| order[i]).filter(|last| func.ends(*last).falls);
            if round.is_some_and(|last| cfg.leads_back(last, head)) {
                // It is the way round that falls into the head.
                func.set_ops(before, [(Op::Jump { target: head }, Span::default())]);
                outside.push(before);
            } else {
                func.order.push(before);
            }
        }
        func.order.push(head);
    }
    func.order.append(&mut outside);
    true
}

/// Makes one of blocks that only follow each other; says whether there were some.
fn merge(func: &mut Func, cfg: &Cfg) -> bool {
    let mut kept = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        if kept > 0 && cfg.preds(block).len() == 1 {
            let before = func.order[kept - 1];
            let ends = func.ends(before);
            if ends.falls && ends.taken.is_none() {
                let (to, from) = (func.range(before), func.range(block));
                // What was brought to the end of all ops grows there: each op is copied twice at most.
                if to.end != from.start {
                    let start = if to.end == func.ops.len() { to.start } else { func.ops.len() };
                    for i in if start == to.start { 0..0 } else { to }.chain(from) {
                        let (op, span) = (func.ops[i], func.spans[i]);
                        func.ops.push(op);
                        func.spans.push(span);
                    }
                    func.blocks[before.index()].ops = crate::num::small(start)..crate::num::small(func.ops.len());
                } else {
                    func.blocks[before.index()].ops.end = crate::num::small(from.end);
                }
                func.set_ops(block, []);
                continue;
            }
        }
        func.order[kept] = block;
        kept += 1;
    }
    let changed = kept < func.order.len();
    func.order.truncate(kept);
    changed
}

/// The dominator tree, to be asked at once.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By block: when a walk of the tree enters and leaves it; [`NONE`] of blocks that control cannot come to.
    times: Vec<[u32; 2]>,
    /// By block: its first child and its next sibling.
    links: Vec<[u32; 2]>,
    dominance: Dominance,
    /// The blocks, each before those that it dominates, which follow it.
    order: Vec<BlockId>,
    stack: Vec<u32>,
}

impl Tree {
    fn build(&mut self, func: &Func, cfg: &Cfg) {
        self.dominance.build(cfg);
        self.times.clear();
        self.times.resize(func.blocks.len(), [NONE; 2]);
        self.links.clear();
        self.links.resize(func.blocks.len(), [NONE; 2]);
        // The entry dominates itself.
        for (block, idom) in cfg.rpo().iter().zip(self.dominance.idom()).skip(1) {
            if let Some(parent) = cfg.rpo().get(*idom as usize) {
                let first = core::mem::replace(&mut self.links[parent.index()][0], block.0);
                self.links[block.index()][1] = first;
            }
        }
        let mut clock = 0;
        self.order.clear();
        self.stack.clear();
        self.stack.push(func.order[0].0);
        while let Some(&block) = self.stack.last() {
            let [child, _] = self.links[block as usize];
            if self.times[block as usize][0] == NONE {
                self.times[block as usize][0] = clock;
                self.order.push(BlockId(block));
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

    /// The last block that all ways to this one lead through before it; none of the entry.
    pub(crate) fn parent(&self, block: BlockId, cfg: &Cfg) -> Option<BlockId> {
        let place = cfg.place(block);
        let parent = *self.dominance.idom().get(place as usize)?;
        (parent != place).then(|| cfg.rpo().get(parent as usize).copied()).flatten()
    }

    /// Whether every way to `b` leads through `a`; a block dominates itself.
    pub(crate) fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let ([start, end], [at, _]) = (self.times[a.index()], self.times[b.index()]);
        start <= at && at < end
    }
}
