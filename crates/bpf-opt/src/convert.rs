//! A branch over one cheap op becomes a selection.
//!
//! `if c goto L; x = x | 16; L:` is computed on both ways, and the result selected: one op more on the way that jumped,
//! and no branch to mispredict. A compilation does not run it yet: no program measured gains by it. Only where what is
//! skipped is a single op without effects that takes a cycle, as compilers of native code have it.
//!
//! Runs before SSA form, where the value that meets another needs no phi to be changed. Invariant: the skipped value
//! was written on every way to the branch, since it is read behind it on the way that jumps.

use bpf_isa::Width;
use bpf_lir::{BinOp, Func, Liveness, Op, Val};

/// Runs over `func`; says how many branches went.
pub(crate) fn run(func: &mut Func, reached: &mut Vec<bool>, liveness: &mut Liveness) -> u32 {
    if !func.all_ops().any(|op| matches!(op, Op::Branch { .. })) {
        return 0;
    }
    reached.clear();
    reached.resize(func.blocks.len(), false);
    for i in 0..func.order.len() {
        if let Some(taken) = func.ends(func.order[i]).taken {
            reached[taken.index()] = true;
        }
    }
    let mut done = 0;
    let mut built = false;
    for i in 2..func.order.len() {
        let (from, over, to) = (func.order[i - 2], func.order[i - 1], func.order[i]);
        let Some(branch) = func.range(from).last() else { continue };
        let Op::Branch { width, cond, a, b, target } = func.ops[branch] else { continue };
        let &[op] = func.block_ops(over) else { continue };
        let Some(v) = op.def().filter(|_| target == to && !reached[over.index()] && is_cheap(&op)) else { continue };
        if !core::mem::replace(&mut built, true) {
            liveness.build(func);
        }
        if !liveness.live_out(from).contains(&v) || !liveness.live_out(over).contains(&v) {
            continue;
        }
        // Where it is written anew without being read, the old value may not be there.
        let new = func.new_vreg();
        let mut computed = op;
        if let Some(dst) = computed.def_mut() {
            *dst = new;
        }
        let at = func.range(over).start;
        let spans = (func.spans[branch], func.spans[at]);
        let select = Op::Select { width, cond, a, b, dst: v, yes: v, no: new };
        func.blocks[from.index()].ops.end -= 1;
        func.set_ops(over, [(computed, spans.1), (select, spans.0)]);
        done += 1;
    }
    done
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
    matches!(op, Op::Mov { .. } | Op::Ext { .. } | Op::Neg { .. })
}
