//! Turns branches over a little arithmetic into selections.
//!
//! BPF has no selection, so its compilers branch where a compiler for a real machine selects: `if c goto L; x ^= p; n
//! += 1; L:`. A branch on data is mispredicted often, and a misprediction costs far more than the one or two
//! instructions of a selection. Two shapes are converted:
//!
//! * A branch over at most [`MAX_OPS`] cheap ops without effects that change at most [`MAX_VALUES`] values: the ops are
//!   computed always, and each changed value is selected.
//! * `if c x = a else x = b`, with one cheap op on each side: both are computed, and x is selected.
//!
//! A branch over an op and a jump to the same place stays as a rule. At the end of a loop such an op makes a value that
//! the next round begins with, and a selection would let the next round wait for the comparison, where a predicted
//! branch does not. Where a value is selected by the same comparison already, the round waits for it anyway, and the
//! branch is converted too (a binary search).
//!
//! The pass runs before SSA form, where values that meet need no phis. Invariants: an op that could trap, write or be
//! observed is not computed on a path on which it was not computed before. Each selected value has been written on
//! every path to the branch: it is read behind the branch on the path that jumps, either by a skipped op that changes
//! it in place or by an op found within [`MAX_LOOK`] steps from the target. Only the last selection overwrites an
//! operand of the comparison.

mod bounds;

use crate::faults::planted;
use crate::ssa::{NO_VALUE, NONE};
use bpf_isa::{Cond, Width};
use bpf_lir::{BinOp, BlockId, Func, Op, Span, VReg, Val};
use core::ops::Range;

/// The most ops that a branch skips.
const MAX_OPS: usize = 2;
/// The most values that the skipped ops change.
const MAX_VALUES: usize = 2;
/// How many ops and blocks are searched for a read of a value. For most values this suffices, and exact liveness would
/// cost more than the rest of the pass.
const MAX_LOOK: u32 = 256;
/// How many ops before a branch are searched for a selection by the same comparison.
const MAX_BACK: usize = 16;

/// The comparison of a branch.
#[derive(Clone, Copy)]
struct Branch {
    width: Width,
    cond: Cond,
    a: VReg,
    b: Val,
    span: Span,
}

impl Branch {
    fn select(&self, dst: VReg, yes: VReg, no: VReg) -> (Op, Span) {
        let Branch { width, cond, a, b, span } = *self;
        (Op::Select { width, cond, a, b, dst, yes, no }, span)
    }

    fn reads(&self, v: VReg) -> bool {
        self.a == v || self.b == Val::Reg(v)
    }
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Convert {
    /// By block: how many jumps lead to it.
    reached: Vec<u32>,
    /// By block: its position in the order, and the number of the search that visited it last.
    places: Vec<[u32; 2]>,
    searches: u32,
    work: Vec<BlockId>,
    /// Each value that the skipped ops change, and the register of its changed version.
    changed: Vec<(VReg, VReg)>,
    /// The ops that replace the branch and the ops that it skips.
    straight: Vec<(Op, Span)>,
    bounds: bounds::Bounds,
}

impl Convert {
    /// Runs the pass over `func`; returns how many branches were removed.
    pub(crate) fn run(&mut self, func: &mut Func) -> u32 {
        if !func.all_ops().any(|op| matches!(op, Op::Branch { .. })) {
            return 0;
        }
        self.reached.clear();
        self.reached.resize(func.blocks.len(), 0);
        for i in 0..func.order.len() {
            if let Some(taken) = func.ends(func.order[i]).taken {
                self.reached[taken.index()] += 1;
            }
        }
        self.searches = 0;
        self.places.clear();
        self.places.resize(func.blocks.len(), [NONE; 2]);
        for (block, place) in func.order.iter().zip(0..) {
            self.places[block.index()][0] = place;
        }
        let mut done = 0;
        for i in 0..func.order.len().saturating_sub(1) {
            let (from, over, to) = (func.order[i], func.order[i + 1], func.order.get(i + 2).copied());
            let Some(at) = func.range(from).last() else { continue };
            let Op::Branch { width, cond, a, b, target } = func.ops[at] else { continue };
            if self.reached[over.index()] != 0 || func.block_ops(over).len() > MAX_OPS + 1 {
                continue;
            }
            let branch = Branch { width, cond, a, b, span: func.spans[at] };
            self.straight.clear();
            // The jump that remains of the skipped block, if it ended with one.
            let mut rest = None;
            let (found, join) = match func.ends(over).taken {
                None if Some(target) == to && func.ends(over).falls => {
                    (self.skipped(func, branch, func.range(over), target), None)
                }
                Some(join)
                    if Some(target) == to
                        && self.reached[target.index()] == 1
                        && func.order.get(i + 3) == Some(&join) =>
                {
                    (self.either(func, branch, [over, target], join), Some(join))
                }
                Some(join) if join == target && self.is_selected(func, i, branch) => {
                    let mut ops = func.range(over);
                    rest = ops.next_back().map(|at| (func.ops[at], func.spans[at]));
                    (self.skipped(func, branch, ops, target), None)
                }
                Some(_) | None => (None, None),
            };
            if found.is_none() {
                continue;
            }
            let start = crate::num::small(func.ops.len());
            for i in func.range(from).filter(|i| *i != at) {
                let (op, span) = (func.ops[i], func.spans[i]);
                func.ops.push(op);
                func.spans.push(span);
            }
            func.set_ops(over, self.straight.drain(..));
            // The block without its branch, followed by the straight code.
            func.blocks[from.index()].ops = start..crate::num::small(func.ops.len());
            func.set_ops(over, rest);
            self.reached[target.index()] -= 1;
            if let Some(join) = join {
                func.set_ops(target, []);
                self.reached[join.index()] -= 1;
            }
            done += 1;
        }
        done + self.one_way_out(func)
    }

    /// Whether straight code before the branch that ends the block at position `place` selects a value by the branch's
    /// comparison.
    fn is_selected(&self, func: &Func, place: usize, branch: Branch) -> bool {
        let mut left = MAX_BACK;
        for at in (0..=place).rev() {
            let block = func.order[at];
            let ends = func.ends(block);
            if at != place && (ends.taken.is_some() || !ends.falls) {
                return false;
            }
            for op in func.block_ops(block).iter().rev().filter(|op| !op.ends_block()) {
                if let Op::Select { width, cond, a, b, .. } = *op
                    && (width, cond, a, b) == (branch.width, branch.cond, branch.a, branch.b)
                {
                    return !op.def().is_some_and(|v| branch.reads(v));
                }
                left -= 1;
                if left == 0 || op.def().is_some_and(|v| branch.reads(v)) {
                    return false;
                }
            }
            if self.reached[block.index()] != 0 {
                return false;
            }
        }
        false
    }

    /// Finds the ops that replace a branch to `to` over the ops `over`.
    fn skipped(&mut self, func: &mut Func, branch: Branch, over: Range<usize>, to: BlockId) -> Option<()> {
        if over.len() > MAX_OPS || !func.ops[over.clone()].iter().all(is_cheap) {
            return None;
        }
        self.changed.clear();
        let mut read = [NO_VALUE; MAX_OPS];
        for (i, read) in over.zip(&mut read) {
            let mut op = func.ops[i];
            let def = op.def();
            op.for_each_use_mut(|v| {
                let new = self.changed.iter().find(|(old, _)| old == v).map(|(_, new)| *new);
                if new.is_none() && def == Some(*v) {
                    *read = *v;
                }
                *v = new.unwrap_or(*v);
            });
            let (new, dst) = (func.new_vreg(), op.def_mut()?);
            let old = core::mem::replace(dst, new);
            self.changed.retain(|(v, _)| *v != old);
            self.changed.push((old, new));
            self.straight.push((op, func.spans[i]));
        }
        // A value that is not read behind the branch ends with the skipped block. A value that an op changes in place
        // was written before and is nearly always read again.
        let mut changed = core::mem::take(&mut self.changed);
        let mut known = true;
        changed.retain(|(v, _)| {
            let live = if read.contains(v) { Some(true) } else { self.lives_into(func, to, *v) };
            known &= live.is_some();
            live == Some(true)
        });
        // Each selection repeats the comparison, so one that overwrites an operand of the comparison comes last.
        changed.sort_unstable_by_key(|(v, _)| branch.reads(*v));
        if planted!(ComparedLate) {
            changed.reverse();
        }
        let compared = changed.iter().filter(|(v, _)| branch.reads(*v)).count();
        let few = !changed.is_empty() && changed.len() <= MAX_VALUES && compared <= 1;
        self.straight.extend(changed.iter().map(|(v, new)| branch.select(*v, *v, *new)));
        self.changed = changed;
        (known && few).then_some(())
    }

    /// Whether some path from the beginning of `block` reads a value before it writes it; `None` if the search limit
    /// was reached.
    fn lives_into(&mut self, func: &Func, block: BlockId, v: VReg) -> Option<bool> {
        let mut left = MAX_LOOK;
        self.searches += 1;
        self.work.clear();
        self.work.push(block);
        'blocks: while let Some(block) = self.work.pop() {
            let [place, search] = &mut self.places[block.index()];
            if core::mem::replace(search, self.searches) == self.searches {
                continue;
            }
            for op in func.block_ops(block) {
                left = left.checked_sub(1)?;
                let mut read = false;
                op.for_each_use(|used| read |= used == v);
                if read {
                    return Some(true);
                }
                if op.def() == Some(v) {
                    continue 'blocks;
                }
            }
            left = left.checked_sub(1)?;
            let ends = func.ends(block);
            let next = func.order.get(*place as usize + 1).filter(|_| ends.falls);
            self.work.extend(ends.taken.iter().chain(next));
        }
        Some(false)
    }

    /// Finds the ops that replace a branch to `yes`, past `no`, where both blocks make the same value with one op each.
    fn either(&mut self, func: &mut Func, branch: Branch, [no, yes]: [BlockId; 2], join: BlockId) -> Option<()> {
        let &[mut other, Op::Jump { .. }] = func.block_ops(no) else { return None };
        let &[mut op] = func.block_ops(yes) else { return None };
        let spans = [func.spans[func.range(yes).start], func.spans[func.range(no).start]];
        let v = op.def()?;
        if other.def() != Some(v) || !is_cheap(&op) || !is_cheap(&other) || self.lives_into(func, join, v) != Some(true)
        {
            return None;
        }
        let (new, old) = (func.new_vreg(), func.new_vreg());
        *op.def_mut()? = new;
        *other.def_mut()? = old;
        self.straight.extend([(op, spans[0]), (other, spans[1]), branch.select(v, new, old)]);
        Some(())
    }
}

/// Whether an op has no effect and takes about one cycle.
fn is_cheap(op: &Op) -> bool {
    if let Op::Bin { op, b, .. } = op {
        return match op {
            BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Or | BinOp::Xor => true,
            BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl => matches!(b, Val::Imm(_)),
            BinOp::Mul | BinOp::MulHighU | BinOp::MulHighS | BinOp::Div | BinOp::SDiv | BinOp::Mod | BinOp::SMod => {
                false
            }
        };
    }
    if let Op::Mov { src: Val::Imm(imm), width, .. } = op {
        return *width == Width::W32 || i32::try_from(*imm).is_ok();
    }
    matches!(op, Op::Mov { .. } | Op::Ext { .. } | Op::Neg { .. } | Op::AddShift { .. })
}
