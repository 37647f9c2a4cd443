//! Branches over a little arithmetic become selections.
//!
//! A compiler for BPF, which has no selection, branches wherever one for a real machine selects: `if c goto L; x ^= p;
//! n += 1; L:`. What the data decides is foreseen half of the time, and a branch that was not foreseen costs as much as
//! twenty instructions; a selection costs one or two. So ops that take a cycle and have no effect, at most
//! [`MAX_OPS`] of them that change at most [`MAX_VALUES`] values, are computed on both ways, and each value is
//! selected; so is the one value that both ways of `if c x = a else x = b` make with one op each. That is about where
//! compilers of native code draw the line. A branch over an op and a jump to the same place stays: at the end of a loop
//! the op makes what the next round begins with, and a selection lets that wait for what was compared (a heap sort took
//! 1.4 times as long); but where something is selected by the same comparison already, the round waits for it anyway,
//! and the branch would only ask once more (a binary search).
//!
//! Runs before SSA form, where a value that meets another needs no phi to be changed. Invariants: nothing that could
//! trap, write or be seen is computed on a way on which it was not; a selected value was written on every way to the
//! branch, since it is read behind it on the way that jumps: by the ops that are skipped, or by what is found from
//! there on within [`MAX_LOOK`] ops; the comparison's operands are changed by the last selection alone.

mod bounds;

use crate::faults::planted;
use crate::ssa::{NO_VALUE, NONE};
use bpf_isa::{Cond, Width};
use bpf_lir::{BinOp, BlockId, Func, Op, Span, VReg, Val};
use core::ops::Range;

/// The most ops that a branch skips.
const MAX_OPS: usize = 2;
/// The most values that they change.
const MAX_VALUES: usize = 2;
/// How many ops and blocks are looked at to find out whether a value is read again. Few values are not decided by then,
/// and what is live everywhere takes longer to find than all else here.
const MAX_LOOK: u32 = 256;
/// How many ops before a branch a selection by the same comparison is looked for.
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

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Convert {
    /// By block: how many jumps lead to it.
    reached: Vec<u32>,
    /// By block: its place in the order, and the search that was last here.
    places: Vec<[u32; 2]>,
    searches: u32,
    work: Vec<BlockId>,
    /// Each value that is changed, and what it would be.
    changed: Vec<(VReg, VReg)>,
    /// The ops of a block without its branch.
    straight: Vec<(Op, Span)>,
    bounds: bounds::Bounds,
}

impl Convert {
    /// Runs over `func`; says how many branches went.
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
            // What is left of the block that was skipped.
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
            // Behind each other, and so one block.
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

    /// Whether something is selected by the comparison of the branch that ends the block at this place in the order, in
    /// straight code before it.
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

    /// Finds what is computed instead of a branch over these ops to `to`.
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
        // Others end with the block. What is changed in place was there, and is nearly always read again.
        let mut changed = core::mem::take(&mut self.changed);
        let mut known = true;
        changed.retain(|(v, _)| {
            let live = if read.contains(v) { Some(true) } else { self.lives_into(func, to, *v) };
            known &= live.is_some();
            live == Some(true)
        });
        // The comparison is made again for each.
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

    /// Whether some way from the beginning of a block reads a value before it writes it; `None` if that is far to seek.
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

    /// Finds what is computed instead of a branch to `yes`, past `no`, each of which makes the same value.
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

/// Whether an op has no effect and takes a cycle.
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
