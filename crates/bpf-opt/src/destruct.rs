//! Leaves SSA form.
//!
//! Problem: a phi is no machine instruction. Its arguments must be copied into its register on the edges, and a copy in
//! a loop costs time in each round. Approach: a phi and its arguments get one register wherever no two of them live at
//! the same time, which holds for most loop-carried values. In SSA form two values live at the same time if and only if
//! one lives where the other is defined, and then the definition of the first dominates that of the second (Budimlić
//! and others, "Fast Copy Coalescing and Live-Range Identification"), so no interference graph is built. The remaining
//! arguments are copied on the edge, all at once: at the end of the predecessor if it has one successor or if the
//! copies do not matter on its other edge, and otherwise in a block of their own.
//!
//! Invariants: the values of one class never live at the same time. The copies of an edge have the effect of a parallel
//! assignment. Classes above a size take no more members, so the cost is linear.

use crate::faults::planted;
use crate::ssa::{NO_VALUE, NONE, Ssa};
use bpf_isa::Width;
use bpf_lir::{Block, BlockId, Func, Op, Span, VReg, Val};
use core::ops::Range;

/// The most pairs of values that are compared to unite two classes.
const MAX_PAIRS: u32 = 256;

/// The place of a definition: its block, and its position there from 1; phis and parameters are at 0.
type Place = (BlockId, u32);

/// A read at the end of a block, behind all its ops.
const OUT: u32 = NONE;

/// A read of a value.
#[derive(Clone, Copy, Debug)]
struct Read {
    block: BlockId,
    /// Position of the op in the block, from 1, or [`OUT`].
    at: u32,
    /// Index of the value's next read in the list.
    next: u32,
}

/// Scratch memory, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Destruct {
    /// By value: the place of its definition.
    places: Vec<Place>,
    /// By value: whether a phi defines or reads it.
    named: Vec<bool>,
    /// By value: the part of `lives` of a value that a phi defines or reads.
    ranges: Vec<Range<u32>>,
    /// For each such value, the blocks in which it is read or through which it lives, sorted, each with the position of
    /// the last read there, or [`OUT`] if it lives on behind the block.
    lives: Vec<(BlockId, u32)>,
    /// By value: the head of the list of its reads, in `reads`. The list has the last read of each block.
    heads: Vec<u32>,
    reads: Vec<Read>,
    /// By value: the first value of its class, the next value of its class, and, for the first value, the size of the
    /// class.
    first: Vec<VReg>,
    next: Vec<VReg>,
    count: Vec<u32>,
    /// By value: the constant that a copy of 64 bits defines it as.
    constant: Vec<Option<i64>>,
    /// By block: the value that was last found to live in it, the index of that entry in `lives`, and the value that
    /// was last found to live into it.
    seen: Vec<[u32; 3]>,
    stack: Vec<BlockId>,
    /// The copies on the two edges out of a block.
    taken_copies: Vec<(VReg, Val)>,
    next_copies: Vec<(VReg, Val)>,
    out: Out,
    number: Vec<u32>,
}

impl Destruct {
    /// Brings `func` out of SSA form, and renumbers its values.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa) {
        self.find(func, ssa);
        self.unite(func, ssa);
        self.number(func);
        self.rewrite(func, ssa);
    }

    /// Finds where values are defined, and where the values that phis name live.
    fn find(&mut self, func: &Func, ssa: &Ssa) {
        let values = func.vregs as usize;
        let entry = func.order[0];
        self.places.clear();
        self.places.resize(values, (entry, 0));
        self.constant.clear();
        self.constant.resize(values, None);
        self.named.clear();
        self.named.resize(values, false);
        for (block, phi) in ssa.all_phis() {
            self.places[phi.dst.index()] = (block, 0);
            self.named[phi.dst.index()] = true;
            for arg in ssa.args(block, phi) {
                self.named[arg.index()] = true;
            }
        }
        self.heads.clear();
        self.heads.resize(values, NONE);
        self.reads.clear();
        for (block, ops) in func.in_order() {
            for (op, at) in ops.iter().zip(1..) {
                op.for_each_use(|v| {
                    if self.named[v.index()] {
                        let head = &mut self.heads[v.index()];
                        match self.reads.get_mut(*head as usize) {
                            Some(read) if read.block == block => read.at = at,
                            Some(_) | None => {
                                let next = core::mem::replace(head, crate::num::small(self.reads.len()));
                                self.reads.push(Read { block, at, next });
                            }
                        }
                    }
                });
                if let Some(v) = op.def() {
                    self.places[v.index()] = (block, at);
                    if let Op::Mov { width: Width::W64, src: Val::Imm(imm), .. } = *op {
                        self.constant[v.index()] = Some(imm);
                    }
                }
            }
        }
        self.find_lives(func, ssa);
    }

    /// Finds where each value that a phi names lives, from its reads back to its definition.
    fn find_lives(&mut self, func: &Func, ssa: &Ssa) {
        for (block, phi) in ssa.all_phis() {
            for (arg, pred) in ssa.args(block, phi).iter().zip(ssa.cfg.preds(block)) {
                let next = core::mem::replace(&mut self.heads[arg.index()], crate::num::small(self.reads.len()));
                self.reads.push(Read { block: *pred, at: OUT, next });
            }
        }
        self.seen.clear();
        self.seen.resize(func.blocks.len(), [NONE; 3]);
        self.lives.clear();
        self.ranges.clear();
        self.ranges.resize(func.vregs as usize, 0..0);
        for v in (0..func.vregs).map(VReg) {
            if self.named[v.index()] {
                self.follow(v, ssa);
            }
        }
    }

    /// Finds where one value lives.
    fn follow(&mut self, v: VReg, ssa: &Ssa) {
        let (start, defined) = (self.lives.len(), self.places[v.index()].0);
        let mut read = self.heads[v.index()];
        while let Some(&Read { block, at, next }) = self.reads.get(read as usize) {
            self.live(block, v, at);
            self.live_into(block, v, defined);
            read = next;
        }
        while let Some(block) = self.stack.pop() {
            for pred in ssa.cfg.preds(block) {
                self.live(*pred, v, OUT);
                self.live_into(*pred, v, defined);
            }
        }
        self.lives[start..].sort_unstable();
        self.ranges[v.index()] = crate::num::small(start)..crate::num::small(self.lives.len());
    }

    /// Records that a value lives in a block up to position `at`.
    fn live(&mut self, block: BlockId, v: VReg, at: u32) {
        let [last, place, _] = &mut self.seen[block.index()];
        if *last == v.0
            && let Some((_, end)) = self.lives.get_mut(*place as usize)
        {
            *end = at.max(*end);
        } else {
            (*last, *place) = (v.0, crate::num::small(self.lives.len()));
            self.lives.push((block, at));
        }
    }

    /// Records that a value lives into a block, unless it is defined there.
    fn live_into(&mut self, block: BlockId, v: VReg, defined: BlockId) {
        if block != defined && core::mem::replace(&mut self.seen[block.index()][2], v.0) != v.0 {
            self.stack.push(block);
        }
    }

    /// Returns the position up to which a value lives in a block, if it is read there or lives through.
    fn lives_to(&self, block: BlockId, v: VReg) -> Option<u32> {
        let Range { start, end } = self.ranges[v.index()].clone();
        let lives = &self.lives[start as usize..end as usize];
        let at = lives.partition_point(|(b, _)| *b < block);
        lives.get(at).filter(|(b, _)| *b == block).map(|(_, end)| *end)
    }

    /// Whether `v` lives at the beginning of `block`, the block's phis not counted.
    fn lives_into(&self, block: BlockId, v: VReg) -> bool {
        self.places[v.index()].0 != block && self.lives_to(block, v).is_some()
    }

    /// Whether `a` lives on behind the definition of `b`.
    fn lives_at(&self, a: VReg, b: VReg) -> bool {
        let (block, at) = self.places[b.index()];
        self.lives_to(block, a).is_some_and(|last| last > at)
    }

    fn interfere(&self, a: VReg, b: VReg, ssa: &Ssa) -> bool {
        if planted!(LivesIgnored) {
            return false;
        }
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
        // Inner loops first, which come later in this order. In a loop's head, arguments from inside the loop come
        // first.
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

    /// Numbers the classes in the order of their first occurrence.
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
        // Values that only phis name.
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
        let mut out = core::mem::take(&mut self.out);
        out.ops.clear();
        out.spans.clear();
        out.blocks.clear();
        out.start = 0;
        let mut outside = Vec::new();
        let mut branches = crate::num::small(func.blocks.len());
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
                        // The edge back to a loop's head: the copies stand behind the negated branch, and no jump is
                        // added to a round.
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
                    // The block has at most one successor.
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
        core::mem::swap(&mut func.ops, &mut out.ops);
        core::mem::swap(&mut func.spans, &mut out.spans);
        (self.out, self.taken_copies, self.next_copies) = (out, taken_copies, next_copies);
    }

    fn renamed(&self, mut op: Op) -> Op {
        op.for_each_reg(|v| *v = self.named_as(*v));
        op
    }

    /// Collects the copies on the edge between two blocks.
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

    /// Whether the copies on the taken edge of a branch may stand before the branch: neither the branch nor the other
    /// edge reads a value that they overwrite.
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

/// The function as it is rewritten.
#[derive(Default, Debug)]
struct Out {
    ops: Vec<Op>,
    spans: Vec<Span>,
    blocks: Vec<(BlockId, Range<u32>)>,
    start: u32,
    /// By value, while the copies of an edge are ordered.
    pending: Vec<Pending>,
    /// Copies whose destination no pending copy reads.
    ready: Vec<u32>,
}

/// The pending copies that concern a value.
#[derive(Clone, Copy, Default, Debug)]
struct Pending {
    /// How many pending copies read it.
    reads: u32,
    /// The pending copy that writes it.
    copy: Option<u32>,
}

impl Out {
    fn push(&mut self, op: Op, span: Span) {
        self.ops.push(op);
        self.spans.push(span);
    }

    /// Ends `block`: its ops are those pushed since the last block ended.
    fn end(&mut self, block: BlockId) {
        let end = crate::num::small(self.ops.len());
        self.blocks.push((block, core::mem::replace(&mut self.start, end)..end));
    }

    /// Emits the parallel assignment of all copies. A copy whose destination is not read by a pending copy comes first.
    /// The copies that remain form cycles, each of which is broken by saving one value in a new register.
    fn copy(&mut self, copies: &mut Vec<(VReg, Val)>, span: Span, vregs: &mut u32) {
        if copies.len() < 2 || planted!(CopiesInOrder) {
            copies.drain(..).for_each(|copy| self.push_copy(copy, span));
            return;
        }
        self.pending.resize((*vregs as usize).max(self.pending.len()), Pending::default());
        for ((dst, src), at) in copies.iter().zip(0..) {
            self.pending[dst.index()].copy = Some(at);
            if let Val::Reg(src) = src {
                self.pending[src.index()].reads += 1;
            }
        }
        self.ready.clear();
        self.ready.extend(
            (0..crate::num::small(copies.len())).filter(|at| self.pending[copies[*at as usize].0.index()].reads == 0),
        );
        let mut next = 0;
        while let Some(at) = self.ready.get(next) {
            let (dst, src) = copies[*at as usize];
            self.pending[dst.index()].copy = None;
            self.push_copy((dst, src), span);
            if let Val::Reg(src) = src {
                let pending = &mut self.pending[src.index()];
                pending.reads -= 1;
                if let (0, Some(at)) = (pending.reads, pending.copy) {
                    self.ready.push(at);
                }
            }
            next += 1;
        }
        // Each destination that remains is read by exactly one copy that remains.
        for (first, _) in copies.iter() {
            let Some(mut at) = self.pending[first.index()].copy.take() else { continue };
            let aside = VReg(*vregs);
            *vregs += 1;
            self.push_copy((aside, Val::Reg(*first)), span);
            loop {
                let (dst, src) = copies[at as usize];
                let Val::Reg(v) = src else { break };
                self.pending[v.index()].reads = 0;
                match self.pending[v.index()].copy.take() {
                    Some(next) => {
                        self.push_copy((dst, src), span);
                        at = next;
                    }
                    // The cycle is closed.
                    None => break self.push_copy((dst, Val::Reg(aside)), span),
                }
            }
        }
        copies.clear();
    }

    fn push_copy(&mut self, (dst, src): (VReg, Val), span: Span) {
        self.push(Op::Mov { width: Width::W64, dst, src }, span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks all maps from five destinations to five values and a constant: 6^5 sets of copies.
    #[test]
    fn every_small_set_of_copies_happens_at_once() {
        let mut out = Out::default();
        for n in 0..6u32.pow(5) {
            let source = |dst: u32| match n / 6u32.pow(dst) % 6 {
                5 => Val::Imm(77),
                v => Val::Reg(VReg(v)),
            };
            let all = (0..5).map(|dst| (VReg(dst), source(dst)));
            let mut copies: Vec<_> = all.filter(|(dst, src)| *src != Val::Reg(*dst)).collect();
            let mut values: Vec<i64> = (0..20).map(|v| 10 + v).collect();
            let read = |values: &[i64], src: Val| match src {
                Val::Reg(v) => values[v.index()],
                Val::Imm(imm) => imm,
            };
            let want: Vec<i64> = (0..5).map(|dst| read(&values, source(dst))).collect();
            let (count, mut vregs) = (copies.len(), 5);
            out.ops.clear();
            out.copy(&mut copies, Span::default(), &mut vregs);
            // A cycle has at least two copies, and takes one more.
            assert!(out.ops.len() <= count + count / 2, "set {n}: {:?}", out.ops);
            for op in &out.ops {
                let Op::Mov { dst, src, .. } = *op else { panic!("{op:?}") };
                values[dst.index()] = read(&values, src);
            }
            assert_eq!(values[..5], want, "set {n}: {:?}", out.ops);
            assert!(out.pending.iter().all(|left| left.reads == 0 && left.copy.is_none()), "set {n}");
        }
    }
}
