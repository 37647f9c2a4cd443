//! Branches over a little arithmetic become selections.
//!
//! A compiler for BPF, which has no selection, branches wherever one for a real machine selects: `if c goto L; x ^= p;
//! n += 1; L:`. What the data decides is foreseen half of the time, and a branch that was not foreseen costs as much as
//! twenty instructions; a selection costs one or two. So ops that take a cycle and have no effect, at most
//! [`MAX_OPS`] of them that change at most [`MAX_VALUES`] values, are computed on both ways, and each value is selected;
//! so is the one value that both ways of `if c x = a else x = b` make with one op each. That is about where compilers
//! of native code draw the line.
//!
//! Runs before SSA form, where a value that meets another needs no phi to be changed. Invariants: nothing that could
//! trap, write or be seen is computed on a way on which it was not; a selected value was written on every way to the
//! branch, since it is read behind it on the way that jumps; the comparison's operands are changed by the last selection
//! alone.

use bpf_isa::{Cond, Width};
use bpf_lir::{BinOp, BlockId, Func, Liveness, Op, Span, VReg, Val};

/// The most ops that a branch skips.
const MAX_OPS: usize = 2;
/// The most values that they change.
const MAX_VALUES: usize = 2;

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

/// The ops that replace the branch at the end of a block.
type Straight = Vec<(Op, Span)>;

/// Runs over `func`; says how many branches went.
pub(crate) fn run(func: &mut Func, reached: &mut Vec<u32>, liveness: &mut Liveness) -> u32 {
    if !func.all_ops().any(|op| matches!(op, Op::Branch { .. })) {
        return 0;
    }
    // By block: how many jumps lead to it.
    reached.clear();
    reached.resize(func.blocks.len(), 0);
    for i in 0..func.order.len() {
        if let Some(taken) = func.ends(func.order[i]).taken {
            reached[taken.index()] += 1;
        }
    }
    let mut done = 0;
    let mut built = false;
    for i in 0..func.order.len().saturating_sub(2) {
        let (from, over, to) = (func.order[i], func.order[i + 1], func.order[i + 2]);
        let Some(at) = func.range(from).last() else { continue };
        let Op::Branch { width, cond, a, b, target } = func.ops[at] else { continue };
        if target != to || reached[over.index()] != 0 || func.block_ops(over).len() > MAX_OPS.max(2) {
            continue;
        }
        if !core::mem::replace(&mut built, true) {
            liveness.build(func);
        }
        let branch = Branch { width, cond, a, b, span: func.spans[at] };
        let after = func.order.get(i + 3).copied().filter(|_| reached[to.index()] == 1);
        let (straight, jumps) = match func.ends(over).taken {
            None => (skipped(func, liveness, branch, from, over), None),
            Some(join) if Some(join) == after => (either(func, liveness, branch, over, to), Some(join)),
            Some(_) => (None, None),
        };
        let Some(straight) = straight else { continue };
        let kept: Straight = func.range(from).filter(|op| *op != at).map(|i| (func.ops[i], func.spans[i])).collect();
        func.set_ops(from, kept.into_iter().chain(straight));
        func.set_ops(over, []);
        reached[to.index()] -= 1;
        if let Some(join) = jumps {
            func.set_ops(to, []);
            reached[join.index()] -= 1;
        }
        done += 1;
    }
    done
}

/// What is computed instead of a branch from `from` over `over`.
fn skipped(func: &mut Func, liveness: &Liveness, branch: Branch, from: BlockId, over: BlockId) -> Option<Straight> {
    if !func.block_ops(over).iter().all(is_cheap) {
        return None;
    }
    // Each value that is changed, and what it would be now.
    let mut changed: Vec<(VReg, VReg)> = Vec::new();
    let mut straight = Straight::new();
    for i in func.range(over) {
        let mut op = func.ops[i];
        op.for_each_use_mut(|v| *v = changed.iter().find(|(old, _)| old == v).map_or(*v, |(_, new)| *new));
        let (new, dst) = (func.new_vreg(), op.def_mut()?);
        let old = core::mem::replace(dst, new);
        changed.retain(|(v, _)| *v != old);
        changed.push((old, new));
        straight.push((op, func.spans[i]));
    }
    // Others end with the block.
    changed.retain(|(v, _)| liveness.live_out(over).contains(v));
    // Where one is written anew without being read, the old value may not be there.
    let written = changed.iter().all(|(v, _)| liveness.live_out(from).contains(v));
    // The comparison is made again for each.
    changed.sort_by_key(|(v, _)| branch.reads(*v));
    let compared = changed.iter().filter(|(v, _)| branch.reads(*v)).count();
    if !written || changed.is_empty() || changed.len() > MAX_VALUES || compared > 1 {
        return None;
    }
    straight.extend(changed.into_iter().map(|(v, new)| branch.select(v, v, new)));
    Some(straight)
}

/// What is computed instead of a branch to `yes`, past `no`, each of which makes the same value.
fn either(func: &mut Func, liveness: &Liveness, branch: Branch, no: BlockId, yes: BlockId) -> Option<Straight> {
    let &[mut other, Op::Jump { .. }] = func.block_ops(no) else { return None };
    let &[mut op] = func.block_ops(yes) else { return None };
    let spans = [func.spans[func.range(yes).start], func.spans[func.range(no).start]];
    let v = op.def()?;
    if other.def() != Some(v) || !is_cheap(&op) || !is_cheap(&other) || !liveness.live_out(yes).contains(&v) {
        return None;
    }
    let (new, old) = (func.new_vreg(), func.new_vreg());
    *op.def_mut()? = new;
    *other.def_mut()? = old;
    Some(vec![(op, spans[0]), (other, spans[1]), branch.select(v, new, old)])
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
