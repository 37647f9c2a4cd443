//! The first pass: two adjacent ops that are one.
//!
//! BPF arithmetic changes its first operand, so compilers copy before they compute, and make addresses in the stack in
//! two steps. Lowering says just that; here a copy and the op that changes the copy become one three-address op, and a
//! constant is added to a frame address where it is made.
//!
//! Invariant: one look at each op and the one before it, in one block. Nothing else moves and no value's last
//! definition in a block changes.

use bpf_isa::{Size, Width};
use bpf_lir::{BinOp, Func, Op, Span, VReg, Val};
use core::ops::Range;

/// Runs the pass; says how many pairs became one.
pub(crate) fn run(func: &mut Func) -> u32 {
    let mut fused = 0;
    for i in 0..func.order.len() {
        let block = &mut func.blocks[func.order[i].index()];
        let Range { start, end } = block.ops;
        let (ops, spans) = (&mut func.ops[start as usize..end as usize], &mut func.spans[start as usize..end as usize]);
        let left = sweep(ops, spans);
        block.ops.end = start + crate::num::small(left);
        fused += end - block.ops.end;
    }
    fused
}

/// Moves what is left together; says how much that is.
fn sweep(ops: &mut [Op], spans: &mut [Span]) -> usize {
    let mut len = 0;
    for at in 0..ops.len() {
        if len > 0
            && let Some(both) = fuse(&ops[len - 1], &ops[at])
        {
            ops[len - 1] = both;
            // The span reaches from the first instruction to the last.
            let (before, span) = (spans[len - 1], spans[at]);
            spans[len - 1].len = (span.first + span.len).saturating_sub(before.first).max(before.len);
        } else {
            if len != at {
                ops[len] = ops[at];
                spans[len] = spans[at];
            }
            len += 1;
        }
    }
    len
}

/// Whether a copy of this width has all that an op of width `reads` reads.
fn covers(copied: Width, reads: Width) -> bool {
    copied == Width::W64 || reads == Width::W32
}

/// The op that does what `first` and then `second` do, if there is one.
#[inline(always)]
fn fuse(first: &Op, second: &Op) -> Option<Op> {
    if let Op::Mov { width, dst, src: Val::Reg(src) } = *first {
        after_copy(width, dst, src, second)
    } else if let Op::FrameAddr { dst: address, off } = *first
        && let Op::Bin { op: BinOp::Add, width: Width::W64, dst, a, b: Val::Imm(imm) } = *second
        && (dst, a) == (address, address)
    {
        // As far as the sum of the offsets is one.
        let off = i64::from(off).checked_add(imm).and_then(|sum| i32::try_from(sum).ok())?;
        Some(Op::FrameAddr { dst, off })
    } else {
        None
    }
}

/// The op that changes a copy of `from` in place, on the original; its result stays where it was.
fn after_copy(copied: Width, copy: VReg, from: VReg, second: &Op) -> Option<Op> {
    // Only what reads and writes the copy: calls and the like do not.
    if second.def() != Some(copy) {
        return None;
    }
    if let Op::Bin { op, width, dst, a, b } = *second
        && a == copy
        && covers(copied, width)
    {
        let b = if b == Val::Reg(copy) { Val::Reg(from) } else { b };
        Some(Op::Bin { op, width, dst, a: from, b })
    } else if let Op::Neg { width, dst, src } = *second
        && src == copy
        && covers(copied, width)
    {
        Some(Op::Neg { width, dst, src: from })
    } else if let Op::Ext { width, signed, from: size, dst, src } = *second
        && src == copy
        && size != Size::DW
    {
        Some(Op::Ext { width, signed, from: size, dst, src: from })
    } else if let Op::Bswap { size, dst, src } = *second
        && src == copy
        && covers(copied, reads(size))
    {
        Some(Op::Bswap { size, dst, src: from })
    } else {
        None
    }
}

/// The width at which an op that takes so many bytes of its operand reads it.
fn reads(size: Size) -> Width {
    match size {
        Size::B | Size::H | Size::W => Width::W32,
        Size::DW => Width::W64,
    }
}
