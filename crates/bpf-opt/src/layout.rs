//! Jumps that need not be.
//!
//! A compiler for BPF writes `if c goto +1; goto back` where its target is too far for a conditional jump, or where
//! that is how its blocks came to lie: two jumps a round where one does. Here a branch over a block that only jumps
//! becomes the opposite branch to where that jumps, and a jump to a block that only jumps goes where that goes. Where a
//! branch leaves a loop and the jump behind it leads round, the two change places: one jump a round.
//!
//! Invariants: ops other than jumps are neither added nor moved; a jump with a check before it is no block that only
//! jumps, so every check is still passed.

use bpf_lir::{BlockId, Func, Op};

/// How many jumps in a row are followed.
const MAX_HOPS: u32 = 4;

/// Runs over `func`; says how many jumps went.
pub(crate) fn run(func: &mut Func, reached: &mut Vec<bool>, places: &mut Vec<u32>) -> u32 {
    let mut done = thread(func);
    places.clear();
    places.resize(func.blocks.len(), 0);
    for (block, place) in func.order.iter().zip(0..) {
        places[block.index()] = place;
    }
    reached.clear();
    reached.resize(func.blocks.len(), false);
    for i in 0..func.order.len() {
        if let Some(taken) = func.ends(func.order[i]).taken {
            reached[taken.index()] = true;
        }
    }
    let mut kept = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        // Where every way here was led past it.
        if kept > 0 && !reached[block.index()] && !func.ends(func.order[kept - 1]).falls {
            continue;
        }
        if kept > 0
            && let Some(target) = only_jump(func, block)
            && !reached[block.index()]
            && let Some(at) = func.range(func.order[kept - 1]).last()
            && let Op::Branch { width, cond, a, b, target: over } = func.ops[at]
            && let Some(cond) = cond.negate()
        {
            if func.order.get(i + 1) == Some(&over) {
                func.ops[at] = Op::Branch { width, cond, a, b, target };
                done += 1;
                continue;
            }
            // Where control falls into nothing but the jump, nobody else comes to it.
            let (from, round, out) = (places[block.index()], places[target.index()], places[over.index()]);
            if round < from
                && (out > from || out < round)
                && let Some(Op::Jump { target: jump }) = func.range(block).last().map(|last| &mut func.ops[last])
            {
                *jump = over;
                func.ops[at] = Op::Branch { width, cond, a, b, target };
                done += 1;
            }
        }
        func.order[kept] = block;
        kept += 1;
    }
    func.order.truncate(kept);
    done
}

/// Lets jumps to blocks that only jump go where those go.
fn thread(func: &mut Func) -> u32 {
    let mut done = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        let Some(mut taken) = func.ends(block).taken else { continue };
        let mut hops = 0;
        while let Some(next) = only_jump(func, taken).filter(|next| *next != taken && hops < MAX_HOPS) {
            taken = next;
            hops += 1;
        }
        if hops > 0
            && let Some(at) = func.range(block).last()
            && let Op::Jump { target } | Op::Branch { target, .. } = &mut func.ops[at]
        {
            *target = taken;
            done += 1;
        }
    }
    done
}

/// Where a block goes that does nothing else.
fn only_jump(func: &Func, block: BlockId) -> Option<BlockId> {
    if let [Op::Jump { target }] = func.block_ops(block) { Some(*target) } else { None }
}
