//! Constructs SSA form.
//!
//! Problem: lowering writes the same virtual register again and again, so a property holds of a register only at one
//! place. In SSA form each value has one definition, which dominates all uses, and where paths meet with different
//! values a phi selects one by the edge that was taken. Approach: registers with one definition stay as they are.
//! Registers that are only read behind a definition in the same block are renamed. Every other register gets phis in
//! the iterated dominance frontier of its definitions (Cytron and others, "Efficiently Computing Static Single
//! Assignment Form and the Control Dependence Graph"). One walk of the dominator tree renames, and phis that no op
//! needs are removed at the end. Liveness is never computed.
//!
//! Phis lie beside the function, which is otherwise an ordinary one. [`Ssa::phis`] returns those of a block; each has
//! one argument per predecessor, in the order of [`Cfg::preds`]. Control flow does not change while a function is in
//! SSA form.
//!
//! Invariants: a branch never leads to the block that follows it; the entry has no predecessor; unreachable blocks are
//! not in the order. The cost is linear in the ops, the dominance frontiers and the arguments of phis. A function above
//! the limits of these is left as it is.

use bpf_lir::{BlockId, Cfg, Dominance, Func, Op, Span, VReg};

/// Stands for no value, no block or no index.
pub(crate) const NONE: u32 = u32::MAX;
pub(crate) const NO_VALUE: VReg = VReg(NONE);

/// The most arguments of phis of a function. A function of 100,000 instructions with jumps everywhere stays far below.
const MAX_ARGS: usize = 4 << 20;
/// The most entries of dominance frontiers, per block and in addition for any function. The frontier of a block in a
/// nest of loops contains the heads of all these loops, so a nest has as many entries as the square of its depth.
const MAX_FRONTIER_A_BLOCK: usize = 64;
const MAX_FRONTIER: usize = 1 << 16;

/// A phi: selects a value by the edge on which control has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phi {
    /// The value it defines; [`NO_VALUE`] once the phi is removed.
    pub(crate) dst: VReg,
    /// Index of its first argument in `Ssa::args`.
    args: u32,
}

/// The values of loads that may be removed if nothing reads them.
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

/// The phis of a function in SSA form, and scratch memory to construct it.
#[derive(Debug, Default)]
pub(crate) struct Ssa {
    pub(crate) cfg: Cfg,
    pub(crate) tree: Tree,
    /// `phis[phi_starts[b] .. phi_starts[b + 1]]` are the phis of block b.
    phi_starts: Vec<u32>,
    phis: Vec<Phi>,
    args: Vec<VReg>,
    /// By block and successor: the block's index among the successor's predecessors.
    edges: Vec<[u32; 2]>,
    /// By value: the value that replaces it, or itself.
    pub(crate) same: Same,
    /// Loads whose bytes another load reads too.
    pub(crate) spare: Spare,
    variables: Variables,
    /// By reverse postorder position: the head of the list of its dominance frontier, in `frontier`, and the position
    /// that was added to the list last.
    frontiers: Vec<[u32; 2]>,
    frontier: Vec<Link>,
    /// By block: the register that it last got a phi for, and the register among whose definitions it last was.
    marks: Vec<[u32; 2]>,
    work: Vec<BlockId>,
    /// The phis to be made: block and register.
    found: Vec<(BlockId, VReg)>,
    /// By phi: the register before renaming (`phi_of`), and whether an op or a needed phi reads it (`needed`).
    phi_of: Vec<VReg>,
    needed: Vec<bool>,
    reads: Vec<u32>,
    /// By register, while renaming: the value that it currently has.
    now: Vec<VReg>,
    /// For each definition in the blocks of `open`: its register, and the value that the register had before.
    before: Vec<(VReg, VReg)>,
    /// The blocks that dominate the current one, each with the length of `before` when it was entered.
    open: Vec<(BlockId, usize)>,
}

/// An element of a linked list.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// A block, or a reverse postorder position.
    to: u32,
    next: u32,
}

/// The registers that must be renamed.
#[derive(Debug, Default)]
struct Variables {
    /// By register: its number of definitions, counted up to two.
    defs: Vec<u8>,
    /// By register with several definitions: the block that was last seen to write it, and the head of the list of
    /// blocks that write it, in `writes`.
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

    /// Returns the blocks that write a register.
    fn writers(&self, v: VReg) -> impl Iterator<Item = BlockId> + '_ {
        list(&self.writes, self.written[v.index()][1]).map(BlockId)
    }
}

/// Returns the targets of a list's elements, beginning with element `head`.
fn list(all: &[Link], head: u32) -> impl Iterator<Item = u32> + '_ {
    core::iter::successors(all.get(head as usize), |link| all.get(link.next as usize)).map(|link| link.to)
}

impl Ssa {
    /// Brings `func` into SSA form; returns false, with `func` equivalent to before, if it is too large.
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

    /// Returns the phis of a block.
    pub(crate) fn phis(&self, block: BlockId) -> impl Iterator<Item = Phi> + '_ {
        let range = self.phi_starts[block.index()] as usize..self.phi_starts[block.index() + 1] as usize;
        self.phis[range].iter().copied().filter(|phi| phi.dst != NO_VALUE)
    }

    /// Returns a phi's arguments, by predecessor.
    pub(crate) fn args(&self, block: BlockId, phi: Phi) -> &[VReg] {
        &self.args[phi.args as usize..phi.args as usize + self.cfg.preds(block).len()]
    }

    /// Returns a phi's arguments, each with its index for [`Ssa::arg`] and [`Ssa::set_arg`] and the predecessor that it
    /// comes from.
    pub(crate) fn args_at(&self, block: BlockId, phi: Phi) -> impl Iterator<Item = (usize, VReg, BlockId)> + '_ {
        let args = phi.args as usize..;
        args.zip(self.args(block, phi)).zip(self.cfg.preds(block)).map(|((at, arg), pred)| (at, *arg, *pred))
    }

    /// Returns one argument of a phi.
    pub(crate) fn arg(&self, at: usize) -> VReg {
        self.args[at]
    }

    /// Replaces one argument of a phi.
    pub(crate) fn set_arg(&mut self, at: usize, v: VReg) {
        self.args[at] = v;
    }

    /// Returns the index of `from` among the predecessors of `to`.
    pub(crate) fn pred(&self, from: BlockId, to: BlockId) -> Option<usize> {
        let slot = self.cfg.succs(from).position(|succ| succ == to)?;
        Some(self.edges[from.index()][slot] as usize)
    }

    /// Returns all phis, with their blocks.
    pub(crate) fn all_phis(&self) -> impl Iterator<Item = (BlockId, Phi)> + '_ {
        self.cfg.rpo().iter().flat_map(|block| self.phis(*block).map(|phi| (*block, phi)))
    }

    /// Replaces arguments of phis by the values that they were found to equal.
    pub(crate) fn resolve_args(&mut self) {
        for arg in &mut self.args {
            if *arg != NO_VALUE {
                *arg = self.same.find(*arg);
            }
        }
    }

    /// Removes the phis whose value `keep` refuses; returns how many.
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

    /// Computes dominance frontiers; returns false if they have too many entries.
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
                // If this position was added to a frontier before, it was added to those above it in the tree, too.
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

    /// Finds where phis are needed; returns false if they have too many arguments.
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

    /// Makes the phis that were found, sorted by block.
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
            // Undoes the definitions of blocks that do not dominate this one.
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

    /// Removes the phis that only removed phis read.
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

/// Values that were found to equal others (union-find).
#[derive(Debug, Default)]
pub(crate) struct Same(Vec<VReg>);

impl Same {
    pub(crate) fn reset(&mut self, vregs: u32) {
        self.0.clear();
        self.0.extend((0..vregs).map(VReg));
    }

    /// Adds a new value, which equals only itself.
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

/// Prepares a function for SSA form and for passes over it: removes unreachable blocks and branches to the block that
/// follows, gives the entry a block of its own if an edge leads back to it, merges blocks that only follow each other,
/// such as the remains of a converted branch, and gives each loop with several entry edges, or an entry by a branch, a
/// block in front of it.
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

/// Adds blocks in front of heads of loops; returns whether it added one.
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
                // The block that falls into the head is in the loop, so control must not fall through the new block.
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

/// Merges blocks that only follow each other; returns whether there were any.
fn merge(func: &mut Func, cfg: &Cfg) -> bool {
    let mut kept = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        if kept > 0 && cfg.preds(block).len() == 1 {
            let before = func.order[kept - 1];
            let ends = func.ends(before);
            if ends.falls && ends.taken.is_none() {
                let (to, from) = (func.range(before), func.range(block));
                // Ops that were moved to the end of all ops are extended there, so each op is copied at most twice.
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

/// The dominator tree, with dominance as a comparison of numbers.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By block: the times when a walk of the tree enters and leaves it; [`NONE`] for unreachable blocks.
    times: Vec<[u32; 2]>,
    /// By block: its first child that was not visited yet, and its next sibling.
    links: Vec<[u32; 2]>,
    dominance: Dominance,
    /// The blocks in preorder: each is followed by the blocks that it dominates.
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

    /// Returns the immediate dominator of a block; the entry has none.
    pub(crate) fn parent(&self, block: BlockId, cfg: &Cfg) -> Option<BlockId> {
        let place = cfg.place(block);
        let parent = *self.dominance.idom().get(place as usize)?;
        (parent != place).then(|| cfg.rpo().get(parent as usize).copied()).flatten()
    }

    /// Whether block `a` dominates block `b`. A block dominates itself.
    pub(crate) fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let ([start, end], [at, _]) = (self.times[a.index()], self.times[b.index()]);
        start <= at && at < end
    }
}
