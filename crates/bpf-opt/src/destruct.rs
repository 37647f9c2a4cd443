//! Out of SSA form.
//!
//! Problem: a phi is no instruction. Its arguments must be copied into its value on the ways there, and a copy in a
//! loop is what costs. Approach: a phi and its arguments become one value wherever no two of them live at the same time
//! (loop-carried values nearly always). In SSA form two values live at the same time if and only if one lives where the
//! other is defined, and the definition of one dominates that of the other (Budimlić and others, "Fast Copy Coalescing
//! and Live-Range Identification"), so no graph is built. What is left is copied at once, on the edge: at the end of
//! the predecessor where that has one way on or where the other way does not care, in a block of its own elsewhere.
//!
//! Invariants: values of one class never live at the same time; the copies of an edge happen as if at once. Classes
//! that have grown large take no more members, so the cost is linear.

use crate::ssa::{NO_VALUE, NONE, Ssa};
use bpf_isa::Width;
use bpf_lir::{Block, BlockId, Func, Op, Span, VReg, Val};

/// How many pairs of values are compared before two classes are left apart.
const MAX_PAIRS: u32 = 256;

/// Where a value is defined: its block, and its place there, 0 before the first op.
type Place = (BlockId, u32);

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Destruct {
    /// By value: where it is defined.
    places: Vec<Place>,
    /// By value: whether a phi names it.
    named: Vec<bool>,
    /// Of the values that phis name: the blocks they live out of, and their last uses in blocks, both sorted.
    live_out: Vec<(BlockId, VReg)>,
    uses: Vec<(BlockId, VReg, u32)>,
    /// By value: the class's first value, the next one of the class, and of the first, how many there are.
    first: Vec<VReg>,
    next: Vec<VReg>,
    count: Vec<u32>,
    /// By value: the constant it is, if that is all that is known of it.
    constant: Vec<Option<i64>>,
    work: Vec<(BlockId, VReg)>,
    /// By block: the value that was last seen to live into it, and out of it.
    into: Vec<u32>,
    out: Vec<u32>,
    stack: Vec<BlockId>,
    /// The copies on the two ways out of a block.
    taken_copies: Vec<(VReg, Val)>,
    next_copies: Vec<(VReg, Val)>,
    blocks: Vec<(BlockId, core::ops::Range<u32>)>,
    ops: Vec<Op>,
    spans: Vec<Span>,
    number: Vec<u32>,
}

impl Destruct {
    /// Brings `func` out of SSA form; values are numbered anew.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa) {
        self.find_places(func, ssa);
        self.find_lives(func, ssa);
        self.unite(func, ssa);
        self.number(func);
        self.rewrite(func, ssa);
    }

    fn find_places(&mut self, func: &Func, ssa: &Ssa) {
        let values = func.vregs as usize;
        let entry = func.order[0];
        self.places.clear();
        self.places.resize(values, (entry, 0));
        self.constant.clear();
        self.constant.resize(values, None);
        for (block, ops) in func.in_order() {
            for (op, at) in ops.iter().zip(1..) {
                if let Some(v) = op.def() {
                    self.places[v.index()] = (block, at);
                }
                if let Op::Mov { width: Width::W64, dst, src: Val::Imm(imm) } = *op {
                    self.constant[dst.index()] = Some(imm);
                }
            }
        }
        self.named.clear();
        self.named.resize(values, false);
        for (block, phi) in ssa.all_phis() {
            self.places[phi.dst.index()] = (block, 0);
            self.named[phi.dst.index()] = true;
            for arg in ssa.args(block, phi) {
                self.named[arg.index()] = true;
            }
        }
    }

    /// Follows the values that phis name from where they are used to where they are defined.
    fn find_lives(&mut self, func: &Func, ssa: &Ssa) {
        self.live_out.clear();
        self.uses.clear();
        self.work.clear();
        for (block, ops) in func.in_order() {
            for (op, at) in ops.iter().zip(1..) {
                op.for_each_use(|v| {
                    if self.named[v.index()] {
                        self.uses.push((block, v, at));
                    }
                });
            }
        }
        self.uses.sort_unstable();
        // Of each block and value the last one.
        let mut kept = 0;
        for i in 0..self.uses.len() {
            let (block, v, _) = self.uses[i];
            if self.uses.get(i + 1).is_none_or(|next| (next.0, next.1) != (block, v)) {
                self.uses[kept] = self.uses[i];
                kept += 1;
            }
        }
        self.uses.truncate(kept);
        for (block, phi) in ssa.all_phis() {
            for (arg, pred) in ssa.args(block, phi).iter().zip(ssa.cfg.preds(block)) {
                self.live_out.push((*pred, *arg));
            }
        }
        // One value at a time, so that a mark by block says whether it was there.
        self.work.extend(self.live_out.iter().copied());
        self.work.extend(self.uses.iter().map(|(block, v, _)| (*block, *v)));
        self.work.sort_unstable_by_key(|(block, v)| (*v, *block));
        let work = core::mem::take(&mut self.work);
        let (mut into, mut out) = (core::mem::take(&mut self.into), core::mem::take(&mut self.out));
        let mut stack = core::mem::take(&mut self.stack);
        for seen in [&mut into, &mut out] {
            seen.clear();
            seen.resize(func.blocks.len(), NONE);
        }
        for (block, v) in &work {
            stack.push(*block);
            while let Some(block) = stack.pop() {
                if self.places[v.index()].0 == block || core::mem::replace(&mut into[block.index()], v.0) == v.0 {
                    continue;
                }
                for pred in ssa.cfg.preds(block) {
                    if core::mem::replace(&mut out[pred.index()], v.0) != v.0 {
                        self.live_out.push((*pred, *v));
                        stack.push(*pred);
                    }
                }
            }
        }
        self.work = work;
        (self.into, self.out, self.stack) = (into, out, stack);
        self.live_out.sort_unstable();
        self.live_out.dedup();
    }

    fn lives_out(&self, block: BlockId, v: VReg) -> bool {
        self.live_out.binary_search(&(block, v)).is_ok()
    }

    /// Whether `v` is read in `block` behind the place `after`.
    fn read_after(&self, block: BlockId, v: VReg, after: u32) -> bool {
        let at = self.uses.partition_point(|(b, u, _)| (*b, *u) < (block, v));
        self.uses.get(at).is_some_and(|(b, u, last)| (*b, *u) == (block, v) && *last > after)
    }

    /// Whether `v` lives where `block` begins, its phis aside.
    fn lives_into(&self, block: BlockId, v: VReg) -> bool {
        self.places[v.index()].0 != block && (self.lives_out(block, v) || self.read_after(block, v, 0))
    }

    /// Whether `a` lives on where `b` is defined.
    fn lives_at(&self, a: VReg, b: VReg) -> bool {
        let (block, at) = self.places[b.index()];
        self.lives_out(block, a) || self.read_after(block, a, at)
    }

    fn interfere(&self, a: VReg, b: VReg, ssa: &Ssa) -> bool {
        let ((in_a, at_a), (in_b, at_b)) = (self.places[a.index()], self.places[b.index()]);
        if in_a == in_b {
            return match at_a.cmp(&at_b) {
                core::cmp::Ordering::Equal => true,
                core::cmp::Ordering::Less => self.lives_at(a, b),
                core::cmp::Ordering::Greater => self.lives_at(b, a),
            };
        }
        (ssa.tree.dominates(in_a, in_b) && self.lives_at(a, b))
            || (ssa.tree.dominates(in_b, in_a) && self.lives_at(b, a))
    }

    fn class(&self, v: VReg) -> impl Iterator<Item = VReg> {
        core::iter::successors(Some(self.first[v.index()]), |v| {
            Some(self.next[v.index()]).filter(|next| *next != NO_VALUE)
        })
    }

    fn unite(&mut self, func: &Func, ssa: &Ssa) {
        let values = func.vregs;
        self.first.clear();
        self.first.extend((0..values).map(VReg));
        self.next.clear();
        self.next.resize(values as usize, NO_VALUE);
        self.count.clear();
        self.count.resize(values as usize, 1);
        // Inner loops first: they come later in this order; and in a loop's head the way round before the way in.
        for block in ssa.cfg.rpo().iter().rev() {
            for phi in ssa.phis(*block) {
                let preds = ssa.cfg.preds(*block);
                for back in [true, false] {
                    for (arg, pred) in ssa.args(*block, phi).iter().zip(preds) {
                        if ssa.tree.dominates(*block, *pred) == back {
                            self.try_unite(phi.dst, *arg, ssa);
                        }
                    }
                }
            }
        }
    }

    fn try_unite(&mut self, a: VReg, b: VReg, ssa: &Ssa) {
        let (a, b) = (self.first[a.index()], self.first[b.index()]);
        if a == b || self.count[a.index()] * self.count[b.index()] > MAX_PAIRS {
            return;
        }
        if self.class(a).any(|x| self.class(b).any(|y| self.interfere(x, y, ssa))) {
            return;
        }
        let mut last = b;
        for v in core::iter::successors(Some(b), |v| Some(self.next[v.index()]).filter(|next| *next != NO_VALUE)) {
            self.first[v.index()] = a;
            last = v;
        }
        self.next[last.index()] = core::mem::replace(&mut self.next[a.index()], b);
        self.count[a.index()] += self.count[b.index()];
    }

    /// Numbers the classes in the order in which they come.
    fn number(&mut self, func: &mut Func) {
        self.number.clear();
        self.number.resize(func.vregs as usize, NONE);
        let mut count = 0;
        let mut name = |v: VReg| {
            let number = &mut self.number[self.first[v.index()].index()];
            if *number == NONE {
                *number = count;
                count += 1;
            }
        };
        func.entry_values().for_each(&mut name);
        for (_, ops) in func.in_order() {
            for op in ops {
                op.for_each_use(&mut name);
                op.def().into_iter().for_each(&mut name);
            }
        }
        // What only phis name.
        for v in 0..func.vregs {
            if self.named[v as usize] {
                name(VReg(v));
            }
        }
        func.vregs = count;
    }

    fn named_as(&self, v: VReg) -> VReg {
        VReg(self.number[self.first[v.index()].index()])
    }

    fn rewrite(&mut self, func: &mut Func, ssa: &Ssa) {
        let mut out =
            Out { ops: core::mem::take(&mut self.ops), spans: core::mem::take(&mut self.spans), ..Out::default() };
        out.blocks = core::mem::take(&mut self.blocks);
        out.ops.clear();
        out.spans.clear();
        out.blocks.clear();
        let mut outside = Vec::new();
        let mut branches = crate::small(func.blocks.len());
        let mut new_block = || {
            branches += 1;
            BlockId(branches - 1)
        };
        let mut taken_copies = core::mem::take(&mut self.taken_copies);
        let mut next_copies = core::mem::take(&mut self.next_copies);
        for at in 0..func.order.len() {
            let block = func.order[at];
            let ends = func.ends(block);
            let next = func.order.get(at + 1).copied().filter(|_| ends.falls);
            let mut range = func.range(block);
            let mut end = None;
            if let Some(last) = range.clone().last()
                && let Op::Jump { .. } | Op::Branch { .. } = func.ops[last]
            {
                range.end -= 1;
                end = Some(last);
            }
            for i in range.clone() {
                out.push(self.renamed(func.ops[i]), func.spans[i]);
            }
            let span = end.or(range.last()).map_or(Span::default(), |i| func.spans[i]);
            self.collect(block, ends.taken, func, ssa, &mut taken_copies);
            self.collect(block, next, func, ssa, &mut next_copies);
            let end = end.map(|i| self.renamed(func.ops[i]));
            match (end, ends.taken, next) {
                (Some(Op::Branch { width, cond, a, b, target }), Some(taken), Some(next)) => {
                    let between = (!next_copies.is_empty()).then(&mut new_block);
                    if taken_copies.is_empty() || self.may_copy_before(block, taken, next, func, ssa) {
                        out.copy(&mut taken_copies, span, &mut func.vregs);
                        out.push(Op::Branch { width, cond, a, b, target }, span);
                        out.end(block);
                    } else if ssa.tree.dominates(taken, block)
                        && let Some(cond) = cond.negate()
                    {
                        // The way round a loop: no jump more than there is.
                        out.push(Op::Branch { width, cond, a, b, target: between.unwrap_or(next) }, span);
                        out.end(block);
                        out.copy(&mut taken_copies, span, &mut func.vregs);
                        out.push(Op::Jump { target: taken }, span);
                        out.end(new_block());
                    } else {
                        let target = new_block();
                        out.push(Op::Branch { width, cond, a, b, target }, span);
                        out.end(block);
                        outside.push((target, taken, core::mem::take(&mut taken_copies), span));
                    }
                    if let Some(between) = between {
                        out.copy(&mut next_copies, span, &mut func.vregs);
                        out.end(between);
                    }
                }
                (end, _, _) => {
                    // One way on, or none.
                    taken_copies.append(&mut next_copies);
                    out.copy(&mut taken_copies, span, &mut func.vregs);
                    if let Some(end) = end {
                        out.push(end, span);
                    }
                    out.end(block);
                }
            }
        }
        for (block, taken, mut copies, span) in outside {
            out.copy(&mut copies, span, &mut func.vregs);
            out.push(Op::Jump { target: taken }, span);
            out.end(block);
        }
        for v in func.params.iter_mut().chain([&mut func.ctx]).flatten() {
            *v = self.named_as(*v);
        }
        func.blocks.resize(branches as usize, Block { ops: 0..0 });
        func.order.clear();
        for (block, ops) in &out.blocks {
            func.blocks[block.index()].ops = ops.clone();
            func.order.push(*block);
        }
        (self.blocks, self.taken_copies, self.next_copies) = (out.blocks, taken_copies, next_copies);
        self.ops = core::mem::replace(&mut func.ops, out.ops);
        self.spans = core::mem::replace(&mut func.spans, out.spans);
    }

    fn renamed(&self, mut op: Op) -> Op {
        op.for_each_reg(|v| *v = self.named_as(*v));
        op
    }

    /// The copies on the edge between two blocks.
    fn collect(&self, from: BlockId, to: Option<BlockId>, func: &Func, ssa: &Ssa, copies: &mut Vec<(VReg, Val)>) {
        copies.clear();
        let Some(to) = to else { return };
        let Some(pred) = ssa.pred(from, to) else { return };
        for phi in ssa.phis(to) {
            let arg = ssa.args(to, phi)[pred];
            let (dst, src) = (self.named_as(phi.dst), self.named_as(arg));
            if dst != src {
                copies.push((dst, self.constant[arg.index()].map_or(Val::Reg(src), Val::Imm)));
            }
        }
        debug_assert!(to.index() < func.blocks.len());
    }

    /// Whether the copies on the way that a branch takes may as well be made before it: nobody asks for what they
    /// overwrite, neither the branch nor the way that it does not take.
    fn may_copy_before(&self, block: BlockId, taken: BlockId, next: BlockId, func: &Func, ssa: &Ssa) -> bool {
        let (Some(pred), last) = (ssa.pred(block, taken), func.block_ops(block).last()) else { return false };
        let free = |v: VReg| {
            let mut read = self.lives_into(next, v);
            if let Some(op) = last {
                op.for_each_use(|used| read |= used == v);
            }
            let other = ssa.pred(block, next);
            !read && !ssa.phis(next).any(|phi| other.is_some_and(|i| ssa.args(next, phi)[i] == v))
        };
        ssa.phis(taken).all(|phi| {
            let arg = ssa.args(taken, phi)[pred];
            self.first[phi.dst.index()] == self.first[arg.index()] || self.class(phi.dst).all(free)
        })
    }
}

/// The function as it is written anew.
#[derive(Default)]
struct Out {
    ops: Vec<Op>,
    spans: Vec<Span>,
    blocks: Vec<(BlockId, core::ops::Range<u32>)>,
    start: u32,
}

impl Out {
    fn push(&mut self, op: Op, span: Span) {
        self.ops.push(op);
        self.spans.push(span);
    }

    /// What was pushed since the last one is this block.
    fn end(&mut self, block: BlockId) {
        let end = crate::small(self.ops.len());
        self.blocks.push((block, core::mem::replace(&mut self.start, end)..end));
    }

    /// Copies all at once: one whose destination nobody still reads comes first, and where there is none, a value is
    /// put aside.
    fn copy(&mut self, copies: &mut Vec<(VReg, Val)>, span: Span, vregs: &mut u32) {
        while !copies.is_empty() {
            let reads = |of: &(VReg, Val), v: VReg| of.1 == Val::Reg(v);
            let safe = (0..copies.len()).find(|&i| !copies.iter().any(|other| reads(other, copies[i].0)));
            match safe {
                Some(i) => {
                    let (dst, src) = copies.remove(i);
                    self.push(Op::Mov { width: Width::W64, dst, src }, span);
                }
                None => {
                    let (aside, v) = (VReg(*vregs), copies[0].0);
                    *vregs += 1;
                    self.push(Op::Mov { width: Width::W64, dst: aside, src: Val::Reg(v) }, span);
                    for copy in copies.iter_mut().filter(|copy| reads(copy, v)) {
                        copy.1 = Val::Reg(aside);
                    }
                }
            }
        }
    }
}
