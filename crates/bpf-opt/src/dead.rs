//! Definitions that nobody reads.
//!
//! A direct tail-call site knows its table and index, so what loaded them for the call has no reader left. Approach:
//! count the reads of each value, over the whole function; an op without any other effect whose result has none goes,
//! and with it the reads it made.
//!
//! Invariant: an op goes only if no read of its value is left anywhere, so liveness is not asked.

use bpf_lir::{Func, Op};
use core::ops::Range;

/// Runs the pass; says how many ops went. `reads` is scratch memory.
pub(crate) fn run(func: &mut Func, reads: &mut Vec<u32>) -> u32 {
    reads.clear();
    reads.resize(func.vregs as usize, 0);
    for op in func.all_ops() {
        op.for_each_use(|v| reads[v.index()] += 1);
    }
    let mut gone = 0;
    // Backward, so that what only a dead op read is seen to be dead.
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

/// Whether an op does nothing but write its result.
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
        // A load may be of memory that is not there, in a program that was not verified.
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
