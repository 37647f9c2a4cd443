//! Removes definitions that are never read.
//!
//! A direct tail-call site knows its table and index, so the ops that loaded them for the call have no reader left.
//! Approach: count the reads of each value over the whole function. An op that only writes its result is removed if the
//! result is never read, and its own reads are subtracted from the counts.
//!
//! Invariant: an op is removed only if its value is read nowhere in the function, so the pass needs no liveness.

use bpf_lir::{Func, Op};
use core::ops::Range;

/// Runs the pass; returns how many ops were removed. `reads` is scratch memory.
pub(crate) fn run(func: &mut Func, reads: &mut Vec<u32>) -> u32 {
    reads.clear();
    reads.resize(func.vregs as usize, 0);
    for op in func.all_ops() {
        op.for_each_use(|v| reads[v.index()] += 1);
    }
    let mut gone = 0;
    // Backward, so that an op that only a removed op read is removed too.
    for i in (0..func.order.len()).rev() {
        let block = &mut func.blocks[func.order[i].index()];
        let Range { start, end } = block.ops;
        let mut kept = end as usize;
        for at in (start as usize..end as usize).rev() {
            let op = func.ops[at];
            if is_pure(&op) && op.def().is_some_and(|v| reads[v.index()] == 0) {
                op.for_each_use(|v| reads[v.index()] -= 1);
                gone += 1;
            } else {
                kept -= 1;
                func.ops[kept] = op;
                func.spans[kept] = func.spans[at];
            }
        }
        block.ops.start = crate::num::small(kept);
    }
    gone
}

/// Whether an op has no effect but to write its result.
pub(crate) fn is_pure(op: &Op) -> bool {
    match op {
        Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Bin { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. } => true,
        // A load may trap in a program that was not verified.
        Op::Load { .. }
        | Op::LoadAcquire { .. }
        | Op::Store { .. }
        | Op::StoreRelease { .. }
        | Op::Atomic { .. }
        | Op::CmpXchg { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => false,
    }
}
