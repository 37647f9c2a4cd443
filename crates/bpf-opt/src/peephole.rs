//! The first pass: fuses two adjacent ops into one.
//!
//! BPF arithmetic overwrites its first operand, so compilers copy before they compute, and they make addresses in the
//! stack in two steps. Lowering translates both literally. This pass fuses a copy and the op that changes the copy into
//! one three-address op, and adds a constant to the frame address that precedes it.
//!
//! Invariant: each op is only compared with the one before it, in one block. No other op moves, and no value's last
//! definition in a block changes.

use bpf_isa::{Size, Width};
use bpf_lir::{BinOp, Func, Op, Span, VReg, Val};
use core::ops::Range;

/// Runs the pass; returns how many pairs were fused.
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

/// Fuses pairs and moves the remaining ops together; returns how many ops remain.
fn sweep(ops: &mut [Op], spans: &mut [Span]) -> usize {
    let mut len = 0;
    for at in 0..ops.len() {
        if len > 0
            && let Some(both) = fuse(&ops[len - 1], &ops[at])
        {
            ops[len - 1] = both;
            // The span of the fused op reaches from the first op's instruction to the second's.
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

/// Whether a copy of width `copied` holds all bits that an op of width `reads` reads.
fn covers(copied: Width, reads: Width) -> bool {
    copied == Width::W64 || reads == Width::W32
}

/// Returns the one op that does what `first` and then `second` do, if there is one.
#[inline(always)]
fn fuse(first: &Op, second: &Op) -> Option<Op> {
    if let Op::Mov { width, dst, src: Val::Reg(src) } = *first {
        after_copy(width, dst, src, second)
    } else if let Op::FrameAddr { dst: address, off } = *first
        && let Op::Bin { op: BinOp::Add, width: Width::W64, dst, a, b: Val::Imm(imm) } = *second
        && (dst, a) == (address, address)
    {
        // Only if the sum of the offsets fits into 32 bits.
        let off = i64::from(off).checked_add(imm).and_then(|sum| i32::try_from(sum).ok())?;
        Some(Op::FrameAddr { dst, off })
    } else {
        None
    }
}

/// Returns the op that computes `second` from the original value `from` in place of its copy. Its result is still
/// `copy`.
fn after_copy(copied: Width, copy: VReg, from: VReg, second: &Op) -> Option<Op> {
    // Only an op that overwrites the copy makes the copy itself dead.
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

/// Returns the width at which a byte swap of this size reads its operand.
fn reads(size: Size) -> Width {
    match size {
        Size::B | Size::H | Size::W => Width::W32,
        Size::DW => Width::W64,
    }
}
